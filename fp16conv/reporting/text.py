"""Text renderer: one screen (at most 40 lines of 80 columns) that answers the question of the verb."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fp16conv.reporting.audit import RuleAuditReport
from fp16conv.reporting.closeup import layout_diff, layout_explain
from fp16conv.reporting.facts import Fact, describe_contents, facts_of, sort_findings
from fp16conv.reporting.inspection import DiffReport, ExplainReport
from fp16conv.reporting.layout import Line, Style, heading, line, to_text, wrap
from fp16conv.reporting.per_operator import PerOperator
from fp16conv.reporting.report import (
    AnalyzeReport,
    ConvertReport,
    DecisionSummary,
    KeptGroup,
    ModelFacts,
    OutputCheck,
    PlanReport,
    Report,
    Severity,
    ValidateReport,
    ValidationResult,
)
from fp16conv.reporting.sanitize import clip, display_width, sanitize
from fp16conv.reporting.source_lines import located
from fp16conv.reporting.training import TrainAuditReport, format_scales, worst_gradients
from fp16conv.reporting.tuning import FrontierPoint, TuneReport
from fp16conv.reporting.units import (
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
_PLANS = 7
_RULES = 20
_GRADIENTS = 12
_NAMES = 2

_SEVERITY_STYLE = {Severity.ERROR: Style.BAD, Severity.WARNING: Style.WARN, Severity.NOTE: Style.DIM}


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
    lines = [*_model(report.model), line(), *_facts(report)]
    tail = _findings(report, full) + _next(report.next_command)
    room = None if full else HEIGHT - len(lines) - len(tail)
    return lines + _kept(report, report.decisions, room) + tail


def _plan(report: PlanReport, full: bool) -> list[Line]:
    lines = [line((clip(sanitize(report.model_path), WIDTH, keep_end=True), Style.STRONG)), line()]
    lines += _facts(report)
    tail = _findings(report, full) + _next(report.next_command)
    room = None if full else HEIGHT - len(lines) - len(tail)
    return lines + _kept(report, report.decisions, room) + tail


def _convert(report: ConvertReport, full: bool) -> list[Line]:
    lines = [*_model(report.model), line(), *_facts(report), *_validation(report, report.validation, full)]
    tail = _findings(report, full) + _next(report.next_command)
    return lines + _kept(report, report.decisions, None if full else _KEPT_ROOM) + tail


def _tune(report: TuneReport, full: bool) -> list[Line]:
    lines = [*_model(report.model), line(), *_facts(report), *_frontier(report.frontier, full)]
    if report.roundings:
        lines += [line(), heading("Roundings that add most error (of what is allowed)")]
        for rounding in report.roundings if full else report.roundings[:_GROUPS]:
            name = f"{rounding.what} of {rounding.op}" + (
                f" ({rounding.op_type})" if rounding.op_type else ""
            )
            name += "" if rounding.resolved else ", with neighbours"
            lines.append(line(f"{format_share(rounding.used):>9}  ", clip(sanitize(name), WIDTH - 12)))
    return lines + _findings(report, full) + _next(report.next_command)


def _per_operator(result: PerOperator, full: bool) -> list[Line]:
    lines = [line(), heading(f"{'Share':>9}{'own error':>11}  Operator (type, pattern)")]
    for item in result.operators if full else result.operators[:_OUTPUTS]:
        kind = ", ".join(part for part in (item.op_type, item.pattern) if part)
        tail = f" ({kind})" if kind else ""
        tail += "" if item.resolved else ", with neighbours"
        name = clip(sanitize(item.op), max(WIDTH - 22 - display_width(tail), 8), keep_end=True)
        lines.append(
            line(f"{format_share(item.share):>9}{format_error(item.error):>11}  ", clip(name + tail, 57))
        )
    if not result.operators:
        lines.append(line(("      none: the outputs are equal", Style.DIM)))
    if result.first:
        where = f"{result.first} ({result.first_type})"
        text = f"first result beyond the tolerance: {where}, error {format_error(result.first_error)}"
    else:
        text = "no single result is beyond the tolerance"
    return lines + [line((row, Style.DIM)) for row in wrap(text, WIDTH, indent="  ")]


def _audit(report: RuleAuditReport, full: bool) -> list[Line]:
    lines = [*_model(report.model), line(), *_facts(report)]
    head = f"{'operators':>10}{'casts':>7}{'time':>10}{'rel. L2':>10}{'of allowed':>12}"
    lines += [line(), heading(f"{'Without the rule':<28}{head}")]
    for effect in report.effects if full else report.effects[:_RULES]:
        name = clip(sanitize(effect.rule), 27)
        name += " " * (28 - display_width(name))
        sign = "-" if effect.seconds >= 0 else "+"
        time = f"{sign}{format_seconds(abs(effect.seconds))}" if effect.changed else "-"
        used = format_share(effect.used) if effect.used < 100 else "breaks"
        numbers = (
            f"{effect.changed:>5} of {effect.operators:<2}{-effect.casts:>+7}{time:>10}"
            f"{format_error(effect.error):>10}{used:>12}"
        )
        lines.append(line(name, (numbers, Style.PLAIN if effect.ok else Style.BAD)))
    if len(report.effects) > _RULES and not full:
        more = plural(len(report.effects) - _RULES, "more rule")
        lines.append(line((f"{more}: see -v or --format json", Style.DIM)))
    return lines + _findings(report, full) + _next(report.next_command)


def _frontier(points: Sequence[FrontierPoint], full: bool) -> list[Line]:
    head = f"{'rel. L2':>9}{'of allowed':>12}{'predicted':>11}{'speedup':>9}{'casts':>7}{'FP16 MACs':>11}"
    head += "  found by"
    lines = [line(), heading(f"  {head}")]
    shown = list(points) if full else _around(points)
    for point in shown:
        numbers = (
            f"{format_error(point.error):>9}{format_share(point.used) if point.used < 100 else '-':>12}"
            f"{format_seconds(point.seconds):>11}{point.speedup:>8.2f}x{point.casts:>7}"
            f"{format_share(point.macs_share):>11}  "
        )
        style = Style.STRONG if point.chosen else Style.PLAIN if point.ok else Style.DIM
        lines.append(line("> " if point.chosen else "  ", (numbers + clip(point.origin, 15), style)))
    if len(points) > len(shown):
        more = plural(len(points) - len(shown), "more plan")
        lines.append(line((f"  {more}: see -v or --format json", Style.DIM)))
    return lines


def _around(points: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    """The plans next to the chosen one."""
    chosen = next((i for i, point in enumerate(points) if point.chosen), len(points) - 1)
    first = max(min(chosen - _PLANS // 2, len(points) - _PLANS), 0)
    return list(points[first : first + _PLANS])


def _validate(report: ValidateReport, full: bool) -> list[Line]:
    lines = _facts(report) + _validation(report, report.validation, full)
    if report.per_operator is not None:
        lines += _per_operator(report.per_operator, full)
    return lines + _findings(report, full) + _next(report.next_command)


def _train_audit(report: TrainAuditReport, full: bool) -> list[Line]:
    lines = [line((clip(sanitize(report.source), WIDTH, keep_end=True), Style.STRONG)), line()]
    lines += _facts(report)
    worst = report.gradients if full else worst_gradients(report.gradients)[:_GRADIENTS]
    if worst:
        head = f"{'vanish':>9}{'safe scales':>15}{'largest':>10}{'lost':>9}  "
        lines += [line(), heading(f"{head}Gradients of")]
    for note in worst:
        lost = "-" if note.share_lost is None else format_share(note.share_lost)
        numbers = f"{format_share(note.share_zeroed):>9}{format_scales(note.scales):>15}"
        numbers += f"{format_error(note.max_abs):>10}{lost:>9}  "
        kind = "" if note.kind == "parameter" else f" ({note.kind})"
        name = clip(sanitize(note.name), WIDTH - display_width(numbers + kind), keep_end=True)
        closed = note.scales is not None and not note.scales.is_open
        lines.append(line((numbers, Style.WARN if closed else Style.PLAIN), name + kind))
    if len(report.gradients) > len(worst):
        more = f"{len(report.gradients) - len(worst)} more: see -v or --format json"
        lines.append(line((f"         {more}", Style.DIM)))
    return lines + _findings(report, full) + _next(report.next_command)


_LAYOUTS: dict[type[Report], Callable[..., list[Line]]] = {
    AnalyzeReport: _analyze,
    PlanReport: _plan,
    TuneReport: _tune,
    RuleAuditReport: _audit,
    ConvertReport: _convert,
    ValidateReport: _validate,
    ExplainReport: layout_explain,
    DiffReport: layout_diff,
    TrainAuditReport: _train_audit,
}


# ---- sections ----


def _facts(report: Report) -> list[Line]:
    return [row for fact in facts_of(report) for row in _fact(fact)]


def _fact(fact: Fact) -> list[Line]:
    """A label and its text, wrapped beside it to three lines at most."""
    rows = wrap(fact.text, WIDTH - _LABEL, limit=3)
    first = line((fact.label.ljust(_LABEL), Style.DIM), (rows[0], fact.style))
    return [first] + [line(" " * _LABEL, (row, fact.style)) for row in rows[1:]]


def _model(model: ModelFacts) -> list[Line]:
    top = [f"{name} {count}" for name, count in list(model.op_types.items())[:6]]
    rest = len(model.op_types) - len(top)
    types = ", ".join(top) + (f", {plural(rest, 'more type')}" if rest > 0 else "")
    path = clip(sanitize(model.path), WIDTH, keep_end=True)
    lines = [line((path, Style.STRONG))]
    lines += [line((row, Style.DIM)) for row in wrap(describe_contents(model), WIDTH)]
    return lines + [line((row, Style.DIM)) for row in wrap(types, WIDTH, limit=2)]


def _kept(report: Report, decisions: DecisionSummary, room: int | None) -> list[Line]:
    """Groups of what stays FP32: as many as fit into `room` lines (all if None)."""
    if not decisions.kept:
        return []
    lines = [line(), heading("What stays FP32, and why")]
    shown = 0
    for group in decisions.kept:
        rows = _group(report, group, full=room is None)
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


def _group(report: Report, group: KeptGroup, *, full: bool) -> list[Line]:
    types = ", ".join(f"{name} {count}" for name, count in list(group.op_types.items())[:3])
    types += ", ..." if len(group.op_types) > 3 else ""
    share = f", {format_share(group.macs_share)} of MACs" if group.macs_share else ""
    by = "" if group.authority == "built-in" else f" [{group.authority}]"
    title = clip(sanitize(f"{group.rule}{by}: {types}{share}"), WIDTH - 8)
    lines = [line((f"{group.count:>6}  ", Style.DIM), (title, Style.STRONG))]
    lines += [line(row) for row in wrap(group.text, WIDTH, indent=" " * 8, limit=None if full else 2)]
    labels = [located(report, label) for label in group.examples]
    few = 1 if labels[:1] != list(group.examples[:1]) else _NAMES  # a line needs room
    names = _names(labels, len(group.examples) if full else few, group.count)
    rows = wrap(f"at {names}", WIDTH, indent=" " * 8, limit=None if full else 1)
    return lines + [line((row, Style.DIM)) for row in rows]


def _names(labels: Sequence[str], most: int, total: int) -> str:
    room = (WIDTH - 20) // max(1, min(most, 2))
    text = ", ".join(clip(sanitize(name), room, keep_end=True) for name in labels[:most])
    return text + (", ..." if total > min(most, len(labels)) else "")


def _findings(report: Report, full: bool) -> list[Line]:
    ordered = sort_findings(report.findings)
    if not ordered:
        return []
    lines = [line(), heading("Findings")]
    shown = ordered if full else ordered[:_FINDINGS]
    for finding in shown:
        place = clip(sanitize(located(report, finding.where)), 40, keep_end=True)
        where = f" at {place}" if finding.where else ""
        rows = wrap(
            f"{finding.rule}{where}: {finding.message}", WIDTH, indent=" " * 9, limit=None if full else 2
        )
        if finding.fix:
            rows += wrap(f"-> {finding.fix}", WIDTH, indent=" " * 9, limit=None if full else 2)
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


def _validation(report: Report, result: ValidationResult | None, full: bool) -> list[Line]:
    if result is None:
        return []
    lines = []
    for backend in result.backends:
        title = "Output" if len(result.backends) == 1 else f"Output ({backend.name})"
        lines += _outputs(title, backend.outputs, full)
    if result.culprits:
        lines += [line(), heading("Operators that add most of the error")]
        for culprit in result.culprits if full else result.culprits[:_GROUPS]:
            label = sanitize(f"{located(report, culprit.op)} ({culprit.op_type})")
            name = clip(label, WIDTH - 12, keep_end=True)
            lines.append(line(f"{format_share(culprit.share):>9}  ", name))
    return lines


def _outputs(title: str, outputs: Sequence[OutputCheck], full: bool) -> list[Line]:
    numbers = f"{'rel. L2':>9}{'limit':>9}{'max abs':>9}{'SNR dB':>8}{'top-1':>8}  verdict"
    lines = [line(), heading(f"{title:<28}{numbers}")]
    ordered = sorted(outputs, key=lambda o: o.ok)
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
