"""Text renderer: one screen (at most 40 lines of 80 columns) that answers the question of the verb."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fp16conv.reporting.layout import Line, Style, heading, line, to_text, wrap
from fp16conv.reporting.report import (
    AnalyzeReport,
    Backend,
    ConvertReport,
    DecisionSummary,
    Evidence,
    Finding,
    HalfOutcome,
    KeptGroup,
    ModelFacts,
    OutputCheck,
    PlanReport,
    Prediction,
    Repair,
    Report,
    Severity,
    Size,
    ValidateReport,
    ValidationResult,
)
from fp16conv.reporting.sanitize import clip, display_width, sanitize
from fp16conv.reporting.units import (
    format_bytes,
    format_count,
    format_error,
    format_seconds,
    format_share,
    plural,
)

__all__ = ["HEIGHT", "WIDTH", "layout_report", "render_text"]

WIDTH = 80
HEIGHT = 40
_LABEL = 17  # columns of the left-hand labels
_GROUPS = 5
_FINDINGS = 2
_KEPT_ROOM = 12  # lines, beside the measurements of a conversion
_OUTPUTS = 12
_NAMES = 2

_SEVERITY_STYLE = {Severity.ERROR: Style.BAD, Severity.WARNING: Style.WARN, Severity.NOTE: Style.DIM}
_SEVERITY_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def render_text(report: Report) -> str:
    """Render as plain text of at most 80 columns."""
    return to_text(layout_report(report))


def layout_report(report: Report, *, full: bool = False) -> list[Line]:
    """Lay a report out as styled lines.

    Args:
        report: any report class of `reporting.report`.
        full: show every group, finding and output instead of one screen.

    Returns:
        Lines of at most 80 columns, sanitised.
    """
    for kind, layout in _LAYOUTS.items():
        if isinstance(report, kind):
            return layout(report, full)
    raise TypeError(f"no text layout for {type(report).__name__}")


# ---- verbs ----


def _analyze(report: AnalyzeReport, full: bool) -> list[Line]:
    lines = _model(report.model)
    lines += [line()]
    lines += _answer(report)
    lines += _size(report.size)
    lines += _field("Casts added", str(report.decisions.casts))
    lines += _prediction(report.prediction)
    lines += _half(report.half)
    lines += _evidence(report.evidence)
    tail = _findings(report.findings, full) + _next(report.next_command)
    room = None if full else HEIGHT - len(lines) - len(tail)
    return lines + _kept(report.decisions, room) + tail


def _plan(report: PlanReport, full: bool) -> list[Line]:
    lines = [line((clip(sanitize(report.model_path), WIDTH, keep_end=True), Style.STRONG)), line()]
    lines += _precision(report.decisions)
    lines += _field("Casts", str(report.decisions.casts))
    lines += _prediction(report.prediction)
    if report.plan_path:
        lines += _field("Plan", report.plan_path)
    tail = _findings(report.findings, full) + _next(report.next_command)
    room = None if full else HEIGHT - len(lines) - len(tail)
    return lines + _kept(report.decisions, room) + tail


def _convert(report: ConvertReport, full: bool) -> list[Line]:
    lines = [*_model(report.model), line()]
    lines += _written(report)
    lines += _precision(report.decisions)
    lines += _size(report.size)
    lines += _field("Casts added", str(report.decisions.casts))
    lines += _prediction(report.prediction)
    lines += _checks(report)
    lines += _evidence(report.evidence)
    lines += _repairs(report.repairs)
    lines += _validation(report.validation, full)
    tail = _findings(report.findings, full) + _next(report.next_command)
    return lines + _kept(report.decisions, None if full else _KEPT_ROOM) + tail


def _validate(report: ValidateReport, full: bool) -> list[Line]:
    lines = _field("Reference", report.reference) + _field("Candidate", report.candidate)
    lines += _evidence(report.evidence)
    lines += _validation(report.validation, full)
    return lines + _findings(report.findings, full) + _next(report.next_command)


_LAYOUTS: dict[type[Report], Callable[..., list[Line]]] = {
    AnalyzeReport: _analyze,
    PlanReport: _plan,
    ConvertReport: _convert,
    ValidateReport: _validate,
}


# ---- sections ----


def _field(label: str, text: str, style: Style = Style.PLAIN, limit: int | None = 3) -> list[Line]:
    """A label and its text, wrapped beside it."""
    rows = wrap(text, WIDTH - _LABEL, limit=limit)
    first = line((label.ljust(_LABEL), Style.DIM), (rows[0], style))
    return [first] + [line(" " * _LABEL, (row, style)) for row in rows[1:]]


def _model(model: ModelFacts) -> list[Line]:
    opset = model.opsets.get("", model.opsets.get("ai.onnx"))
    facts = [f"opset {opset}"] if opset is not None else []
    facts += [plural(model.ops, "operator"), f"{format_bytes(model.weights)} of weights"]
    if model.macs is not None:
        facts.append(f"{format_count(model.macs)} MACs")
    top = [f"{name} {count}" for name, count in list(model.op_types.items())[:6]]
    rest = len(model.op_types) - len(top)
    types = ", ".join(top) + (f", {plural(rest, 'more type')}" if rest > 0 else "")
    path = clip(sanitize(model.path), WIDTH, keep_end=True)
    lines = [line((path, Style.STRONG)), *(line((row, Style.DIM)) for row in wrap(", ".join(facts), WIDTH))]
    return lines + [line((row, Style.DIM)) for row in wrap(types, WIDTH, limit=2)]


def _answer(report: AnalyzeReport) -> list[Line]:
    decisions = report.decisions
    total = decisions.fp16 + decisions.mixed + decisions.fp32
    if not report.ok:
        text, style = "no: see the errors below", Style.BAD
    elif decisions.fp16 + decisions.mixed == 0:
        text, style = f"no: all {plural(total, 'float operator')} stay in FP32", Style.WARN
    elif decisions.fp32 + decisions.mixed == 0:
        text, style = f"yes, all {plural(total, 'float operator')}", Style.GOOD
    else:
        text, style = "yes, with some operators kept in FP32", Style.GOOD
    return _field("Can go FP16", text, style) + _precision(decisions)


def _precision(decisions: DecisionSummary) -> list[Line]:
    total = decisions.fp16 + decisions.mixed + decisions.fp32
    parts = [f"{decisions.fp16} of {plural(total, 'float operator')}"]
    if decisions.macs_share is not None:
        parts.insert(0, f"{format_share(decisions.macs_share)} of MACs")
    if decisions.mixed:
        parts.append(f"{decisions.mixed} mixed")
    return _field("In FP16", ", ".join(parts))


def _size(size: Size) -> list[Line]:
    change = f"{-100.0 * size.saving:+.0f} %" if size.weights_before else "no weights"
    before, after = format_bytes(size.weights_before), format_bytes(size.weights_after)
    return _field("Weights", f"{before} -> {after} ({change})")


def _prediction(prediction: Prediction | None) -> list[Line]:
    if prediction is None:
        return _field("Predicted time", "unknown: the shapes are not known", Style.DIM)
    times = f"{format_seconds(prediction.fp32_seconds)} -> {format_seconds(prediction.plan_seconds)}"
    factor = prediction.speedup
    slower = factor is not None and factor < 1.0
    speed = "" if factor is None else f" ({factor:.2f}x{': slower' if slower else ''})"
    text = f"{times}{speed} on {prediction.device_name}, {prediction.method}"
    return _field("Predicted time", text, Style.WARN if slower else Style.PLAIN)


def _half(half: HalfOutcome | None) -> list[Line]:
    label = "model.half()"
    if half is None:
        return []
    if half.finite is None:
        return _field(label, f"not tried: {half.note}", Style.DIM)
    if not half.finite:
        where = f" first at {half.first_overflow}" if half.first_overflow else ""
        kind = f" ({half.first_overflow_type})" if half.first_overflow_type else ""
        return _field(label, f"breaks: NaN or infinity{where}{kind}", Style.BAD)
    error = "" if half.rel_l2 is None else f", relative L2 error {format_error(half.rel_l2)}"
    if half.within_tolerance is False:
        return _field(label, f"finite, but misses the tolerance{error}", Style.WARN)
    return _field(label, f"stays within tolerance{error}")


def _evidence(evidence: Evidence | None) -> list[Line]:
    if evidence is None:
        return []
    if evidence.synthetic:
        seed = "" if evidence.seed is None else f" (seed {evidence.seed})"
        text = f"{plural(evidence.batches, 'synthetic batch')}{seed}: give --data for a real answer"
        return _field("Evidence", text, Style.WARN)
    names = ", ".join(evidence.sources[:2]) + (", ..." if len(evidence.sources) > 2 else "")
    batches = plural(evidence.batches, "batch")
    return _field("Evidence", f"{batches} of your data ({names})")


def _kept(decisions: DecisionSummary, room: int | None) -> list[Line]:
    """Groups of what stays FP32: as many as fit into `room` lines (all if None)."""
    if not decisions.kept:
        return []
    lines = [line(), heading("What stays FP32, and why")]
    shown = 0
    for group in decisions.kept:
        rows = _group(group, full=room is None)
        if room is not None and (shown >= _GROUPS or len(lines) + len(rows) > room - 1):
            break
        lines += rows
        shown += 1
    rest = decisions.kept[shown:]
    if rest:
        ops = sum(group.count for group in rest)
        more = f"{plural(len(rest), 'more reason')} ({plural(ops, 'operator')}): see -v or --format json"
        lines.append(line((" " * 8 + more, Style.DIM)))
    return lines


def _group(group: KeptGroup, *, full: bool) -> list[Line]:
    types = ", ".join(f"{name} {count}" for name, count in list(group.op_types.items())[:3])
    types += ", ..." if len(group.op_types) > 3 else ""
    share = f", {format_share(group.macs_share)} of MACs" if group.macs_share else ""
    by = "" if group.authority == "built-in" else f" [{group.authority}]"
    title = clip(sanitize(f"{group.rule}{by}: {types}{share}"), WIDTH - 8)
    lines = [line((f"{group.count:>6}  ", Style.DIM), (title, Style.STRONG))]
    lines += [line(row) for row in wrap(group.text, WIDTH, indent=" " * 8, limit=None if full else 2)]
    names = _names(group.examples, len(group.examples) if full else _NAMES, group.count)
    rows = wrap(f"at {names}", WIDTH, indent=" " * 8, limit=None if full else 1)
    return lines + [line((row, Style.DIM)) for row in rows]


def _names(labels: Sequence[str], most: int, total: int) -> str:
    room = (WIDTH - 20) // max(1, min(most, 2))
    text = ", ".join(clip(sanitize(name), room, keep_end=True) for name in labels[:most])
    return text + (", ..." if total > min(most, len(labels)) else "")


def _findings(findings: Sequence[Finding], full: bool) -> list[Line]:
    ordered = sorted(findings, key=lambda f: _SEVERITY_ORDER[f.severity])
    if not ordered:
        return []
    lines = [line(), heading("Findings")]
    shown = ordered if full else ordered[:_FINDINGS]
    for finding in shown:
        where = f" at {clip(sanitize(finding.where), 40, keep_end=True)}" if finding.where else ""
        rows = wrap(
            f"{finding.rule}{where}: {finding.message}", WIDTH, indent=" " * 9, limit=None if full else 2
        )
        if finding.fix:
            rows += wrap(f"-> {finding.fix}", WIDTH, indent=" " * 9, limit=None if full else 1)
        label = finding.severity.value.ljust(9)
        lines.append(line((label, _SEVERITY_STYLE[finding.severity]), rows[0][9:]))
        lines += [line(row) for row in rows[1:]]
    if len(ordered) > len(shown):
        lines.append(line((f"         {len(ordered) - len(shown)} more: see -v or --format json", Style.DIM)))
    return lines


def _next(command: str) -> list[Line]:
    if not command:
        return []
    # A command is never cut or broken: it is there to be copied.
    return [line(), heading("Next"), line("  ", (command, Style.COMMAND))]


def _written(report: ConvertReport) -> list[Line]:
    if report.output is None:
        return _field("Written", "nothing: the tolerance was missed", Style.BAD)
    output = report.output
    data = f" + {plural(len(output.external), 'data file')}" if output.external else ""
    return _field("Written", f"{output.path} ({format_bytes(output.nbytes)}{data})", Style.GOOD)


def _checks(report: ConvertReport) -> list[Line]:
    if not report.checks:
        return []
    good = [check.name for check in report.checks if check.ok]
    lines = _field("Verified", ", ".join(good), Style.GOOD) if good else []
    for check in report.checks:
        if check.ok is False:
            lines += _field("Failed", f"{check.name}: {check.detail}", Style.BAD)
        elif check.ok is None:
            lines += _field("Not checked", f"{check.name}: {check.detail}", Style.WARN)
    return lines


def _repairs(repairs: Sequence[Repair]) -> list[Line]:
    lines: list[Line] = []
    for repair in repairs:
        names = _names(repair.ops, _NAMES, len(repair.ops))
        moved = f"moved {plural(len(repair.ops), 'operator')} to FP32 ({names})"
        text = f"error {format_error(repair.error)}: {moved}"
        lines += _field(f"Repair {repair.round}", text)
    return lines


def _validation(result: ValidationResult | None, full: bool) -> list[Line]:
    if result is None:
        return _field("Validated", "no", Style.WARN)
    verdict, style = ("within tolerance", Style.GOOD) if result.ok else ("tolerance missed", Style.BAD)
    lines = _field("Validated", f"{verdict} (rtol {result.rtol:g}, atol {result.atol:g})", style)
    for accuracy in result.accuracy:
        before, after = format_share(accuracy.reference), format_share(accuracy.candidate)
        lines += _field("Accuracy", f"{before} -> {after} (FP32 -> FP16, output {accuracy.output})")
    for note in result.notes:
        lines += _field("Note", note, Style.DIM)
    for backend in result.backends:
        lines += _backend(backend, full)
    if result.culprits:
        lines += [line(), heading("Operators that add most of the error")]
        for culprit in result.culprits if full else result.culprits[:_GROUPS]:
            name = clip(sanitize(f"{culprit.op} ({culprit.op_type})"), WIDTH - 12, keep_end=True)
            lines.append(line(f"{format_share(culprit.share):>9}  ", name))
    return lines


def _backend(backend: Backend, full: bool) -> list[Line]:
    lines = _field("Computed by", backend.description)
    for limit in backend.limits:
        lines += _field("", limit, Style.DIM)
    if backend.fallbacks:
        names = _names(backend.fallbacks, _NAMES, len(backend.fallbacks))
        lines += _field("Not on device", f"{plural(len(backend.fallbacks), 'operator')}: {names}", Style.BAD)
    numbers = f"{'rel. L2':>9}{'limit':>9}{'max abs':>9}{'SNR dB':>8}{'top-1':>8}  verdict"
    lines += [line(), heading(f"{'Output':<28}{numbers}")]
    ordered = sorted(backend.outputs, key=lambda o: o.ok)
    shown = ordered if full else ordered[:_OUTPUTS]
    for output in shown:
        lines += _output(output, full)
    if len(ordered) > len(shown):
        more = plural(len(ordered) - len(shown), "more output")
        lines.append(line((f"{more}: see -v or --format json", Style.DIM)))
    return lines


def _output(output: OutputCheck, full: bool) -> list[Line]:
    name = clip(sanitize(output.name), 27, keep_end=True)
    name += " " * (28 - display_width(name))
    snr = "-" if output.snr_db is None else f"{output.snr_db:.1f}"
    top1 = "-" if output.top1 is None else format_share(output.top1)
    numbers = (
        f"{format_error(output.rel_l2):>9}{format_error(output.limit):>9}{format_error(output.max_abs):>9}"
        f"{snr:>8}{top1:>8}  "
    )
    verdict = ("ok", Style.GOOD) if output.ok else ("missed", Style.BAD)
    rows = wrap("; ".join(output.problems), WIDTH, indent="  ", limit=None if full else 2)
    lines = [line(name, numbers, verdict)]
    return lines + [line((row, Style.BAD)) for row in rows if output.problems]
