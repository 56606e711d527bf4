"""Read intermediate values of a model while it runs, in chunks of bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fp16conv.execution.bodies import OpenedModel, has_bodies, is_readable, open_bodies
from fp16conv.execution.failures import clone_to_run
from fp16conv.execution.retyping import renew_shapes
from fp16conv.execution.runtime import Runtime, RuntimeFailure, SessionHandle
from fp16conv.execution.staging import share_weights
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import ModelGraph

__all__ = ["MEMORY_LIMIT", "Reading", "observable", "tap", "tap_inside", "tap_model"]

MEMORY_LIMIT = 512 * 2**20  # bytes of tapped values held at a time
_UNKNOWN_SIZE = 16  # values of unknown size in the first chunk; it shows how large values are in this model
_LEAST_SIZE = 2**22  # bytes: what a value of unknown size is taken for at least
_TRIES = 32  # branches that may turn out not to run on the data, one after the other
_ALONE = 12  # branches tried one by one where the runtime does not tell which one fails


@dataclass(frozen=True, slots=True)
class Reading:
    """A value on a batch.

    Args:
        batch: index of the batch.
        value: value id.
        array: its numbers.
        taken: False where the model would not have computed it: an If around it chose the other branch.
    """

    batch: int
    value: int
    array: npt.NDArray[Any]
    taken: bool


def observable(graph: ModelGraph, values: Iterable[int]) -> tuple[int, ...]:
    """The values a tap can read: tensors of the main graph with a name, constants left out.

    Args:
        graph: the model.
        values: value ids.

    Returns:
        Those ids that can be read, ascending; the others are inside subgraphs or functions, or no tensors.
    """
    facts = graph.values
    return tuple(sorted({v for v in values if facts[v].scope == 0 and is_readable(facts[v])}))


def tap(
    loaded: LoadedModel,
    runtime: Runtime,
    feeds: Iterable[Mapping[str, Any]],
    values: Sequence[int],
    memory_limit: int = MEMORY_LIMIT,
) -> Iterator[tuple[int, int, npt.NDArray[Any]]]:
    """Run the model over the feeds and read values.

    The values are read in chunks, one session at a time; the weights are written once and mapped by each.
    Values inside subgraphs and functions are left out (see `observable`, and `tap_inside` for those).

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


def tap_inside(
    loaded: LoadedModel,
    runtime: Runtime,
    feeds: Iterable[Mapping[str, Any]],
    values: Sequence[int],
    memory_limit: int = MEMORY_LIMIT,
) -> Iterator[Reading]:
    """Like `tap`, and reads values inside functions (once per call) and If branches too.

    Both branches of an If are run. What the branch that is not taken gives is marked: it is what the branch
    would compute on this data. A branch that fails on the data stays unread, with all that is inside it.
    Bodies of Loop and Scan stay unread.

    Raises:
        RuntimeFailure: the model does not run.
    """
    wanted = set(values)
    if not has_bodies(loaded.graph):
        for batch, value, array in tap(loaded, runtime, feeds, values, memory_limit):
            yield Reading(batch, value, array, taken=True)
        return
    skip: set[int] = set()
    done: set[tuple[int, str]] = set()
    for _ in range(_TRIES):
        opened = open_bodies(loaded, skip)
        try:
            yield from _read_opened(opened, runtime, feeds, wanted, memory_limit, done)
        except RuntimeFailure as failure:
            branch = opened.find_branch(failure.message)
            found = {branch} if branch is not None else _find_failing(loaded, runtime, feeds, opened, skip)
            if not found:
                break
            skip |= found
        else:
            return
    for batch, value, array in tap(loaded, runtime, feeds, values, memory_limit):
        if (batch, loaded.graph.values[value].name) not in done:
            yield Reading(batch, value, array, taken=True)


def _read_opened(
    opened: OpenedModel,
    runtime: Runtime,
    feeds: Iterable[Mapping[str, Any]],
    wanted: set[int],
    memory_limit: int,
    done: set[tuple[int, str]],
) -> Iterator[Reading]:
    """Conditions are read first: whether a branch was taken is known before its values come."""
    places = {name: place for name, place in opened.places.items() if place.value in wanted}
    conditions = dict.fromkeys(name for place in places.values() for name, _ in place.conditions)
    truth: dict[tuple[int, str], bool] = {}
    for batch, name, array in tap_model(opened.model, runtime, feeds, [*conditions, *places], memory_limit):
        if name in conditions:
            truth[batch, name] = bool(array.reshape(-1)[0])
        elif (batch, name) not in done:
            done.add((batch, name))
            place = places[name]
            taken = all(truth[batch, condition] is needed for condition, needed in place.conditions)
            yield Reading(batch, place.value, array, taken)


def _find_failing(
    loaded: LoadedModel,
    runtime: Runtime,
    feeds: Iterable[Mapping[str, Any]],
    opened: OpenedModel,
    skip: set[int],
) -> set[int]:
    """Branches that do not run when they alone are hoisted; those beyond a bound are given up untried.

    Empty where no branch is to blame. A crash names no operator, so there is no better way to tell.
    """
    everything = set(opened.hoisted)
    tried = opened.hoisted[:_ALONE]
    if not everything or not _runs(open_bodies(loaded, skip | everything), runtime, feeds):
        return set()
    failing = everything - set(tried)
    for branch in tried:
        around = {scope for scope in everything if _is_inside(loaded.graph, branch, scope)}
        if around & failing:
            continue  # goes with the branch around it
        if not _runs(open_bodies(loaded, skip | (everything - around - {branch})), runtime, feeds):
            failing.add(branch)
    return failing or everything  # each runs alone, but not together


def _runs(opened: OpenedModel, runtime: Runtime, feeds: Iterable[Mapping[str, Any]]) -> bool:
    try:
        for _ in tap_model(opened.model, runtime, feeds, list(opened.places)[-1:]):
            pass
    except RuntimeFailure:
        return False
    return True


def _is_inside(graph: ModelGraph, scope: int, outer: int) -> bool:
    parent = graph.scopes[scope].parent
    while parent is not None:
        if parent == outer:
            return True
        parent = graph.scopes[parent].parent
    return False


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
    inputs = {value.name or "": value for value in model.graph.inputs}
    wanted = set(names)
    pending = [name for name in names if name not in inputs]
    try:
        for batch, feed in enumerate(feeds):
            for name, value in inputs.items():
                if isinstance(array := feed.get(name), np.ndarray):
                    tapper.learn(value, array)
                    if name in wanted:
                        yield batch, name, array
        while pending:
            chunk = tapper.next_chunk(pending)
            yield from tapper.read(chunk, feeds)
            pending = pending[len(chunk) :]
    finally:
        tapper.close()


def _correct_shapes(model: ir.Model) -> None:
    """Replace declared shapes by those that follow from the inputs; where nothing follows they are believed.

    Tools leave stale ones behind. A runtime warns of them, and refuses them in what becomes an output.
    """
    outputs = [value for node in model.graph for value in node.outputs]
    declared = [value.shape for value in outputs]
    renew_shapes(model)
    for value, shape in zip(outputs, declared, strict=True):
        if value.shape is None or value.is_graph_output():
            value.shape = shape


class _Tapper:
    def __init__(self, model: ir.Model, runtime: Runtime, memory_limit: int) -> None:
        self.runtime, self.memory_limit = runtime, memory_limit
        self.model = clone_to_run(model)
        _correct_shapes(self.model)
        self.folder = share_weights(self.model, runtime.folder)
        self.values = {v.name or "": v for node in self.model.graph for v in node.outputs if v.name}
        self.outputs = list(self.model.graph.outputs)
        self._dims: dict[str, int] = {}
        self._largest = 0  # bytes of the largest input or value read
        self._has_read = False

    def next_chunk(self, names: Sequence[str]) -> list[str]:
        """As many of the next values as fit the limit, one at least."""
        total, unknown = 0, 0
        chunk: list[str] = []
        for name in names:
            size = self._size(self.values[name])
            unknown += size is None
            total += max(4 * self._largest, _LEAST_SIZE) if size is None else size
            if chunk and (total > self.memory_limit or (unknown > _UNKNOWN_SIZE and not self._has_read)):
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
                self._has_read = True
                for name in chunk:
                    array = results.pop(name)
                    if isinstance(array, np.ndarray):
                        self.learn(self.values[name], array)
                        yield batch, name, array
        finally:
            self._unload(session)

    def learn(self, value: ir.Value, array: npt.NDArray[Any]) -> None:
        """What an input or a value that was read shows: symbolic dimensions, and how large values are."""
        self._largest = max(self._largest, array.nbytes)
        if value.shape is None or len(value.shape) != array.ndim:
            return
        for dim, size in zip(value.shape, array.shape, strict=True):
            if not isinstance(dim, int) and dim.value is not None:
                self._dims[str(dim.value)] = max(size, self._dims.get(str(dim.value), 0))

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
        if value.shape is None or value.dtype in (None, ir.DataType.UNDEFINED):
            return None
        sizes = [dim if isinstance(dim, int) else self._dims.get(str(dim.value)) for dim in value.shape]
        if any(size is None for size in sizes):
            return None
        return math.prod(size or 0 for size in sizes) * max(1, int(value.dtype.itemsize))
