"""Which rules measured numbers may overrule: a rule is a prior about the average model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from fp16conv.graph import ModelGraph, Origin, RangeFact, TypeVar
from fp16conv.half import MAX, SMALLEST_SUBNORMAL
from fp16conv.rulebook.types import Authority, Judgement, Reason, Verdict, Verdicts

__all__ = ["HEADROOM", "RELAXED", "relax"]

RELAXED: Final = "measured-safe"
"""Rule id of the reason that a relaxed judgement gets."""

HEADROOM: Final = 8.0
"""How far below 65504 every observed value must stay: three binades for inputs nobody has shown us."""

_TRUSTED: Final = (Origin.OBSERVED, Origin.PROVEN)
_FIRM: Final = ("no-kernel", "no-fp16-kernel", "unknown-operator")
"""Rules about what the target can run, not about numbers."""


def relax(
    graph: ModelGraph, verdicts: Verdicts, facts: Mapping[int, RangeFact]
) -> tuple[Verdicts, frozenset[int]]:
    """Turn `deny` into `infer` where only a built-in prior says so and the observed values are far from harm.

    What a number of this model says (an overflow, an eps that vanishes), what the target cannot run, and
    what the user, a profile or a rules file says stays. Without the user's data nothing is relaxed.

    Args:
        graph: the model.
        verdicts: of the rule book.
        facts: ranges by value id.

    Returns:
        The verdicts, and the ids of the type variables that were relaxed.
    """
    judgements = list(verdicts.judgements)
    relaxed: set[int] = set()
    for variable, judgement in zip(graph.typevars, verdicts.judgements, strict=True):
        if judgement.verdict is not Verdict.DENY or not variable.admits_fp16 or not judgement.reasons:
            continue
        first = judgement.reasons[0]
        if first.authority is not Authority.BUILT_IN or first.rule in _FIRM:
            continue
        largest = _largest(graph, variable, facts)
        if largest is None or largest * HEADROOM > MAX:
            continue
        text = f"'{first.rule}' says FP32, but all values are below {largest:.3g} and its error was measured"
        reason = Reason(RELAXED, text, Authority.EVIDENCE, {"measured": largest, "limit": MAX})
        judgements[variable.id] = Judgement(Verdict.INFER, (reason, *judgement.reasons))
        relaxed.add(variable.id)
    return replace(verdicts, judgements=tuple(judgements)), frozenset(relaxed)


def _largest(graph: ModelGraph, variable: TypeVar, facts: Mapping[int, RangeFact]) -> float | None:
    """Largest magnitude of what enters and leaves; None where that is unknown or no FP16 number."""
    values = set(variable.defs)
    for use in variable.uses:
        if (value := graph.value_at(use)) is not None:
            values.add(value.id)
    largest = 0.0
    for index in values:
        fact = facts.get(index)
        if fact is None or fact.has_nan or not math.isfinite(fact.max_abs):
            return None
        if fact.origin is Origin.CONSTANT:
            smallest = fact.min_abs_nonzero
            if fact.max_abs > MAX or (smallest is not None and smallest < SMALLEST_SUBNORMAL):
                return None
        elif fact.origin in _TRUSTED:
            largest = max(largest, fact.max_abs)
        else:
            return None
    return largest
