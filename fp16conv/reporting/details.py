"""Details of a report: every operator with its precision, reasons, ranges and error. Standard library only.

They are filled where a reader can search them (HTML, viewers) and left out elsewhere: a model of 10,000
operators has megabytes of them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PRECISIONS", "Details", "OperatorDetail", "ReasonNote", "RuleNote", "ValueDetail"]

PRECISIONS = ("fp16", "mixed", "fp32", "other")
"""Of an operator: all its floating tensors in FP16, some, none, or it has no FP32 tensors to decide about."""


@dataclass(frozen=True, slots=True)
class RuleNote:
    """A rule of the rule book that decided something here.

    Args:
        id: what reasons refer to.
        name: headline.
        verdict: class of what it matches.
        rationale: the arithmetic behind it.
        sources: where that is from.
        file: the rule file.
    """

    id: str
    name: str
    verdict: str
    rationale: str
    sources: tuple[str, ...]
    file: str


@dataclass(frozen=True, slots=True)
class ReasonNote:
    """Why an operator has its precision: a sentence, the rule behind it and who says so."""

    rule: str
    text: str
    authority: str


@dataclass(frozen=True, slots=True)
class ValueDetail:
    """What is known of the numbers of a tensor.

    Args:
        name: of the value.
        dtype: in the plan.
        shape: as seen, or as declared; None where unknown.
        origin: how the range is known (`observed`, `synthetic`, `proven`); "" where it is not.
        lo, hi: smallest and largest number.
        min_abs: smallest non-zero magnitude.
        rms: root mean square.
        overflow, subnormal, zeroed: shares of elements that FP16 makes infinite, holds with fewer bits, or
            rounds to zero.
        first_exponent: base-2 exponent of the first count.
        counts: elements per base-2 exponent of their magnitude, ends trimmed; empty where not observed.
        error: relative L2 error of the value in the plan, None where not measured.
        bounds: smallest and largest number for all inputs, as proven; None where nothing is.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None = None
    origin: str = ""
    lo: float | None = None
    hi: float | None = None
    min_abs: float | None = None
    rms: float | None = None
    overflow: float = 0.0
    subnormal: float = 0.0
    zeroed: float = 0.0
    first_exponent: int = 0
    counts: tuple[int, ...] = ()
    error: float | None = None
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class OperatorDetail:
    """One operator, in file order.

    Args:
        label: name, or a stable stand-in.
        op_type: `domain::type`.
        scope: path of the scope, e.g. `main`.
        precision: one of PRECISIONS.
        verdict: of the type variable that speaks for the operator, "" where there is none.
        reasons: strongest first.
        outputs: floating tensors that it makes.
        macs: multiply-accumulates, None where unknown.
        error: largest relative L2 error of its outputs in the plan, None where not measured.
        error_in: largest relative L2 error of what it reads.
        block: names of the blocks around it, outermost first; empty where the model names none.
        line: file:number of the PyTorch source that it comes from, "" where unknown.
    """

    label: str
    op_type: str
    scope: str
    precision: str
    verdict: str
    reasons: tuple[ReasonNote, ...]
    outputs: tuple[ValueDetail, ...] = ()
    macs: int | None = None
    error: float | None = None
    error_in: float | None = None
    block: tuple[str, ...] = ()
    line: str = ""

    @property
    def error_added(self) -> float | None:
        """How much larger the error behind the operator is than before it, in squares; None if unknown."""
        if self.error is None:
            return None
        before = self.error_in or 0.0
        return max(self.error**2 - before**2, 0.0) ** 0.5 if self.error != float("inf") else self.error


@dataclass(frozen=True, slots=True)
class Details:
    """Every operator of a model.

    Args:
        operators: in file order.
        inputs: floating inputs of the graph.
        rules: the rules that the reasons name, by id.
        error_note: what the errors rest on, "" where there are none.
    """

    operators: tuple[OperatorDetail, ...]
    inputs: tuple[ValueDetail, ...] = ()
    rules: tuple[RuleNote, ...] = ()
    error_note: str = ""
