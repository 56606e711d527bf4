"""Observed ranges of PyTorch programs."""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from fp16conv.errors import Fp16convError, ValidationError, first_line
from fp16conv.evidence.calibration import Calibration
from fp16conv.evidence.summary import RangeSummary
from fp16conv.execution.feeds import FeedSource
from fp16conv.execution.fx import run_program, to_array
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.graph import DataType, Origin

__all__ = ["calibrate_program"]


def calibrate_program(loaded: LoadedProgram, feeds: FeedSource) -> Calibration:
    """Run the FP32 program over the data and record the range of every FLOAT value.

    Args:
        loaded: the program.
        feeds: batches of inputs, real or made up.

    Returns:
        Ranges, shapes and exponent histograms by value id, ids ascending.

    Raises:
        ValidationError: the FP32 program does not run on these inputs.
        DataError: the program was not exported for the size of an input.
    """
    graph = loaded.graph
    summaries: dict[int, RangeSummary] = {}
    shapes: dict[int, tuple[int, ...]] = {}

    def see(value: int, tensor: torch.Tensor) -> None:
        shape = tuple(tensor.shape)
        if value not in shapes or math.prod(shape) > math.prod(shapes[value]):
            shapes[value] = shape
        if graph.values[value].dtype is DataType.FLOAT:
            summaries.setdefault(value, RangeSummary()).update(to_array(tensor))

    def observe(node: Node, result: object) -> None:
        results = result if isinstance(result, list | tuple) else (result,)
        for slot, tensor in enumerate(results):
            value = loaded.value_ids.get((node, slot))
            if value is None or not isinstance(tensor, torch.Tensor):
                continue
            producer = graph.values[value].producer
            if producer is not None and loaded.nodes[producer] is node:  # not again behind getitem
                see(value, tensor)

    batches = 0
    by_name = {graph.values[v].name: v for v in graph.main.inputs}
    for batch in feeds:
        batches += 1
        for name, value in by_name.items():
            if name in batch:
                see(value, torch.from_numpy(batch[name]))
        try:
            run_program(loaded.program, batch, observe, where=loaded.source)
        except Fp16convError:
            raise
        except Exception as error:  # the program's own calls
            raise ValidationError(
                "the FP32 program does not run on these inputs",
                where=loaded.source,
                why=first_line(error),
                hint="check names, shapes and values of the inputs",
            ) from error
    origin = Origin.OBSERVED if feeds.origin == "real" else Origin.SYNTHETIC
    facts = {v: f for v in sorted(summaries) if (f := summaries[v].fact(origin)) is not None}
    return Calibration(
        facts=facts,
        shapes=dict(sorted(shapes.items())),
        histograms={value: summaries[value].histogram() for value in facts},
        batches=batches,
        origin=origin,
        unobserved=tuple(
            v.id
            for v in graph.values
            if v.dtype is DataType.FLOAT and not v.is_constant and v.id not in facts
        ),
    )
