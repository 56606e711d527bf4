"""Repairs: other ways to write an operator or a constant that keep FP16 where the numbers do not fit it.

None changes what the model computes beyond rounding. Each is asked for by name; saturation belongs to every
profile but `half`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from fp16conv.graph import ModelGraph, RangeFact, TypeVar
from fp16conv.rulebook.folding import fits_fp16, fold_batch_norm
from fp16conv.rulebook.repair_names import FOLD
from fp16conv.rulebook.schema import Rule
from fp16conv.rulebook.types import Authority, Group, Reason, Verdict

__all__ = ["Findings", "find_folds"]

Findings = Iterable[tuple[Rule, Reason]]


def find_folds(
    graph: ModelGraph, facts: Mapping[int, RangeFact], find: Callable[[TypeVar], Findings]
) -> tuple[dict[int, Reason], tuple[Group, ...]]:
    """The BatchNormalizations that only their statistics keep in FP32, and whose factor and shift fit FP16.

    Args:
        graph: the model.
        facts: ranges by value id; that of the input decides whether the product stays in range.
        find: what rules about numbers say of a type variable.

    Returns:
        Reason by operator id, and the type variables of each such operator that must be equal.
    """
    reasons: dict[int, Reason] = {}
    groups: list[Group] = []
    for op in graph.ops:
        folded = fold_batch_norm(graph, op)
        if folded is None:
            continue
        variables = graph.typevars_of(op.id)
        denied = [reason for variable in variables for reason in _denials(find(variable))]
        source = op.inputs[0] if op.inputs else None
        if not denied or source is None or not fits_fp16(folded, facts.get(source)):
            continue
        largest, shift = float(abs(folded.factor).max()), float(abs(folded.shift).max())
        text = (
            f"{denied[0].text}; its factor of at most {largest:.3g} and shift of at most {shift:.3g} fit: "
            "written as Mul and Add"
        )
        reasons[op.id] = Reason(FOLD, text, Authority.EVIDENCE, {"factor": largest, "shift": shift})
        groups += _tie(variables, reasons[op.id])
    return reasons, tuple(groups)


def _denials(findings: Findings) -> list[Reason]:
    """The reasons of rules that forbid FP16 because of a constant's numbers."""
    return [
        reason
        for rule, reason in findings
        if rule.verdict is Verdict.DENY and rule.match.constant is not None
    ]


def _tie(variables: Iterable[TypeVar], reason: Reason) -> list[Group]:
    ids = tuple(v.id for v in variables)
    return [Group(ids, reason)] if len(ids) > 1 else []
