"""Which operators are known to stay in the range of FP16, and how it is known."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final

from fp16conv.graph import ModelGraph, Op, Origin, RangeFact, TypeVar
from fp16conv.half import MAX, MAX_EXACT_INTEGER, SMALLEST_NORMAL

__all__ = ["Safety", "classify", "merge_facts"]

MARGIN: Final = 2.0
"""Proven bounds are of the FP32 run; the roundings of FP16 before it get one binade."""


class Safety(StrEnum):
    """What is known of an operator in FP16, best first."""

    PROVEN = "proven safe"
    OBSERVED = "observed safe"
    UNKNOWN = "unknown"
    UNSAFE = "observed unsafe"


_RANK: Final = {s: i for i, s in enumerate(Safety)}

_SINGULAR: Final[Mapping[str, int]] = {"Div": 1, "Log": 0, "Pow": 0, "Reciprocal": 0}
"""Operand that must not round to zero: from there a small number becomes a large one."""


def classify(
    graph: ModelGraph,
    proven: Mapping[int, RangeFact],
    observed: Mapping[int, RangeFact],
    typevars: Collection[int] | None = None,
) -> dict[int, Safety]:
    """Say for each operator how it is known to be safe in FP16.

    Safe: all values that it reads and writes in FP16 are below 65504 in magnitude (32752 where that is
    proven, so that roundings have room). Small numbers keep an operator from being safe in three places:
    where they are divided by, or their logarithm or negative power is taken, the operand must stay a normal
    FP16 number; where a root is taken it must not be able to turn negative; and a constant that is wholly
    below the normal FP16 numbers does its work no more. Such an operator is at most observed safe, or
    unknown. Elsewhere an underflow costs an absolute error of 2^-25 and is the rules' concern. NaN that
    FP32 has too is no failure of FP16.

    Args:
        graph: the model.
        proven: facts of `prove_bounds`.
        observed: facts of constants and of a calibration.
        typevars: those that are to be FP16; all by default.

    Returns:
        Operator id -> class, for operators with at least one of the type variables.
    """
    result: dict[int, Safety] = {}
    for op in graph.ops:
        chosen = [tv for tv in graph.typevars_of(op.id) if typevars is None or tv.id in typevars]
        if chosen:
            result[op.id] = _judge(graph, op, chosen, proven, observed)
    return result


def merge_facts(observed: Mapping[int, RangeFact], proven: Mapping[int, RangeFact]) -> dict[int, RangeFact]:
    """Facts for the rules: what was observed, with the proofs that keep a value in the range of FP16.

    A proof that does not is left out: that a bound is large shows nothing. For the same reason the numbers
    of a value that is only proven are no integers to the rules above 2048, where these must stay exact.

    Args:
        observed: facts of constants and of a calibration; they stay what they are.
        proven: facts of `prove_bounds`.

    Returns:
        Value id -> fact; `proven_max_abs` is set where a proof counts.
    """
    merged = dict(observed)
    shared: dict[int, RangeFact] = {}  # many values have one and the same proof
    for value, proof in proven.items():
        seen = observed.get(value)
        if seen is None and id(proof) in shared:
            merged[value] = shared[id(proof)]
            continue
        if proof.max_abs > MAX or (seen is not None and seen.origin is Origin.CONSTANT):
            continue
        exact = proof.is_integral and proof.max_abs <= MAX_EXACT_INTEGER
        fact = proof if seen is None else seen
        if seen is not None and exact:  # no run can show that numbers are always integers
            fact = replace(seen, origin=Origin.PROVEN, lo=proof.lo, hi=proof.hi, is_integral=True)
        integral = exact if seen is None else fact.is_integral
        merged[value] = replace(fact, is_integral=integral, proven_max_abs=proof.max_abs)
        if seen is None:
            shared[id(proof)] = merged[value]
    return dict(sorted(merged.items()))


def _judge(
    graph: ModelGraph,
    op: Op,
    typevars: list[TypeVar],
    proven: Mapping[int, RangeFact],
    observed: Mapping[int, RangeFact],
) -> Safety:
    worst = Safety.PROVEN
    values = {v for tv in typevars for v in tv.defs}
    for tv in typevars:
        read = (graph.value_at(use) for use in tv.uses)
        values.update(v.id for v in read if v is not None)
    for value in values:
        worst = max(worst, _of_value(proven.get(value), observed.get(value)), key=_RANK.__getitem__)
    singular = _SINGULAR.get(op.key)
    if singular is not None and len(op.inputs) > singular:
        divisor = op.inputs[singular]
        if divisor is not None and divisor in values and not (op.key == "Pow" and _is_growing(graph, op)):
            safety = _of_divisor(proven.get(divisor), observed.get(divisor))
            worst = max(worst, safety, key=_RANK.__getitem__)
    if op.key == "Sqrt" and op.inputs[0] in values:
        worst = max(worst, _of_radicand(proven, observed, op.inputs[0]), key=_RANK.__getitem__)
    return worst


def _of_radicand(
    proven: Mapping[int, RangeFact], observed: Mapping[int, RangeFact], value: int | None
) -> Safety:
    """A difference that is small and positive in FP32 may be negative in FP16."""
    if value is None:
        return Safety.UNKNOWN
    proof, seen = proven.get(value), observed.get(value)
    if (proof is not None and proof.lo >= 0) or (seen is not None and seen.origin is Origin.CONSTANT):
        return Safety.PROVEN
    return Safety.OBSERVED if seen is not None and seen.lo >= SMALLEST_NORMAL else Safety.UNKNOWN


def _of_value(proof: RangeFact | None, seen: RangeFact | None) -> Safety:
    if seen is not None and seen.origin is Origin.CONSTANT:
        vanishes = 0 < seen.max_abs < SMALLEST_NORMAL  # an eps that does its work no more
        return Safety.UNSAFE if not _fits(seen) else Safety.UNKNOWN if vanishes else Safety.PROVEN
    if proof is not None and proof.max_abs * MARGIN <= MAX:
        return Safety.PROVEN
    if seen is None or seen.origin not in (Origin.OBSERVED, Origin.SYNTHETIC):
        return Safety.UNKNOWN
    return Safety.OBSERVED if _fits(seen) else Safety.UNSAFE


def _fits(fact: RangeFact) -> bool:
    """Infinities are FP16 numbers; what counts are finite numbers that are not."""
    if fact.max_abs == float("inf"):
        return fact.share_overflow == 0.0
    return fact.max_abs <= MAX


def _of_divisor(proof: RangeFact | None, seen: RangeFact | None) -> Safety:
    if seen is not None and seen.origin is Origin.CONSTANT:
        least = seen.min_abs_nonzero
        return Safety.PROVEN if least is None or least >= SMALLEST_NORMAL else Safety.UNKNOWN
    if proof is not None and max(proof.lo, -proof.hi) >= SMALLEST_NORMAL:
        return Safety.PROVEN
    if seen is not None and seen.origin is not Origin.PROVEN:
        least = seen.min_abs_nonzero
        return Safety.OBSERVED if least is not None and least >= SMALLEST_NORMAL else Safety.UNKNOWN
    return Safety.UNKNOWN


def _is_growing(graph: ModelGraph, op: Op) -> bool:
    exponent = graph.array(op.inputs[1])
    return exponent is not None and bool((exponent >= 0).all())  # type: ignore[operator]
