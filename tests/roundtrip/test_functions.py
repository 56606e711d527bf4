"""Local functions stay functions, whatever their calls ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from fp16conv.conversion.onnx import convert
from fp16conv.conversion.save import serialize
from fp16conv.conversion.verify import verify
from fp16conv.execution.emulator import emulate_model
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends import specialization
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from fp16conv.graph import DataType
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.rulebook.book import load_book
from fp16conv.rulebook.judge import judge
from fp16conv.rulebook.types import Verdict
from tests.roundtrip.plans import all_fp16, make_plan

BODY = """
<domain: "l", opset_import: ["": 21]>
f (u) => (v) { [t] t = Tanh(u) [p] v = Mul(t, u) }
"""
WEIGHT = "<float[4,4] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}>"


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


def load(text: str, tmp_path: Path) -> LoadedModel:
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "l": 1]> {text}{BODY}')
    onnx.save(proto, tmp_path / "model.onnx")
    return load_onnx(tmp_path / "model.onnx")


def check(loaded: LoadedModel, plan: PrecisionPlan, tmp_path: Path, runtime: Runtime) -> onnx.ModelProto:
    """Valid, the function still there, and results as close as four roundings allow."""
    proto = serialize(convert(loaded, plan), loaded)
    path = tmp_path / "result.onnx"
    onnx.save(proto, path)
    assert not verify(path, loaded, plan)
    assert [(f.domain, f.name, f.overload) for f in proto.functions][:1] == [("l", "f", "")]
    feeds = {
        i.name: np.linspace(-1, 1, 4, dtype="f8" if i.type.tensor_type.elem_type == 11 else "f4")
        for i in proto.graph.input
    }
    before = runtime.run(runtime.load(loaded.path), feeds)
    after = runtime.run(runtime.load(emulate_model(load_onnx(path).model)), feeds)
    for name, expected in before.items():
        np.testing.assert_allclose(after[name], expected, atol=np.e * 4 * 2.0**-11, rtol=0, err_msg=name)
    return proto


TWO_NEEDS = f"""g (float[4] x) => (float[4] y, float[4] z) {WEIGHT} {{
  [friendly] a = MatMul(x, w)
  [one] y = l.f(a)
  [critical] b = Exp(x)
  [two] z = l.f(b)
}}"""


@pytest.mark.parametrize("body", [True, False])
def test_one_precision_serves_calls_that_need_both(tmp_path: Path, runtime: Runtime, body: bool) -> None:
    loaded = load(TWO_NEEDS, tmp_path)
    graph = loaded.graph

    def choose(tv: object) -> bool:
        op = tv.op  # type: ignore[attr-defined]
        in_function = tv.scope != 0  # type: ignore[attr-defined]
        return body if in_function else op is not None and graph.ops[op].label == "friendly"

    proto = check(loaded, make_plan(graph, choose), tmp_path, runtime)
    casts = [(n.input[0], n.output[0]) for n in proto.graph.node if n.op_type == "Cast"]
    if body:
        assert casts == [("x", "x__fp16"), ("y__fp16", "y"), ("b", "b__fp16"), ("z__fp16", "z")]
    else:
        assert casts == [("x", "x__fp16"), ("a", "a__fp32")]


SEVERAL_TYPES = f"""g (float[4] x, double[4] d) => (float[4] y, double[4] z) {WEIGHT} {{
  a = MatMul(x, w)
  [one] y = l.f(a)
  [two] z = l.f(d)
}}"""


def test_a_function_called_with_several_types_is_specialized(tmp_path: Path, runtime: Runtime) -> None:
    loaded = load(SEVERAL_TYPES, tmp_path)
    proto = check(loaded, all_fp16(loaded.graph), tmp_path, runtime)
    assert [f.name for f in proto.functions] == ["f", "f__double"]
    assert [n.op_type for n in proto.graph.node] == ["Cast", "MatMul", "f", "Cast", "f__double"]


def test_a_function_that_cannot_be_specialized_keeps_its_types(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(specialization, "MAX_COPIES", 0)
    loaded = load(SEVERAL_TYPES, tmp_path)
    plan = all_fp16(loaded.graph)
    assert [n.op_type for n in serialize(convert(loaded, plan), loaded).graph.node][2:] == ["Cast", "f", "f"]
    verdicts = judge(loaded.graph, load_book(), {}, profile="half")
    inside = [j for tv, j in zip(loaded.graph.typevars, verdicts.judgements, strict=True) if tv.scope]
    assert {(j.verdict, j.reasons[0].rule) for j in inside} == {(Verdict.NEVER, "function-of-several-types")}
    assert "called with several types" in inside[0].reasons[0].text


def test_a_function_nobody_calls_stays_as_it_is(tmp_path: Path, runtime: Runtime) -> None:
    loaded = load(f"g (float[4] x) => (float[4] y) {WEIGHT} {{ y = MatMul(x, w) }}", tmp_path)
    proto = check(loaded, all_fp16(loaded.graph), tmp_path, runtime)
    assert proto.functions[0].node[0].input == ["u"]
    assert DataType.FLOAT16 not in {v.dtype for v in loaded.graph.values}
