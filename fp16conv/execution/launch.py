"""Starts the child processes that host the runtime, ahead of need where a verb knows what it will need.

Imports the standard library only: a child that starts before the heavy imports loads the runtime meanwhile.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

__all__ = ["Child", "launch_ahead", "take_child"]

_WORKER: Final = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Child:
    """A process that runs `worker.py`, and the file that takes what it prints."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def kill(self) -> None:
        """End it at once and close what leads to it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            if pipe is not None:
                pipe.close()


_waiting: list[Child] = []


def launch_ahead(count: int) -> None:
    """See to it that so many children wait for `take_child`; what nobody takes ends with this process."""
    while len(_waiting) < count:
        _waiting.append(_launch())


def take_child() -> Child:
    """A child that was launched ahead and still runs, or a new one."""
    while _waiting:
        child = _waiting.pop(0)
        if child.process.poll() is None:
            return child
        child.kill()
    return _launch()


@atexit.register
def _dismiss() -> None:
    while _waiting:
        _waiting.pop().kill()


def _launch() -> Child:
    log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
    # -P keeps the current folder off the child's path: a stray numpy.py there must not be imported.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", os.fspath(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
        )
    except OSError as error:
        log.close()
        why = error.strerror or str(error)
        raise OSError(error.errno, f"the runtime's process cannot be started: {why}") from error
    return Child(process, log)
