"""The answers of a report as labelled sentences: every format that people read says the same words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fp16conv.reporting.alignment import AlignmentSummary
from fp16conv.reporting.audit import RuleAuditReport
from fp16conv.reporting.bounds import BoundsSummary
from fp16conv.reporting.inspection import DiffReport, ExplainReport
from fp16conv.reporting.layout import Style
from fp16conv.reporting.report import (
    AnalyzeReport,
    Backend,
    Check,
    ConvertReport,
    DecisionSummary,
    Evidence,
    Finding,
    HalfOutcome,
    ModelFacts,
    OutputFile,
    PlanReport,
    Prediction,
    Repair,
    Report,
    Severity,
    Size,
    ValidateReport,
    ValidationResult,
)
from fp16conv.reporting.training import ScaleRange, TrainAuditReport
from fp16conv.reporting.tuning import TuneReport
from fp16conv.reporting.units import (
    format_bytes,
    format_count,
    format_error,
    format_seconds,
    format_share,
    plural,
)

__all__ = [
    "Fact",
    "Topic",
    "describe_contents",
    "facts_of",
    "headline_of",
    "sort_findings",
    "validation_facts",
]


class Topic(StrEnum):
    """The question of a reader that a fact answers."""

    SAFETY = "safety"
    SAVING = "saving"
    COST = "cost"
    EVIDENCE = "evidence"


@dataclass(frozen=True, slots=True)
class Fact:
    """One labelled sentence. The text is raw: names in it are as the model has them.

    Args:
        link: what a page can lead to: an operator's label, or `#section`.
    """

    label: str
    text: str
    style: Style = Style.PLAIN
    topic: Topic = Topic.SAFETY
    link: str = ""


def facts_of(report: Report) -> list[Fact]:
    """The answers of a report, in reading order; empty for a report class that has none."""
    for kind, collect in _FACTS.items():
        if isinstance(report, kind):
            return collect(report)
    return []


def headline_of(report: Report) -> Fact:
    """The fact that a reader must see if they see only one: the answer to the question of the verb."""
    facts = facts_of(report)
    if type(report) is ConvertReport:
        return _converted(report)
    label = _HEADLINES.get(type(report))
    if label is not None:
        facts = [fact for fact in facts if fact.label == label]
    if facts:
        return facts[0]
    return Fact("Result", "fine" if report.ok else "see the findings", Style.GOOD if report.ok else Style.BAD)


def _converted(report: ConvertReport) -> Fact:
    """Whether there is a file, and whether it is as accurate as asked."""
    written, result = _written(report.output), report.validation
    if report.output is None:
        return written
    if result is None:
        return Fact("Converted", f"{written.text}, not compared with FP32", Style.WARN)
    verdict, style = ("within tolerance", Style.GOOD) if result.ok else ("out of tolerance", Style.WARN)
    return Fact("Converted", f"{written.text}, {verdict}", style)


_SEVERITY_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def sort_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Worst first, otherwise as they came."""
    return sorted(findings, key=lambda f: _SEVERITY_ORDER[f.severity])


def describe_contents(model: ModelFacts) -> str:
    """Opset, operators, weights and MACs in one line."""
    opset = model.opsets.get("", model.opsets.get("ai.onnx"))
    parts = [f"opset {opset}"] if opset is not None else []
    parts += [plural(model.ops, "operator"), f"{format_bytes(model.weights)} of weights"]
    if model.macs is not None:
        parts.append(f"{format_count(model.macs)} MACs")
    return ", ".join(parts)


# ---- verbs ----


def _analyze(report: AnalyzeReport) -> list[Fact]:
    return [
        _answer(report),
        _precision(report.decisions),
        _size(report.size),
        _casts(report.decisions),
        _prediction(report.prediction),
        *_alignment(report.alignment),
        *_half(report.half),
        *_bounds(report.bounds),
        *_evidence(report.evidence),
    ]


def _plan(report: PlanReport) -> list[Fact]:
    facts = [_precision(report.decisions), _casts(report.decisions), _prediction(report.prediction)]
    return facts + ([Fact("Plan", report.plan_path)] if report.plan_path else [])


def _convert(report: ConvertReport) -> list[Fact]:
    return [
        _written(report.output),
        _precision(report.decisions),
        _size(report.size),
        _casts(report.decisions),
        _prediction(report.prediction),
        *_checks(report.checks),
        *_evidence(report.evidence),
        *_repairs(report.repairs),
        *validation_facts(report.validation),
    ]


def _audit(report: RuleAuditReport) -> list[Fact]:
    broken = sum(not effect.ok for effect in report.effects)
    kept = plural(len(report.effects), "rule")
    text = f"{kept} keep operators in FP32; without {broken} of them the tolerance is missed"
    plan = f"{plural(report.casts, 'cast')}, {format_seconds(report.seconds)}"
    plan += f", relative L2 error {format_error(report.error)}"
    return [
        Fact("Rules", text),
        Fact("Default plan", f"{plan} (rtol {report.rtol:g}, atol {report.atol:g})"),
        *_evidence(report.evidence),
    ]


def _tune(report: TuneReport) -> list[Fact]:
    effort = report.effort
    if report.met:
        text, style = f"{report.tolerance:g} met, {format_share(report.nearest)} of it used", Style.GOOD
    else:
        text = f"{report.tolerance:g} cannot be met: the nearest plan errs {report.nearest:.3g} times as much"
        style = Style.BAD
    runs = f"{plural(effort.runs, 'emulated run')} of at most {effort.max_runs}"
    runs += f", {effort.reused} known before" if effort.reused else ""
    runs += f" (one per operator: {effort.exhaustive_runs})"
    facts = [
        Fact("Tolerance", text, style),
        _precision(report.decisions),
        _size(report.size),
        _casts(report.decisions),
        _prediction(report.prediction),
        *_evidence(report.evidence),
        Fact("Search", runs + (", out of time" if effort.out_of_time else ""), topic=Topic.EVIDENCE),
    ]
    for dtype, label in (("float16", "To FP16"), ("float", "To FP32")):
        moved = [m for m in report.moved if m.dtype == dtype]
        if moved:
            names = ", ".join(m.op for m in moved[:2]) + (", ..." if len(moved) > 2 else "")
            text = f"{plural(len(moved), 'operator')} against the default plan: {names}"
            facts.append(Fact(label, text, topic=Topic.COST))
    if report.wanted:
        facts += [_written(report.output), *_checks(report.checks), *validation_facts(report.validation)]
    return facts


def _validate(report: ValidateReport) -> list[Fact]:
    files = [
        Fact("Reference", report.reference, topic=Topic.EVIDENCE),
        Fact("Candidate", report.candidate, topic=Topic.EVIDENCE),
    ]
    return files + _evidence(report.evidence) + validation_facts(report.validation)


def _explain(report: ExplainReport) -> list[Fact]:
    op = report.operator
    reason = op.reasons[0].text if op.reasons else "it makes and reads no FP32 tensors"
    facts = [Fact(op.label, f"{op.precision.upper()}: {reason}")]
    facts += [Fact("Because", r.text) for r in op.reasons[1:]]
    for outcome in report.outcomes:
        text = f"{outcome.precision.upper()}, {plural(outcome.casts, 'cast')} in the plan"
        facts.append(Fact(outcome.change, text, topic=Topic.COST))
    return facts


def _diff(report: DiffReport) -> list[Fact]:
    before, after = report.casts
    changed = (
        f"{plural(len(report.changes), 'operator')} of {report.operators} changed"
        if report.differs
        else "none"
    )
    facts = [Fact("Differences", changed), Fact("Casts", f"{before} -> {after}", topic=Topic.COST)]
    facts += [Fact("Note", note, topic=Topic.EVIDENCE) for note in report.notes]
    return facts + [
        Fact(
            change.op, f"{change.before} -> {change.after}" + (f": {change.reason}" if change.reason else "")
        )
        for change in report.changes
    ]


def _train_audit(report: TrainAuditReport) -> list[Fact]:
    gone, lost = format_share(report.share_zeroed), format_share(report.share_lost)
    facts = [
        _loss_scale(report.window),
        Fact(
            "Without a scale",
            f"{gone} of the non-zero parameter gradients vanish in FP16",
            Style.WARN if report.share_zeroed else Style.GOOD,
        ),
    ]
    if report.overflowing:
        reached = [f"{name} ({largest:.4g})" for name, largest in report.overflowing.items()]
        names = ", ".join(reached[:2]) + (", ..." if len(reached) > 2 else "")
        text = f"{plural(len(reached), 'value')} beyond 65504: {names}"
        facts.append(Fact("Activations", text, Style.BAD))
    else:
        facts.append(Fact("Activations", "none beyond 65504", Style.GOOD))
    text = f"FP16 weights lose {lost} of them ({report.optimizer}, learning rate {report.learning_rate:g})"
    text += ": keep FP32 master weights" if report.share_lost else ""
    facts.append(Fact("Updates", text, topic=Topic.COST))
    if report.autocast_fp32:
        calls = ", ".join(f"{name} {count}" for name, count in report.autocast_fp32.items())
        facts.append(Fact("Autocast in FP32", calls, topic=Topic.COST))
    losses = f"{report.losses[0]:.4g}" + (f" to {report.losses[-1]:.4g}" if report.batches > 1 else "")
    text = f"{plural(report.batches, 'batch')} forward and backward in FP32, loss {losses}"
    return [*facts, Fact("Evidence", text, topic=Topic.EVIDENCE)]


def _loss_scale(window: ScaleRange) -> Fact:
    label = "Loss scale"
    if window.is_open:
        text = f"2^{window.recommended} (safe from 2^{window.lowest} to 2^{window.highest})"
        return Fact(label, text, Style.GOOD)
    text = f"none rescues all: up to 2^{window.highest} nothing overflows, 2^{window.lowest} would be needed"
    return Fact(label, text, Style.WARN)


_FACTS: dict[type[Report], Callable[..., list[Fact]]] = {
    AnalyzeReport: _analyze,
    PlanReport: _plan,
    TuneReport: _tune,
    RuleAuditReport: _audit,
    ConvertReport: _convert,
    ValidateReport: _validate,
    ExplainReport: _explain,
    DiffReport: _diff,
    TrainAuditReport: _train_audit,
}

_HEADLINES: dict[type[Report], str] = {ValidateReport: "Validated"}
"""Label of the fact that answers, where it is not the first."""


# ---- sections ----


def _answer(report: AnalyzeReport) -> Fact:
    decisions = report.decisions
    total = plural(decisions.fp16 + decisions.mixed + decisions.fp32, "float operator")
    label = "Can go FP16"
    if not report.ok:
        return Fact(label, "no: see the errors below", Style.BAD)
    if any(finding.rule == "already-fp16" for finding in report.findings):
        return Fact(label, "it is in FP16 already", Style.GOOD)
    if decisions.fp16 + decisions.mixed == 0:
        return Fact(label, f"no: all {total} stay in FP32", Style.WARN)
    if decisions.fp32 + decisions.mixed == 0:
        return Fact(label, f"yes, all {total}", Style.GOOD)
    return Fact(label, "yes, with some operators kept in FP32", Style.GOOD)


def _precision(decisions: DecisionSummary) -> Fact:
    total = decisions.fp16 + decisions.mixed + decisions.fp32
    parts = [f"{decisions.fp16} of {plural(total, 'float operator')}"]
    if decisions.macs_share is not None:
        parts.insert(0, f"{format_share(decisions.macs_share)} of MACs")
    if decisions.mixed:
        parts.append(f"{decisions.mixed} mixed")
    return Fact("In FP16", ", ".join(parts), topic=Topic.SAVING)


def _casts(decisions: DecisionSummary) -> Fact:
    return Fact("Casts added", str(decisions.casts), topic=Topic.COST)


def _size(size: Size) -> Fact:
    change = f"{-100.0 * size.saving:+.0f} %" if size.weights_before else "no weights"
    before, after = format_bytes(size.weights_before), format_bytes(size.weights_after)
    return Fact("Weights", f"{before} -> {after} ({change})", topic=Topic.SAVING)


def _prediction(prediction: Prediction | None) -> Fact:
    label, topic = "Predicted time", Topic.SAVING
    if prediction is None:
        return Fact(label, "unknown: the shapes are not known", Style.DIM, topic)
    times = f"{format_seconds(prediction.fp32_seconds)} -> {format_seconds(prediction.plan_seconds)}"
    factor = prediction.speedup
    slower = factor is not None and factor < 1.0
    speed = "" if factor is None else f" ({factor:.2f}x{': slower' if slower else ''})"
    text = f"{times}{speed} on {prediction.device_name}, {prediction.method}"
    return Fact(label, text, Style.WARN if slower else Style.PLAIN, topic)


def _alignment(alignment: AlignmentSummary | None) -> list[Fact]:
    """How many products Tensor Cores can take at full width."""
    if alignment is None:
        return []
    parts = []
    judged = alignment.aligned + alignment.unaligned
    if judged:
        share = (
            "" if alignment.macs_share is None else f", {format_share(alignment.macs_share)} of their MACs"
        )
        parts.append(f"{alignment.aligned} of {plural(judged, 'product')} aligned{share}")
    if alignment.open:
        parts.append(f"{alignment.open if judged else plural(alignment.open, 'product')} of open size")
    return [Fact("Tensor Cores", "; ".join(parts), topic=Topic.SAVING)]


def _half(half: HalfOutcome | None) -> list[Fact]:
    label = "model.half()"
    if half is None:
        return []
    if half.error:
        where = f" at {half.first_overflow}" if half.first_overflow else ""
        return [Fact(label, f"raises an error{where}: {half.error}", Style.BAD)]
    if half.finite is None:
        return [Fact(label, f"not tried: {half.note}", Style.DIM)]
    if not half.finite:
        where = f" first at {half.first_overflow}" if half.first_overflow else ""
        kind = f" ({half.first_overflow_type})" if half.first_overflow_type else ""
        return [Fact(label, f"breaks: NaN or infinity{where}{kind}", Style.BAD, link=half.first_overflow)]
    error = "" if half.rel_l2 is None else f", relative L2 error {format_error(half.rel_l2)}"
    if half.within_tolerance is False:
        text = f"finite, but misses the tolerance{error}"
        return [Fact(label, text, Style.WARN, link=half.first_overflow)]
    return [Fact(label, f"stays within tolerance{error}")]


def _bounds(bounds: BoundsSummary | None) -> list[Fact]:
    """The range of every operator's values, and how much of the plan rests on no data at all."""
    if bounds is None:
        return []
    text = f"{bounds.proven_safe} operators proven safe, {bounds.observed_safe} observed safe, "
    text += f"{bounds.observed_unsafe} observed unsafe, {bounds.unknown} unknown"
    if bounds.plan_share is not None:
        text += f"; {format_share(bounds.plan_share)} of the FP16 plan proven without data"
    return [Fact("Value ranges", text)]


def _evidence(evidence: Evidence | None) -> list[Fact]:
    if evidence is None:
        return []
    if evidence.synthetic:
        if evidence.seed is None:
            made = plural(evidence.batches, "example batch")
        else:
            made = f"{plural(evidence.batches, 'synthetic batch')} (seed {evidence.seed})"
        text = f"{made}: give --data for a real answer"
        return [Fact("Evidence", text, Style.WARN, Topic.EVIDENCE)]
    names = ", ".join(evidence.sources[:2]) + (", ..." if len(evidence.sources) > 2 else "")
    text = f"{plural(evidence.batches, 'batch')} of your data ({names})"
    return [Fact("Evidence", text, topic=Topic.EVIDENCE)]


def _written(output: OutputFile | None) -> Fact:
    if output is None:
        return Fact("Written", "nothing: the tolerance was missed", Style.BAD)
    data = f" + {plural(len(output.external), 'data file')}" if output.external else ""
    return Fact("Written", f"{output.path} ({format_bytes(output.nbytes)}{data})", Style.GOOD)


def _checks(checks: Sequence[Check]) -> list[Fact]:
    good = [check.name for check in checks if check.ok]
    facts = [Fact("Verified", ", ".join(good), Style.GOOD)] if good else []
    for check in checks:
        if check.ok is False:
            facts.append(Fact("Failed", f"{check.name}: {check.detail}", Style.BAD))
        elif check.ok is None:
            facts.append(Fact("Not checked", f"{check.name}: {check.detail}", Style.WARN))
    return facts


def _repairs(repairs: Sequence[Repair]) -> list[Fact]:
    facts = []
    for repair in repairs:
        names = ", ".join(repair.ops[:2]) + (", ..." if len(repair.ops) > 2 else "")
        moved = f"moved {plural(len(repair.ops), 'operator')} to FP32 ({names})"
        text = f"error {format_error(repair.error)}: {moved}"
        facts.append(Fact(f"Repair {repair.round}", text, topic=Topic.COST))
    return facts


def validation_facts(result: ValidationResult | None) -> list[Fact]:
    """The verdict of a comparison and what it rests on; the numbers per output are a table of their own."""
    if result is None:
        return [Fact("Validated", "no", Style.WARN)]
    verdict, style = ("within tolerance", Style.GOOD) if result.ok else ("tolerance missed", Style.BAD)
    facts = [Fact("Validated", f"{verdict} (rtol {result.rtol:g}, atol {result.atol:g})", style)]
    for accuracy in result.accuracy:
        before, after = format_share(accuracy.reference), format_share(accuracy.candidate)
        text = f"{before} -> {after} (FP32 -> FP16, output {accuracy.output})"
        facts.append(Fact("Accuracy", text, topic=Topic.COST))
    facts += [Fact("Note", note, Style.DIM, Topic.EVIDENCE) for note in result.notes]
    for backend in result.backends:
        facts += _backend(backend)
    return facts


def _backend(backend: Backend) -> list[Fact]:
    facts = [Fact("Computed by", backend.description, topic=Topic.EVIDENCE)]
    facts += [Fact("", limit, Style.DIM, Topic.EVIDENCE) for limit in backend.limits]
    if backend.fallbacks:
        names = ", ".join(backend.fallbacks[:2]) + (", ..." if len(backend.fallbacks) > 2 else "")
        text = f"{plural(len(backend.fallbacks), 'operator')}: {names}"
        facts.append(Fact("Not on device", text, Style.BAD))
    return facts
