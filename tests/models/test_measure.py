"""The measures of the benchmark, checked on models whose answer is known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from benchmarks.zoo.audio import speech
from benchmarks.zoo.images import face, page, scene, text_line
from benchmarks.zoo.measure import casts_added, fp16_macs_share, honest_errors

FP32 = """
<ir_version: 8, opset_import: ["": 17]>
demo (float[4, 8] x) => (float[4, 2] y)
<float[8, 6] a, float[6, 2] b> { h = MatMul(x, a)  y = MatMul(h, b) }
"""
HALF = """
<ir_version: 8, opset_import: ["": 17]>
demo (float[4, 8] x) => (float[4, 2] y)
<float16[8, 6] a, float[6, 2] b> {
  x16 = Cast<to=10>(x)  h16 = MatMul(x16, a)  h = Cast<to=1>(h16)  y = MatMul(h, b)
}
"""


def save(text: str, path: Path, **weights: np.ndarray) -> Path:
    model = onnx.parser.parse_model(text)
    del model.graph.initializer[:]
    for name, value in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    onnx.save(model, path)
    return path


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path, np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(8, 6)).astype(np.float32), rng.normal(size=(6, 2)).astype(np.float32)
    before = save(FP32, tmp_path / "before.onnx", a=a, b=b)
    after = save(HALF, tmp_path / "after.onnx", a=a.astype(np.float16), b=b)
    x = rng.normal(size=(4, 8)).astype(np.float32)
    return before, after, x


def test_share_counts_the_operator_that_runs_in_fp16(pair: tuple[Path, Path, np.ndarray]) -> None:
    before, after, x = pair
    # 4*8*6 = 192 MACs in FP16 of 192 + 4*6*2 = 240.
    assert fp16_macs_share(before, after, {"x": x}) == pytest.approx(0.8)
    assert fp16_macs_share(before, before, {"x": x}) == 0.0
    assert casts_added(before, after) == 2


def test_error_is_that_of_rounding_every_fp16_tensor(pair: tuple[Path, Path, np.ndarray]) -> None:
    before, after, x = pair
    (a, b) = (onnx.numpy_helper.to_array(t) for t in onnx.load(before).graph.initializer)
    half = (x.astype(np.float16).astype(np.float32) @ a.astype(np.float16).astype(np.float32)).astype(
        np.float16
    )
    want = half.astype(np.float32) @ b
    expected = np.linalg.norm(want - x @ a @ b) / np.linalg.norm(x @ a @ b)
    error, fine = honest_errors(before, after, [{"x": x}])
    assert error == pytest.approx(expected, rel=0.02)  # FP32 sums in another order
    assert fine


def test_overflow_counts_as_infinite_error(pair: tuple[Path, Path, np.ndarray]) -> None:
    before, after, x = pair
    error, fine = honest_errors(before, after, [{"x": x * np.float32(1e6)}])
    assert math.isinf(error)
    assert not fine


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: speech(8000, seed),
        lambda seed: scene(32, 48, seed),
        lambda seed: page(96, 128, seed),
        lambda seed: text_line(48, 128, seed),
        lambda seed: face(48, seed),
    ],
    ids=["speech", "scene", "page", "text_line", "face"],
)
def test_data_is_reproducible_and_differs_by_seed(make) -> None:
    first, again, other = make(1), make(1), make(2)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.all(np.isfinite(first))
    assert first.std() > 0
