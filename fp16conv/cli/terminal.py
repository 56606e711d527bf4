"""Printing: results to stdout, progress and errors to stderr."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from fp16conv.cli.environment import Environment, Level
from fp16conv.reporting.sanitize import sanitize

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn, TaskID

    from fp16conv.reporting.report import Report

__all__ = ["TerminalProgress", "print_error", "print_report", "print_text", "show_progress"]

_STYLES = {
    "heading": "bold",
    "strong": "bold",
    "good": "green",
    "bad": "bold red",
    "warn": "yellow",
    "dim": "dim",
    "command": "cyan",
}

PATIENCE = 2.0  # seconds: a step that ends sooner is not worth a line


def is_fancy(stream: TextIO) -> bool:
    """Whether to send escape sequences: a terminal that understands them."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def print_report(report: Report, form: str, env: Environment) -> None:
    """Print a report to stdout in the format named `form`."""
    if form != "text":
        from fp16conv.reporting.renderers import RENDERERS

        print_text(RENDERERS[form](report))
        return
    from fp16conv.reporting.layout import to_text
    from fp16conv.reporting.text import layout_report

    lines = layout_report(report, full=env.level is Level.VERBOSE)
    if not is_fancy(sys.stdout):
        print_text(to_text(lines))
        return
    from rich.console import Console
    from rich.text import Text

    # Text objects, never markup: a name like [red] is a name. NO_COLOR is read by rich.
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    for row in lines:
        text = Text()
        for span in row:
            text.append(span.text, style=_STYLES.get(span.style.value, ""))
        console.print(text, soft_wrap=True)


def print_text(text: str) -> None:
    """Write text that is already safe for a terminal to stdout."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def print_error(message: str) -> None:
    """Write an error as one paragraph to stderr, if there is one."""
    if sys.stderr is None:
        return
    color = is_fancy(sys.stderr) and "NO_COLOR" not in os.environ
    label = "\x1b[1;31merror:\x1b[0m" if color else "error:"
    sys.stderr.write(f"{label} {sanitize(' '.join(message.split()))}\n")


def describe_pace(done: float, total: float | None, speed: float | None) -> str:
    """Steps done, rate and time left; what is not known is left out.

    Args:
        done: steps done.
        total: steps in all, None if unknown.
        speed: steps per second, None before the second one ends.

    Example:
        >>> describe_pace(3, 12, 0.5), describe_pace(0, 12, None), describe_pace(0, None, None)
        ('3/12, 0.50/s, 18 s left', '0/12', '')
    """
    if total is None:
        return ""
    text = f"{done:.0f}/{total:.0f}"
    if not speed:
        return text
    left = (total - done) / speed
    remaining = f"{left:.0f} s" if left < 100 else f"{left / 60:.0f} min"
    return f"{text}, {speed:.{2 if speed < 10 else 0}f}/s, {remaining} left"


def _pace_column() -> ProgressColumn:
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class PaceColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(describe_pace(task.completed, task.total, task.speed), style="dim")

    return PaceColumn()


class TerminalProgress:
    """Shows steps that take longer than two seconds: a bar on a terminal, a line elsewhere."""

    def __init__(self, stream: TextIO, level: Level, patience: float = PATIENCE) -> None:
        self._stream, self._level, self._patience = stream, level, patience
        self._lock = threading.Lock()
        self._step = ""
        self._done, self._total = 0, None
        self._timer: threading.Timer | None = None
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    _total: int | None

    def __call__(self, step: str, done: int = 0, total: int | None = None) -> None:
        if self._level is Level.QUIET:
            return
        with self._lock:
            self._done, self._total = done, total
            if step != self._step:
                self._end()
                self._begin(step)
            elif self._bar is not None and self._task is not None:
                self._bar.update(self._task, completed=done, total=total)

    def _begin(self, step: str) -> None:
        self._step = step
        if self._level is Level.VERBOSE:
            self._write()
            return
        self._timer = threading.Timer(self._patience, self._show, [step])
        self._timer.daemon = True
        self._timer.start()

    def _show(self, step: str) -> None:
        with self._lock:
            if step != self._step:
                return
            if not is_fancy(self._stream):
                self._write()
                return
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            console = Console(file=self._stream, markup=False, highlight=False)
            text, pace = TextColumn("{task.description}", markup=False), _pace_column()
            self._bar = Progress(
                text, BarColumn(24), TimeElapsedColumn(), pace, console=console, transient=True
            )
            self._task = self._bar.add_task(sanitize(step), completed=self._done, total=self._total)
            self._bar.start()

    def _write(self) -> None:
        of = f" ({self._total})" if self._total is not None else ""
        self._stream.write(f"fp16conv: {sanitize(self._step)}{of} ...\n")
        self._stream.flush()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._bar is not None:
            self._bar.stop()
        self._timer = self._bar = self._task = None
        self._step = ""

    def close(self) -> None:
        """Take the last step off the screen."""
        with self._lock:
            self._end()


@contextmanager
def show_progress(env: Environment) -> Iterator[TerminalProgress]:
    """Progress on stderr for the length of the block."""
    progress = TerminalProgress(sys.stderr, env.level)
    try:
        yield progress
    finally:
        progress.close()
