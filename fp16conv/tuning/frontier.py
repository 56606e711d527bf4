"""Plans between the fastest and the most accurate one, from the sensitivities alone: nothing is run here."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from fp16conv.graph import DataType, ModelGraph
from fp16conv.planning.cut import Charge
from fp16conv.planning.plan import PrecisionPlan

__all__ = ["Candidate", "Planner", "expected_error", "fp16_of", "regions", "sweep"]

_SOLVES = 48  # cuts solved for one frontier


class Planner(Protocol):
    """Makes the cheapest plan for a price of error."""

    def __call__(self, *, charges: Sequence[Charge], lam: float, kept: Collection[int] = ()) -> PrecisionPlan:
        """Plan.

        Args:
            charges: squared errors of the roundings.
            lam: picoseconds per unit of squared error.
            kept: type variables that stay FP32.
        """


@dataclass(frozen=True)
class Candidate:
    """A plan and what is expected of it.

    Args:
        plan: the plan.
        squared: expected squared error, in units of the allowed one.
        cost: what the cut minimises beside the error, picoseconds.
        origin: how it was found.
    """

    plan: PrecisionPlan
    squared: float
    cost: float
    origin: str


def fp16_of(plan: PrecisionPlan) -> frozenset[int]:
    """Ids of the type variables in FP16."""
    return frozenset(d.typevar for d in plan.decisions if d.dtype is DataType.FLOAT16)


def expected_error(charges: Sequence[Charge], fp16: Collection[int]) -> float:
    """Sum of the squared errors of all roundings that FP16 type variables cause."""
    return math.fsum(charge.error for charge in charges if any(t in fp16 for t in charge.typevars))


def sweep(
    planner: Planner, charges: Sequence[Charge], cost: Callable[[frozenset[int]], float]
) -> list[Candidate]:
    """All plans that are cheapest for some price of error, fastest first.

    Between two of them the price at which both cost the same is tried: the cut either finds a better one or
    shows that there is none. This lists the vertices of the lower convex hull of (error, cost).

    Args:
        planner: makes the plans.
        charges: squared errors of the roundings.
        cost: picoseconds, by the type variables in FP16, as the planner's cut sees them.
    """

    def solve(lam: float) -> Candidate:
        plan = planner(charges=charges, lam=lam)
        fp16 = fp16_of(plan)
        return Candidate(plan, expected_error(charges, fp16), cost(fp16), "minimum cut")

    fastest, exact = solve(0.0), solve(_LARGE)
    found = [fastest]
    if fp16_of(exact.plan) != fp16_of(fastest.plan):
        found.append(exact)
    pending = [(fastest, exact)]
    solves = 2
    while pending and solves < _SOLVES:
        # The widest gap in error first: if the limit strikes, the frontier is evenly covered.
        pending.sort(key=lambda pair: _gap(*pair))
        fast, slow = pending.pop()
        if not (math.isfinite(fast.squared) and slow.squared < fast.squared and slow.cost > fast.cost):
            continue
        lam = (slow.cost - fast.cost) / (fast.squared - slow.squared)
        middle, solves = solve(lam), solves + 1
        if fp16_of(middle.plan) in (fp16_of(fast.plan), fp16_of(slow.plan)):
            continue
        found.append(middle)
        pending += [(fast, middle), (middle, slow)]
    unique = {fp16_of(c.plan): c for c in found}
    return sorted(unique.values(), key=lambda c: (c.cost, c.squared))


_LARGE = 1e15  # picoseconds per unit: 1000 s for the allowed error


def _gap(fast: Candidate, slow: Candidate) -> float:
    small = max(slow.squared, 1e-6)
    return math.log(max(fast.squared, small) / small) if math.isfinite(fast.squared) else math.inf


def regions(graph: ModelGraph, members: Collection[int]) -> list[frozenset[int]]:
    """Split type variables into sets that exchange no values with each other, by their lowest id."""
    parent = {t: t for t in members}

    def root(t: int) -> int:
        while parent[t] != t:
            parent[t] = parent[parent[t]]
            t = parent[t]
        return t

    for value in graph.values:
        source = graph.typevar_of_value(value.id)
        touching = [] if source is None else [source.id]
        touching += [
            r.id for use in graph.consumers(value.id) if (r := graph.typevar_of_use(use)) is not None
        ]
        touching = [t for t in touching if t in parent]
        for other in touching[1:]:
            low, high = sorted((root(touching[0]), root(other)))
            parent[high] = low
    found: dict[int, set[int]] = {}
    for t in sorted(parent):
        found.setdefault(root(t), set()).add(t)
    return [frozenset(found[key]) for key in sorted(found)]
