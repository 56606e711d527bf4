"""Walks: follow numbers up or down through light operators from where their precision matters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fp16conv.graph import DataType, Op, Use
from fp16conv.rulebook.families import operands
from fp16conv.rulebook.index import GraphIndex
from fp16conv.rulebook.op_sets import OP_SETS
from fp16conv.rulebook.pattern_language import OpSpec

__all__ = ["Walk", "WalkMatch", "match_walk"]


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk, as a rule describes it.

    Args:
        start: with a slot: the walk goes up from what is read there; without: down from the outputs.
        through: operators it passes and marks.
        reach: if given, only operators on a way from the start to one of these are marked. A downward walk
            ends there.
        unless: operators whose numbers may not flow in: what depends on one of these is not marked.
        into: operators a downward walk marks but does not pass.
        mark_start: mark the slot where the walk starts.
        mark_reach: mark the operators reached.
        beyond: also mark what lies behind the operators reached.
        closed: a downward walk passes an operator only if all its other inputs are constants or on the walk.
    """

    start: tuple[OpSpec, ...]
    through: tuple[OpSpec, ...]
    reach: tuple[OpSpec, ...] = ()
    unless: tuple[OpSpec, ...] = ()
    into: tuple[OpSpec, ...] = ()
    mark_start: bool = True
    mark_reach: bool = True
    beyond: bool = False
    closed: bool = True


@dataclass(frozen=True, slots=True)
class WalkMatch:
    """One connected piece of what a walk marked.

    Args:
        ops: marked operators, ascending.
        typevars: their type variables, ascending.
        anchors: the operators where the walk started, ascending.
    """

    ops: tuple[int, ...]
    typevars: tuple[int, ...]
    anchors: tuple[int, ...]


# Vertices: operator ids; boundaries of subgraphs and functions: -2 - type variable id; graph outputs: -1.
_OUTPUT = -1


def _boundary(typevar: int) -> int:
    return -2 - typevar


class _Specs:
    """Operator specifications by type, for one look-up per operator."""

    def __init__(self, index: GraphIndex, specs: Iterable[OpSpec]) -> None:
        self._index = index
        self.by_type: dict[str, list[OpSpec]] = {}
        for spec in specs:
            self.by_type.setdefault(spec.type, []).append(spec)

    def find(self, op: Op) -> OpSpec | None:
        """The first specification the operator fulfils."""
        for spec in self.by_type.get(self._index.kinds[op.id], ()):
            if self._fits(op, spec):
                return spec
        return None

    def starts(self) -> list[tuple[Op, OpSpec]]:
        return [
            (op, spec)
            for key, specs in self.by_type.items()
            for op in self._index.by_type.get(key, ())
            for spec in specs
            if self._fits(op, spec)
        ]

    def _fits(self, op: Op, spec: OpSpec) -> bool:
        if spec.source and not self._is_kind(op.inputs[0] if op.inputs else None, spec.source):
            return False
        if spec.target and not self._is_kind(op.outputs[0] if op.outputs else None, spec.target):
            return False
        if spec.inner:
            lengths = self._contraction(op)
            if lengths is None or lengths > spec.inner:
                return False
        if spec.constant is not None:
            found = [self._index.numbers(v) for v in op.inputs if v is not None]
            return any(n is not None and spec.constant.holds(n[1]) for n in found)
        return not spec.own or self._is_own(op, spec.slot)

    def _is_own(self, op: Op, slot: int | None) -> bool:
        """Whether the type variable of a slot covers nothing else of the operator."""
        if slot is None or slot >= len(op.inputs):
            return False
        variable = self._index.graph.typevar_of_use(Use(op.id, slot, op.scope))
        return variable is not None and len(variable.uses) == 1 and not variable.defs

    def _is_kind(self, value: int | None, kind: str) -> bool:
        if value is None:
            return False
        dtype = self._index.value(value).dtype
        if kind == "float":
            return dtype is DataType.FLOAT
        if kind != "int":
            return dtype == kind
        return dtype.is_integer and dtype.itemsize > 1  # one byte: exact in FP16 (|i| <= 255)

    def _contraction(self, op: Op) -> int | None:
        """Length of the sum in a matrix product, where the shapes tell it."""
        if self._index.kinds[op.id] == "Einsum":
            inputs, _, output = str(op.attrs.get("equation", "")).replace(" ", "").partition("->")
            summed = {c for c in inputs if c.isalpha()} - set(output)
            return 1 if output and not summed else None
        found: list[int] = []
        for slot, value in enumerate(operands(op)[:2]):
            shape = None if value is None else self._index.value(value).shape
            if not shape:
                continue
            transposed = bool(op.attrs.get("transA" if slot == 0 else "transB"))
            transposed = transposed or (slot == 1 and op.key == "aten::linear.default")
            axis = -1 if (slot == 0) != transposed or len(shape) == 1 else -2
            length = shape[axis]
            if isinstance(length, int):
                found.append(length)
        return min(found, default=None)


@dataclass
class _Trace:
    """What a walk has seen. `upstream[v]`: vertices whose numbers flow into v."""

    upstream: dict[int, set[int]] = field(default_factory=dict)
    starts: set[int] = field(default_factory=set)
    passed: set[int] = field(default_factory=set)
    reached: set[int] = field(default_factory=set)
    forbidden: set[int] = field(default_factory=set)
    slots: dict[int, set[int]] = field(default_factory=dict)  # starts and ends: only these type variables

    def edge(self, source: int, target: int) -> None:
        self.upstream.setdefault(target, set()).add(source)

    def touch(self, vertex: int, typevar: int | None) -> None:
        if typevar is not None:
            self.slots.setdefault(vertex, set()).add(typevar)

    def closure(self, seeds: Iterable[int], *, downstream: bool) -> set[int]:
        links = self.upstream
        if downstream:
            links = {}
            for target, sources in self.upstream.items():
                for source in sources:
                    links.setdefault(source, set()).add(target)
        seen = set(seeds)
        queue = list(seen)
        while queue:
            for other in links.get(queue.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
        return seen


class _Walker:
    def __init__(self, index: GraphIndex, walk: Walk, skip: frozenset[int]) -> None:
        self.index, self.graph, self.walk, self.skip = index, index.graph, walk, skip
        self.through = _Specs(index, walk.through)
        self.reach = _Specs(index, walk.reach)
        self.unless = _Specs(index, walk.unless)
        self.into = _Specs(index, walk.into)

    # -- up ---------------------------------------------------------------------------------------

    def go_up(self) -> _Trace:
        trace = _Trace()
        queue: list[tuple[int, int]] = []  # (value, vertex that reads it)
        for op, spec in _Specs(self.index, self.walk.start).starts():
            for slot, value in enumerate(op.inputs):
                if value is None or op.id in self.skip or spec.slot is None or spec.slot not in (-1, slot):
                    continue
                trace.starts.add(op.id)
                variable = self.graph.typevar_of_use(Use(op.id, slot, op.scope))
                trace.touch(op.id, None if variable is None else variable.id)
                queue.append((value, op.id))
        if any(spec.type == "@output" for spec in self.walk.start):
            trace.starts.add(_OUTPUT)
            queue += [(value, _OUTPUT) for value in self.graph.main.outputs if value is not None]
        while queue:
            value, reader = queue.pop()
            crossing = self.index.boundary_above(value)
            if crossing is not None:
                vertex = _boundary(crossing[0])
                trace.edge(vertex, reader)
                if vertex not in trace.passed:
                    trace.passed.add(vertex)
                    queue += [(source, vertex) for source in crossing[1]]
                continue
            op_above = self.graph.producer(value)
            if op_above is not None and op_above.id not in self.skip:
                self._enter(op_above, reader, trace, queue)
        return trace

    def _enter(self, op: Op, reader: int, trace: _Trace, queue: list[tuple[int, int]]) -> None:
        seen = op.id in trace.passed or op.id in trace.reached or op.id in trace.forbidden
        reached = self.reach.find(op) is not None
        passes = self.through.find(op) is not None and not self._is_residual(op)
        if reached:
            trace.reached.add(op.id)
        elif not passes:
            if self.unless.find(op) is None:
                return
            trace.forbidden.add(op.id)
        trace.edge(op.id, reader)
        if passes:
            trace.passed.add(op.id)
            if not seen:
                queue += [(value, op.id) for _, value in self.index.data_inputs(op)]

    def _is_residual(self, op: Op) -> bool:
        """Whether it adds a layer's result to the trunk: what comes down the trunk is another story."""
        inputs = operands(op)
        if self.index.kinds[op.id] != "Add" or any(v is None or self._is_constant(v) for v in inputs):
            return False
        return any(self._is_layer_output(v) for v in inputs if v is not None)

    def _is_layer_output(self, value: int) -> bool:
        for _ in range(4):  # bias and folded normalization
            value, _ = self.index.see_through(value)
            op = self.graph.producer(value)
            if op is None:
                return False
            kind = self.index.kinds[op.id]
            if kind in OP_SETS["product"]:
                return True
            others = [v for v in op.inputs if v is not None and not self._is_constant(v)]
            if kind not in ("Add", "Mul", "BatchNormalization", "Transpose") or len(others) != 1:
                return False
            value = others[0]
        return False

    # -- down -------------------------------------------------------------------------------------

    def go_down(self) -> _Trace:
        trace = _Trace()
        flowing: set[int] = set()  # values on the walk
        queue: list[int] = []

        def emit(values: Iterable[int | None]) -> None:
            for value in values:
                if value is not None and value not in flowing and self.index.is_float(value):
                    flowing.add(value)
                    queue.append(value)

        source_of: dict[int, int] = {}
        for op, spec in _Specs(self.index, self.walk.start).starts():
            if spec.slot is None and op.id not in self.skip:
                trace.starts.add(op.id)
                for value in op.outputs:
                    if value is not None:
                        variable = self.graph.typevar_of_value(value)
                        trace.touch(op.id, None if variable is None else variable.id)
                        source_of[value] = op.id
                emit(op.outputs)
        while queue:
            value = queue.pop()
            for use in self.graph.consumers(value):
                crossing = self.index.boundary_below(use)
                if crossing is not None:
                    variable = self.graph.typevars[crossing[0]]
                    inputs = [v.id for u in variable.uses if (v := self.graph.value_at(u)) is not None]
                    if self._closed(inputs, flowing):
                        vertex = _boundary(variable.id)
                        trace.passed.add(vertex)
                        self._link(trace, vertex, inputs, source_of)
                        source_of.update(dict.fromkeys(crossing[1], vertex))
                        emit(crossing[1])
                elif use.op is not None and use.op not in self.skip:
                    self._flow(self.graph.ops[use.op], use, flowing, source_of, trace, emit)
        return trace

    def _flow(
        self,
        op: Op,
        use: Use,
        flowing: set[int],
        source_of: dict[int, int],
        trace: _Trace,
        emit: Callable[[Iterable[int | None]], None],
    ) -> None:
        data = self.index.data_inputs(op)
        if use.slot not in [slot for slot, _ in data]:
            return
        inputs = [value for _, value in data]
        if self.into.find(op) is not None or self.reach.find(op) is not None:
            variable = self.graph.typevar_of_use(use)
            trace.touch(op.id, None if variable is None else variable.id)
            trace.reached.add(op.id)
            self._link(trace, op.id, [self.graph.ops[op.id].inputs[use.slot]], source_of)
        elif self.through.find(op) is not None and self._closed(inputs, flowing):
            trace.passed.add(op.id)
            self._link(trace, op.id, inputs, source_of)
            source_of.update({v: op.id for v in op.outputs if v is not None})
            emit(op.outputs)

    def _link(
        self, trace: _Trace, vertex: int, values: Iterable[int | None], source_of: dict[int, int]
    ) -> None:
        for value in values:
            if value is not None and value in source_of:
                trace.edge(source_of[value], vertex)

    def _closed(self, values: Iterable[int], flowing: set[int]) -> bool:
        if not self.walk.closed:
            return True
        return all(v in flowing or not self.index.is_float(v) or self._is_constant(v) for v in values)

    def _is_constant(self, value: int) -> bool:
        source, _ = self.index.see_through(value)
        op = self.graph.producer(source)
        return self.index.value(source).is_constant or (
            op is not None and self.index.kinds[op.id] == "ConstantOfShape"
        )

    # -- what is marked ---------------------------------------------------------------------------

    def marked(self, trace: _Trace, *, up: bool) -> set[int]:
        walk = self.walk
        vertices = trace.passed | trace.starts
        if walk.reach or walk.into:
            vertices = vertices | trace.reached
            ends = trace.reached
            keep = trace.closure(ends, downstream=up)
            if walk.beyond:
                keep |= trace.closure(ends, downstream=not up)
            if walk.reach:
                vertices &= keep
            if not walk.mark_reach:
                vertices -= ends - (trace.passed if walk.beyond else set())
        if trace.forbidden:
            vertices -= trace.closure(trace.forbidden, downstream=True) - trace.starts
        return self._trimmed(vertices, trace)

    def _trimmed(self, vertices: set[int], trace: _Trace) -> set[int]:
        """Drop movement at the rim: it takes whatever type is cheaper there."""
        firm = {v for v in vertices if v == _OUTPUT or (v >= 0 and not self._moves(v))}
        firm |= trace.starts & vertices
        inner = _Trace(
            {t: {s for s in ss if s in vertices} for t, ss in trace.upstream.items() if t in vertices}
        )
        below = inner.closure(firm, downstream=True)
        above = inner.closure(firm, downstream=False)
        return firm | {v for v in vertices if v in below and v in above}

    def _moves(self, op: int) -> bool:
        spec = self.through.find(self.graph.ops[op])
        return spec is not None and spec.movement

    def pieces(self, trace: _Trace, marked: set[int]) -> list[WalkMatch]:
        parent = {v: v for v in marked}

        def find(v: int) -> int:
            while parent[v] != v:
                parent[v] = parent[parent[v]]
                v = parent[v]
            return v

        for target, sources in trace.upstream.items():
            for source in sources:
                # the outputs of the graph do not belong together
                if target in parent and source in parent and target != _OUTPUT:
                    parent[find(source)] = find(target)
        groups: dict[int, list[int]] = {}
        for v in sorted(marked - {_OUTPUT}):
            groups.setdefault(find(v), []).append(v)
        matches = []
        for group in groups.values():
            anchors = tuple(v for v in group if v in trace.starts)
            members = [v for v in group if v not in trace.starts or self.walk.mark_start]
            if set(group) == set(anchors):
                continue  # nothing but the start itself: the operator's own rule speaks for it
            variables: set[int] = set()
            for v in members:
                if v <= -2:
                    variables.add(-2 - v)
                elif v in trace.slots and v not in trace.passed:
                    variables |= trace.slots[v]
                else:
                    variables.update(self.graph.ops[v].typevars)
            if variables:
                ops = tuple(v for v in members if v >= 0)
                matches.append(WalkMatch(ops, tuple(sorted(variables)), anchors))
        return sorted(matches, key=lambda m: (m.ops, m.typevars))


def match_walk(index: GraphIndex, walk: Walk, skip: frozenset[int] = frozenset()) -> list[WalkMatch]:
    """Run a walk over a model, in time linear in its operators.

    Args:
        index: the model.
        walk: what to follow.
        skip: operators that belong to other patterns; the walk ends before them.

    Returns:
        One match per connected piece, in file order.
    """
    walker = _Walker(index, walk, skip)
    up = any(spec.slot is not None or spec.type == "@output" for spec in walk.start)
    trace = walker.go_up() if up else walker.go_down()
    return walker.pieces(trace, walker.marked(trace, up=up))
