"""Every command of the how-to pages does what the page says: it runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.startswith("fp16conv ")]


@pytest.mark.parametrize("page", [ROOT / "docs" / "how-to" / "reports.md"], ids=lambda page: page.stem)
def test_commands_run(page: Path, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    monkeypatch.chdir(tmp_path)
    found = commands(page)
    assert found
    for command in found:
        words = shlex.split(command.partition(">")[0])
        done = cli(*words[1:])
        assert done.code == 0, f"{command}: {done.err}"
