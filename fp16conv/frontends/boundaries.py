"""Type variables of boundaries: graph interface, If outputs, loop-carried values, function parameters.

What crosses the boundary of a body is a type variable like any other: the places where values enter it are
uses, the values it hands on are defs. See `TypeVar`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fp16conv.graph import DataType, GraphBuilder, Op, Scope, ScopeKind, Use, find_optional_parameters
from fp16conv.graph.builder import Draft

__all__ = ["add_boundary_typevars"]

SEQUENCE_LENS_OPSET = 9  # Scan before this opset has an extra leading input sequence_lens


def add_boundary_typevars(builder: GraphBuilder, draft: Draft, frozen_scopes: Collection[int]) -> None:
    """Add the type variables of all boundaries.

    Those of unknown body operators cannot change, nor can parameters that some call leaves out.
    """
    boundaries = _Boundaries(builder, draft, frozen_scopes)
    boundaries.add_interface(draft.scopes[0])
    for op in draft.ops:
        if op.callee is None and op.subscopes:
            boundaries.add_control_flow(op)
    for scope in draft.scopes:
        if scope.kind is ScopeKind.FUNCTION:
            boundaries.add_function(scope)
    boundaries.add_strays()


class _Boundaries:
    def __init__(self, builder: GraphBuilder, draft: Draft, frozen_scopes: Collection[int]) -> None:
        self.builder, self.draft, self.frozen = builder, draft, frozen_scopes
        self.optional = find_optional_parameters(draft.ops, draft.scopes)
        self._typed: set[int] = set()
        self._calls: dict[int, list[Op]] = {}
        for op in draft.ops:
            if op.callee is not None:
                self._calls.setdefault(op.callee, []).append(op)

    def _add(
        self,
        op: int | None,
        scope: int,
        symbol: str,
        uses: Iterable[Use],
        defs: Iterable[int | None],
        admits_fp16: bool = True,
    ) -> None:
        values = self.draft.values
        float_uses = [u for u in uses if self._is_float(u)]
        float_defs = [v for v in defs if v is not None and values[v].dtype is DataType.FLOAT]
        float_defs = [v for v in float_defs if not values[v].is_constant and v not in self._typed]
        if not float_uses and not float_defs:
            return
        self._typed.update(float_defs)
        admits = admits_fp16 and scope not in self.frozen
        self.builder.add_typevar(op, scope, symbol, float_uses, float_defs, admits)

    def _is_float(self, use: Use) -> bool:
        value = self.draft.value_at(use)
        return value is not None and value.dtype is DataType.FLOAT

    def add_interface(self, main: Scope) -> None:
        for value in main.inputs:
            self._add(None, main.id, f"input:{self.draft.values[value].name}", (), (value,))
        for slot, index in enumerate(main.outputs):
            name = "" if index is None else self.draft.values[index].name
            self._add(None, main.id, f"output:{name}", (Use(None, slot, main.id),), ())

    def add_control_flow(self, op: Op) -> None:
        bodies = [self.draft.scopes[s] for s in op.subscopes.values()]
        if op.domain or op.op_type not in ("If", "Loop", "Scan", "SequenceMap"):
            self._add_opaque(op, bodies)
        elif op.op_type == "If":
            for slot, output in enumerate(op.outputs):
                uses = [Use(None, slot, b.id) for b in bodies if slot < len(b.outputs)]
                self._add(op.id, op.scope, f"V:{slot}", uses, (output,))
        elif op.op_type == "Loop":
            self._add_loop(op, bodies[0], skip_in=2, body_in=2, body_out=1, carried=len(op.inputs) - 2)
        elif op.op_type == "Scan":
            skip = int(op.opset < SEQUENCE_LENS_OPSET)
            scanned = op.attrs.get("num_scan_inputs")
            carried = max(0, len(op.inputs) - skip - (scanned if isinstance(scanned, int) else 0))
            self._add_loop(op, bodies[0], skip_in=skip, body_in=0, body_out=0, carried=carried)
        else:
            self._add_loop(op, bodies[0], skip_in=0, body_in=0, body_out=0, carried=0)

    def _add_loop(
        self, op: Op, body: Scope, *, skip_in: int, body_in: int, body_out: int, carried: int
    ) -> None:
        """Carried values tie four places; scan inputs and outputs tie two each."""
        for i in range(max(0, min(carried, len(op.inputs) - skip_in))):
            uses = [Use(op.id, skip_in + i, op.scope), Use(None, body_out + i, body.id)]
            defs = [_at(body.inputs, body_in + i), _at(op.outputs, i)]
            self._add(op.id, op.scope, f"carried:{i}", [u for u in uses if self._exists(u)], defs)
        for i in range(carried, len(op.inputs) - skip_in):
            self._add(
                op.id,
                op.scope,
                f"scanned:{i - carried}",
                (Use(op.id, skip_in + i, op.scope),),
                (_at(body.inputs, body_in + i),),
            )
        for slot in range(max(0, carried), max(len(op.outputs), len(body.outputs) - body_out)):
            use = Use(None, body_out + slot, body.id)
            self._add(
                op.id,
                op.scope,
                f"collected:{slot - carried}",
                (use,) if self._exists(use) else (),
                (_at(op.outputs, slot),),
            )
        if op.op_type == "Loop":
            return
        if skip_in:
            self._add(op.id, op.scope, "sequence_lens", (Use(op.id, 0, op.scope),), (), False)

    def _exists(self, use: Use) -> bool:
        slots = self.draft.scopes[use.scope].outputs if use.op is None else self.draft.ops[use.op].inputs
        return use.slot < len(slots)

    def _add_opaque(self, op: Op, bodies: Iterable[Scope]) -> None:
        """Bodies of operators we do not know: what crosses their rim keeps its type."""
        for body in bodies:
            for value in body.inputs:
                name = self.draft.values[value].name
                self._add(None, body.id, f"input:{name}", (), (value,), False)
            for slot in range(len(body.outputs)):
                self._add(None, body.id, f"output:{slot}", (Use(None, slot, body.id),), (), False)

    def add_function(self, function: Scope) -> None:
        calls = self._calls.get(function.id, [])
        for slot, value in enumerate(function.inputs):
            uses = [Use(c.id, slot, c.scope) for c in calls if slot < len(c.inputs)]
            symbol = f"input:{self.draft.values[value].name}"
            self._add(None, function.id, symbol, uses, (value,), bool(calls) and value not in self.optional)
        for slot, index in enumerate(function.outputs):
            name = "" if index is None else self.draft.values[index].name
            defs = [_at(c.outputs, slot) for c in calls]
            use = Use(None, slot, function.id)
            self._add(None, function.id, f"output:{name}", (use,), defs, bool(calls))

    def add_strays(self) -> None:
        """Values that nothing types (sparse initializers): FLOAT for good."""
        for value in self.draft.values:
            if (
                value.dtype is DataType.FLOAT
                and value.producer is None
                and not value.is_constant
                and value.id not in self._typed
            ):
                self._add(None, value.scope, f"input:{value.name}", (), (value.id,), False)


def _at(slots: tuple[int, ...] | tuple[int | None, ...], index: int) -> int | None:
    return slots[index] if index < len(slots) else None
