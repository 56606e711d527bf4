from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from fp16conv.cli import run
from fp16conv.cli.environment import Environment


@dataclass
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in this process; `functions` stand in for the API."""

    def invoke(*args: str, **functions: Any) -> Outcome:
        environment = Environment(functions=SimpleNamespace(**functions) if functions else None)
        code = run([str(arg) for arg in args], environment)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return invoke


def run_process(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True
