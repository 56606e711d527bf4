from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from fp16conv.conversion.loss_guard import carry_over, refuse_losses
from fp16conv.errors import ModelError
from tests.unit.conversion.models import parse

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[2] x, bool c) => (float[2] y) {
   [i] y = If(c) <
      then_branch = g1 () => (float[2] p) { p = Abs(x) },
      else_branch = g2 () => (float[2] q) { q = Neg(x) }>
}"""


def _sparse(name: str) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.ones(1, np.float32), name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.zeros(1, np.int64), "at"), [2])


def test_a_plain_model_passes() -> None:
    refuse_losses(parse(TEXT), "model.onnx")


def test_training_information_is_refused_by_name() -> None:
    proto = parse(TEXT)
    proto.training_info.add().algorithm.name = "sgd"
    with pytest.raises(ModelError, match=r"model\.onnx: holds training_info \('sgd'\)"):
        refuse_losses(proto, "model.onnx")


def test_sparse_weights_of_the_main_graph_are_kept_those_of_subgraphs_refused() -> None:
    proto = parse(TEXT)
    proto.graph.sparse_initializer.append(_sparse("w"))
    refuse_losses(proto, "model.onnx")
    proto.graph.node[0].attribute[0].g.sparse_initializer.append(_sparse("inner"))
    with pytest.raises(ModelError, match=r"'inner' in subgraph main/i\.then_branch"):
        refuse_losses(proto, "model.onnx")


def test_two_initializers_of_one_name_are_refused() -> None:
    proto = parse(TEXT)
    for _ in range(2):
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    with pytest.raises(ModelError, match="two initializers of the name 'w'"):
        refuse_losses(proto, "model.onnx")


def test_fields_from_the_future_are_refused_where_they_are() -> None:
    content = parse(TEXT).graph.node[0].SerializeToString() + bytes([0xFA, 0x3F, 0x01, 0x41])  # field 1023
    proto = parse(TEXT)
    proto.graph.node[0].ParseFromString(content)
    with pytest.raises(ModelError, match=r"does not know, in model\.graph\.node\[0\]"):
        refuse_losses(proto, "model.onnx")


def test_interface_of_containers_keeps_everything_but_the_element_type() -> None:
    element = helper.make_sequence_type_proto(helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ["n"]))
    info = helper.make_value_info("x", helper.make_optional_type_proto(element))
    source = onnx.ModelProto()
    source.graph.input.append(info)
    target = onnx.ModelProto()
    target.CopyFrom(source)
    inner = target.graph.input[0].type.optional_type.elem_type.sequence_type.elem_type.tensor_type
    inner.elem_type = onnx.TensorProto.FLOAT16
    inner.ClearField("shape")
    carry_over(source, target, {})
    expected = onnx.ModelProto()
    expected.CopyFrom(source)
    inner = expected.graph.input[0].type.optional_type.elem_type.sequence_type.elem_type.tensor_type
    inner.elem_type = onnx.TensorProto.FLOAT16
    assert target == expected
