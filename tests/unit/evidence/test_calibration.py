"""Observed ranges against the numbers numpy gets for the same model."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from fp16conv import half
from fp16conv.evidence.calibration import Calibration, calibrate
from fp16conv.execution.failures import RuntimeFailure
from fp16conv.execution.feeds import Batch, FeedSource
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from fp16conv.graph import Origin

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[N,2] x, int64[K] i) => (float[K,2] y) {
    k = Constant<value = float {300.0}>()
    a = Mul(x, k)
    s = Shape(a)
    b = Mul(a, a)
    y = Gather(b, i)
}"""

FIRST = {"x": np.array([[1.0, 0.0], [-2.0, 0.5]], np.float32), "i": np.array([0], np.int64)}
SECOND = {
    "x": np.array([[1e-6, 3.0], [np.nan, 4.0], [1.0, 1.0]], np.float32),
    "i": np.array([1, 1], np.int64),
}


def feeds(*items: Batch, origin: Any = "real") -> FeedSource:
    return FeedSource(origin, "given in the test", tuple(partial(dict, item) for item in items))


def load(folder: Path, text: str = TEXT) -> LoadedModel:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return load_onnx(path)


def by_name(loaded: LoadedModel, calibration: Calibration, table: str) -> dict[str, Any]:
    return {loaded.graph.values[v].name: fact for v, fact in getattr(calibration, table).items()}


@pytest.fixture
def observed(tmp_path: Path) -> tuple[LoadedModel, Calibration]:
    loaded = load(tmp_path)
    with Runtime(threads=1) as runtime:
        return loaded, calibrate(loaded, runtime, feeds(FIRST, SECOND))


def test_ranges_merge_over_batches(observed: tuple[LoadedModel, Calibration]) -> None:
    loaded, calibration = observed
    facts = by_name(loaded, calibration, "facts")
    assert calibration.batches == 2
    assert set(facts) == {"x", "a", "b", "y"}  # no constants, no integers
    a = facts["a"]
    numbers = np.concatenate([FIRST["x"].ravel(), SECOND["x"].ravel()]) * np.float32(300)
    assert (a.lo, a.hi, a.has_nan) == (np.nanmin(numbers), np.nanmax(numbers), True)
    assert a.min_abs_nonzero == np.float32(1e-6) * np.float32(300)
    assert a.origin is Origin.OBSERVED
    finite = numbers[np.isfinite(numbers)].astype(np.float64)
    assert a.rms == pytest.approx(np.sqrt(np.mean(finite**2)), rel=1e-6)  # float32 products
    b = facts["b"]
    assert b.share_overflow == pytest.approx(np.mean(np.abs(numbers**2) >= half.OVERFLOW))


def test_histograms_and_shapes(observed: tuple[LoadedModel, Calibration]) -> None:
    loaded, calibration = observed
    histograms = by_name(loaded, calibration, "histograms")
    both = np.concatenate([FIRST["x"].ravel(), SECOND["x"].ravel()])
    np.testing.assert_array_equal(histograms["x"], half.exponent_histogram(both))
    shapes = by_name(loaded, calibration, "shapes")
    assert shapes["a"] == (3, 2)  # the larger batch
    assert shapes["s"] == (2,)
    assert shapes["i"] == (2,)
    assert calibration.unobserved == ()


def test_made_up_inputs_are_called_that(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    with Runtime(threads=1) as runtime:
        calibration = calibrate(loaded, runtime, feeds(FIRST, origin="synthetic"))
    assert {f.origin for f in calibration.facts.values()} == {Origin.SYNTHETIC}
    assert calibration.origin is Origin.SYNTHETIC


def test_a_small_memory_limit_changes_nothing(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    with Runtime(threads=1) as runtime:
        whole = calibrate(loaded, runtime, feeds(FIRST, SECOND))
        pieces = calibrate(loaded, runtime, feeds(FIRST, SECOND), memory_limit=1)
    assert pieces.facts == whole.facts
    assert pieces.shapes == whole.shapes


def test_what_no_batch_reached_is_listed(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (bool c, float[2] x) => (float[2] y) {
        r = Relu(x)
        y = If (c) <
            then_branch = t () => (float[2] u) { u = Exp(r) },
            else_branch = e () => (float[2] v) { v = Neg(r) }
        >
    }"""
    loaded = load(tmp_path, text)
    with Runtime(threads=1) as runtime:
        calibration = calibrate(loaded, runtime, feeds({"c": np.array(True), "x": np.ones(2, np.float32)}))
    assert {loaded.graph.values[v].name for v in calibration.unobserved} == {"u", "v"}
    assert "r" in by_name(loaded, calibration, "facts")


def test_inputs_that_do_not_fit_are_the_runtimes_finding(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    wrong = {"x": np.ones((2, 3), np.float32), "i": np.array([0], np.int64)}
    with Runtime(threads=1) as runtime, pytest.raises(RuntimeFailure):
        calibrate(loaded, runtime, feeds(wrong))
