"""HTML renderer: one self-contained page that works from disk, without a network and without a server.

Text from a model is never trusted: static text is escaped here, the rest is data that the page's script turns
into text nodes. A Content-Security-Policy admits only the script and the style that this file put in.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path, PurePath

from fp16conv.reporting.facts import Fact, Topic, describe_contents, facts_of, headline_of, sort_findings
from fp16conv.reporting.layout import Style
from fp16conv.reporting.payload import build_payload, dump_safely
from fp16conv.reporting.per_operator import PerOperator
from fp16conv.reporting.report import DecisionSummary, ModelFacts, Report, Severity, ValidationResult, dump
from fp16conv.reporting.sanitize import sanitize
from fp16conv.reporting.training import ScaleRange, TrainAuditReport, format_scales
from fp16conv.reporting.units import format_bytes, format_error, format_seconds, format_share, plural

__all__ = ["render_html"]

_ASSETS = Path(__file__).parent / "assets"
_CLASS = {Style.GOOD: "good", Style.BAD: "bad", Style.WARN: "warn"}
_MARK = {Style.GOOD: "✓", Style.BAD: "✗", Style.WARN: "!"}
_QUESTIONS = (
    (Topic.SAFETY, "Is it safe?"),
    (Topic.SAVING, "What does it save?"),
    (Topic.COST, "What does it cost?"),
)
_SEVERITY = {Severity.ERROR: ("✗", "bad"), Severity.WARNING: ("!", "warn"), Severity.NOTE: ("i", "dim")}


def render_html(report: Report) -> str:
    """Render as one HTML file. With `report.details`, every operator can be searched in it."""
    style = _asset("uplot.min.css") + _asset("report.css")
    library, script = _asset("uplot.min.js"), _asset("report.js")
    verb = report.schema.partition("/")[0].rpartition(".")[2]
    model = getattr(report, "model", None)
    decisions = getattr(report, "decisions", None)
    sections = [
        ("findings", "Findings", _findings(report)),
        ("kept", "What stays FP32", _kept(report, decisions)),
        ("outputs", "Outputs", _outputs(report, getattr(report, "validation", None))),
        ("causes", "Causes", _causes(report, getattr(report, "per_operator", None))),
        ("frontier", "Frontier", _frontier(report)),
        ("gradients", "Gradients", _gradients(report)),
    ]
    links = [(name, title) for name, title, body in sections if body]
    details = ""
    if report.details is not None and report.details.operators:
        note = report.details.error_note
        details = _asset("details.html").replace(
            "@note@", _text(note or "not measured: the model did not run here")
        )
        links += [("map", "Map"), ("depth-section", "Error"), ("operators", "Operators")]
    fields = {
        "csp": _policy(style, library, script),
        "style": style,
        "title": _text(f"fp16conv {verb}: {_subject(report)}"),
        "verb": _text(verb),
        "nav": "".join(f'<a href="#{name}">{_text(title)}</a>' for name, title in links),
        "name": _text(PurePath(_subject(report)).name or _subject(report)),
        "subject": _text(_subject(report)),
        "contents": _text(describe_contents(model)) if isinstance(model, ModelFacts) else "",
        "verdict": _verdict(report),
        "cards": _cards(report),
        "next": _next(report.next_command),
        "sections": "".join(body for _, _, body in sections) + details,
        "about": _about(report),
        "data": dump_safely(build_payload(report)),
        "library": library,
        "script": script,
        "license": _text_lines(_asset("uplot.LICENSE")),
    }
    parts = _asset("page.html").split("@@")
    return "".join(fields[part] if index % 2 else part for index, part in enumerate(parts))


@cache
def _asset(name: str) -> str:
    """A file of the page, as it is put in."""
    return (_ASSETS / name).read_text(encoding="utf-8").strip() + "\n"


def _policy(style: str, *scripts: str) -> str:
    """Nothing may be loaded, and only what is in this file may run (CSP level 2 hashes)."""

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; style-src {digest(style)}; script-src {' '.join(map(digest, scripts))}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _text(text: str) -> str:
    return escape(sanitize(text), quote=True)


def _text_lines(text: str) -> str:
    return "\n".join(map(_text, text.splitlines()))


def _subject(report: Report) -> str:
    for name in ("model_path", "candidate", "source"):
        if hasattr(report, name):
            return str(getattr(report, name))
    model = getattr(report, "model", None)
    return model.path if isinstance(model, ModelFacts) else "model"


# ---- first screen ----


def _verdict(report: Report) -> str:
    head = headline_of(report)
    kind, mark = _CLASS.get(head.style, ""), _MARK.get(head.style, "•")
    return (
        f'<div class="verdict {kind}" role="status"><span class="mark" aria-hidden="true">{mark}</span>'
        f"<span><small>{_text(head.label)}</small>{_text(head.text)}</span></div>"
    )


def _cards(report: Report) -> str:
    head = headline_of(report)
    facts = [fact for fact in facts_of(report) if fact != head]
    notes = [f for f in facts if f.topic is Topic.EVIDENCE and f.style is Style.DIM]
    safety = [f for f in facts if f.topic in (Topic.SAFETY, Topic.EVIDENCE) and f not in notes]
    safety.sort(key=lambda f: f.topic is Topic.EVIDENCE)
    groups = {
        Topic.SAFETY: safety,
        Topic.SAVING: [f for f in facts if f.topic is Topic.SAVING],
        Topic.COST: [*(f for f in facts if f.topic is Topic.COST), *_costs(report)],
    }
    cards = []
    for topic, question in _QUESTIONS:
        if not groups[topic]:
            continue
        rows = "".join(map(_fact, groups[topic]))
        cards.append(f'<section class="card"><h2>{question}</h2><dl>{rows}</dl></section>')
    page = f'<div class="cards">{"".join(cards)}</div>'
    if notes:
        items = "".join(f"<li>{_text(fact.text)}</li>" for fact in notes)
        page += f'<details class="notes"><summary>What this cannot show</summary><ul>{items}</ul></details>'
    return page


def _costs(report: Report) -> list[Fact]:
    facts = []
    decisions = getattr(report, "decisions", None)
    if isinstance(decisions, DecisionSummary) and decisions.kept:
        kept = plural(sum(group.count for group in decisions.kept), "operator")
        text = f"{kept}, for {plural(len(decisions.kept), 'reason')}"
        facts.append(Fact("Kept in FP32", text, link="#kept"))
    result = getattr(report, "validation", None)
    if isinstance(result, ValidationResult):
        errors = [o.rel_l2 for b in result.backends[:1] for o in b.outputs if o.rel_l2 is not None]
        if errors:
            facts.append(Fact("Largest error", f"relative L2 {format_error(max(errors))}"))
    counts = [sum(f.severity is s for f in report.findings) for s in (Severity.ERROR, Severity.WARNING)]
    if any(counts):
        style = Style.BAD if counts[0] else Style.WARN
        words = [plural(n, word) for n, word in zip(counts, ("error", "warning"), strict=True) if n]
        facts.append(Fact("Findings", ", ".join(words), style, link="#findings"))
    return facts


def _fact(fact: Fact) -> str:
    kind = _CLASS.get(fact.style, "")
    mark = f'<span class="mark {kind}" aria-hidden="true">{_MARK[fact.style]} </span>' if kind else ""
    dim = ' class="dim"' if fact.style is Style.DIM else ""
    label = f"<dt>{_text(fact.label)}</dt>" if fact.label else ""
    text = _text(fact.text)
    if fact.link.startswith("#"):
        text = f'<a href="{_text(fact.link)}">{text}</a>'
    elif fact.link:
        text += f' <span class="needs-js" data-op="{_text(fact.link)}">why</span>'
    return f"{label}<dd{dim}>{mark}{text}</dd>"


def _next(command: str) -> str:
    if not command:
        return ""
    copy = '<button type="button" class="needs-js" data-copy="command">Copy</button>'
    return (
        f'<section class="next"><h2>What to do next</h2><div><pre id="command">{_text(command)}</pre>'
        f"{copy}</div></section>"
    )


# ---- sections ----


def _section(name: str, title: str, body: str) -> str:
    return f'<section id="{name}"><h2>{_text(title)}</h2>{body}</section>' if body else ""


def _table(header: Sequence[tuple[str, str]], rows: Iterable[str], kind: str = "") -> str:
    """A table from (title, class) pairs and finished rows; `stacked`: below each other on a phone."""
    head = "".join(f'<th scope="col" class="{align}">{_text(title)}</th>' for title, align in header)
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table class="{kind}">{body}</table></div>'


def _row(*cells: tuple[str, str]) -> str:
    """A row from (finished HTML, class) pairs."""
    return "<tr>" + "".join(f'<td class="{kind}">{html}</td>' for html, kind in cells) + "</tr>"


def _op(report: Report, label: str) -> str:
    """An operator, and behind it the source line where one is known."""
    line = report.source_lines.get(label)
    where = "" if line is None else f' <span class="dim mono">{_text(line)}</span>'
    return f'<span class="mono" data-op="{_text(label)}">{_text(label)}</span>{where}'


def _findings(report: Report) -> str:
    rows = []
    for finding in sort_findings(report.findings):
        mark, kind = _SEVERITY[finding.severity]
        fix = f"<div>→ {_text(finding.fix)}</div>" if finding.fix else ""
        rows.append(
            _row(
                (f'<span class="mark {kind}">{mark} {finding.severity.value}</span>', "num"),
                (f"<code>{_text(finding.rule)}</code>", ""),
                (_op(report, finding.where) if finding.where else "", "name"),
                (_text(finding.message) + fix, ""),
            )
        )
    header = (("", "num"), ("Rule", ""), ("Where", ""), ("What, and what to do", ""))
    return _section("findings", "Findings", _table(header, rows, "stacked") if rows else "")


def _kept(report: Report, decisions: object) -> str:
    if not isinstance(decisions, DecisionSummary) or not decisions.kept:
        return ""
    rows = []
    for group in decisions.kept:
        types = ", ".join(f"{name} {count}" for name, count in list(group.op_types.items())[:4])
        rest = group.count - 3
        examples = ", ".join(_op(report, label) for label in group.examples[:3])
        examples += f" and {rest} more" if rest > 0 else ""
        by = "" if group.authority == "built-in" else f" [{group.authority}]"
        rule = _text(group.rule)
        share = "" if not group.macs_share else format_share(group.macs_share)
        rows.append(
            _row(
                (
                    f'{group.count}<span class="phone"> operator{"" if group.count == 1 else "s"}</span>',
                    "num",
                ),
                (
                    f'<span data-rule="{rule}"><code>{rule}</code>{_text(by)}</span>',
                    "",
                ),
                (f"{_text(group.text)}<div class='dim'>{_text(types)}</div>", ""),
                (examples, "name"),
                (share, "num"),
            )
        )
    header = (("Ops", "num"), ("Rule", ""), ("Why", ""), ("Where", ""), ("of MACs", "num"))
    return _section("kept", "What stays FP32, and why", _table(header, rows, "stacked"))


def _outputs(report: Report, result: object) -> str:
    if not isinstance(result, ValidationResult):
        return ""
    rows = []
    for backend in result.backends:
        for output in sorted(backend.outputs, key=lambda o: o.ok):
            mark, kind = ("✓ ok", "good") if output.ok else ("✗ missed", "bad")
            problems = (
                f'<div class="dim">{_text("; ".join(output.problems))}</div>' if output.problems else ""
            )
            rows.append(
                _row(
                    (f'<span class="mark {kind}">{mark}</span>', ""),
                    (f'<span class="mono">{_text(output.name)}</span>{problems}', "name"),
                    (_text(backend.name), ""),
                    (format_error(output.rel_l2), "num"),
                    (format_error(output.limit), "num"),
                    (format_error(output.max_abs), "num"),
                    ("-" if output.snr_db is None else f"{output.snr_db:.1f}", "num"),
                    ("-" if output.top1 is None else format_share(output.top1), "num"),
                )
            )
    header = (
        ("", ""),
        ("Output", ""),
        ("Backend", ""),
        ("rel. L2", "num"),
        ("limit", "num"),
        ("max abs", "num"),
        ("SNR dB", "num"),
        ("top-1", "num"),
    )
    body = _table(header, rows) if rows else ""
    if result.culprits:
        body += "<h3>Operators that add most of the error</h3>" + _table(
            (("Share", "num"), ("Operator", ""), ("Type", "")),
            [
                _row((format_share(c.share), "num"), (_op(report, c.op), "name"), (_text(c.op_type), ""))
                for c in result.culprits
            ],
        )
    return _section("outputs", "Outputs against FP32", body)


def _causes(report: Report, result: object) -> str:
    if not isinstance(result, PerOperator):
        return ""
    body = "<p>No single result is beyond the tolerance.</p>"
    if result.first:
        words = f"({_text(result.first_type)}), error {format_error(result.first_error)}"
        body = f"<p>First beyond the tolerance: {_op(report, result.first)} {words}.</p>"
    rows = [
        _row(
            (("" if share.resolved else "about ") + format_share(share.share), "num"),
            (_op(report, share.op), "name"),
            (_text(share.op_type), ""),
            (format_error(share.error), "num"),
            (f"<code>{_text(share.pattern)}</code>" if share.pattern else "", ""),
        )
        for share in result.operators
    ]
    header = (("Share", "num"), ("Operator", ""), ("Type", ""), ("its error", "num"), ("Pattern", ""))
    return _section("causes", "Operators that cause the error", body + (_table(header, rows) if rows else ""))


def _roundings(report: Report) -> str:
    rows = [
        _row(
            (("" if r.resolved else "about ") + format_share(r.used), "num"),
            (_op(report, r.op), "name"),
            (_text(r.op_type), ""),
            (_text(r.what), ""),
        )
        for r in getattr(report, "roundings", ())
    ]
    header = (("of allowed", "num"), ("Operator", ""), ("Type", ""), ("What is rounded", ""))
    return "<h3>Roundings that add most error</h3>" + _table(header, rows) if rows else ""


def _frontier(report: Report) -> str:
    points = getattr(report, "frontier", ())
    if not points:
        return ""
    rows = [
        _row(
            (f'<span class="mark">{"→ chosen" if point.chosen else ""}</span>', ""),
            (_text(point.origin), ""),
            (format_error(point.error), "num"),
            ('<span class="mark good">✓</span>' if point.ok else '<span class="mark bad">✗</span>', ""),
            (format_seconds(point.seconds), "num"),
            (f"{point.speedup:.2f}x", "num"),
            (str(point.casts), "num"),
            (format_share(point.macs_share), "num"),
        )
        for point in points
    ]
    header = (
        ("", ""),
        ("Found by", ""),
        ("rel. L2", "num"),
        ("within", ""),
        ("predicted", "num"),
        ("speedup", "num"),
        ("casts", "num"),
        ("FP16 MACs", "num"),
    )
    return _section(
        "frontier",
        "Accuracy against time",
        _asset("frontier.html") + _table(header, rows) + _roundings(report),
    )


def _gradients(report: Report) -> str:
    if not isinstance(report, TrainAuditReport) or not report.gradients:
        return ""
    scales = [note.scales for note in report.gradients if note.scales is not None]
    ends = [0, report.window.recommended, *(end for s in scales for end in (s.lowest, s.highest))]
    rows = [
        _row(
            (f'<span class="mono">{_text(note.name)}</span>', "name"),
            (_text(note.kind), ""),
            (format_share(note.share_zeroed), "num"),
            (_interval(note.scales, report.window.recommended, min(ends), max(ends)), ""),
            (_text(format_scales(note.scales)), "num"),
            (format_error(note.max_abs), "num"),
            ("-" if note.share_lost is None else format_share(note.share_lost), "num"),
        )
        for note in report.gradients
    ]
    header = (
        ("Gradients of", ""),
        ("", ""),
        ("vanish at scale 1", "num"),
        (f"2^{min(ends)} to 2^{max(ends)}", ""),
        ("safe scales", "num"),
        ("largest", "num"),
        ("lost updates", "num"),
    )
    words = "Bars are the loss scales with which gradients neither vanish nor overflow; the line is the "
    words += f"{'recommended scale' if report.window.is_open else 'largest that overflows nothing'}, "
    words += f"2^{report.window.recommended}."
    body = _asset("gradients.html") + f'<p class="dim">{words}</p>' + _table(header, rows)
    return _section("gradients", "Gradients against FP16", body)


def _interval(scales: ScaleRange | None, chosen: int, first: int, last: int) -> str:
    """Loss scales as a bar between two exponents; a closed range is its gap, in the colour of errors."""
    words = f"safe: {format_scales(scales)}; recommended: 2^{chosen}"
    bar = ""
    if scales is not None:
        left, right = sorted((scales.lowest, scales.highest))
        kind = "open" if scales.is_open else "closed"
        bar = f'<rect class="{kind}" x="{left - first}" y="2" width="{right - left + 1}" height="6"/>'
    line = f'<rect class="line" x="{chosen - first + 0.4:g}" y="0" width="0.2" height="10"/>'
    box = f'viewBox="0 0 {last - first + 1} 10" preserveAspectRatio="none"'
    return f'<svg class="interval" {box} role="img" aria-label="{_text(words)}">{bar}{line}</svg>'


def _about(report: Report) -> str:
    options = dump(report.options)
    assert isinstance(options, dict)
    shown = "".join(
        f"<dt>{_text(key)}</dt><dd class='mono'>{_text(str(value))}</dd>"
        for key, value in options.items()
        if value not in (None, [], {}, "")
    )
    model = getattr(report, "model", None)
    facts = ""
    if isinstance(model, ModelFacts):
        ports = [f"{p.name}: {p.dtype} {list(p.shape) if p.shape is not None else '?'}" for p in model.inputs]
        facts = (
            f"<dt>sha256</dt><dd class='mono'>{_text(model.digest)}</dd>"
            f"<dt>producer</dt><dd>{_text(model.producer or 'unknown')}</dd>"
            f"<dt>inputs</dt><dd class='mono'>{_text('; '.join(ports))}</dd>"
            f"<dt>weights</dt><dd>{_text(format_bytes(model.weights))}</dd>"
        )
    return f"<p>fp16conv {_text(report.tool_version)}</p><dl>{facts}{shown}</dl>"
