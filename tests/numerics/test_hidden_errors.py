"""What ONNX Runtime's CPU provider hides, since it computes chains of FP16 operators in FP32."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from fp16conv.execution.emulator import EmulationOptions, emulate_model
from fp16conv.execution.runtime import Optimization, Runtime

LEVELS: tuple[Optimization, ...] = ("disabled", "basic", "extended", "all")


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


def model(body: str, inputs: str = "float16[4] x", outputs: str = "float16[4] y") -> onnx.ModelProto:
    text = f'<ir_version: 9, opset_import: ["": 18]> g ({inputs}) => ({outputs}) {{ {body} }}'
    return onnx.parser.parse_model(text)


def constants(**numbers: float) -> str:
    return " ".join(
        f"{name}32 = Constant<value_float = {value:f}>() {name} = Cast<to = 10>({name}32)"
        for name, value in numbers.items()
    )


CHAIN = constants(a=100.0, b=1000.0, c=0.001) + " p = Mul(x, a) q = Mul(p, b) y = Mul(q, c)"
SQUARE = constants(s=0.0001) + " p = Mul(x, x) y = Mul(p, s)"
EPS = constants(e=0.00000001) + " p = Add(x, e) q = Div(x, p) y = Identity(q)"


def emulate(runtime: Runtime, proto: onnx.ModelProto, x: np.ndarray, **options: bool) -> np.ndarray:
    emulated = emulate_model(ir.from_proto(proto), options=EmulationOptions(**options))
    found: np.ndarray = runtime.run(runtime.load(emulated), {"x": x})["y"]
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_product_chain_overflows(level: Optimization) -> None:
    x = np.array([1.0, 0.25, -1.0, 0.0], np.float16)
    with Runtime(threads=1, optimization=level) as runtime:
        found = emulate(runtime, model(CHAIN), x)
    np.testing.assert_array_equal(found, np.array([np.inf, 25.0, -np.inf, 0.0], np.float16))


@pytest.mark.parametrize("level", LEVELS)
def test_pair_survives_where_everything_is_constant(level: Optimization) -> None:
    body = constants(a=300.0, s=0.001) + " p = Mul(a, a) q = Mul(p, s) y = Add(x, q)"
    with Runtime(threads=1, optimization=level) as runtime:
        found = emulate(runtime, model(body), np.zeros(4, np.float16))
    assert np.isposinf(found).all()


def test_cpu_provider_hides_the_overflow(runtime: Runtime) -> None:
    """The reason for the emulator; when this fails ONNX Runtime has changed."""
    session = runtime.load(model(CHAIN).SerializeToString())
    found = runtime.run(session, {"x": np.ones(4, np.float16)})["y"]
    assert np.isfinite(found).all()


def test_square_of_300_overflows(runtime: Runtime) -> None:
    found = emulate(runtime, model(SQUARE), np.array([300, 200, 255, 256], np.float16))
    assert np.isposinf(found[[0, 3]]).all()
    assert np.isfinite(found[[1, 2]]).all()


def test_epsilon_vanishes(runtime: Runtime) -> None:
    found = emulate(runtime, model(EPS), np.zeros(4, np.float16))
    assert np.isnan(found).all()


def test_integer_outputs_see_rounded_inputs(runtime: Runtime) -> None:
    """2048 + 1 is 2048 in FP16: the maximum is where it first was."""
    proto = model(
        constants(one=1.0) + " p = Add(x, m) y = ArgMax<axis = 0, keepdims = 0>(p)",
        "float16[4] x, float16[4] m",
        "int64 y",
    )
    session = runtime.load(emulate_model(ir.from_proto(proto)))
    feeds = {"x": np.full(4, 2048, np.float16), "m": np.array([0, 0, 1, 0], np.float16)}
    assert int(runtime.run(session, feeds)["y"]) == 0


def test_subnormals_are_flushed_on_request(runtime: Runtime) -> None:
    proto = model(constants(h=0.5) + " y = Mul(x, h)")
    x = np.array([2.0**-14, 2.0**-13, -(2.0**-20), np.inf], np.float16)
    np.testing.assert_array_equal(emulate(runtime, proto, x), x / np.float16(2))
    flushed = emulate(runtime, proto, x, flush_subnormals=True)
    np.testing.assert_array_equal(flushed, np.array([0.0, 2.0**-14, 0.0, np.inf], np.float16))


@pytest.mark.parametrize(("accumulate", "expected"), [(False, 0.0), (True, np.inf)])
def test_partial_sums_overflow_only_in_fp16_accumulation(
    accumulate: bool, expected: float, runtime: Runtime
) -> None:
    """The sum of 2048 times 64 and 2048 times -64 is 0; on the way it reaches 131072."""
    proto = model("y = MatMul(x, w)", "float16[1, 4096] x, float16[4096, 1] w", "float16[1, 1] y")
    feeds = {"x": np.full((1, 4096), 64, np.float16), "w": np.ones((4096, 1), np.float16)}
    feeds["x"][0, 2048:] = -64
    options = EmulationOptions(fp16_accumulation=accumulate)
    session = runtime.load(emulate_model(ir.from_proto(proto), options=options))
    assert float(runtime.run(session, feeds)["y"][0, 0]) == expected


REDUCTIONS = {
    "MatMul": ("y = MatMul(x, w)", "float16[2, 64] x, float16[64, 3] w", (2, 64), (64, 3)),
    "Gemm": ("y = Gemm<transB = 1>(x, w)", "float16[2, 64] x, float16[3, 64] w", (2, 64), (3, 64)),
    "Conv": (
        "y = Conv(x, w)",
        "float16[1, 32, 5, 5] x, float16[2, 32, 3, 3] w",
        (1, 32, 5, 5),
        (2, 32, 3, 3),
    ),
    "ReduceSum": ("p = Mul(x, w) y = ReduceSum(p)", "float16[4, 64] x, float16[4, 64] w", (4, 64), (4, 64)),
    "ReduceMean": ("p = Mul(x, w) y = ReduceMean(p)", "float16[4, 64] x, float16[4, 64] w", (4, 64), (4, 64)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_fp16_accumulation_changes_little_where_nothing_overflows(name: str, runtime: Runtime) -> None:
    """Rounding p partial sums adds at most p half-ulps at their size; p <= 64, 64 * 2^-11 < 0.04."""
    body, inputs, shape_x, shape_w = REDUCTIONS[name]
    rng = np.random.default_rng(3)
    feeds = {
        "x": rng.uniform(0, 1, shape_x).astype(np.float16),
        "w": rng.uniform(0, 1, shape_w).astype(np.float16),
    }
    proto = onnx.shape_inference.infer_shapes(model(body, inputs, "float16 y"))
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    found = []
    for accumulate in (False, True):
        options = EmulationOptions(fp16_accumulation=accumulate, block=4)
        emulated = emulate_model(ir.from_proto(proto), options=options)
        found.append(runtime.run(runtime.load(emulated), feeds)["y"].astype(np.float64))
        rounds = sum(node.op_type == "Add" for node in emulated.graph)
        assert (rounds > 2) == accumulate
    np.testing.assert_allclose(found[1], found[0], rtol=0.04)
