from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from fp16conv.execution.emulator import emulate_model, emulate_plan, emulation_notes
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import LoadedModel, from_proto
from fp16conv.graph import DataType

HEAD = '<ir_version: 9, opset_import: ["": 18]>'
TENTH = "t32 = Constant<value_float = 0.1>() t = Cast<to = 10>(t32)"
HALF_TENTH = float(np.float16(0.1))


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


def parse(text: str, head: str = HEAD) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{head} {text}")


def emulate(proto: onnx.ModelProto) -> ir.Model:
    emulated = emulate_model(ir.from_proto(proto))
    onnx.checker.check_model(ir.to_proto(emulated), full_check=True)
    return emulated


def rounded(x: object) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32).astype(np.float16)


def half_nodes(model: ir.Model) -> list[str]:
    """Operators that still compute in FP16."""
    return [
        node.op_type
        for node in model.graph.all_nodes()
        if node.op_type != "Cast" and any(v.dtype is ir.DataType.FLOAT16 for v in node.outputs)
    ]


def test_interface_keeps_types_and_names(runtime: Runtime) -> None:
    proto = parse(
        f"g (float16[n] x, float[n] z) => (float16[n] y, float[n] w) {{ {TENTH} y = Mul(x, t) w = Neg(z) }}"
    )
    session = runtime.load(emulate(proto))
    assert [(i.name, i.type) for i in session.inputs] == [("x", "tensor(float16)"), ("z", "tensor(float)")]
    assert [(o.name, o.type) for o in session.outputs] == [("y", "tensor(float16)"), ("w", "tensor(float)")]


def test_intermediate_values_keep_their_names_and_are_rounded() -> None:
    emulated = emulate(parse(f"g (float16[n] x) => (float16[n] y) {{ {TENTH} p = Mul(x, t) y = Neg(p) }}"))
    values = {v.name: v for node in emulated.graph for v in node.outputs}
    producer = values["p"].producer()
    assert producer is not None
    assert producer.op_type == "Cast"
    assert values["p"].dtype is ir.DataType.FLOAT
    assert not half_nodes(emulated)


def test_the_model_given_stays_as_it_was() -> None:
    model = ir.from_proto(parse(f"g (float16[n] x) => (float16[n] y) {{ {TENTH} y = Mul(x, t) }}"))
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    emulate_model(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_same_model_same_bytes() -> None:
    model = ir.from_proto(parse(f"g (float16[n] x) => (float16[n] y) {{ {TENTH} p = Mul(x, t) y = Exp(p) }}"))
    first, second = (
        ir.to_proto(emulate_model(model)).SerializeToString(deterministic=True) for _ in range(2)
    )
    assert first == second


def test_fp32_islands_exchange_fp32(runtime: Runtime) -> None:
    """Between the two casts 1e5 survives."""
    proto = parse(
        "g (float16[2] x) => (float16[2] y) "
        "{ a = Cast<to = 1>(x) b = Mul(a, a) c = Sqrt(b) y = Cast<to = 10>(c) }"
    )
    found = runtime.run(runtime.load(emulate(proto)), {"x": np.array([1000, 300], np.float16)})["y"]
    np.testing.assert_array_equal(found, np.array([1000, 300], np.float16))


def test_bfloat16_and_double_are_left_alone(runtime: Runtime) -> None:
    proto = parse(
        "g (float16[2] x) => (double[2] y, bfloat16[2] z) "
        "{ d = Cast<to = 11>(x) y = Mul(d, d) z = Cast<to = 16>(x) }"
    )
    emulated = emulate(proto)
    types = {v.name: v.dtype for node in emulated.graph for v in node.outputs}
    assert types["y"] is ir.DataType.DOUBLE
    assert types["z"] is ir.DataType.BFLOAT16
    found = runtime.run(runtime.load(emulated), {"x": np.array([300, 0.1], np.float16)})
    np.testing.assert_array_equal(found["y"], np.array([300, np.float16(0.1)], np.float64) ** 2)


IF = """g (float16[n] x, bool c) => (float16[n] y) {
  t32 = Constant<value_float = 0.1>() t = Cast<to = 10>(t32)
  p = Mul(x, t)
  y = If(c) <
    then_branch = a () => (float16[n] u) { u = Mul(p, p) },
    else_branch = b () => (float16[n] v) { w = Add(p, x) v = Identity(w) }
  >
}"""


@pytest.mark.parametrize("taken", [True, False])
def test_branches_and_their_captures_are_rounded(taken: bool, runtime: Runtime) -> None:
    emulated = emulate(parse(IF))
    assert not half_nodes(emulated)
    x = np.array([300.0, 7.0, 3000.0], np.float16)
    found = runtime.run(runtime.load(emulated), {"x": x, "c": np.array(taken)})["y"]
    p = rounded(x.astype(np.float32) * np.float32(HALF_TENTH)).astype(np.float32)
    np.testing.assert_array_equal(found, rounded(p * p if taken else p + x))


def test_carried_values_round_in_every_iteration(runtime: Runtime) -> None:
    proto = parse(
        """g (float16[1] x, int64 n) => (float16[1] y, float16[m, 1] all) {
          c = Constant<value = bool {1}>()
          t32 = Constant<value_float = 0.1>() t = Cast<to = 10>(t32)
          y, all = Loop(n, c, x) <
            body = b (int64 i, bool k, float16[1] v) => (bool kk, float16[1] w, float16[1] s) {
              kk = Identity(k) w = Mul(v, t) s = Identity(w)
            }
          >
        }"""
    )
    emulated = emulate(proto)
    assert not half_nodes(emulated)
    x = np.array([50000.0], np.float16)
    found = runtime.run(runtime.load(emulated), {"x": x, "n": np.array(12)})
    value, expected = x, []
    for _ in range(12):
        value = rounded(value.astype(np.float32) * np.float32(HALF_TENTH))
        expected.append(value)
    np.testing.assert_array_equal(found["y"], value)
    np.testing.assert_array_equal(found["all"], np.stack(expected))


def test_local_functions_are_typed_per_call(runtime: Runtime) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18, "f": 1]>
        g (float16[2] x, float[2] z) => (float16[2] y, float[2] w) { y = f.scale(x) w = f.scale(z) }
        <domain: "f", opset_import: ["": 18]> scale (a) => (b) {
          k = Constant<value_float = 0.1>() c = CastLike(k, a) d = Mul(a, a) b = Mul(d, c)
        }"""
    )
    emulated = emulate(proto)
    assert not half_nodes(emulated)
    x = np.array([300.0, 200.0], np.float16)
    found = runtime.run(runtime.load(emulated), {"x": x, "z": x.astype(np.float32)})
    assert np.isposinf(found["y"][0])
    assert found["y"][1] == rounded(np.float32(40000) * np.float32(HALF_TENTH))
    np.testing.assert_allclose(found["w"], x.astype(np.float32) ** 2 * np.float32(0.1), rtol=1e-6)


def test_constants_attributes_and_dtype_arguments() -> None:
    proto = parse(
        "g (int64[1] shape, float16[2, 2] x)"
        " => (float16[n] a, float16[2, 2] b, float16[2] c, float16[2, 2] d) {"
        " a = ConstantOfShape<value = float16[1] {3}>(shape)"
        " b = EyeLike<dtype = 10>(x)"
        " c = RandomNormal<dtype = 10, shape = [2], seed = 1.0>()"
        " d = RandomUniformLike<dtype = 10, seed = 1.0>(x) }"
    )
    proto.graph.node[0].attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.array([0.1], np.float16)))
    emulated = emulate(proto)
    assert not half_nodes(emulated)
    with Runtime(threads=1) as runtime:
        feeds = {"shape": np.array([3]), "x": np.ones((2, 2), np.float16)}
        found = runtime.run(runtime.load(emulated), feeds)
    np.testing.assert_array_equal(found["a"], np.full(3, 0.1, np.float16))
    np.testing.assert_array_equal(found["b"], np.eye(2, dtype=np.float16))
    assert {a.dtype.name for a in found.values()} == {"float16"}


def test_weights_that_are_inputs_or_outputs_stay_fp16(runtime: Runtime) -> None:
    proto = parse("g (float16[2] x, float16[2] w) => (float16[2] y, float16[2] v) { y = Mul(x, w) }")
    for name in ("w", "v"):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0.1, 300], np.float16), name))
    proto.graph.node[0].input[1] = "w"
    proto.graph.node.append(onnx.helper.make_node("Add", ["x", "v"], ["u"]))
    session = runtime.load(emulate(proto))
    x = np.array([1, 300], np.float16)
    found = runtime.run(session, {"x": x})
    np.testing.assert_array_equal(found["v"], np.array([0.1, 300], np.float16))
    np.testing.assert_array_equal(found["y"], np.array([0.1, np.inf], np.float16))
    given = runtime.run(session, {"x": x, "w": np.array([2, 2], np.float16)})
    np.testing.assert_array_equal(given["y"], x * np.float16(2))


def test_sequences_hold_rounded_items(runtime: Runtime) -> None:
    proto = parse(
        f"g (float16[2] x) => (float16[m] y) {{ {TENTH} p = Mul(x, t) "
        "s = SequenceConstruct(p, x) y = ConcatFromSequence<axis = 0>(s) }"
    )
    emulated = emulate(proto)
    x = np.array([7, 300], np.float16)
    found = runtime.run(runtime.load(emulated), {"x": x})["y"]
    np.testing.assert_array_equal(found, np.concatenate([rounded(x.astype(np.float32) * HALF_TENTH), x]))


def test_operators_nobody_knows_stay_in_fp16_and_are_noted() -> None:
    proto = parse(
        "g (float16[2] x) => (float16[2] y) { p = Mul(x, x) q = com.example.Thing(p) y = Neg(q) }",
        '<ir_version: 9, opset_import: ["": 18, "com.example": 1]>',
    )
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("q", onnx.TensorProto.FLOAT16, [2]))
    emulated = emulate_model(ir.from_proto(proto))
    assert half_nodes(emulated) == ["Thing"]
    (thing,) = [node for node in emulated.graph if node.op_type == "Thing"]
    assert thing.inputs[0] is not None
    assert thing.inputs[0].dtype is ir.DataType.FLOAT16
    (note,) = emulation_notes(emulated)
    assert "com.example::Thing" in note


def test_contrib_operators_run_in_fp32(runtime: Runtime) -> None:
    proto = parse(
        "g (float16[1, 2, 4] x, float16[1, 2, 4] s, float16[4] gamma) => (float16[1, 2, 4] y) "
        "{ y = com.microsoft.SkipLayerNormalization<epsilon = 0.00001>(x, s, gamma) }",
        '<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]>',
    )
    emulated = emulate_model(ir.from_proto(proto))
    assert not half_nodes(emulated)
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.standard_normal(shape).astype(np.float16)
        for name, shape in (("x", (1, 2, 4)), ("s", (1, 2, 4)), ("gamma", (4,)))
    }
    found = runtime.run(runtime.load(emulated), feeds)["y"]
    v = feeds["x"].astype(np.float32) + feeds["s"].astype(np.float32)
    v -= v.mean(-1, keepdims=True)
    expected = v / np.sqrt((v * v).mean(-1, keepdims=True) + 1e-5) * feeds["gamma"].astype(np.float32)
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=2**-10, atol=1e-6)


# --- the second door


def load(text: str) -> LoadedModel:
    return from_proto(parse(text), Path("m.onnx"))


def plan(loaded: LoadedModel, *fp16: str) -> list[DataType]:
    """FLOAT16 for the type variables of the operators (by type) and interface symbols named."""
    graph = loaded.graph
    keys = [graph.ops[t.op].op_type if t.op is not None else t.symbol for t in graph.typevars]
    return [DataType.FLOAT16 if key in fp16 else DataType.FLOAT for key in keys]


CHAIN = "g (float[2] x) => (float[2] y) { p = Mul(x, x) q = Sqrt(p) y = Neg(q) }"


@pytest.mark.parametrize(
    ("fp16", "expected"),
    [
        ((), [300.1, 0.1]),  # nothing is rounded
        (("Mul",), [np.inf, None]),  # 90000 does not fit
        (("Sqrt", "Neg"), [np.inf, None]),  # nor where it is read
        (("Neg",), [300.0, None]),
        (("input:x",), [300.0, None]),
    ],
)
def test_only_what_the_plan_says_is_rounded(
    fp16: tuple[str, ...], expected: list[float | None], runtime: Runtime
) -> None:
    loaded = load(CHAIN)
    session = runtime.load(emulate_plan(loaded, plan(loaded, *fp16)))
    found = runtime.run(session, {"x": np.array([300.1, 0.1], np.float32)})["y"]
    assert found.dtype == np.float32
    for got, want in zip(found, expected, strict=True):
        if want is not None:
            assert -got == pytest.approx(want, rel=1e-6)


def test_one_rounding_pair_serves_all_fp16_readers() -> None:
    loaded = load(
        "g (float[2] x) => (float[2] y, float[2] z, float[2] w) "
        "{ p = Exp(x) y = Neg(p) z = Abs(p) w = Sqrt(p) }"
    )
    emulated = emulate_plan(loaded, plan(loaded, "Neg", "Abs"))
    casts = [node for node in emulated.graph if node.op_type == "Cast"]
    assert len(casts) == 2
    (sqrt,) = [node for node in emulated.graph if node.op_type == "Sqrt"]
    assert sqrt.inputs[0] is not None
    assert sqrt.inputs[0].name == "p"


def test_constants_round_or_saturate_only_for_fp16_readers(runtime: Runtime) -> None:
    proto = parse("g (float[1] x) => (float[1] y, float[1] z) { y = Add(x, w) z = Mul(x, w) }")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1e9], np.float32), "w"))
    loaded = from_proto(proto, Path("m.onnx"))
    dtypes = plan(loaded, "Add")
    (w,) = [v.id for v in loaded.graph.values if v.name == "w"]
    feeds = {"x": np.zeros(1, np.float32)}
    feeds_one = {"x": np.ones(1, np.float32)}
    for saturated, expected in (((), -np.inf), ((w,), -65504.0)):
        session = runtime.load(emulate_plan(loaded, dtypes, saturated=saturated))
        assert runtime.run(session, feeds)["y"][0] == expected
        assert runtime.run(session, feeds_one)["z"][0] == np.float32(-1e9)


def test_fill_values_saturate(runtime: Runtime) -> None:
    loaded = load(
        "g (int64[1] n, float[2] x) => (float[2] y) "
        "{ f = ConstantOfShape<value = float[1] {-1e9}>(n) y = Add(x, f) }"
    )
    (fill,) = [v.id for v in loaded.graph.values if v.name == "f"]
    dtypes = plan(loaded, "ConstantOfShape", "Add")
    feeds = {"n": np.array([2]), "x": np.zeros(2, np.float32)}
    for saturated, expected in (((), -np.inf), ((fill,), -65504.0)):
        session = runtime.load(emulate_plan(loaded, dtypes, saturated=saturated))
        assert (runtime.run(session, feeds)["y"] == expected).all()


def test_shapes_follow_from_the_inputs_whatever_the_file_declares(runtime: Runtime) -> None:
    """With wrong names the runtime would share buffers between sizes; without shapes it is slow to load."""
    text = (
        "g (float16[n, k] x, float16[k, m] w) => (float16[n, m] y) <float16[n, k] p, float16[n, k] q>"
        "{ p = MatMul(x, w) q = Relu(p) y = Neg(q) }"
    )
    model = emulate(parse(text))
    shapes = {v.name: [str(d) for d in v.shape or ()] for node in model.graph for v in node.outputs}
    assert shapes["p"] == shapes["q"] == ["n", "m"]
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((2, 8)), "w": rng.standard_normal((8, 300))}
    feeds = {name: array.astype(np.float16) for name, array in feeds.items()}
    found = runtime.run(runtime.load(model), feeds)["y"]
    expected = -np.maximum(feeds["x"].astype(np.float32) @ feeds["w"].astype(np.float32), 0)
    np.testing.assert_allclose(found, rounded(expected), rtol=2e-3)  # two units: sums in another order
