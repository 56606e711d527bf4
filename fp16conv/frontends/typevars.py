"""Type variables of operators, from their schemas: which FLOAT slots change dtype together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from fp16conv.frontends.schemas import Parameter, Schema, find_schema
from fp16conv.graph import Container, DataType, GraphBuilder, Op, Use, Value
from fp16conv.graph.builder import Draft

__all__ = ["BOUNDARY_OPS", "add_typevars"]

BOUNDARY_OPS = frozenset(("If", "Loop", "Scan", "SequenceMap"))


@dataclass(slots=True)
class _Binding:
    uses: list[Use] = field(default_factory=list)
    defs: list[int] = field(default_factory=list)
    admits_fp16: bool = True


def add_typevars(builder: GraphBuilder, draft: Draft, frozen_scopes: Collection[int]) -> None:
    """Add one type variable per operator and schema variable that is bound to FLOAT.

    Operators whose types are those of a body (control flow, function calls) are left to the boundaries.
    An operator without a schema gets one variable `?` that cannot change; so do the bodies in
    `frozen_scopes`.
    """
    for op in draft.ops:
        if op.callee is not None or (not op.domain and op.op_type in BOUNDARY_OPS):
            continue
        schema = find_schema(op.domain, op.op_type, op.opset)
        bindings: dict[str, _Binding] = {}
        for symbol, admits, use, value in _slots(draft, op, schema):
            binding = bindings.setdefault(symbol, _Binding())
            binding.admits_fp16 &= admits and op.scope not in frozen_scopes
            if use is not None:
                binding.uses.append(use)
            elif not value.is_constant:
                binding.defs.append(value.id)
        if schema is not None:
            _follow(bindings, schema.follows)
        if _handles_containers(draft, op):
            bindings = _merged(bindings, bindings)
        elif schema is not None and schema.equal:
            bindings = _merged(bindings, schema.equal)
        for symbol, binding in bindings.items():
            if binding.uses or binding.defs:
                builder.add_typevar(op.id, op.scope, symbol, binding.uses, binding.defs, binding.admits_fp16)


def _follow(bindings: dict[str, _Binding], rules: Mapping[str, str]) -> None:
    """Give what no input types to the variable that types it."""
    for symbol, leader in rules.items():
        if symbol in bindings and leader in bindings and not bindings[symbol].uses:
            follower = bindings.pop(symbol)
            bindings[leader].defs += follower.defs
            bindings[leader].admits_fp16 &= follower.admits_fp16


def _slots(draft: Draft, op: Op, schema: Schema | None) -> Iterator[tuple[str, bool, Use | None, Value]]:
    for slot, index in enumerate(op.inputs):
        if index is not None and draft.values[index].dtype is DataType.FLOAT:
            symbol, admits = _symbol(schema, schema.input(slot) if schema else None, f"in{slot}")
            yield symbol, admits, Use(op.id, slot, op.scope), draft.values[index]
    for slot, index in enumerate(op.outputs):
        if index is not None and draft.values[index].dtype is DataType.FLOAT:
            symbol, admits = _symbol(schema, schema.output(slot) if schema else None, f"out{slot}")
            yield symbol, admits and not _is_dtype_argument(op), None, draft.values[index]


def _symbol(schema: Schema | None, parameter: Parameter | None, position: str) -> tuple[str, bool]:
    if schema is None or parameter is None:
        return "?", False
    if parameter.type_str not in schema.types:  # a concrete type: its own variable that cannot change
        return f"{parameter.name}:{parameter.type_str}", schema.admits_fp16(parameter.type_str)
    symbol = parameter.type_str if parameter.is_homogeneous else f"{parameter.type_str}:{position}"
    return symbol, schema.admits_fp16(parameter.type_str)


def _is_dtype_argument(op: Op) -> bool:
    """Whether a function's argument decides the output's dtype, or the numbers of a constant."""
    names = ("to", "dtype", "output_dtype", "output_datatype", "value", "value_float", "value_floats")
    return any(isinstance(v, str) and v.startswith("@") and k in names for k, v in op.attrs.items())


def _handles_containers(draft: Draft, op: Op) -> bool:
    """Sequence and optional operators tie their tensor and container variables together."""
    indices = [i for i in (*op.inputs, *op.outputs) if i is not None]
    return any(draft.values[i].container is not Container.TENSOR for i in indices)


def _merged(bindings: dict[str, _Binding], equal: Collection[str]) -> dict[str, _Binding]:
    """Make one variable of those that must have one dtype."""
    symbols = [s for s in bindings if s in equal]
    if len(symbols) < 2:
        return bindings
    merged = _Binding()
    for symbol in symbols:
        merged.uses += bindings[symbol].uses
        merged.defs += bindings[symbol].defs
        merged.admits_fp16 &= bindings[symbol].admits_fp16
    return {"+".join(symbols): merged} | {s: b for s, b in bindings.items() if s not in equal}
