"""These tests need the extra `torch`; without it they are skipped and say so."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
