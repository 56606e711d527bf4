"""A running summary of FP32 numbers: one pass, bounded memory, mergeable over chunks and batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from fp16conv import half
from fp16conv.graph import Origin, RangeFact

__all__ = ["CHUNK", "HIGHEST_EXPONENT", "LOWEST_EXPONENT", "RangeSummary", "iterate_chunks"]

CHUNK: Final = 1 << 20  # elements looked at in one go: about 20 MB with the temporaries
LOWEST_EXPONENT: Final = -40
HIGHEST_EXPONENT: Final = 40
_BIAS: Final = 127  # binary32, IEEE 754-2019 table 3.5


def iterate_chunks(array: npt.NDArray[np.generic], size: int = CHUNK) -> Iterator[npt.NDArray[np.float32]]:
    """Cut an array into flat float32 pieces without copying the whole (memory maps stay mapped).

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

    Example:
        >>> s = RangeSummary()
        >>> s.update(np.array([1.0, -70000.0, np.inf, 0.0], np.float32))
        >>> s.finite_lo, s.finite_hi, s.positive_infinities, s.overflowing
        (-70000.0, 1.0, 1, 1)
    """

    __slots__ = (
        "_exponents",
        "_square_sum",
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

    def __init__(self) -> None:
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
                self._update_chunk(np.ascontiguousarray(chunk))

    def _update_chunk(self, x: npt.NDArray[np.float32]) -> None:
        self.count += x.size
        # Counting the exponent field of the bit pattern is several times faster than frexp.
        magnitude = x.view(np.uint32) & np.uint32(0x7FFFFFFF)
        exponents = np.bincount(magnitude >> np.uint32(23), minlength=256).astype(np.int64)
        if exponents[255]:
            self.nans += int(np.count_nonzero(np.isnan(x)))
            self.positive_infinities += int(np.count_nonzero(np.isposinf(x)))
            self.negative_infinities += int(np.count_nonzero(np.isneginf(x)))
            x = x[np.isfinite(x)]
            magnitude = x.view(np.uint32) & np.uint32(0x7FFFFFFF)
            exponents[255] = 0
        zeros = x.size - int(np.count_nonzero(magnitude))
        exponents[0] -= zeros
        self._exponents += exponents
        if not x.size:
            return
        lo, hi = float(x.min()), float(x.max())
        self.finite_lo = lo if self.finite_lo is None else min(lo, self.finite_lo)
        self.finite_hi = hi if self.finite_hi is None else max(hi, self.finite_hi)
        if zeros < x.size:
            smallest = float((magnitude[magnitude != 0] if zeros else magnitude).min().view(np.float32))
            known = self.min_abs_nonzero
            self.min_abs_nonzero = smallest if known is None else min(smallest, known)
        if self.is_integral:
            self.is_integral = bool(np.array_equal(x, np.rint(x)))
        wide = x.astype(np.float64)
        self._square_sum += float(np.dot(wide, wide))
        # The limits lie inside the bins of 2^15 and 2^-25: count exactly only where those are filled.
        self.overflowing += int(exponents[_BIAS + 16 : 255].sum())
        if exponents[_BIAS + 15]:
            beyond = (magnitude >= np.float32(half.OVERFLOW).view(np.uint32)) & (
                magnitude < np.float32(2.0**16).view(np.uint32)
            )
            self.overflowing += int(np.count_nonzero(beyond))
        self.subnormal += int(exponents[: _BIAS - 14].sum())
        self.zeroed += int(exponents[: _BIAS - 25].sum())
        if exponents[_BIAS - 25]:
            self.zeroed += int(np.count_nonzero(magnitude == np.float32(half.UNDERFLOW).view(np.uint32)))

    @property
    def rms(self) -> float | None:
        """Root mean square of the finite numbers, None if there are none."""
        finite = self.count - self.nans - self.positive_infinities - self.negative_infinities
        return (self._square_sum / finite) ** 0.5 if finite else None

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
        )
