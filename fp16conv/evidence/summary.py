"""A running summary of FP32 numbers: one pass, bounded memory, mergeable over chunks and batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from fp16conv import half
from fp16conv.graph import Origin, RangeFact
from fp16conv.graph.pieces import PIECE

__all__ = ["HIGHEST_EXPONENT", "LOWEST_EXPONENT", "RangeSummary", "iterate_chunks"]

LOWEST_EXPONENT: Final = -40
HIGHEST_EXPONENT: Final = 40
_CACHED: Final = 1 << 16  # elements looked at together: they and their temporaries stay in the cache
_SQUARABLE: Final = (2.0**-40, 2.0**55)
"""Largest magnitudes with which 2^16 squares can be added in float32: none that counts is lost."""
_BIAS: Final = 127  # binary32, IEEE 754-2019 table 3.5


def iterate_chunks(array: npt.NDArray[np.generic], size: int = PIECE) -> Iterator[npt.NDArray[np.float32]]:
    """Cut an array into flat float32 pieces without copying the whole (views where nothing is cast).

    Args:
        array: any shape, any real dtype.
        size: elements per piece.

    Yields:
        1-D float32 arrays of at most `size` elements, in memory order.
    """
    flat = array.reshape(-1)  # a view where the array is contiguous
    for start in range(0, flat.size, size):
        yield flat[start : start + size].astype(np.float32, copy=False)


class RangeSummary:
    """Extremes, smallest non-zero magnitude, rms, integrality and exponents of a stream of numbers.

    Finite extremes are kept apart from infinities: an infinity survives the cast to FP16, a finite
    number beyond 65504 does not.

    Args:
        exponents: count them too (see `histogram`); it takes longer than all the rest.

    Example:
        >>> s = RangeSummary()
        >>> s.update(np.array([1.0, -70000.0, np.inf, 0.0], np.float32))
        >>> s.finite_lo, s.finite_hi, s.positive_infinities, s.overflowing
        (-70000.0, 1.0, 1, 1)
    """

    __slots__ = (
        "_exponents",
        "_square_sum",
        "_wants_exponents",
        "count",
        "finite_hi",
        "finite_lo",
        "is_integral",
        "min_abs_nonzero",
        "nans",
        "negative_infinities",
        "overflowing",
        "positive_infinities",
        "subnormal",
        "zeroed",
    )

    def __init__(self, *, exponents: bool = True) -> None:
        self._wants_exponents = exponents
        self.count = 0
        self.nans = 0
        self.positive_infinities = 0
        self.negative_infinities = 0
        self.overflowing = 0
        self.subnormal = 0
        self.zeroed = 0
        self.finite_lo: float | None = None
        self.finite_hi: float | None = None
        self.min_abs_nonzero: float | None = None
        self.is_integral = True
        self._square_sum = 0.0
        self._exponents = np.zeros(256, np.int64)

    def update(self, array: npt.NDArray[np.generic]) -> None:
        """Take in more numbers (any shape, real dtype; looked at as float32)."""
        with np.errstate(over="ignore"):
            for chunk in iterate_chunks(array):
                self._add(_measure(chunk, self._wants_exponents))

    def _add(self, part: _Part) -> None:
        self.count += part.count
        self.nans += part.nans
        self.positive_infinities += part.positive_infinities
        self.negative_infinities += part.negative_infinities
        self.overflowing += part.overflowing
        self.subnormal += part.subnormal
        self.zeroed += part.zeroed
        self.is_integral = self.is_integral and part.is_integral
        self._square_sum += part.square_sum
        if part.exponents is not None:
            self._exponents += part.exponents
        self.finite_lo = _least(self.finite_lo, part.finite_lo)
        self.min_abs_nonzero = _least(self.min_abs_nonzero, part.min_abs_nonzero)
        if part.finite_hi is not None:
            self.finite_hi = part.finite_hi if self.finite_hi is None else max(self.finite_hi, part.finite_hi)

    @property
    def rms(self) -> float | None:
        """Root mean square of the finite numbers to seven digits, None if there are none."""
        finite = self.count - self.nans - self.positive_infinities - self.negative_infinities
        if not finite or self.finite_lo is None or self.finite_hi is None:
            return None
        largest = max(-self.finite_lo, self.finite_hi)
        return min(math.sqrt(self._square_sum / finite), largest)  # squares are rounded, up too

    def histogram(self) -> npt.NDArray[np.int64]:
        """Count finite non-zero magnitudes per base-2 exponent.

        Returns:
            int64 [81]: the bins of `half.exponent_histogram` with its default limits (-40 to 40).
        """
        first, last = LOWEST_EXPONENT + _BIAS, HIGHEST_EXPONENT + _BIAS
        bins = self._exponents[first : last + 1].copy()
        bins[0] += self._exponents[:first].sum()
        bins[-1] += self._exponents[last + 1 :].sum()
        return bins

    def fact(self, origin: Origin) -> RangeFact | None:
        """The summary as a fact; None when no number was seen.

        `share_overflow` counts finite magnitudes from 65520 on: FP16 has infinities, so one that was
        there before is not lost. Where every number is NaN the range is the whole line.
        """
        if not self.count:
            return None
        lo, hi = self.finite_lo, self.finite_hi
        if self.negative_infinities or (lo is None and not self.positive_infinities):
            lo = -np.inf
        if self.positive_infinities or (hi is None and not self.negative_infinities):
            hi = np.inf
        lo, hi = (np.inf if lo is None else lo), (-np.inf if hi is None else hi)
        finite = None
        if self.negative_infinities or self.positive_infinities:
            finite = max(abs(self.finite_lo or 0.0), abs(self.finite_hi or 0.0))
        return RangeFact(
            float(lo),
            float(hi),
            origin,
            min_abs_nonzero=self.min_abs_nonzero,
            is_integral=self.is_integral and self.finite_lo is not None,
            has_nan=self.nans > 0,
            share_overflow=self.overflowing / self.count,
            share_subnormal=self.subnormal / self.count,
            share_zeroed=self.zeroed / self.count,
            rms=self.rms,
            finite_max_abs=finite,
        )


@dataclass(slots=True)
class _Part:
    """The same figures of one chunk."""

    count: int
    nans: int = 0
    positive_infinities: int = 0
    negative_infinities: int = 0
    overflowing: int = 0
    subnormal: int = 0
    zeroed: int = 0
    finite_lo: float | None = None
    finite_hi: float | None = None
    min_abs_nonzero: float | None = None
    is_integral: bool = True
    square_sum: float = 0.0
    exponents: npt.NDArray[np.int64] | None = None


def _least(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else min(a, b)


def _bits(x: float) -> np.uint32:
    return np.float32(x).view(np.uint32)


_MAGNITUDE: Final = np.uint32(0x7FFFFFFF)
_OVERFLOW: Final = _bits(half.OVERFLOW)
_SMALLEST_NORMAL: Final = _bits(half.SMALLEST_NORMAL)
_UNDERFLOW: Final = _bits(half.UNDERFLOW)


def _measure(chunk: npt.NDArray[np.float32], wants_exponents: bool) -> _Part:
    part = _Part(chunk.size)
    if wants_exponents:
        part.exponents = np.zeros(256, np.int64)
    scratch = np.empty(min(chunk.size, _CACHED), np.uint32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, chunk.size, _CACHED):
            _measure_piece(np.ascontiguousarray(chunk[start : start + _CACHED]), scratch, part)
    return part


def _measure_piece(x: npt.NDArray[np.float32], scratch: npt.NDArray[np.uint32], part: _Part) -> None:
    """Magnitudes are compared as bit patterns: IEEE 754 orders them like unsigned integers."""
    lowest, highest = float(x.min()), float(x.max())
    if not (math.isfinite(lowest) and math.isfinite(highest)):  # NaN where there is one
        part.nans += int(np.count_nonzero(np.isnan(x)))
        part.positive_infinities += int(np.count_nonzero(np.isposinf(x)))
        part.negative_infinities += int(np.count_nonzero(np.isneginf(x)))
        x = x[np.isfinite(x)]
        if not x.size:
            return
        lowest, highest = float(x.min()), float(x.max())
    part.finite_lo = _least(part.finite_lo, lowest)
    part.finite_hi = highest if part.finite_hi is None else max(part.finite_hi, highest)
    magnitude = np.bitwise_and(x.view(np.uint32), _MAGNITUDE, out=scratch[: x.size])
    smallest, largest = magnitude.min(), max(highest, -lowest)
    zeros = 0
    if smallest == 0:
        zeros = x.size - int(np.count_nonzero(magnitude))
        smallest = (magnitude - np.uint32(1)).min() + np.uint32(1)  # zeros wrap around to the largest
    if part.exponents is not None:
        part.exponents += np.bincount(magnitude >> np.uint32(23), minlength=256)
        part.exponents[0] -= zeros
    if part.is_integral:
        part.is_integral = bool(np.array_equal(x, np.rint(x)))
    if zeros == x.size:
        return
    if largest >= half.OVERFLOW:
        part.overflowing += int(np.count_nonzero(magnitude >= _OVERFLOW))
    part.min_abs_nonzero = _least(part.min_abs_nonzero, float(smallest.view(np.float32)))
    if smallest < _SMALLEST_NORMAL:
        part.subnormal += int(np.count_nonzero(magnitude < _SMALLEST_NORMAL)) - zeros
    if smallest <= _UNDERFLOW:
        part.zeroed += int(np.count_nonzero(magnitude <= _UNDERFLOW)) - zeros
    if _SQUARABLE[0] <= largest <= _SQUARABLE[1]:
        part.square_sum += float(np.square(x, out=magnitude.view(np.float32)).sum())  # numpy adds in pairs
    else:
        part.square_sum += float(np.square(x, dtype=np.float64).sum())
