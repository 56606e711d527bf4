"""Reports about one operator, and about the difference of two plans or models. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from fp16conv.reporting.details import OperatorDetail, ReasonNote
from fp16conv.reporting.report import Report

__all__ = ["Change", "DiffReport", "ExplainReport", "Outcome", "VariableNote"]


@dataclass(frozen=True, slots=True)
class VariableNote:
    """One type variable of an operator.

    Args:
        symbol: its name in the operator's schema, e.g. `T`.
        dtype: in the plan.
        verdict: of the rule book.
        reasons: strongest first.
    """

    symbol: str
    dtype: str
    verdict: str
    reasons: tuple[ReasonNote, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the plan would be under other options.

    Args:
        change: the flag that asks for it.
        precision: of the operator then.
        casts: of the plan.
        seconds: predicted time of the plan, None where unknown.
        reason: the strongest reason of the operator then.
        current: whether this is the plan as it is.
    """

    change: str
    precision: str
    casts: int
    seconds: float | None
    reason: str
    current: bool = False


@dataclass(frozen=True, kw_only=True)
class ExplainReport(Report):
    """Why an operator has its precision, and what would change that."""

    schema: str = "fp16conv.explain/1"
    model_path: str
    operator: OperatorDetail
    variables: tuple[VariableNote, ...]
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """An operator whose precision differs.

    Args:
        before, after: precision, "absent" where only the other one has the operator.
        reason: the strongest reason after, "" if none is known.
    """

    op: str
    op_type: str
    before: str
    after: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class DiffReport(Report):
    """What differs between two plans or two models.

    Args:
        first, second: paths.
        kind: `plans` or `models`.
        operators: compared by scope and name.
        changes: in file order.
        casts: number in the first and in the second.
        casts_added, casts_removed: value and target type of casts that only one of them has.
        notes: other differences (model, rules, options), one sentence each.
    """

    schema: str = "fp16conv.diff/1"
    first: str
    second: str
    kind: str
    operators: int
    changes: tuple[Change, ...]
    casts: tuple[int, int]
    casts_added: tuple[str, ...] = ()
    casts_removed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Anything at all is different."""
        return bool(self.changes or self.casts_added or self.casts_removed or self.notes)
