"""Judges every type variable of a model: rules, idioms, numbers, target, profile and the user's word."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from fp16conv.errors import UsageError
from fp16conv.graph import ModelGraph, RangeFact, TypeVar
from fp16conv.half import MAX
from fp16conv.rulebook.book import RuleBook
from fp16conv.rulebook.kernels import Coverage, check_kernels
from fp16conv.rulebook.match import Evidence, Matcher, gather_evidence
from fp16conv.rulebook.patterns import match_patterns
from fp16conv.rulebook.pins import find_islands, find_pins
from fp16conv.rulebook.relief import relieve
from fp16conv.rulebook.repair_names import FOLD, RESCALE, SATURATE, check_repairs
from fp16conv.rulebook.repairs import OVERFLOW_RULE, Rescaling, find_folds, find_rescaling
from fp16conv.rulebook.schema import Profile, Role, Rule, RuleKind
from fp16conv.rulebook.selection import select_typevars
from fp16conv.rulebook.types import Authority, Group, Judgement, PatternHit, Reason, Verdict, Verdicts

__all__ = ["judge"]

_STRICTNESS: Final = (Verdict.FOLLOW, Verdict.INFER, Verdict.ALLOW, Verdict.DENY, Verdict.NEVER)
"""Among equals the later one wins: a danger beats a gain beats indifference."""

EPS_RULE: Final = "eps-underflow"


def judge(
    graph: ModelGraph,
    book: RuleBook,
    facts: Mapping[int, RangeFact],
    *,
    profile: str = "balanced",
    target: str = "onnxruntime-cuda",
    keep_fp32: Sequence[str] = (),
    force_fp16: Sequence[str] = (),
    keep_io_types: bool = True,
    repairs: Collection[str] = (),
) -> Verdicts:
    """Give every type variable a verdict with its reasons.

    What wins, strongest first: what is illegal or the interface, the command line, the user's rules
    file, the profile, then the built-in rules, where numbers and the target's kernels may only turn
    a verdict into `deny` (or `allow` where no FP32 kernel exists).

    Args:
        graph: the model.
        book: rules, profiles and targets.
        facts: ranges by value id; may be empty.
        profile: name of a profile.
        target: name of what will run the model.
        keep_fp32: patterns of operators that stay FP32: globs on names, or `type:Softmax`.
        force_fp16: patterns of operators that go FP16 wherever it is legal.
        keep_io_types: graph inputs and outputs keep their types.
        repairs: names of repairs that are wanted (see `rulebook.repairs`).

    Returns:
        One judgement per type variable, groups of equal precision, constants that saturate.

    Raises:
        UsageError: unknown names, a pattern that matches nothing, or contradictory ones.
    """
    check_repairs(repairs)
    chosen, runtime = book.profile(profile), book.target(target)
    kept = select_typevars(graph, keep_fp32, "--keep-fp32")
    forced = select_typevars(graph, force_fp16, "--force-fp16")
    _check_selection(graph, kept, forced)
    hits = match_patterns(graph, book.patterns, facts) if chosen.patterns else ()
    evidence = gather_evidence(graph, facts, hits)
    relieved: frozenset[int] = frozenset()
    if chosen.relief:
        rules = {rule.id: rule for rule in book.patterns}
        hits, relieved = relieve(graph, hits, rules, evidence, chosen)
    coverage = check_kernels(graph, runtime) if chosen.kernels else Coverage({}, ())
    matcher = Matcher(graph, evidence, chosen, runtime)
    folded: dict[int, Reason] = {}
    ties: tuple[Group, ...] = ()
    rescaling = Rescaling({}, {}, ())
    numbers = tuple(r for r in book.rules if r.builtin and r.kind is RuleKind.EVIDENCE)
    if RESCALE in repairs and chosen.evidence:
        others = itertools.chain(
            kept,
            (tv for hit in hits if hit.verdict is Verdict.DENY for tv in hit.typevars),
            (tv for tv, (verdict, _) in coverage.verdicts.items() if verdict is Verdict.DENY),
        )
        rescaling = find_rescaling(
            graph, facts, chosen.headroom, lambda tv: matcher.find(numbers, tv), frozenset(others)
        )
    if FOLD in repairs:
        folded, ties = find_folds(graph, facts, lambda tv: matcher.find(numbers, tv))
    bench = _Bench(
        graph=graph,
        book=book,
        profile=chosen,
        matcher=matcher,
        relaxed=chosen.relaxed and runtime.fused_norms,
        pins=find_pins(graph, _domains(book), keep_io_types=keep_io_types),
        islands=find_islands(graph),
        hits=_hits_by_typevar(hits),
        relieved=relieved,
        coverage=coverage,
        folded=folded,
        rescaled=rescaling.members,
        kept=kept,
        forced=forced,
    )
    judgements = tuple(bench.judge(tv) for tv in graph.typevars)
    return Verdicts(
        judgements=judgements,
        groups=_groups(judgements, hits, (*coverage.groups, *ties, *rescaling.ties)),
        saturated=_saturated(graph, book, evidence) if chosen.saturate or SATURATE in repairs else {},
        lowered=coverage.lowered,
        folded=folded,
        rescaled=rescaling.reasons,
    )


@dataclass(frozen=True)
class _Candidate:
    verdict: Verdict
    reason: Reason


@dataclass(frozen=True)
class _Bench:
    """Everything one judgement looks at."""

    graph: ModelGraph
    book: RuleBook
    profile: Profile
    matcher: Matcher
    relaxed: bool
    pins: Mapping[int, Reason]
    islands: Mapping[int, Reason]
    hits: Mapping[int, Sequence[PatternHit]]
    relieved: frozenset[int]
    coverage: Coverage
    folded: Mapping[int, Reason]
    rescaled: Mapping[int, Reason]
    kept: Mapping[int, str]
    forced: Mapping[int, str]
    _sorted: dict[str, tuple[Rule, ...]] = field(default_factory=dict)

    def judge(self, tv: TypeVar) -> Judgement:
        if (pin := self.pins.get(tv.id)) is not None:
            return Judgement(Verdict.NEVER, (pin,))
        ranked = self._built_in(tv)  # weakest first
        ranked = self._apply_profile(ranked)
        ranked += self._user_rules(tv)
        if tv.id in self.kept:
            reason = Reason("keep-fp32", f"--keep-fp32 {self.kept[tv.id]}", Authority.COMMAND_LINE)
            ranked.append(_Candidate(Verdict.DENY, reason))
        if tv.id in self.forced:
            reason = Reason("force-fp16", f"--force-fp16 {self.forced[tv.id]}", Authority.COMMAND_LINE)
            ranked.append(_Candidate(Verdict.ALLOW, reason))
        winner = ranked[-1]
        reasons = tuple(dict.fromkeys(_key(c.reason) for c in reversed(ranked)))
        by_key = {_key(c.reason): c.reason for c in ranked}
        return Judgement(winner.verdict, tuple(by_key[k] for k in reasons))

    def _built_in(self, tv: TypeVar) -> list[_Candidate]:
        """Candidates weakest first; the last one is the verdict."""
        ranked = [self._class_of(tv)]
        ranked += _by_strictness(self.matcher.find(self._rules(RuleKind.REFINEMENT), tv))
        hits = sorted(self.hits.get(tv.id, ()), key=lambda hit: _STRICTNESS.index(hit.verdict))
        ranked += [_Candidate(hit.verdict, hit.reason) for hit in hits]
        if self.profile.evidence:
            ranked = self._add_evidence(tv, ranked)
        if tv.id in self.islands:
            ranked.append(_Candidate(Verdict.NEVER, self.islands[tv.id]))
        elif tv.id in self.coverage.verdicts:
            ranked.append(_Candidate(*self.coverage.verdicts[tv.id]))
        return ranked

    def _add_evidence(self, tv: TypeVar, ranked: list[_Candidate]) -> list[_Candidate]:
        matches = tuple(self.matcher.find(self._rules(RuleKind.EVIDENCE), tv))
        if tv.op is not None and tv.op in self.folded:  # its statistics are not read any more
            matches = tuple(m for m in matches if m[0].match.constant is None)
            ranked = [*ranked, _Candidate(ranked[-1].verdict, self.folded[tv.op])]
        if tv.op is not None and tv.op in self.rescaled:  # its values are held in range
            matches = tuple(m for m in matches if m[0].id != OVERFLOW_RULE)
            ranked = [*ranked, _Candidate(ranked[-1].verdict, self.rescaled[tv.op])]
        found = _by_strictness(matches)
        if tv.id in self.relieved:  # relief has looked at the eps and found it harmless
            found = [replace(c, verdict=Verdict.FOLLOW) if c.reason.rule == EPS_RULE else c for c in found]
        notes = [c for c in found if c.verdict is not Verdict.DENY]
        return notes + ranked + [c for c in found if c.verdict is Verdict.DENY]

    def _class_of(self, tv: TypeVar) -> _Candidate:
        if tv.op is None:
            return _Candidate(Verdict.FOLLOW, Reason("boundary", "a boundary passes values on"))
        op = self.graph.ops[tv.op]
        rule = self.book.base_rule(op.key)
        if op.callee is not None:
            return _Candidate(Verdict.FOLLOW, Reason("function-call", "the function's body is judged itself"))
        if rule is None:
            text = f"the rule book has no rule for {op.key}"
            return _Candidate(Verdict.DENY, Reason("unknown-operator", text))
        if self.relaxed and rule.relaxed is not None and self.matcher.is_range_safe(tv):
            text = f"{rule.name}: one kernel with FP32 inside, and the range is known to be safe"
            return _Candidate(rule.relaxed, Reason(rule.id, text))
        return _Candidate(rule.verdict, Reason(rule.id, rule.name))

    def _apply_profile(self, ranked: list[_Candidate]) -> list[_Candidate]:
        verdict = ranked[-1].verdict
        mapped = self.profile.maps.get(verdict, verdict)
        if mapped is verdict:
            return ranked
        text = f"profile {self.profile.id} turns '{verdict}' into '{mapped}'"
        reason = Reason(f"profile-{self.profile.id}", text, Authority.PROFILE)
        return [*ranked, _Candidate(mapped, reason)]

    def _user_rules(self, tv: TypeVar) -> list[_Candidate]:
        """In the order of the files: a later rule wins."""
        found = self.matcher.find(self._rules(None), tv)
        return [_Candidate(r.verdict, replace(s, authority=Authority.RULES_FILE)) for r, s in found]

    def _rules(self, kind: RuleKind | None) -> tuple[Rule, ...]:
        """Built-in rules of a kind; the user's for None. One tuple per kind, so that matches are cached."""
        key = str(kind)
        if key not in self._sorted:
            self._sorted[key] = tuple(
                r
                for r in self.book.rules
                if (not r.builtin if kind is None else r.builtin and r.kind is kind)
            )
        return self._sorted[key]


def _by_strictness(found: Iterable[tuple[Rule, Reason]]) -> list[_Candidate]:
    candidates = [_Candidate(rule.verdict, reason) for rule, reason in found]
    return sorted(candidates, key=lambda c: _STRICTNESS.index(c.verdict))


def _key(reason: Reason) -> tuple[str, str]:
    return reason.rule, reason.text


def _domains(book: RuleBook) -> frozenset[str]:
    keys = {key for rule in book.rules for key in rule.match.op}
    named = {d for rule in book.rules for d in rule.match.domain if not rule.builtin}
    return frozenset({key.rpartition("::")[0] for key in keys} | named | {""})


def _hits_by_typevar(hits: Sequence[PatternHit]) -> dict[int, list[PatternHit]]:
    found: dict[int, list[PatternHit]] = {}
    for hit in hits:
        for tv in hit.typevars:
            found.setdefault(tv, []).append(hit)
    return found


def _groups(
    judgements: Sequence[Judgement], hits: Sequence[PatternHit], more: Sequence[Group]
) -> tuple[Group, ...]:
    """Equality groups among type variables that can still change."""
    wanted = [Group(hit.typevars, hit.reason) for hit in hits if hit.one_precision]
    groups = []
    for group in [*wanted, *more]:
        free = tuple(tv for tv in group.typevars if judgements[tv].verdict is not Verdict.NEVER)
        if len(free) > 1:
            groups.append(replace(group, typevars=free))
    return tuple(groups)


def _saturated(graph: ModelGraph, book: RuleBook, evidence: Evidence) -> dict[int, Reason]:
    """Constants that become +-65504 where they are read in FP16.

    A constant read as a number somewhere else stays out: there it must not be clipped.
    """
    rule = book.rule("saturated-infinity")
    roles: dict[int, set[Role]] = {}
    for (value, _), role in evidence.roles.items():
        roles.setdefault(value, set()).add(role)
    found: dict[int, Reason] = {}
    for value in sorted(roles):
        figures = evidence.reader.figures(value)
        if figures is None or figures.max_finite_abs <= MAX or Role.NUMBER in roles[value]:
            continue
        name = graph.values[value].name
        text = rule.text.format(value=name, measured=figures.max_finite_abs, limit=MAX, origin="", headroom=1)
        numbers = {"measured": figures.max_finite_abs, "limit": MAX}
        found[value] = Reason(rule.id, text, Authority.EVIDENCE, numbers)
    return found


def _check_selection(graph: ModelGraph, kept: Mapping[int, str], forced: Mapping[int, str]) -> None:
    for tv in sorted(kept.keys() & forced.keys()):
        op = graph.typevars[tv].op
        name = graph.typevars[tv].symbol if op is None else graph.ops[op].label
        raise UsageError(
            f"'{name}' is named by both --keep-fp32 {kept[tv]} and --force-fp16 {forced[tv]}",
            hint="narrow one of the patterns",
        )
