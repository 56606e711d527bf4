"""Matches rules with type variables: which rules apply where, and with which figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

from fp16conv.graph import ModelGraph, Op, Origin, RangeFact, TypeVar, Use
from fp16conv.half import MAX
from fp16conv.rulebook.families import family, operands
from fp16conv.rulebook.infinities import SELECTIONS, MaskFlow, classify_constant, trace_masks
from fp16conv.rulebook.numbers import (
    LARGE_METRICS,
    ConstantReader,
    fact_figure,
    holds,
    symbols_of,
    values_of,
)
from fp16conv.rulebook.schema import ConstantMatch, Context, Match, Profile, Role, Rule, RuleKind, Target
from fp16conv.rulebook.types import Authority, PatternHit, Reason

__all__ = ["Evidence", "Matcher", "gather_evidence"]


@dataclass(frozen=True)
class Evidence:
    """Numbers behind a judgement.

    Args:
        reader: figures of constants.
        facts: ranges by value id.
        roles: what each constant does at each use.
        masks: values that carry a mask.
    """

    reader: ConstantReader
    facts: Mapping[int, RangeFact]
    roles: Mapping[tuple[int, Use], Role]
    masks: MaskFlow


def gather_evidence(
    graph: ModelGraph, facts: Mapping[int, RangeFact], hits: Sequence[PatternHit] = ()
) -> Evidence:
    """Measure the constants that FLOAT type variables read and find out what each one does.

    Args:
        graph: the model.
        facts: ranges by value id.
        hits: idioms, which may have found constants that act as infinity.
    """
    reader, infinite = ConstantReader(graph, facts), _infinite_uses(graph, hits)
    roles: dict[tuple[int, Use], Role] = {}
    for tv in graph.typevars:
        for use in tv.uses:
            value = graph.value_at(use)
            if value is not None and (reader.is_known(value.id) or reader.is_fill(value.id)):
                role = classify_constant(graph, reader, value.id, use)
                if role is Role.NUMBER and (value.id, use.op) in infinite:
                    is_selected = use.op is not None and family(graph.ops[use.op]) == "Where"
                    role = Role.INFINITY if is_selected else Role.MASK_SCALE
                roles[value.id, use] = role
    return Evidence(reader, facts, roles, trace_masks(graph, roles, reader))


def _infinite_uses(graph: ModelGraph, hits: Sequence[PatternHit]) -> set[tuple[int, int | None]]:
    """(constant, operator) pairs of idioms where the constant acts as infinity; elsewhere it may not."""
    found: set[tuple[int, int | None]] = set()
    for hit in hits:
        inside = {graph.typevars[tv].op for tv in hit.typevars}
        for value in hit.saturated:
            users = {
                op.id
                for op in graph.users(value)
                if op.id in inside or (not inside and family(op) in SELECTIONS)
            }
            found.update((value, op) for op in users)
    return found


@dataclass(frozen=True)
class Matcher:
    """Applies rules to the type variables of one graph.

    Args:
        graph: the model.
        evidence: its numbers.
        profile: gives the headroom.
        target: gives what reductions accumulate in.
    """

    graph: ModelGraph
    evidence: Evidence
    profile: Profile
    target: Target
    _steps: dict[Hashable, tuple[_Step, ...]] = field(default_factory=dict)
    _attributes: dict[int, tuple[Sequence[Rule], frozenset[str]]] = field(default_factory=dict)
    _ranges: dict[int, RangeFact | None] = field(default_factory=dict)

    def find(self, rules: Sequence[Rule], tv: TypeVar) -> list[tuple[Rule, Reason]]:
        """Rules of the sequence that apply to a type variable, with the reason of each, in order."""
        if not rules:
            return []
        op = None if tv.op is None else self.graph.ops[tv.op]
        found = []
        reads = _Reads(self, tv)
        for step in self._candidates(rules, op, tv):
            reason = self._apply(step, op, reads)
            if reason is not None:
                found.append((step.rule, reason))
        return found

    def is_range_safe(self, tv: TypeVar) -> bool:
        """Whether all values read and made are known to stay in the FP16 range, headroom included."""
        for value in values_of(self.graph, tv, "any"):
            figures = self.evidence.reader.figures(value) if self.evidence.reader.is_known(value) else None
            fact = self.evidence.facts.get(value)
            if figures is not None:
                continue  # judged as a constant
            if fact is None or fact.has_nan:
                return False
            if fact.origin is Origin.SYNTHETIC and fact.proven_max_abs is None:
                return False
            if self._grown(self.evidence.masks.magnitude(value, fact.lo, fact.hi), fact) > MAX:
                return False
        return True

    def _candidates(self, rules: Sequence[Rule], op: Op | None, tv: TypeVar) -> tuple[_Step, ...]:
        """The rules for this kind of type variable; found once per kind, a model has few."""
        if id(rules) not in self._attributes:
            names = frozenset(name for rule in rules for name in rule.match.attribute)
            self._attributes[id(rules)] = rules, names
        kind: tuple[Hashable, ...] = (id(rules), tv.symbol)
        if op is not None:
            given = len(op.inputs) - op.inputs.count(None)
            slots = tuple([use.slot for use in tv.uses if use.op == op.id])
            names = self._attributes[id(rules)][1]
            attributes = [(n, _hashable(v)) for n, v in op.attrs.items() if n in names] if op.attrs else ()
            kind = (*kind, op.key, op.opset, given, slots, *attributes)
        steps = self._steps.get(kind)
        if steps is None:
            key = "" if op is None else op.key
            steps = self._steps[kind] = tuple(
                _step(rule)
                for rule in rules
                if _admits_op(rule.match, key, op) and self._admits_kind(rule.match, op, tv)
            )
        return steps

    def _apply(self, step: _Step, op: Op | None, reads: _Reads) -> Reason | None:
        match = step.rule.match
        if step.is_local and not (op is not None and self._admits_here(match, op)):
            return None
        if match.constant is not None and match.fact is not None:
            first = self._match_constant(step, op, reads)
            return first and self._match_fact(step, op, reads)
        if match.constant is not None:
            return self._match_constant(step, op, reads)
        if match.fact is not None:
            return self._match_fact(step, op, reads)
        return step.reason

    def _admits_kind(self, match: Match, op: Op | None, tv: TypeVar) -> bool:
        """What is alike for all type variables of a kind."""
        if match.symbol and not set(match.symbol).intersection(symbols_of(tv)):
            return False
        if match.target_accumulates and match.target_accumulates != self.target.accumulates:
            return False
        if op is None:
            return not (match.name or match.opset or match.input_count or match.attribute or match.context)
        if match.slot and not any(use.op == op.id and use.slot in match.slot for use in tv.uses):
            return False
        if match.opset and not match.opset[0] <= op.opset <= match.opset[1]:
            return False
        given = sum(value is not None for value in op.inputs)
        if match.input_count and not match.input_count[0] <= given <= match.input_count[1]:
            return False
        return not any(op.attrs.get(name, "") not in admitted for name, admitted in match.attribute.items())

    def _admits_here(self, match: Match, op: Op) -> bool:
        """What depends on the operator's name and neighbours."""
        if match.name and not any(fnmatchcase(n, g) for g in match.name for n in (op.name, op.label)):
            return False
        return match.context is None or self._admits_context(match.context, op)

    def _admits_context(self, context: Context, op: Op) -> bool:
        graph = self.graph
        first = op.inputs[0] if op.inputs else None
        producer = graph.producer(first)
        if producer is not None:
            key = "square" if _is_square(graph, producer) else family(producer)
            if key in context.not_fed_by:
                return False
        for output in op.outputs:
            if output is not None and any(family(u) in context.not_feeding for u in graph.users(output)):
                return False
        return not context.trailing_axes or _trailing_axes(graph, op) in context.trailing_axes

    def _match_constant(self, step: _Step, op: Op | None, reads: _Reads) -> Reason | None:
        match = step.rule.match.constant
        assert match is not None
        for use, value, role in reads.constants:
            if (match.slot and use.slot not in match.slot) or (match.role and role not in match.role):
                continue
            figures = self.evidence.reader.figures(value)
            if figures is None:
                continue
            measured = []
            for condition in match.conditions:
                figure = self._constant_figure(condition.metric, match, op, value)
                if not holds(condition, figure):
                    break
                measured.append(figure)
            else:
                first = measured[0] if measured else figures.max_finite_abs
                return self._reason(step, self.graph.values[value].name, first, "constant", 1.0)
        return None

    def _constant_figure(self, metric: str, match: ConstantMatch, op: Op | None, value: int) -> float:
        reader = self.evidence.reader
        if metric == "relative_rounding":
            named = op is not None and match.offset_attribute
            offset = op.attrs.get(match.offset_attribute, 1e-5) if op is not None and named else 0.0
            return reader.relative_rounding(value, _as_float(offset))
        if metric == "l2_rounding":
            return reader.l2_rounding(value)
        return float(getattr(reader.figures(value), metric))

    def _match_fact(self, step: _Step, op: Op | None, reads: _Reads) -> Reason | None:
        match = step.rule.match.fact
        assert match is not None
        for value, fact in reads.ranges(match.on):
            if fact.origin is Origin.PROVEN and step.needs_large:
                continue
            headroom, measured = self._headroom(fact), []
            for condition in match.conditions:
                figure = fact_figure(condition.metric, fact, self.graph, op, value)
                if not holds(condition, self._grown(figure, fact) if condition.headroom else figure):
                    break
                measured.append(figure)
            else:
                name, origin = self.graph.values[value].name, str(fact.origin)
                return self._reason(step, name, measured[0], origin, headroom)
        return None

    def range_of(self, value: int) -> RangeFact | None:
        """The range of a value's real numbers, without a mask's; None where there is nothing to judge."""
        if value not in self._ranges:
            self._ranges[value] = self._measure_range(value)
        return self._ranges[value]

    def _measure_range(self, value: int) -> RangeFact | None:
        fact = self.evidence.facts.get(value)
        if fact is None or self.evidence.reader.is_known(value):
            return None  # constants are judged as constants
        if fact.origin is Origin.CONSTANT and fact.max_abs == float("inf"):
            return None  # infinity is an FP16 number
        if fact.finite_max_abs is not None:  # so it is where it was observed: what counts are the others
            largest = fact.finite_max_abs
            lo, hi = (min(max(extreme, -largest), largest) for extreme in (fact.lo, fact.hi))
            fact = dataclasses.replace(fact, lo=lo, hi=hi)
        magnitude = self.evidence.masks.magnitude(value, fact.lo, fact.hi)
        if magnitude != fact.max_abs:
            fact = dataclasses.replace(fact, lo=-magnitude, hi=magnitude)
        return fact

    def _grown(self, figure: float, fact: RangeFact) -> float:
        """A magnitude times the headroom, but no more than what is proven."""
        grown = figure * self._headroom(fact)
        return grown if fact.proven_max_abs is None else min(grown, max(figure, fact.proven_max_abs))

    def _headroom(self, fact: RangeFact) -> float:
        return self.profile.headroom.get(str(fact.origin), 1.0)

    def _reason(self, step: _Step, value: str, measured: float, origin: str, headroom: float) -> Reason:
        rule = step.rule
        part = rule.match.constant or rule.match.fact
        assert part is not None
        condition = part.conditions[0] if part.conditions else None
        limit = 0.0
        if condition is not None:
            limit = condition.above if condition.above is not None else (condition.below or 0.0)
        text = rule.text or f"{rule.name}: '{value}' ({{measured:.4g}}, {origin})"
        fields = {"measured": measured, "limit": limit, "headroom": headroom}
        return Reason(
            rule.id, text.format(value=value, origin=origin, **fields), step.reason.authority, fields
        )


@dataclass(frozen=True, slots=True)
class _Step:
    """A rule that is for a kind of type variable.

    Args:
        reason: what it says where it does not look at numbers.
        is_local: the operator's name or neighbours matter too.
        needs_large: it asks whether numbers are large, which no proof can show.
    """

    rule: Rule
    reason: Reason
    is_local: bool
    needs_large: bool


def _step(rule: Rule) -> _Step:
    authority = Authority.EVIDENCE if rule.kind is RuleKind.EVIDENCE else Authority.BUILT_IN
    authority = authority if rule.builtin else Authority.RULES_FILE
    match, fact = rule.match, rule.match.fact
    needs_large = fact is not None and any(c.metric in LARGE_METRICS for c in fact.conditions)
    is_local = bool(match.name) or match.context is not None
    return _Step(rule, Reason(rule.id, rule.name, authority), is_local, needs_large)


class _Reads:
    """What rules look at of one type variable, gathered once for all of them."""

    def __init__(self, matcher: Matcher, tv: TypeVar) -> None:
        self._matcher, self._tv = matcher, tv
        self._found: dict[str, list[tuple[int, RangeFact]]] = {}

    @cached_property
    def constants(self) -> list[tuple[Use, int, Role]]:
        """Constants whose numbers are known, where they are read, and what they do there."""
        graph, roles = self._matcher.graph, self._matcher.evidence.roles
        read = [(use, graph.value_at(use)) for use in self._tv.uses]
        return [
            (use, value.id, role)
            for use, value in read
            if value is not None and (role := roles.get((value.id, use))) is not None
        ]

    def ranges(self, on: str) -> list[tuple[int, RangeFact]]:
        """Values read and/or made whose range is known."""
        if on not in self._found:
            values = values_of(self._matcher.graph, self._tv, on)
            known = [(value, self._matcher.range_of(value)) for value in values]
            self._found[on] = [(value, fact) for value, fact in known if fact is not None]
        return self._found[on]


def _hashable(attribute: object) -> Hashable:
    """An attribute to tell kinds of operators apart; None for types, which equal nothing a rule can name."""
    try:
        hash(attribute)
    except TypeError:
        return None
    return attribute


def _admits_op(match: Match, key: str, op: Op | None) -> bool:
    keys = {key}
    if op is not None and (match.constant or match.fact):
        keys.add(family(op))  # rules about numbers hold for the same arithmetic under another name
    if match.op and not any(_equals(key, wanted) for wanted in match.op for key in keys):
        return False
    if match.not_op and any(_equals(key, unwanted) for unwanted in match.not_op for key in keys):
        return False
    return not match.domain or (op is not None and op.domain in match.domain)


def _equals(key: str, wanted: str) -> bool:
    return fnmatchcase(key, wanted) if "*" in wanted or "?" in wanted else key == wanted


def _is_square(graph: ModelGraph, op: Op) -> bool:
    inputs = operands(op)
    if family(op) == "Mul":
        return len(inputs) == 2 and inputs[0] == inputs[1]
    if family(op) == "Pow":
        exponent = graph.array(inputs[1])
        return exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]) == 2.0
    return False


def _trailing_axes(graph: ModelGraph, op: Op) -> int:
    """How many axes are reduced, if they are all axes behind the second; 0 otherwise."""
    shape = None if not op.inputs or op.inputs[0] is None else graph.values[op.inputs[0]].shape
    listed = op.attrs.get("axes")
    if listed is None and len(op.inputs) > 1:
        array = graph.array(op.inputs[1])
        listed = None if array is None else tuple(int(a) for a in array.reshape(-1))
    if not isinstance(listed, tuple) or shape is None:
        return 0
    rank = len(shape)
    axes = sorted({a % rank for a in listed if isinstance(a, int)}) if rank else []
    return len(axes) if axes and axes == list(range(2, rank)) else 0


def _as_float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
