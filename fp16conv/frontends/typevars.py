"""Type variables of operators, from their schemas: which FLOAT slots change dtype together."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fp16conv.frontends.schemas import Parameter, Schema, find_schema
from fp16conv.graph import (
    Container,
    DataType,
    GraphBuilder,
    Op,
    Reference,
    Use,
    Value,
    find_optional_parameters,
)
from fp16conv.graph.builder import Draft

__all__ = ["BOUNDARY_OPS", "add_typevars"]

BOUNDARY_OPS = frozenset(("If", "Loop", "Scan", "SequenceMap"))


@dataclass(slots=True)
class _Binding:
    """A type variable of a kind of operator, by its input and output slots."""

    uses: list[int] = field(default_factory=list)
    defs: list[int] = field(default_factory=list)
    admits_fp16: bool = True


def add_typevars(builder: GraphBuilder, draft: Draft, frozen_scopes: Collection[int]) -> None:
    """Add one type variable per operator and schema variable that is bound to FLOAT.

    Operators whose types are those of a body (control flow, function calls) are left to the boundaries.
    An operator without a schema gets one variable `?` that cannot change; so do the bodies in
    `frozen_scopes`, and what reads a parameter that some call leaves out.
    """
    kinds: dict[Hashable, dict[str, _Binding]] = {}  # a model has few kinds of operators
    optional = find_optional_parameters(draft.ops, draft.scopes)
    for op in draft.ops:
        if op.callee is not None or (not op.domain and op.op_type in BOUNDARY_OPS):
            continue
        inputs, outputs = _Side(draft, op.inputs, optional), _Side(draft, op.outputs)
        is_frozen, is_typed = op.scope in frozen_scopes, bool(op.attrs) and _is_dtype_argument(op)
        kind = op.domain, op.op_type, op.opset, inputs.key, outputs.key, is_frozen, is_typed
        bindings = kinds.get(kind)
        if bindings is None:
            schema = find_schema(op.domain, op.op_type, op.opset)
            bindings = kinds[kind] = _bind(schema, inputs, outputs, is_frozen=is_frozen, is_typed=is_typed)
        for symbol, binding in bindings.items():
            uses = [Use(op.id, slot, op.scope) for slot in binding.uses]
            defs = [op.outputs[slot] for slot in binding.defs]
            builder.add_typevar(op.id, op.scope, symbol, uses, defs, binding.admits_fp16)  # type: ignore[arg-type]


class _Side:
    """The inputs or outputs of an operator: what its type variables depend on.

    Args:
        draft: the graph so far.
        values: value ids by slot.
        optional: ids of values that may be absent.
    """

    def __init__(self, draft: Draft, values: Sequence[int | None], optional: Collection[int] = ()) -> None:
        self.known = [None if index is None else draft.values[index] for index in values]
        self.optional = frozenset(slot for slot, index in enumerate(values) if index in optional)
        self.key = (*map(_code, self.known), self.optional)

    def floats(self) -> Iterator[tuple[int, Value]]:
        """Slots of FLOAT values."""
        for slot, value in enumerate(self.known):
            if value is not None and value.dtype is DataType.FLOAT:
                yield slot, value

    @property
    def holds_containers(self) -> bool:
        return any(value is not None and value.container is not Container.TENSOR for value in self.known)


def _code(value: Value | None) -> int:
    """What a type variable depends on of a value, as one number (enumerations are slow to hash)."""
    if value is None:
        return -1
    is_float, is_tensor = value.dtype is DataType.FLOAT, value.container is Container.TENSOR
    return is_float + 2 * is_tensor + 4 * value.is_constant


def _bind(
    schema: Schema | None, inputs: _Side, outputs: _Side, *, is_frozen: bool, is_typed: bool
) -> dict[str, _Binding]:
    """The type variables of a kind of operator by symbol."""
    bindings: dict[str, _Binding] = {}
    for slot, _ in inputs.floats():
        symbol, admits = _symbol(schema, schema.input(slot) if schema else None, f"in{slot}")
        binding = bindings.setdefault(symbol, _Binding())
        binding.admits_fp16 &= admits and not is_frozen and slot not in inputs.optional
        binding.uses.append(slot)
    for slot, value in outputs.floats():
        symbol, admits = _symbol(schema, schema.output(slot) if schema else None, f"out{slot}")
        binding = bindings.setdefault(symbol, _Binding())
        binding.admits_fp16 &= admits and not is_typed and not is_frozen
        if not value.is_constant:
            binding.defs.append(slot)
    if schema is not None:
        _follow(bindings, schema.follows)
    if inputs.holds_containers or outputs.holds_containers:  # these tie tensors and containers together
        bindings = _merged(bindings, bindings)
    elif schema is not None and schema.equal:
        bindings = _merged(bindings, schema.equal)
    return {symbol: b for symbol, b in bindings.items() if b.uses or b.defs}


def _follow(bindings: dict[str, _Binding], rules: Mapping[str, str]) -> None:
    """Give what no input types to the variable that types it."""
    for symbol, leader in rules.items():
        if symbol in bindings and leader in bindings and not bindings[symbol].uses:
            follower = bindings.pop(symbol)
            bindings[leader].defs += follower.defs
            bindings[leader].admits_fp16 &= follower.admits_fp16


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
    return any(isinstance(v, Reference) and k in names for k, v in op.attrs.items())


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
