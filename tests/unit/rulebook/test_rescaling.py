"""Products that overflow, computed at a power of two of their size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import fp16conv
from fp16conv.conversion.onnx import convert
from fp16conv.errors import PlanError
from fp16conv.execution.emulator import emulate_model, emulate_plan
from fp16conv.execution.runtime import Runtime
from fp16conv.execution.switches import SWITCHES, emulate_switched
from fp16conv.frontends.onnx import load_onnx
from fp16conv.graph import DataType
from fp16conv.planning.serialize import bind_plan, dump_plan, parse_plan
from fp16conv.rulebook.rescaling import exponents_of, find_region, fits_rescaled

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[8,64] x) => (float[8,32] y) <float[64,48] w, float[48] b, float[48] s, float[48,32] v> {
  [product] p = MatMul(x, w)
  [bias] q = Add(p, b)
  [act] r = Relu(q)
  [norm] n = LayerNormalization(r, s)
  [last] y = MatMul(n, v)
}"""
RANGES = {"x": (-30.0, 30.0)}
RESCALE = ("rescale",)


def _write(folder: Path, text: str = MODEL, scale: float = 500.0) -> Path:
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((64, 48)) * scale,
        "b": rng.standard_normal(48),
        "s": np.ones(48),
        "v": rng.standard_normal((48, 32)) / 7,
    }
    if "(x, w, b)" in text:
        arrays["w"] = rng.standard_normal((48, 64, 3, 3)) * scale / 3
        arrays["v"] = rng.standard_normal((48, 48, 1, 1))
        arrays["a"] = np.array(1e-4)
    del model.graph.initializer[:]
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    path = folder / "m.onnx"
    onnx.save(model, path)
    return path


def _feed(shape: tuple[int, ...] = (8, 64)) -> dict[str, npt.NDArray[np.float32]]:
    return {"x": np.random.default_rng(1).uniform(-30, 30, shape).astype(np.float32)}


def _precisions(plan: fp16conv.PrecisionPlan) -> dict[str, DataType]:
    return {d.label: d.dtype for d in plan.decisions if d.op is not None}


def test_overflowing_product_runs_in_fp16(tmp_path: Path) -> None:
    source, output = _write(tmp_path), tmp_path / "o.onnx"
    without = fp16conv.plan(source, input_ranges=RANGES)
    assert without.rescaled == {}
    assert _precisions(without)["product"] is DataType.FLOAT
    plan = fp16conv.plan(source, input_ranges=RANGES, repairs=RESCALE)
    (reason,) = plan.rescaled.values()
    assert reason.rule == "rescale"
    assert 65504 / 2 < reason.numbers["measured"] / 2 ** reason.numbers["exponent"] <= 65504
    found = _precisions(plan)
    assert [found[name] for name in ("product", "bias", "act", "last")] == [DataType.FLOAT16] * 4
    assert plan.predicted["macs_fp16_share"] == 1.0
    report = fp16conv.convert(source, output, input_ranges=RANGES, repairs=RESCALE, provider="emulated")
    assert report.ok
    assert report.validation is not None
    (compared,) = report.validation.backends[0].outputs
    assert 0 < (compared.rel_l2 or 0) < 2e-3  # five roundings of 2^-11
    kinds = [n.op_type for n in onnx.load(output).graph.node if n.op_type != "Constant"]
    assert kinds[:6] == ["Cast", "MatMul", "Add", "Relu", "Cast", "Mul"]
    onnx.checker.check_model(onnx.load(output), full_check=True)


CONV = """<ir_version: 8, opset_import: ["" : 13]>
g (float[1,64,8,8] x) => (float[1,48,3,3] y)
<float[48,64,3,3] w, float[48] b, float[48,48,1,1] v, float a> {
  [product] p = Conv <pads = [1,1,1,1]> (x, w, b)
  [act] q = LeakyRelu <alpha = 0.1> (p)
  [pool] r = MaxPool <kernel_shape = [2,2], strides = [2,2]> (q)
  [mean] m = AveragePool <kernel_shape = [2,2]> (r)
  [scale] n = Mul(m, a)
  [root] o = Abs(m)
  [last] c = Conv(n, v)
  [scaled] t = Mul(o, a)
  [sum] y = Add(c, t)
}"""


@pytest.mark.parametrize(
    ("text", "edits"),
    [
        (MODEL, {}),
        (MODEL, {"norm": DataType.FLOAT16}),  # reads infinities
        (MODEL, {"act": DataType.FLOAT}),
        (MODEL, {"product": DataType.FLOAT, "bias": DataType.FLOAT, "act": DataType.FLOAT}),
        (CONV, {}),
        (CONV, {"scale": DataType.FLOAT16}),
        (CONV, {"scale": DataType.FLOAT16, "root": DataType.FLOAT16}),
    ],
)
def test_emulations_agree_bit_for_bit(tmp_path: Path, text: str, edits: dict[str, DataType]) -> None:
    source = _write(tmp_path, text)
    loaded = load_onnx(source)
    plan = fp16conv.plan(source, input_ranges=RANGES, repairs=RESCALE)
    assert len(plan.rescaled) == 1
    decisions = tuple(replace(d, dtype=edits.get(d.label, d.dtype)) for d in plan.decisions)
    plan = bind_plan(replace(plan, decisions=decisions), loaded.graph)
    dtypes = [plan.dtypes[t.id] for t in loaded.graph.typevars]
    rescaled = exponents_of(plan.rescaled)
    feed = _feed((8, 64) if text is MODEL else (1, 64, 8, 8))
    switched = emulate_switched(loaded, rescaled=rescaled)
    candidates = [
        (emulate_model(convert(loaded, plan)), {}),
        (emulate_plan(loaded, dtypes, rescaled=rescaled), {}),
        (switched.model, {SWITCHES: switched.switches(dtypes)}),
    ]
    with Runtime() as runtime:
        file, by_plan, by_switch = (
            runtime.run(runtime.load(model), feed | more)["y"] for model, more in candidates
        )
        off = {SWITCHES: np.zeros(len(switched.slots), np.bool_)}
        exact = runtime.run(runtime.load(switched.model), feed | off)["y"]
        reference = runtime.run(runtime.load(loaded.model), feed)["y"]
    assert np.isfinite(file).all() == (DataType.FLOAT16 not in edits.values())
    np.testing.assert_array_equal(by_plan, file)
    np.testing.assert_array_equal(by_switch, file)
    np.testing.assert_allclose(exact, reference, rtol=0, atol=1e-4)  # FP32 sums in another order reach 75


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(float[8,32] y)", "(float[8,32] y, float[8,48] p)"),
        ("[act] r = Relu(q)", "[act] r = Add(q, q)\n"),
    ],
)
def test_only_regions_that_operators_read(tmp_path: Path, old: str, new: str) -> None:
    """A result that the graph gives out stays as it is; other operators end the region, they do not join."""
    plan = fp16conv.plan(_write(tmp_path, MODEL.replace(old, new)), input_ranges=RANGES, repairs=RESCALE)
    assert _precisions(plan)["act"] is DataType.FLOAT
    assert len(plan.rescaled) == ("Relu" not in new and "y, " not in new)


def test_products_that_fit_are_left_alone(tmp_path: Path) -> None:
    plan = fp16conv.plan(_write(tmp_path, scale=1.0), input_ranges=RANGES, repairs=RESCALE)
    assert plan.rescaled == {}


def test_weights_that_would_become_subnormal_do_not_fit() -> None:
    normal = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    assert fits_rescaled(normal, 4)
    assert not fits_rescaled(normal, 18)
    assert not fits_rescaled(normal * 1e6, 3)


def test_plan_file_keeps_and_checks_exponents(tmp_path: Path) -> None:
    source = _write(tmp_path)
    graph = load_onnx(source).graph
    text = dump_plan(fp16conv.plan(source, input_ranges=RANGES, repairs=RESCALE))
    assert len(bind_plan(parse_plan(text), graph).rescaled) == 1
    (op,) = parse_plan(text).rescaled
    wrong = text.replace(f'{{"op": {op}, "reason"', f'{{"op": {op + 1}, "reason"')
    with pytest.raises(PlanError, match="cannot be rescaled"):
        bind_plan(parse_plan(wrong), graph)


def test_per_operator_knows_the_scale(tmp_path: Path) -> None:
    source, output = _write(tmp_path), tmp_path / "o.onnx"
    fp16conv.convert(source, output, input_ranges=RANGES, repairs=RESCALE, provider="emulated")
    report = fp16conv.validate(source, output, input_ranges=RANGES, provider="emulated", per_op=True)
    assert report.per_operator is not None
    shares = {found.op: found.share for found in report.per_operator.operators}
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-6)
    assert max(shares.values()) < 0.9


@pytest.mark.parametrize(("opset", "operators"), [(6, 0), (7, 4)])
def test_region_needs_a_mul_that_broadcasts(tmp_path: Path, opset: int, operators: int) -> None:
    graph = load_onnx(_write(tmp_path, CONV.replace(": 13]", f": {opset}]"))).graph
    region = find_region(graph, graph.ops[0])
    assert (0 if region is None else len(region.ops)) == operators
