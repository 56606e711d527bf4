"""The error of a converted model by operator, as report data. Imports the standard library only."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OperatorShare", "PerOperator"]


@dataclass(frozen=True, slots=True)
class OperatorShare:
    """What one operator adds to the error of the outputs.

    Args:
        share: share of the squared error that rounding at this operator causes, 0 to 1.
        resolved: False where it was only measured together with its neighbours.
        error: relative L2 error of its first result on the first batch, None where it cannot be read.
        pattern: id of the pattern rule it belongs to, empty if none.
    """

    op: str
    op_type: str
    share: float
    resolved: bool
    error: float | None
    pattern: str


@dataclass(frozen=True, slots=True)
class PerOperator:
    """Operators by the error they cause, worst first.

    Args:
        first: the first operator whose result errs more than the tolerance, empty if none does.
        first_type: its type.
        first_error: relative L2 error of that result on the first batch.
        operators: those that cause error.
    """

    first: str
    first_type: str
    first_error: float | None
    operators: tuple[OperatorShare, ...]
