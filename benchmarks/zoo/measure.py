"""Measures that treat every converter alike: they look at the FP32 file, the file it became, and fresh data.

Nothing here asks a converter what it did. MACs are counted on the FP32 model with the shapes of a real
feed, and an operator counts as FP16 where the converted file really feeds it float16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import TensorProto

from fp16conv.errors import Fp16convError
from fp16conv.execution.emulator import emulate_model
from fp16conv.execution.runtime import Runtime

__all__ = ["Measurement", "casts_added", "fp16_macs_share", "honest_errors", "measure"]

Feed = dict[str, npt.NDArray[np.generic]]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What became of one model.

    Args:
        error: relative L2 error, worst float output over all batches; NaN when it could not run, inf for
            new NaN or Inf.
        within_tolerance: every output meets ||d|| <= 0.02 ||ref|| + 0.001 sqrt(n), integers unchanged.
        fp16_macs: share of multiply-accumulates in FP16.
        casts: Cast operators added.
        valid: the full checker passed.
        loads: ONNX Runtime's CPU provider loads it.
        note: why something is missing.
    """

    error: float
    within_tolerance: bool
    fp16_macs: float
    casts: int
    valid: bool
    loads: bool
    note: str = ""


def measure(reference: Path, candidate: Path, feeds: Sequence[Feed]) -> Measurement:
    """Measure a converted model against its FP32 original on feeds that the converter has not seen."""
    note = ""
    try:
        onnx.checker.check_model(str(candidate), full_check=True)
        valid = True
    except Exception as problem:
        valid, note = False, f"checker: {_line(problem)}"
    with Runtime() as runtime:
        try:
            runtime.load(candidate)
            loads = True
        except Fp16convError as problem:
            loads, note = False, note or f"load: {_line(problem)}"
    error, fine = math.nan, False
    try:
        error, fine = honest_errors(reference, candidate, feeds)
    except Exception as problem:
        note = note or f"run: {_line(problem)}"
    share = fp16_macs_share(reference, candidate, feeds[0])
    return Measurement(error, fine, share, casts_added(reference, candidate), valid, loads, note)


def honest_errors(reference: Path, candidate: Path, feeds: Sequence[Feed]) -> tuple[float, bool]:
    """Relative L2 error of the worst output, every FP16 tensor rounded, and the verdict.

    The verdict is per output ||d|| <= 0.02 ||ref|| + 0.001 sqrt(n), over all feeds, integers unchanged.
    """
    squares: dict[str, list[float]] = {}
    fine = True
    with Runtime() as runtime:
        exact = runtime.load(reference)
        rounded = runtime.load(emulate_model(ir.load(candidate)))
        for feed in feeds:
            want, have = runtime.run(exact, feed), runtime.run(rounded, feed)
            for name, value in want.items():
                expected, got = np.asarray(value), np.asarray(have[name])
                if expected.dtype.kind != "f":
                    fine &= bool(np.array_equal(expected, got))
                    continue
                if not np.all(np.isfinite(got) | ~np.isfinite(expected)):
                    return math.inf, False
                difference = got.astype(np.float64) - expected
                sums = squares.setdefault(name, [0.0, 0.0, 0.0])
                sums[0] += float(np.sum(difference**2))
                sums[1] += float(np.sum(expected.astype(np.float64) ** 2))
                sums[2] += expected.size
    for d, ref, n in squares.values():
        fine &= math.sqrt(d) <= 0.02 * math.sqrt(ref) + 0.001 * math.sqrt(n)
    return max(
        math.sqrt(d / ref) if ref else (math.inf if d else 0.0) for d, ref, _ in squares.values()
    ), fine


def casts_added(reference: Path, candidate: Path) -> int:
    """Cast operators in the candidate that the reference does not have, all graphs and functions counted."""
    before, after = (
        sum(node.op_type == "Cast" for _, node in _nodes(onnx.load(path, load_external_data=False)))
        for path in (reference, candidate)
    )
    return after - before


def fp16_macs_share(reference: Path, candidate: Path, feed: Feed) -> float:
    """Share of the model's MACs whose operands are float16 in the candidate.

    Operators are paired in file order, or by their output's name where a converter reordered them. NaN when
    one of them is gone.
    """
    executed = _take_branches(onnx.load(reference), feed)
    running = {node.output[0] for node in executed.graph.node}
    shapes = _shapes(executed, feed)
    counts = [
        (key, node, _macs(node, shapes) if node.output[0] in running else 0)
        for key, node in _heavy(onnx.load(reference))
    ]
    converted = onnx.load(candidate)
    types = _types(converted)
    after = [(key, node) for key, node in _heavy(converted)]
    if [key for key, *_ in counts] != [key for key, _ in after]:
        by_output = {node.output[0]: node for _, node in after}
        pairs = [(macs, by_output.get(node.output[0])) for _, node, macs in counts]
        if any(node is None for _, node in pairs):
            return math.nan
    else:
        pairs = [(macs, node) for (_, _, macs), (_, node) in zip(counts, after, strict=True)]
    total = sum(macs for macs, _ in pairs)
    fp16 = sum(
        macs for macs, node in pairs if node is not None and _dtype(node, types) == TensorProto.FLOAT16
    )
    return fp16 / total if total else math.nan


_HEAVY = {
    "Conv",
    "ConvTranspose",
    "MatMul",
    "Gemm",
    "LSTM",
    "GRU",
    "RNN",
}


def _nodes(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.NodeProto]]:
    """Every node of the model with a path of attribute names to its graph, in file order."""

    def visit(path: str, nodes: Sequence[onnx.NodeProto]) -> Iterator[tuple[str, onnx.NodeProto]]:
        for node in nodes:
            yield path, node
            for attribute in node.attribute:
                for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                    yield from visit(f"{path}/{attribute.name}", graph.node)

    yield from visit("", model.graph.node)
    for function in model.functions:
        yield from visit(function.name, function.node)


def _heavy(model: onnx.ModelProto) -> list[tuple[tuple[str, str], onnx.NodeProto]]:
    return [((path, node.op_type), node) for path, node in _nodes(model) if node.op_type in _HEAVY]


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from _graphs(inner)


def _take_branches(model: onnx.ModelProto, feed: Feed) -> onnx.ModelProto:
    """Replace every If of the main graph by the branch that this feed takes."""
    while True:
        index = next((i for i, node in enumerate(model.graph.node) if node.op_type == "If"), None)
        if index is None:
            return model
        node = model.graph.node[index]
        prefix = onnx.ModelProto()
        prefix.CopyFrom(model)
        del prefix.graph.node[index:]
        del prefix.graph.output[:]
        prefix.graph.output.append(onnx.helper.make_tensor_value_info(node.input[0], TensorProto.BOOL, None))
        given = {value.name for value in prefix.graph.input}
        with Runtime(optimization="disabled") as runtime:
            session = runtime.load(prefix.SerializeToString())
            (taken,) = runtime.run(session, {k: v for k, v in feed.items() if k in given}).values()
        name = "then_branch" if bool(np.asarray(taken).item()) else "else_branch"
        branch = next(a.g for a in node.attribute if a.name == name)
        model.graph.initializer.extend(branch.initializer)
        results = [
            onnx.helper.make_node("Identity", [inner.name], [outer])
            for inner, outer in zip(branch.output, node.output, strict=True)
        ]
        nodes = [*model.graph.node[:index], *branch.node, *results, *model.graph.node[index + 1 :]]
        copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
        del model.graph.node[:]
        model.graph.node.extend(copies)


def _shapes(model: onnx.ModelProto, feed: Feed) -> dict[str, Shape]:
    """Shapes by value name: inferred from the feed's shapes, and where that gives up, seen in a run."""
    seen: dict[str, Shape] = {}
    for value in model.graph.input:
        if value.name in feed:
            dims = value.type.tensor_type.shape
            del dims.dim[:]
            for size in feed[value.name].shape:
                dims.dim.add().dim_value = size
    for graph in _graphs(model.graph):
        del graph.value_info[:]
        for tensor in graph.initializer:
            seen[tensor.name] = tuple(tensor.dims)
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.name == "value":
                    seen[node.output[0]] = tuple(attribute.t.dims)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for graph in _graphs(inferred.graph):
        for value in [*graph.value_info, *graph.input, *graph.output]:
            dims = value.type.tensor_type.shape.dim
            if value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims):
                seen[value.name] = tuple(d.dim_value for d in dims)
    heavy = [node for node in model.graph.node if node.op_type in _HEAVY]
    wanted = {name for node in heavy for name in (*node.input, node.output[0]) if name} - seen.keys()
    return seen | _observe_shapes(model, feed, wanted) if wanted else seen


def _observe_shapes(model: onnx.ModelProto, feed: Feed, wanted: set[str]) -> dict[str, Shape]:
    """Shapes of main-graph values in a run; they become outputs of the model for it."""
    types = _types(model)
    for name in sorted(wanted - {o.name for o in model.graph.output}):
        model.graph.output.append(
            onnx.helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), None)
        )
    with Runtime(optimization="basic") as runtime:
        results = runtime.run(runtime.load(model.SerializeToString()), feed, sorted(wanted))
    return {name: np.asarray(value).shape for name, value in results.items()}


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """Element types by value name; inner graphs may reuse a name only with the same type."""
    types: dict[str, int] = {}
    inferred = onnx.shape_inference.infer_shapes(model)
    for graph in _graphs(inferred.graph):
        for value in [*graph.value_info, *graph.input, *graph.output]:
            types[value.name] = value.type.tensor_type.elem_type
        for tensor in graph.initializer:
            types[tensor.name] = tensor.data_type
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.name == "value":
                    types[node.output[0]] = attribute.t.data_type
                if node.op_type == "Cast" and attribute.name == "to":
                    types[node.output[0]] = attribute.i
    return types


def _dtype(node: onnx.NodeProto, types: dict[str, int]) -> int:
    """Type of the operands; inputs of one type variable agree, so the first known one answers."""
    known = (types[name] for name in (*node.input[:2], node.output[0]) if types.get(name))
    return next(known, TensorProto.UNDEFINED)


def _macs(node: onnx.NodeProto, shapes: dict[str, Shape]) -> int:
    """Multiply-accumulates of one operator; KeyError when a shape is unknown."""
    if node.op_type == "Conv":
        return prod(shapes[node.output[0]]) * prod(shapes[node.input[1]][1:])
    if node.op_type == "ConvTranspose":
        return prod(shapes[node.input[0]]) * prod(shapes[node.input[1]][1:])
    if node.op_type in {"LSTM", "GRU", "RNN"}:
        length, batch, _ = shapes[node.input[0]]
        return length * batch * (prod(shapes[node.input[1]]) + prod(shapes[node.input[2]]))
    if node.op_type == "Gemm":
        transposed = any(a.name == "transA" and a.i for a in node.attribute)
        return prod(shapes[node.output[0]]) * shapes[node.input[0]][0 if transposed else 1]
    if node.op_type == "MatMul":
        return prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
    raise KeyError(f"no MAC formula for {node.op_type}")


def _line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0][:160]
