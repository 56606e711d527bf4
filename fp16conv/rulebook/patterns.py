"""Pattern rules: idioms over several operators, read from `rules/patterns/*.toml`.

Two kinds: templates (`match.template`, see `pattern_language`) and walks (`match.start`, see `walks`).
Both run in time linear in the operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fp16conv.errors import RuleError
from fp16conv.graph import ModelGraph, Origin, RangeFact
from fp16conv.half import MAX_EXACT_INTEGER
from fp16conv.rulebook.index import GraphIndex
from fp16conv.rulebook.parsing import TableReader
from fp16conv.rulebook.pattern_language import Template, parse_specs, parse_template
from fp16conv.rulebook.templates import match_template
from fp16conv.rulebook.types import PatternHit, Reason, Verdict
from fp16conv.rulebook.walks import Walk, match_walk

__all__ = ["PatternExample", "PatternRule", "match_patterns", "parse_pattern"]

NAMED_OPS = 4
"""Operators that a reason names before it says how many more there are."""


@dataclass(frozen=True, slots=True)
class PatternExample:
    """A small graph in ONNX text with what the rule must, and must not, mark in it.

    Args:
        graph: `(float[2] x) => (float[2] y) { y = Exp(x) }`.
        flagged: whether the rule fires at all.
        marks: output names of operators that it must mark; spares: that it must leave alone.
        saturates: names of constants it must report as acting as infinity.
    """

    graph: str
    flagged: bool
    marks: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    saturates: tuple[str, ...] = ()
    opset: int = 21


@dataclass(frozen=True)
class PatternRule:
    """One idiom.

    Args:
        id: names the fault in kebab-case.
        verdict: of the marked type variables.
        matcher: the template or the walk.
        mark: statements of the template whose operators are marked, None for all.
        saturate: captured constants that act as infinity.
        yields_to: ids of patterns whose operators this one leaves alone (they are matched first).
        one_precision: the marked operators end in one precision.
        relaxed: verdict where all its values were observed and are harmless; None: no relaxation.
        exact_integers: a piece is dropped when all its values are proven integers that FP16 holds exactly.
    """

    id: str
    name: str
    verdict: Verdict
    matcher: Template | Walk
    rationale: str = ""
    evidence: tuple[str, ...] = ()
    mark: tuple[str, ...] | None = None
    saturate: tuple[str, ...] = ()
    yields_to: tuple[str, ...] = ()
    one_precision: bool = False
    relaxed: Verdict | None = None
    exact_integers: bool = False
    examples: tuple[PatternExample, ...] = ()
    file: str = ""


def parse_pattern(data: Mapping[str, object], where: str) -> PatternRule:
    """Read one `[[pattern]]` table strictly.

    Args:
        data: the table.
        where: the file, for messages.

    Raises:
        RuleError: a key is unknown, missing or of the wrong type, or the match cannot be read.

    Example:
        >>> rule = parse_pattern({"id": "sum-eps", "name": "n", "verdict": "deny", "rationale": "r",
        ...     "evidence": "e", "match": {"template": "y = Div(_, Add(_, {<1e-6}))"}}, "demo.toml")
        >>> rule.one_precision
        True
    """
    reader = TableReader(data, where)
    identifier = reader.text("id", required=True)
    reader.where = f"{where}: pattern '{identifier}'"
    verdict = reader.verdict("verdict", required=True)
    assert verdict is not None
    match = TableReader(reader.take("match"), f"{reader.where}: match")
    yields_to = match.texts("yields_to")
    exact_integers = match.flag("unless_exact_integers", False)
    text = match.text("template")
    mark: tuple[str, ...] | None = None
    saturate: tuple[str, ...] = ()
    matcher: Template | Walk
    if text:
        matcher = parse_template(text, match.where)
        listed = match.take("mark")
        if listed is not None:
            if not isinstance(listed, list) or not all(isinstance(m, str) for m in listed):
                raise match.fail("mark", "must be a list of statement names")
            mark = tuple(listed)
            for name in mark:
                match.check("mark", name, matcher.statements)
        saturate = match.texts("saturate")
        for name in saturate:
            match.check("saturate", name, matcher.captures)
    else:
        matcher = _parse_walk(match)
    match.close()
    rule = PatternRule(
        id=identifier,
        name=reader.text("name", required=True),
        verdict=verdict,
        matcher=matcher,
        rationale=reader.text("rationale", required=True),
        evidence=reader.texts("evidence"),
        mark=mark,
        saturate=saturate,
        yields_to=yields_to,
        one_precision=reader.flag("one_precision", isinstance(matcher, Template)),
        relaxed=reader.verdict("relaxed"),
        exact_integers=exact_integers,
        examples=tuple(_parse_example(e, f"{reader.where}: example") for e in reader.tables("example")),
        file=reader.text("file"),
    )
    reader.close()
    return rule


def _parse_walk(match: TableReader) -> Walk:
    where = match.where
    start = parse_specs(match.texts("start"), where)
    if not start:
        raise RuleError("needs 'template' or 'start'", where=where)
    up = [spec.slot is not None or spec.type == "@output" for spec in start]
    if any(up) != all(up):
        raise match.fail("start", "must go up (Op:slot) or down (Op) in all its entries")
    return Walk(
        start=start,
        through=parse_specs(match.texts("through"), where),
        reach=parse_specs(match.texts("reach"), where),
        unless=parse_specs(match.texts("unless"), where),
        into=parse_specs(match.texts("into"), where),
        mark_start=match.flag("mark_start", True),
        mark_reach=match.flag("mark_reach", True),
        beyond=match.flag("beyond", False),
    )


def _parse_example(entry: object, where: str) -> PatternExample:
    reader = TableReader(entry, where)
    flagged, ok = reader.text("flagged"), reader.text("ok")
    if bool(flagged) == bool(ok):
        raise reader.fail("flagged", "or 'ok' must hold the graph (one of them)")
    example = PatternExample(
        flagged or ok,
        bool(flagged),
        reader.texts("marks"),
        reader.texts("spares"),
        reader.texts("saturates"),
        (reader.ints("opset") or (21,))[0],
    )
    reader.close()
    return example


def match_patterns(
    graph: ModelGraph, patterns: Sequence[PatternRule], facts: Mapping[int, RangeFact]
) -> tuple[PatternHit, ...]:
    """Find the idioms of a model.

    Args:
        graph: the model.
        patterns: rules in the order of the book.
        facts: what is known of values, by value id; only proven facts lift a hit.

    Returns:
        Hits in the order of the rules, then of the operators. A hit without type variables only names
        constants that act as infinity.
    """
    index = GraphIndex(graph)
    claimed: dict[str, set[int]] = {}
    hits: dict[str, list[PatternHit]] = {rule.id: [] for rule in patterns}
    for rule in _in_order_of_yielding(patterns):
        skip = frozenset(op for other in rule.yields_to for op in claimed.get(other, ()))
        found = claimed.setdefault(rule.id, set())
        if isinstance(rule.matcher, Template):
            hits[rule.id] += _template_hits(index, rule, rule.matcher, skip, found)
        else:
            hits[rule.id] += _walk_hits(index, rule, rule.matcher, skip, found, facts)
    return tuple(hit for found_by_rule in hits.values() for hit in found_by_rule)


def _in_order_of_yielding(patterns: Sequence[PatternRule]) -> list[PatternRule]:
    known = {rule.id for rule in patterns}
    done: set[str] = set()
    ordered: list[PatternRule] = []
    waiting = list(patterns)
    while waiting:
        ready = [r for r in waiting if all(other in done for other in r.yields_to if other in known)]
        if not ready:
            raise RuleError("patterns yield to each other in a circle", where=waiting[0].id)
        ordered += ready
        done.update(rule.id for rule in ready)
        waiting = [rule for rule in waiting if rule.id not in done]
    return ordered


def _template_hits(
    index: GraphIndex, rule: PatternRule, template: Template, skip: frozenset[int], claimed: set[int]
) -> list[PatternHit]:
    graph, hits = index.graph, []
    for match in match_template(index, template, skip):
        claimed.update(op for _, op in match.ops)
        ops = sorted({op for line, op in match.ops if rule.mark is None or line in rule.mark})
        typevars = tuple(sorted({tv for op in ops for tv in graph.ops[op].typevars}))
        constants = tuple(sorted({value for name, value in match.captured if name in rule.saturate}))
        if typevars or constants:
            hits.append(_hit(graph, rule, ops or [match.root], typevars, constants))
    return hits


def _walk_hits(
    index: GraphIndex,
    rule: PatternRule,
    walk: Walk,
    skip: frozenset[int],
    claimed: set[int],
    facts: Mapping[int, RangeFact],
) -> list[PatternHit]:
    graph, hits = index.graph, []
    for match in match_walk(index, walk, skip):
        if rule.exact_integers and _are_exact_integers(graph, match.ops, facts):
            continue
        claimed.update(match.ops)
        hits.append(_hit(graph, rule, match.ops, match.typevars, ()))
    return hits


def _are_exact_integers(graph: ModelGraph, ops: Sequence[int], facts: Mapping[int, RangeFact]) -> bool:
    outputs = [v for op in ops for v in graph.ops[op].outputs if v is not None]
    known = [facts.get(v) for v in outputs if graph.typevar_of_value(v) is not None]
    return bool(known) and all(
        f is not None and f.origin is Origin.PROVEN and f.is_integral and f.max_abs <= MAX_EXACT_INTEGER
        for f in known
    )


def _hit(
    graph: ModelGraph,
    rule: PatternRule,
    ops: Sequence[int],
    typevars: tuple[int, ...],
    constants: tuple[int, ...],
) -> PatternHit:
    names = ", ".join(f"{graph.ops[op].op_type} '{graph.ops[op].label}'" for op in ops[:NAMED_OPS])
    more = f" and {len(ops) - NAMED_OPS} more" if len(ops) > NAMED_OPS else ""
    text = f"{rule.name}: {names}{more}" if names else rule.name
    if constants:
        text += f"; acts as infinity: {', '.join(repr(graph.values[c].name) for c in constants)}"
    numbers = {"operators": float(len(ops))}
    return PatternHit(
        rule.id, rule.verdict, typevars, Reason(rule.id, text, numbers=numbers), rule.one_precision, constants
    )
