"""CostModel: what each type variable costs in either precision, and what a cast costs.

The model is a roofline: a kernel takes the longer of its arithmetic and its memory traffic,
`max(FLOPs / peak, bytes / bandwidth)`, plus a fixed launch. It ranks plans; it does not predict a
stopwatch. Everything is an integer number of picoseconds, so sums and cuts are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from fp16conv.graph import DataType, ModelGraph, Op, TypeVar
from fp16conv.planning.aten import ATEN_VIEWS
from fp16conv.planning.devices import Device
from fp16conv.planning.macs import Shape, ShapeTable, executions, macs
from fp16conv.rulebook.families import family

__all__ = ["CostModel", "estimate_costs", "main_typevar"]

_FREE = frozenset(
    {
        # metadata only: no kernel moves data
        *("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size", "Dropout"),
        # owners of scopes: the cost lies in their bodies
        *("If", "Loop", "Scan", "SequenceMap"),
        # containers hold references
        *("Optional", "OptionalGetElement", "OptionalHasElement"),
        *("SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SequenceAt"),
        *("SequenceLength", "Constant"),
        "aten::sym_size.int",
    }
)
# These read only the elements they return from their first input.
_PICK = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Compress"})


@dataclass(frozen=True)
class CostModel:
    """Prices in picoseconds, all non-negative.

    Args:
        device: whose roofline it is.
        fp32: time per type variable id in FP32, without launches.
        fp16: time per type variable id in FP16.
        casts: price per value id of casting it once (launch included); FLOAT to FLOAT16 and back
            move the same bytes.
        macs: operator id -> multiply-accumulates per run.
        launches: time that precision does not change: one launch per kernel that touches FLOAT values.
    """

    device: Device
    fp32: tuple[int, ...]
    fp16: tuple[int, ...]
    casts: tuple[int, ...]
    macs: Mapping[int, int]
    launches: int

    def time(self, typevar: int, dtype: DataType) -> int:
        """Picoseconds of a type variable's share of its operator."""
        return (self.fp16 if dtype is DataType.FLOAT16 else self.fp32)[typevar]


def main_typevar(graph: ModelGraph, op: Op) -> TypeVar | None:
    """The type variable that an operator's arithmetic is attributed to: that of its first input.

    Falls back to the one of the first output, then to the first; None where nothing is FLOAT.
    """
    variables = graph.typevars_of(op.id)
    for variable in variables:
        if any(use.op == op.id and use.slot == 0 for use in variable.uses):
            return variable
    first = op.outputs[0] if op.outputs else None
    for variable in variables:
        if first is not None and first in variable.defs:
            return variable
    return variables[0] if variables else None


def estimate_costs(
    graph: ModelGraph, shapes: Mapping[int, Shape], device: Device, *, tf32: bool = False
) -> CostModel:
    """Price every type variable and every cast of a model.

    Args:
        graph: the model.
        shapes: value id -> observed or declared concrete shape; missing ones are taken from the
            model, unknown dimensions by `ShapeTable`.
        device: roofline to use.
        tf32: price FP32 matrix products at the TF32 peak, where the device has one.

    Returns:
        Integer prices in picoseconds per run of the model.
    """
    table, runs = ShapeTable(graph, shapes), executions(graph)
    counts = macs(graph, shapes)
    fp32_peak = device.tf32_tflops if tf32 and device.tf32_tflops else device.fp32_tflops
    launch = ceil(device.launch_us * 1e6)

    def traffic(elements: int, itemsize: int) -> int:
        return ceil(elements * itemsize * 1000 / device.bandwidth_gbps)

    fp32, fp16 = [0] * len(graph.typevars), [0] * len(graph.typevars)
    launches = 0
    for op in graph.ops:
        if family(op) in _FREE or op.subscopes or op.callee is not None or not op.typevars:
            continue  # without FLOAT values: mostly shape arithmetic, which runs on the host
        weight = runs[op.scope]
        launches += 0 if op.op_type in ATEN_VIEWS else launch * weight
        main = main_typevar(graph, op)
        flops = 2 * counts.get(op.id, 0)
        for variable in graph.typevars_of(op.id):
            elements = _elements(graph, table, op, variable) * weight
            work = flops if main is not None and variable.id == main.id else 0
            # FLOP / (TFLOP/s) is in picoseconds
            fp32[variable.id] = max(ceil(work / fp32_peak), traffic(elements, 4))
            fp16[variable.id] = max(ceil(work / device.fp16_tflops), traffic(elements, 2))
    casts = tuple(
        (launch + traffic(table.size(value.id), 6)) * max(runs[value.scope], 1)
        if value.dtype is DataType.FLOAT
        else 0
        for value in graph.values
    )
    return CostModel(device, tuple(fp32), tuple(fp16), casts, counts, launches)


def _elements(graph: ModelGraph, table: ShapeTable, op: Op, variable: TypeVar) -> int:
    total = sum(table.size(value) for value in variable.defs)
    for use in variable.uses:
        value = graph.value_at(use)
        if value is None:
            continue
        if family(op) in _PICK and use.slot == 0 and op.outputs:
            total += table.size(op.outputs[0])
        else:
            total += table.size(value.id)
    return total
