"""Pages of the documentation that are made from the program itself; a hook of mkdocs (see mkdocs.yml).

Made are one page per rule, an index of the rules, the help of every command, and the API reference. Nothing
of it is kept in the repository, so none of it can be out of date.
"""

from __future__ import annotations

import html
import posixpath
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import click

import fp16conv
from fp16conv.cli.app import program
from fp16conv.cli.overview import VERBS
from fp16conv.reporting.report import dump
from fp16conv.rulebook.book import load_book

if TYPE_CHECKING:
    from fp16conv.rulebook.book import RuleBook
    from fp16conv.rulebook.patterns import PatternRule
    from fp16conv.rulebook.schema import Rule

GROUPS = {"ops": "ONNX operators", "patterns": "Patterns", "aten": "PyTorch (ATen) calls"}

VERDICTS = {
    "allow": "FP16: it pays there",
    "infer": "FP16 if its neighbours are",
    "follow": "takes its neighbours' type at no cost",
    "deny": "FP32",
    "never": "never FP16: not floating point, or not legal",
}

_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+|[^)#\s:]+/)(#[^)]*)?\)")


def rule_pages(book: RuleBook) -> dict[str, str]:
    """Markdown by path: `rules/index.md` and `rules/ID.md` for every rule."""
    rules: list[Rule | PatternRule] = [*book.rules, *book.patterns]
    return {"rules/index.md": _rule_index(rules)} | {
        f"rules/{rule.id}.md": _rule_page(rule) for rule in rules
    }


def _rule_index(rules: list[Rule | PatternRule]) -> str:
    lines = [
        "# Rules",
        "",
        f"{len(rules)} rules say what is known of an operator before any data is seen. They are data (TOML).",
        "Evidence, your own rules and the command line win over them ([concepts](../concepts.md#verdicts)).",
    ]
    for group, title in GROUPS.items():
        lines += ["", f"## {title}", "", "| rule | verdict | what |", "|---|---|---|"]
        lines += [
            f"| [{rule.id}]({rule.id}.md) | `{rule.verdict.value}` | {_text(rule.name)} |"
            for rule in sorted(rules, key=lambda rule: (rule.file, rule.id))
            if rule.file.startswith(f"{group}/")
        ]
    return "\n".join(lines) + "\n"


def _rule_page(rule: Rule | PatternRule) -> str:
    verdict = rule.verdict.value
    lines = [
        f"# {rule.id}",
        "",
        f"**{_text(rule.name)}**",
        "",
        f"Verdict: `{verdict}` ({VERDICTS[verdict]}).",
    ]
    if rule.relaxed is not None:
        lines += [
            "",
            f"Relaxed to `{rule.relaxed.value}` where the target fuses it and its range is known to be safe.",
        ]
    lines += ["", "## Why", "", _text(" ".join(rule.rationale.split()))]
    lines += ["", "## What it matches", "", *_matches(rule)]
    if rule.evidence:
        lines += ["", "## Sources", "", *(f"* {_source(source)}" for source in rule.evidence)]
    for example in rule.examples:
        title = "Flagged" if example.flagged else "Not flagged"
        lines += ["", f"## {title}", "", "```text", example.graph.strip(), "```"]
    lines += ["", f"Defined in `rules/{rule.file}`; `fp16conv rules explain {rule.id}` prints it."]
    return "\n".join(lines) + "\n"


def _matches(rule: Rule | PatternRule) -> list[str]:
    match: Any = dump(rule.match) if hasattr(rule, "match") else None
    if match is None:
        same = " All of its operators get one precision." if getattr(rule, "one_precision", False) else ""
        return [f"An idiom of several operators, however an exporter spells it.{same}"]
    lines = [
        f"* {key.replace('_', ' ')}: {_value(value)}"
        for key, value in match.items()
        if value not in (None, [], {}, "", 0)
    ]
    return lines or ["Every operator that no other rule names."]


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_value(v)}" for k, v in value.items() if v not in (None, [], {}, ""))
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return f"`{value}`"


def _source(text: str) -> str:
    return f"<{text}>" if re.fullmatch(r"https?://\S+", text) else _text(text)


def _text(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]|~])", r"\\\1", html.escape(text, quote=False))


def command_page() -> str:
    """The help of every command, as the program prints it."""
    lines = ["# Commands", "", "What `--help` prints. The flags in context: [command line](cli.md)."]
    for path, command in _commands():
        context = click.Context(command, info_name=" ".join(path), max_content_width=100, terminal_width=100)
        lines += ["", f"## {' '.join(path)}", "", "```text", command.get_help(context).rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _commands() -> list[tuple[list[str], click.Command]]:
    context = click.Context(program)
    found: list[tuple[list[str], click.Command]] = [(["fp16conv"], program)]
    for verb in VERBS:
        command = program.get_command(context, verb)
        assert command is not None
        found.append((["fp16conv", verb], command))
        if isinstance(command, click.Group):
            found += [(["fp16conv", verb, name], command.commands[name]) for name in command.commands]
    return found


def api_page() -> str:
    """The public names, for mkdocstrings to fill in."""
    lines = ["# Python API", "", "Names of the package `fp16conv`; the verbs are those of the command line."]
    names = [name for name in fp16conv.__all__ if not name.startswith("_")]
    for name in sorted(names, key=lambda name: (name[0].isupper(), name)):
        lines += ["", f"## {name}", "", f"::: {getattr(fp16conv, name).__module__}.{name}"]
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """All pages by their path below docs/."""
    made = {"reference/commands.md": command_page(), "reference/api.md": api_page()}
    return rule_pages(load_book()) | made


def on_config(config: Any) -> Any:
    """Put a page per rule into the navigation, by the file it comes from."""
    book = load_book()
    groups: dict[str, dict[str, list[dict[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for rule in sorted([*book.rules, *book.patterns], key=lambda rule: rule.id):
        group, _, file = rule.file.partition("/")
        groups[group][file.removesuffix(".toml").capitalize()].append({rule.id: f"rules/{rule.id}.md"})
    entries: list[Any] = ["rules/index.md"]
    entries += [
        {title: [{file: pages} for file, pages in sorted(groups[group].items())]}
        for group, title in GROUPS.items()
    ]
    config.nav.insert(len(config.nav) - 1, {"Rules": entries})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links to files outside of docs/ into their names: the site does not have them."""
    folder = posixpath.dirname(page.file.src_uri)

    def replace(match: re.Match[str]) -> str:
        text, target = match.group(1), posixpath.normpath(posixpath.join("docs", folder, match.group(2)))
        if target.startswith("docs/") and not match.group(2).endswith("/"):
            return match.group(0)
        name = f"`{target}`"
        return name if text.strip("`") == target else f"{text} ({name})"

    return _LINK.sub(replace, markdown)
