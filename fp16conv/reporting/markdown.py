"""Markdown renderer: for pull-request comments and job summaries (GitHub Flavored Markdown)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fp16conv.reporting.facts import Topic, facts_of, headline_of, sort_findings
from fp16conv.reporting.layout import Style
from fp16conv.reporting.per_operator import PerOperator
from fp16conv.reporting.report import DecisionSummary, Report, ValidationResult
from fp16conv.reporting.sanitize import clip, sanitize
from fp16conv.reporting.source_lines import located
from fp16conv.reporting.training import TrainAuditReport, format_scales, worst_gradients
from fp16conv.reporting.tuning import TuneReport
from fp16conv.reporting.units import format_error, format_seconds, format_share, plural

__all__ = ["render_markdown"]

MAX_ROWS = 20  # per table: a comment is read, not searched
MAX_TEXT = 300  # columns of a cell
_MARKS = {Style.GOOD: "✅", Style.BAD: "❌", Style.WARN: "⚠️"}
_SPECIAL = re.compile(r"[\\`*_{}\[\]<>|~$&]")
_BREAK = "<!-- -->"  # keeps @name, #1 and addresses from becoming links; renders as nothing


def render_markdown(report: Report) -> str:
    """Render as Markdown: the answer, the facts, what stays FP32, findings, the next command."""
    head = headline_of(report)
    mark = _MARKS.get(head.style, "")
    lines = [f"### {mark} fp16conv: {_prose(head.label)}: {_prose(head.text)}".replace("  ", " "), ""]
    lines += _table(
        ("", ""),
        [
            (_prose(fact.label), f"{_MARKS.get(fact.style, '')} {_prose(fact.text)}".strip())
            for fact in facts_of(report)
            if fact.label and (fact.topic is not Topic.EVIDENCE or fact.label in ("Evidence", "Computed by"))
        ],
    )
    if isinstance(report, TuneReport):
        lines += _frontier(report)
    if isinstance(report, TrainAuditReport):
        lines += _gradients(report)
    lines += _validation(getattr(report, "validation", None))
    lines += _causes(getattr(report, "per_operator", None))
    lines += _kept(report, getattr(report, "decisions", None))
    lines += _findings(report)
    if report.next_command:
        lines += ["**Next**", "", *_fenced(report.next_command), ""]
    return "\n".join(lines).rstrip() + "\n"


def _prose(text: str) -> str:
    r"""Escape text so that it reads as itself and nothing in it links, mentions or formats.

    Example:
        >>> print(_prose("a|b <img> @me #1"))
        a&#124;b &#60;img&#62; @<!-- -->me #<!-- -->1
    """
    safe = _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", clip(sanitize(text), MAX_TEXT))
    safe = re.sub(r"([@#])", rf"\1{_BREAK}", re.sub(r"&#(\d+);", "\0\\1;", safe)).replace("\0", "&#")
    safe = safe.replace("://", f":{_BREAK}//").replace("www.", f"www{_BREAK}.")
    return re.sub(r"^([-+]|\d+[.])(?=\s)", lambda match: f"{_BREAK}{match[0]}", safe)


def _name(text: str) -> str:
    """A name from the model, in a fixed-width font."""
    return f"<code>{_prose(text)}</code>" if text else ""


def _fenced(command: str) -> list[str]:
    command = sanitize(command)
    longest = max((len(run) for run in re.findall(r"`+", command)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}sh", command, fence]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows[:MAX_ROWS]] + _more(len(rows) - MAX_ROWS) + [""]


def _more(count: int) -> list[str]:
    return ["", f"… {plural(count, 'more row')} in the full report"] if count > 0 else []


def _kept(report: Report, decisions: DecisionSummary | None) -> list[str]:
    if decisions is None or not decisions.kept:
        return []
    rows = []
    for group in decisions.kept:
        types = ", ".join(f"{name} {count}" for name, count in list(group.op_types.items())[:3])
        example = _name(located(report, group.examples[0])) if group.examples else ""
        rows.append((str(group.count), _name(group.rule), _prose(types), _prose(group.text), example))
    kept = sum(group.count for group in decisions.kept)
    title = f"<summary>What stays FP32, and why ({plural(kept, 'operator')})</summary>"
    table = _table(("Operators", "Rule", "Types", "Why", "For example"), rows)
    return ["<details>", title, "", *table, "</details>", ""]


def _frontier(report: TuneReport) -> list[str]:
    rows = [
        (
            "✅ chosen" if point.chosen else "" if point.ok else "❌",
            format_error(point.error),
            format_share(point.used),
            f"{format_seconds(point.seconds)} ({point.speedup:.2f}x)",
            str(point.casts),
            format_share(point.macs_share),
            _prose(point.origin),
        )
        for point in report.frontier
    ]
    header = ("", "rel. L2", "of allowed", "predicted", "casts", "FP16 MACs", "found by")
    return ["**Measured plans**", "", *_table(header, rows)] if rows else []


def _gradients(report: TrainAuditReport) -> list[str]:
    rows = [
        (
            _name(note.name),
            note.kind,
            format_share(note.share_zeroed),
            format_scales(note.scales),
            format_error(note.max_abs),
            "-" if note.share_lost is None else format_share(note.share_lost),
        )
        for note in worst_gradients(report.gradients)
    ]
    header = ("Gradients of", "", "vanish at scale 1", "safe scales", "largest", "lost updates")
    return ["**Gradients**", "", *_table(header, rows)] if rows else []


def _findings(report: Report) -> list[str]:
    marks = {"error": "❌ error", "warning": "⚠️ warning", "note": "note"}
    rows = [
        (
            marks[f.severity.value],
            _name(f.rule),
            _name(located(report, f.where)),
            _prose(f.message),
            _prose(f.fix),
        )
        for f in sort_findings(report.findings)
    ]
    return ["**Findings**", "", *_table(("", "Rule", "Where", "What", "Fix"), rows)] if rows else []


def _causes(result: PerOperator | None) -> list[str]:
    if result is None or not result.operators:
        return []
    rows = [
        (format_share(s.share), _name(s.op), _prose(s.op_type), format_error(s.error))
        for s in result.operators
    ]
    lines = ["**Operators that cause the error**", ""]
    return lines + _table(("Share", "Operator", "Type", "its error"), rows)


def _validation(result: ValidationResult | None) -> list[str]:
    if result is None:
        return []
    rows = []
    for backend in result.backends:
        for output in sorted(backend.outputs, key=lambda o: o.ok):
            snr = "-" if output.snr_db is None else f"{output.snr_db:.1f}"
            rows.append(
                (
                    "✅ ok" if output.ok else "❌ missed",
                    _name(output.name),
                    _prose(backend.name),
                    format_error(output.rel_l2),
                    format_error(output.limit),
                    format_error(output.max_abs),
                    snr,
                    "-" if output.top1 is None else format_share(output.top1),
                    _prose("; ".join(output.problems)),
                )
            )
    header = ("", "Output", "Backend", "rel. L2", "limit", "max abs", "SNR dB", "top-1", "")
    lines = _table(header, rows)
    culprits = [(format_share(c.share), _name(c.op), _prose(c.op_type)) for c in result.culprits]
    if culprits:
        lines += ["**Operators that add most of the error**", ""]
        lines += _table(("Share", "Operator", "Type"), culprits)
    return lines
