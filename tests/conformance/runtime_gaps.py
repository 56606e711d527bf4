"""What ONNX Runtime cannot load or run although the model is valid: listed by name, with its message."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fp16conv.execution.runtime import RuntimeFailure

FOLDER = Path(__file__).parent


def read_gaps(kind: str) -> dict[str, str]:
    """Name -> what the runtime says, from runtime_gaps.KIND.json."""
    gaps: dict[str, str] = json.loads((FOLDER / f"runtime_gaps.{kind}.json").read_text(encoding="utf-8"))
    return gaps


def essence(failure: RuntimeFailure) -> str:
    """The runtime's message without folders and addresses."""
    lines = (failure.message or "crashed").strip().splitlines()
    return re.sub(r"/\S*/", "", lines[0])[:200]
