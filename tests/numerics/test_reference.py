"""The emulator against onnx's ReferenceEvaluator, which computes FP16 models in numpy float16.

Tolerances, in units in the last place (ulp) of FP16:

- 0 for operators that move or choose numbers;
- 1 for one correctly rounded operation: both sides round once, numpy's float16 functions go through float32;
- more for operators the reference composes of several float16 steps (softmax, GELU, normalization) or whose
  sums it accumulates in float16: there the emulator's FP32 inside is closer to a GPU, and the reference's own
  error is what the tolerance covers. `scale` measures ulps at the largest magnitude of the output, because
  a sum with cancellation loses relative precision in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from fp16conv.execution.emulator import emulate_model
from fp16conv.execution.runtime import Runtime

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float16)


def positive(*shape: int) -> np.ndarray:
    return (np.abs(RNG.standard_normal(shape)) + 0.1).astype(np.float16)


def unit(*shape: int) -> np.ndarray:
    return RNG.uniform(-0.9, 0.9, shape).astype(np.float16)


@dataclass
class Case:
    op: str
    inputs: list[np.ndarray]
    ulps: int = 1
    scale: bool = False
    attrs: dict[str, object] = field(default_factory=dict)
    outputs: int = 1
    label: str = ""

    @property
    def id(self) -> str:
        return self.op + (f"-{self.label}" if self.label else "")


def i64(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


X, Y = normal(3, 4, 5), normal(3, 4, 5)
IMAGE = normal(1, 4, 8, 8)

UNARY_NORMAL = ["Sin", "Cos", "Tanh", "Sigmoid", "Exp", "Erf", "Softplus", "Softsign", "Atan", "Sinh", "Cosh"]
UNARY_EXACT = ["Abs", "Neg", "Relu", "Ceil", "Floor", "Round", "Sign", "Identity"]

CASES = [
    *(Case(op, [X * np.float16(3)], 0) for op in UNARY_EXACT),
    *(Case(op, [X], 2) for op in UNARY_NORMAL),
    Case("Sqrt", [positive(3, 4)]),
    Case("Log", [positive(3, 4)]),
    Case("Reciprocal", [positive(3, 4)]),
    Case("Asin", [unit(3, 4)]),
    Case("Acos", [unit(3, 4)]),
    Case("Tan", [unit(3, 4)]),
    Case("Add", [X, Y]),
    Case("Sub", [X, Y]),
    Case("Mul", [X, Y]),
    Case("Div", [X, positive(3, 4, 5)]),
    Case("Pow", [positive(3, 4), np.full((1,), 2.5, np.float16)]),
    Case("Max", [X, Y], 0),
    Case("Min", [X, Y], 0),
    Case("Where", [X > 0, X, Y], 0),
    Case("Clip", [X, np.array(-0.5, np.float16), np.array(0.5, np.float16)], 0),
    Case("LeakyRelu", [X], 1, attrs={"alpha": 0.1}),
    Case("Elu", [X], 2),
    Case("Selu", [X], 2),
    Case("HardSigmoid", [X], 4, scale=True),
    Case("HardSwish", [X], 8, scale=True),
    Case("PRelu", [X, unit(5)]),
    Case("Mish", [X], 8, scale=True),
    Case("Gelu", [X], 8, scale=True),
    Case("Softmax", [X], 4, scale=True),
    Case("LogSoftmax", [X], 8, scale=True),
    Case("ReduceSum", [X, i64(1)], 4, scale=True),
    Case("ReduceMean", [X, i64(2)], 4, scale=True),
    Case("ReduceMax", [X, i64(1)], 0),
    Case("ReduceMin", [X, i64(1)], 0),
    Case("ReduceL2", [X, i64(2)], 4, scale=True),
    Case("ReduceProd", [X, i64(2)], 8, scale=True),
    Case("MatMul", [normal(8, 32), normal(32, 6)], 16, scale=True),
    Case("Gemm", [normal(8, 32), normal(6, 32), normal(6)], 16, True, {"transB": 1, "alpha": 0.5}),
    Case("Conv", [IMAGE, normal(3, 4, 3, 3), normal(3)], 16, True, {"pads": [1, 1, 1, 1]}),
    Case("ConvTranspose", [IMAGE, normal(4, 3, 3, 3)], 16, True),
    Case("MaxPool", [IMAGE], 0, attrs={"kernel_shape": [2, 2], "strides": [2, 2]}),
    Case("AveragePool", [IMAGE], 4, True, attrs={"kernel_shape": [2, 2]}),
    Case("GlobalAveragePool", [IMAGE], 4, True),
    Case("LayerNormalization", [X, positive(5), normal(5)], 16, True),
    Case("RMSNormalization", [X, positive(5)], 16, True),
    Case("InstanceNormalization", [IMAGE, positive(4), normal(4)], 16, True),
    Case("GroupNormalization", [IMAGE, positive(4), normal(4)], 16, True, {"num_groups": 2}),
    Case("BatchNormalization", [IMAGE, positive(4), normal(4), normal(4), positive(4)], 16, True),
    Case("Concat", [X, Y], 0, attrs={"axis": 1}),
    Case("Transpose", [X], 0, attrs={"perm": [2, 0, 1]}),
    Case("Reshape", [X, i64(4, 15)], 0),
    Case("Gather", [X, i64(2, 0)], 0),
    Case("Slice", [X, i64(1), i64(3), i64(1)], 0),
    Case("Split", [X], 0, attrs={"axis": 1, "num_outputs": 2}, outputs=2),
    Case("Expand", [normal(1, 5), i64(4, 5)], 0),
    Case("Tile", [normal(2, 3), i64(2, 2)], 0),
    Case("Pad", [X, i64(0, 0, 1, 0, 0, 1), np.array(1.5, np.float16)], 0),
    Case("TopK", [X, i64(2)], 0, outputs=2),
    Case("CumSum", [X, np.array(1, np.int64)], 8, scale=True),
    Case("ArgMax", [X], 0, attrs={"axis": 1}),
    Case("Greater", [X, Y], 0),
    Case("IsNaN", [X], 0),
    Case("Cast", [X * np.float16(1000)], 0, attrs={"to": onnx.TensorProto.INT32}, label="to-int"),
    Case("Cast", [np.array([0.1, 70000.0, 1e-8], np.float32)], 0, attrs={"to": onnx.TensorProto.FLOAT16}),
    Case("CastLike", [np.array([0.1, 70000.0], np.float32), np.array([1], np.float16)], 0),
    Case("Trilu", [normal(4, 4)], 0),
    Case("ScatterND", [normal(4, 3), np.array([[1], [3]], np.int64), normal(2, 3)], 0),
    Case("Resize", [IMAGE, None, np.array([1, 1, 2, 2], np.float32)], 0, attrs={"mode": "nearest"}),  # type: ignore[list-item]
    Case("Einsum", [normal(3, 8), normal(8, 2)], 8, True, {"equation": "ij,jk->ik"}),
    Case("LSTM", [normal(5, 1, 3), normal(1, 16, 3), normal(1, 16, 4)], 32, True, {"hidden_size": 4}, 3),
    Case("GRU", [normal(5, 1, 3), normal(1, 12, 3), normal(1, 12, 4)], 32, True, {"hidden_size": 4}, 2),
]


def build(case: Case) -> onnx.ModelProto:
    names = ["" if a is None else f"x{i}" for i, a in enumerate(case.inputs)]
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, name="op", **case.attrs)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, case.inputs, strict=True)
        if a is not None
    ]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=o) for o in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    for output in inferred.graph.output:  # a function operator without an inference of its own
        if not output.type.tensor_type.elem_type:
            output.type.CopyFrom(helper.make_tensor_type_proto(onnx.TensorProto.FLOAT16, None))
    return inferred


def ordinal(array: np.ndarray) -> np.ndarray:
    """FP16 numbers as integers in their order, so that neighbours differ by one."""
    bits = array.view(np.uint16).astype(np.int32)
    return np.where(bits & 0x8000, -(bits & 0x7FFF), bits)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_agrees_with_reference_evaluator(case: Case, runtime: Runtime) -> None:
    model = build(case)
    feeds = {f"x{i}": a for i, a in enumerate(case.inputs) if a is not None}
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(model).run(None, feeds)
    session = runtime.load(emulate_model(ir.from_proto(model)))
    found = list(runtime.run(session, feeds).values())
    runtime.unload(session)
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        want = np.asarray(want)
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        if got.dtype != np.float16 or case.ulps == 0:
            np.testing.assert_array_equal(got, want)
        elif case.scale:
            step = np.spacing(np.abs(want).max())
            error = np.abs(got.astype(np.float64) - want.astype(np.float64)).max()
            assert error <= case.ulps * step
        else:
            assert np.abs(ordinal(got) - ordinal(want)).max() <= case.ulps


def test_there_are_about_sixty_operators() -> None:
    assert len({case.op for case in CASES}) >= 60
