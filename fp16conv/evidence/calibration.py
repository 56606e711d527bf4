"""Observed ranges: what the FP32 model's values are on the given data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fp16conv.evidence.constants import MOVES
from fp16conv.evidence.summary import RangeSummary
from fp16conv.execution.feeds import FeedSource
from fp16conv.execution.runtime import Runtime
from fp16conv.execution.taps import MEMORY_LIMIT, tap_inside
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import Container, DataType, ModelGraph, Origin, RangeFact

__all__ = ["Calibration", "calibrate", "observe"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Calibration:
    """What an FP32 run over the data showed.

    Args:
        facts: FLOAT value id -> observed range, merged over batches; constants are left out.
        shapes: value id -> shape; where batches differ, the one with most elements.
        histograms: FLOAT value id -> int64 [81] counts of base-2 exponents -40 to 40 of finite
            non-zero magnitudes (the end bins hold what lies beyond).
        batches: number of batches run.
        origin: OBSERVED on the user's data, SYNTHETIC on made-up inputs.
        unobserved: FLOAT values (no constants) that no batch reached: bodies of loops, branches
            that fail on the data, functions that are not called, empty tensors.
        untaken: values that the model itself never computed on this data, because they lie in branches that
            no batch takes. Their facts and shapes say what the branch would compute on this data: enough to
            judge its precision, no statement about the data.
    """

    facts: Mapping[int, RangeFact]
    shapes: Mapping[int, Shape]
    histograms: Mapping[int, npt.NDArray[np.int64]]
    batches: int
    origin: Origin
    unobserved: tuple[int, ...]
    untaken: tuple[int, ...] = ()


def calibrate(
    loaded: LoadedModel, runtime: Runtime, feeds: FeedSource, *, memory_limit: int = MEMORY_LIMIT
) -> Calibration:
    """Run the FP32 model over the data and record the range of every FLOAT value.

    Args:
        loaded: the model.
        runtime: runs it.
        feeds: batches of inputs, real or synthetic.
        memory_limit: bytes of tapped values to hold at a time.

    Returns:
        Ranges, shapes and exponent histograms by value id, ids ascending.

    Raises:
        RuntimeFailure: the FP32 model does not run on these inputs.
    """
    origin = Origin.OBSERVED if feeds.origin == "real" else Origin.SYNTHETIC
    return observe(loaded, runtime, feeds, origin, memory_limit=memory_limit)


def observe(
    loaded: LoadedModel,
    runtime: Runtime,
    batches: Iterable[Mapping[str, Any]],
    origin: Origin,
    *,
    memory_limit: int = MEMORY_LIMIT,
) -> Calibration:
    """Like `calibrate`, for batches that are no FeedSource; they are iterated several times."""
    graph = loaded.graph
    wanted = [v.id for v in graph.values if not v.is_constant and v.container is Container.TENSOR]
    known, untaken = _Collection(), _Collection()
    seen: set[int] = set()
    for reading in tap_inside(loaded, runtime, batches, wanted, memory_limit):
        seen.add(reading.batch)
        collection = known if reading.taken else untaken
        is_float = graph.values[reading.value].dtype is DataType.FLOAT
        collection.add(reading.value, reading.array, is_float=is_float)
    # What the model really computes comes first: a branch that some batch takes is judged by those batches.
    summaries = untaken.summaries | known.summaries
    shapes = untaken.shapes | known.shapes
    _follow_moves(graph, summaries)
    facts: dict[int, RangeFact] = {}
    for value in sorted(summaries):
        if (fact := summaries[value].fact(origin)) is not None:
            facts[value] = fact
    return Calibration(
        facts=facts,
        shapes=dict(sorted(shapes.items())),
        histograms={value: summaries[value].histogram() for value in facts},
        batches=len(seen),
        origin=origin,
        unobserved=tuple(
            v.id
            for v in graph.values
            if v.dtype is DataType.FLOAT and not v.is_constant and v.id not in facts
        ),
        untaken=tuple(sorted(untaken.shapes.keys() - known.shapes.keys())),
    )


def _follow_moves(graph: ModelGraph, summaries: dict[int, RangeSummary]) -> None:
    """What only moves numbers has the range of its input, also where it could not be read."""
    for op in graph.ops:
        source, target = op.inputs[0] if op.inputs else None, op.outputs[0] if op.outputs else None
        if op.key not in MOVES or source not in summaries or target is None or target in summaries:
            continue
        if graph.values[target].dtype is DataType.FLOAT:
            summaries[target] = summaries[source]


class _Collection:
    def __init__(self) -> None:
        self.summaries: dict[int, RangeSummary] = {}
        self.shapes: dict[int, Shape] = {}

    def add(self, value: int, array: npt.NDArray[Any], *, is_float: bool) -> None:
        shape = tuple(int(n) for n in array.shape)
        if value not in self.shapes or math.prod(shape) > math.prod(self.shapes[value]):
            self.shapes[value] = shape
        if is_float:
            self.summaries.setdefault(value, RangeSummary()).update(array)
