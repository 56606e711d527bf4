"""What an audit of a training found out, as report data. This module imports the standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fp16conv.reporting.report import Report

__all__ = ["GradientNote", "ScaleRange", "TrainAuditReport", "format_scales", "worst_gradients"]


@dataclass(frozen=True, slots=True)
class ScaleRange:
    """Loss scales, as exponents of two, with which gradients neither vanish nor overflow.

    Args:
        lowest: from here on at most 0.1 % of the non-zero gradients vanish.
        highest: up to here nothing overflows.
        recommended: the one to start with.
    """

    derived: ClassVar[tuple[str, ...]] = ("is_open",)

    lowest: int
    highest: int
    recommended: int

    @property
    def is_open(self) -> bool:
        """Whether one scale does both."""
        return self.lowest <= self.highest


@dataclass(frozen=True, slots=True)
class GradientNote:
    """Gradients of a parameter, or with respect to a value of the forward pass.

    Args:
        name: of the parameter, of the module whose output it is, or `module:call` inside of one.
        kind: `parameter` or `activation`.
        max_abs: largest magnitude over all batches.
        share_zeroed: share of the non-zero gradients that FP16 rounds to zero at scale 1.
        share_left: share that still vanishes at the recommended scale of the whole training.
        scales: loss scales that fit it, None where all gradients are zero.
        first_exponent: base-2 exponent of the first count.
        counts: gradients per base-2 exponent of their magnitude, ends trimmed.
        share_lost: share of the updates that FP16 weights lose; None for activations, and for parameters
            that the optimizer does not have.
    """

    name: str
    kind: str
    max_abs: float
    share_zeroed: float
    share_left: float
    scales: ScaleRange | None
    first_exponent: int
    counts: tuple[int, ...]
    share_lost: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrainAuditReport(Report):
    """What a training would meet in FP16; no weight was changed.

    Args:
        source: `package.module:factory`.
        batches: number of batches run forward and backward.
        losses: loss per batch.
        gradients: parameters in order of the module, then activations in order of execution.
        overflowing: values of the forward pass beyond 65504, with the largest magnitude.
        autocast_fp32: calls that CUDA autocast keeps in FP32, by number.
        window: loss scales that fit all gradients together.
        loss_scale: the recommended one.
        share_zeroed: share of the non-zero parameter gradients that vanish at scale 1.
        share_lost: share of the updates that FP16 weights lose.
        optimizer: name of the class whose updates were judged.
        learning_rate: of its first group of parameters.
    """

    schema: str = "fp16conv.train-audit/1"
    source: str
    batches: int
    losses: tuple[float, ...]
    gradients: tuple[GradientNote, ...]
    overflowing: Mapping[str, float]
    autocast_fp32: Mapping[str, int]
    window: ScaleRange
    loss_scale: float
    share_zeroed: float
    share_lost: float
    optimizer: str
    learning_rate: float


def worst_gradients(gradients: Sequence[GradientNote]) -> list[GradientNote]:
    """What no loss scale rescues first, then by the share that vanishes without one, ties in their order."""

    def rank(note: GradientNote) -> tuple[bool, float]:
        return note.scales is None or note.scales.is_open, -note.share_zeroed

    return sorted(gradients, key=rank)


def format_scales(scales: ScaleRange | None) -> str:
    """A range of loss scales in a few characters.

    Example:
        >>> format_scales(ScaleRange(3, 14, 12)), format_scales(ScaleRange(9, 4, 4)), format_scales(None)
        ('2^3 to 2^14', 'none', 'any')
    """
    if scales is None:
        return "any"
    return f"2^{scales.lowest} to 2^{scales.highest}" if scales.is_open else "none"
