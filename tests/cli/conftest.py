from __future__ import annotations

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
