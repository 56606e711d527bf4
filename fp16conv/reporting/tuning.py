"""What a tuning found out, as report data. This module imports the standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from fp16conv.reporting.report import ConvertReport

__all__ = ["Effort", "FrontierPoint", "Moved", "Rounding", "TuneReport"]


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A plan that was measured.

    Args:
        origin: how it was found: `default`, `minimum cut`, `region in FP16`.
        error: largest relative L2 error of a floating output, None where none is defined.
        used: largest error of an output in a batch over what it is allowed; 1 or less is within tolerance.
        ok: every output is within tolerance.
        seconds: predicted time.
        speedup: predicted, against FP32.
        casts: casts added.
        macs_share: share of MACs in FP16, None where there are none.
        chosen: whether it is the answer.
    """

    origin: str
    error: float | None
    used: float
    ok: bool
    seconds: float
    speedup: float
    casts: int
    macs_share: float | None
    chosen: bool


@dataclass(frozen=True, slots=True)
class Effort:
    """What the search cost.

    Args:
        runs: emulated runs, each over all batches.
        reused: how many of them were known from an earlier search.
        max_runs: how many were allowed.
        exhaustive_runs: what one run per operator would have taken.
        out_of_time: whether the search ended early.
    """

    runs: int
    reused: int
    max_runs: int
    exhaustive_runs: int
    out_of_time: bool


@dataclass(frozen=True, slots=True)
class Moved:
    """An operator whose precision differs from the default plan's.

    Args:
        dtype: what it has in the tuned plan.
        reason: the strongest reason.
    """

    op: str
    op_type: str
    dtype: str
    reason: str


@dataclass(frozen=True, slots=True)
class Rounding:
    """Error that rounding at one place adds.

    Args:
        what: `result` or `constants`.
        used: root of its squared error, over what the outputs are allowed.
        resolved: False where it was only measured together with its neighbours.
    """

    op: str
    op_type: str
    what: str
    used: float
    resolved: bool


@dataclass(frozen=True, kw_only=True)
class TuneReport(ConvertReport):
    """The fastest plan that meets a tolerance, and what other plans would cost.

    `decisions`, `size` and `prediction` are those of the chosen plan, or of the most accurate one where
    none is within tolerance.

    Args:
        tolerance: allowed relative L2 error per output.
        met: whether a plan is within tolerance.
        nearest: smallest error over the allowed error that was reached.
        wanted: whether a file was asked for.
        frontier: measured plans, fastest first.
        moved: operators whose precision differs from the default plan's.
        roundings: the places that add most error, worst first.
    """

    schema: str = "fp16conv.tune/1"
    tolerance: float
    met: bool
    nearest: float
    wanted: bool
    frontier: tuple[FrontierPoint, ...]
    effort: Effort
    moved: tuple[Moved, ...] = ()
    roundings: tuple[Rounding, ...] = ()

    @property
    def ok(self) -> bool:
        return super(ConvertReport, self).ok and self.met and (self.output is not None or not self.wanted)
