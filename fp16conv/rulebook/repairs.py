"""Repairs: other ways to write an operator or a constant that keep FP16 where the numbers do not fit it.

None changes what the model computes beyond rounding. Each is asked for by name; saturation belongs to every
profile but `half`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fp16conv.graph import ModelGraph, RangeFact, TypeVar
from fp16conv.half import MAX
from fp16conv.rulebook.folding import fits_fp16, fold_batch_norm
from fp16conv.rulebook.repair_names import FOLD, RESCALE
from fp16conv.rulebook.rescaling import EXPONENT, MAX_EXPONENT, Region, find_region, fits_rescaled
from fp16conv.rulebook.schema import Rule
from fp16conv.rulebook.types import Authority, Group, Reason, Verdict

__all__ = ["OVERFLOW_RULE", "Findings", "Rescaling", "find_folds", "find_rescaling"]

Findings = Iterable[tuple[Rule, Reason]]

OVERFLOW_RULE: Final = "observed-overflow"
"""What rescaling lifts."""


@dataclass(frozen=True, slots=True)
class Rescaling:
    """Products to be computed at another scale.

    Args:
        reasons: by id of the product.
        members: the same reasons by id of every operator of its region.
        ties: the type variables of each region, which must be equal.
    """

    reasons: Mapping[int, Reason]
    members: Mapping[int, Reason]
    ties: tuple[Group, ...]


def find_folds(
    graph: ModelGraph, facts: Mapping[int, RangeFact], find: Callable[[TypeVar], Findings]
) -> tuple[dict[int, Reason], tuple[Group, ...]]:
    """The BatchNormalizations that only their statistics keep in FP32, and whose factor and shift fit FP16.

    Args:
        graph: the model.
        facts: ranges by value id; that of the input decides whether the product stays in range.
        find: what rules about numbers say of a type variable.

    Returns:
        Reason by operator id, and the type variables of each such operator that must be equal.
    """
    reasons: dict[int, Reason] = {}
    groups: list[Group] = []
    for op in graph.ops:
        folded = fold_batch_norm(graph, op)
        if folded is None:
            continue
        variables = graph.typevars_of(op.id)
        denied = [reason for variable in variables for reason in _denials(find(variable))]
        source = op.inputs[0] if op.inputs else None
        if not denied or source is None or not fits_fp16(folded, facts.get(source)):
            continue
        largest, shift = float(abs(folded.factor).max()), float(abs(folded.shift).max())
        text = (
            f"{denied[0].text}; its factor of at most {largest:.3g} and shift of at most {shift:.3g} fit: "
            "written as Mul and Add"
        )
        reasons[op.id] = Reason(FOLD, text, Authority.EVIDENCE, {"factor": largest, "shift": shift})
        groups += _tie(variables, reasons[op.id])
    return reasons, tuple(groups)


def find_rescaling(
    graph: ModelGraph,
    facts: Mapping[int, RangeFact],
    headroom: Mapping[str, float],
    find: Callable[[TypeVar], Findings],
    barred: Collection[int],
) -> Rescaling:
    """The products that only the size of their results keeps in FP32.

    Args:
        graph: the model.
        facts: ranges by value id.
        headroom: factor on magnitudes by origin of the range.
        find: what rules about numbers say of a type variable.
        barred: type variables that something else than numbers keeps in FP32; a region ends before them.
    """

    def is_free(op: int) -> bool:
        variables = graph.typevars_of(op)
        denials = [rule.id for v in variables for rule, _ in find(v) if rule.verdict is Verdict.DENY]
        return all(rule == OVERFLOW_RULE for rule in denials) and not any(v.id in barred for v in variables)

    reasons: dict[int, Reason] = {}
    members: dict[int, Reason] = {}
    ties: list[Group] = []
    for op in graph.ops:
        region = find_region(graph, op)
        if region is None:
            continue
        region = region.first(len(tuple(itertools.takewhile(is_free, region.ops))))
        variables = [v for member in region.ops for v in graph.typevars_of(member)]
        denials = [r for v in variables for rule, r in find(v) if rule.verdict is Verdict.DENY]
        if not denials:
            continue
        sizes = [_reach(facts.get(value), headroom) for value in (region.source, *region.values)]
        exponent = _exponent(graph, region, sizes)
        if exponent is None:
            continue
        text = (
            f"{denials[0].text}; computed times 2^-{exponent}, it is at most {max(sizes) / 2**exponent:.4g}: "
            f"weights are stored so, and FP32 gets the result times 2^{exponent}"
        )
        reason = Reason(
            RESCALE, text, Authority.EVIDENCE, {EXPONENT: float(exponent), "measured": max(sizes)}
        )
        reasons[op.id] = reason
        members.update(dict.fromkeys(region.ops, reason))
        ties += _tie(variables, reason)
    return Rescaling(reasons, members, tuple(ties))


def _reach(fact: RangeFact | None, headroom: Mapping[str, float]) -> float:
    """Largest magnitude to be ready for; infinite where it is not known."""
    if fact is None or fact.has_nan:
        return math.inf
    grown = fact.max_abs * headroom.get(str(fact.origin), 1.0)
    return grown if fact.proven_max_abs is None else min(grown, fact.proven_max_abs)


def _exponent(graph: ModelGraph, region: Region, sizes: Sequence[float]) -> int | None:
    """The smallest k with which everything fits; None where no k does.

    Args:
        graph: the model.
        region: the product and what follows.
        sizes: largest magnitude of what the product reads, then of each value of the region.
    """
    largest = max(sizes[1:])
    if sizes[0] > MAX or not math.isfinite(largest) or largest <= MAX:
        return None
    exponent = math.ceil(math.log2(largest / MAX))
    if exponent > MAX_EXPONENT:
        return None
    for use in (use for constants in region.constants for use in constants):
        value = graph.value_at(use)
        array = None if value is None else graph.array(value.id)
        if array is None or not fits_rescaled(array, exponent):
            return None
    return exponent


def _denials(findings: Findings) -> list[Reason]:
    """The reasons of rules that forbid FP16 because of a constant's numbers."""
    return [
        reason
        for rule, reason in findings
        if rule.verdict is Verdict.DENY and rule.match.constant is not None
    ]


def _tie(variables: Iterable[TypeVar], reason: Reason) -> list[Group]:
    ids = tuple(v.id for v in variables)
    return [Group(ids, reason)] if len(ids) > 1 else []
