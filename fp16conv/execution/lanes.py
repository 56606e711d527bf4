"""A runtime and the thread that talks to it, so that two runtimes work at the same time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, Self, TypeVar

from fp16conv.execution.runtime import Runtime

__all__ = ["Lane"]

P = ParamSpec("P")
T = TypeVar("T")


class Lane:
    """Does one thing after another with a runtime, in a thread; nothing else may use that runtime meanwhile.

    Leaving the context waits for what was submitted. An error drops what has not begun; an interrupt also
    ends the child process, whatever it is at, and the next call starts another.

    Args:
        runtime: what the submitted functions work with.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._thread = ThreadPoolExecutor(1)

    def submit(self, function: Callable[P, T], /, *args: P.args, **words: P.kwargs) -> Future[T]:
        """Call a function when all that was submitted before is done."""
        return self._thread.submit(function, *args, **words)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self.runtime.stop()
        self._thread.shutdown(cancel_futures=kind is not None)
