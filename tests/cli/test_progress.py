from __future__ import annotations

import io
import time

from fp16conv.cli.environment import Level
from fp16conv.cli.terminal import TerminalProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _wait(stream: io.StringIO, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in stream.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_quick_steps_print_nothing() -> None:
    stream = io.StringIO()
    progress = TerminalProgress(stream, Level.NORMAL, patience=60)
    progress("loading")
    progress("planning", 0, 3)
    progress.close()
    assert stream.getvalue() == ""


def test_a_slow_step_is_one_plain_line_without_a_terminal() -> None:
    stream = io.StringIO()
    progress = TerminalProgress(stream, Level.NORMAL, patience=0.01)
    progress("calibrating\x1b", 0, 12)
    _wait(stream, "12")
    progress("calibrating\x1b", 1, 12)
    progress.close()
    assert stream.getvalue() == "fp16conv: calibrating\\x1b (12) ...\n"


def test_a_slow_step_is_a_bar_on_a_terminal(monkeypatch: object) -> None:
    stream = Terminal()
    progress = TerminalProgress(stream, Level.NORMAL, patience=0.01)
    progress("calibrating [red]", 1, 12)
    _wait(stream, "calibrating [red]")
    progress.close()
    assert "calibrating [red]" in stream.getvalue()


def test_a_bar_shows_steps_rate_and_time_left() -> None:
    stream = Terminal()
    progress = TerminalProgress(stream, Level.NORMAL, patience=0.01)
    progress("analyzing", 0, 400)
    _wait(stream, "0/400")
    for done in range(1, 4):
        time.sleep(0.05)
        progress("analyzing", done, 400)
    _wait(stream, "left")
    progress.close()
    assert "3/400, " in stream.getvalue()
    assert "/s, " in stream.getvalue()


def test_quiet_says_nothing_and_verbose_names_every_step() -> None:
    quiet, verbose = io.StringIO(), io.StringIO()
    for stream, level in ((quiet, Level.QUIET), (verbose, Level.VERBOSE)):
        progress = TerminalProgress(stream, level, patience=0.0)
        progress("loading")
        progress("planning")
        progress.close()
    assert quiet.getvalue() == ""
    assert verbose.getvalue() == "fp16conv: loading ...\nfp16conv: planning ...\n"
