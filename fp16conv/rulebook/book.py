"""The rule book: everything the files under rules/ hold, read once and checked."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar as Generic

from fp16conv._data import rules_dir
from fp16conv.collector import collection_paused
from fp16conv.errors import RuleError, UsageError
from fp16conv.rulebook.parsing import (
    Table,
    TableReader,
    parse_kernels,
    parse_profile,
    parse_rules,
    parse_target,
    read_toml,
)
from fp16conv.rulebook.patterns import PatternRule, parse_pattern
from fp16conv.rulebook.schema import Kernel, Profile, Rule, RuleKind, Target

__all__ = ["RuleBook", "check_rules_file", "load_book"]

T = Generic("T")


@dataclass(frozen=True)
class RuleBook:
    """All rules, profiles and targets.

    Args:
        rules: built-in rules in the order of their files, then the user's in the order given.
        patterns: rules about idioms, in the order of their files.
        digest: sha256 over the canonical content; a plan is bound to it.
    """

    rules: tuple[Rule, ...]
    patterns: tuple[PatternRule, ...]
    profiles: Mapping[str, Profile]
    targets: Mapping[str, Target]
    digest: str
    base: Mapping[str, Rule] = field(repr=False)

    def base_rule(self, key: str) -> Rule | None:
        """The rule that gives an operator (`Exp`, `com.microsoft::Gelu`) its class."""
        return self.base.get(key)

    def rule(self, identifier: str) -> Rule:
        """Find a rule by id.

        Raises:
            UsageError: there is none; suggests a similar one.
        """
        return _lookup({r.id: r for r in self.rules}, identifier, "rule")

    def rules_for(self, key: str) -> tuple[Rule, ...]:
        """The rules that name an operator, base class first."""
        named = [r for r in self.rules if key in r.match.op]
        return tuple(sorted(named, key=lambda r: r.kind is not RuleKind.BASE))

    def profile(self, identifier: str) -> Profile:
        """Find a profile; raises UsageError with a suggestion."""
        return _lookup(self.profiles, identifier, "profile")

    def target(self, identifier: str) -> Target:
        """Find a target; raises UsageError with a suggestion."""
        return _lookup(self.targets, identifier, "target")


@collection_paused()
def load_book(*user_files: Path) -> RuleBook:
    """Read the packaged rules and the user's rules files.

    Args:
        user_files: TOML files of `[[rule]]` entries; a later file wins over an earlier one.

    Raises:
        RuleError: a file is malformed; names file, rule, key and what was probably meant.

    Example:
        >>> load_book().rule("exp-overflow").verdict
        <Verdict.DENY: 'deny'>
    """
    root = rules_dir()
    digest = hashlib.sha256()

    def read(path: Path, name: str) -> Table:
        table = read_toml(path)
        _add(digest, name, table)
        return table

    rules: list[Rule] = []
    for path in (*sorted((root / "ops").glob("*.toml")), *sorted((root / "aten").glob("*.toml"))):
        name = f"{path.parent.name}/{path.name}"
        rules += parse_rules(read(path, name), name, builtin=True)
    patterns: list[PatternRule] = []
    for path in sorted((root / "patterns").glob("*.toml")):
        name = f"patterns/{path.name}"
        reader = TableReader(read(path, name), name)
        for entry in reader.tables("pattern"):
            if not isinstance(entry, Mapping):
                raise reader.fail("pattern", "must be [[pattern]] tables")
            patterns.append(parse_pattern({**entry, "file": name}, name))
        reader.close()
    profiles = [
        parse_profile(read(path, f"profiles/{path.name}"), f"profiles/{path.name}")
        for path in sorted((root / "profiles").glob("*.toml"))
    ]
    targets = []
    for path in sorted((root / "targets").glob("*.toml")):
        table = read(path, f"targets/{path.name}")
        kernels: Mapping[str, tuple[Kernel, ...]] | None = None
        inlined: tuple[str, ...] = ()
        if (file := table.get("kernels")) is not None:
            data = json.loads((path.parent / str(file)).read_text(encoding="utf-8"))
            _add(digest, f"targets/{file}", data)
            kernels, inlined = parse_kernels(data, f"targets/{file}")
        targets.append(parse_target(table, f"targets/{path.name}", kernels, inlined))
    for path in user_files:
        rules += parse_rules(read(path, path.name), str(path), builtin=False)
    _check_unique((*patterns, *rules))
    return RuleBook(
        rules=tuple(rules),
        patterns=tuple(patterns),
        profiles={p.id: p for p in profiles},
        targets={t.id: t for t in targets},
        digest=digest.hexdigest(),
        base=_index_base(rules),
    )


def check_rules_file(path: Path) -> tuple[Rule, ...]:
    """Parse a user's rules file and check its ids against the packaged rules.

    Raises:
        RuleError: the file is malformed.
    """
    return tuple(rule for rule in load_book(path).rules if not rule.builtin)


def _add(digest: hashlib._Hash, name: str, content: object) -> None:
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)
    digest.update(f"{name}\n{canonical}\n".encode())


def _check_unique(rules: Iterable[Rule | PatternRule]) -> None:
    seen: dict[str, Rule | PatternRule] = {}
    for rule in rules:
        if (other := seen.setdefault(rule.id, rule)) is not rule:
            raise RuleError(f"rule id '{rule.id}' is taken", where=rule.file, why=f"{other.file} has it too")


def _index_base(rules: Iterable[Rule]) -> dict[str, Rule]:
    owners: dict[str, list[Rule]] = defaultdict(list)
    for rule in rules:
        if rule.builtin and rule.kind is RuleKind.BASE:
            for key in rule.match.op:
                owners[key].append(rule)
    for key, claims in owners.items():
        if len(claims) > 1:
            raise RuleError(
                f"operator '{key}' has two base classes",
                where=claims[1].file,
                why=f"rules '{claims[0].id}' and '{claims[1].id}' both claim it",
            )
    return {key: claims[0] for key, claims in owners.items()}


def _lookup(table: Mapping[str, T], name: str, kind: str) -> T:
    if (found := table.get(name)) is not None:
        return found
    close = difflib.get_close_matches(name, sorted(table), n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(sorted(table))}"
    raise UsageError(f"unknown {kind} '{name}'", hint=hint)
