"""Turn the error by operator into report data."""

from __future__ import annotations

from collections.abc import Sequence

from fp16conv.graph import ModelGraph
from fp16conv.reporting.per_operator import OperatorShare, PerOperator
from fp16conv.rulebook.patterns import PatternRule, match_patterns
from fp16conv.validation.per_operator import OperatorErrors

__all__ = ["summarize_operators"]


def summarize_operators(
    graph: ModelGraph, found: OperatorErrors, patterns: Sequence[PatternRule]
) -> PerOperator:
    """Condense the error by operator.

    Args:
        graph: the FP32 model.
        found: who causes the error.
        patterns: pattern rules, to name the idiom that an operator belongs to.
    """
    pattern_of: dict[int, str] = {}
    for hit in match_patterns(graph, patterns, {}):
        for variable in hit.typevars:
            pattern_of.setdefault(variable, hit.rule)

    def own(op: int | None) -> float | None:
        outputs = () if op is None else graph.ops[op].outputs
        return next((found.errors[v] for v in outputs if v is not None and v in found.errors), None)

    first = None if found.first is None else graph.ops[found.first]
    return PerOperator(
        first="" if first is None else first.label,
        first_type="" if first is None else first.key,
        first_error=own(found.first),
        operators=tuple(
            OperatorShare(
                blame.label,
                blame.op_type,
                blame.share,
                blame.resolved,
                own(blame.op),
                next((pattern_of[t] for t in blame.typevars if t in pattern_of), ""),
            )
            for blame in found.blames
        ),
    )
