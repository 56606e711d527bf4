"""Normalizations: what has unit variance is at most sqrt(n), whatever goes in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from fp16conv.evidence.abstract.call import Call, Transfer
from fp16conv.evidence.abstract.domain import TOP, Ball, Bounds, interval, scalar
from fp16conv.evidence.abstract.elementwise import ELEMENTWISE, add, multiply

__all__ = ["NORMS"]

MEAN_SLACK: Final = 2.0**-6
"""Fused kernels round the mean to binary32 after they took the variance around the unrounded one.

2^-6 covers rows whose deviation is above 2^-18 of their mean. What is closer to constant is outside the
definition that the bound rests on: the variance is the mean square of the differences that are divided.
"""


def _scaled(call: Call, x: Bounds, slot: int, op_type: str) -> Bounds:
    """`x` times or plus an input, with its ball."""
    other = call.get(slot)
    local = replace(
        call,
        ins=(x, other),
        roots=(None, None),
        shapes=(None, call.shape(slot)),
        out_shapes=(None,),
    )
    result = ELEMENTWISE[op_type](local)
    assert isinstance(result, Bounds)
    return result


def _reach(call: Call, size: int) -> float:
    """sqrt(n) with an allowance for a mean that is rounded once more between variance and difference."""
    return math.sqrt(size) * (1 + MEAN_SLACK + call.sum_slack(size))


def _normalize_last(
    call: Call, size: int, scale: int, bias: int | None, nan: bool, grow: float = 1.0
) -> Bounds:
    """Unit root mean square along the last axis, times scale plus bias (input slots).

    With y = x / sqrt(mean(x^2) + eps), sum(y^2) <= n: each |y| <= sqrt(n) and so is the norm.
    """
    reach = _reach(call, size) * grow
    ball = Ball(-1, size, reach, scalar(0.0), scalar(1.0)) if size > 1 else None
    y = interval(-reach, reach, nan=nan, ball=ball)
    if call.has(scale):
        y = _scaled(call, y, scale, "Mul")
    if bias is not None and call.has(bias):
        y = _scaled(call, y, bias, "Add")
    return replace(y, tags=(), nan=nan or y.nan)


def _layer_norm(call: Call, bias: int | None = 2) -> list[Bounds | None]:
    """LayerNormalization and its RMS form."""
    x, rank = call.get(0), call.rank(0)
    scale = call.shape(1)
    axis = int(call.attr("axis", -1))
    nan = x.nan or not x.finite
    if axis >= 0:
        axis = axis - rank if rank is not None else 0
    size = None
    if axis == -1:
        size = call.dim(0, -1) or (scale[-1] if scale else None)
    elif axis < 0:
        size = call.count(0, tuple(range(axis, 0)))
    if size is None:
        return [None] * len(call.op.outputs)
    if axis == -1:
        y = _normalize_last(call, size, 1, bias, nan)
    else:
        reach = _reach(call, size)
        y = multiply(call, interval(-reach, reach, nan=nan), call.get(1))
        if bias is not None and call.has(bias):
            y = add(call, y, call.get(bias))
    mean = interval(x.low, x.high, nan=nan)
    return [y, add(call, mean, interval(0.0, 0.0)), None][: len(call.op.outputs)]


def _rms_norm(call: Call) -> list[Bounds | None]:
    return [_layer_norm(call, None)[0]] + [None] * (len(call.op.outputs) - 1)


def _skip_norm(beta: int | None) -> Transfer:
    """LayerNormalization of a sum; the fourth output is the sum.

    ONNX Runtime's kernel takes E[x^2] - E[x]^2 in double precision. Where that cancels the divisor is
    sqrt(eps), so the bound also depends on the largest x.
    """

    def transfer(call: Call) -> list[Bounds | None]:
        total = add(call, call.get(0), call.get(1))
        scale = call.shape(2)
        extra = 4 if beta is not None else 3
        if call.has(extra):
            total = add(call, total, call.get(extra))
        size = call.dim(0, -1) or (scale[-1] if scale else None)
        eps = float(call.attr("epsilon", 1e-12))
        if size is None or eps <= 0 or (beta is not None and not total.finite):
            return [None, None, None, total][: len(call.op.outputs)]
        nan = total.nan or not total.finite
        grow = 1.0
        if beta is not None:
            lost = (2 * size * 2.0**-53 + (2 * 2.0**-24) ** 2) * total.magnitude * total.magnitude
            grow = math.sqrt(2 * max(1.0, lost / eps))
        y = _normalize_last(call, size, 2, beta, nan, grow)
        return [y, None, None, total][: len(call.op.outputs)]

    return transfer


def _instance_norm(call: Call) -> Bounds:
    """Statistics per plane; computed as x times a factor plus a shift, which rounds at the size of x."""
    x, rank = call.get(0), call.rank(0)
    if rank is None:
        return TOP
    size = call.count(0, tuple(range(2 - rank, 0)))
    eps = float(call.attr("epsilon", 1e-5))
    if size is None or not x.finite or eps <= 0:
        return TOP
    reach = _reach(call, size) + 8 * call.slack * x.magnitude / math.sqrt(eps)
    axis = 1 - rank
    scale, bias = (replace(b, axis=axis if b.axis else 0, ball=None) for b in (call.get(1), call.get(2)))
    return add(call, multiply(call, interval(-reach, reach, nan=x.nan), scale), bias)


def _batch_norm(call: Call) -> list[Bounds | None]:
    """X times scale / sqrt(var + eps), minus mean times it, plus bias: a line per channel."""
    x, rank = call.get(0), call.rank(0)
    outputs: list[Bounds | None] = [None] * len(call.op.outputs)
    if call.attr("training_mode", 0) or len([o for o in call.op.outputs if o is not None]) > 1:
        return outputs
    arrays = [call.array(i) for i in range(1, 5)]
    if rank is None or any(a is None or a.dtype.kind != "f" for a in arrays):
        return outputs
    scale, bias, mean, var = (np.asarray(a, np.float64) for a in arrays)
    if not all(np.isfinite(a).all() for a in (scale, bias, mean, var)):
        return outputs
    spread = var + float(call.attr("epsilon", 1e-5))
    if not scale.size or spread.min() <= 0:
        return outputs
    factor = scale / np.sqrt(spread)
    axis = 1 - rank if rank > 1 else 0
    y = x if x.axis == axis else x.flat()
    # Folded into a scale and a shift by the runtime: each term carries roundings of its own.
    shift = interval(bias - mean * factor, bias - mean * factor, axis)
    if not axis:
        shift, factor = shift.flat(), scalar(factor.reshape(-1)[0])
        if scale.size > 1:
            return outputs
    result = add(call, multiply(call, y, interval(factor, factor, axis)), shift)
    fuzz = 4 * call.slack * (np.abs(mean * factor) + np.abs(bias))
    fuzz = fuzz if axis else scalar(float(fuzz.max()))
    outputs[0] = interval(result.lo - fuzz, result.hi + fuzz, axis, nan=result.nan)
    return outputs


def _lp_normalization(call: Call) -> Bounds:
    return interval(-1 - 2.0**-10, 1 + 2.0**-10, nan=True)


def _lrn(call: Call) -> Bounds:
    """X / (bias + alpha / size sum(x^2))^beta, where the divisor is at least bias^beta."""
    x, bias, beta = call.get(0), call.attr("bias", 1.0), call.attr("beta", 0.75)
    if bias <= 0 or beta < 0 or call.attr("alpha", 1e-4) < 0:
        return TOP
    reach = x.magnitude / bias**beta * (1 + call.function_slack)
    return interval(-reach, reach, nan=x.nan or not x.finite)


NORMS: Final[Mapping[str, Transfer]] = {
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_normalization,
    "RMSNormalization": _rms_norm,
    "SimplifiedLayerNormalization": _rms_norm,
    "com.microsoft::SkipLayerNormalization": _skip_norm(3),
    "com.microsoft::SkipSimplifiedLayerNormalization": _skip_norm(None),
}
