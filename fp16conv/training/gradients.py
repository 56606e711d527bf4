"""Gradients against FP16's range: what vanishes, which loss scales rescue it, which updates are lost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from fp16conv.evidence.summary import HIGHEST_EXPONENT, LOWEST_EXPONENT
from fp16conv.half import MAX, UNDERFLOW, UNIT_ROUNDOFF

__all__ = ["GradientFact", "Gradients", "ScaleWindow"]

TOLERATED: Final = 1e-3
"""Share of non-zero gradients that may still vanish at the lowest safe scale."""

HEADROOM: Final = 2.0
"""Factor that gradients may grow beyond those seen before the scaled ones overflow: one binade."""

LARGEST_SCALE: Final = 127
"""GradScaler keeps its scale as an FP32 number, whose largest power of two this is."""

_SMALLEST: Final = 160  # below every FP32 exponent (-149): counts by exponent start at -160
_EXPONENTS: Final = 320

Histogram = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ScaleWindow:
    """Loss scales, as powers of two, with which gradients neither vanish nor overflow.

    Args:
        lowest: smallest exponent at which at most 0.1 % of the non-zero gradients vanish.
        highest: largest exponent at which the largest gradient stays below 65504, a binade spared.

    Example:
        >>> ScaleWindow(4, 20).recommended, ScaleWindow(4, 5).recommended, ScaleWindow(9, 5).recommended
        (18, 4, 5)
    """

    lowest: int
    highest: int

    @property
    def is_open(self) -> bool:
        """Whether one scale does both."""
        return self.lowest <= self.highest

    @property
    def recommended(self) -> int:
        """Exponent to use: two binades below the highest where that rescues all; else the lowest that does.

        Where no scale does both it is the highest: overflow stops a training, vanishing slows it down.
        """
        return max(self.lowest, self.highest - 2) if self.is_open else self.highest


@dataclass(frozen=True)
class GradientFact:
    """Gradients of one parameter, or with respect to one value of the forward pass.

    Args:
        name: of the parameter, of the module whose output it is, or `module:call` inside of one.
        kind: `parameter` or `activation`.
        count: number of non-zero gradients over all batches.
        max_abs: largest magnitude over all batches.
        share_zeroed: share of the non-zero gradients that FP16 rounds to zero at scale 1.
        share_left: share that FP16 still rounds to zero at the scale recommended for the whole training.
        window: loss scales that fit it; None where all gradients are zero.
        histogram: int64 [81] counts of base-2 exponents -40 to 40; the ends hold what is beyond them.
        share_lost: share of updates below 2^-11 of their weight; None for activations, and for parameters
            that the optimizer does not have.
    """

    name: str
    kind: str
    count: int
    max_abs: float
    share_zeroed: float
    share_left: float
    window: ScaleWindow | None
    histogram: Histogram
    share_lost: float | None = None


class Gradients:
    """Counts and extremes of one stream of gradients, added up over batches.

    Args:
        kind: `parameter` or `activation`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.max_abs = 0.0
        self.updates = self.lost = 0
        self.is_updated = False
        self._floors = np.zeros(_EXPONENTS, np.int64)
        self._ceilings = np.zeros(_EXPONENTS, np.int64)

    @property
    def count(self) -> int:
        """Number of non-zero gradients."""
        return int(self._floors.sum())

    def add(self, gradient: npt.NDArray[np.floating]) -> None:
        """Count finite gradients of any shape."""
        magnitude = np.abs(gradient[np.isfinite(gradient) & (gradient != 0)])
        if not magnitude.size:
            return
        self.max_abs = max(self.max_abs, float(magnitude.max()))
        mantissas, exponents = np.frexp(magnitude)  # in [0.5, 1): 2^(e-1) <= magnitude < 2^e
        places = np.clip(exponents.astype(np.int64) + _SMALLEST, 1, _EXPONENTS - 1)
        self._floors += np.bincount(places - 1, minlength=_EXPONENTS)
        self._ceilings += np.bincount(places - (mantissas == 0.5), minlength=_EXPONENTS)

    def add_updates(
        self,
        weight: npt.NDArray[np.floating],
        gradient: npt.NDArray[np.floating],
        step: npt.NDArray[np.floating],
    ) -> None:
        """Count the updates that FP16 weights would lose, those of weights with a gradient.

        An update below 2^-12 of its weight is lost in FP16, one above 2^-11 is not; between the two it is
        lost or doubled, by where in its binade the weight lies. Below 2^-25 every update is lost.

        Source: Micikevicius et al., Mixed Precision Training, arXiv:1710.03740, section 3.1.
        """
        moved = (gradient != 0) | (step != 0)
        size = np.abs(step)
        lost = (size < UNIT_ROUNDOFF * np.abs(weight)) | (size <= UNDERFLOW)
        self.is_updated = True
        self.updates += int(moved.sum())
        self.lost += int(lost[moved].sum())

    def share_zeroed(self, scale: int = 0) -> float:
        """Share of the non-zero gradients that FP16 rounds to zero at a loss scale of 2^scale."""
        # Magnitudes up to 2^-25 (a tie) become zero: those whose logarithm, rounded up, is at most -25.
        end = min(max(_SMALLEST - 25 - scale + 1, 0), _EXPONENTS)
        return int(self._ceilings[:end].sum()) / self.count if self.count else 0.0

    def window(self) -> ScaleWindow | None:
        """The loss scales that fit; None where all gradients are zero."""
        if not self.count:
            return None
        below = np.cumsum(self._ceilings) / self.count
        first = int(np.searchsorted(below, TOLERATED, side="right")) - _SMALLEST  # that must survive
        highest = math.floor(math.log2(MAX / HEADROOM / self.max_abs))
        return ScaleWindow(lowest=-24 - first, highest=min(highest, LARGEST_SCALE))

    def merge(self, other: Gradients) -> None:
        """Add the counts of another stream."""
        self.max_abs = max(self.max_abs, other.max_abs)
        self._floors += other._floors
        self._ceilings += other._ceilings

    def fact(self, name: str, scale: int) -> GradientFact:
        """What was counted; `scale` is the exponent recommended for the whole training."""
        return GradientFact(
            name=name,
            kind=self.kind,
            count=self.count,
            max_abs=self.max_abs,
            share_zeroed=self.share_zeroed(),
            share_left=self.share_zeroed(scale),
            window=self.window(),
            histogram=self._histogram(),
            share_lost=self.lost / max(self.updates, 1) if self.is_updated else None,
        )

    def _histogram(self) -> Histogram:
        first, last = LOWEST_EXPONENT + _SMALLEST, HIGHEST_EXPONENT + _SMALLEST
        inner = self._floors[first : last + 1].copy()
        inner[0] += self._floors[:first].sum()
        inner[-1] += self._floors[last + 1 :].sum()
        return inner
