"""Text of the reports that look closely: one operator, or the difference of two plans or models."""

from __future__ import annotations

from fp16conv.reporting.details import RuleNote, ValueDetail
from fp16conv.reporting.inspection import DiffReport, ExplainReport, Outcome, VariableNote
from fp16conv.reporting.layout import Line, Style, heading, line, wrap
from fp16conv.reporting.sanitize import clip, sanitize
from fp16conv.reporting.units import format_error, format_seconds, format_share, plural

__all__ = ["layout_diff", "layout_explain"]

_WIDTH = 80
_CHANGES = 20
_CASTS = 8


def layout_explain(report: ExplainReport, full: bool) -> list[Line]:
    """Every reason, the numbers, the rules, and what would change the decision; never shortened."""
    op = report.operator
    names = {"fp16": "FP16", "fp32": "FP32", "mixed": "FP16 and FP32", "other": "nothing to decide"}
    lines = [line((row, Style.STRONG)) for row in wrap(f"{op.label}: {names[op.precision]}", _WIDTH)]
    lines += [
        line((row, Style.DIM)) for row in wrap(f"{op.op_type}, in {op.scope} of {report.model_path}", _WIDTH)
    ]
    if op.line:
        lines += [line((row, Style.DIM)) for row in wrap(f"at {op.line}", _WIDTH)]
    lines += [line(), heading("Why")]
    for variable in report.variables:
        lines += _variable(variable)
    if not report.variables:
        lines += _rows("it makes and reads no FP32 tensors", 2)
    if op.outputs:
        lines += [line(), heading("The numbers")]
        for value in op.outputs:
            lines += _value(value)
        if op.error is not None:
            text = (
                f"error before {format_error(op.error_in)}, behind it {format_error(op.error)} (relative L2)"
            )
            lines += _rows(text, 2)
    rules = report.details.rules if report.details is not None else ()
    if rules:
        lines += [line(), heading("The rules")]
        for rule in rules:
            lines += _rule(rule)
    if report.outcomes:
        lines += [line(), heading("What would change it")]
        for outcome in report.outcomes:
            lines += _outcome(outcome)
    return lines


def layout_diff(report: DiffReport, full: bool) -> list[Line]:
    """What changed in precision and casts."""
    before, after = report.casts
    lines = [
        line((clip(sanitize(f"- {report.first}"), _WIDTH, keep_end=True), Style.DIM)),
        line((clip(sanitize(f"+ {report.second}"), _WIDTH, keep_end=True), Style.DIM)),
        line(),
    ]
    if not report.differs:
        return [*lines, line(("no difference", Style.GOOD))]
    changed = f"{plural(len(report.changes), 'operator')} of {report.operators} changed"
    lines.append(line((f"{changed}, casts {before} -> {after}", Style.STRONG)))
    for note in report.notes:
        lines += _rows(note, 2)
    shown = report.changes if full else report.changes[:_CHANGES]
    if shown:
        lines += [line(), heading("Operators")]
    for change in shown:
        where = clip(sanitize(f"{change.op} ({change.op_type})"), _WIDTH - 26, keep_end=True)
        lines.append(line(f"  {change.before:>9} -> {change.after:<10} ", where))
        if change.reason:
            lines += [line((row, Style.DIM)) for row in wrap(change.reason, _WIDTH, indent=" " * 25)]
    lines += _more(len(report.changes) - len(shown))
    for title, casts in (("Casts added", report.casts_added), ("Casts removed", report.casts_removed)):
        if casts:
            some = casts if full else casts[:_CASTS]
            lines += [line(), heading(f"{title} ({len(casts)})")]
            lines += [line("  ", clip(sanitize(cast), _WIDTH - 2, keep_end=True)) for cast in some]
            lines += _more(len(casts) - len(some))
    return lines


def _more(count: int) -> list[Line]:
    return [line((f"  {count} more: see -v or --format json", Style.DIM))] if count > 0 else []


def _rows(text: str, indent: int, style: Style = Style.PLAIN) -> list[Line]:
    return [line((row, style)) for row in wrap(text, _WIDTH, indent=" " * indent)]


def _variable(variable: VariableNote) -> list[Line]:
    dtype = "FP16" if variable.dtype == "float16" else "FP32"
    lines = [line(f"  {variable.symbol}: ", (dtype, Style.STRONG), f" (rules say: {variable.verdict})")]
    for reason in variable.reasons:
        lines += _rows(f"{reason.text} [{reason.rule}, {reason.authority}]", 4)
    return lines


def _value(value: ValueDetail) -> list[Line]:
    shape = (
        "" if value.shape is None else f" [{', '.join('?' if d is None else str(d) for d in value.shape)}]"
    )
    lines = _rows(f"{value.name}: {value.dtype}{shape}", 2)
    if value.bounds is not None:
        lines += _rows(f"{value.bounds[0]:.4g} to {value.bounds[1]:.4g} for all inputs (proven)", 4)
    if value.lo is None or value.hi is None:
        return lines + ([] if value.bounds else _rows("range not known", 4, Style.DIM))
    text = f"{value.lo:.4g} to {value.hi:.4g} ({value.origin})"
    if value.rms is not None:
        text += f", rms {value.rms:.4g}"
    if value.min_abs is not None:
        text += f", smallest non-zero {value.min_abs:.2g}"
    lines += _rows(text, 4)
    shares = (("overflow", value.overflow), ("are subnormal", value.subnormal), ("become zero", value.zeroed))
    words = [f"{format_share(share)} {what}" for what, share in shares if share]
    return lines + _rows("in FP16 " + (", ".join(words) or "all of them fit"), 4)


def _rule(rule: RuleNote) -> list[Line]:
    lines = _rows(f"{rule.id}: {rule.name} ({rule.verdict})", 2, Style.STRONG)
    lines += _rows(rule.rationale, 4) if rule.rationale else []
    for source in rule.sources:
        lines += _rows(f"Source: {source}", 4, Style.DIM)
    return lines


def _outcome(outcome: Outcome) -> list[Line]:
    time = "" if outcome.seconds is None else f", predicted {format_seconds(outcome.seconds)}"
    names = {"fp16": "FP16", "fp32": "FP32", "mixed": "FP16 and FP32"}
    text = f"{names[outcome.precision]}, {plural(outcome.casts, 'cast')} in the plan{time}"
    style = Style.DIM if outcome.current else Style.COMMAND
    return [line("  ", (outcome.change, style)), *_rows(text, 6)]
