"""What no operator made new is not rounded again: bit for bit the numbers as with all roundings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from fp16conv.execution import emulator, retyping
from fp16conv.execution.emulator import emulate_model, emulate_plan
from fp16conv.execution.rounding import EmulationOptions
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import from_proto
from fp16conv.graph import DataType

STEPS = {  # [4, 6] -> [4, 6], none makes a new number
    "abs": "{y} = Abs({x})",
    "ceil": "{y} = Ceil({x})",
    "floor": "{y} = Floor({x})",
    "round": "{y} = Round({x})",
    "neg": "{y} = Neg({x})",
    "relu": "{y} = Relu({x})",
    "sign": "{y} = Sign({x})",
    "max": "{y} = Max({x}, {o})",
    "min": "{y} = Min({x}, {o})",
    "clip": "{y}l = CastLike(low, {x}) {y}h = CastLike(high, {x}) {y} = Clip({x}, {y}l, {y}h)",
    "clip low": "{y}l = CastLike(low, {x}) {y} = Clip({x}, {y}l)",
    "clip high": "{y}h = CastLike(high, {x}) {y} = Clip({x}, , {y}h)",
    "reshape": "{y}r = Reshape({x}, flat) {y} = Reshape({y}r, whole)",
    "transpose": "{y}t = Transpose({x}) {y} = Transpose({y}t)",
    "concat": "{y}a, {y}b = Split<axis = 0, num_outputs = 2>({x}) {y} = Concat<axis = 0>({y}b, {y}a)",
    "slice": "{y}s = Slice({x}, zero, two, zero) {y} = Tile({y}s, twice)",
    "gather": "{y} = Gather<axis = 0>({x}, picked)",
    "where": "{y}c = Less({x}, {o}) {y} = Where({y}c, {x}, {o})",
    "pool": "{y}u = Unsqueeze({x}, lead) {y}p = MaxPool<kernel_shape = [3], pads = [1, 1]>({y}u)"
    " {y} = Squeeze({y}p, lead)",
    "topk": "{y}, {y}i = TopK({x}, six)",
    "reduce": "{y}m = ReduceMax<keepdims = 1>({x}, lead) {y}e = Expand({y}m, whole) {y} = Max({y}e, {o})",
    "new": "{y} = Mul({x}, {o})",  # and one that does, between them
}
CONSTANTS = """
    flat = Constant<value = int64[1] {24}>() whole = Constant<value = int64[2] {4, 6}>()
    zero = Constant<value = int64[1] {0}>() two = Constant<value = int64[1] {2}>()
    twice = Constant<value = int64[2] {2, 1}>() picked = Constant<value = int64[4] {3, 1, 1, 0}>()
    lead = Constant<value = int64[1] {0}>() six = Constant<value = int64[1] {6}>()
    low = Constant<value = float {-2000.7}>() high = Constant<value = float {3000.3}>()
"""


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


def chain(rng: np.random.Generator, *, half: bool) -> str:
    body, last = [], "x0"
    for number, step in enumerate(rng.permutation(sorted(STEPS))):
        body.append(STEPS[step].format(x=last, y=f"v{number}", o="o0"))
        last = f"v{number}"
    casts = "x0 = Cast<to = 10>(x) o0 = Cast<to = 10>(o)" if half else "x0 = Identity(x) o0 = Identity(o)"
    end = f"y = Cast<to = 1>({last})" if half else f"y = Identity({last})"
    head = '<ir_version: 9, opset_import: ["": 18]> g (float[4, 6] x, float[4, 6] o) => (float[4, 6] y)'
    return f"{head} {{ {CONSTANTS} {casts} {' '.join(body)} {end} }}"


def numbers(rng: np.random.Generator) -> np.ndarray:
    """All sizes that FP16 knows and does not: subnormal, too small or large, infinite, signed zeros, NaN."""
    values = np.ldexp(rng.standard_normal((4, 6)), rng.integers(-30, 20, (4, 6))).astype(np.float32)
    values.flat[rng.permutation(24)[:5]] = [np.inf, -np.inf, 0.0, -0.0, np.nan]
    return values


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_rounding_once_is_rounding_always(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, seed: int, flush: bool
) -> None:
    rng = np.random.default_rng(seed)
    options = EmulationOptions(flush_subnormals=flush)
    mixed = ir.from_proto(onnx.parser.parse_model(chain(rng, half=True)))
    loaded = from_proto(onnx.parser.parse_model(chain(rng, half=False)), Path("m.onnx"))
    dtypes = [DataType.FLOAT16] * len(loaded.graph.typevars)
    feeds = [{"x": numbers(rng), "o": numbers(rng)} for _ in range(4)]

    def run() -> tuple[list[np.ndarray], int]:
        models = [emulate_model(mixed, options=options), emulate_plan(loaded, dtypes, options=options)]
        sessions = [runtime.load(model) for model in models]
        found = [runtime.run(session, batch)["y"] for session in sessions for batch in feeds]
        return found, sum(len(list(model.graph)) for model in models)

    elided, few = run()
    for module in (retyping, emulator):
        monkeypatch.setattr(module, "is_exact", lambda node: False)
    rounded, many = run()
    assert few < many
    for one, other in zip(elided, rounded, strict=True):
        is_nan = np.isnan(other)
        np.testing.assert_array_equal(is_nan, np.isnan(one))
        np.testing.assert_array_equal(one.view(np.int32)[~is_nan], other.view(np.int32)[~is_nan])
