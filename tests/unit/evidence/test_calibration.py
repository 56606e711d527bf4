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


BRANCHES = """<ir_version: 9, opset_import: ["" : 18]>
g (bool c, float[2] x) => (float[2] y) {
    r = Relu(x)
    y = If (c) <
        then_branch = t () => (float[2] u) { u = Exp(r) },
        else_branch = e () => (float[2] v) { w = Log(r) v = Neg(w) }
    >
}"""


def test_branches_no_batch_takes_are_judged_by_what_they_would_compute(tmp_path: Path) -> None:
    loaded = load(tmp_path, BRANCHES)
    x = np.array([0.0, 4.0], np.float32)
    with Runtime(threads=1) as runtime:
        calibration = calibrate(loaded, runtime, feeds({"c": np.array(True), "x": x}))
    assert {loaded.graph.values[v].name for v in calibration.untaken} == {"v", "w"}
    facts, shapes = by_name(loaded, calibration, "facts"), by_name(loaded, calibration, "shapes")
    assert calibration.unobserved == ()
    assert (facts["u"].lo, facts["u"].hi) == pytest.approx((1.0, np.exp(4)), rel=1e-6)
    assert facts["w"].lo == -np.inf  # log 0, in the branch only: the model's own output stays finite
    assert facts["y"].max_abs == facts["u"].max_abs
    assert shapes["w"] == (2,)


def test_a_branch_that_some_batch_takes_is_judged_by_those_batches(tmp_path: Path) -> None:
    loaded = load(tmp_path, BRANCHES)
    batches = (
        {"c": np.array(True), "x": np.array([0.0, 4.0], np.float32)},
        {"c": np.array(False), "x": np.array([1.0, 2.0], np.float32)},
    )
    with Runtime(threads=1) as runtime:
        calibration = calibrate(loaded, runtime, feeds(*batches))
    facts = by_name(loaded, calibration, "facts")
    assert calibration.untaken == ()
    assert (facts["w"].lo, facts["w"].hi) == pytest.approx((0.0, np.log(2)), rel=1e-6)
    assert facts["u"].hi == pytest.approx(np.exp(4), rel=1e-6)


def test_what_a_failing_branch_moves_is_known_from_outside(tmp_path: Path) -> None:
    """The idiom of exporters: Squeeze where the axis has length 1, which fails where it has not."""
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (bool c, float[N] x) => (float[M] y) {
        axes = Constant<value_ints = [0]>()
        r = Mul(x, x)
        y = If (c) <
            then_branch = t () => (float[K] u) { u = Squeeze(r, axes) },
            else_branch = e () => (float[K] v) { v = Identity(r) }
        >
    }"""
    loaded = load(tmp_path, text)
    with Runtime(threads=1) as runtime:
        calibration = calibrate(
            loaded, runtime, feeds({"c": np.array(False), "x": np.array([1, 3], np.float32)})
        )
    facts = by_name(loaded, calibration, "facts")
    assert facts["u"] == facts["v"] == facts["r"]
    assert calibration.unobserved == ()


def test_inputs_that_do_not_fit_are_the_runtimes_finding(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    wrong = {"x": np.ones((2, 3), np.float32), "i": np.array([0], np.int64)}
    with Runtime(threads=1) as runtime, pytest.raises(RuntimeFailure):
        calibrate(loaded, runtime, feeds(wrong))
