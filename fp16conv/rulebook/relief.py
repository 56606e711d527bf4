"""When measured numbers overrule the prior about an idiom: nothing in it leaves FP16 or cancels.

A norm written out is FP32 by default because squares may overflow, eps may vanish and x - mean may
cancel. Where all its values were observed (or proven) and none of that happens, FP16 loses no more
than its roundings, and two casts are saved per norm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from fp16conv.graph import ModelGraph, Op, Origin, RangeFact
from fp16conv.half import MAX, SMALLEST_NORMAL
from fp16conv.rulebook.families import family, operands
from fp16conv.rulebook.match import Evidence
from fp16conv.rulebook.numbers import values_of
from fp16conv.rulebook.patterns import PatternRule
from fp16conv.rulebook.schema import Profile, Role
from fp16conv.rulebook.types import Authority, PatternHit, Verdict

__all__ = ["relieve"]

MAX_CANCELLATION: Final = 4.0
"""Largest rms(operand) / rms(difference): each factor of two costs a bit of the 11; two bits are spared."""

MIN_RMS: Final = 16 * SMALLEST_NORMAL
"""Root mean square from which the elements that matter are normal numbers: four binades above 2^-14."""

MAX_CONSTANT_ROUNDING: Final = 2.0**-8
"""Largest relative rounding of a constant: 1e-5 (0.14 %) passes, 1e-6 (1.3 %) and smaller do not."""

MIN_DIVISOR: Final = 2.0**-25 / MAX_CONSTANT_ROUNDING
"""Smallest magnitude of a divisor or radicand: below, half a subnormal step is more than that rounding."""

_DIVISORS: Final = {"Div": 1, "Reciprocal": 0, "Sqrt": 0, "Rsqrt": 0, "Pow": 0, "Log": 0}
"""Operators whose result depends on the relative error of small elements, and the slot these are read at."""

_TRUSTED: Final = (Origin.OBSERVED, Origin.PROVEN)


def relieve(
    graph: ModelGraph,
    hits: Sequence[PatternHit],
    rules: Mapping[str, PatternRule],
    evidence: Evidence,
    profile: Profile,
) -> tuple[tuple[PatternHit, ...], frozenset[int]]:
    """Replace the verdict of hits whose numbers are harmless by their rule's relaxed verdict.

    Args:
        graph: the model.
        hits: idioms found.
        rules: pattern rules by id; only those with a relaxed verdict can be relieved.
        evidence: ranges and constants.
        profile: gives the headroom.

    Returns:
        All hits in their order, and the type variables of the relieved ones.
    """
    result, relieved = [], set[int]()
    for hit in hits:
        relaxed = rules[hit.rule].relaxed if hit.rule in rules else None
        if (
            hit.verdict is Verdict.DENY
            and relaxed is not None
            and _is_harmless(graph, hit, evidence, profile)
        ):
            text = f"{hit.reason.text}: its observed values stay normal FP16 numbers and nothing cancels"
            reason = replace(hit.reason, text=text, authority=Authority.EVIDENCE)
            hit = replace(hit, verdict=relaxed, reason=reason)
            relieved.update(hit.typevars)
        result.append(hit)
    return tuple(result), frozenset(relieved)


def _is_harmless(graph: ModelGraph, hit: PatternHit, evidence: Evidence, profile: Profile) -> bool:
    typevars = [graph.typevars[tv] for tv in hit.typevars]
    for tv in typevars:
        for value in values_of(graph, tv, "any"):
            if not evidence.reader.is_known(value) and not _is_normal(evidence.facts.get(value), profile):
                return False
    for (value, use), role in evidence.roles.items():
        tv_of_use = graph.typevar_of_use(use)
        if tv_of_use is not None and tv_of_use.id in hit.typevars:
            if role not in (Role.NUMBER, Role.EPSILON):
                return False
            if evidence.reader.relative_rounding(value, 0.0) > MAX_CONSTANT_ROUNDING:
                return False
    ops = {tv.op for tv in typevars if tv.op is not None}
    return not any(
        _cancels(graph, graph.ops[op], evidence.facts) or _divides_by_tiny(graph.ops[op], evidence)
        for op in sorted(ops)
    )


def _is_normal(fact: RangeFact | None, profile: Profile) -> bool:
    if fact is None or fact.origin not in _TRUSTED or fact.has_nan:
        return False
    rms = fact.max_abs if fact.rms is None else fact.rms
    if fact.origin is Origin.PROVEN and fact.rms is None:  # an upper bound says nothing of small numbers
        rms = fact.min_abs_nonzero or 0.0
    grown = fact.max_abs * profile.headroom.get(str(fact.origin), 1.0)
    return min(grown, fact.proven_max_abs or grown) <= MAX and rms >= MIN_RMS


def _cancels(graph: ModelGraph, op: Op, facts: Mapping[int, RangeFact]) -> bool:
    """Whether a difference is so much smaller than its operands that their rounding shows."""
    if family(op) != "Sub" or op.outputs[0] is None:
        return False
    result = facts.get(op.outputs[0])
    operands = [facts.get(value) for value in op.inputs if value is not None]
    if result is None or result.rms is None or any(f is None or f.rms is None for f in operands):
        return True
    return max(f.rms for f in operands if f is not None and f.rms is not None) > MAX_CANCELLATION * result.rms


def _divides_by_tiny(op: Op, evidence: Evidence) -> bool:
    """Whether some row's divisor is so small that FP16 loses it, however large those of other rows are."""
    slot, inputs = _DIVISORS.get(family(op)), operands(op)
    value = inputs[slot] if slot is not None and slot < len(inputs) else None
    fact = None if value is None or evidence.reader.is_known(value) else evidence.facts.get(value)
    smallest = None if fact is None else fact.min_abs_nonzero
    return smallest is not None and smallest < MIN_DIVISOR
