"""BatchNormalizations whose statistics leave FP16's range, written as Mul and Add."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import fp16conv
from fp16conv.conversion.onnx import convert
from fp16conv.errors import ConversionError, PlanError, UsageError
from fp16conv.execution.emulator import emulate_model, emulate_plan
from fp16conv.execution.runtime import Runtime
from fp16conv.execution.switches import SWITCHES, emulate_switched
from fp16conv.frontends.onnx import load_onnx
from fp16conv.graph import DataType, Origin, RangeFact
from fp16conv.planning.serialize import bind_plan, dump_plan, parse_plan
from fp16conv.rulebook.folding import fits_fp16, fold_batch_norm

MODEL = """<ir_version: {ir}, opset_import: ["" : {opset}]>
g (float[1,4,6,6] x) => (float[1,4,6,6] y)
<float[4,4,1,1] w = {{1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}}, float[4] s = {{1, 2, 3, 4}},
 float[4] b = {{0.5, -1, 2, 0}}, float[4] m = {{100, 200, -300, 0}}, float[4] v = {{{variance}}}> {{
  c = Conv(x, w)
  [norm] d = BatchNormalization(c, s, b, m, v)
  y = Conv(d, w)
}}"""
LARGE = "1e7, 9.8e7, 2e6, 3e5"
RANGES = {"x": (-9000.0, 9000.0)}
FOLD = ("fold-batchnorm",)


def _write(folder: Path, variance: str = LARGE, opset: int = 12, text: str = MODEL) -> Path:
    path = folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(text.format(ir=8, opset=opset, variance=variance)), path)
    return path


@pytest.mark.parametrize("opset", [9, 14, 15, 21])
def test_folded_norm_computes_the_same_in_fp16(tmp_path: Path, opset: int) -> None:
    source, output = _write(tmp_path, opset=opset), tmp_path / "o.onnx"
    report = fp16conv.convert(source, output, input_ranges=RANGES, repairs=FOLD, provider="emulated")
    assert report.ok
    assert report.decisions.folded == 1
    model = onnx.load(output)
    kinds = [n.op_type for n in model.graph.node if n.op_type not in ("Cast", "Constant")]
    assert kinds == ["Conv", "Mul", "Add", "Conv"]
    assert sum(n.op_type == "Cast" for n in model.graph.node) == 2
    assert [n.name for n in model.graph.node if n.op_type == "Add"] == ["norm"]
    assert [i.name for i in model.graph.initializer] == ["w"]
    x = np.random.default_rng(0).uniform(-9000, 9000, (1, 4, 6, 6)).astype(np.float32)
    with Runtime() as runtime:  # onnx's reference takes batch statistics at opset 9
        expected = runtime.run(runtime.load(source), {"x": x})["y"]
    (computed,) = ReferenceEvaluator(model).run(None, {"x": x})
    # x, factor, product and sum are each rounded by 2^-11; products reach 9000 * 4 / sqrt(3e5) = 66
    np.testing.assert_allclose(computed, expected, rtol=0, atol=66 * 4 * 2.0**-11)


def test_off_unless_asked(tmp_path: Path) -> None:
    source = _write(tmp_path)
    assert fp16conv.plan(source, input_ranges=RANGES).folded == {}
    plan = fp16conv.plan(source, input_ranges=RANGES, repairs=FOLD)
    (reason,) = plan.folded.values()
    assert reason.rule == "fold-batchnorm"
    assert "9.8e+07" in reason.text
    (norm,) = [d for d in plan.decisions if d.label == "norm"]
    assert norm.dtype is DataType.FLOAT16
    assert norm.reasons[0] == reason


def test_statistics_that_fit_are_left_alone(tmp_path: Path) -> None:
    plan = fp16conv.plan(_write(tmp_path, "1, 2, 3, 4"), repairs=FOLD)
    assert plan.folded == {}


@pytest.mark.parametrize(
    ("variance", "why"),
    [("1e13, 1, 1, 1", "factor is subnormal"), ("9.8e7, 1e-9, 1, 1", "product or shift overflows")],
)
def test_what_would_not_fit_stays_fp32(tmp_path: Path, variance: str, why: str) -> None:
    plan = fp16conv.plan(_write(tmp_path, variance), input_ranges=RANGES, repairs=FOLD)
    assert plan.folded == {}, why
    (norm,) = [d for d in plan.decisions if d.label == "norm"]
    assert norm.dtype is DataType.FLOAT


def test_fits_looks_at_the_product(tmp_path: Path) -> None:
    graph = load_onnx(_write(tmp_path, "0.01, 1, 1, 1")).graph
    (norm,) = [op for op in graph.ops if op.label == "norm"]
    folded = fold_batch_norm(graph, norm)
    assert folded is not None
    np.testing.assert_allclose(
        folded.factor, np.array([1, 2, 3, 4]) / np.sqrt([0.01001, 1.00001] + [1.00001] * 2), 1e-6
    )
    assert fits_fp16(folded, RangeFact(-6000.0, 100.0, Origin.OBSERVED))
    assert not fits_fp16(folded, RangeFact(-7000.0, 100.0, Origin.OBSERVED))
    assert not fits_fp16(folded, None)


def test_statistics_that_others_read_stay(tmp_path: Path) -> None:
    text = MODEL.replace("=> (float[1,4,6,6] y)", "=> (float[1,4,6,6] y, float[4] z)")
    text = text.replace("  y = Conv", "  z = Exp(v)\n  y = Conv")
    source, output = _write(tmp_path, text=text), tmp_path / "o.onnx"
    fp16conv.convert(source, output, input_ranges=RANGES, repairs=FOLD, validate=False)
    left = {i.name: numpy_helper.to_array(i) for i in onnx.load(output).graph.initializer}
    assert left.keys() == {"w", "v"}
    assert left["v"].dtype == np.float32
    assert left["v"].max() == np.float32(9.8e7)


def test_emulations_show_the_folded_norm(tmp_path: Path) -> None:
    """Of a plan, switched, and of the converted file: they differ by the rounding of the product."""
    source = _write(tmp_path)
    loaded = load_onnx(source)
    plan = fp16conv.plan(source, input_ranges=RANGES, repairs=FOLD)
    dtypes = [plan.dtypes[t.id] for t in loaded.graph.typevars]
    x = np.random.default_rng(1).uniform(-9000, 9000, (1, 4, 6, 6)).astype(np.float32)
    switched = emulate_switched(loaded, folded=plan.folded)
    candidates = [
        (emulate_model(convert(loaded, plan)), {}),
        (emulate_plan(loaded, dtypes, folded=plan.folded), {}),
        (switched.model, {SWITCHES: switched.switches(dtypes)}),
    ]
    with Runtime() as runtime:
        file, by_plan, by_switch = (
            runtime.run(runtime.load(model), {"x": x} | more)["y"] for model, more in candidates
        )
        off = {SWITCHES: np.zeros(len(switched.slots), np.bool_)}
        exact = runtime.run(runtime.load(switched.model), {"x": x} | off)["y"]
        reference = runtime.run(runtime.load(loaded.model), {"x": x})["y"]
    np.testing.assert_array_equal(by_plan, by_switch)
    np.testing.assert_allclose(by_plan, file, rtol=0, atol=66 * 2.0**-11)  # products reach 66
    np.testing.assert_allclose(exact, reference, rtol=1e-6)


def test_plan_with_folds_survives_its_file_and_checks_them(tmp_path: Path) -> None:
    source = _write(tmp_path)
    graph = load_onnx(source).graph
    plan = fp16conv.plan(source, input_ranges=RANGES, repairs=FOLD)
    text = dump_plan(plan)
    assert bind_plan(parse_plan(text), graph).folded == plan.folded
    (norm,) = plan.folded
    wrong = text.replace(f'{{"op": {norm}, "reason"', f'{{"op": {norm + 1}, "reason"')
    assert wrong != text
    with pytest.raises(PlanError, match="cannot be folded"):
        bind_plan(parse_plan(wrong), graph)


def test_unknown_repair_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown repair 'fold'"):
        fp16conv.plan(_write(tmp_path), repairs="fold")


def test_profile_half_is_saved_by_folding(tmp_path: Path) -> None:
    """Its variance would be infinite, and the norm's output its bias whatever the input."""
    source = _write(tmp_path)
    words = {"input_ranges": RANGES, "profile": "half", "provider": "emulated", "repair": False}
    assert fp16conv.convert(source, tmp_path / "f.onnx", repairs=FOLD, **words).ok
    with pytest.raises(ConversionError, match="became infinite"):
        fp16conv.convert(source, tmp_path / "h.onnx", **words)


@pytest.mark.parametrize("opset", [12, 15])
def test_per_operator_knows_the_folded_norm(tmp_path: Path, opset: int) -> None:
    source, output = _write(tmp_path, opset=opset), tmp_path / "o.onnx"
    fp16conv.convert(source, output, input_ranges=RANGES, repairs=FOLD, provider="emulated")
    report = fp16conv.validate(source, output, input_ranges=RANGES, provider="emulated", per_op=True)
    assert report.per_operator is not None
    shares = {found.op: found.share for found in report.per_operator.operators}
    assert 0.1 < shares["norm"] < 0.95  # about as its neighbours; an infinite variance would be all
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-6)


def test_masks_saturate_in_profile_half_if_asked(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 13]>
    g (float[4] x) => (float[4] y) <float lo = {{-3.4e38}}> {{ y = Clip(x, lo) }}"""
    source = _write(tmp_path, text=text)
    assert not fp16conv.plan(source, profile="half").saturated
    assert len(fp16conv.plan(source, profile="half", repairs="saturate").saturated) == 1
