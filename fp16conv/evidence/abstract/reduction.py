"""Reductions and pooling: means and maxima stay in the hull, sums grow with the number of elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Final

import numpy as np

from fp16conv.evidence.abstract.call import Call, Transfer
from fp16conv.evidence.abstract.domain import (
    TOP,
    Array,
    Bounds,
    Dominance,
    interval,
    scalar,
    smallest,
    times,
    widen,
)
from fp16conv.evidence.abstract.elementwise import NORMAL_SQUARES

__all__ = ["REDUCTIONS"]


def _axes(call: Call) -> tuple[int, ...] | None:
    """Reduced axes counted from the end; None where they or the rank are unknown."""
    rank = call.rank(0)
    listed = call.ints(1, "axes")
    if rank is None:
        if listed is not None and all(a < 0 for a in listed) and listed:
            return listed
        return None
    if listed is None and call.has(1):
        return None
    if not listed:
        return () if call.attr("noop_with_empty_axes", 0) else tuple(range(-rank, 0))
    return tuple(a - rank if a >= 0 else a for a in listed)


def _kept_axis(call: Call, x: Bounds, axes: tuple[int, ...] | None) -> tuple[Array, Array, int]:
    """Ends and axis after the reduction: the axis survives if it is not reduced itself."""
    if not x.axis or axes is None or x.axis in axes:
        return scalar(x.low), scalar(x.high), 0
    if call.attr("keepdims", 1):
        return x.lo, x.hi, x.axis
    return x.lo, x.hi, x.axis + sum(a > x.axis for a in axes)


def _count(call: Call, axes: tuple[int, ...] | None) -> int | None:
    return None if axes is None else call.count(0, axes)


def _relations(call: Call, axes: tuple[int, ...] | None, factor: float) -> tuple[Dominance, ...]:
    """What a sum of terms that are not negative dominates: each of its terms (a NaN makes it NaN)."""
    if axes is None or call.get(0).low < 0 or factor <= 0:
        return ()
    dropped = () if call.attr("keepdims", 1) else axes
    axis = axes[0] if len(axes) == 1 else 0
    size = call.dim(0, axis) if axis else None
    own = call.get(0).tags
    root = call.roots[0]
    if root is not None:
        own += (Dominance(root, 1.0, 1.0),)
    return tuple(
        replace(t, factor=t.factor * factor, size=size or 0, axis=axis, dropped=dropped)
        for t in own
        if not t.inverse and not t.axis and not t.dropped
    )


def _sum(call: Call) -> Bounds:
    x, axes = call.get(0), _axes(call)
    lo, hi, axis = _kept_axis(call, x, axes)
    n = _count(call, axes)
    nan = x.nan or not x.finite
    relations = _relations(call, axes, 1 - min(0.5, call.sum_slack(n)))
    if n is None:
        lo = np.where(lo < 0, -np.inf, 0.0)  # an empty sum is 0
        hi = np.where(hi > 0, np.inf, 0.0)
        return interval(lo, hi, axis, nan=nan, tags=relations)
    lo, hi = widen(times(n, lo), times(n, hi), call.sum_slack(n))
    return interval(lo, hi, axis, integral=x.integral and x.finite, nan=nan, tags=relations)


def _mean(call: Call) -> Bounds:
    x, axes = call.get(0), _axes(call)
    lo, hi, axis = _kept_axis(call, x, axes)
    n = _count(call, axes)
    slack = call.sum_slack(n)
    lo, hi = widen(lo, hi, slack)
    relations = _relations(call, axes, (1 - slack) / n) if n and slack < 0.5 else ()
    largest = x.magnitude * (n or 2.0**31)  # the sum may overflow where the mean would not
    if largest > np.finfo(np.float32).max / 2:
        lo, hi = np.where(lo < 0, -np.inf, lo), np.where(hi > 0, np.inf, hi)
    return interval(lo, hi, axis, nan=x.nan or not x.finite or n == 0, tags=relations)


def _extremum(call: Call) -> Bounds:
    x, axes = call.get(0), _axes(call)
    if x.nan:
        return TOP
    lo, hi, axis = _kept_axis(call, x, axes)
    if _count(call, axes) == 0:  # an empty maximum is the lowest number there is
        return TOP
    result = interval(lo, hi, axis, tiny=smallest(x), integral=x.integral)
    if call.op.op_type == "ReduceMax" and axes is not None and call.attr("keepdims", 1):
        root = call.roots[0]
        return replace(result, ceilings=() if root is None else (root,))
    return result


def _square_sum(call: Call) -> Bounds:
    x, axes = call.get(0), _axes(call)
    n = _count(call, axes)
    root = call.roots[0]
    tags: tuple[Dominance, ...] = ()
    if root is not None and axes is not None and call.unit <= 2.0**-24:
        axis = axes[0] if len(axes) == 1 else 0
        size = call.dim(0, axis) if axis else None
        dropped = () if call.attr("keepdims", 1) else axes
        factor = 1 - min(0.5, call.sum_slack(n))
        tags = (Dominance(root, 2.0, factor, NORMAL_SQUARES, False, size or 0, axis, dropped),)
    square = x.magnitude * x.magnitude
    hi = math.inf if n is None else float(times(square, n)) * (1 + call.sum_slack(n))
    return interval(0.0, hi, nan=x.nan or not x.finite, tags=tags)


def _norm(call: Call) -> Bounds:
    """ReduceL2: the root of the sum of squares."""
    x, axes = call.get(0), _axes(call)
    squares = _square_sum(call)
    tags = tuple(replace(t, power=1.0, factor=math.sqrt(t.factor) * (1 - call.slack)) for t in squares.tags)
    hi = math.sqrt(squares.high)
    if axes is not None and len(axes) == 1:
        hi = min(hi, x.norm(axes[0], call.dim(0, axes[0])) * (1 + call.sum_slack(_count(call, axes))))
    # Kernels that scale by the largest element make NaN of an infinity.
    return interval(0.0, hi * (1 + call.slack), nan=squares.nan, tags=tags)


def _absolute_sum(call: Call) -> Bounds:
    x = call.get(0)
    n = _count(call, _axes(call))
    hi = math.inf if n is None else x.magnitude * n * (1 + call.sum_slack(n))
    return interval(0.0, hi, nan=x.nan or not x.finite)


def _log_sum_exp(call: Call) -> Bounds:
    x, n = call.get(0), _count(call, _axes(call))
    if n is None or n == 0 or x.nan:
        return TOP
    slack = call.function_slack + call.sum_slack(n)
    lo, hi = widen(x.low, x.high + math.log(n), slack)
    if x.high > 80 or x.low < -80:  # without a shift by the maximum it overflows, or is log(0)
        lo, hi = -math.inf, math.inf
    return interval(lo - slack, hi + slack, nan=not x.finite)


def _position(call: Call) -> Bounds:
    """ArgMax and ArgMin."""
    axis = int(call.attr("axis", 0))
    n = call.dim(0, axis)
    return interval(0.0, 2.0**31 if n is None else max(n - 1, 0), integral=True)


def _global_mean(call: Call) -> Bounds:
    x, rank = call.get(0), call.rank(0)
    keeps = rank is not None and x.axis in (0, 1 - rank)
    x = x if keeps else x.flat()
    n = None if rank is None else call.count(0, tuple(range(2 - rank, 0)))
    lo, hi = widen(x.lo, x.hi, call.sum_slack(n))
    return interval(lo, hi, x.axis, nan=x.nan or not x.finite)


def _pooled(call: Call) -> tuple[Bounds, float]:
    """What an average pool reads, and how many elements."""
    x, kernel = call.get(0), call.attr("kernel_shape", ())
    rank = len(kernel) + 2
    return (x if x.axis in (0, 1 - rank) else x.flat()), prod(kernel)


def _average_pool(call: Call) -> Bounds:
    x, n = _pooled(call)
    lo, hi = widen(x.lo, x.hi, call.sum_slack(n))
    # Padding counts as zero if asked for; windows that hold none but padding give 0 or 0 / 0.
    lo, hi = np.minimum(lo, 0.0), np.maximum(hi, 0.0)
    return interval(lo, hi, x.axis, nan=x.nan or not x.finite)


def _max_pool(call: Call) -> list[Bounds | None]:
    x, _ = _pooled(call)
    if x.nan:
        return [None, None]
    lo = x.lo
    padded = any(call.attr("pads", ())) or call.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    if (padded or call.attr("ceil_mode", 0)) and _may_miss(call):
        lo = np.full_like(lo, -np.inf)
    return [interval(lo, x.hi, x.axis, tiny=smallest(x), integral=x.integral), None]


def _may_miss(call: Call) -> bool:
    """Whether a window may hold nothing but padding: the result is then the lowest number."""
    kernel, dims = call.attr("kernel_shape", ()), len(call.attr("kernel_shape", ()))
    pads = call.attr("pads", (0,) * (2 * dims))
    dilations = call.attr("dilations", (1,) * dims)
    ceil = bool(call.attr("ceil_mode", 0))
    for i, size in enumerate(kernel):
        stride = call.attr("strides", (1,) * dims)[i]
        reach = max(pads[i], pads[i + dims] + (stride - 1 if ceil else 0))
        if reach > size - 1 or (dilations[i] != 1 and reach > 0):
            return True
    return False


def _global_max(call: Call) -> Bounds:
    x, rank = call.get(0), call.rank(0)
    if x.nan:
        return TOP
    x = x if rank is not None and x.axis in (0, 1 - rank) else x.flat()
    return Bounds(x.lo, x.hi, x.axis, smallest(x), x.integral)


def _lp_pool(call: Call) -> Bounds:
    x, p = call.get(0), int(call.attr("p", 2))
    kernel = call.attr("kernel_shape", None)
    rank = call.rank(0)
    n = prod(kernel) if kernel else None if rank is None else call.count(0, tuple(range(2 - rank, 0)))
    if n is None or p < 1:
        return interval(0.0, math.inf, nan=x.nan or not x.finite)
    hi = x.magnitude * n ** (1.0 / p) * (1 + call.sum_slack(n) + call.function_slack)
    with np.errstate(over="ignore"):
        overflows = np.float64(x.magnitude) ** p * n > np.finfo(np.float32).max
    return interval(0.0, math.inf if overflows else hi, nan=x.nan or not x.finite)


def _cumulative(call: Call) -> Bounds:
    x, axis = call.get(0), call.ints(1)
    n = call.dim(0, axis[0]) if axis else None
    if n is None:
        return interval(
            -np.inf if x.low < 0 else 0.0, np.inf if x.high > 0 else 0.0, nan=x.nan or not x.finite
        )
    slack = call.sum_slack(n)
    lo, hi = widen(min(0.0, float(times(n, x.low))), max(0.0, float(times(n, x.high))), slack)
    lo, hi = (min(lo, x.low), max(hi, x.high))
    return interval(lo, hi, integral=x.integral and x.finite, nan=x.nan or not x.finite)


def _softmax(call: Call) -> Bounds:
    """Each element is e^x over a sum that holds it."""
    older, rank = call.op.opset < 13, call.rank(0)
    axis = int(call.attr("axis", -1))
    if older:  # everything from the axis on is one row: what is along the last axis is part of it
        axis = -1
    elif axis >= 0:
        axis = 0 if rank is None else axis - rank
    x = call.get(0)
    return interval(0.0, 1 + call.function_slack, nan=x.nan or not x.finite, simplex=axis)


def _log_softmax(call: Call) -> Bounds:
    x, rank = call.get(0), call.rank(0)
    axis = int(call.attr("axis", 1 if call.op.opset < 13 else -1))
    n: int | None
    if call.op.opset < 13:
        n = None if rank is None else call.count(0, tuple(range(axis % rank, rank)))
    else:
        n = call.dim(0, axis)
    slack = call.function_slack
    if n is None or not x.finite or x.nan:
        return interval(-np.inf, 2.0**-6, nan=True)
    low = x.low - x.high - math.log(max(n, 1))
    return interval(low * (1 + slack) - slack * x.magnitude - slack, 2.0**-6 + slack * x.magnitude)


REDUCTIONS: Final[Mapping[str, Transfer]] = {
    "ArgMax": _position,
    "ArgMin": _position,
    "AveragePool": _average_pool,
    "CumSum": _cumulative,
    "GlobalAveragePool": _global_mean,
    "GlobalLpPool": _lp_pool,
    "GlobalMaxPool": _global_max,
    "LogSoftmax": _log_softmax,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "ReduceL1": _absolute_sum,
    "ReduceL2": _norm,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _extremum,
    "ReduceMean": _mean,
    "ReduceMin": _extremum,
    "ReduceSum": _sum,
    "ReduceSumSquare": _square_sum,
    "Softmax": _softmax,
}
