"""The FP32 model: loaded, run, and kept ahead of what is compared with it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Final

import numpy as np

from fp16conv.errors import ValidationError
from fp16conv.execution.failures import RuntimeFailure
from fp16conv.execution.lanes import Lane
from fp16conv.execution.runtime import Feeds, ModelSource, Results, Runtime, SessionHandle
from fp16conv.frontends.onnx import LoadedModel

__all__ = ["ReferenceRun", "half_of_the_cores", "load_reference", "run_reference", "source_of"]

AHEAD_BYTES: Final = 2**25  # of inputs and outputs that wait for what they are compared with
AHEAD_BATCHES: Final = 32


def source_of(loaded: LoadedModel) -> ModelSource:
    """What to give a runtime to load the model as it is: its file where there is one."""
    return loaded.path if loaded.path.is_file() else loaded.model


def load_reference(runtime: Runtime, reference: LoadedModel, *, threads: int | None = None) -> SessionHandle:
    """Load the FP32 model.

    Args:
        runtime: where.
        reference: the FP32 model.
        threads: see `Runtime.load`.

    Raises:
        ValidationError: it does not load.
    """
    try:
        return runtime.load(source_of(reference), threads=threads)
    except RuntimeFailure as failure:
        raise ValidationError(
            "the FP32 model itself does not load, so there is nothing to compare with",
            where=reference.graph.source,
            why=str(failure),
        ) from failure


def run_reference(runtime: Runtime, session: SessionHandle, reference: str, batch: Feeds) -> Results:
    """Run the FP32 model on one batch.

    Raises:
        ValidationError: it does not run.
    """
    try:
        return runtime.run(session, batch)
    except RuntimeFailure as failure:
        raise ValidationError(
            "the FP32 model itself does not run on these inputs, so there is nothing to compare with",
            where=reference,
            why=str(failure),
            hint="check names, shapes and values of the inputs",
        ) from failure


def half_of_the_cores() -> int:
    """Threads for each of two models that run at the same time.

    Where threads are more than cores, ONNX Runtime burns time: at the end of an operator its first thread
    waits in a loop for one that the other process keeps from running.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, count // 2)


class ReferenceRun:
    """The FP32 model over all batches, in a thread of its own and some batches ahead.

    It begins at once: what is compared with it may come later.

    Args:
        lane: its runtime; what else is submitted there waits for the batches that are ahead.
        reference: the FP32 model.
        feeds: its batches.
        threads: see `Runtime.load`.
    """

    def __init__(
        self, lane: Lane, reference: LoadedModel, feeds: Iterable[Feeds], *, threads: int | None = None
    ) -> None:
        self._lane, self._reference = lane, reference
        self._loading = lane.submit(load_reference, lane.runtime, reference, threads=threads)
        self._source, self._feeds = feeds, iter(feeds)
        self._waiting: deque[tuple[Feeds, Future[Results | None]]] = deque()
        self._lock = threading.Lock()
        self._fed = self._held = self._latest = 0  # bytes: of inputs and of results ahead, of one result

    @property
    def session(self) -> SessionHandle:
        """The loaded model.

        Raises:
            ValidationError: it does not load.
        """
        return self._loading.result()

    def advance(self) -> None:
        """Read batches and have them run, as far ahead as is sensible and at least one."""
        while not self._waiting or (
            len(self._waiting) < AHEAD_BATCHES and self._fed + self._latest * len(self._waiting) < AHEAD_BYTES
        ):
            batch = next(self._feeds, None)
            if batch is None:
                return
            self._fed += _nbytes(batch)
            self._waiting.append((batch, self._lane.submit(self._run_ahead, batch)))

    def __iter__(self) -> Iterator[tuple[Feeds, Future[Results | None]]]:
        """Each batch and what is to come of it; `take` has it. Another iteration runs them again."""
        self.advance()
        while self._waiting:
            yield self._waiting[0]
            batch, _ = self._waiting.popleft()
            self._fed -= _nbytes(batch)
            self.advance()
        self._feeds = iter(self._source)

    def take(self, batch: Feeds, coming: Future[Results | None]) -> Results:
        """The outputs for a batch.

        Raises:
            ValidationError: the model does not load, or does not run on the batch.
        """
        results = coming.result()
        if results is None:
            return self._lane.submit(self._run, batch).result()
        with self._lock:
            self._held -= _nbytes(results)
        return results

    def _run(self, batch: Feeds) -> Results:
        return run_reference(self._lane.runtime, self.session, self._reference.graph.source, batch)

    def _run_ahead(self, batch: Feeds) -> Results | None:
        """None where too many results wait already: their size was not known when this was submitted."""
        with self._lock:
            if self._held >= AHEAD_BYTES:
                return None
        results = self._run(batch)
        with self._lock:
            self._latest = _nbytes(results)
            self._held += self._latest
        return results


def _nbytes(value: Any) -> int:
    """Bytes of arrays, in whatever they lie."""
    if isinstance(value, dict):
        return sum(map(_nbytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_nbytes, value))
    return value.nbytes if isinstance(value, np.ndarray) else 0
