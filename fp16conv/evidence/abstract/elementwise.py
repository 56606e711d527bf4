"""Operators that work on each element by itself: arithmetic, comparisons, selection, rounding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from fp16conv.evidence.abstract.call import Call, Transfer
from fp16conv.evidence.abstract.domain import (
    TOP,
    Ball,
    Bounds,
    Dominance,
    align,
    hull,
    interval,
    plus,
    scalar,
    smallest,
    times,
    top_of,
    widen,
)
from fp16conv.graph import DataType

__all__ = ["ELEMENTWISE", "NORMAL_SQUARES", "add", "clamp", "multiply", "round_ball"]

ZERO: Final = scalar(0.0)
ONE: Final = scalar(1.0)

NORMAL_SQUARES: Final = 2.0**-40
"""Norm from which a sum of squares is not touched by binary32's underflow (below 2^-63, squared 2^-126)."""


def round_ball(axis: int, size: int, radius: float) -> Ball | None:
    """A ball around zero; None where it says nothing."""
    return Ball(axis, size, radius, ZERO, ONE) if math.isfinite(radius) and size > 1 else None


def add(call: Call, a: Bounds, b: Bounds) -> Bounds:
    """Sum of two bounds; rounding is monotone, so only the ends' own terms matter."""
    x, y, axis = align(a, b)
    xlo, xhi = widen(x.lo, x.hi, call.slack)
    ylo, yhi = widen(y.lo, y.hi, call.slack)
    lo, hi = plus(xlo, ylo, -np.inf), plus(xhi, yhi, np.inf)
    opposite = (a.high == np.inf and b.low == -np.inf) or (a.low == -np.inf and b.high == np.inf)
    return interval(
        lo, hi, axis, integral=a.integral and b.integral and _is_exact(lo, hi), nan=a.nan or b.nan or opposite
    )


def _is_exact(lo: Any, hi: Any) -> bool:
    """Whether sums and products of integers in the range are integers after rounding (below 2^24, or any)."""
    return bool(np.isfinite(lo).all() and np.isfinite(hi).all())


def multiply(call: Call, a: Bounds, b: Bounds) -> Bounds:
    """Product of two bounds."""
    x, y, axis = align(a, b)
    corners = [times(p, q) for p in (x.lo, x.hi) for q in (y.lo, y.hi)]
    lo, hi = widen(np.minimum.reduce(corners), np.maximum.reduce(corners), call.slack)
    undefined = (_has_zero(a) and not b.finite) or (_has_zero(b) and not a.finite)
    tiny = smallest(a) * smallest(b) * (1 - call.slack)
    return interval(
        lo,
        hi,
        axis,
        tiny=tiny if tiny > 1e-37 else 0.0,
        integral=a.integral and b.integral and _is_exact(lo, hi),
        nan=a.nan or b.nan or undefined,
    )


def _has_zero(b: Bounds) -> bool:
    return b.low <= 0 <= b.high


def _negate(b: Bounds) -> Bounds:
    ball = b.ball and replace(b.ball, center=-b.ball.center)
    return Bounds(-b.hi, -b.lo, b.axis, b.tiny, b.integral, b.nan, ball)


def _sum_ball(call: Call, a: Bounds, b: Bounds) -> Ball | None:
    """Ball of a + b: a constant moves the centre, two balls add their radii."""
    for x, y in ((a, b), (b, a)):
        ball = x.ball
        if ball is None:
            continue
        if _is_known(y) and (y.axis == 0 or (y.axis == ball.axis and y.lo.size == ball.size)):
            fuzz = ball.fuzz + call.slack * (ball.norm + y.magnitude * math.sqrt(ball.size))
            return replace(ball, center=ball.center + y.lo, fuzz=fuzz)
        other = y.norm(ball.axis, ball.size)
        return round_ball(ball.axis, ball.size, (ball.norm + other) * (1 + call.slack))
    return None


def _is_known(b: Bounds) -> bool:
    return bool(np.all(b.lo == b.hi)) and b.finite


def _product_ball(call: Call, a: Bounds, b: Bounds) -> Ball | None:
    """Ball of a * b: a constant scales, anything else scales by its largest magnitude."""
    for x, y in ((a, b), (b, a)):
        ball = x.ball
        if ball is None or not y.finite:
            continue
        grow = 1 + 2 * call.slack
        fuzz = (ball.fuzz + call.slack * ball.norm) * y.magnitude
        if y.axis == 0 or (y.axis == ball.axis and y.lo.size == ball.size):
            if _is_known(y):
                return replace(ball, center=ball.center * y.lo, scale=ball.scale * y.lo, fuzz=fuzz)
            if not np.any(ball.center):
                return replace(ball, scale=np.abs(ball.scale) * y.per_index, fuzz=fuzz)
        return round_ball(ball.axis, ball.size, ball.norm * y.magnitude * grow)
    return None


def _usable(ball: Ball | None) -> Ball | None:
    return ball if ball is not None and math.isfinite(ball.norm) else None


def _kept_tags(call: Call, slot: int, other: Bounds, factor: float = 1.0) -> tuple[Dominance, ...]:
    """Relations that survive when something not negative is added (or a positive factor multiplied)."""
    tags = call.get(slot).tags
    return tuple(replace(t, factor=t.factor * factor * (1 - call.slack)) for t in tags if not t.inverse)


def _add(call: Call) -> Bounds:
    a, b = call.get(0), call.get(1)
    result = add(call, a, b)
    tags: tuple[Dominance, ...] = ()
    if b.low >= 0:
        tags += _kept_tags(call, 0, b)
    if a.low >= 0:
        tags += _kept_tags(call, 1, a)
    return replace(result, ball=_usable(_sum_ball(call, a, b)), tags=tags)


def _subtract(call: Call) -> Bounds:
    a, b = call.get(0), call.get(1)
    result = add(call, a, _negate(b))
    ball = _usable(_sum_ball(call, a, _negate(b)))
    root = call.roots[0]
    if root is not None and not a.nan and (root in b.ceilings or root == call.roots[1]):
        result = replace(result, hi=np.minimum(result.hi, 0.0), lo=np.minimum(result.lo, 0.0))
    return replace(result, ball=ball)


def _times(call: Call) -> Bounds:
    a, b = call.get(0), call.get(1)
    result = multiply(call, a, b)
    same = call.roots[0] is not None and call.roots[0] == call.roots[1]
    if same:  # a square
        biggest = np.square(a.per_index) * (1 + call.slack)
        low = max(a.low, -a.high, 0.0) ** 2 * (1 - call.slack)
        result = replace(result, lo=np.full_like(biggest, low), hi=biggest, axis=a.axis)
        return replace(result, tags=_squares(call, call.roots[0]), nan=a.nan)
    tags: tuple[Dominance, ...] = ()
    if b.low > 0:
        tags += _kept_tags(call, 0, b, b.low)
    if a.low > 0:
        tags += _kept_tags(call, 1, a, a.low)
    result = replace(result, ball=_usable(_product_ball(call, a, b)), tags=tags)
    for slot in (0, 1):  # x * (1 / root(mean(x^2)))
        result = _normalized(call, result, slot, 1 - slot, inverse=True)
    return result


def _squares(call: Call, base: int | None) -> tuple[Dominance, ...]:
    if base is None or call.unit > 2.0**-24:  # FP16 squares underflow from 2^-12 down
        return ()
    return (Dominance(base, 2.0, 1 - call.slack, threshold=NORMAL_SQUARES),)


def _normalized(call: Call, result: Bounds, slot: int, by: int, *, inverse: bool) -> Bounds:
    """Use |x| <= value / factor where the divisor dominates x; the vectors along its axis have a norm too."""
    divisor = call.get(by)
    root = call.roots[slot]
    for tag in divisor.tags:
        if tag.base != root or tag.power != 1.0 or tag.inverse is not inverse or tag.dropped:
            continue
        largest = 1.0 / tag.factor
        if tag.threshold > 0:
            weight = divisor.magnitude if inverse else (1 / divisor.low if divisor.low > 0 else math.inf)
            largest = max(largest, tag.threshold * weight)
        largest *= 1 + 2.0**-6  # as for the operators: a fused kernel may round the mean once more
        if not math.isfinite(largest):
            continue
        least = 0.0 if call.get(slot).low >= 0 else -largest  # what dominates is not negative
        lo, hi = np.maximum(result.lo, least), np.minimum(result.hi, largest)
        ball = result.ball
        if tag.size > 1 and tag.threshold > 0:  # a norm: the vector itself is bounded
            ball = round_ball(tag.axis, tag.size, largest) or ball
        shares = tag.threshold == 0 and tag.axis != 0 and largest < 1.01 and call.get(slot).low >= 0
        simplex = tag.axis if shares else result.simplex
        result = replace(result, lo=np.minimum(lo, hi), hi=np.maximum(lo, hi), ball=ball, simplex=simplex)
    return result


def _divide(call: Call) -> Bounds:
    a, b = call.get(0), call.get(1)
    if all(t.is_integer for t in call.dtypes[:2]):
        if _has_zero(b) or not a.finite:
            return TOP
        return replace(multiply(call, a, interval(-1.0, 1.0)), integral=True)
    result = multiply(call, a, reciprocal(call, b))
    if _is_known(b) and not _has_zero(b):
        inverse = interval(1.0 / b.lo, 1.0 / b.hi, b.axis)
        result = replace(result, ball=_usable(_product_ball(call, a, inverse)))
        if b.axis == 0 and b.low > 0:
            result = replace(result, tags=_kept_tags(call, 0, b, 1.0 / b.low))
    result = replace(result, integral=False, nan=result.nan or (_has_zero(a) and _has_zero(b)))
    if _is_one(a):
        result = replace(result, tags=_inverted(call, b))
    return _normalized(call, result, 0, 1, inverse=False)


def _is_one(b: Bounds) -> bool:
    return b.low == b.high == 1.0


def _inverted(call: Call, b: Bounds) -> tuple[Dominance, ...]:
    return tuple(
        replace(t, factor=t.factor * (1 - call.slack), inverse=True) for t in b.tags if not t.inverse
    )


def reciprocal(call: Call, b: Bounds) -> Bounds:
    """1 / b; unbounded where b may be zero (a negative zero gives minus infinity)."""
    away = (b.lo > 0) | (b.hi < 0)
    with np.errstate(divide="ignore"):
        lo, hi = widen(np.where(away, 1.0 / b.hi, -np.inf), np.where(away, 1.0 / b.lo, np.inf), call.slack)
    return interval(lo, hi, b.axis, nan=b.nan)


def _reciprocal(call: Call) -> Bounds:
    return replace(reciprocal(call, call.get(0)), tags=_inverted(call, call.get(0)))


def _negative(call: Call) -> Bounds:
    return _negate(call.get(0))


def _absolute(call: Call) -> Bounds:
    x = call.get(0)
    lo = np.maximum(np.maximum(x.lo, -x.hi), 0.0)
    root = call.roots[0]
    tags = () if root is None else (Dominance(root, 1.0, 1.0),)
    return Bounds(lo, x.per_index, x.axis, x.tiny, x.integral, x.nan, _radius(x), tags=tags)


def _radius(x: Bounds) -> Ball | None:
    """Ball of f(x) where |f(x)| <= |x|."""
    return x.ball and round_ball(x.ball.axis, x.ball.size, x.ball.norm)


def _rounded(call: Call) -> Bounds:
    x = call.get(0)
    return Bounds(np.floor(x.lo), np.ceil(x.hi), x.axis, 0.0, x.finite, x.nan)


def _sign(call: Call) -> Bounds:
    x = call.get(0)
    return interval(np.sign(x.low), np.sign(x.high), integral=True, nan=x.nan)


def _extremum(call: Call) -> Bounds:
    """Max and Min; a NaN may lose against a number, so the operands' hull counts then."""
    items = call.given()
    pick = np.maximum if call.op.op_type == "Max" else np.minimum
    if any(b.nan for b in items):
        return replace(hull(items), nan=True, ball=None, simplex=0)
    result = items[0]
    for other in items[1:]:
        x, y, axis = align(result, other)
        result = interval(
            pick(x.lo, y.lo), pick(x.hi, y.hi), axis, integral=result.integral and other.integral
        )
    tiny = min(smallest(b) for b in items)
    tags: tuple[Dominance, ...] = ()
    if call.op.op_type == "Max":
        tags = tuple(t for b in items for t in b.tags if not t.inverse)
    return replace(result, tiny=tiny, tags=tags)


def clamp(x: Bounds, low: Bounds | None, high: Bounds | None) -> Bounds:
    """min(max(x, low), high), as ONNX defines Clip (the upper bound wins); NaN may come out as an end."""
    lo, hi = x.lo, x.hi
    if x.nan:
        lo, hi = np.full_like(lo, -np.inf), np.full_like(hi, np.inf)
    if low is not None:
        lo, hi = np.maximum(lo, low.low), np.maximum(hi, low.high)
    if high is not None:
        lo, hi = np.minimum(lo, high.low), np.minimum(hi, high.high)
    integral = all(b is None or b.integral for b in (x, low, high))
    return interval(
        lo, hi, x.axis, integral=integral, nan=x.nan, tags=() if x.nan or high is not None else x.tags
    )


def _clip(call: Call) -> Bounds:
    ends: list[Bounds | None] = [call.ins[i] if i < len(call.ins) else None for i in (1, 2)]
    for i, name in enumerate(("min", "max")):
        if isinstance(value := call.attr(name, None), float):
            ends[i] = interval(np.float32(value), np.float32(value))
    result = clamp(call.get(0), *ends)
    if ends[1] is not None and (ends[0] is None or ends[0].high <= ends[1].low):
        upper = ends[1].low  # what dominates still does, up to the upper bound, if that is out of reach
        if call.get(0).high <= upper and not call.get(0).nan:
            return replace(result, tags=call.get(0).tags)
    return result


def _where(call: Call) -> Bounds:
    a, b = call.get(1), call.get(2)
    result = hull((a, b))
    zero = next((x for x, y in ((a, b), (b, a)) if y.magnitude == 0), None)
    if zero is not None:
        slot, axis = (1 if zero is a else 2), zero.simplex
        out, own = call.out_shape(), call.dim(slot, axis) if axis else None
        if own is not None and out is not None and out[axis] == own:  # not repeated by broadcasting
            result = replace(result, simplex=axis)
        if zero.ball is not None:
            result = replace(result, ball=_radius(zero))
    return result


def _power(call: Call) -> Bounds:
    x, exponent = call.get(0), call.array(1)
    if exponent is None or exponent.size != 1:
        return _general_power(call, x, call.get(1))
    e = float(exponent.reshape(-1)[0])
    slack = call.function_slack
    if e == 2.0 or (e > 0 and e % 2 == 0):
        with np.errstate(over="ignore"):
            hi = x.per_index**e * (1 + slack)
            lo = np.maximum(np.maximum(x.lo, -x.hi), 0.0) ** e * (1 - slack)
        tags = _squares(call, call.roots[0]) if e == 2.0 else ()
        return interval(lo, hi, x.axis, integral=x.integral, nan=x.nan, tags=tags)
    if e == 1.0:
        return x
    if e > 0 and e == int(e):
        with np.errstate(over="ignore"):
            lo, hi = widen(np.power(x.lo, e), np.power(x.hi, e), slack)
        return interval(lo, hi, x.axis, integral=x.integral, nan=x.nan)
    return replace(_general_power(call, x, interval(e, e)), tags=_powered(call, x, e))


def _powered(call: Call, x: Bounds, e: float) -> tuple[Dominance, ...]:
    """|base|^p under a power of the value: roots of sums of squares and their inverses."""
    tags = []
    for t in x.tags:
        if t.inverse or e == 0 or t.factor <= 0:
            continue
        factor = t.factor ** abs(e) * (1 - call.function_slack)
        tags.append(replace(t, power=t.power * abs(e), factor=factor, inverse=e < 0))
    return tuple(tags)


def _general_power(call: Call, x: Bounds, y: Bounds) -> Bounds:
    if x.low < 0 or x.nan or y.nan or not (x.finite and y.finite):
        return TOP
    if x.low == 0 and y.low < 0:
        return interval(0.0, np.inf)
    with np.errstate(over="ignore", divide="ignore"):
        corners = [np.power(p, q) for p in (x.low, x.high) for q in (y.low, y.high)]
    lo, hi = min(corners), max(corners)
    if x.low <= 1 <= x.high or y.low <= 0 <= y.high:
        lo, hi = min(lo, 1.0), max(hi, 1.0)
    return interval(*widen(lo, hi, call.function_slack))


def _root(call: Call) -> Bounds:
    x = call.get(0)
    lo, hi = widen(np.sqrt(np.maximum(x.lo, 0.0)), np.sqrt(np.maximum(x.hi, 0.0)), call.slack)
    return interval(lo, hi, x.axis, nan=x.nan or x.low < 0, tags=_powered(call, x, 0.5))


def _boolean(call: Call) -> Bounds:
    return top_of(DataType.BOOL)


def _modulo(call: Call) -> Bounds:
    """The result of Mod and fmod is smaller than the divisor."""
    a, b = call.get(0), call.get(1)
    if a.nan or b.nan or not (a.finite and b.finite) or _has_zero(b):
        return TOP
    fmod = bool(call.attr("fmod", 0))
    lo = -b.magnitude if (fmod and a.low < 0) or (not fmod and b.low < 0) else 0.0
    hi = b.magnitude if (fmod and a.high > 0) or (not fmod and b.high > 0) else 0.0
    return interval(lo, hi, integral=a.integral and b.integral)


def _sum(call: Call) -> Bounds:
    items = call.given()
    result = items[0]
    for other in items[1:]:
        result = add(call, result, other)
    return result


def _mean(call: Call) -> Bounds:
    return multiply(call, _sum(call), interval(1.0 / len(call.given()), 1.0 / len(call.given())))


ELEMENTWISE: Final[Mapping[str, Transfer]] = {
    "Abs": _absolute,
    "Add": _add,
    "And": _boolean,
    "Ceil": _rounded,
    "Clip": _clip,
    "Div": _divide,
    "Equal": _boolean,
    "Floor": _rounded,
    "Greater": _boolean,
    "GreaterOrEqual": _boolean,
    "IsInf": _boolean,
    "IsNaN": _boolean,
    "Less": _boolean,
    "LessOrEqual": _boolean,
    "Max": _extremum,
    "Mean": _mean,
    "Min": _extremum,
    "Mod": _modulo,
    "Mul": _times,
    "Neg": _negative,
    "Not": _boolean,
    "Or": _boolean,
    "Pow": _power,
    "Reciprocal": _reciprocal,
    "Round": _rounded,
    "Sign": _sign,
    "Sqrt": _root,
    "Sub": _subtract,
    "Sum": _sum,
    "Where": _where,
    "Xor": _boolean,
}
