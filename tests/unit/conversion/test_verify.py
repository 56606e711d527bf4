from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fp16conv.conversion.onnx import convert
from fp16conv.conversion.save import serialize
from fp16conv.conversion.verify import _infer, _read_graph, _read_plain, require_valid, verify
from fp16conv.errors import ConversionError, ModelError
from fp16conv.frontends.onnx import load_onnx
from tests.roundtrip.plans import all_fp16
from tests.unit.conversion.models import load_text

TEXT = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
g (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, 2}> {
   [a] t = Mul(x, w) [b] u = com.microsoft.Gelu(t) [c] y = Relu(u)
}"""


def _same(proto: onnx.ModelProto) -> None:
    pass


def _lose_output_cast(proto: onnx.ModelProto) -> None:
    proto.graph.node[-2].output[0] = proto.graph.node[-1].output[0]
    del proto.graph.node[-1]


def _wrong_shape(proto: onnx.ModelProto) -> None:
    (weight,) = proto.graph.initializer
    weight.CopyFrom(numpy_helper.from_array(np.ones(3, np.float16), "w"))
    del proto.graph.value_info[:]


def _mix_types(proto: onnx.ModelProto) -> None:
    (weight,) = proto.graph.initializer
    weight.CopyFrom(numpy_helper.from_array(np.ones(2, np.float32), "w"))


def _mix_contrib_types(proto: onnx.ModelProto) -> None:
    gelu = next(n for n in proto.graph.node if n.op_type == "Gelu")
    gelu.op_type = "FusedMatMul"
    gelu.input.append("x")


def _break_order(proto: onnx.ModelProto) -> None:
    proto.graph.node.append(proto.graph.node[0])
    proto.graph.node[-1].output[0] = "z"
    proto.graph.node[-1].input[0] = "nowhere"


def _rename_output(proto: onnx.ModelProto) -> None:
    proto.graph.node[-1].output[0] = proto.graph.output[0].name = "z"


def _fix_dimension(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


def _overflow(proto: onnx.ModelProto) -> None:
    (weight,) = proto.graph.initializer
    weight.CopyFrom(numpy_helper.from_array(np.array([1, np.inf], np.float16), "w"))


@pytest.mark.parametrize(
    ("spoil", "check"),
    [
        (_same, None),
        (_lose_output_cast, "types"),
        (_wrong_shape, "inference"),
        (_mix_types, "types"),
        (_mix_contrib_types, "types"),
        (_break_order, "checker"),
        (_rename_output, "interface"),
        (_fix_dimension, "interface"),
        (_overflow, "overflow"),
    ],
)
def test_every_kind_of_damage_is_found(
    tmp_path: Path, spoil: Callable[[onnx.ModelProto], None], check: str | None
) -> None:
    loaded = load_text(tmp_path, TEXT)
    plan = all_fp16(loaded.graph)
    proto = serialize(convert(loaded, plan), loaded)
    spoil(proto)
    onnx.save(proto, tmp_path / "out.onnx")
    found = {finding.check for finding in verify(tmp_path / "out.onnx", loaded, plan)}
    if check is None:
        assert not found
        require_valid(tmp_path / "out.onnx", loaded, plan)
    else:
        assert check in found
        hint = "--keep-fp32" if check == "overflow" else "please report it"
        with pytest.raises(ConversionError, match=f"not valid.*{hint}"):
            require_valid(tmp_path / "out.onnx", loaded, plan)


def test_a_source_that_is_not_valid_is_blamed_itself(tmp_path: Path) -> None:
    loaded = load_text(
        tmp_path, '<ir_version: 10, opset_import: ["": 13]> g (float[2] x) => (int8[2] y) { y = Relu (x) }'
    )
    plan = all_fp16(loaded.graph)
    onnx.save(serialize(convert(loaded, plan), loaded), tmp_path / "out.onnx")
    with pytest.raises(ModelError, match=r"the model itself is not: .*elem type"):
        require_valid(tmp_path / "out.onnx", loaded, plan)


def test_what_the_source_already_had_is_not_held_against_the_result(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 13]>
    g (float[2, 2] x) => (float[2, 2] y) <float[2] s = {1, 2}> {
       [a] t = SimplifiedLayerNormalization <axis = -1, epsilon = 1e-5> (x, s) [b] y = Relu(t) }"""
    loaded = load_text(tmp_path, text)
    plan = all_fp16(loaded.graph)
    onnx.save(serialize(convert(loaded, plan), loaded), tmp_path / "out.onnx")
    assert not verify(tmp_path / "out.onnx", loaded, plan)


def test_an_infinity_that_was_there_before_is_no_overflow(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, TEXT)
    weight = next(t for t in loaded.proto.graph.initializer if t.name == "w")
    weight.CopyFrom(numpy_helper.from_array(np.array([1, np.inf], np.float32), "w"))
    onnx.save(loaded.proto, tmp_path / "inf.onnx")
    again = load_onnx(tmp_path / "inf.onnx")
    plan = all_fp16(again.graph)
    onnx.save(serialize(convert(again, plan), again), tmp_path / "out.onnx")
    assert not verify(tmp_path / "out.onnx", again, plan)


def test_the_short_reading_sees_what_the_front_end_sees(tmp_path: Path) -> None:
    """Operators, types and FP16 constants read off the protobuf are those of the full import."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2, 2] x) => (float[2, 2] y) <float[2] w = {1, 2}> {
       t = Mul(x, w)
       c = Constant <value = float16[1] {3}> ()
       d = Cast <to = 1> (c)
       u = Max(t, d)
       y = Softmax(u)
    }"""
    loaded = load_text(tmp_path, text)
    proto = serialize(convert(loaded, all_fp16(loaded.graph)), loaded)
    path = tmp_path / "mixed.onnx"
    onnx.save(proto, path)
    inferred, error = _infer(proto)
    assert inferred is not None, error
    short = _read_plain(proto, inferred, tmp_path)
    assert short is not None
    calls, halves = _read_graph(load_onnx(path).graph)
    assert [(c.label, c.key, *map(tuple, (c.inputs, c.outputs))) for c in short[0]] == [
        (c.label, c.key, *map(tuple, (c.inputs, c.outputs))) for c in calls
    ]
    assert {n: t.numpy().tolist() for n, t in short[1].items()} == {
        n: np.asarray(t.numpy()).tolist() for n, t in halves.items()
    }
