"""The reports of `analyze` and `convert`, whatever the model came from."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import fp16conv
from fp16conv.execution.feeds import FeedSource
from fp16conv.execution.runtime import Runtime, RuntimeFailure
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import Container, DataType, Origin
from fp16conv.inputs import Options, describe_evidence
from fp16conv.planning.alignment import products
from fp16conv.planning.devices import load_device
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.reporting.alignment import AlignmentSummary
from fp16conv.reporting.comparison import find_in_validation, summarize_validation
from fp16conv.reporting.details import Details
from fp16conv.reporting.inventory import list_converted
from fp16conv.reporting.report import AnalyzeReport, ConvertReport, Finding, HalfOutcome, Severity
from fp16conv.reporting.safety import summarize_bounds
from fp16conv.reporting.source_lines import add_source_lines
from fp16conv.reporting.summary import read_prediction, read_size, summarize_alignment, summarize_decisions
from fp16conv.reporting.units import format_share
from fp16conv.study import StudyBase
from fp16conv.validation.depth import errors_of_model
from fp16conv.validation.outlook import HalfOutlook

if TYPE_CHECKING:
    from fp16conv.job import ConversionJob, Outcome

__all__ = ["details_of_pair", "report_analysis", "report_conversion", "summarize_outlook"]


def report_analysis(
    study: StudyBase, plan: PrecisionPlan, half: HalfOutcome, details: Details | None
) -> AnalyzeReport:
    """The audit of a model.

    Args:
        study: the model and what is known about it.
        plan: the decisions.
        half: what plain half would do.
        details: every operator, where they were asked for.
    """
    batches = study.calibration.batches if study.calibration else 0
    macs = study.costs.macs
    multiplied = products(study.graph, plan.dtypes, study.costs)
    alignment = summarize_alignment(study.graph, multiplied, macs)
    report = AnalyzeReport(
        tool_version=fp16conv.__version__,
        options=study.options.recorded(),
        model=study.describe(),
        decisions=summarize_decisions(plan, macs),
        size=read_size(plan),
        prediction=read_prediction(plan, load_device(study.options.device)),
        half=half,
        evidence=describe_evidence(study.feeds, study.options, batches),
        bounds=summarize_bounds(study.graph, plan, study.proven, study.observed, macs),
        alignment=alignment,
        findings=(*_not_finite(study), *_remarks(study, plan, half), *_unaligned(alignment)),
        details=details,
    )
    return add_source_lines(report, study.graph)


def summarize_outlook(outlook: HalfOutlook) -> HalfOutcome:
    """What plain half would do to an ONNX model, for its report."""
    broken = [m for m in outlook.outputs if m.new_nan or m.new_inf]
    cause = (outlook.overflowing or outlook.culprits)[:1]
    errors = [m.relative_l2 for m in outlook.outputs if m.kind == "float" and m.relative_l2 is not None]
    return HalfOutcome(
        finite=not broken,
        first_overflow=cause[0].label if cause and (broken or outlook.overflowing) else "",
        first_overflow_type=cause[0].op_type if cause and (broken or outlook.overflowing) else "",
        rel_l2=max(errors, default=None),
        within_tolerance=outlook.ok,
        note=outlook.describe(),
    )


def report_conversion(job: ConversionJob, outcome: Outcome, details: Details | None) -> ConvertReport:
    """What a job did.

    Args:
        job: the job, which finds what caused an error that is out of tolerance.
        outcome: what came of it.
        details: every operator, where they were asked for.
    """
    study, plan = job.study, outcome.plan
    findings = list(_remarks(study, plan))
    validation = None
    if outcome.result is not None:
        culprits = () if outcome.result.ok else job.find_culprits(plan)
        validation = summarize_validation(outcome.result, culprits)
        findings += find_in_validation(outcome.result, accepted=bool(outcome.files))
    batches = outcome.result.batches if outcome.result else 0
    report = ConvertReport(
        tool_version=fp16conv.__version__,
        options=dict(plan.options),
        model=study.describe(),
        decisions=summarize_decisions(plan, study.costs.macs),
        size=read_size(plan),
        output=outcome.output,
        prediction=read_prediction(plan, load_device(study.options.device)),
        evidence=describe_evidence(study.feeds, study.options, batches),
        checks=outcome.checks,
        validation=validation,
        repairs=outcome.repairs,
        findings=tuple(findings),
        details=details,
    )
    return add_source_lines(report, study.graph)


def details_of_pair(
    reference: LoadedModel, candidate: LoadedModel, feeds: FeedSource, options: Options, runtime: Runtime
) -> Details:
    """The candidate's operators, and how far each value is from the one of the same name in the reference."""
    named: dict[str, float] = {}
    batch = next(iter(feeds), None)
    if batch is not None:
        with contextlib.suppress(RuntimeFailure):
            errors = errors_of_model(reference, candidate, batch, runtime, memory_limit=options.memory_limit)
            named = {reference.graph.values[v].name: error for v, error in errors.items()}
    return list_converted(
        candidate.graph,
        errors=named,
        error_note="the first batch, the candidate emulated: every FP16 tensor is rounded",
    )


def _remarks(study: StudyBase, plan: PrecisionPlan, half: HalfOutcome | None = None) -> Iterator[Finding]:
    source = study.graph.source
    speedup = plan.predicted.get("speedup", 1.0)
    if plan.predicted.get("macs_fp16") and speedup < 1.0:
        text = f"the casts are predicted to cost more than FP16 saves on this device ({speedup:.2f}x)"
        hint = "measure it on the device, or let `fp16conv tune` look for a faster plan"
        yield Finding(Severity.NOTE, "no-speedup", source, text, hint)
    fixed = [
        variable.symbol.removeprefix("input:")
        for variable in study.graph.typevars
        if variable.op is None
        and variable.scope == study.graph.main.id
        and variable.symbol.startswith("input:")
        and not variable.admits_fp16
    ]
    sparse = {v.name for v in study.graph.values if v.container is Container.SPARSE}
    if written := [name for name in fixed if name not in sparse]:
        text = f"{', '.join(written)}: the program writes to it, so it stays FP32, cast where FP16 reads it"
        yield Finding(Severity.NOTE, "state-stays-fp32", source, text)
    if kept := [name for name in fixed if name in sparse]:
        text = f"{', '.join(kept)}: sparse, so it stays FP32, and with it what must have its type"
        yield Finding(Severity.NOTE, "sparse-stays-fp32", source, text, "store it as a dense tensor")
    halves = any(value.dtype is DataType.FLOAT16 for value in study.graph.values)
    if halves and not plan.predicted.get("macs_fp16") and DataType.FLOAT16 not in plan.dtypes.values():
        text = "it holds FP16 already, and nothing else in it would gain"
        yield Finding(Severity.NOTE, "already-fp16", source, text, "deploy it as it is")
    if study.calibration is None and study.unobserved not in ("", "not asked for"):
        yield Finding(Severity.WARNING, "not-observed", source, f"ranges are unknown: {study.unobserved}")
    if study.calibration is not None and study.calibration.untaken:
        text = f"{len(study.calibration.untaken)} values lie in branches that no batch takes"
        hint = "they are judged by what the branch would compute on this data; give data that takes it"
        yield Finding(Severity.NOTE, "branch-not-taken", source, text, hint)
    if half is not None and half.within_tolerance is False:
        fix = "convert with fp16conv: its plan keeps in FP32 what breaks"
        yield Finding(Severity.WARNING, "half-unsafe", half.first_overflow or source, half.note, fix)


_NAMED = 3  # unaligned products in one finding


def _unaligned(alignment: AlignmentSummary | None) -> Iterator[Finding]:
    """The largest products that Tensor Cores take slower than they could."""
    if alignment is None or not alignment.largest:
        return
    named: list[str] = []
    for product in alignment.largest[:_NAMED]:
        share = "" if product.macs_share is None else f" ({format_share(product.macs_share)} of MACs)"
        sizes = ", ".join(f"{name} {size}" for name, size in product.sizes)
        named.append(f"{product.op}: {sizes}{share}" if named else f"{sizes}{share}")
    if alignment.unaligned > len(named):
        named.append(f"{alignment.unaligned - len(named)} more")
    multiple = alignment.multiple
    yield Finding(
        Severity.NOTE,
        "unaligned-dimensions",
        alignment.largest[0].op,
        f"no multiple of {multiple}: {'; '.join(named)}",
        f"pad channels, heads or vocabulary with zeros to multiples of {multiple}; "
        "a first layer with 1 or 3 channels is normal",
    )


def _not_finite(study: StudyBase) -> Iterator[Finding]:
    """Outputs that are broken in FP32 already: an error on the user's data, a warning on made-up inputs."""
    if study.calibration is None:
        return
    real = study.calibration.origin is Origin.OBSERVED
    hint = "look at the data and the FP32 model first: FP16 cannot repair it"
    for number in study.graph.scopes[0].outputs:
        fact = None if number is None else study.calibration.facts.get(number)
        if number is None or fact is None or not (fact.has_nan or math.isinf(fact.max_abs)):
            continue
        what = "NaN" if fact.has_nan else "infinity"
        yield Finding(
            Severity.ERROR if real else Severity.WARNING,
            "fp32-not-finite",
            study.graph.values[number].name,
            f"the FP32 model gives {what} on {'your data' if real else 'made-up inputs'}",
            hint if real else "give --data, or --input-range for the numbers that the model expects",
        )
