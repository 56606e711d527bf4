"""What an audit of the rules by data found out, as report data. Imports the standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fp16conv.reporting.report import Evidence, ModelFacts, Report

__all__ = ["RuleAuditReport", "RuleEffect"]


@dataclass(frozen=True, slots=True)
class RuleEffect:
    """What one rule that keeps operators in FP32 costs and saves, everything else as it is.

    Args:
        rule: id of the rule.
        authority: who says so.
        operators: how many operators it decides.
        op_types: number of them per type, most frequent first.
        changed: how many operators run in FP16 without the rule.
        casts: casts it costs (negative: it saves them).
        seconds: predicted time it costs per run.
        error: largest relative L2 error without it, None where none is defined.
        used: largest error over the allowed error without it; infinite for new NaN or infinities.
        ok: whether the plan without it is within tolerance.
    """

    rule: str
    authority: str
    operators: int
    op_types: Mapping[str, int]
    changed: int
    casts: int
    seconds: float
    error: float | None
    used: float
    ok: bool


@dataclass(frozen=True, kw_only=True)
class RuleAuditReport(Report):
    """The rules that keep operators of a model in FP32, weighed by data.

    Args:
        rtol, atol: the tolerance.
        error: largest relative L2 error of the default plan, None where none is defined.
        used: its largest error over the allowed error.
        casts: casts of the default plan.
        seconds: its predicted time.
        effects: per rule, what costs most time first.
    """

    schema: str = "fp16conv.rules-audit/1"
    model: ModelFacts
    evidence: Evidence
    rtol: float
    atol: float
    error: float | None
    used: float
    casts: int
    seconds: float
    effects: tuple[RuleEffect, ...]
