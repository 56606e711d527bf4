"""Facts from constants: every place where a model file can hold numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fp16conv.evidence.constants import attribute_facts, constant_facts, fold_constants, summarize_constants
from fp16conv.graph import DataType, GraphBuilder, ModelGraph, Origin, ScopeKind, Use, ValueKind

DTYPES = {
    np.dtype(np.float32): DataType.FLOAT,
    np.dtype(np.int64): DataType.INT64,
    np.dtype(np.int8): DataType.INT8,
}


class ArrayTensor:
    """The Tensor protocol over an array."""

    def __init__(self, array: Any) -> None:
        self._array = np.asarray(array)

    @property
    def nbytes(self) -> int:
        return self._array.nbytes

    @property
    def size(self) -> int:
        return self._array.size

    def numpy(self) -> np.ndarray:
        return self._array


class Sketch:
    """A main graph written as a list of operators."""

    def __init__(self) -> None:
        self.builder = GraphBuilder("sketch", "0" * 64, {"": 21})
        self.main = self.builder.add_scope(ScopeKind.MAIN, "main")
        self.dtype: dict[int, DataType] = {}

    def constant(self, array: Any) -> int:
        array = np.asarray(array)
        dtype = DTYPES[array.dtype]
        value = self.builder.add_value(
            f"c{len(self.dtype)}",
            dtype,
            array.shape,
            self.main,
            ValueKind.CONSTANT,
            tensor=ArrayTensor(array),
        )
        self.dtype[value] = dtype
        return value

    def input(self, shape: tuple[int, ...]) -> int:
        value = self.builder.add_value(
            f"x{len(self.dtype)}", DataType.FLOAT, shape, self.main, ValueKind.INPUT
        )
        self.dtype[value] = DataType.FLOAT
        self.builder.add_typevar(None, self.main, "input:x", [], [value], True)
        return value

    def op(
        self, op_type: str, inputs: Sequence[int | None], dtype: DataType = DataType.FLOAT, **attrs: Any
    ) -> int:
        op = self.builder.add_op("", "", op_type, 21, self.main, inputs, attrs=attrs)
        value = self.builder.add_value(
            f"y{len(self.dtype)}", dtype, None, self.main, ValueKind.RESULT, producer=op
        )
        self.builder.close_op(op, [value])
        self.dtype[value] = dtype
        if dtype is DataType.FLOAT:
            uses = [
                Use(op, i, self.main)
                for i, v in enumerate(inputs)
                if v is not None and self.dtype[v] is DataType.FLOAT
            ]
            self.builder.add_typevar(op, self.main, "T", uses, [value], True)
        return value

    def freeze(self, outputs: Sequence[int] = ()) -> ModelGraph:
        self.builder.close_scope(self.main, [], outputs)
        return self.builder.freeze()


def test_an_initializer_gets_its_extremes_and_shares() -> None:
    sketch = Sketch()
    weight = sketch.constant(np.array([1e6, -2.0, 1e-9, 0.0], np.float32))
    index = sketch.constant(np.array([70000], np.int64))
    facts = constant_facts(sketch.freeze())
    assert index not in facts
    fact = facts[weight]
    assert (fact.lo, fact.hi, fact.origin) == (-2.0, 1e6, Origin.CONSTANT)
    assert (fact.share_overflow, fact.share_zeroed, fact.share_subnormal) == (0.25, 0.25, 0.25)
    assert fact.min_abs_nonzero == np.float32(1e-9)


def test_finite_extremes_are_kept_apart_from_infinities() -> None:
    sketch = Sketch()
    mask = sketch.constant(np.array([0.0, -np.inf, -3.0], np.float32))
    graph = sketch.freeze()
    summary = summarize_constants(graph)[mask]
    assert (summary.finite_lo, summary.finite_hi, summary.negative_infinities) == (-3.0, 0.0, 1)
    assert constant_facts(graph)[mask].lo == -np.inf


@pytest.mark.parametrize(
    ("attrs", "fill"), [({}, 0.0), ({"value": ArrayTensor(np.array([-1e9], np.float32))}, -1e9)]
)
def test_a_fill_value_is_a_constant_even_where_the_shape_is_not(attrs: dict[str, Any], fill: float) -> None:
    sketch = Sketch()
    shape = sketch.op("Shape", [sketch.input((2, 3))], DataType.INT64)
    filled = sketch.op("ConstantOfShape", [shape], **attrs)
    fact = constant_facts(sketch.freeze())[filled]
    assert (fact.lo, fact.hi) == (np.float32(fill), np.float32(fill))


def test_float_attributes_are_read_and_integers_left_alone() -> None:
    sketch = Sketch()
    x = sketch.input((2,))
    sketch.op("Clip", [x], min=-3.4e38, max=6.0)
    sketch.op("Upsample", [x], scales=(1.0, 1.0, 2.5), mode="nearest")
    sketch.op("Elu", [x], axis=3)
    facts = attribute_facts(sketch.freeze())
    assert list(facts) == [(0, "max"), (0, "min"), (1, "scales")]
    assert facts[0, "min"].lo == np.float32(-3.4e38)
    assert facts[1, "scales"].hi == 2.5


def test_facts_follow_arithmetic_on_constants() -> None:
    sketch = Sketch()
    one = sketch.constant(np.array(1.0, np.float32))
    keep = sketch.constant(np.array([0, 1, 1], np.int64))
    cast = sketch.op("Cast", [keep], to=1)
    row = sketch.op("Unsqueeze", [cast, sketch.constant(np.array([0], np.int64))])
    mask = sketch.op("Mul", [sketch.op("Sub", [one, row]), sketch.constant(np.array(-1e9, np.float32))])
    scores = sketch.op("Add", [sketch.input((1, 3)), mask])
    graph = sketch.freeze()
    facts = constant_facts(graph)
    assert facts[mask].lo == np.float32(-1e9)
    assert fold_constants(graph)[mask].shape == (1, 3)
    assert scores not in facts


def test_large_constants_are_followed_but_not_computed() -> None:
    sketch = Sketch()
    weight = sketch.constant(np.full((100, 100), 1e5, np.float32))
    turned = sketch.op("Transpose", [weight], perm=(1, 0))
    doubled = sketch.op("Add", [turned, turned])
    graph = sketch.freeze()
    assert fold_constants(graph, limit=100) == {}
    facts = constant_facts(graph)
    assert facts[turned] == facts[weight]
    assert facts[doubled].hi == 2e5


def test_a_broadcast_beyond_the_limit_is_not_made() -> None:
    sketch = Sketch()
    column = sketch.constant(np.ones((50, 1), np.float32))
    row = sketch.constant(np.ones((1, 50), np.float32))
    huge = sketch.constant(np.array([1 << 40], np.int64))
    table = sketch.op("Mul", [column, row])
    filled = sketch.op("ConstantOfShape", [huge])
    graph = sketch.freeze()
    assert fold_constants(graph, limit=100) == {}
    assert table in fold_constants(graph, limit=2500)
    assert constant_facts(graph)[filled].hi == 0.0


def test_quantized_weights_get_the_range_of_what_they_stand_for() -> None:
    sketch = Sketch()
    q = sketch.constant(np.array([[-128, 127], [10, 0]], np.int8))
    scale = sketch.constant(np.array([1000.0, 0.5], np.float32))
    zero = sketch.constant(np.array([0, 10], np.int8))
    weight = sketch.op("DequantizeLinear", [q, scale, zero], axis=0)
    fact = constant_facts(sketch.freeze())[weight]
    assert (fact.lo, fact.hi) == (-128000.0, 127000.0)


def test_a_malformed_operator_is_unknown_not_a_crash() -> None:
    sketch = Sketch()
    a = sketch.constant(np.ones((2, 3), np.float32))
    bad = sketch.op("Reshape", [a, sketch.constant(np.array([5, 5], np.int64))])
    mismatched = sketch.op("Add", [a, sketch.constant(np.ones((4,), np.float32))])
    assert not {bad, mismatched} & fold_constants(sketch.freeze()).keys()


def test_integer_arithmetic_is_that_of_onnx() -> None:
    sketch = Sketch()
    a = sketch.constant(np.array([-7, 7], np.int64))
    quotient = sketch.op("Div", [a, sketch.constant(np.array([2], np.int64))], DataType.INT64)
    zero = sketch.op("Div", [a, sketch.constant(np.array([0], np.int64))], DataType.INT64)
    steps = sketch.op("Range", [sketch.constant(np.array(v, np.float32)) for v in (0.0, 5.0, 2.0)])
    folded = fold_constants(sketch.freeze())
    assert folded[quotient].tolist() == [-3, 3]
    assert zero not in folded
    assert folded[steps].tolist() == [0.0, 2.0, 4.0]
