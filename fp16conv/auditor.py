"""The verb `rules audit`: what the rules cost and save on one model."""

from __future__ import annotations

import math
import os
from typing import Unpack

import fp16conv
from fp16conv.errors import ValidationError
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.inputs import OptionWords, describe_evidence, load_model, read_options
from fp16conv.planning.planner import make_plan
from fp16conv.reporting.audit import RuleAuditReport, RuleEffect
from fp16conv.reporting.progress import Progress
from fp16conv.rulebook.types import Verdicts
from fp16conv.study import start_study
from fp16conv.tuning.audit import Effect, audit
from fp16conv.validation.metrics import ATOL, RTOL
from fp16conv.validation.probe import Measurement

__all__ = ["audit_rules"]


def audit_rules(
    model: str | os.PathLike[str] | LoadedModel,
    *,
    rtol: float = RTOL,
    atol: float = ATOL,
    progress: Progress | None = None,
    **options: Unpack[OptionWords],
) -> RuleAuditReport:
    """Weigh each rule that keeps operators in FP32: leave it out, plan again, measure the error.

    Args:
        model: path of an .onnx file, or a loaded model.
        rtol: allowed relative L2 error per output.
        atol: allowed root mean square error per output, on top.
        progress: told about each rule.
        **options: see `OptionWords`.

    Returns:
        The report: casts and predicted time that each rule costs, and the error without it.

    Raises:
        ValidationError: the FP32 model does not run.
        ModelError, DataError, UsageError: as in `analyze`.
    """
    chosen, loaded = read_options(**options), load_model(model)
    graph = loaded.graph
    with Runtime() as runtime:
        study = start_study(loaded, chosen, runtime, progress)
        if study.calibration is None:
            raise ValidationError(
                "the FP32 model does not run, so no rule can be weighed",
                where=graph.source,
                why=study.unobserved,
            )
        default = study.plan()

        def plan(verdicts: Verdicts) -> fp16conv.PrecisionPlan:
            return make_plan(
                graph, verdicts, study.costs, rules_digest=study.book.digest, options=chosen.recorded()
            )

        with study.open_probe(study.verdicts, rtol=rtol, atol=atol, batches=len(study.feeds)) as probe:
            effects = audit(graph, study.verdicts, default, plan, probe.measure, progress)
            measured = probe.measure(default.dtype_list(len(graph.typevars)))
    seconds = default.predicted["time_plan_us"] * 1e-6
    listed = [_effect(effect, len(default.casts), seconds) for effect in effects]
    return RuleAuditReport(
        tool_version=fp16conv.__version__,
        options=chosen.recorded(),
        model=study.describe(),
        evidence=describe_evidence(study.feeds, chosen, len(study.feeds)),
        rtol=rtol,
        atol=atol,
        error=measured.relative_l2,
        used=_used(measured),
        casts=len(default.casts),
        seconds=seconds,
        effects=tuple(sorted(listed, key=lambda e: (-e.seconds, e.rule))),
    )


def _effect(effect: Effect, casts: int, seconds: float) -> RuleEffect:
    return RuleEffect(
        rule=effect.rule,
        authority=effect.authority.value,
        operators=sum(effect.op_types.values()),
        op_types=effect.op_types,
        changed=effect.changed,
        casts=casts - len(effect.plan.casts),
        seconds=seconds - effect.plan.predicted["time_plan_us"] * 1e-6,
        error=effect.measured.relative_l2 if effect.measured.is_finite else math.inf,
        used=_used(effect.measured),
        ok=effect.measured.ok,
    )


def _used(measured: Measurement) -> float:
    return measured.peak if measured.is_finite else math.inf
