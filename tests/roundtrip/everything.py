"""One model that uses every field an ONNX file can have, so that a conversion can be seen to lose none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import TensorProto, helper, numpy_helper

INFO = helper.make_tensor_value_info
F32, F64, I64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64


def build() -> onnx.ModelProto:
    """The model; everything that can carry a name, a note or metadata does."""
    model = helper.make_model(
        _graph(),
        functions=[_function(), _function("wide")],
        opset_imports=[
            helper.make_opsetid("", 21),
            helper.make_opsetid("org.example", 3),
            helper.make_opsetid("org.local", 1),
            helper.make_opsetid("unused.domain", 7),
        ],
        ir_version=11,
        producer_name="maker",
        producer_version="1.2.3",
        domain="org.example.models",
        model_version=42,
        doc_string="what the model is for",
    )
    helper.set_model_props(model, {"license": "none", "input_color_space": "RGB"})
    model.configuration.add(name="two", num_devices=2).device.extend(["gpu0", "gpu1"])
    return model


def _graph() -> onnx.GraphProto:
    node = helper.make_node
    nodes = [
        node("Abs", ["x"], ["a"], "first", doc_string="takes magnitudes"),
        node("Mul", ["a", "w"], ["m"], ""),
        node("Add", ["m", "b"], ["s"], "same"),
        node("Sqrt", ["s"], ["q"], "same"),
        node("Clip", ["q", "", "high"], ["c"], "clip"),
        node("scale", ["c"], ["d"], "call", domain="org.local", factor=2.0),
        node("scale", ["d"], ["e"], "call_wide", domain="org.local", overload="wide"),
        node("Mystery", ["e", "", "i"], ["f", "", "g"], "unknown", domain="org.example", **_attributes()),
        node("Cast", ["f"], ["f32"], "typed", to=F32),
        node("If", ["flag"], ["r"], "choice", **_branches()),
        node("Cast", ["x"], ["half"], "users_half", to=TensorProto.FLOAT16),
        node("Cast", ["half"], ["back"], "users_float", to=F32),
        node("Cast", ["back"], ["brain"], "users_bfloat", to=TensorProto.BFLOAT16),
        node("Cast", ["brain"], ["z"], "users_back", to=F32),
        node("Cast", ["x"], ["wide"], "users_double", to=F64),
        node("Neg", ["wide"], ["v"], "in_double"),
        node("Relu", ["r"], ["y"], "last"),
        node("ConstantOfShape", ["shape"], ["filled"], "fill", value=helper.make_tensor("", F32, [1], [0.5])),
        node("QuantizeLinear", ["y", "step", "zero"], ["quantized"], "quantize"),
    ]
    first = nodes[0]
    first.metadata_props.add(key="namespace", value="block/0")
    first.attribute.append(helper.make_attribute("not_in_the_schema", 3, "kept all the same"))
    device = first.device_configurations.add(configuration_id="two", pipeline_stage=1)
    spec = device.sharding_spec.add(tensor_name="x", device=[0, 1])
    spec.index_to_device_group_map.add(key=0, value=[0, 1])
    dim = spec.sharded_dim.add(axis=0)
    dim.simple_sharding.add(dim_value=2, num_shards=2)
    dim.simple_sharding.add(dim_param="batch", num_shards=2)
    x = INFO("x", F32, ["batch", 3], doc_string="pixels")
    x.metadata_props.add(key="range", value="0:1")
    x.type.denotation = "IMAGE"
    x.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    outputs = [INFO("y", F32, ["batch", 3], doc_string="scores"), INFO("z", F32, ["batch", 3])]
    outputs += [INFO("x", F32, ["batch", 3]), INFO("b", F32, [3]), INFO("v", F64, ["batch", 3])]
    outputs += [
        INFO("f32", F32, ["n"]),
        INFO("filled", F32, ["n"]),
        INFO("quantized", TensorProto.UINT8, ["n", 3]),
    ]
    noted = INFO("m", F32, ["batch", 3], doc_string="product")
    noted.metadata_props.add(key="scale", value="0.1")
    graph = helper.make_graph(
        nodes,
        "everything",
        [x, INFO("flag", TensorProto.BOOL, []), INFO("i", I64, ["k"]), INFO("given", F32, [3])],
        outputs,
        initializer=_initializers(),
        sparse_initializer=[_sparse("sparse")],
        doc_string="what the graph does",
        value_info=[noted, INFO("g", F32, None)],
    )
    graph.metadata_props.add(key="exporter", value="by hand")
    note = graph.quantization_annotation.add(tensor_name="y")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="step")
    return graph


def _initializers() -> list[onnx.TensorProto]:
    raw = numpy_helper.from_array(np.array([0.5, 1.0, 2.0], np.float32), "w")
    raw.doc_string = "weights"
    raw.metadata_props.add(key="layer", value="1")
    typed = [
        helper.make_tensor("b", F32, [3], [0.1, 0.2, 0.3]),
        helper.make_tensor("high", F32, [], [6.0]),
        helper.make_tensor("given", F32, [3], [1.0, 1.0, 1.0]),
        helper.make_tensor("shape", I64, [1], [4]),
        helper.make_tensor("step", F32, [], [0.25]),
        helper.make_tensor("zero", TensorProto.UINT8, [], [128]),
        helper.make_tensor("doubles", F64, [1], [1e300]),
        helper.make_tensor("words", TensorProto.STRING, [2], [b"yes", b"no"]),
        helper.make_tensor("counts", TensorProto.UINT64, [1], [2**63]),
    ]
    return [raw, *typed]


def _sparse(name: str) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.array([1.5], np.float32), name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([2], np.int64), "at"), [4])


def _attributes() -> dict[str, Any]:
    """An attribute of every kind."""
    graph = helper.make_graph(
        [helper.make_node("Neg", ["p"], ["n"], "inner")], "body", [INFO("p", F32, [1])], [INFO("n", F32, [1])]
    )
    tensor = helper.make_tensor("", F32, [1], [1.0])
    type_proto = helper.make_sequence_type_proto(helper.make_tensor_type_proto(F32, [1]))
    return {
        "number": 1.5,
        "count": 3,
        "word": "text",
        "tensor": tensor,
        "graph": graph,
        "numbers": [1.5, 2.5],
        "counts": [1, 2],
        "words": ["a", "b"],
        "tensors": [tensor, tensor],
        "graphs": [graph, graph],
        "type": type_proto,
        "types": [type_proto, helper.make_optional_type_proto(type_proto), _sparse_type()],
    }


def _sparse_type() -> onnx.TypeProto:
    return helper.make_sparse_tensor_type_proto(F32, [2])


def _branches() -> dict[str, onnx.GraphProto]:
    """Branches that reuse a name, one with a weight and notes of its own."""
    then = helper.make_graph(
        [helper.make_node("Mul", ["d", "k"], ["t"], "same")],
        "then",
        [],
        [INFO("t", F32, None)],
        initializer=[numpy_helper.from_array(np.array([2.0], np.float32), "k")],
        doc_string="the usual way",
        value_info=[],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["a"], ["t2"], "same")], "else", [], [INFO("t2", F32, None)]
    )
    for graph in (then, other):
        graph.metadata_props.add(key="branch", value=graph.name)
        graph.node[0].metadata_props.add(key="inside", value="yes")
    return {"then_branch": then, "else_branch": other}


def _function(overload: str = "") -> onnx.FunctionProto:
    node = helper.make_node("Constant", [], ["k"], "constant")
    reference = node.attribute.add(name="value_float", ref_attr_name="factor")
    reference.type = onnx.AttributeProto.FLOAT
    default = helper.make_attribute("bias", 0.5)
    nodes = [node, helper.make_node("Mul", ["u", "k"], ["v"], "times", doc_string="scales")]
    if overload:
        nodes = [helper.make_node("Neg", ["u"], ["v"], "minus")]
    function = helper.make_function(
        "org.local",
        "scale",
        ["u"],
        ["v"],
        nodes,
        [helper.make_opsetid("", 21)],
        attributes=[] if overload else ["factor"],
        attribute_protos=[default],
        doc_string="scales its argument",
        overload=overload,
        value_info=[] if overload else [INFO("k", F32, [])],
    )
    function.metadata_props.add(key="origin", value="library")
    return function


def unused_fields(message: Message) -> set[str]:
    """Fields of the message types that occur in a message, set nowhere in it."""
    known: set[str] = set()
    used: set[str] = set()
    for part in parts(message):
        known |= {f"{part.DESCRIPTOR.name}.{f.name}" for f in part.DESCRIPTOR.fields}
        used |= {f"{part.DESCRIPTOR.name}.{f.name}" for f, _ in part.ListFields()}
    return known - used


def parts(message: Message) -> Iterator[Message]:
    """A message and every message inside it."""
    yield message
    for descriptor, content in message.ListFields():
        if descriptor.message_type is not None:
            for item in [content] if isinstance(content, Message) else content:
                yield from parts(item)
