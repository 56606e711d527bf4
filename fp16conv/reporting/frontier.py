"""Condense the result of a tuning into report data."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fp16conv.graph import DataType, ModelGraph
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.planning.planner import PLANNER, label_of
from fp16conv.reporting.tuning import FrontierPoint, Moved, Rounding
from fp16conv.tuning.search import Point, TuneResult

__all__ = ["find_moved", "list_frontier", "list_roundings"]


def list_frontier(points: Sequence[Point], chosen: Point | None) -> tuple[FrontierPoint, ...]:
    """Turn measured plans into report data, in their order."""
    return tuple(
        FrontierPoint(
            origin=point.origin,
            error=point.reading.relative_l2,
            used=point.reading.worst,
            ok=point.reading.ok and point.reading.worst <= 1.0,
            seconds=point.time * 1e-6,
            speedup=point.plan.predicted["speedup"],
            casts=len(point.plan.casts),
            macs_share=point.plan.predicted["macs_fp16_share"] if point.plan.predicted["macs"] else None,
            chosen=point is chosen,
        )
        for point in points
    )


def find_moved(default: PrecisionPlan, tuned: PrecisionPlan) -> tuple[Moved, ...]:
    """Operators whose precision differs between two plans, in file order."""
    before = default.dtypes
    found: dict[int, Moved] = {}
    for decision in tuned.decisions:
        if before[decision.typevar] is decision.dtype or decision.op is None:
            continue
        reasons = [r for r in decision.reasons if r.rule == PLANNER] or list(decision.reasons)
        if decision.dtype is DataType.FLOAT16:
            reasons = list(decision.reasons)
        text = reasons[0].text if reasons else ""
        found.setdefault(decision.op, Moved(decision.label, decision.op_type, decision.dtype.value, text))
    return tuple(found.values())


def list_roundings(graph: ModelGraph, result: TuneResult, most: int = 20) -> tuple[Rounding, ...]:
    """The roundings that add most error, worst first."""
    if result.sensitivity is None:
        return ()
    found = zip(
        result.sensitivity.squared, result.sensitivity.resolved, result.sensitivity.sites, strict=True
    )
    ranked = sorted(found, key=lambda item: -item[0])
    roundings = []
    for squared, resolved, site in ranked[:most]:
        if squared <= 0:
            break
        if site.op is None:
            label, op_type = label_of(graph, graph.typevars[site.typevars[0]]), ""
        else:
            label, op_type = graph.ops[site.op].label, graph.ops[site.op].key
        what = "constants" if site.is_constant else "result"
        roundings.append(Rounding(label, op_type, what, math.sqrt(squared), resolved))
    return tuple(roundings)
