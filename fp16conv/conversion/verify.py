"""Proves that a converted model is valid and still has the interface of its source."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.checker
import onnx.shape_inference

from fp16conv.errors import ConversionError, ModelError
from fp16conv.frontends.inference import without_weights
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from fp16conv.frontends.schemas import Parameter, find_schema
from fp16conv.graph import Container, DataType, ModelGraph, Op
from fp16conv.planning.plan import PrecisionPlan

__all__ = ["Finding", "require_valid", "verify"]

CHUNK = 1 << 18  # numbers looked at together
COPY_SUFFIX = re.compile(r"__fp(?:16|32)(?:_\d+)?$")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with a converted model.

    Args:
        check: `checker`, `inference`, `types`, `interface` or `overflow`.
        where: operator, value or file.
        message: what is wrong.
    """

    check: str
    where: str
    message: str


def verify(path: str | os.PathLike[str], loaded: LoadedModel, plan: PrecisionPlan) -> tuple[Finding, ...]:
    """Check a saved model against the one it was converted from.

    The full ONNX checker; strict type and shape inference with data propagation; every operator's type
    variables bound to one admitted dtype (by the front end's schemas, so contrib operators too); names,
    dtypes and shapes of inputs and outputs; no constant that became infinite. What the checker or inference
    holds against the source already (operators they do not know) is not held against the result.

    Args:
        path: the converted file.
        loaded: the source model.
        plan: the plan that was applied; says which inputs and outputs were to change dtype.

    Returns:
        what is wrong, nothing if all is well.
    """
    path = os.fspath(path)
    try:
        result = load_onnx(path)
    except ModelError as e:
        return (Finding("checker", path, str(e)),)
    findings = [
        *_check(path, loaded),
        *_infer(path, result, loaded),
        *_check_types(result.graph),
        *_check_interface(result.proto.graph, loaded.proto.graph, _retyped(loaded.graph, plan)),
        *_check_overflow(result.graph, loaded.graph),
    ]
    return tuple(findings)


def require_valid(path: str | os.PathLike[str], loaded: LoadedModel, plan: PrecisionPlan) -> None:
    """Raise if `verify` finds anything.

    Raises:
        ConversionError: with the first finding, and how many more there are.
    """
    findings = verify(path, loaded, plan)
    if findings:
        first, more = findings[0], len(findings) - 1
        raise ConversionError(
            f"the converted model is not valid ({first.check}): {first.message}",
            where=first.where,
            why=f"{more} more findings" if more else "",
            hint="please report it with the model or a reduced copy of it",
        )


def _check(path: str, loaded: LoadedModel) -> Iterator[Finding]:
    error = _checker_error(path)
    if error and error != _checker_error(os.fspath(loaded.path)):
        yield Finding("checker", path, error)


def _checker_error(path: str) -> str:
    try:
        onnx.checker.check_model(path)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as e:
        return _essence(e)
    return ""


def _infer(path: str, result: LoadedModel, loaded: LoadedModel) -> Iterator[Finding]:
    error = _inference_error(result.proto)
    if error and error != _inference_error(loaded.proto):
        yield Finding("inference", path, error)


def _inference_error(proto: onnx.ModelProto) -> str:
    try:
        onnx.shape_inference.infer_shapes(
            without_weights(proto), check_type=True, strict_mode=True, data_prop=True
        )
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as e:
        return _essence(e)
    return ""


def _essence(error: Exception) -> str:
    """The first line of a message, without the file's name (it differs between source and result)."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return re.sub(r"model with path: \S+", "model", lines[0]) if lines else type(error).__name__


def _check_types(graph: ModelGraph) -> Iterator[Finding]:
    for op in graph.ops:
        schema = find_schema(op.domain, op.op_type, op.opset)
        if schema is None or op.callee is not None:
            continue
        bound: dict[str, DataType] = {}
        slots = [(v, schema.input(i)) for i, v in enumerate(op.inputs)]
        slots += [(v, schema.output(i)) for i, v in enumerate(op.outputs)]
        for value, parameter in slots:
            if value is not None and parameter is not None:
                yield from _bind(graph, op, value, parameter, bound, schema.types.get(parameter.type_str))


def _bind(
    graph: ModelGraph,
    op: Op,
    value: int,
    parameter: Parameter,
    bound: dict[str, DataType],
    admitted: frozenset[str] | None,
) -> Iterator[Finding]:
    info = graph.values[value]
    if info.container is not Container.TENSOR or info.dtype in (DataType.UNKNOWN, DataType.OTHER):
        return
    where = f"operator '{op.label}' ({op.key}), value '{info.name}'"
    names = admitted if admitted is not None else frozenset((parameter.type_str,))
    if any(name.startswith("tensor(") for name in names) and f"tensor({info.dtype})" not in names:
        yield Finding("types", where, f"{parameter.name} does not admit {info.dtype}")
    if parameter.is_homogeneous:
        expected = bound.setdefault(parameter.type_str, info.dtype)
        if expected is not info.dtype:
            yield Finding(
                "types", where, f"{parameter.type_str} is bound to both {expected} and {info.dtype}"
            )


def _retyped(graph: ModelGraph, plan: PrecisionPlan) -> set[tuple[str, str]]:
    """`input` or `output` and name of what the plan turned to FP16 at the interface."""
    symbols = [
        d.symbol
        for d in plan.decisions
        if d.op is None and graph.typevars[d.typevar].scope == 0 and d.dtype is DataType.FLOAT16
    ]
    return {(kind, name) for kind, _, name in (symbol.partition(":") for symbol in symbols)}


def _check_interface(
    result: onnx.GraphProto, source: onnx.GraphProto, retyped: set[tuple[str, str]]
) -> Iterator[Finding]:
    weights = {tensor.name for tensor in source.initializer}
    sides = (("input", source.input, result.input), ("output", source.output, result.output))
    for side, before, after in sides:
        names = [info.name for info in before]
        if [info.name for info in after] != names:
            found = ", ".join(info.name for info in after)
            yield Finding("interface", side, f"expected {', '.join(names)}, found {found}")
            continue
        for old, new in zip(before, after, strict=True):
            expected = onnx.TypeProto()
            expected.CopyFrom(old.type)
            is_weight = side == "input" and old.name in weights
            if (side, old.name) in retyped or (is_weight and _is_half(new.type)):
                _set_half(expected)
            if new.type != expected:
                yield Finding("interface", f"{side} '{old.name}'", "type or shape changed")


def _is_half(type_: onnx.TypeProto) -> bool:
    return type_.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def _set_half(type_: onnx.TypeProto) -> None:
    while not type_.HasField("tensor_type"):
        kind = type_.WhichOneof("value")
        if kind not in ("sequence_type", "optional_type"):
            return
        type_ = getattr(type_, kind).elem_type
    type_.tensor_type.elem_type = onnx.TensorProto.FLOAT16


def _check_overflow(result: ModelGraph, source: ModelGraph) -> Iterator[Finding]:
    known = {source.values[value].name: value for value in source.constants}
    for value in sorted(result.constants):
        info = result.values[value]
        if info.dtype is not DataType.FLOAT16:
            continue
        count = _infinities(result, value)
        origin = known.get(info.name, known.get(COPY_SUFFIX.sub("", info.name)))
        before = 0 if origin is None or not count else _infinities(source, origin)
        if count > before:
            yield Finding("overflow", f"constant '{info.name}'", f"{count - before} numbers became infinite")


def _infinities(graph: ModelGraph, value: int) -> int:
    numbers = np.asarray(graph.constants[value].numpy())
    count = 0
    for chunk in np.array_split(numbers.reshape(-1), 1 + numbers.size // CHUNK):
        if chunk.dtype == np.float16 and chunk.size:  # far faster than isinf, and nearly always enough
            bits = np.ascontiguousarray(chunk).view(np.uint16) & np.uint16(0x7FFF)
            if bits.max() < np.float16(np.inf).view(np.uint16):
                continue
        count += int(np.count_nonzero(np.isinf(chunk)))
    graph.release(value)  # else every weight read so far stays mapped
    return count
