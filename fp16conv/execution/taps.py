"""Read intermediate values of a model while it runs, in chunks of bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fp16conv.execution.retyping import complete_types
from fp16conv.execution.runtime import Runtime, RuntimeFailure, SessionHandle
from fp16conv.execution.staging import share_weights
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import Container, DataType, ModelGraph

__all__ = ["MEMORY_LIMIT", "observable", "tap", "tap_model"]

MEMORY_LIMIT = 512 * 2**20  # bytes of tapped values held at a time
_UNKNOWN_SIZE = 16  # values of unknown size per chunk, until one batch has shown their sizes


def observable(graph: ModelGraph, values: Iterable[int]) -> tuple[int, ...]:
    """The values a tap can read: tensors of the main graph with a name, constants left out.

    Args:
        graph: the model.
        values: value ids.

    Returns:
        Those ids that can be read, ascending; the others are inside subgraphs or functions, or no tensors.
    """
    facts = graph.values
    return tuple(
        sorted(
            {
                v
                for v in values
                if facts[v].scope == 0
                and facts[v].container is Container.TENSOR
                and not facts[v].is_constant
                and facts[v].name
                and facts[v].dtype not in (DataType.UNKNOWN, DataType.OTHER, DataType.STRING)
            }
        )
    )


def tap(
    loaded: LoadedModel,
    runtime: Runtime,
    feeds: Iterable[Mapping[str, Any]],
    values: Sequence[int],
    memory_limit: int = MEMORY_LIMIT,
) -> Iterator[tuple[int, int, npt.NDArray[Any]]]:
    """Run the model over the feeds and read values.

    The values are read in chunks, one session at a time; the weights are written once and mapped by each.
    Values inside subgraphs and functions are left out (see `observable`).

    Args:
        loaded: the model.
        runtime: runs it.
        feeds: batches; iterated once per chunk.
        values: ids of the values to read.
        memory_limit: bytes of values to hold at a time.

    Yields:
        Batch index, value id, array. Every value comes once per batch, chunk by chunk.

    Raises:
        RuntimeFailure: the model does not run.
    """
    names = {loaded.graph.values[v].name: v for v in observable(loaded.graph, values)}
    for batch, name, array in tap_model(loaded.model, runtime, feeds, list(names), memory_limit):
        yield batch, names[name], array


def tap_model(
    model: ir.Model,
    runtime: Runtime,
    feeds: Iterable[Mapping[str, Any]],
    names: Sequence[str],
    memory_limit: int = MEMORY_LIMIT,
) -> Iterator[tuple[int, str, npt.NDArray[Any]]]:
    """Like `tap`, for any onnx_ir model (an emulated one too) and the names of values of its main graph.

    Raises:
        KeyError: a name is not a value of the main graph.
        RuntimeFailure: the model does not run.
    """
    tapper = _Tapper(model, runtime, memory_limit)
    inputs = {value.name for value in model.graph.inputs}
    fed = [name for name in names if name in inputs]
    pending = [name for name in names if name not in inputs]
    for batch, feed in enumerate(feeds):
        for name in fed:
            if isinstance(feed.get(name), np.ndarray):
                yield batch, name, feed[name]
    try:
        while pending:
            chunk = tapper.next_chunk(pending)
            yield from tapper.read(chunk, feeds)
            pending = pending[len(chunk) :]
    finally:
        tapper.close()


class _Tapper:
    def __init__(self, model: ir.Model, runtime: Runtime, memory_limit: int) -> None:
        self.runtime, self.memory_limit = runtime, memory_limit
        self.model = model.clone()
        complete_types(self.model)
        self.folder = share_weights(self.model, runtime.folder)
        self.values = {v.name or "": v for node in self.model.graph for v in node.outputs if v.name}
        self.outputs = list(self.model.graph.outputs)
        self._dims: dict[str, int] = {}

    def next_chunk(self, names: Sequence[str]) -> list[str]:
        """As many of the next values as fit the limit, one at least."""
        total, unknown = 0, 0
        chunk: list[str] = []
        for name in names:
            size = self._size(self.values[name])
            total += size or 0
            unknown += size is None
            if chunk and (total > self.memory_limit or unknown > _UNKNOWN_SIZE):
                break
            chunk.append(name)
        return chunk

    def read(
        self, chunk: Sequence[str], feeds: Iterable[Mapping[str, Any]]
    ) -> Iterator[tuple[int, str, npt.NDArray[Any]]]:
        """Run all batches with the chunk's values as outputs."""
        session = self._load(chunk)
        try:
            for batch, feed in enumerate(feeds):
                results = self.runtime.run(session, feed, chunk)
                for name in chunk:
                    array = results.pop(name)
                    if isinstance(array, np.ndarray):
                        self._learn(self.values[name], array)
                        yield batch, name, array
        finally:
            self._unload(session)

    def close(self) -> None:
        self.folder.close()

    def _load(self, chunk: Sequence[str]) -> SessionHandle:
        graph = self.model.graph
        have = {value.name for value in self.outputs}
        graph.outputs.clear()
        graph.outputs.extend(self.outputs)
        graph.outputs.extend(self.values[name] for name in chunk if name not in have)
        return self.runtime.load(self.folder.write(self.model))

    def _unload(self, session: SessionHandle) -> None:
        try:
            self.runtime.unload(session)
        except RuntimeFailure:
            return  # the process is gone, and the session with it

    def _size(self, value: ir.Value) -> int | None:
        if value.shape is None or value.dtype is None:
            return None
        sizes = [dim if isinstance(dim, int) else self._dims.get(str(dim.value)) for dim in value.shape]
        if any(size is None for size in sizes):
            return None
        return math.prod(size or 0 for size in sizes) * max(1, int(value.dtype.itemsize))

    def _learn(self, value: ir.Value, array: npt.NDArray[Any]) -> None:
        """Symbolic dimensions show their size in the first values read."""
        if value.shape is None or len(value.shape) != array.ndim:
            return
        for dim, size in zip(value.shape, array.shape, strict=True):
            if not isinstance(dim, int) and dim.value is not None:
                self._dims[str(dim.value)] = max(size, self._dims.get(str(dim.value), 0))
