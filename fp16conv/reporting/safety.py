"""Condense what is known of value ranges into report data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fp16conv.evidence.safety import Safety, classify
from fp16conv.graph import DataType, ModelGraph, RangeFact
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.reporting.bounds import BoundsSummary

__all__ = ["summarize_bounds"]


def summarize_bounds(
    graph: ModelGraph,
    plan: PrecisionPlan,
    proven: Mapping[int, RangeFact],
    observed: Mapping[int, RangeFact],
    macs: Mapping[int, int] | None = None,
) -> BoundsSummary:
    """Count how operators are known to stay in the range of FP16.

    Args:
        graph: the model.
        plan: which type variables are FP16.
        proven: facts of `prove_bounds`.
        observed: facts of constants and of a calibration.
        macs: multiply-accumulates per operator id, None where unknown.
    """
    counts = Counter(classify(graph, proven, observed).values())
    halves = {d.typevar for d in plan.decisions if d.dtype is DataType.FLOAT16 and d.op is not None}
    planned = classify(graph, proven, observed, halves)
    safe = [op for op, safety in planned.items() if safety is Safety.PROVEN]
    total = sum(macs.get(op, 0) for op in planned) if macs else 0
    return BoundsSummary(
        proven_safe=counts[Safety.PROVEN],
        observed_safe=counts[Safety.OBSERVED],
        observed_unsafe=counts[Safety.UNSAFE],
        unknown=counts[Safety.UNKNOWN],
        plan_operators=len(planned),
        plan_proven=len(safe),
        plan_macs_share=sum(macs.get(op, 0) for op in safe) / total if macs and total else None,
    )
