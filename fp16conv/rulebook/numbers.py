"""What rules about numbers measure: figures of constants and of observed or proven ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from fp16conv.graph import ModelGraph, Op, Origin, RangeFact, TypeVar
from fp16conv.half import MAX, MAX_EXACT_INTEGER, SMALLEST_NORMAL, round_to_fp16
from fp16conv.rulebook.schema import Condition

__all__ = [
    "LARGE_METRICS",
    "ConstantFigures",
    "ConstantReader",
    "fact_figure",
    "holds",
    "symbols_of",
    "values_of",
]


_COUNTABLE: Final = 2.0**24
"""Up to here FP32 holds every integer. Nobody counts beyond; all numbers from 2^23 on are integers."""

LARGE_METRICS = frozenset(("max_abs", "has_nan", "integer_max", "accumulated_abs", "accumulated_square"))
"""Figures that are about large numbers; a proven range, which is an upper bound, shows none of them."""


@dataclass(frozen=True, slots=True)
class ConstantFigures:
    """Figures of one constant tensor.

    Args:
        size: number of elements.
        max_finite_abs: largest finite magnitude; lo and hi: finite extremes.
        min_abs: smallest non-zero magnitude, infinite where all are zero.
        share_tiny: share of all elements that are non-zero and below 2^-14.
        inexact_integers: number of integers that FP16 does not hold (0 where not all are integers).
        has_infinity: some element is infinite.
    """

    size: int
    max_finite_abs: float
    lo: float
    hi: float
    min_abs: float
    share_tiny: float
    inexact_integers: int
    has_infinity: bool


class ConstantReader:
    """Figures of a graph's constants, each tensor read once and let go.

    Args:
        graph: the model.
        facts: facts of origin `constant` for values whose numbers are not stored as a tensor
            (fill values, folded results).
    """

    def __init__(self, graph: ModelGraph, facts: Mapping[int, RangeFact]) -> None:
        self._graph, self._facts = graph, facts
        self._figures: dict[int, ConstantFigures | None] = {}

    def is_known(self, value: int) -> bool:
        """Whether the value's numbers are in the model file."""
        return value in self._graph.constants

    def is_fill(self, value: int) -> bool:
        """Whether the value is one number, in a shape that is computed (ConstantOfShape)."""
        producer, fact = self._graph.producer(value), self._facts.get(value)
        is_filled = producer is not None and producer.key == "ConstantOfShape"
        return is_filled and fact is not None and fact.origin is Origin.CONSTANT and not fact.has_nan

    def figures(self, value: int) -> ConstantFigures | None:
        """Figures of a constant or a fill; None where it is empty or neither."""
        if value not in self._figures:
            self._figures[value] = self._measure(value)
        return self._figures[value]

    def relative_rounding(self, value: int, offset: float) -> float:
        """Largest |fp16(c) - c| / (|c| + offset) over the constant's elements."""
        array = self._graph.array(value)
        if array is None or not array.size:
            return 0.0
        numbers = array.astype(np.float64, copy=False)
        error = np.abs(round_to_fp16(numbers).astype(np.float64) - numbers)
        scale = np.abs(numbers) + offset
        ratio = np.divide(error, scale, out=np.zeros_like(error), where=(scale > 0) & np.isfinite(error))
        return float(ratio.max())

    def l2_rounding(self, value: int) -> float:
        """L2 norm of the constant's rounding error, relative to its own."""
        array = self._graph.array(value)
        if array is None or not array.size:
            return 0.0
        numbers = array.astype(np.float64, copy=False)
        norm = float(np.linalg.norm(numbers))
        error = float(np.linalg.norm(round_to_fp16(numbers).astype(np.float64) - numbers))
        return error / norm if norm > 0 else 0.0

    def _measure(self, value: int) -> ConstantFigures | None:
        if self.is_fill(value) and not self.is_known(value):
            return _measure(np.full(2, self._facts[value].lo, np.float32))  # however many there are
        fact, tensor = self._facts.get(value), self._graph.constants.get(value)
        if (
            fact is not None
            and tensor is not None
            and fact.origin is Origin.CONSTANT
            and not _needs_numbers(fact)
        ):
            return ConstantFigures(
                size=tensor.size,
                max_finite_abs=fact.max_abs,
                lo=fact.lo,
                hi=fact.hi,
                min_abs=float("inf") if fact.min_abs_nonzero is None else fact.min_abs_nonzero,
                share_tiny=fact.share_subnormal,
                inexact_integers=0,
                has_infinity=False,
            )
        array = self._graph.array(value)
        if array is None or not array.size:
            return None
        return _measure(np.asarray(array, dtype=np.float32))


def _needs_numbers(fact: RangeFact) -> bool:
    """Whether a fact lacks what the figures tell: inexact integers, extremes beside infinities."""
    if fact.has_nan or not math.isfinite(fact.max_abs):
        return True
    return fact.is_integral and MAX_EXACT_INTEGER < fact.max_abs <= MAX


def _measure(array: npt.NDArray[np.float32]) -> ConstantFigures:
    magnitude = np.abs(array)
    finite = np.isfinite(array)
    all_finite = bool(finite.all())
    kept = array if all_finite else array[finite]
    lo, hi = (float(kept.min()), float(kept.max())) if kept.size else (0.0, 0.0)
    nonzero = magnitude[magnitude > 0]
    inexact = 0
    largest = max(abs(lo), abs(hi))
    if MAX_EXACT_INTEGER < largest <= MAX and all_finite and bool((np.rint(array) == array).all()):
        inexact = int((round_to_fp16(array) != array).sum())
    return ConstantFigures(
        size=int(array.size),
        max_finite_abs=largest,
        lo=lo,
        hi=hi,
        min_abs=float(nonzero.min()) if nonzero.size else float("inf"),
        share_tiny=float((nonzero < SMALLEST_NORMAL).sum()) / array.size,
        inexact_integers=inexact,
        has_infinity=bool(np.isinf(array).any()),
    )


def fact_figure(metric: str, fact: RangeFact, graph: ModelGraph, op: Op | None, value: int) -> float:
    """Measure one figure of a range; NaN where it is not known (no condition on it holds).

    A proven range is an upper bound: it shows that numbers are small, never that some are large.
    """
    if fact.origin is Origin.PROVEN and metric in LARGE_METRICS:
        return float("nan")
    match metric:
        case "max_abs":
            return fact.max_abs
        case "rms":
            if fact.max_abs == 0:
                return float("nan")
            return fact.max_abs if fact.rms is None else fact.rms
        case "share_tiny":
            return 1.0 if fact.max_abs < SMALLEST_NORMAL else fact.share_subnormal
        case "has_nan":
            return float(fact.has_nan)
        case "integer_max":
            return fact.max_abs if fact.is_integral and fact.max_abs <= _COUNTABLE else float("nan")
        case "accumulated_abs":
            return fact.max_abs * _reduced_count(graph, op, value)
        case "accumulated_square":
            return fact.max_abs**2 * _reduced_count(graph, op, value)
    raise AssertionError(metric)


def holds(condition: Condition, figure: float) -> bool:
    """Whether the figure meets the condition; never for NaN."""
    if figure != figure:
        return False
    above = condition.above is None or figure > condition.above
    return above and (condition.below is None or figure < condition.below)


def _reduced_count(graph: ModelGraph, op: Op | None, value: int) -> float:
    """How many elements are summed into one; NaN where shapes do not tell."""
    if op is None or not op.outputs or op.outputs[0] is None:
        return float("nan")
    kernel = op.attrs.get("kernel_shape")
    if isinstance(kernel, tuple):
        return float(np.prod([float(k) for k in kernel]))
    before, after = graph.values[value].size, graph.values[op.outputs[0]].size
    return before / after if before and after else float("nan")


def values_of(graph: ModelGraph, typevar: TypeVar, on: str) -> list[int]:
    """Value ids read and/or made at a type variable, ascending."""
    found: set[int] = set()
    if on != "output":
        read = (graph.value_at(use) for use in typevar.uses)
        found.update(value.id for value in read if value is not None)
    if on != "input":
        found.update(typevar.defs)
    return sorted(found)


def symbols_of(typevar: TypeVar) -> tuple[str, ...]:
    """Schema names of a type variable: several where a container ties them (`S+T`), no index (`V:0`)."""
    return tuple(typevar.symbol.partition(":")[0].split("+"))
