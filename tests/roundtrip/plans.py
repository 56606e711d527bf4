"""Hand-made plans for tests: any assignment of legal dtypes must give a valid model."""

from __future__ import annotations

import random
from collections.abc import Callable

from fp16conv.graph import Container, DataType, ModelGraph, TypeVar
from fp16conv.planning.plan import Decision, PrecisionPlan
from fp16conv.rulebook.types import Reason, Verdict


def make_plan(
    graph: ModelGraph, choose: Callable[[TypeVar], bool], *, keep_io_types: bool = True
) -> PrecisionPlan:
    """FLOAT16 where `choose` says so, it is legal, and no sequence or optional would need a cast.

    What hands one sequence or optional on shares one choice: where the interface may change, that of any.
    """
    groups = _container_groups(graph)
    legal = dict.fromkeys(groups, True)
    for tv in graph.typevars:
        is_interface = tv.op is None and tv.scope == 0
        legal[groups[tv.id]] &= tv.admits_fp16 and not (keep_io_types and is_interface)
    decided: dict[int, bool] = {}
    if not keep_io_types:
        for tv in graph.typevars:
            decided[groups[tv.id]] = decided.get(groups[tv.id], False) or choose(tv)
    decisions = []
    for tv in graph.typevars:
        root = groups[tv.id]
        if root not in decided:
            decided[root] = choose(tv)
        dtype = DataType.FLOAT16 if decided[root] and legal[root] else DataType.FLOAT
        op = None if tv.op is None else graph.ops[tv.op]
        decisions.append(
            Decision(
                tv.id,
                tv.op,
                tv.symbol if op is None else op.label,
                "" if op is None else op.key,
                graph.scope_path(tv.scope),
                tv.symbol,
                dtype,
                Verdict.INFER,
                (Reason("test", f"chosen {dtype}"),),
            )
        )
    return PrecisionPlan(graph.digest, "0" * 64, {}, tuple(decisions), ())


def all_fp16(graph: ModelGraph) -> PrecisionPlan:
    return make_plan(graph, lambda tv: True)


def all_fp32(graph: ModelGraph) -> PrecisionPlan:
    return make_plan(graph, lambda tv: False)


def random_plan(graph: ModelGraph, seed: int, share: float = 0.5) -> PrecisionPlan:
    rng = random.Random(seed)
    return make_plan(graph, lambda tv: rng.random() < share)


def _container_groups(graph: ModelGraph) -> list[int]:
    """Representative per type variable; those that hand on one sequence or optional share it."""
    parent = list(range(len(graph.typevars)))

    def find(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for value in graph.values:
        own = graph.typevar_of_value(value.id)
        if value.container not in (Container.SEQUENCE, Container.OPTIONAL) or own is None:
            continue
        for use in graph.consumers(value.id):
            other = graph.typevar_of_use(use)
            if other is not None:
                parent[find(other.id)] = find(own.id)
    return [find(i) for i in range(len(parent))]
