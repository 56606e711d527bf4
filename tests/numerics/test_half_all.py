"""All 65,536 halves: half.py and the emulator's pair against numpy, bit for bit."""

from __future__ import annotations

import math

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from fp16conv import half
from fp16conv.execution.emulator import emulate_model
from fp16conv.execution.runtime import Runtime

ALL = np.arange(2**16, dtype=np.uint16).view(np.float16)
FINITE = np.sort(ALL[np.isfinite(ALL)].astype(np.float64))


def test_every_half_rounds_to_itself() -> None:
    np.testing.assert_array_equal(half.round_to_fp16(ALL.astype(np.float32)).astype(np.float16), ALL)


def test_midpoints_round_to_even() -> None:
    """Between two neighbours: below the middle down, above it up, in the middle to the even one."""
    numbers = np.unique(FINITE)
    low, high = numbers[:-1], numbers[1:]
    middle = (low + high) / 2
    nudge = (high - low) / 8
    np.testing.assert_array_equal(half.round_to_fp16(middle - nudge), low.astype(np.float32))
    np.testing.assert_array_equal(half.round_to_fp16(middle + nudge), high.astype(np.float32))
    even = (low.astype(np.float16).view(np.uint16) & 1) == 0
    np.testing.assert_array_equal(half.round_to_fp16(middle), np.where(even, low, high).astype(np.float32))


@pytest.mark.parametrize("highest", [2.0**16, np.inf], ids=["in range", "any pattern"])
def test_conversion_gives_numpys_bits(highest: float) -> None:
    """A block in which every number is below 2^16 takes the quick way, any other is left to numpy."""
    bits = np.random.default_rng(0).integers(0, 2**32, 300_001, dtype=np.uint32)
    numbers = bits.view(np.float32)
    if math.isfinite(highest):
        numbers = numbers[np.abs(numbers) < highest]
    with np.errstate(all="ignore"):
        expected = numbers.astype(np.float16).view(np.uint16)
    assert np.isin([0x0000, 0x8000, 0x0001, 0x8001], expected).all()
    np.testing.assert_array_equal(half.to_fp16(numbers).view(np.uint16), expected)
    np.testing.assert_array_equal(half.to_fp16(numbers[::-1]).view(np.uint16), expected[::-1])


def test_limits_are_those_of_numpy() -> None:
    info = np.finfo(np.float16)
    assert (float(info.max), float(info.tiny)) == (half.MAX, half.SMALLEST_NORMAL)
    assert (float(info.smallest_subnormal), float(info.eps)) == (half.SMALLEST_SUBNORMAL, half.EPSILON)
    assert np.isinf(half.round_to_fp16(half.OVERFLOW))
    assert half.round_to_fp16(np.nextafter(np.float32(half.OVERFLOW), np.float32(0))) == half.MAX
    assert half.round_to_fp16(half.UNDERFLOW) == 0
    assert (
        half.round_to_fp16(np.nextafter(np.float32(half.UNDERFLOW), np.float32(1))) == half.SMALLEST_SUBNORMAL
    )


def test_saturate_keeps_every_finite_half() -> None:
    with np.errstate(invalid="ignore"):  # some of the NaNs are signalling
        found = half.saturate(ALL.astype(np.float32))
    np.testing.assert_array_equal(found, np.clip(ALL, -half.MAX, half.MAX))


def test_pair_rounds_like_numpy() -> None:
    """Every half, and numbers an eighth, a half and seven eighths of the way to the next one."""
    numbers = np.unique(FINITE)
    steps = np.diff(numbers)
    inputs = np.concatenate([numbers[:-1] + steps * share for share in (0.0, 0.125, 0.5, 0.875)])
    inputs = np.concatenate([inputs, [65519.0, 65520.0, 1e30, -65520.0, np.inf, -np.inf, np.nan]])
    x = inputs.astype(np.float32)
    text = '<ir_version: 9, opset_import: ["": 18]> g (float[n] x) => (float16[n] y) { y = Cast<to = 10>(x) }'
    with Runtime(threads=1) as runtime:
        session = runtime.load(emulate_model(ir.from_proto(onnx.parser.parse_model(text))))
        found = runtime.run(session, {"x": x})["y"]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, x.astype(np.float16))
