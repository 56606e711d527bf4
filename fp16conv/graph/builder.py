"""GraphBuilder: the only way to make a ModelGraph; checks the invariants when it freezes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fp16conv.errors import InternalError
from fp16conv.graph.model import ModelGraph
from fp16conv.graph.types import (
    Container,
    DataType,
    Dim,
    Op,
    Scope,
    ScopeKind,
    Tensor,
    TypeVar,
    Use,
    Value,
    ValueKind,
)

__all__ = ["Draft", "GraphBuilder"]


@dataclass(frozen=True, slots=True)
class Draft:
    """The graph so far, for code that adds type variables to a complete set of operators."""

    ops: Sequence[Op]
    values: Sequence[Value]
    scopes: Sequence[Scope]

    def value_at(self, use: Use) -> Value | None:
        """The value read at `use`."""
        slots = self.scopes[use.scope].outputs if use.op is None else self.ops[use.op].inputs
        index = slots[use.slot]
        return None if index is None else self.values[index]


class GraphBuilder:
    """Collects scopes, values, operators and type variables; `freeze` gives the ModelGraph.

    Example:
        >>> b = GraphBuilder("demo", "0" * 64, {"": 21})
        >>> main = b.add_scope(ScopeKind.MAIN, "main")
        >>> x = b.add_value("x", DataType.FLOAT, (2,), main, ValueKind.INPUT)
        >>> relu = b.add_op("r", "", "Relu", 14, main, [x])
        >>> y = b.add_value("y", DataType.FLOAT, (2,), main, ValueKind.RESULT, producer=relu)
        >>> b.close_op(relu, [y])
        >>> b.close_scope(main, [x], [y])
        >>> b.add_typevar(None, main, "input:x", [], [x], True)
        0
        >>> b.add_typevar(relu, main, "T", [Use(relu, 0, main)], [y], True)
        1
        >>> b.freeze().ops[0].op_type
        'Relu'
    """

    def __init__(self, source: str, digest: str, opsets: Mapping[str, int]) -> None:
        self._source, self._digest, self._opsets = source, digest, dict(opsets)
        self._ops: list[Op] = []
        self._values: list[Value] = []
        self._scopes: list[Scope] = []
        self._typevars: list[TypeVar] = []
        self._typevars_of_op: dict[int, list[int]] = {}
        self._constants: dict[int, Tensor] = {}
        self._defaults: set[int] = set()

    def add_scope(
        self, kind: ScopeKind, name: str, parent: int | None = None, owner: int | None = None
    ) -> int:
        self._scopes.append(Scope(len(self._scopes), kind, name, parent, owner, (), (), ()))
        return len(self._scopes) - 1

    def close_scope(self, scope: int, inputs: Iterable[int], outputs: Iterable[int | None]) -> None:
        self._scopes[scope] = dataclasses.replace(
            self._scopes[scope], inputs=tuple(inputs), outputs=tuple(outputs)
        )

    def add_value(
        self,
        name: str,
        dtype: DataType,
        shape: tuple[Dim, ...] | None,
        scope: int,
        kind: ValueKind,
        *,
        producer: int | None = None,
        slot: int = 0,
        container: Container = Container.TENSOR,
        tensor: Tensor | None = None,
    ) -> int:
        index = len(self._values)
        self._values.append(Value(index, name, dtype, shape, scope, kind, producer, slot, container))
        if tensor is not None:
            self._constants[index] = tensor
        return index

    def mark_default(self, value: int) -> None:
        """Note that a main graph input has a default value."""
        self._defaults.add(value)

    def add_op(
        self,
        name: str,
        domain: str,
        op_type: str,
        opset: int,
        scope: int,
        inputs: Iterable[int | None],
        *,
        attrs: Mapping[str, object] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> int:
        index = len(self._ops)
        self._ops.append(
            Op(
                index,
                name,
                name or f"{op_type}#{index}",
                domain,
                op_type,
                opset,
                scope,
                tuple(inputs),
                (),
                dict(attrs or {}),
                metadata=dict(metadata or {}),
            )
        )
        return index

    def close_op(
        self,
        op: int,
        outputs: Iterable[int | None],
        *,
        subscopes: Mapping[str, int] | None = None,
        callee: int | None = None,
    ) -> None:
        _complete(self._ops[op], outputs=tuple(outputs), subscopes=dict(subscopes or {}), callee=callee)

    def add_typevar(
        self,
        op: int | None,
        scope: int,
        symbol: str,
        uses: Iterable[Use],
        defs: Iterable[int],
        admits_fp16: bool,
    ) -> int:
        index = len(self._typevars)
        self._typevars.append(TypeVar(index, op, scope, symbol, tuple(uses), tuple(defs), admits_fp16))
        if op is not None:
            self._typevars_of_op.setdefault(op, []).append(index)
        return index

    def draft(self) -> Draft:
        """A view of what was added so far (type variables left out)."""
        return Draft(self._ops, self._values, self._scopes)

    def freeze(self) -> ModelGraph:
        """Return the finished graph.

        Raises:
            InternalError: an invariant does not hold (our bug, never the model's).
        """
        by_scope: dict[int, list[int]] = {}
        for op in self._ops:
            by_scope.setdefault(op.scope, []).append(op.id)
        scopes = tuple(dataclasses.replace(s, ops=tuple(by_scope.get(s.id, ()))) for s in self._scopes)
        for index, typevars in self._typevars_of_op.items():
            _complete(self._ops[index], typevars=tuple(typevars))
        ops = tuple(self._ops)
        of_use, of_value = self._bindings()
        return ModelGraph(
            self._source,
            self._digest,
            self._opsets,
            ops,
            tuple(self._values),
            scopes,
            tuple(self._typevars),
            self._constants,
            frozenset(self._defaults),
            of_use,
            of_value,
            self._consumers(ops, scopes),
        )

    def _consumers(self, ops: Iterable[Op], scopes: Iterable[Scope]) -> tuple[tuple[Use, ...], ...]:
        consumers: list[list[Use]] = [[] for _ in self._values]
        for op in ops:
            for slot, value in enumerate(op.inputs):
                if value is not None:
                    consumers[value].append(Use(op.id, slot, op.scope))
        for scope in scopes:
            for slot, value in enumerate(scope.outputs):
                if value is not None:
                    consumers[value].append(Use(None, slot, scope.id))
        return tuple(map(tuple, consumers))

    def _bindings(self) -> tuple[dict[Use, int], dict[int, int]]:
        """Type variable by use and by value; every FLOAT value that is not constant has exactly one."""
        of_use: dict[Use, int] = {}
        of_value: dict[int, int] = {}
        for tv in self._typevars:
            for use in tv.uses:
                if of_use.setdefault(use, tv.id) != tv.id:
                    raise InternalError(f"use {use} belongs to two type variables")
            for index in tv.defs:
                if self._values[index].dtype is not DataType.FLOAT:
                    raise InternalError(f"type variable {tv.symbol} types a non-FLOAT value")
                if of_value.setdefault(index, tv.id) != tv.id:
                    raise InternalError(f"value {index} is typed by two type variables")
        for value in self._values:
            if value.dtype is DataType.FLOAT and not value.is_constant and value.id not in of_value:
                raise InternalError(f"value '{value.name}' is FLOAT but no type variable types it")
        return of_use, of_value


def _complete(op: Op, **fields: object) -> None:
    """Set what an operator lacks yet. Until the graph is frozen, its operators are the builder's own.

    A changed copy each time would be half the cost of building a graph.
    """
    for name, value in fields.items():
        object.__setattr__(op, name, value)
