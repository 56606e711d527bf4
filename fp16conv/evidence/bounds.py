"""Proven bounds: what values can be at most, for all inputs in their declared ranges, without running.

Abstract interpretation (Cousot and Cousot 1977) over the ModelGraph: `abstract/` holds the domain and one
transfer function per operator, this module walks scopes, loops and functions. Bounds hold for the FP32
model as ONNX Runtime computes it, roundings included.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from fp16conv.errors import UsageError
from fp16conv.evidence.abstract.call import Call, Shape
from fp16conv.evidence.abstract.domain import (
    TOP,
    Bounds,
    contain,
    forget,
    hull,
    intersect,
    interval,
    is_within,
    of_array,
    smallest,
    top_of,
)
from fp16conv.evidence.abstract.memo import MAX_NUMBERS, Memo, key_of_attributes, key_of_numbers
from fp16conv.evidence.abstract.table import TRANSFERS
from fp16conv.evidence.constants import fold_constants
from fp16conv.graph import (
    Container,
    DataType,
    ModelGraph,
    Op,
    Origin,
    RangeFact,
    Reference,
    Scope,
    read_pieces,
)

__all__ = ["prove_bounds"]

_FLOATING: Final = (DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16, DataType.DOUBLE)
_COPIES: Final = frozenset(("Identity", "Dropout"))

PATIENCE: Final = 3
"""Rounds of a loop before its bounds are widened to the next threshold."""

THRESHOLDS: Final = (1.0, 32.0, 1024.0, 32752.0, 1e9)
"""Where widening stops on its way to infinity, so that it always ends after a few rounds."""

WORK_PER_OP: Final = 50
"""Evaluations per operator (calls of functions, rounds of nested loops) before everything is given up."""


_MALFORMED: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What a transfer function raises where an operator's shapes or attributes fit no run."""


class _TooMuchWorkError(Exception):
    """Loops or functions are nested so deep that the evaluation would take too long."""


def prove_bounds(
    graph: ModelGraph,
    input_ranges: Mapping[str, tuple[float, float]] | None = None,
    *,
    shapes: Mapping[int, Sequence[int]] | None = None,
    constants: Mapping[int, RangeFact] | None = None,
) -> dict[int, RangeFact]:
    """Bounds of every value that has finite ones on both sides.

    What is taken for granted: inputs are within their declared ranges (an undeclared one can be anything of
    its type, infinities and NaN included); indices are valid; shapes in the file are true; open dimensions
    are at least 1; and a normalization's variance is the mean square of the differences that it divides, as
    its definition says. Elements that are NaN are left out; `has_nan` says where there may be any.

    Args:
        graph: the model; every constant is read once, in pieces.
        input_ranges: (low, high) per input name; an input with a range holds no NaN.
        shapes: value id -> shape where it is known better than in the file; the bounds then only hold for
            inputs that give these shapes.
        constants: facts of origin `constant` by value id, so that large weights are not read again for them.

    Returns:
        Value id -> fact with origin `proven`, ids ascending: floating values, and integers whose bounds
        are tighter than their type. Constants are left out.

    Raises:
        UsageError: a range names no input, or is empty.
    """
    interpreter = _Interpreter(graph, dict(shapes or {}), constants or {})
    interpreter.bind_inputs(dict(input_ranges or {}))
    try:
        with np.errstate(all="ignore"):
            interpreter.run_scope(graph.main, {})
    except _TooMuchWorkError:
        return {}
    facts: dict[int, RangeFact] = {}
    known_facts: dict[Bounds, RangeFact] = {}  # equal bounds are one object
    for value, bounds in sorted(interpreter.joined.items()):
        known = graph.values[value]
        if known.is_constant or not bounds.finite or known.container is not Container.TENSOR:
            continue
        if known.dtype not in _FLOATING and not (known.dtype.is_integer and _is_tighter(bounds, known.dtype)):
            continue
        fact = known_facts.get(bounds)
        if fact is None:
            fact = known_facts[bounds] = _fact_of(bounds)
        facts[value] = fact
    return facts


def _fact_of(bounds: Bounds) -> RangeFact:
    tiny = smallest(bounds)
    return RangeFact(
        bounds.low,
        bounds.high,
        Origin.PROVEN,
        min_abs_nonzero=tiny if tiny > 0 else None,
        is_integral=bounds.integral,
        has_nan=bounds.nan,
    )


def _has_nan(bounds: Bounds) -> bool:
    if not bounds.axis:
        return math.isnan(bounds.lo) or math.isnan(bounds.hi)
    return bool(np.isnan(bounds.lo).any() or np.isnan(bounds.hi).any())


def _is_tighter(bounds: Bounds, dtype: DataType) -> bool:
    limits = top_of(dtype)
    return bounds.low > limits.low or bounds.high < limits.high


@dataclass
class _Interpreter:
    """Evaluates scopes; `current` is this evaluation's bounds, `joined` those of all evaluations.

    Bindings of `attrs` are the attributes of the function call that is being evaluated.
    """

    graph: ModelGraph
    shapes: Mapping[int, Sequence[int]]
    known: Mapping[int, RangeFact] = field(default_factory=dict)
    current: dict[int, Bounds] = field(default_factory=dict)
    joined: dict[int, Bounds] = field(default_factory=dict)
    roots: dict[int, int] = field(default_factory=dict)
    work: int = 0

    def __post_init__(self) -> None:
        self.folded = fold_constants(self.graph)
        self._constants: dict[int, Bounds] = {}
        self._memo = Memo()
        self._known_shapes: dict[int, Shape | None] = {}
        self._forms: dict[int, int] = {}
        self._form_numbers: dict[Hashable, int] = {}
        self._identities: dict[int, Hashable] = {}

    def bind_inputs(self, ranges: dict[str, tuple[float, float]]) -> None:
        names = {self.graph.values[v].name: v for v in self.graph.main.inputs}
        for name, (low, high) in ranges.items():
            if name not in names:
                known = ", ".join(sorted(names)) or "none"
                raise UsageError(f"the model has no input '{name}'", hint=f"its inputs: {known}")
            if not low <= high:
                raise UsageError(f"the range {low:g} to {high:g} of input '{name}' is empty")
        for name, value in names.items():
            dtype = self.graph.values[value].dtype
            bounds = top_of(dtype)
            if name in ranges and self.graph.values[value].container is Container.TENSOR:
                low, high = ranges[name]
                if dtype in _FLOATING:  # fed numbers are rounded to the input's type
                    bounds = interval(low - abs(low) * 2.0**-10, high + abs(high) * 2.0**-10)
                    if dtype in (DataType.FLOAT, DataType.DOUBLE):
                        bounds = interval(low - abs(low) * 2.0**-24, high + abs(high) * 2.0**-24)
                    if dtype is DataType.BFLOAT16:
                        bounds = interval(low - abs(low) * 2.0**-8, high + abs(high) * 2.0**-8)
                elif dtype.is_integer:
                    bounds = intersect(bounds, low, high)
            self.define(value, bounds)

    def define(self, value: int, bounds: Bounds) -> None:
        """Record what a value can be in this evaluation."""
        dtype = self.graph.values[value].dtype
        if _has_nan(bounds):
            bounds = top_of(dtype)
        self._set(value, self._memo.unify(contain(bounds, dtype)))

    def _set(self, value: int, bounds: Bounds) -> None:
        self.current[value] = bounds
        known = self.joined.get(value)
        self.joined[value] = bounds if known is None else hull((known, bounds))

    def read(self, value: int | None) -> Bounds | None:
        if value is None:
            return None
        found = self.current.get(value)
        if found is None:
            found = self._constants.get(value) or self._known(value)
            array = self.array(value) if found is None else None
            if array is not None:
                exact = value in self.graph.constants or array.dtype.kind != "f"
                found = of_array(array, exact=exact)
            if found is not None:
                found = self._constants[value] = self._memo.unify(found)
        return top_of(self.graph.values[value].dtype) if found is None else found

    def _known(self, value: int) -> Bounds | None:
        """Bounds of a weight from what is known of it already, where they have no axis."""
        fact, tensor = self.known.get(value), self.graph.constants.get(value)
        shape = self.graph.values[value].shape
        if fact is None or tensor is None or fact.origin is not Origin.CONSTANT or shape is None:
            return None
        if value in self.folded or fact.has_nan or not math.isfinite(fact.max_abs):
            return None
        if sum(d != 1 for d in shape) == 1:
            return None
        tiny = fact.min_abs_nonzero or 0.0
        return interval(fact.lo, fact.hi, tiny=tiny, integral=fact.is_integral)

    def array(self, value: int | None) -> npt.NDArray[np.generic] | None:
        if value is None:
            return None
        return self.folded[value] if value in self.folded else self.graph.array(value)

    def _head(self, value: int | None, rows: int) -> npt.NDArray[np.generic] | None:
        """The first rows of a constant, as far as they can be read alone."""
        shape = None if value is None else self.graph.values[value].shape
        tensor = None if value is None else self.graph.constants.get(value)
        if tensor is None or not shape or not tensor.size or not all(isinstance(d, int) for d in shape):
            return None
        row = math.prod(d for d in shape[1:] if isinstance(d, int))
        if row * int(shape[0] or 0) != tensor.size:
            return None
        _, numbers = next(read_pieces(tensor, rows * row))
        return numbers.reshape(-1, *shape[1:])

    def shape(self, value: int | None) -> Shape | None:
        if value is None:
            return None
        if value not in self._known_shapes:
            self._known_shapes[value] = self._find_shape(value)
        return self._known_shapes[value]

    def _find_shape(self, value: int) -> Shape | None:
        if value in self.shapes:
            return tuple(int(n) for n in self.shapes[value])
        declared = self.graph.values[value].shape
        if declared is None:
            return None
        return tuple([d if isinstance(d, int) and d >= 0 else None for d in declared])

    def run_scope(self, scope: Scope, attrs: Mapping[str, object]) -> list[Bounds]:
        """Evaluate a scope's operators; returns the bounds of its outputs."""
        for index in scope.ops:
            self.work += 1
            if self.work > WORK_PER_OP * len(self.graph.ops) + 1000:
                raise _TooMuchWorkError
            self._run_op(self.graph.ops[index], attrs)
        return [forget(self.read(v) or TOP) for v in scope.outputs]

    def _run_op(self, op: Op, attrs: Mapping[str, object]) -> None:
        if all(v is None or v in self.graph.constants for v in op.outputs):
            return
        if len(op.outputs) == 1 and op.outputs[0] in self.folded:
            found = self.read(op.outputs[0])
            assert found is not None
            assert op.outputs[0] is not None
            self.define(op.outputs[0], found)
            return
        bound = _bind_attributes(op, attrs)
        results: Sequence[Bounds | None] = []
        if op.callee is not None:
            results = self._call_function(op, bound)
        elif op.subscopes:
            results = self._run_bodies(op, attrs)
        elif bound is not None and op.key in TRANSFERS:
            self._transfer(bound)
            return
        self._record(op, results)

    def _record(self, op: Op, results: Sequence[Bounds | None]) -> None:
        for slot, value in enumerate(op.outputs):
            if value is not None:
                result = results[slot] if slot < len(results) else None
                self.define(value, top_of(self.graph.values[value].dtype) if result is None else result)

    def _transfer(self, op: Op) -> None:
        """Define the outputs of an operator that has a transfer function."""
        ins, roots = tuple(map(self.read, op.inputs)), tuple(map(self._root, op.inputs))
        if op.op_type in _COPIES and not op.domain:
            root, copy = roots[0], op.outputs[0]
            if root is not None and copy is not None:
                self.roots[copy] = root
        key = self._key(op, ins, roots)
        known = None if key is None else self._memo.get(key)
        if known is not None:
            for made, result in zip((v for v in op.outputs if v is not None), known, strict=True):
                self._set(made, result)
            return
        call = self._call(op, ins, roots)
        try:
            found = TRANSFERS[op.key](call)
        except _MALFORMED:  # shapes or attributes that fit no run: nothing is proven of it
            found = []
        if isinstance(found, Bounds) and not found.is_well_formed:
            found = []  # broadcasting made a table of what shapes that fit make a row
        self._record(op, [found] if isinstance(found, Bounds) else found)
        if key is not None:
            self._memo.keep(key, [self.current[v] for v in op.outputs if v is not None])

    def _root(self, value: int | None) -> int | None:
        return None if value is None else self.roots.get(value, value)

    def _key(
        self, op: Op, ins: Sequence[Bounds | None], roots: Sequence[int | None]
    ) -> tuple[Hashable, ...] | None:
        """All that the transfer function sees of a call; None where that names values of the graph."""
        attributes = key_of_attributes(op)
        if attributes is None:
            return None
        parts: list[Hashable] = [op.key, op.opset, attributes]
        for value, bounds, origin in zip(op.inputs, ins, roots, strict=True):
            if value is None or bounds is None:
                parts.append(None)
                continue
            if bounds.tags or bounds.ceilings:
                return None
            parts += (bounds, roots.index(origin), self._form(value), self._identity(value))
        parts.append(op.outputs.count(None))
        parts += [None if value is None else self._form(value) for value in op.outputs]
        return tuple(parts)

    def _form(self, value: int) -> int:
        """A number for dtype and shape (enumerations are slow to hash)."""
        form = self._forms.get(value)
        if form is None:
            known = self.graph.values[value].dtype, self.shape(value)
            form = self._forms[value] = self._form_numbers.setdefault(known, len(self._form_numbers))
        return form

    def _identity(self, value: int) -> Hashable:
        """What tells a constant from others: its numbers, or that it is this one. None for no constant."""
        if value not in self.graph.constants and value not in self.folded:
            return None
        if value not in self._identities:
            size = self.graph.values[value].size
            small = size is not None and size <= MAX_NUMBERS
            array = self.array(value) if small else None
            numbers = None if array is None else key_of_numbers(array)
            self._identities[value] = value if numbers is None else numbers
        return self._identities[value]

    def _call(self, op: Op, ins: tuple[Bounds | None, ...], roots: tuple[int | None, ...]) -> Call:
        values = self.graph.values
        return Call(
            op=op,
            ins=ins,
            roots=roots,
            shapes=tuple(map(self.shape, op.inputs)),
            out_shapes=tuple(map(self.shape, op.outputs)),
            dtypes=tuple(values[v].dtype for v in op.inputs if v is not None),
            out_dtypes=tuple(DataType.UNKNOWN if v is None else values[v].dtype for v in op.outputs),
            read=lambda slot: self.array(op.inputs[slot]),
            read_head=lambda slot, rows: self._head(op.inputs[slot], rows),
        )

    def _call_function(self, op: Op, bound: Op | None) -> list[Bounds]:
        assert op.callee is not None
        scope = self.graph.scopes[op.callee]
        given = [self.read(v) for v in op.inputs]
        for slot, value in enumerate(scope.inputs):
            found = given[slot] if slot < len(given) else None
            self.define(value, TOP if found is None else forget(found))
        return self.run_scope(scope, {} if bound is None else bound.attrs)

    def _run_bodies(self, op: Op, attrs: Mapping[str, object]) -> list[Bounds]:
        bodies = [self.graph.scopes[s] for s in op.subscopes.values()]
        ins = [forget(self.read(v) or TOP) for v in op.inputs]
        if op.op_type == "If" and not op.domain:
            branches = [self.run_scope(body, attrs) for body in bodies]
            return [hull(outputs) for outputs in zip(*branches, strict=True)]
        if op.op_type == "Loop" and not op.domain:
            limit = ins[0].high if op.inputs[0] is not None else 2.0**63
            counter = interval(0.0, max(limit, 0.0), integral=True)
            return self._iterate(bodies[0], attrs, [counter, top_of(DataType.BOOL)], ins[2:], [], 1)
        if op.op_type == "Scan" and not op.domain and op.opset >= 9:
            count = op.attrs.get("num_scan_inputs", 1)
            assert isinstance(count, int)
            states = ins[: len(ins) - count]
            slices = [_without_place(b) for b in ins[len(ins) - count :]]
            return self._iterate(bodies[0], attrs, [], states, slices, 0)
        for body in bodies:
            for value in body.inputs:
                self.define(value, top_of(self.graph.values[value].dtype))
            self.run_scope(body, attrs)
        return []

    def _iterate(
        self,
        body: Scope,
        attrs: Mapping[str, object],
        first: list[Bounds],
        initial: list[Bounds],
        slices: list[Bounds],
        skipped: int,
    ) -> list[Bounds]:
        """Loop a body until its carried values stay within their bounds.

        Args:
            body: its inputs are `first`, the carried values and `slices`.
            attrs: of the function call around.
            first: bounds of what comes before the carried values: counter and condition.
            initial: carried values before the first round.
            slices: what is read anew in each round.
            skipped: outputs before the carried ones (the condition).
        """
        carried, rounds = list(initial), 0
        while True:
            for value, bounds in zip(body.inputs, [*first, *carried, *slices], strict=False):
                self.define(value, bounds)
            outputs = self.run_scope(body, attrs)[skipped:]
            after = outputs[: len(carried)]
            if all(is_within(a, b) for a, b in zip(after, carried, strict=False)):
                # What is stacked over the rounds has the bounds of one round.
                final = [hull((a, b)) for a, b in zip(after, initial, strict=False)]
                return [*final, *map(_without_place, outputs[len(carried) :])]
            rounds += 1
            carried = [
                hull((a, b)) if rounds <= PATIENCE else _widen(b, a)
                for a, b in zip(after, carried, strict=False)
            ]


def _without_place(b: Bounds) -> Bounds:
    return interval(b.low, b.high, tiny=smallest(b), integral=b.integral, nan=b.nan)


def _widen(old: Bounds, new: Bounds) -> Bounds:
    """The next threshold on each side that grew."""
    joined = hull((old, new))
    lo, hi = old.low, old.high
    if joined.low < lo:
        lo = -next((t for t in THRESHOLDS if -t <= joined.low), np.inf)
    if joined.high > hi:
        hi = next((t for t in THRESHOLDS if t >= joined.high), np.inf)
    return interval(lo, hi, integral=joined.integral, nan=joined.nan)


def _bind_attributes(op: Op, attrs: Mapping[str, object]) -> Op | None:
    """Fill in references to attributes of the function call; None where one has no value there."""
    references = {k: v.name for k, v in op.attrs.items() if isinstance(v, Reference)}
    if not references:
        return op
    if any(name not in attrs for name in references.values()):
        return None
    return dataclasses.replace(op, attrs={**op.attrs, **{k: attrs[name] for k, name in references.items()}})
