"""The precision of every type variable as an exact minimum s-t cut.

Vertices are classes of type variables that must share a precision; FP16 is the source side. A class
pays its time in the precision it gets; a value whose definition and some reader differ pays one cast,
shared by all its readers (two helper vertices per value and the arcs `reader -> down inf,
down -> source p, source -> up p, up -> reader inf`). Before the cut:

1. Equalities (groups of the rule book, values that no cast can change) are contracted. A class with
   one member that must stay FP32 is FP32 as a whole: FP32 is always legal, FP16 is not.
2. `deny`, `never` and variables whose schema lacks FP16 are FP32; `allow` is FP16.
3. A region that no value connects to an `allow` variable stays FP32: without compute-bound work FP16
   would only trade accuracy for a little bandwidth.

Among equally cheap assignments the one with the fewest FP16 variables wins (the smallest source side,
which is unique): a tie gains nothing, so accuracy decides. It also makes FP16 sets shrink as `lam` grows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fp16conv.errors import UsageError
from fp16conv.graph import Container, DataType, ModelGraph, TypeVar
from fp16conv.planning.costs import CostModel
from fp16conv.planning.flow import minimum_cut
from fp16conv.rulebook.types import Judgement, Verdict, Verdicts

__all__ = ["Cause", "Charge", "CutProblem", "Link", "build_problem", "cast_allowance", "solve"]


class Cause(StrEnum):
    """Why a class has the precision it has before the cut."""

    FREE = "free"  # the cut decides
    VERDICT = "verdict"  # a member's verdict decides for the class
    NO_GAIN = "no gain"  # no allow variable in reach


@dataclass(frozen=True, slots=True)
class Link:
    """A value that may need a cast: `readers` are the classes of its uses other than `source`."""

    value: int
    price: int
    source: int
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Charge:
    """The error of one rounding, paid once where any of these type variables is FP16.

    A value is rounded if the operator that makes it runs in FP16 or some reader does; only all of them
    in FP32 spare its error.

    Args:
        typevars: type variables any of which makes the rounding happen.
        error: error it adds (any unit, >= 0; infinite means never).
    """

    typevars: tuple[int, ...]
    error: float


@dataclass(frozen=True)
class CutProblem:
    """The contracted problem.

    Args:
        class_of: class per type variable id.
        members: type variable ids per class; the last class is empty and stands for readers that
            no type variable describes (always FP32).
        fixed: precision of a class that the cut may not change, None where it is free.
        causes: why, per class.
        leaders: per class, the type variable whose verdict decides (None where the cut does).
        gains: time that FP16 saves per class, minus lambda x error; may be negative, picoseconds.
        links: values that may need a cast, by value id.
        charges: classes, and the picoseconds paid once where any of them is FP16.
    """

    class_of: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    fixed: tuple[DataType | None, ...]
    causes: tuple[Cause, ...]
    leaders: tuple[int | None, ...]
    gains: tuple[int, ...]
    links: tuple[Link, ...]
    charges: tuple[tuple[tuple[int, ...], int], ...] = ()


def build_problem(
    graph: ModelGraph,
    verdicts: Verdicts,
    costs: CostModel,
    *,
    errors: Mapping[int, float] | None = None,
    charges: Sequence[Charge] = (),
    lam: float = 0.0,
    soft_allow: bool = False,
) -> CutProblem:
    """Contract equalities, pin what is decided and price the rest.

    Args:
        graph: the model.
        verdicts: judgement per type variable, equality groups.
        costs: prices in picoseconds.
        errors: type variable id -> error it adds in FP16 (any unit, >= 0; infinite means never).
        charges: errors that several type variables share.
        lam: picoseconds per unit of error.
        soft_allow: let the cut put `allow` variables into FP32 when their error costs more than the
            time they save and the casts around them: error can move them, casts alone cannot. What the
            command line forces stays FP16.

    Raises:
        UsageError: `lam` or an error is negative or not a number.
    """
    class_of, members = _contract(graph, verdicts)
    penalties = _penalties(graph, errors or {}, lam)
    shared = [(charge, _price(charge.error, lam)) for charge in charges]
    for charge, price in shared:
        for variable in charge.typevars if price is None else ():
            penalties[variable] = None
    wants = _wishes(graph, verdicts, penalties, soft_allow)
    leaders = [_leader(group, wants) for group in members]
    outside = len(members)
    fixed = [None if leader is None else wants[leader] for leader in leaders] + [DataType.FLOAT]
    links = _links(graph, costs, class_of, outside)
    seeds = [
        index
        for index, group in enumerate(members)
        if fixed[index] is not DataType.FLOAT
        and any(verdicts.judgements[tv].verdict is Verdict.ALLOW for tv in group)
    ]
    reached = _reach(seeds, fixed, links)
    causes = [Cause.FREE if dtype is None else Cause.VERDICT for dtype in fixed]
    for index in range(outside):
        if fixed[index] is None and index not in reached:
            fixed[index], causes[index] = DataType.FLOAT, Cause.NO_GAIN
    gains = [sum(costs.fp32[tv] - costs.fp16[tv] - (penalties[tv] or 0) for tv in group) for group in members]
    for typevar, judgement in zip(graph.typevars, verdicts.judgements, strict=True):
        if soft_allow and judgement.verdict is Verdict.ALLOW:
            gains[class_of[typevar.id]] += cast_allowance(graph, costs, typevar)
    return CutProblem(
        tuple(class_of),
        (*(tuple(group) for group in members), ()),
        tuple(fixed),
        tuple(causes),
        (*leaders, None),
        (*gains, 0),
        links,
        tuple(
            (tuple(sorted({class_of[variable] for variable in charge.typevars})), price)
            for charge, price in shared
            if price
        ),
    )


def cast_allowance(graph: ModelGraph, costs: CostModel, variable: TypeVar) -> int:
    """Picoseconds of all casts that an operator in FP16 can need, if its neighbours are FP32."""
    values = set(variable.defs)
    for use in variable.uses:
        value = graph.value_at(use)
        if value is not None and graph.typevar_of_value(value.id) is not None:
            values.add(value.id)
    return sum(costs.casts[value] for value in values)


def solve(problem: CutProblem) -> tuple[DataType, ...]:
    """Return the precision per class: cheapest, and with the fewest FP16 variables among equals."""
    size = len(problem.members)
    infinite = 1 + sum(abs(gain) for gain in problem.gains) + sum(2 * x.price for x in problem.links)
    infinite += sum(price for _, price in problem.charges)
    source, sink = [0] * size, [0] * size
    for index, (dtype, gain) in enumerate(zip(problem.fixed, problem.gains, strict=True)):
        if dtype is DataType.FLOAT16:
            source[index] = infinite
        elif dtype is DataType.FLOAT:
            sink[index] = infinite
        elif gain >= 0:
            source[index] = gain
        else:
            sink[index] = -gain
    arcs: list[tuple[int, int, int]] = []
    for link in problem.links:
        if all(problem.fixed[index] is not None for index in (link.source, *link.readers)):
            continue
        if len(link.readers) == 1:
            reader = link.readers[0]
            arcs += [(reader, link.source, link.price), (link.source, reader, link.price)]
            continue
        down, up = len(source), len(source) + 1
        source += [0, 0]
        sink += [0, 0]
        arcs += [(down, link.source, link.price), (link.source, up, link.price)]
        for reader in link.readers:
            arcs += [(reader, down, infinite), (up, reader, infinite)]
    for members, price in problem.charges:
        if any(problem.fixed[index] is DataType.FLOAT16 for index in members):
            continue  # paid whatever the cut does
        free = [index for index in members if problem.fixed[index] is None]
        if len(free) == 1:
            sink[free[0]] += price
        elif free:
            arcs += [(index, len(source), infinite) for index in free]
            source.append(0)
            sink.append(price)
    inside = minimum_cut(source, sink, arcs)
    return tuple(DataType.FLOAT16 if inside[index] else DataType.FLOAT for index in range(size))


def _penalties(graph: ModelGraph, errors: Mapping[int, float], lam: float) -> list[int | None]:
    """Price of the error per type variable, None where it is infinite."""
    if not (math.isfinite(lam) and lam >= 0):
        raise UsageError(f"lambda must be a finite number >= 0, got {lam!r}")
    penalties: list[int | None] = []
    for variable in graph.typevars:
        error = errors.get(variable.id, 0.0)
        if not error >= 0:
            raise UsageError(f"the error of type variable {variable.id} must be >= 0, got {error!r}")
        penalties.append(_price(error, lam))
    return penalties


def _price(error: float, lam: float) -> int | None:
    price = math.inf if math.isinf(error) else lam * error
    return round(price) if math.isfinite(price) else None


def _wishes(
    graph: ModelGraph, verdicts: Verdicts, penalties: list[int | None], soft_allow: bool
) -> list[DataType | None]:
    """The precision each type variable insists on, None where it has no say."""
    wishes: list[DataType | None] = []
    for variable, judgement, penalty in zip(graph.typevars, verdicts.judgements, penalties, strict=True):
        wish: DataType | None = DataType.FLOAT if penalty is None else None
        if judgement.verdict in (Verdict.DENY, Verdict.NEVER) or not variable.admits_fp16:
            wish = DataType.FLOAT
        elif judgement.verdict is Verdict.ALLOW and (not soft_allow or _is_forced(judgement)):
            wish = DataType.FLOAT16
        wishes.append(wish)
    for value in graph.values:
        source = graph.typevar_of_value(value.id)
        if value.container is Container.TENSOR or source is None:
            continue
        if any(graph.typevar_of_use(use) is None for use in graph.consumers(value.id)):
            wishes[source.id] = DataType.FLOAT  # read as FLOAT, and no cast can help
    return wishes


def _leader(group: list[int], wishes: list[DataType | None]) -> int | None:
    """The first member that insists on FP32, else the first that insists on FP16."""
    for dtype in (DataType.FLOAT, DataType.FLOAT16):
        for variable in group:
            if wishes[variable] is dtype:
                return variable
    return None


def _is_forced(judgement: Judgement) -> bool:
    """Whether the command line put it into FP16."""
    return judgement.verdict is Verdict.ALLOW and judgement.is_commanded


def _tied_parts(graph: ModelGraph, verdicts: Verdicts, variables: tuple[int, ...]) -> list[list[int]]:
    """What of a group must stay equal: a pattern over several operators lets go of those that are forced."""
    if len({graph.typevars[v].op for v in variables}) < 2:
        return [list(variables)]  # combinations of types that one operator has no kernel for
    forced = [v for v in variables if _is_forced(verdicts.judgements[v])]
    rest = [v for v in variables if v not in forced]
    return [part for part in (forced, rest) if part]


def _contract(graph: ModelGraph, verdicts: Verdicts) -> tuple[list[int], list[list[int]]]:
    """Union of the groups and of everything that exchanges uncastable values."""
    parent = list(range(len(graph.typevars)))

    def find(x: int) -> int:
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    def union(a: int, b: int) -> None:
        low, high = sorted((find(a), find(b)))
        parent[high] = low

    for group in verdicts.groups:
        for part in _tied_parts(graph, verdicts, group.typevars):
            for other in part[1:]:
                union(part[0], other)
    for value in graph.values:
        source = graph.typevar_of_value(value.id)
        if value.container is Container.TENSOR or source is None:
            continue
        for use in graph.consumers(value.id):
            reader = graph.typevar_of_use(use)
            if reader is not None:
                union(source.id, reader.id)
    index_of: dict[int, int] = {}
    members: list[list[int]] = []
    class_of: list[int] = []
    for variable in range(len(parent)):
        root = find(variable)
        if root not in index_of:
            index_of[root] = len(members)
            members.append([])
        class_of.append(index_of[root])
        members[index_of[root]].append(variable)
    return class_of, members


def _links(graph: ModelGraph, costs: CostModel, class_of: list[int], outside: int) -> tuple[Link, ...]:
    links: list[Link] = []
    for value in graph.values:
        source = graph.typevar_of_value(value.id)
        if source is None or value.container is not Container.TENSOR:
            continue
        own = class_of[source.id]
        readers = set()
        for use in graph.consumers(value.id):
            reader = graph.typevar_of_use(use)
            readers.add(outside if reader is None else class_of[reader.id])
        readers.discard(own)
        if readers:
            links.append(Link(value.id, costs.casts[value.id], own, tuple(sorted(readers))))
    return tuple(links)


def _reach(seeds: list[int], fixed: list[DataType | None], links: tuple[Link, ...]) -> set[int]:
    """Classes that a chain of free classes connects to an FP16 seed (sharing a value connects)."""
    touching: dict[int, list[int]] = defaultdict(list)
    for number, link in enumerate(links):
        for index in (link.source, *link.readers):
            if fixed[index] is not DataType.FLOAT:
                touching[index].append(number)
    reached, stack = set(seeds), list(seeds)
    done = [False] * len(links)
    while stack:
        for number in touching[stack.pop()]:
            if done[number]:
                continue
            done[number] = True
            link = links[number]
            for index in (link.source, *link.readers):
                if fixed[index] is None and index not in reached:
                    reached.add(index)
                    stack.append(index)
    return reached
