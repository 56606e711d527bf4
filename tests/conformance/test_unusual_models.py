"""Valid models that no exporter writes today: every verb takes them, and what it gives is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.parser
import pytest

from fp16conv import api
from fp16conv.errors import ModelError
from fp16conv.reporting.report import AnalyzeReport, ConvertReport

EYE = "<float[4,4] w = {1,2,0,0, 0,1,0,3, 0,0,1,0, 4,0,0,1}>"
X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)

FUNCTIONS = {
    # A cast or a rounding of `low` inside would have nothing to read in the first call.
    "parameter that a call leaves out": """
        g (float[2,4] x) => (float[2,4] y) {W} {
          a = l.F(x,,w) e = ReduceMin<keepdims=0>(x) b = l.F(a,e,w) y = Add(a,b) }
        <domain: "l", opset_import: ["": 18]>
        F (x, low, w) => (o) { m = MatMul(x,w) c = Clip(m,low) o = Sigmoid(c) }""",
    "parameter that a call leaves out and its function hands on": """
        g (float[2,4] x) => (float[2,4] y) {W} { y = l.F(x,,w) }
        <domain: "l", opset_import: ["": 18, "l": 1]>
        F (x, low, w) => (o) { m = MatMul(x,w) o = l.C(m,low) }
        <domain: "l", opset_import: ["": 18]>
        C (x, low) => (o) { p = Clip(x,low) o = Mul(p,p) }""",
    "result that a call leaves out": """
        g (float[2,4] x) => (float[2,4] y) {W} { a, , b = l.F(x,w) y = Add(a,b) }
        <domain: "l", opset_import: ["": 18]>
        F (x, w) => (o, p, q) { o = MatMul(x,w) p = Exp(o) q = Add(p,o) }""",
    # Versions may differ where the operators are the same.
    "function of another opset": """
        g (float[2,4] x, bool c) => (float[2,4] y) {W} {
          y = If (c) <then_branch = t () => (float[2,4] t1) { t1 = l.G(x,w) },
                      else_branch = e () => (float[2,4] e1) { q = l.F(x) e1 = MatMul(q,w) }> }
        <domain: "l", opset_import: ["": 17, "l": 1]>
        G (x, w) => (o) { m = MatMul(x,w) o = l.F(m) }
        <domain: "l", opset_import: ["": 16]>
        F (x) => (o) { s = Sigmoid(x) o = Sub(x,s) }""",
    # Inlined, the first `m` is in the main graph, where the branches have theirs.
    "names of a function in branches too": """
        g (float[2,4] x, bool c) => (float[2,4] y) {W} {
          a = l.F(x,w)
          y = If (c) <then_branch = t () => (float[2,4] t1) { m = Exp(a) t1 = MatMul(m,w) },
                      else_branch = e () => (float[2,4] e1) { m = l.F(a,w) e1 = Relu(m) }> }
        <domain: "l", opset_import: ["": 18]>
        F (x, w) => (o) { m = MatMul(x,w) o = Tanh(m) }""",
}

# The same mask as exporters write it: one number, its shape known or not.
FILLS = {
    "constant": ("<float low = {-1e9}>", "f = Where(b,s,low)"),
    "FP16's own": ("<float low = {-65504}>", "f = Where(b,s,low)"),
    "expanded": ("<float low = {-3.4e38}>", "n = Shape(s) m = Expand(low,n) f = Where(b,s,m)"),
    "filled": ("", "n = Shape(s) m = ConstantOfShape<value = float[1] {-3.4e38}>(n) f = Where(b,s,m)"),
    "filled, in parts": (
        "<int64[1] n = {2}, int64[2,2] at = {0,1,1,0}>",
        "m = ConstantOfShape<value = float[1] {-1e9}>(n) f = ScatterND(s,at,m)",
    ),
}


def write(text: str, folder: Path, **feeds: np.ndarray) -> dict[str, str]:
    """The model and its batch, as the keywords of a verb."""
    head = '<ir_version: 10, opset_import: ["": 18, "l": 1]>'
    proto = onnx.parser.parse_model(head + text.replace("{W}", EYE))
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, folder / "model.onnx")
    np.savez(folder / "batch.npz", **feeds)
    return {"model": str(folder / "model.onnx"), "data": str(folder / "batch.npz")}


def convert(words: dict[str, str], folder: Path, **options: object) -> ConvertReport:
    report = api.convert(output=folder / "out.onnx", provider="emulated", **words, **options)
    assert report.ok, report.findings
    assert not report.repairs
    return report


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, tmp_path: Path) -> None:
    feeds = {"x": X} | ({"c": np.array(True)} if "bool c" in FUNCTIONS[name] else {})
    words = write(FUNCTIONS[name], tmp_path, **feeds)
    for profile in ("balanced", "half"):
        report = convert(words, tmp_path, profile=profile, rtol=5e-3)
        assert report.decisions.casts > 0
        assert len(onnx.load(tmp_path / "out.onnx").functions) >= len(onnx.load(words["model"]).functions)
    analysis: AnalyzeReport = api.analyze(**words, details=True)
    assert analysis.details is not None
    assert analysis.details.error_note  # errors were measured, by the emulator of plans


def test_a_function_that_shadows_an_operator_is_refused(tmp_path: Path) -> None:
    """ONNX means the function, ONNX Runtime runs the operator."""
    text = """
        g (float[2,4] x) => (float[2,4] y) {W} { a = MatMul(x,w) y = Relu(a) }
        <domain: "", opset_import: ["": 18]>
        Relu (x) => (o) { o = Tanh(x) }"""
    with pytest.raises(ModelError, match="ONNX's operator Relu"):
        api.load(write(text, tmp_path, x=X)["model"])


def test_an_input_with_a_default_is_fed_to_both_models(tmp_path: Path) -> None:
    text = "g (float[2,4] x, float[4,4] w) => (float[2,4] y) {W} { y = MatMul(x,w) }"
    words = write(text, tmp_path, x=X, w=np.full((4, 4), 30.0, np.float32))
    report = convert(words, tmp_path, rtol=5e-3)
    assert report.decisions.macs_share == 1.0
    assert api.validate(words["model"], tmp_path / "out.onnx", data=words["data"], rtol=5e-3).ok


@pytest.mark.parametrize("name", FILLS)
def test_a_fill_that_acts_as_infinity_stays_in_fp16(name: str, tmp_path: Path) -> None:
    """It only has to lose against every score: as -65504 it does, and neither range nor exactness matter."""
    weights, mask = FILLS[name]
    text = f"""g (float[N,4] x, float[4,N] z, bool[N,N] b) => (float[N,N] y) {weights} {{
        s = MatMul(x,z) {mask} y = Softmax(f) }}"""
    words = write(text, tmp_path, x=X, z=X.T.copy(), b=np.array([[True, False], [False, False]]))
    report = convert(words, tmp_path, rtol=5e-3, details=True)
    assert report.details is not None
    precisions = {op.op_type: op.precision for op in report.details.operators}
    assert {
        precisions[t] for t in ("Where", "Expand", "ConstantOfShape", "ScatterND") if t in precisions
    } == {"fp16"}


def test_a_large_fill_that_is_a_number_stays_in_fp32(tmp_path: Path) -> None:
    text = """g (float[2,4] x, float[N] z) => (float[2,4] y, float[N] v) {W} {
        m = MatMul(x,w) n = Shape(m) f = ConstantOfShape<value = float[1] {1e6}>(n) p = Mul(m,f) y = Div(p,f)
        k = Shape(z) g = ConstantOfShape<value = float[1] {1e6}>(k) v = Div(z,g) }"""
    words = write(text, tmp_path, x=X, z=np.ones(3, np.float32))
    report = convert(words, tmp_path, rtol=5e-3, details=True)
    assert report.details is not None
    assert {op.precision for op in report.details.operators if op.op_type in ("ConstantOfShape", "Div")} == {
        "fp32"
    }


def test_stale_shapes_hide_no_range(tmp_path: Path) -> None:
    """ONNX Runtime takes such a model with a warning, but not where the value becomes an output."""
    text = "g (float[N,4] x) => (float[N,4] y) {W} { a = MatMul(x,w) b = Exp(a) y = MatMul(b,w) }"
    words = write(text, tmp_path, x=X)
    proto = onnx.load(words["model"])
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [7, 7]))
    onnx.save(proto, words["model"])
    report = api.convert(output=tmp_path / "out.onnx", provider="emulated", details=True, **words)
    assert report.details is not None
    assert "not-observed" not in {finding.rule for finding in report.findings}
    assert report.details.operators[0].outputs[0].origin == "observed"
