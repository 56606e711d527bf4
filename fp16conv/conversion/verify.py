"""Proves that a converted model is valid and still has the interface of its source."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnx.checker
import onnx.shape_inference
import onnx_ir as ir

from fp16conv.collector import collection_paused
from fp16conv.errors import ConversionError, ModelError, first_line
from fp16conv.frontends.external import FileTensor
from fp16conv.frontends.inference import without_weights
from fp16conv.frontends.onnx import LoadedModel, from_proto, read_proto
from fp16conv.frontends.onnx_library import check_file, infer_model
from fp16conv.frontends.schemas import ONNX_DOMAINS, Schema, find_schema
from fp16conv.graph import Container, DataType, ModelGraph, Tensor, read_pieces
from fp16conv.isolation import IsolationError
from fp16conv.planning.plan import PrecisionPlan

__all__ = ["Finding", "require_valid", "verify"]

COPY_SUFFIX = re.compile(r"__fp(?:16|32)(?:_\d+)?$")


_HINTS: Final = {
    "overflow": "the plan wants it in FP16: keep what reads it in FP32 (--keep-fp32), or let constants that "
    "act as infinity saturate (--repair saturate)"
}


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


@collection_paused()
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
        proto = read_proto(Path(path))
        findings = [*_check(path, loaded)]
        inferred, error = _infer(proto)
        if error and error != _infer(loaded.proto)[1]:
            findings.append(Finding("inference", path, error))
        read = None if inferred is None else _read_plain(proto, inferred, Path(path).parent)
        calls, halves = _read_graph(from_proto(proto, Path(path)).graph) if read is None else read
    except (ModelError, IsolationError) as e:
        return (Finding("checker", path, str(e)),)
    sound: set[tuple[object, ...]] = set()  # kinds of calls that were checked: a model has few
    for call in calls:
        if call.kind not in sound:
            found = [*_check_types(call)]
            findings += found
            if not found:
                sound.add(call.kind)
    findings += _check_interface(proto.graph, loaded.proto.graph, _retyped(loaded.graph, plan))
    findings += _check_overflow(halves, loaded.graph)
    return tuple(findings)


def require_valid(path: str | os.PathLike[str], loaded: LoadedModel, plan: PrecisionPlan) -> None:
    """Raise if `verify` finds anything.

    Raises:
        ModelError: it does, and onnx refuses the source already.
        ConversionError: with the first finding, and how many more there are.
    """
    findings = verify(path, loaded, plan)
    if not findings:
        return
    first, more = findings[0], len(findings) - 1
    what = f"the converted model is not valid ({first.check}): {first.message}"
    before = _objection(loaded)
    if before and first.check not in _HINTS:
        raise ModelError(
            what,
            where=first.where,
            why=f"the model itself is not: {before}",
            hint="export the model again; if your runtime takes it as it is, please report it",
        )
    raise ConversionError(
        what,
        where=first.where,
        why=f"{more} more findings" if more else "",
        hint=_HINTS.get(first.check, "please report it with the model or a reduced copy of it"),
    )


def _objection(loaded: LoadedModel) -> str:
    """What onnx holds against the source; empty if nothing."""
    try:
        return _infer(loaded.proto)[1] or _checker_error(os.fspath(loaded.path))
    except IsolationError:  # that onnx does not survive it proves nothing
        return ""


def _check(path: str, loaded: LoadedModel) -> Iterator[Finding]:
    error = _checker_error(path)
    if error and error != _checker_error(os.fspath(loaded.path)):
        yield Finding("checker", path, error)


def _checker_error(path: str) -> str:
    try:
        check_file(path)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, RuntimeError) as e:
        return _essence(e)
    return ""


def _infer(proto: onnx.ModelProto) -> tuple[onnx.ModelProto | None, str]:
    """The model with the types of strict inference, or None and what is wrong."""
    try:
        inferred = infer_model(without_weights(proto), is_strict=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as e:
        return None, _essence(e)
    return inferred, ""


def _essence(error: Exception) -> str:
    """The first line of a message, without the file's name (it differs between source and result)."""
    return re.sub(r"model with path: \S+", "model", first_line(error, limit=None))


Known = tuple[str, DataType]
"""Name and dtype of a tensor."""


@dataclass(frozen=True, slots=True)
class _Call:
    """An operator whose schema is known, with its tensors by slot; None: absent, untyped or no tensor."""

    label: str
    key: str
    schema: Schema
    inputs: Sequence[Known | None]
    outputs: Sequence[Known | None]

    @property
    def kind(self) -> tuple[object, ...]:
        """The operator and the dtypes of its tensors."""
        sides = ([known and known[1] for known in side] for side in (self.inputs, self.outputs))
        return id(self.schema), *map(tuple, sides)


Reading = tuple[Sequence[_Call], Mapping[str, Tensor]]
"""The operators of a model and its FP16 constants by name, in file order."""


def _read_plain(proto: onnx.ModelProto, inferred: onnx.ModelProto, folder: Path) -> Reading | None:
    """Read both off the protobuf, several times faster than the front end.

    Returns:
        None where inference alone does not know all types (other domains, functions, bodies, containers).
    """
    nodes = proto.graph.node
    if proto.functions or proto.graph.sparse_initializer:
        return None
    if any(
        n.domain not in ONNX_DOMAINS or any(a.HasField("g") or a.graphs for a in n.attribute) for n in nodes
    ):
        return None
    opset = next((o.version for o in proto.opset_import if o.domain in ONNX_DOMAINS), 1)
    names = {code: _data_type(code) for code in onnx.TensorProto.DataType.values()}
    known: dict[str, Known | None] = {"": None}
    graph = inferred.graph
    for info in (*graph.value_info, *graph.output, *graph.input):
        if info.type.WhichOneof("value") != "tensor_type" or not info.type.tensor_type.elem_type:
            return None
        known[info.name] = info.name, names[info.type.tensor_type.elem_type]
    for tensor in graph.initializer:
        known[tensor.name] = tensor.name, names[tensor.data_type]
    calls: list[_Call] = []
    halves = [(t.name, t) for t in proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT16]
    for number, node in enumerate(nodes):
        if not all(name in known for name in (*node.input, *node.output)):
            return None
        schema = find_schema("", node.op_type, opset)
        if schema is not None:
            slots = [known[name] for name in node.input], [known[name] for name in node.output]
            calls.append(_Call(node.name or f"{node.op_type}#{number}", node.op_type, schema, *slots))
        if node.op_type == "Constant":
            halves += [
                (node.output[0], a.t) for a in node.attribute if a.t.data_type == onnx.TensorProto.FLOAT16
            ]
    tensors = {name: ir.serde.deserialize_tensor(tensor) for name, tensor in halves}
    for name, found in tensors.items():
        if isinstance(found, ir.ExternalTensor):
            tensors[name] = FileTensor(found, folder.resolve())
    return calls, tensors


def _data_type(code: int) -> DataType:
    name = onnx.TensorProto.DataType.Name(onnx.TensorProto.DataType.ValueType(code)).lower()
    if not code:
        return DataType.UNKNOWN
    return DataType(name) if name in DataType._value2member_map_ else DataType.OTHER


def _read_graph(graph: ModelGraph) -> Reading:
    calls = []
    known = [(v.name, v.dtype) if v.container is Container.TENSOR else None for v in graph.values]
    for op in graph.ops:
        schema = find_schema(op.domain, op.op_type, op.opset)
        if schema is not None and op.callee is None:
            slots = [[None if v is None else known[v] for v in side] for side in (op.inputs, op.outputs)]
            calls.append(_Call(op.label, op.key, schema, *slots))
    halves = {
        graph.values[value].name: graph.constants[value]
        for value in sorted(graph.constants)
        if graph.values[value].dtype is DataType.FLOAT16
    }
    return calls, halves


def _check_types(call: _Call) -> Iterator[Finding]:
    bound: dict[str, DataType] = {}
    schema = call.schema
    for slots, parameter_at in ((call.inputs, schema.input), (call.outputs, schema.output)):
        for slot, known in enumerate(slots):
            parameter = None if known is None else parameter_at(slot)
            if known is None or parameter is None or known[1] in (DataType.UNKNOWN, DataType.OTHER):
                continue
            name, dtype = known
            where = f"operator '{call.label}' ({call.key}), value '{name}'"
            names = schema.types.get(parameter.type_str) or frozenset((parameter.type_str,))
            if f"tensor({dtype})" not in names and any(n.startswith("tensor(") for n in names):
                yield Finding("types", where, f"{parameter.name} does not admit {dtype}")
            if not parameter.is_homogeneous:
                continue
            expected = bound.setdefault(parameter.type_str, dtype)
            if expected is not dtype:
                message = f"{parameter.type_str} is bound to both {expected} and {dtype}"
                yield Finding("types", where, message)


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


def _check_overflow(halves: Mapping[str, Tensor], source: ModelGraph) -> Iterator[Finding]:
    known = {source.values[value].name: value for value in source.constants}
    for name, tensor in halves.items():
        count = _infinities(tensor)
        origin = known.get(name, known.get(COPY_SUFFIX.sub("", name))) if count else None
        before = 0 if origin is None else _infinities(source.constants[origin])
        if count > before:
            yield Finding("overflow", f"constant '{name}'", f"{count - before} numbers became infinite")


def _infinities(tensor: Tensor) -> int:
    count = 0
    for _, numbers in read_pieces(tensor):
        if numbers.dtype == np.float16 and numbers.size:  # far faster than isinf, and nearly always enough
            bits = np.ascontiguousarray(numbers).view(np.uint16) & np.uint16(0x7FFF)
            if bits.max() < np.float16(np.inf).view(np.uint16):
                continue
        count += int(np.count_nonzero(np.isinf(numbers)))
    return count
