"""Sensitivity: how much error each rounding of a model adds, measured in few runs.

A *site* is a place where numbers are rounded: a value that an operator makes, or a constant that it reads.
Independent roundings add up in the square, so the squared error of a set of sites is the sum over them.
`estimate` measures sets in isolation, everything else exact, and halves the set that adds most, again and
again: what adds nothing is dismissed in one run together with its neighbours, and what adds much is found
in log2(n) runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fp16conv import half
from fp16conv.execution.switches import Slot
from fp16conv.execution.traits import is_exact_operator
from fp16conv.graph import ModelGraph, TypeVar

__all__ = ["Sensitivity", "Site", "estimate", "find_sites"]

_RESOLUTION: Final = 1 / 256
"""Share of the squared error below which a set is not halved."""


@dataclass(frozen=True, slots=True)
class Site:
    """A rounding whose error is measured.

    Args:
        op: operator that makes the value or reads the constants; None for a graph input.
        slots: indices of the switches that turn it on alone.
        typevars: type variables any of which, in FP16, makes it happen.
        is_constant: whether constants are rounded, not a value.
    """

    op: int | None
    slots: tuple[int, ...]
    typevars: tuple[int, ...]
    is_constant: bool


@dataclass(frozen=True)
class Sensitivity:
    """Squared error per site, in the unit of `measure` (1 is the allowed error).

    Args:
        sites: in execution order.
        squared: squared error that each adds; infinite where it makes NaN or infinities.
        resolved: False where a site was only measured together with its neighbours, whose error is then
            spread evenly.
        runs: measurements made.
    """

    sites: tuple[Site, ...]
    squared: tuple[float, ...]
    resolved: tuple[bool, ...]
    runs: int


def find_sites(graph: ModelGraph, slots: Sequence[Slot], free: Sequence[bool]) -> tuple[Site, ...]:
    """List the roundings that some plan can switch on, in execution order.

    Rounding what an operator only moves is rounding what it moved: such values are no sites of their own,
    and their readers make the rounding happen where the numbers were made.

    Args:
        graph: the model.
        slots: the switches of its emulated model.
        free: per type variable id, whether it may be FP16 at all.
    """
    of_value: dict[int, list[int]] = {}
    for number, slot in enumerate(slots):
        of_value.setdefault(slot.value, []).append(number)
    found: list[tuple[int, int, Site]] = []
    constants: dict[int, tuple[list[int], set[int]]] = {}
    reach = _Reach(graph)
    for value in graph.values:
        numbers = of_value.get(value.id)
        if not numbers:
            continue
        if value.is_constant:
            if _is_exact_constant(graph, value.id):
                continue
            for number in numbers:
                reader = slots[number].reader
                if reader is not None and (op := graph.typevars[reader].op) is not None:
                    entry = constants.setdefault(op, ([], set()))
                    entry[0].append(number)
                    entry[1].update(reach.of_reader(graph.typevars[reader]))
            continue
        source = graph.typevar_of_value(value.id)
        if source is not None and not graph.is_main_input(value.id) and _is_exact(graph, source):
            continue
        touching = reach.of_value(value.id)
        if any(free[t] for t in touching):
            order = -1 if value.producer is None else 2 * value.producer + 1
            site = Site(value.producer, tuple(numbers), tuple(sorted(touching)), False)
            found.append((order, value.id, site))
    for op, (numbers, touching) in constants.items():
        if any(free[t] for t in touching):
            found.append((2 * op, 0, Site(op, tuple(numbers), tuple(sorted(touching)), True)))
    return tuple(site for _, _, site in sorted(found, key=lambda item: item[:2]))


def estimate(
    sites: Sequence[Site],
    measure: Callable[[tuple[int, ...]], float | None],
    *,
    budget_runs: int,
    ceiling: float,
    suspects: Sequence[bool] = (),
) -> Sensitivity:
    """Measure the error that each site adds.

    Args:
        sites: in execution order.
        measure: squared error with just these sites (indices) rounded; None to stop here.
        budget_runs: how often `measure` may be called.
        ceiling: squared error from which a result counts as destroyed (NaN, infinities).
        suspects: sites whose numbers leave FP16's range: they are measured apart.

    Returns:
        Squared errors; a set that was not taken apart spreads its error evenly.

    Example:
        >>> sites = [Site(i, (i,), (i,), False) for i in range(8)]
        >>> found = estimate(sites, lambda s: sum(4.0 for i in s if i == 5), budget_runs=20, ceiling=1e9)
        >>> found.squared[5], sum(found.squared), found.runs
        (4.0, 4.0, 5)
    """
    search = _Halving(measure, budget_runs, ceiling)
    marked = list(suspects) or [False] * len(sites)
    for kind in (False, True):
        search.start([i for i, suspect in enumerate(marked) if suspect is kind])
    search.run()
    squared, resolved = [0.0] * len(sites), [True] * len(sites)
    for error, members in search.sets():
        for member in members:
            squared[member] = error / len(members) if error < ceiling else float("inf")
            resolved[member] = len(members) == 1 or error == 0.0
    return Sensitivity(tuple(sites), tuple(squared), tuple(resolved), search.runs)


class _Halving:
    """Sets of sites by the error they add; the one that adds most is halved."""

    def __init__(
        self, measure: Callable[[tuple[int, ...]], float | None], budget: int, ceiling: float
    ) -> None:
        self._measure, self._budget, self._ceiling = measure, budget, ceiling
        self._heap: list[tuple[float, tuple[int, ...]]] = []
        self._done: list[tuple[float, tuple[int, ...]]] = []
        self.runs = 0

    def start(self, members: Sequence[int]) -> None:
        if members:
            error = self._call(tuple(members))
            # Nothing is known of what was not measured: an error of zero leaves it to the honest check.
            heapq.heappush(self._heap, (-(error or 0.0), tuple(members)))

    def run(self) -> None:
        while self._heap and self.runs < self._budget:
            negative, members = heapq.heappop(self._heap)
            whole = -negative
            finite = sum(-e for e, _ in self._heap if -e < self._ceiling) + sum(
                e for e, _ in self._done if e < self._ceiling
            )
            if whole < self._ceiling:
                finite += whole
            if len(members) == 1 or whole <= _RESOLUTION * finite:
                self._done.append((whole, members))
                continue
            middle = len(members) // 2
            left = self._call(members[:middle])
            if left is None:
                self._done.append((whole, members))
                return
            right = self._rest(whole, left, members[middle:])
            heapq.heappush(self._heap, (-left, members[:middle]))
            heapq.heappush(self._heap, (-right, members[middle:]))

    def _rest(self, whole: float, left: float, members: tuple[int, ...]) -> float:
        """The other half: what is left of the whole, measured where that is too uncertain."""
        is_destroyed = whole >= self._ceiling
        if is_destroyed and left < self._ceiling:
            return whole
        if not is_destroyed and left <= 0.5 * whole:
            return whole - left
        if self.runs >= self._budget:
            return whole if is_destroyed else max(whole - left, 0.0)
        right = self._call(members)
        if right is None:
            return whole if is_destroyed else max(whole - left, 0.0)
        return right

    def _call(self, members: tuple[int, ...]) -> float | None:
        if self.runs >= self._budget:
            return None
        error = self._measure(members)
        self.runs += error is not None
        return error

    def sets(self) -> list[tuple[float, tuple[int, ...]]]:
        return [*self._done, *((-negative, members) for negative, members in self._heap)]


class _Reach:
    """Which type variables make the rounding of a value happen."""

    def __init__(self, graph: ModelGraph) -> None:
        self._graph = graph

    def of_value(self, value: int) -> set[int]:
        """Those of the value and, through operators that only move it, of what it becomes."""
        graph, found, seen, stack = self._graph, set[int](), {value}, [value]
        while stack:
            current = stack.pop()
            source = graph.typevar_of_value(current)
            if source is not None:
                found.add(source.id)
            for use in graph.consumers(current):
                reader = graph.typevar_of_use(use)
                if reader is None:
                    continue
                found.add(reader.id)
                for moved in reader.defs if _is_exact(graph, reader) else ():
                    if moved not in seen:
                        seen.add(moved)
                        stack.append(moved)
        return found

    def of_reader(self, reader: TypeVar) -> set[int]:
        """The reader of a constant, and what reads the constant behind an operator that only moves it."""
        found = {reader.id}
        if _is_exact(self._graph, reader):
            for moved in reader.defs:
                found |= self.of_value(moved)
        return found


def _is_exact(graph: ModelGraph, variable: TypeVar) -> bool:
    """Whether its values are moved, not computed; the interface of scopes hands values on."""
    if variable.op is None:
        return True
    op = graph.ops[variable.op]
    return bool(op.subscopes) or op.callee is not None or is_exact_operator(op.domain, op.op_type)


def _is_exact_constant(graph: ModelGraph, value: int) -> bool:
    array = graph.array(value)
    if array is None or array.dtype != np.float32:
        return False
    return bool(np.array_equal(half.round_to_fp16(array), array, equal_nan=True))
