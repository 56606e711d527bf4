"""Rules weighed by data: what each costs in casts and time, and what error it saves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fp16conv.graph import DataType, ModelGraph
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.rulebook.types import Authority, Judgement, Reason, Verdict, Verdicts
from fp16conv.tuning.frontier import fp16_of
from fp16conv.validation.probe import Measurement

__all__ = ["Effect", "audit", "deciding_rules"]

AUDITED = "rule-audit"
"""Rule id of the reason that a judgement has while its rule is left out."""


@dataclass(frozen=True)
class Effect:
    """The plan without one rule.

    Args:
        rule: id of the rule.
        authority: who says so.
        op_types: number of operators that it decides, per type, most frequent first.
        changed: how many operators run in FP16 without it.
        plan: the plan without it.
        measured: its error.
    """

    rule: str
    authority: Authority
    op_types: Mapping[str, int]
    changed: int
    plan: PrecisionPlan
    measured: Measurement


def deciding_rules(graph: ModelGraph, verdicts: Verdicts) -> dict[tuple[str, Authority], tuple[int, ...]]:
    """Type variables per rule that keeps them in FP32, in file order; the command line is no rule."""
    found: dict[tuple[str, Authority], list[int]] = {}
    for variable, judgement in zip(graph.typevars, verdicts.judgements, strict=True):
        if judgement.verdict is not Verdict.DENY or not judgement.reasons or not variable.admits_fp16:
            continue
        first = judgement.reasons[0]
        if first.authority is not Authority.COMMAND_LINE:
            found.setdefault((first.rule, first.authority), []).append(variable.id)
    return {key: tuple(members) for key, members in found.items()}


def audit(
    graph: ModelGraph,
    verdicts: Verdicts,
    default: PrecisionPlan,
    plan: Callable[[Verdicts], PrecisionPlan],
    measure: Callable[[Sequence[DataType]], Measurement],
    tell: Callable[[str, int, int | None], None] | None = None,
) -> tuple[Effect, ...]:
    """Leave out one rule at a time: what it decides may follow its neighbours, everything else stays.

    Args:
        graph: the model.
        verdicts: of the rule book.
        default: the plan they give.
        plan: makes a plan from verdicts.
        measure: error of the precision of every type variable.
        tell: told about each rule.

    Returns:
        One effect per rule, in file order of what they decide first; one emulated run each where the plan
        changes at all.
    """
    rules = deciding_rules(graph, verdicts)
    before, baseline = fp16_of(default), measure(_dtypes(graph, default))
    effects = []
    for number, ((rule, authority), members) in enumerate(rules.items()):
        if tell is not None:
            tell("auditing rules", number, len(rules))
        judgements = list(verdicts.judgements)
        for index in members:
            reason = Reason(AUDITED, f"'{rule}' is left out", Authority.EVIDENCE)
            judgements[index] = Judgement(Verdict.INFER, (reason, *judgements[index].reasons))
        without = plan(replace(verdicts, judgements=tuple(judgements)))
        after = fp16_of(without)
        ops = dict.fromkeys(graph.typevars[t].op for t in members)
        types = Counter(graph.ops[op].key for op in ops if op is not None)
        effects.append(
            Effect(
                rule=rule,
                authority=authority,
                op_types=dict(sorted(types.items(), key=lambda item: (-item[1], item[0]))),
                changed=len({graph.typevars[t].op for t in after - before} - {None}),
                plan=without,
                measured=baseline if after == before else measure(_dtypes(graph, without)),
            )
        )
    return tuple(effects)


def _dtypes(graph: ModelGraph, plan: PrecisionPlan) -> list[DataType]:
    chosen = plan.dtypes
    return [chosen.get(variable.id, DataType.FLOAT) for variable in graph.typevars]
