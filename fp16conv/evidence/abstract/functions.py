"""Functions of one variable: exponentials, activations, trigonometry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from fp16conv.evidence.abstract.call import Call, Transfer
from fp16conv.evidence.abstract.domain import TOP, Bounds, hull, interval, times, widen
from fp16conv.evidence.abstract.elementwise import multiply, round_ball

__all__ = ["FUNCTIONS", "exponential"]

ABSOLUTE: Final = 2.0**-20
"""Absolute allowance for bounded functions: the approximations are not relative near their zeros and ends."""

_erf: Final = np.vectorize(math.erf, otypes=[np.float64])

_Function = Callable[[Any], Any]


def _monotone(call: Call, function: _Function, absolute: float = 0.0) -> Bounds:
    """Bounds of a growing function; runtimes map NaN to some number of its range."""
    x = call.get(0)
    x_lo, x_hi = (np.float64(-np.inf), np.float64(np.inf)) if x.nan else (x.lo, x.hi)
    with np.errstate(all="ignore"):
        lo, hi = widen(function(x_lo), function(x_hi), call.function_slack)
    return interval(lo - absolute, hi + absolute, 0 if x.nan else x.axis, nan=x.nan)


def _growing(function: _Function, absolute: float = 0.0) -> Transfer:
    return lambda call: _monotone(call, function, absolute)


def exponential(call: Call, x: Bounds) -> Bounds:
    """e^x: not negative; what is below 1e-30 counts as zero, for it may be flushed."""
    if x.nan:
        return interval(0.0, np.inf, nan=True)
    with np.errstate(over="ignore"):
        lo, hi = np.exp(x.lo) * (1 - call.function_slack), np.exp(x.hi) * (1 + call.function_slack)
    return interval(np.where(lo < 1e-30, 0.0, lo), np.maximum(hi, 1e-30), x.axis)


def _exp(call: Call) -> Bounds:
    return exponential(call, call.get(0))


def _log(call: Call) -> Bounds:
    x = call.get(0)
    if x.nan or x.low < 0:
        return TOP
    with np.errstate(divide="ignore"):
        lo, hi = widen(np.log(x.lo), np.log(x.hi), call.function_slack)
    return interval(lo - ABSOLUTE, hi + ABSOLUTE, x.axis)


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def _softplus(x: Any) -> Any:
    return np.logaddexp(0.0, x)


def _hard_sigmoid(call: Call) -> Bounds:
    alpha, beta = call.attr("alpha", 0.2), call.attr("beta", 0.5)
    if alpha < 0:
        return interval(0.0, 1.0, nan=call.get(0).nan)
    return _monotone(call, lambda x: np.clip(times(alpha, x) + beta, 0.0, 1.0))


def _relu(call: Call) -> Bounds:
    x = call.get(0)
    lo = np.zeros_like(x.lo) if x.nan else np.maximum(x.lo, 0.0)
    ball = x.ball and round_ball(x.ball.axis, x.ball.size, x.ball.norm)
    return Bounds(lo, np.maximum(x.hi, 0.0), x.axis, x.tiny, x.integral, x.nan, ball)


def _leaky(call: Call) -> Bounds:
    """X above zero, alpha x below."""
    return _two_sided(call, interval(alpha := call.attr("alpha", 0.01), alpha))


def _prelu(call: Call) -> Bounds:
    return _two_sided(call, call.get(1))


def _two_sided(call: Call, slope: Bounds) -> Bounds:
    x = call.get(0)
    below = replace(x, lo=np.minimum(x.lo, 0.0), hi=np.minimum(x.hi, 0.0))
    above = Bounds(np.maximum(x.lo, 0.0), np.maximum(x.hi, 0.0), x.axis, nan=x.nan)
    return hull((multiply(call, below, slope), above))


def _elu(call: Call) -> Bounds:
    alpha = call.attr("alpha", 1.0)
    if alpha < 0:
        return TOP
    return _monotone(call, lambda x: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0))), ABSOLUTE)


def _selu(call: Call) -> Bounds:
    alpha, g = call.attr("alpha", 1.67326319217681884765625), call.attr("gamma", 1.05070102214813232421875)
    if alpha < 0 or g < 0:
        return TOP
    return _monotone(call, lambda x: g * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0))), ABSOLUTE)


def _celu(call: Call) -> Bounds:
    alpha = call.attr("alpha", 1.0)
    if alpha <= 0:
        return TOP
    return _monotone(
        call, lambda x: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0) / alpha)), ABSOLUTE
    )


def _gated(least: float) -> Transfer:
    """X times a gate in [0, 1]: between the function's minimum and x."""

    def transfer(call: Call) -> Bounds:
        x = call.get(0)
        grow = 1 + call.function_slack
        lo = np.maximum(np.minimum(x.lo, 0.0) * grow, least * grow)
        hi = np.maximum(x.hi, 0.0) * grow
        ball = x.ball and round_ball(x.ball.axis, x.ball.size, x.ball.norm * grow)
        return interval(lo, hi, x.axis, nan=x.nan or not x.finite, ball=ball)

    return transfer


def _swish(call: Call) -> Bounds:
    """X sigmoid(alpha x), whose minimum is -0.27847 / alpha."""
    alpha = call.attr("alpha", 1.702 if call.op.op_type == "QuickGelu" else 1.0)
    if alpha <= 0:
        return TOP
    result = _gated(-0.2785 / alpha)(call)
    assert isinstance(result, Bounds)
    return result


def _within(lo: float, hi: float) -> Transfer:
    """A function whose whole range is known."""
    return lambda call: interval(lo - ABSOLUTE, hi + ABSOLUTE, nan=call.get(0).nan or not call.get(0).finite)


def _thresholded(call: Call) -> Bounds:
    x, alpha = call.get(0), call.attr("alpha", 1.0)
    return interval(min(alpha, 0.0), max(x.high, 0.0), nan=x.nan)


def _shrink(call: Call) -> Bounds:
    x, bias = call.get(0), abs(call.attr("bias", 0.0))
    lo, hi = widen(np.minimum(x.lo, 0.0), np.maximum(x.hi, 0.0), call.slack)
    return interval(lo - bias * (1 + call.slack), hi + bias * (1 + call.slack), x.axis, nan=x.nan)


def _cosh(call: Call) -> Bounds:
    x = call.get(0)
    with np.errstate(over="ignore"):
        hi = np.cosh(x.magnitude) * (1 + call.function_slack)
    return interval(1 - call.function_slack, hi, nan=x.nan)


def _arc(lo: float, hi: float) -> Transfer:
    """Acos and Asin are NaN outside [-1, 1]."""

    def transfer(call: Call) -> Bounds:
        x = call.get(0)
        return interval(lo - ABSOLUTE, hi + ABSOLUTE, nan=x.nan or x.magnitude > 1)

    return transfer


_HALF_PI: Final = math.pi / 2

FUNCTIONS: Final[Mapping[str, Transfer]] = {
    "Acos": _arc(0.0, math.pi),
    "Asin": _arc(-_HALF_PI, _HALF_PI),
    "Asinh": _growing(np.arcsinh, ABSOLUTE),
    "Atan": _growing(np.arctan, ABSOLUTE),
    "Celu": _celu,
    "Cos": _within(-1.0, 1.0),
    "Cosh": _cosh,
    "Elu": _elu,
    "Erf": _growing(_erf, ABSOLUTE),
    "Exp": _exp,
    "Gelu": _gated(-0.1705),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _gated(-0.3751),
    "LeakyRelu": _leaky,
    "Log": _log,
    "Mish": _gated(-0.3089),
    "PRelu": _prelu,
    "Relu": _relu,
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": _growing(_sigmoid, ABSOLUTE),
    "Sin": _within(-1.0, 1.0),
    "Sinh": _growing(np.sinh, ABSOLUTE),
    "Softplus": _growing(_softplus, ABSOLUTE),
    "Softsign": _within(-1.0, 1.0),  # NaN at infinity
    "Swish": _swish,
    "Tanh": _growing(np.tanh, ABSOLUTE),
    "ThresholdedRelu": _thresholded,
    "com.microsoft::FastGelu": _gated(-0.1705),
    "com.microsoft::Gelu": _gated(-0.1705),
    "com.microsoft::QuickGelu": _swish,
}
