"""The search for the fastest plan that meets a tolerance.

1. Measure the default plan and the fastest one that evidence admits.
2. Measure how much error each rounding adds (`evidence.sensitivity`).
3. Price that error in the minimum cut: one plan per price, from fastest to exact, each inside the one before.
4. Bisect the plans on their measured error over all batches.
5. Between the last plan that meets the tolerance and the next faster one, move single regions back to FP16
   while the measured error allows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fp16conv.evidence.sensitivity import Sensitivity, estimate, find_sites
from fp16conv.execution.switches import Slot
from fp16conv.graph import DataType, ModelGraph, RangeFact
from fp16conv.half import OVERFLOW
from fp16conv.planning.casts import assignment_cost
from fp16conv.planning.costs import CostModel
from fp16conv.planning.cut import Charge, cast_allowance
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.rulebook.types import Verdict, Verdicts
from fp16conv.tuning.frontier import Candidate, Planner, expected_error, fp16_of, regions, sweep
from fp16conv.tuning.meter import DESTROYED, Meter, Reading

__all__ = ["MARGIN", "Point", "Search", "TuneResult", "max_runs"]

MARGIN: Final = 0.9
"""Part of the allowed error that a tuned plan may use: other data may be a bit worse."""

_CUTS: Final = 16  # places where a run of neighbours in execution order may begin and end
_SHOWN: Final = 8  # plans of the frontier that a report should show
_OPTIMISM: Final = (1.0, 1.5, 2.5, 4.0)  # expected error of a move, over the room there is
_FILLS: Final = 8  # regions moved back to FP16 and measured, at most


def max_runs(operators: int) -> int:
    """Emulated runs that a search may take.

    Example:
        >>> max_runs(256), max_runs(1)
        (52, 20)
    """
    return 4 * math.ceil(math.log2(max(operators, 1))) + 20


@dataclass(frozen=True)
class Point:
    """A measured plan.

    Args:
        plan: the plan.
        reading: its error over all batches.
        time: predicted time, microseconds.
        cost: the same, plus what keeps compute-bound operators in FP16: the casts around those in FP32.
            A model is not left in FP32 because it is too small for FP16 to pay on this device.
        origin: how it was found: `default`, `minimum cut`, `region in FP16`.
    """

    plan: PrecisionPlan
    reading: Reading
    time: float
    cost: float
    origin: str


@dataclass(frozen=True)
class TuneResult:
    """What a search found.

    Args:
        default: the plan of the rules alone.
        best: the fastest plan within tolerance, None where no plan is.
        alternatives: further plans within tolerance, in order of preference.
        points: every measured plan, fastest first.
        sensitivity: error per rounding.
        runs: emulated runs.
        reused: how many of them were read from the journal.
        max_runs: emulated runs allowed.
        out_of_time: whether the time ran out.
    """

    default: PrecisionPlan
    best: Point | None
    alternatives: tuple[Point, ...]
    points: tuple[Point, ...]
    sensitivity: Sensitivity | None
    runs: int
    reused: int
    max_runs: int
    out_of_time: bool


class Search:
    """One search.

    Args:
        graph: the model.
        verdicts: relaxed ones; `deny` and `never` stay FP32.
        costs: prices.
        facts: ranges by value id, to measure what leaves FP16's range apart.
        slots: switches of the emulated model.
        default: the plan of the rules alone, always a candidate.
        planner: makes plans from the relaxed verdicts.
        meter: measures.
    """

    def __init__(
        self,
        graph: ModelGraph,
        verdicts: Verdicts,
        costs: CostModel,
        facts: Mapping[int, RangeFact],
        slots: Sequence[Slot],
        default: PrecisionPlan,
        planner: Planner,
        meter: Meter,
    ) -> None:
        self._graph, self._verdicts, self._costs, self._facts = graph, verdicts, costs, facts
        self._slots, self._default, self._planner, self._meter = slots, default, planner, meter
        self._points: dict[frozenset[int], Point] = {}
        self._allowances = {
            variable.id: cast_allowance(graph, costs, variable)
            for variable, judgement in zip(graph.typevars, verdicts.judgements, strict=True)
            if judgement.verdict is Verdict.ALLOW
        }

    def run(self) -> TuneResult:
        """Search within the meter's budget."""
        meter = self._meter
        meter.step = "measuring the default plan"
        self._try(self._default, "default")
        meter.step = "measuring sensitivities"
        sensitivity = self._sense()
        charges = [
            Charge(site.typevars, squared)
            for site, squared in zip(sensitivity.sites, sensitivity.squared, strict=True)
            if squared > 0
        ]
        meter.step = "bisecting plans"
        candidates = sweep(self._planner, charges, self._cost)
        self._bisect(candidates)
        meter.step = "moving regions back to FP16"
        self._fill(charges)
        meter.step = "measuring more of the frontier"
        self._spread(candidates)
        return self._result(sensitivity)

    def _try(self, plan: PrecisionPlan, origin: str) -> Point | None:
        """Measure a plan; None where the budget is used up."""
        key = fp16_of(plan)
        if key in self._points:
            return self._points[key]
        dtypes = [DataType.FLOAT] * len(self._graph.typevars)
        for variable in key:
            dtypes[variable] = DataType.FLOAT16
        reading = self._meter.measure_plan(dtypes)
        if reading is None:
            return None
        time = plan.predicted["time_plan_us"]
        allowance = sum(price for variable, price in self._allowances.items() if variable not in key)
        point = Point(plan, reading, time, time + allowance / 1e6, origin)
        self._points[key] = point
        return point

    def _sense(self) -> Sensitivity:
        free = [
            j.verdict not in (Verdict.DENY, Verdict.NEVER) and v.admits_fp16
            for j, v in zip(self._verdicts.judgements, self._graph.typevars, strict=True)
        ]
        sites = find_sites(self._graph, self._slots, free)
        suspects = [any(self._overflows(self._slots[n].value) for n in site.slots) for site in sites]

        def measure(members: tuple[int, ...]) -> float | None:
            reading = self._meter.measure_sites([sites[m] for m in members])
            return None if reading is None else reading.error**2

        operators = sum(bool(op.typevars) for op in self._graph.ops)
        budget = min(2 * math.ceil(math.log2(max(operators, 1))) + 10, max(self._meter.left - 4, 0))
        return estimate(sites, measure, budget_runs=budget, ceiling=DESTROYED, suspects=suspects)

    def _overflows(self, value: int) -> bool:
        fact = self._facts.get(value)
        return fact is not None and OVERFLOW <= fact.max_abs < math.inf

    def _bisect(self, candidates: list[Candidate]) -> None:
        """Find the fastest of the nested plans that meets the target."""
        low, high = 0, len(candidates) - 1  # the answer lies in low .. high
        scale, guesses = 1.0, 3
        while low < high:
            middle = (low + high) // 2
            if guesses:  # expected errors, corrected by the measured ones, save some halvings
                limit = MARGIN**2 / scale
                guess = next((i for i in range(low, high) if candidates[i].squared <= limit), high)
                middle, guesses = min(guess, high - 1), guesses - 1
            point = self._try(candidates[middle].plan, candidates[middle].origin)
            if point is None:
                return
            if candidates[middle].squared > 0 and math.isfinite(point.reading.worst):
                scale = point.reading.worst**2 / candidates[middle].squared
            if self._meets(point):
                high = middle
            else:
                low = middle + 1
        self._try(candidates[low].plan, candidates[low].origin)

    @staticmethod
    def _meets(point: Point) -> bool:
        return point.reading.ok and point.reading.worst <= MARGIN

    def _fill(self, charges: Sequence[Charge]) -> None:
        """Move regions back to FP16 that the nested plans give up together but the tolerance does not.

        Where errors cancel, a set errs less than its parts promise: if nothing is left that should fit,
        what seems to be somewhat too much is tried too.
        """
        optimism = list(_OPTIMISM)
        for _ in range(_FILLS):
            met = [p for p in self._points.values() if self._meets(p)]
            missed = [p for p in self._points.values() if not self._meets(p)]
            if not met or not self._meter.left:
                return
            base = min(met, key=lambda p: (p.cost, p.reading.worst))
            inside = fp16_of(base.plan)
            wider = [p for p in missed if fp16_of(p.plan) > inside and p.cost < base.cost]
            if not wider:
                return
            outer = min(wider, key=lambda p: (p.reading.worst, p.cost))
            point = None
            while optimism and point is None:
                grown = self._grow(charges, base, outer, optimism[0])
                if grown is None:
                    optimism.pop(0)
                    continue
                kept = [t for t in range(len(self._graph.typevars)) if t not in grown]
                plan = self._planner(charges=(), lam=0.0, kept=kept)
                if fp16_of(plan) in self._points:
                    optimism.pop(0)
                    continue
                point = self._try(plan, "region in FP16")
                if point is None:
                    return
                if not self._meets(point):
                    optimism.pop(0)
            if not optimism:
                return

    def _grow(
        self, charges: Sequence[Charge], base: Point, outer: Point, optimism: float
    ) -> frozenset[int] | None:
        """The set of FP16 type variables between two plans that saves most within the target."""
        inside, outside = fp16_of(base.plan), fp16_of(outer.plan)
        low, high = expected_error(charges, inside), expected_error(charges, outside)
        measured_low, measured_high = base.reading.worst**2, outer.reading.worst**2
        if not (math.isfinite(high) and high > low):
            return None
        slope = max(measured_high - measured_low, 1e-12) / (high - low)
        room = optimism * (MARGIN**2 - measured_low) / slope
        between = outside - inside
        moves = {*regions(self._graph, between), *_runs(sorted(between))}
        current, error, cost = inside, low, self._cost(inside)
        while True:
            best: tuple[float, frozenset[int], float, int] | None = None
            for move in sorted(moves, key=lambda m: (-len(m), min(m))):
                wider = current | move
                if wider in (current, outside) or wider in self._points:
                    continue
                now, spent = self._cost(wider), expected_error(charges, wider)
                saved = cost - now
                if saved <= 0 or spent - low > room:
                    continue
                value = saved / max(spent - error, 1e-9)
                if best is None or value > best[0]:
                    best = (value, wider, spent, now)
            if best is None:
                return None if current == inside else current
            _, current, error, cost = best

    def _spread(self, candidates: Sequence[Candidate]) -> None:
        """Measure plans spread evenly over the frontier, for the report."""
        steps = max(len(candidates) - 1, 1)
        wanted = sorted({round(i * steps / (_SHOWN - 1)) for i in range(_SHOWN)})
        for index in wanted:
            if index < len(candidates) and fp16_of(candidates[index].plan):
                self._try(candidates[index].plan, candidates[index].origin)

    def _cost(self, fp16: frozenset[int]) -> int:
        dtypes = {v.id: DataType.FLOAT16 if v.id in fp16 else DataType.FLOAT for v in self._graph.typevars}
        allowance = sum(price for variable, price in self._allowances.items() if variable not in fp16)
        return assignment_cost(self._graph, self._costs, dtypes) + allowance

    def _result(self, sensitivity: Sensitivity) -> TuneResult:
        def speed(point: Point) -> tuple[float, float]:
            return point.cost, point.reading.worst

        points = sorted(self._points.values(), key=lambda p: (p.time, p.reading.worst))
        within = [p for p in points if p.reading.ok and p.reading.worst <= 1.0]
        safe = [p for p in within if self._meets(p) or p.origin == "default"]
        tight = [p for p in within if p not in safe]
        ranked = [*sorted(safe, key=speed), *sorted(tight, key=lambda p: p.reading.worst)]
        meter = self._meter
        return TuneResult(
            default=self._default,
            best=ranked[0] if ranked else None,
            alternatives=tuple(ranked[1:]),
            points=tuple(points),
            sensitivity=sensitivity,
            runs=meter.runs,
            reused=meter.reused,
            max_runs=meter.max_runs,
            out_of_time=meter.out_of_time,
        )


def _runs(ordered: Sequence[int]) -> set[frozenset[int]]:
    """Sets of type variables that follow each other in execution order, of all lengths."""
    step = math.ceil(len(ordered) / _CUTS) or 1
    ends = [*range(0, len(ordered), step), len(ordered)]
    return {frozenset(ordered[a:b]) for i, a in enumerate(ends) for b in ends[i + 1 :]}
