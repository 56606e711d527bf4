"""Quantized numbers: a type's range times a scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fp16conv.evidence.abstract.call import Call, Transfer
from fp16conv.evidence.abstract.domain import TOP, Bounds, interval, top_of
from fp16conv.evidence.abstract.elementwise import add, multiply

__all__ = ["QUANTIZATION"]


def _quantize(call: Call) -> Bounds:
    return top_of(call.out_dtypes[0])


def _dequantize(call: Call) -> Bounds:
    """(x - zero point) times scale."""
    x = call.get(0)
    if not x.integral or not x.finite:
        return TOP
    zero = call.get(2).flat() if call.has(2) else interval(0.0, 0.0)
    shift = interval(-zero.high, -zero.low)
    return multiply(call, add(call, x.flat(), shift), call.get(1).flat())


def _dynamic(call: Call) -> list[Bounds | None]:
    """The scale is the range, zero included, over 255."""
    x = call.get(0)
    scale = (max(x.high, 0.0) - min(x.low, 0.0)) / 255 * (1 + 4 * call.slack)
    return [top_of(call.out_dtypes[0]), interval(0.0, scale, nan=x.nan), None]


QUANTIZATION: Final[Mapping[str, Transfer]] = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic,
    "QuantizeLinear": _quantize,
    "com.microsoft::DequantizeLinear": _dequantize,
}
