"""Strict reading of rule files: every key is known, every value has its type, or a RuleError says so."""

from __future__ import annotations

import difflib
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from fp16conv import files
from fp16conv.errors import RuleError
from fp16conv.graph import Origin
from fp16conv.rulebook.schema import (
    Condition,
    ConstantMatch,
    Context,
    Example,
    FactMatch,
    Kernel,
    Lowering,
    Match,
    Profile,
    Role,
    Rule,
    RuleKind,
    Target,
)
from fp16conv.rulebook.types import Verdict

__all__ = [
    "CONSTANT_METRICS",
    "FACT_METRICS",
    "TableReader",
    "parse_kernels",
    "parse_profile",
    "parse_rules",
    "parse_target",
    "read_toml",
]

CONSTANT_METRICS: Final = frozenset(
    {"max_finite_abs", "min_abs", "share_tiny", "relative_rounding", "l2_rounding", "inexact_integers"}
)
FACT_METRICS: Final = frozenset(
    {"max_abs", "rms", "share_tiny", "has_nan", "integer_max", "accumulated_abs", "accumulated_square"}
)
_TEXT_FIELDS: Final = frozenset({"value", "measured", "limit", "origin", "headroom"})
_RULE_ID: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

Table = Mapping[str, object]


class TableReader:
    """Reads the keys of one TOML table; `close` makes what is left over an error.

    Args:
        table: the parsed table.
        where: file and entry, for messages.
    """

    def __init__(self, table: object, where: str) -> None:
        if not isinstance(table, Mapping):
            raise RuleError("expected a table", where=where, why=f"found {_kind(table)}")
        self._table: dict[str, object] = dict(table)
        self._known: list[str] = []
        self.where = where

    def take(self, key: str) -> object:
        self._known.append(key)
        return self._table.pop(key, None)

    def fail(self, key: str, what: str, hint: str = "") -> RuleError:
        return RuleError(f"key '{key}' {what}", where=self.where, hint=hint)

    def text(self, key: str, *, required: bool = False) -> str:
        value = self.take(key)
        if value is None and not required:
            return ""
        if not isinstance(value, str) or (required and not value.strip()):
            raise self.fail(key, "must be a non-empty string" if required else "must be a string")
        return value.strip()

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.take(key)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list) or not value or not all(isinstance(x, str) for x in value):
            raise self.fail(key, "must be a string or a non-empty list of strings")
        return tuple(value)

    def ints(self, key: str) -> tuple[int, ...]:
        value = self.take(key)
        if value is None:
            return ()
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(x, int) and not isinstance(x, bool) for x in values):
            raise self.fail(key, "must be an integer or a non-empty list of integers")
        return tuple(values)

    def bounds(self, key: str) -> tuple[int, int] | None:
        values = self.ints(key)
        if not values:
            return None
        if len(values) != 2 or values[0] > values[1]:
            raise self.fail(key, "must be [lowest, highest]")
        return values[0], values[1]

    def number(self, key: str) -> float | None:
        value = self.take(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(key, "must be a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.take(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, "must be true or false")
        return value

    def choice(self, key: str, choices: Iterable[str], *, required: bool = False) -> str:
        value = self.text(key, required=required)
        if value:
            self.check(key, value, choices)
        return value

    def check(self, key: str, value: str, choices: Iterable[str]) -> None:
        known = sorted(choices)
        if value not in known:
            raise self.fail(key, f"has the unknown value '{value}'", _suggest(value, known))

    def verdict(self, key: str, *, required: bool = False) -> Verdict | None:
        value = self.choice(key, [str(v) for v in Verdict], required=required)
        return Verdict(value) if value else None

    def tables(self, key: str) -> list[object]:
        value = self.take(key)
        if value is None:
            return []
        return value if isinstance(value, list) else [value]

    def close(self) -> None:
        for key in self._table:
            raise RuleError(f"unknown key '{key}'", where=self.where, hint=_suggest(key, self._known))


def read_toml(path: Path) -> Table:
    """Read a TOML file.

    Raises:
        RuleError: the file cannot be read or is not TOML.
    """
    try:
        return files.read_toml(path)
    except OSError as error:
        raise RuleError("cannot read the rules file", where=str(path), why=error.strerror or "") from error
    except ValueError as error:
        raise RuleError("not a TOML file", where=str(path), why=str(error)) from error


def parse_rules(table: Table, file: str, *, builtin: bool) -> tuple[Rule, ...]:
    """Parse `[[rule]]` entries.

    Args:
        table: a parsed file.
        file: its name, for messages.
        builtin: packaged rules must give a rationale, sources and examples.

    Raises:
        RuleError: names file, rule and key.
    """
    reader = TableReader(table, file)
    rules = tuple(_parse_rule(entry, file, i, builtin) for i, entry in enumerate(reader.tables("rule")))
    reader.close()
    if not rules:
        raise RuleError("no [[rule]] in the file", where=file, hint="see docs on rules files")
    return rules


def _parse_rule(entry: object, file: str, index: int, builtin: bool) -> Rule:
    reader = TableReader(entry, f"{file}: rule {index + 1}")
    identifier = reader.text("id", required=True)
    reader.where = f"{file}: rule '{identifier}'"
    if not _RULE_ID.fullmatch(identifier):
        raise reader.fail("id", "must be lower-case words joined by hyphens")
    verdict = reader.verdict("verdict", required=True)
    assert verdict is not None
    match = _parse_match(reader.take("match"), f"{reader.where}: match")
    rule = Rule(
        id=identifier,
        name=reader.text("name", required=builtin) or identifier,
        verdict=verdict,
        match=match,
        rationale=reader.text("rationale", required=builtin),
        evidence=reader.texts("evidence"),
        relaxed=reader.verdict("relaxed"),
        text=reader.text("text"),
        examples=tuple(_parse_example(e, f"{reader.where}: example") for e in reader.tables("example")),
        file=file,
        builtin=builtin,
    )
    reader.close()
    if verdict is Verdict.NEVER and not builtin:
        raise reader.fail("verdict", "cannot be 'never' in a user's file", "use 'deny'")
    if builtin and not rule.evidence:
        raise reader.fail("evidence", "must name at least one source")
    if rule.relaxed is not None and verdict is not Verdict.DENY:
        raise reader.fail("relaxed", "only makes sense where the verdict is 'deny'")
    if builtin and verdict is not Verdict.NEVER and not any(e.flagged for e in rule.examples):
        raise reader.fail("example", "must hold at least one flagged graph")
    if builtin and rule.kind is not RuleKind.BASE and all(e.flagged for e in rule.examples):
        raise reader.fail("example", "must hold a graph that is ok, since the rule is conditional")
    if rule.kind is RuleKind.EVIDENCE and builtin and not rule.text:
        raise reader.fail("text", "is required for a rule about numbers")
    for _, name, _, _ in string.Formatter().parse(rule.text):
        if name is not None and name not in _TEXT_FIELDS:
            raise reader.fail("text", f"has the unknown field '{{{name}}}'", _suggest(name, _TEXT_FIELDS))
    return rule


def _parse_match(entry: object, where: str) -> Match:
    if entry is None:
        raise RuleError("key 'match' is missing", where=where.removesuffix(": match"))
    reader = TableReader(entry, where)
    constant, fact, context = reader.take("constant"), reader.take("fact"), reader.take("context")
    attribute = reader.take("attribute")
    match = Match(
        op=tuple(_key(op) for op in reader.texts("op")),
        not_op=tuple(_key(op) for op in reader.texts("not_op")),
        domain=tuple("" if d == "ai.onnx" else d for d in reader.texts("domain")),
        name=reader.texts("name"),
        opset=reader.bounds("opset"),
        symbol=reader.texts("symbol"),
        slot=reader.ints("slot"),
        input_count=reader.bounds("input_count"),
        attribute=_parse_attributes(attribute, f"{where}.attribute"),
        context=None if context is None else _parse_context(context, f"{where}.context"),
        constant=None if constant is None else _parse_constant(constant, f"{where}.constant"),
        fact=None if fact is None else _parse_fact(fact, f"{where}.fact"),
        target_accumulates=reader.choice("target_accumulates", ["half", "float"]),
    )
    reader.close()
    if match == Match():
        raise RuleError("matches everything", where=where, hint="give 'op', 'domain' or 'name'")
    return match


def _parse_attributes(entry: object, where: str) -> dict[str, tuple[object, ...]]:
    if entry is None:
        return {}
    if not isinstance(entry, Mapping):
        raise RuleError("expected a table", where=where, why=f"found {_kind(entry)}")
    return {str(k): tuple(v) if isinstance(v, list) else (v,) for k, v in entry.items()}


def _parse_context(entry: object, where: str) -> Context:
    reader = TableReader(entry, where)
    context = Context(reader.texts("not_fed_by"), reader.texts("not_feeding"), reader.ints("trailing_axes"))
    reader.close()
    return context


def _parse_constant(entry: object, where: str) -> ConstantMatch:
    reader = TableReader(entry, where)
    roles = reader.texts("role")
    for role in roles:
        reader.check("role", role, [str(r) for r in Role])
    match = ConstantMatch(
        role=tuple(Role(r) for r in roles),
        slot=reader.ints("slot"),
        conditions=_parse_conditions(reader, CONSTANT_METRICS, required=False),
        offset_attribute=reader.text("offset_attribute"),
    )
    reader.close()
    return match


def _parse_fact(entry: object, where: str) -> FactMatch:
    reader = TableReader(entry, where)
    on = reader.choice("on", ["input", "output", "any"]) or "any"
    match = FactMatch(on, _parse_conditions(reader, FACT_METRICS, required=True))
    reader.close()
    return match


def _parse_conditions(
    reader: TableReader, metrics: Iterable[str], *, required: bool
) -> tuple[Condition, ...]:
    conditions = []
    for entry in reader.tables("when"):
        inner = TableReader(entry, f"{reader.where}.when")
        condition = Condition(
            inner.choice("metric", metrics, required=True),
            inner.number("above"),
            inner.number("below"),
            inner.flag("headroom", False),
        )
        inner.close()
        if condition.above is None and condition.below is None:
            raise inner.fail("above", "or 'below' is required")
        conditions.append(condition)
    if required and not conditions:
        raise reader.fail("when", "must hold at least one condition")
    return tuple(conditions)


def _parse_example(entry: object, where: str) -> Example:
    reader = TableReader(entry, where)
    flagged, ok = reader.text("flagged"), reader.text("ok")
    if bool(flagged) == bool(ok):
        raise reader.fail("flagged", "or 'ok' must hold the graph (one of them)")
    facts = reader.take("facts") or {}
    if not isinstance(facts, Mapping) or not all(isinstance(f, Mapping) for f in facts.values()):
        raise reader.fail("facts", "must map value names to tables")
    opset = reader.ints("opset") or (21,)
    target = reader.text("target") or "onnxruntime-cuda"
    reader.close()
    return Example(bool(flagged), flagged or ok, opset[0], facts, target)


def parse_profile(table: Table, file: str) -> Profile:
    """Parse a profile file.

    Raises:
        RuleError: names file and key.
    """
    reader = TableReader(table, file)
    maps = reader.take("maps") or {}
    headroom = reader.take("headroom") or {}
    if not isinstance(maps, Mapping) or not isinstance(headroom, Mapping):
        raise RuleError("'maps' and 'headroom' must be tables", where=file)
    for verdict in [str(v) for pair in maps.items() for v in pair]:
        reader.check("maps", verdict, [str(v) for v in Verdict])
    for origin, factor in headroom.items():
        reader.check("headroom", str(origin), [str(o) for o in Origin])
        if isinstance(factor, bool) or not isinstance(factor, int | float) or factor < 1:
            raise reader.fail("headroom", f"of '{origin}' must be a number of at least 1")
    profile = Profile(
        id=reader.text("id", required=True),
        name=reader.text("name", required=True),
        description=reader.text("description", required=True),
        maps={Verdict(k): Verdict(v) for k, v in maps.items()},
        relaxed=reader.flag("relaxed", False),
        relief=reader.flag("relief", False),
        evidence=reader.flag("evidence", True),
        patterns=reader.flag("patterns", True),
        kernels=reader.flag("kernels", True),
        saturate=reader.flag("saturate", True),
        headroom={str(k): float(v) for k, v in headroom.items()},
    )
    reader.close()
    return profile


def parse_target(
    table: Table, file: str, kernels: Mapping[str, tuple[Kernel, ...]] | None, inlined: Iterable[str]
) -> Target:
    """Parse a target file.

    Args:
        table: a parsed file.
        file: its name, for messages.
        kernels: what the file its `kernels` key names holds.
        inlined: operators that run as their schema's function body.

    Raises:
        RuleError: names file and key.
    """
    reader = TableReader(table, file)
    reader.take("kernels")
    target = Target(
        id=reader.text("id", required=True),
        name=reader.text("name", required=True),
        description=reader.text("description", required=True),
        source=reader.text("source", required=True),
        accumulates=reader.choice("accumulates", ["half", "float"], required=True),
        fused_norms=reader.flag("fused_norms", False),
        kernels=kernels,
        inlined=frozenset(inlined),
        lowerings=tuple(_lowering(t, file) for t in reader.tables("lowering")),
    )
    reader.close()
    return target


def _lowering(table: object, file: str) -> Lowering:
    reader = TableReader(table, f"{file}: lowering")
    opset = reader.bounds("opset")
    if opset is None:
        raise reader.fail("opset", "is missing", "give [first, last]")
    lowering = Lowering(
        op=reader.text("op", required=True),
        since=opset[0],
        until=opset[1],
        by=reader.texts("by"),
        rationale=reader.text("rationale", required=True),
    )
    reader.close()
    return lowering


def parse_kernels(data: object, file: str) -> tuple[dict[str, tuple[Kernel, ...]], tuple[str, ...]]:
    """Parse the JSON that tools/generate_targets.py writes.

    Returns:
        Operator key -> kernels, and the inlined operators.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("kernels"), Mapping):
        raise RuleError("not a kernel table", where=file, hint="generate it with tools/generate_targets.py")
    kernels = {
        str(op): tuple(Kernel(since, until, dict(types)) for since, until, types in rows)
        for op, rows in data["kernels"].items()
    }
    return kernels, tuple(data.get("inlined", ()))


def _key(op: str) -> str:
    return op.removeprefix("ai.onnx::")


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


def _suggest(word: str, known: Iterable[str]) -> str:
    names: Sequence[str] = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"
