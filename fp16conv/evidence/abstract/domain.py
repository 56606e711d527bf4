"""The abstract domain: an interval per tensor or per channel, with what is known beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fp16conv.graph import DataType

__all__ = [
    "TOP",
    "Array",
    "Ball",
    "Bounds",
    "Dominance",
    "align",
    "contain",
    "forget",
    "gamma",
    "hull",
    "interval",
    "intersect",
    "is_within",
    "of_array",
    "plus",
    "scalar",
    "smallest",
    "times",
    "top_of",
    "widen",
]

Array = npt.NDArray[np.float64]

UNIT_ROUNDOFF: Final = {DataType.FLOAT16: 2.0**-11, DataType.BFLOAT16: 2.0**-8}
"""Half the spacing of numbers at 1, IEEE 754-2019 table 3.5; binary32's 2^-24 for all other types."""

LARGEST: Final = {DataType.FLOAT16: 65504.0, DataType.DOUBLE: float(np.finfo(np.float64).max)}

_INTEGER_BITS: Final = {
    DataType.INT8: (-(2.0**7), 2.0**7 - 1),
    DataType.INT16: (-(2.0**15), 2.0**15 - 1),
    DataType.INT32: (-(2.0**31), 2.0**31 - 1),
    DataType.INT64: (-(2.0**63), 2.0**63),
    DataType.UINT8: (0.0, 2.0**8 - 1),
    DataType.UINT16: (0.0, 2.0**16 - 1),
    DataType.UINT32: (0.0, 2.0**32 - 1),
    DataType.UINT64: (0.0, 2.0**64),
    DataType.BOOL: (0.0, 1.0),
}


def scalar(x: float) -> Array:
    """A number as a float64 array of shape ()."""
    return np.asarray(x, np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Ball:
    """Vectors along one axis are `center + scale * z + e`: the Euclidean norms of z and e are bounded.

    What a normalization gives, and what a matrix product keeps: |w . x| <= ||w||_2 ||x||_2
    (Cauchy-Schwarz) is far below the sum of |w| times the largest |x|.

    Args:
        axis: counted from the end, negative.
        size: length of the axis, above 1.
        radius: largest norm of z; fuzz: of e, which stands for roundings.
        center, scale: float64, shape () or [size].
    """

    axis: int
    size: int
    radius: float
    center: Array
    scale: Array
    fuzz: float = 0.0

    @property
    def norm(self) -> float:
        """Bound on the Euclidean norm of a vector."""
        center = np.broadcast_to(self.center, (self.size,))
        length = np.linalg.norm(center) + np.abs(self.scale).max() * self.radius + self.fuzz
        return float(length) * (1 + 1e-12)


@dataclass(frozen=True, slots=True)
class Dominance:
    """The value is at least `factor * |base|^power`, element by element under broadcasting.

    It makes `x / sqrt(mean(x^2) + eps)` and `e / sum(e)` bounded however they are written. Where the
    base is smaller than `threshold` nothing is said: its powers may underflow.

    Args:
        base: a value id.
        inverse: the value is at most `1 / (factor * |base|^power)` instead.
        axis: the one that was reduced in between, 0 if none or several; size: its length, 0 if open.
        dropped: axes that the reduction removed; they must come back before the value is used.
    """

    base: int
    power: float
    factor: float
    threshold: float = 0.0
    inverse: bool = False
    size: int = 0
    axis: int = 0
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)  # no slots: what is derived from the arrays is kept
class Bounds:
    """What is known of the numbers of one tensor. NaN is no number: see `nan`.

    Args:
        lo, hi: float64, shape () for the whole tensor or [C] per index along `axis`.
        axis: counted from the end, negative; 0 when lo and hi are scalars.
        tiny: no non-zero magnitude is below it; 0 when unknown.
        integral: every number is an integer.
        nan: elements may be NaN.
        ball: bound on vectors along an axis.
        simplex: elements are not negative and sum to at most 1 (with roundings) along this axis; 0: unknown.
        tags: relations to other values of the same evaluation.
        ceilings: value ids that are nowhere above this value (element by element under broadcasting).
    """

    lo: Array
    hi: Array
    axis: int = 0
    tiny: float = 0.0
    integral: bool = False
    nan: bool = False
    ball: Ball | None = None
    simplex: int = 0
    tags: tuple[Dominance, ...] = ()
    ceilings: tuple[int, ...] = ()

    @property
    def is_well_formed(self) -> bool:
        """Whether lo and hi have the shape that `axis` says."""
        return self.lo.shape == self.hi.shape and self.lo.ndim == (1 if self.axis else 0)

    @cached_property
    def low(self) -> float:
        return float(self.lo.min()) if self.axis else float(self.lo)

    @cached_property
    def high(self) -> float:
        return float(self.hi.max()) if self.axis else float(self.hi)

    @cached_property
    def magnitude(self) -> float:
        """Largest magnitude, possibly infinite."""
        return max(abs(self.low), abs(self.high))

    @cached_property
    def finite(self) -> bool:
        return math.isfinite(self.magnitude)

    @property
    def per_index(self) -> Array:
        """Largest magnitude per index along `axis`."""
        return np.maximum(np.abs(self.lo), np.abs(self.hi))

    def flat(self) -> Bounds:
        """The same without the axis."""
        if not self.axis:
            return self
        return replace(self, lo=scalar(self.low), hi=scalar(self.high), axis=0)

    def norm(self, axis: int, size: int | None) -> float:
        """Bound on the Euclidean norm of vectors of `size` elements along an axis."""
        if size is None:
            return math.inf if self.ball is None or self.ball.axis != axis else self.ball.norm
        if self.axis == axis and self.lo.size == size:
            best = float(np.sqrt(np.square(self.per_index).sum()))
        else:
            best = math.sqrt(size) * self.magnitude
        if self.ball is not None and self.ball.axis == axis and self.ball.size == size:
            best = min(best, self.ball.norm)
        return best * (1 + 1e-12)


TOP: Final = Bounds(scalar(-np.inf), scalar(np.inf), nan=True)


def interval(lo: Any, hi: Any, axis: int = 0, **known: Any) -> Bounds:
    """Build bounds from numbers or arrays; a single channel needs no axis."""
    low, high = np.asarray(lo, np.float64), np.asarray(hi, np.float64)
    if axis and low.size == 1:
        low, high, axis = low.reshape(()), high.reshape(()), 0
    return Bounds(low, high, axis, **known)


def top_of(dtype: DataType) -> Bounds:
    """Everything a value of this type can be."""
    limits = _INTEGER_BITS.get(dtype)
    return TOP if limits is None else interval(*limits, integral=True, tiny=1.0)


def gamma(n: float, unit: float = 2.0**-24) -> float:
    """Relative error of a sum or inner product of n terms: n u / (1 - n u), any order of summation.

    Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), lemma 3.1 and section 4.2.
    Infinite where n u reaches 1.
    """
    return n * unit / (1 - n * unit) if n * unit < 1 else math.inf


def times(a: Any, b: Any) -> Any:
    """Product of interval ends, in which 0 times infinity is 0; the caller ignores numpy's warnings."""
    product = np.multiply(a, b)
    undefined = np.isnan(product)
    return np.where(undefined, 0.0, product) if undefined.any() else product


def plus(a: Any, b: Any, undefined: float) -> Any:
    """Sum of interval ends, `undefined` where they are infinite and of opposite signs; else as `times`."""
    total = np.add(a, b)
    is_undefined = np.isnan(total)
    return np.where(is_undefined, undefined, total) if is_undefined.any() else total


def widen(lo: Any, hi: Any, relative: float) -> tuple[Any, Any]:
    """Move the ends outward by a relative amount."""
    if math.isinf(relative):
        return np.where(np.asarray(lo) >= 0, 0.0, -np.inf), np.where(np.asarray(hi) <= 0, 0.0, np.inf)
    return lo - np.abs(lo) * relative, hi + np.abs(hi) * relative


def align(a: Bounds, b: Bounds) -> tuple[Bounds, Bounds, int]:
    """Bring two operands onto one axis (trailing axes coincide in broadcasting)."""
    if a.axis == b.axis:
        if a.lo.shape == b.lo.shape:
            return a, b, a.axis
        return a.flat(), b.flat(), 0
    if not a.axis:
        return a, b, b.axis
    if not b.axis:
        return a, b, a.axis
    return (a, b.flat(), a.axis) if a.lo.size >= b.lo.size else (a.flat(), b, b.axis)


def forget(b: Bounds) -> Bounds:
    """Drop relations to other values: they do not outlive an evaluation."""
    return replace(b, tags=(), ceilings=()) if b.tags or b.ceilings else b


def hull(items: Iterable[Bounds]) -> Bounds:
    """Bounds that hold for each of the items."""
    result: Bounds | None = None
    for item in items:
        result = item if result is None else _join(result, item)
    return TOP if result is None else result


def _join(a: Bounds, b: Bounds) -> Bounds:
    if a is b:
        return a
    x, y, axis = align(a, b)
    ball = None
    if a.ball and b.ball and (a.ball.axis, a.ball.size) == (b.ball.axis, b.ball.size):
        radius = max(a.ball.norm, b.ball.norm)
        ball = Ball(a.ball.axis, a.ball.size, radius, scalar(0.0), scalar(1.0))
    lo, hi = np.minimum(x.lo, y.lo), np.maximum(x.hi, y.hi)
    return interval(
        lo,
        hi,
        axis,
        tiny=_least(a.tiny, b.tiny, a, b),
        integral=a.integral and b.integral,
        nan=a.nan or b.nan,
        ball=ball,
        simplex=a.simplex if a.simplex == b.simplex else 0,
    )


def _least(x: float, y: float, a: Bounds, b: Bounds) -> float:
    """Smallest of two non-zero magnitudes; a value that is all zeros has none."""
    if a.magnitude == 0:
        return y
    return x if b.magnitude == 0 else min(x, y)


def intersect(a: Bounds, lo: Any, hi: Any, axis: int = 0) -> Bounds:
    """Tighten bounds by a second proof about the same value."""
    x, y, axis = align(a, interval(lo, hi, axis))
    low, high = np.maximum(x.lo, y.lo), np.minimum(x.hi, y.hi)
    return replace(a, lo=np.minimum(low, high), hi=np.maximum(low, high), axis=axis)


def is_within(a: Bounds, b: Bounds) -> bool:
    """Whether everything in `a` is in `b`."""
    x, y, _ = align(a, b)
    covers = bool(np.all(x.lo >= y.lo) and np.all(x.hi <= y.hi)) and (b.nan or not a.nan)
    return covers and (a.integral or not b.integral) and a.tiny >= b.tiny


def smallest(b: Bounds) -> float:
    """Least non-zero magnitude as the interval and integrality show it."""
    best = max(b.tiny, 1.0 if b.integral else 0.0)
    if b.low > 0:
        best = max(best, b.low)
    if b.high < 0:
        best = max(best, -b.high)
    return best


def contain(b: Bounds, dtype: DataType) -> Bounds:
    """What a result of this type can be: overflow is infinite, integers wrap around."""
    limits = _INTEGER_BITS.get(dtype)
    if limits is not None:
        if b.nan or b.low < limits[0] or b.high > limits[1]:
            return top_of(dtype)
        return b if b.integral else replace(b, integral=True, tiny=1.0)
    largest = LARGEST.get(dtype, float(np.finfo(np.float32).max))
    b = _flush(b, 2.0**-14 if dtype is DataType.FLOAT16 else 2.0**-126)
    if b.magnitude <= largest:
        return b
    lo = np.where(b.lo < -largest, -np.inf, np.minimum(b.lo, largest))
    hi = np.where(b.hi > largest, np.inf, np.maximum(b.hi, -largest))
    nan = b.nan or b.finite  # partial results may overflow to both sides
    return replace(b, lo=lo, hi=hi, nan=nan, ball=b.ball if b.ball and math.isfinite(b.ball.norm) else None)


def _flush(b: Bounds, normal: float) -> Bounds:
    """Below the smallest normal number, results lose bits or become zero."""
    lo, hi = b.lo, b.hi
    if not b.axis:  # plain floats are several times faster than arrays of one number
        if not (0 < abs(float(lo)) < normal or 0 < abs(float(hi)) < normal):
            return b if b.tiny >= normal or b.tiny == 0 else replace(b, tiny=0.0)
    elif not (np.any((np.abs(lo) < normal) & (lo != 0)) or np.any((np.abs(hi) < normal) & (hi != 0))):
        return b if b.tiny >= normal or b.tiny == 0 else replace(b, tiny=0.0)
    lo = np.where((lo > 0) & (lo < normal), 0.0, np.where((lo < 0) & (lo > -normal), -normal, lo))
    hi = np.where((hi < 0) & (hi > -normal), 0.0, np.where((hi > 0) & (hi < normal), normal, hi))
    return replace(b, lo=lo, hi=hi, tiny=b.tiny if b.tiny >= normal else 0.0)


def of_array(array: npt.NDArray[np.generic], *, exact: bool = True, axis: int | None = None) -> Bounds:
    """Bounds of known numbers.

    Args:
        array: any shape, real dtype.
        exact: the runtime has these very numbers; otherwise it computes them itself, with roundings.
        axis: keep bounds along this axis (negative); by default along the only one longer than 1, if so.
    """
    if array.dtype.kind not in "biuf" or not array.size:
        return TOP
    kept = [d - array.ndim for d, n in enumerate(array.shape) if n > 1]
    if axis is None:
        axis = kept[0] if len(kept) == 1 else 0
    numbers = array if array.dtype.kind == "f" else array.astype(np.float64)
    nan = array.dtype.kind == "f" and bool(np.isnan(numbers).any())
    if nan:
        return TOP
    others = tuple(d for d in range(array.ndim) if d - array.ndim != axis)
    lo, hi = (f(axis=others).astype(np.float64) for f in (numbers.min, numbers.max))
    flat = numbers.reshape(-1)
    tiny = math.inf
    integral = True
    for start in range(0, flat.size, 1 << 20):  # temporaries stay small
        piece = flat[start : start + (1 << 20)]
        magnitude = np.abs(piece)
        tiny = min(tiny, float(magnitude.min(where=magnitude > 0, initial=np.inf)))
        integral = integral and bool(((np.rint(piece) == piece) & np.isfinite(piece)).all())
    if not exact:
        lo, hi = widen(lo, hi, 2.0**-18)
        tiny *= 1 - 2.0**-18
    return interval(lo, hi, axis, tiny=tiny if math.isfinite(tiny) else 0.0, integral=integral)
