"""Matrix products and convolutions: row sums of |W| by sign, and Cauchy-Schwarz where norms are known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from fp16conv.evidence.abstract.call import Call, Transfer
from fp16conv.evidence.abstract.domain import (
    TOP,
    Array,
    Bounds,
    intersect,
    interval,
    plus,
    scalar,
    times,
    widen,
)
from fp16conv.evidence.abstract.elementwise import add, multiply

__all__ = ["LINEAR", "weigh"]

Weights = npt.NDArray[np.generic]
Flags = npt.NDArray[np.bool_]

BLOCK: Final = 1 << 22
"""Weights turned into float64 at a time."""

SAMPLE: Final = 64
"""Columns in which nearly every row of trained weights has both signs."""


def _dot(weights: Array, ends: Array) -> Array:
    """Weights [M, K] of one sign times ends [K, n]; infinite ends only count where the weight is not 0."""
    if np.isfinite(ends).all():
        return np.asarray(weights @ ends)
    infinite = np.isinf(ends)
    total = weights @ np.where(infinite, 0.0, ends)
    sign = np.sign(weights)
    for side in (1.0, -1.0):
        reached = sign @ np.where(infinite & (ends == side * np.inf), side, 0.0)
        # weights of one sign: their contributions cannot cancel
        total = np.where(reached != 0, total + np.copysign(np.inf, reached), total)
    return np.asarray(total)


def weigh(
    weights: Weights,
    x: Bounds,
    slack: float,
    axis: int,
    *,
    padded: bool = False,
    groups: int = 1,
    known: Bounds = TOP,
) -> tuple[Array, Array] | None:
    """Bounds of W x for known weights.

    Args:
        weights: [M, K], or [M, K, taps] where each x is read at several taps.
        x: bounds of what is read; what it knows along `axis` is used.
        slack: relative rounding of the sum.
        axis: the axis of x that is summed over, counted from the end.
        padded: zeros may be read instead of x.
        groups: the M rows fall into so many groups, each with K channels of its own.
        known: bounds of the weights: where they are finite, not all of them need to be read.

    Returns:
        lo and hi, float64 [M]; None where nothing is known.
    """
    if not math.isfinite(slack):
        return None
    rows, depth = weights.shape[:2]
    per_group = rows // groups
    vector = x.axis == axis and x.lo.size == depth * groups
    lo, hi = (x.lo, x.hi) if vector else (scalar(x.low), scalar(x.high))
    if padded:
        lo, hi = np.minimum(lo, 0.0), np.maximum(hi, 0.0)
    lows, highs = (np.broadcast_to(v, (depth * groups,)).reshape(groups, depth) for v in (lo, hi))
    ball = x.ball if weights.ndim == 2 and groups == 1 else None
    if ball is not None and (ball.axis, ball.size) != (axis, depth):
        ball = None
    low_end, high_end = float(lo.min()), float(hi.max())
    if ball is None and weights.size and math.isinf(high_end - low_end):
        is_uniform = low_end == lo.max() and high_end == hi.min()
        is_finite = known.finite and not known.nan
        found = _weigh_unbounded(weights, low_end, high_end, is_finite) if is_uniform else None
        if found is not None:
            return found
    out_lo, out_hi = np.empty(rows), np.empty(rows)
    step = max(1, BLOCK // max(1, weights[0].size))
    for group in range(groups):
        first = group * per_group
        x_lo, x_hi = lows[group], highs[group]
        for start in range(first, first + per_group, step):
            part = slice(start, min(start + step, first + per_group))
            block = weights[part].astype(np.float64)
            if not np.isfinite(block).all():
                return None
            positive, negative = np.maximum(block, 0.0), np.minimum(block, 0.0)
            if block.ndim > 2:
                positive, negative = positive.sum(axis=2), negative.sum(axis=2)
            ends = np.stack([x_lo, x_hi, np.abs(x_lo), np.abs(x_hi)], axis=1)
            grown, shrunk = _dot(positive, ends), _dot(negative, ends)
            low = plus(grown[:, 0], shrunk[:, 1], -np.inf)
            high = plus(grown[:, 1], shrunk[:, 0], np.inf)
            fuzz_lo = slack * (grown[:, 2] - shrunk[:, 3])
            fuzz_hi = slack * (grown[:, 3] - shrunk[:, 2])
            low, high = plus(low, -fuzz_lo, -np.inf), plus(high, fuzz_hi, np.inf)
            if ball is not None:
                middle = block @ np.broadcast_to(ball.center, (depth,))
                reach = np.linalg.norm(block * ball.scale, axis=1) * ball.radius
                reach += np.linalg.norm(block, axis=1) * (ball.fuzz + slack * ball.norm)
                low, high = np.maximum(low, middle - reach), np.minimum(high, middle + reach)
            out_lo[part], out_hi[part] = np.minimum(low, high), np.maximum(low, high)
    return out_lo, out_hi


def _weigh_unbounded(weights: Weights, lo: float, hi: float, is_finite: bool) -> tuple[Array, Array] | None:
    """The same for x in [lo, hi] with an infinite end: the signs in each row tell all.

    Returns:
        None where some row needs its sum, or a weight is not finite.
    """
    others = tuple(range(1, weights.ndim))
    for part in (weights[:, :SAMPLE], weights) if is_finite else (weights,):
        least, most = (f(axis=others) for f in (part.min, part.max))
        down, up = _reach_infinity(least, most, lo, hi)
        if is_finite and (down & up).all():  # further weights cannot change that
            break
    if not (np.isfinite(least).all() and np.isfinite(most).all()):
        return None
    is_zero = (least == 0) & (most == 0)
    if (
        max((abs(end) for end in (lo, hi) if math.isfinite(end)), default=0.0)
        and not (down & up | is_zero).all()
    ):
        return None
    return np.where(down, -np.inf, 0.0), np.where(up, np.inf, 0.0)


def _reach_infinity(least: Array, most: Array, lo: float, hi: float) -> tuple[Flags, Flags]:
    """Which sums of x in [lo, hi] have no lower and no upper end, by the extremes of their weights."""
    down = ((most > 0) & (lo == -np.inf)) | ((least < 0) & (hi == np.inf))
    up = ((most > 0) & (hi == np.inf)) | ((least < 0) & (lo == -np.inf))
    return down, up


def _weigh_by_head(call: Call, slot: int, x: Bounds, known: Bounds) -> Bounds | None:
    """W^T x where the first rows of W [K, M] tell all, as `_weigh_unbounded` would find reading all of it.

    Returns:
        None where they do not.
    """
    if x.ball is not None or (math.isfinite(x.low) and math.isfinite(x.high)):
        return None
    is_uniform = x.low == x.lo.max() and x.high == x.hi.min()
    is_finite = known.finite and not known.nan and math.isfinite(call.sum_slack(call.dim(slot, 0)))
    if not (is_uniform and is_finite):
        return None
    head = call.head(slot, SAMPLE)
    if head is None or head.ndim != 2 or not head.size or head.dtype.kind != "f":
        return None
    least, most = head.min(axis=0), head.max(axis=0)
    down, up = _reach_infinity(least, most, x.low, x.high)
    if not (down & up).all():
        return None
    return interval(np.full(down.size, -np.inf), np.full(down.size, np.inf), -1, nan=_may_be_nan(x))


def _may_be_nan(x: Bounds) -> bool:
    """Inf - inf, or 0 times inf."""
    return x.nan or not x.finite


def _matmul(call: Call) -> Bounds:
    return _product(call, call.get(0), call.get(1), 1)


def _product(call: Call, a: Bounds, b: Bounds, slot: int) -> Bounds:
    if (quick := _weigh_by_head(call, slot, a, b)) is not None:
        return quick
    weights = call.array(slot)
    if weights is not None and weights.ndim == 2 and weights.dtype.kind == "f":
        found = weigh(weights.T, a, call.sum_slack(weights.shape[0]), -1, known=b)
        if found is not None:
            return interval(*found, -1, nan=_may_be_nan(a))
        return TOP
    left = call.array(0)
    if left is not None and left.ndim == 2 and left.dtype.kind == "f" and (call.rank(slot) or 0) >= 2:
        found = weigh(left, b, call.sum_slack(left.shape[1]), -2, known=a)
        return TOP if found is None else interval(*found, -2, nan=_may_be_nan(b))
    depth = call.dim(0, -1)
    if depth is None and (call.rank(slot) or 0) >= 2:
        depth = call.dim(slot, -2)
    return contract(call, a, b, depth)


def contract(call: Call, a: Bounds, b: Bounds, depth: int | None) -> Bounds:
    """Sum over the last axis of `a` and the last but one of `b`, neither constant."""
    columns = b if b.axis == -1 else b.flat()
    nan = _may_be_nan(a) or _may_be_nan(b)
    if a.simplex == -1:  # a weighted mean: attention
        slack = call.sum_slack(depth)
        lo, hi = np.minimum(columns.lo, 0.0), np.maximum(columns.hi, 0.0)
        lo, hi = times(lo, 1 + 2 * slack), times(hi, 1 + 2 * slack)
        result = interval(lo, hi, columns.axis, nan=nan)
        if b.ball is not None and b.ball.axis == -1:
            return replace(result, ball=replace(b.ball, center=scalar(0.0), scale=scalar(1.0),
                                                radius=b.ball.norm * (1 + 2 * slack), fuzz=0.0))  # fmt: skip
        return result
    norm = a.norm(-1, depth) * b.norm(-2, depth)
    if depth is None:
        result = replace(TOP, nan=True)
        if not math.isfinite(norm):
            return result
        reach = norm * (1 + call.sum_slack(None))
        return interval(-reach, reach, nan=nan)
    rows = a if a.axis == -2 and not columns.axis else a.flat()
    term = multiply(call, rows, columns)
    slack = call.sum_slack(depth)
    lo, hi = widen(times(depth, term.lo), times(depth, term.hi), slack)
    result = interval(lo, hi, term.axis, nan=nan)
    if math.isfinite(norm):
        reach = norm * (1 + slack)
        result = intersect(result, -reach, reach)
    return result


def _gemm(call: Call) -> Bounds:
    a, b = call.get(0), call.get(1)
    alpha, beta = call.attr("alpha", 1.0), call.attr("beta", 1.0)
    turned_a, turned_b = bool(call.attr("transA", 0)), bool(call.attr("transB", 0))
    quick = None if turned_a or turned_b else _weigh_by_head(call, 1, a, b)
    weights = call.array(1) if quick is None else None
    if quick is not None:
        product = quick
    elif weights is not None and weights.ndim == 2 and weights.dtype.kind == "f":
        rows = weights if turned_b else weights.T
        found = weigh(rows, a, call.sum_slack(rows.shape[1]), -2 if turned_a else -1, known=b)
        product = TOP if found is None else interval(*found, -1, nan=_may_be_nan(a))
    else:
        depth = call.dim(0, 0 if turned_a else 1) or call.dim(1, 1 if turned_b else 0)
        plain_a, plain_b = (replace(x.flat(), ball=None, simplex=0) for x in (a, b))
        product = contract(call, plain_a, plain_b, depth)
    if alpha != 1.0:
        product = multiply(call, product, interval(alpha, alpha))
    if call.has(2) and beta != 0.0:
        bias = call.get(2)
        bias = bias if bias.axis in (0, -1) else bias.flat()
        product = add(call, product, multiply(call, bias, interval(beta, beta)) if beta != 1.0 else bias)
    return replace(product, integral=False)


def _conv(call: Call) -> Bounds:
    x, weights = call.get(0), call.array(1)
    pads, auto = call.attr("pads", ()), call.attr("auto_pad", "NOTSET")
    padded = any(pads) or auto not in ("NOTSET", "VALID")
    groups = int(call.attr("group", 1))
    if weights is None or weights.ndim < 3 or weights.dtype.kind != "f":
        shape = call.shape(1)
        terms = None if shape is None or any(d is None for d in shape) else math.prod(shape[1:])  # type: ignore[arg-type]
        return _open_conv(call, x, terms, padded)
    rank, rows = weights.ndim, weights.shape[0]
    axis = 1 - rank
    taps = weights.reshape(rows, weights.shape[1], -1)
    terms = taps.shape[1] * taps.shape[2]
    slack = call.sum_slack(terms)
    found = weigh(taps, x, slack, axis, padded=padded, groups=groups, known=call.get(1))
    if found is None:
        return TOP
    return _with_bias(call, interval(*found, axis, nan=_may_be_nan(x)), axis)


def _open_conv(call: Call, x: Bounds, terms: int | None, padded: bool) -> Bounds:
    """A convolution whose weights are computed."""
    if terms is None:
        return TOP
    term = multiply(call, x.flat(), call.get(1).flat())
    slack = call.sum_slack(terms)
    lo, hi = widen(times(terms, term.low), times(terms, term.high), slack)
    lo, hi = (min(lo, 0.0), max(hi, 0.0)) if padded else (lo, hi)
    result = interval(lo, hi, nan=_may_be_nan(x) or _may_be_nan(call.get(1)))
    return add(call, result, call.get(2).flat()) if call.has(2) else result


def _with_bias(call: Call, result: Bounds, axis: int) -> Bounds:
    if not call.has(2):
        return result
    bias = call.get(2)
    bias = replace(bias, axis=axis if bias.axis else 0, ball=None)
    return replace(add(call, result, bias), integral=False)


def _conv_transpose(call: Call) -> Bounds:
    """Each output adds some of the taps, each at most once: none of them may be counted as certain."""
    x, weights = call.get(0), call.array(1)
    if weights is None or weights.ndim < 3 or weights.dtype.kind != "f":
        return TOP
    groups, rank = int(call.attr("group", 1)), weights.ndim
    depth = weights.shape[0] // groups
    # [C, M/g, taps] -> [M, C/g, taps]
    by_group = weights.reshape(groups, depth, weights.shape[1], -1).transpose(0, 2, 1, 3)
    taps = by_group.reshape(groups * weights.shape[1], depth, -1)
    slack = call.sum_slack(depth * taps.shape[2])
    found = weigh(taps, x, slack, 1 - rank, padded=True, groups=groups, known=call.get(1))
    if found is None:
        return TOP
    return _with_bias(call, interval(*found, 1 - rank, nan=_may_be_nan(x)), 1 - rank)


def _einsum(call: Call) -> Bounds:
    """A product of the operands, added up over the letters that the result lacks."""
    equation = str(call.attr("equation", "")).replace(" ", "")
    if "..." in equation or "->" not in equation:
        return TOP
    left, result = equation.split("->")
    terms = left.split(",")
    if len(terms) != len(call.ins) or len(terms) > 2:
        return TOP
    sizes: dict[str, int | None] = {}
    for slot, letters in enumerate(terms):
        for i, letter in enumerate(letters):
            if sizes.get(letter) is None:
                sizes[letter] = call.dim(slot, i)
    summed = [sizes[letter] for letter in sizes if letter not in result]
    if any(n is None for n in summed):
        return TOP
    count = math.prod(n for n in summed if n is not None)
    term = call.get(0).flat()
    if len(terms) == 2:
        term = multiply(call, term, call.get(1).flat())
    slack = call.sum_slack(count)
    lo, hi = widen(times(count, term.low), times(count, term.high), slack)
    return interval(lo, hi, nan=any(_may_be_nan(b) for b in call.given()))


def _fused_matmul(call: Call) -> Bounds:
    a, b = call.get(0), call.get(1)
    if call.attr("transA", 0) or call.attr("transBatchA", 0) or call.attr("transBatchB", 0):
        return TOP
    alpha = call.attr("alpha", 1.0)
    if call.attr("transB", 0):
        swapped = b.ball and replace(b.ball, axis={-1: -2, -2: -1}.get(b.ball.axis, b.ball.axis))
        result = contract(call, replace(a, simplex=0), replace(b.flat(), ball=swapped), call.dim(0, -1))
    else:
        result = _product(call, a, b, 1)
    return multiply(call, result, interval(alpha, alpha)) if alpha != 1.0 else result


LINEAR: Final[Mapping[str, Transfer]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "com.microsoft::FusedMatMul": _fused_matmul,
}
