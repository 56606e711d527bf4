"""Which operators cause the error of a plan, and which to move into FP32.

The method measures instead of guessing. With the operators in execution order, let E(k) be the squared
error of the outputs when only the first k run in FP16. E(0) is 0 and E(n) is the error of the plan, so the
differences E(k) - E(k-1) add up to the whole: each operator's share. Bisection of the interval with the
largest difference finds the operators that matter in few runs: one overflow among 1000 operators takes 10.
An operator is blamed for rounding its result where that does harm, wherever the harm shows: for
x - mean(x) the blame falls on whatever rounded x, which is what has to change.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fp16conv import half
from fp16conv.graph import DataType, ModelGraph, Origin, RangeFact
from fp16conv.rulebook.folding import STATISTICS
from fp16conv.rulebook.rescaling import find_scales
from fp16conv.validation.probe import Measurement, ProbeBase

__all__ = ["Blame", "Repair", "attribute", "find_overflows", "repair_candidates", "repair_plan"]

BUDGET_RUNS: Final = 32
_RESOLUTION: Final = 0.01  # share of the error below which an interval is not looked into
_MARGIN: Final = 0.7  # repair down to this part of the allowed error: other batches may be a bit worse


@dataclass(frozen=True, slots=True)
class Blame:
    """The part of the error that one operator causes.

    Args:
        op: operator id, None for a graph input or output.
        label: operator name or stand-in, or `input:NAME` / `output:NAME`.
        op_type: `domain::type`, empty for the interface.
        typevars: its type variables that are FP16 in the plan.
        share: share of the squared error, 0 to 1; shares add up to 1.
        resolved: False where the runs did not suffice to tell this operator from its neighbours in
            execution order: the share of the group is then spread evenly.
    """

    op: int | None
    label: str
    op_type: str
    typevars: tuple[int, ...]
    share: float
    resolved: bool


@dataclass(frozen=True, slots=True)
class Repair:
    """What to move into FP32 so that the outputs are within tolerance.

    Args:
        typevars: type variables to pin to FP32.
        blames: the operators that caused the error, worst first.
        before: measurement of the plan as it was.
        after: measurement with the type variables in FP32 (on the same batches).
        runs: assignments run.
    """

    typevars: tuple[int, ...]
    blames: tuple[Blame, ...]
    before: Measurement
    after: Measurement
    runs: int


def attribute(
    probe: ProbeBase, dtypes: Sequence[DataType], *, budget_runs: int = BUDGET_RUNS
) -> tuple[Blame, ...]:
    """Tell which operators cause the error of a plan, worst first.

    Args:
        probe: measures; its tolerance weighs the outputs by what they are allowed.
        dtypes: FLOAT or FLOAT16 per type variable id.
        budget_runs: how many assignments may be run beside the plan itself.

    Returns:
        Blames with a share above zero; empty where there is no error.
    """
    return _bisect(probe, dtypes, probe.measure(dtypes), budget_runs)


def repair_candidates(blames: Sequence[Blame], error: float, *, target: float = _MARGIN) -> tuple[int, ...]:
    """Choose the fewest operators whose removal should bring the error down to the target.

    Args:
        blames: worst first, from `attribute`.
        error: error of the plan over the allowed error.
        target: error to reach.

    Returns:
        Ids of type variables to pin to FP32, ascending.

    Example:
        >>> blames = [Blame(0, "a", "Mul", (3,), 0.98, True), Blame(1, "b", "Add", (5,), 0.02, True)]
        >>> repair_candidates(blames, 4.0)
        (3,)
    """
    allowed = (target / error) ** 2 if error > 0 else 1.0
    chosen: list[int] = []
    rest = sum(b.share for b in blames)
    for blame in sorted(blames, key=lambda b: -b.share):
        if chosen and rest <= allowed:
            break
        chosen += blame.typevars
        rest -= blame.share
    return tuple(sorted(chosen))


def repair_plan(
    probe: ProbeBase,
    dtypes: Sequence[DataType],
    *,
    facts: Mapping[int, RangeFact] | None = None,
    rounds: int = 6,
    budget_runs: int = 64,
) -> Repair:
    """Find what to move into FP32, and check by measuring that it helps.

    Args:
        probe: measures.
        dtypes: FLOAT or FLOAT16 per type variable id.
        facts: ranges of values in FP32; observed on the probe's batches where something overflows and
            none but those of constants are given.
        rounds: how often to attribute, move and measure again.
        budget_runs: how many assignments may be run in all.

    Returns:
        The type variables to pin. `after.ok` tells whether that suffices; planning again afterwards
        can only move more of them to FP32 or pay casts, so the plan has to be measured once more.
    """
    current = list(dtypes)
    pinned: list[int] = []
    blames: dict[tuple[int | None, str], Blame] = {}
    before = after = probe.measure(current)

    def move(found: Sequence[Blame], chosen: Collection[int], measured: Measurement) -> None:
        # A later round explains only what earlier ones left: weigh it by that.
        weight = min((measured.error / before.error) ** 2, 1.0) if before.error else 0.0
        for blame in found:
            if set(blame.typevars) & set(chosen):
                share = blame.share * weight
                blames[blame.op, blame.label] = Blame(
                    blame.op, blame.label, blame.op_type, blame.typevars, share, blame.resolved
                )
        for typevar in chosen:
            current[typevar] = DataType.FLOAT
        pinned.extend(chosen)

    if not after.is_finite:
        known = dict(facts or {})
        if all(fact.origin is Origin.CONSTANT for fact in known.values()):
            # One FP32 run tells all overflows at once; bisection would take a round for each.
            known |= probe.observe()
        found = find_overflows(probe.graph, current, known, **probe.rewritten)
        if found:
            move(found, [t for b in found for t in b.typevars], after)
            after = probe.measure(current)
    for _ in range(rounds):
        left = budget_runs - probe.runs
        if after.ok or left < 2 or not _units(probe.graph, current):
            break
        found = _bisect(probe, current, after, max(left // 2, 2))
        chosen = repair_candidates(found, after.error)
        if not chosen:
            break
        move(found, chosen, after)
        after = probe.measure(current)
    ranked = sorted(blames.values(), key=lambda b: (-b.share, b.typevars))
    return Repair(tuple(sorted(pinned)), tuple(ranked), before, after, probe.runs)


def find_overflows(
    graph: ModelGraph,
    dtypes: Sequence[DataType],
    facts: Mapping[int, RangeFact],
    saturated: Collection[int] = (),
    folded: Collection[int] = (),
    rescaled: Mapping[int, int] | None = None,
) -> tuple[Blame, ...]:
    """The operators in FP16 that make or read a finite number FP16 cannot hold, in execution order.

    Args:
        graph: the model.
        dtypes: FLOAT or FLOAT16 per type variable id.
        facts: ranges of values in FP32, constants too.
        saturated: constants that become +-65504 instead of infinite.
        folded: BatchNormalizations that become a Mul and an Add.
        rescaled: exponents k by id of the products that are computed times 2^-k.

    Returns:
        Blames with equal shares.
    """
    beyond = {
        value
        for value, fact in facts.items()
        if fact.share_overflow > 0 or half.OVERFLOW <= fact.max_abs < math.inf
    }
    beyond -= {
        value
        for value, exponent in find_scales(graph, rescaled or {}, dtypes).values.items()
        if value in facts and facts[value].max_abs < math.ldexp(half.OVERFLOW, exponent)
    }
    guilty = []
    for unit in _units(graph, dtypes):
        values: set[int] = set()
        for index in unit.typevars:
            values.update(graph.typevars[index].defs)
            for use in graph.typevars[index].uses:
                if use.op in folded and use.slot in STATISTICS:
                    continue
                value = graph.value_at(use)
                if value is not None and value.id not in saturated:
                    values.add(value.id)
        if values & beyond:
            guilty.append(unit)
    return tuple(_blame(graph, unit, 1.0 / len(guilty), True) for unit in guilty)


@dataclass(frozen=True, slots=True)
class _Unit:
    """What is switched together: the FP16 type variables of one operator, or one of the interface."""

    op: int | None
    typevars: tuple[int, ...]


def _units(graph: ModelGraph, dtypes: Sequence[DataType]) -> list[_Unit]:
    """In execution order: values that enter a scope first, results of scopes last."""
    first: list[_Unit] = []
    last: list[_Unit] = []
    of_op: dict[int, list[int]] = {}
    for typevar in graph.typevars:
        if dtypes[typevar.id] is not DataType.FLOAT16:
            continue
        if typevar.op is not None:
            of_op.setdefault(typevar.op, []).append(typevar.id)
        else:
            (first if typevar.defs else last).append(_Unit(None, (typevar.id,)))
    return first + [_Unit(op, tuple(ids)) for op, ids in sorted(of_op.items())] + last


def _blame(graph: ModelGraph, unit: _Unit, share: float, resolved: bool) -> Blame:
    if unit.op is None:
        return Blame(None, graph.typevars[unit.typevars[0]].symbol, "", unit.typevars, share, resolved)
    op = graph.ops[unit.op]
    return Blame(op.id, op.label, op.key, unit.typevars, share, resolved)


def _bisect(
    probe: ProbeBase, dtypes: Sequence[DataType], whole: Measurement, budget_runs: int
) -> tuple[Blame, ...]:
    graph = probe.graph
    units = _units(graph, dtypes)
    total = whole.error**2
    if not units or total <= 0:
        return ()
    squared = {0: 0.0, len(units): total}

    def measure(count: int) -> float:
        if count not in squared:
            chosen = [DataType.FLOAT] * len(graph.typevars)
            for typevar in (t for unit in units[:count] for t in unit.typevars):
                chosen[typevar] = DataType.FLOAT16
            squared[count] = probe.measure(chosen).error ** 2
        return squared[count]

    intervals = [(-total, 0, len(units))]
    finished: list[tuple[float, int, int]] = []
    limit = probe.runs + budget_runs
    while intervals:
        gain, start, stop = heapq.heappop(intervals)
        if stop - start == 1 or probe.runs >= limit or -gain <= _RESOLUTION * total:
            finished.append((-gain, start, stop))
            continue
        middle = (start + stop) // 2
        at = measure(middle)
        for left, right, begin, end in (
            (start, middle, squared[start], at),
            (middle, stop, at, squared[stop]),
        ):
            # Errors of operators can cancel: what lowers the error is not to blame.
            heapq.heappush(intervals, (-max(end - begin, 0.0), left, right))
    positive = sum(gain for gain, _, _ in finished)
    blames = []
    for gain, start, stop in finished:
        for unit in units[start:stop] if gain > 0 else ():
            share = gain / positive / (stop - start)
            blames.append(_blame(graph, unit, share, stop - start == 1))
    return tuple(sorted(blames, key=lambda b: (-b.share, b.typevars)))
