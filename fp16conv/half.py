"""Facts about IEEE 754 binary16: limits, rounding, saturation and exponent histograms.

Source of all constants: IEEE 754-2019, table 3.5 (binary16: p = 11, emax = 15).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = [
    "EPSILON",
    "MAX",
    "MAX_EXACT_INTEGER",
    "OVERFLOW",
    "SMALLEST_NORMAL",
    "SMALLEST_SUBNORMAL",
    "UNDERFLOW",
    "UNIT_ROUNDOFF",
    "exponent_histogram",
    "round_to_fp16",
    "saturate",
    "to_fp16",
]

MAX: Final = 65504.0
OVERFLOW: Final = 65520.0  # the smallest magnitude that round-to-nearest-even turns into infinity
SMALLEST_NORMAL: Final = 2.0**-14
SMALLEST_SUBNORMAL: Final = 2.0**-24
UNDERFLOW: Final = 2.0**-25  # magnitudes up to this one (a tie) round to zero
EPSILON: Final = 2.0**-10
UNIT_ROUNDOFF: Final = 2.0**-11
MAX_EXACT_INTEGER: Final = 2048  # every integer up to here is an FP16 number

FloatArray = npt.NDArray[np.floating]

_BLOCK: Final = 1 << 16  # numbers converted together: they and the scratch stay in the cache
_WORTHWHILE: Final = 1 << 12  # numbers; below, the many short steps take longer than numpy's one
_LOWEST_EXPONENT: Final = np.uint32(113 << 23)  # of 2^-14 in binary32
_TOO_LARGE: Final = np.uint32(143 << 23)  # of 2^16 in binary32, infinities and NaN above it


def to_fp16(
    x: npt.NDArray[np.generic], out: npt.NDArray[np.float16] | None = None
) -> npt.NDArray[np.float16]:
    """Round to FP16, bit by bit what `astype` gives, in half the time: numpy converts one number at a time.

    A magnitude is rounded to a multiple of its unit in the last place u by adding 2^23 u to it in binary32.

    Args:
        x: any shape and real dtype; float32 that lies in one piece is quick.
        out: where to write, same shape, contiguous; made if None.

    Example:
        >>> to_fp16(np.array([1e-8, 2049.0, 65520.0], np.float32)).tolist()
        [0.0, 2048.0, inf]
    """
    if out is None:
        out = np.empty(x.shape, np.float16)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if x.dtype != np.float32 or x.size < _WORTHWHILE or not x.flags.c_contiguous:
            np.copyto(out, x, casting="unsafe")
            return out
        bits, halves = x.reshape(-1).view(np.uint32), out.reshape(-1).view(np.uint16)
        scratch = np.empty((2, min(x.size, _BLOCK)), np.uint32)
        for start in range(0, x.size, _BLOCK):
            _round_block(bits[start : start + _BLOCK], halves[start : start + _BLOCK], scratch)
    return out


def _round_block(
    bits: npt.NDArray[np.uint32], halves: npt.NDArray[np.uint16], scratch: npt.NDArray[np.uint32]
) -> None:
    number, unit = scratch[0, : bits.size], scratch[1, : bits.size]
    np.bitwise_and(bits, np.uint32(0x7F800000), out=unit)
    np.maximum(unit, _LOWEST_EXPONENT, out=unit)
    if unit.max() >= _TOO_LARGE:
        halves.view(np.float16)[:] = bits.view(np.float32)
        return
    np.right_shift(bits, np.uint32(16), out=number)
    np.copyto(halves, number, casting="unsafe")
    np.bitwise_and(halves, np.uint16(0x8000), out=halves)  # the sign
    unit += np.uint32(13 << 23)
    np.bitwise_and(bits, np.uint32(0x7FFFFFFF), out=number)
    magnitude = number.view(np.float32)
    magnitude += unit.view(np.float32)
    number -= unit  # the magnitude in units
    unit >>= np.uint32(13)
    number += unit
    number -= np.uint32(126 << 10)
    np.copyto(unit.view(np.uint16)[: bits.size], number, casting="unsafe")
    halves |= unit.view(np.uint16)[: bits.size]


def round_to_fp16(x: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Round to the nearest FP16 number (ties to even), kept as float32.

    Args:
        x: any shape, floating.

    Returns:
        Same shape, float32; magnitudes from 65520 on become infinite.

    Example:
        >>> round_to_fp16([1e-8, 2049.0, 65519.0, 65520.0]).tolist()
        [0.0, 2048.0, 65504.0, inf]
    """
    return to_fp16(np.asarray(x, dtype=np.float32)).astype(np.float32)


def saturate(x: npt.ArrayLike) -> npt.NDArray[np.float16]:
    """Convert to FP16 with everything beyond +-65504 (infinities too) set to +-65504; NaN stays.

    Only for values that act as infinity (masks, Clip and Pad bounds): never for weights.

    Example:
        >>> saturate([-3.4e38, 1.0, float("inf")]).tolist()
        [-65504.0, 1.0, 65504.0]
    """
    return np.clip(np.asarray(x, dtype=np.float64), -MAX, MAX).astype(np.float16)


def exponent_histogram(x: FloatArray, lowest: int = -40, highest: int = 40) -> npt.NDArray[np.int64]:
    """Count finite non-zero magnitudes per base-2 exponent.

    Args:
        x: any shape, floating.
        lowest: exponents below this one are counted in the first bin.
        highest: exponents above this one are counted in the last bin.

    Returns:
        int64 [highest - lowest + 1]; bin i counts values with floor(log2|x|) == lowest + i.

    Example:
        >>> exponent_histogram(np.array([1.0, 1.5, 2.0, 0.0]), 0, 2).tolist()
        [2, 1, 0]
    """
    flat = np.abs(x[np.isfinite(x) & (x != 0)])
    exponents = np.clip(np.frexp(flat)[1] - 1, lowest, highest) - lowest
    return np.bincount(exponents.ravel(), minlength=highest - lowest + 1).astype(np.int64)
