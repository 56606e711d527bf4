"""`fp16conv rules`: list, explain and check the rules behind the decisions."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fp16conv.cli.environment import Environment
from fp16conv.cli.groups import SuggestingGroup, suggest
from fp16conv.cli.options import api_arguments, decision_flags, format_flag, input_flags, level_flags
from fp16conv.cli.params import Tolerance
from fp16conv.cli.terminal import print_report, print_text, show_progress
from fp16conv.errors import UsageError
from fp16conv.reporting.sanitize import clip, sanitize

if TYPE_CHECKING:
    from fp16conv.rulebook.book import RuleBook
    from fp16conv.rulebook.patterns import PatternRule
    from fp16conv.rulebook.schema import Rule

__all__ = ["command"]

_HELP = """The rules behind the decisions: list them, explain one, check a file of your own.

\b
Examples:
  fp16conv rules list --op Softmax
  fp16conv rules explain exp-overflow
  fp16conv rules check my-rules.toml
  fp16conv rules audit model.onnx --data batches/
"""


@click.group("rules", cls=SuggestingGroup, help=_HELP)
def command() -> None:
    """Hold the verbs about rules."""


def _load(files: Iterable[str] = ()) -> RuleBook:
    from fp16conv.rulebook.book import load_book

    return load_book(*map(Path, files))


def _print_json(schema: str, content: Mapping[str, object]) -> None:
    from fp16conv.reporting.report import dump

    print_text(json.dumps({"schema": schema, **{k: dump(v) for k, v in content.items()}}, indent=2))


@command.command("list")
@click.option("--op", metavar="TYPE", help="Only rules that name this operator, e.g. Softmax.")
@click.option("--rules", multiple=True, metavar="FILE.toml", help="Add rules of your own. Repeatable.")
@format_flag
@level_flags
def list_rules(op: str | None, rules: tuple[str, ...], form: str) -> int:
    """List rules with their verdicts."""
    book = _load(rules)
    found = book.rules if op is None else book.rules_for(op)
    patterns = book.patterns if op is None else ()
    if op is not None and not found:
        known = sorted({name for rule in book.rules for name in rule.match.op})
        raise UsageError(f"no rule names the operator {op!r}", hint=suggest(op, known))
    if form == "json":
        _print_json("fp16conv.rules/1", {"digest": book.digest, "rules": found, "patterns": patterns})
        return 0
    items: list[Rule | PatternRule] = [*found, *patterns]
    for item in items:
        # The id is what `explain` takes: never cut it, cut the headline.
        head = sanitize(f"{item.id:<34} {item.verdict.value:<7} ")
        print_text(head + clip(sanitize(item.name), max(10, 80 - len(head))))
    return 0


@command.command("explain")
@click.argument("identifier", metavar="ID")
@click.option("--rules", multiple=True, metavar="FILE.toml", help="Add rules of your own. Repeatable.")
@format_flag
@level_flags
def explain(identifier: str, rules: tuple[str, ...], form: str) -> int:
    """Explain the rule ID: what it matches, the arithmetic behind it, its sources and examples."""
    book = _load(rules)
    items: list[Rule | PatternRule] = [*book.rules, *book.patterns]
    known = {item.id: item for item in items}
    if identifier not in known:
        hint = suggest(identifier, known) or "'fp16conv rules list' shows all"
        raise UsageError(f"no rule has the id {identifier!r}", hint=hint)
    if form == "json":
        _print_json("fp16conv.rule/1", {"rule": known[identifier]})
    else:
        print_text(_describe(known[identifier]))
    return 0


def _paragraph(label: str, text: str) -> list[str]:
    """A labelled paragraph, wrapped to 80 columns."""
    if not text.strip():
        return []
    return textwrap.wrap(
        sanitize(" ".join(text.split())), 80, initial_indent=f"{label:<11}", subsequent_indent=" " * 11
    )


def _describe(rule: Rule | PatternRule) -> str:
    lines = [sanitize(f"{rule.id}: {rule.name}"), ""]
    lines += _paragraph("Verdict", rule.verdict.value)
    lines += _conditions(rule)
    lines += _paragraph("Why", rule.rationale)
    for source in rule.evidence:
        lines += _paragraph("Source", source)
    for example in rule.examples:
        lines += _paragraph("Flagged" if example.flagged else "Fine", example.graph)
    return "\n".join([*lines, *_paragraph("File", rule.file)])


def _conditions(rule: Rule | PatternRule) -> list[str]:
    from fp16conv.reporting.report import dump
    from fp16conv.rulebook.schema import Rule

    if not isinstance(rule, Rule):
        one = "; its operators end in one precision" if rule.one_precision else ""
        return _paragraph("Matches", f"an idiom of several operators{one}")
    lines = []
    if rule.relaxed is not None:
        lines += _paragraph(
            "Relaxed", f"{rule.relaxed.value} where the target fuses it and the range is safe"
        )
    match = dump(rule.match)
    assert isinstance(match, dict)
    for key, value in match.items():
        if value not in (None, [], {}, "", 0):
            lines += _paragraph("Matches", f"{key.replace('_', ' ')}: {_plain(value)}")
    return lines


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items() if v not in (None, [], {}, ""))
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return str(value)


@command.command("check")
@click.argument("file", metavar="FILE.toml")
@format_flag
@level_flags
def check(file: str, form: str) -> int:
    """Check a rules file of your own."""
    from fp16conv.rulebook.book import check_rules_file

    rules = check_rules_file(Path(file))
    if form == "json":
        _print_json("fp16conv.rules-check/1", {"file": file, "rules": [rule.id for rule in rules]})
        return 0
    print_text(sanitize(f"{file}: fine, {len(rules)} rules: {', '.join(rule.id for rule in rules)}"))
    return 0


@command.command("audit")
@click.argument("model")
@input_flags
@decision_flags
@click.option(
    "--tolerance", "rtol", type=Tolerance(), help="Largest relative L2 error of an output.  [default: 0.02]"
)
@click.option("--atol", type=Tolerance(), help="Root mean square error allowed on top.  [default: 0.001]")
@format_flag
@level_flags
@click.pass_obj
def audit(env: Environment, /, model: str, form: str, **flags: Any) -> int:
    """Weigh the rules by data: what each costs MODEL in casts and time, and the error without it."""
    with show_progress(env) as progress:
        report = env.api.audit_rules(model, progress=progress, **api_arguments(flags))
    print_report(report, form, env)
    return 0 if report.ok else 1
