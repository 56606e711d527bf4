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
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(x, dtype=np.float32).astype(np.float16).astype(np.float32)


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
