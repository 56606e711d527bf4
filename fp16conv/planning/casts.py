"""Which casts an assignment of precisions needs, and what it costs in total."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fp16conv.errors import PlanError
from fp16conv.graph import Container, DataType, ModelGraph, Use
from fp16conv.planning.costs import CostModel
from fp16conv.planning.plan import Cast

__all__ = ["assignment_cost", "replan_casts"]


def replan_casts(graph: ModelGraph, dtypes: Mapping[int, DataType]) -> tuple[Cast, ...]:
    """Derive the casts from the precision of every type variable.

    Args:
        graph: the model.
        dtypes: type variable id -> FLOAT or FLOAT16, for every type variable.

    Returns:
        One cast per (value, target dtype) with all its readers in file order, sorted by value id.
        A value is cast once, in the scope that defines it, also for readers in subgraphs.

    Raises:
        PlanError: a value that no cast can change (a sequence, an optional) would need one.
    """
    casts: list[Cast] = []
    for value in graph.values:
        source = graph.typevar_of_value(value.id)
        if source is None:  # constants are converted, other dtypes are not ours
            continue
        held = dtypes[source.id]
        readers: list[Use] = []
        for use in graph.consumers(value.id):
            reader = graph.typevar_of_use(use)
            # A reader without a type variable takes FLOAT as the model has it.
            if (DataType.FLOAT if reader is None else dtypes[reader.id]) is not held:
                readers.append(use)
        if not readers:
            continue
        if value.container is not Container.TENSOR:
            raise PlanError(
                f"'{value.name}' is a {value.container} and cannot be cast",
                where=graph.scope_path(value.scope),
                hint="give its producer and all its readers the same dtype",
            )
        to = DataType.FLOAT if held is DataType.FLOAT16 else DataType.FLOAT16
        casts.append(Cast(value.id, value.name, to, tuple(readers)))
    return tuple(casts)


def assignment_cost(
    graph: ModelGraph,
    costs: CostModel,
    dtypes: Mapping[int, DataType],
    casts: Iterable[Cast] | None = None,
) -> int:
    """Total predicted time of an assignment in picoseconds, launches and casts included."""
    casts = replan_casts(graph, dtypes) if casts is None else casts
    time = sum(costs.time(variable.id, dtypes[variable.id]) for variable in graph.typevars)
    return costs.launches + time + sum(costs.casts[cast.value] for cast in casts)
