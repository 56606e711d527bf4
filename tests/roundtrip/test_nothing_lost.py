"""Nothing that a user wrote into a model is lost, whatever the plan."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import Message
from onnx import helper, numpy_helper

import fp16conv
from fp16conv.conversion.loss_guard import refuse_losses
from fp16conv.conversion.onnx import convert
from fp16conv.conversion.save import serialize
from fp16conv.conversion.verify import verify
from fp16conv.errors import ModelError
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from fp16conv.planning.plan import PrecisionPlan
from tests.roundtrip import everything
from tests.roundtrip.plans import all_fp16, all_fp32, random_plan

CASES = Path(__file__).parent.parent / "cases"

NOT_HELD = {
    "AttributeProto.sparse_tensor": "refused by name",
    "AttributeProto.sparse_tensors": "refused by name",
    "ModelProto.training_info": "refused by name",
    "TensorProto.data_location": "external data: tests of saving",
    "TensorProto.external_data": "external data: tests of saving",
    "TensorProto.segment": "onnx itself reads no segments",
    "TypeProto.map_type": "has a test of its own",
    "TypeProto.opaque_type": "the type of no operator of onnx or ONNX Runtime",
}

CHANGES = {
    ("NodeProto", "input"): "reads a cast",
    ("NodeProto", "output"): "the FP16 side of an output gets a suffix",
    ("ShardingSpecProto", "tensor_name"): "names what is read",
    ("Tensor", "elem_type"): "FP16",
    ("TensorProto", "data_type"): "FP16",
    ("TensorProto", "name"): "a tensor in an attribute has none, an initializer may be copied",
    ("AttributeProto", "i"): "the type a cast or a generator is to give",
    **{
        ("TensorProto", f"{kind}_data"): "FP16"
        for kind in ("raw", "float", "int32", "uint64", "int64", "double")
    },
}
"""What the precision changes; names of values are compared as sets."""


def losses(before: Message, after: Message) -> Counter[tuple[str, str, str]]:
    """Every scalar that occurs less often in the result: (message type, field, value)."""
    return _scalars(before) - _scalars(after)


def _scalars(message: Message) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for part in everything.parts(message):
        for field, content in part.ListFields():
            key = part.DESCRIPTOR.name, field.name
            if field.message_type is None and key not in CHANGES:
                items = content if hasattr(content, "extend") else [content]
                found.update((*key, repr(item)) for item in items)
    return found


def _without_dropped_casts(before: onnx.ModelProto, after: onnx.ModelProto) -> onnx.ModelProto:
    """The source as it would be without its casts from FP16 that the plan made do nothing."""
    kept = {node.name for node in _nodes(after)}
    copy = onnx.ModelProto()
    copy.CopyFrom(before)
    gone = {o for n in _nodes(copy) if n.op_type == "Cast" and n.name not in kept for o in n.output}
    for graph in (p for p in everything.parts(copy) if isinstance(p, onnx.GraphProto | onnx.FunctionProto)):
        for items in (graph.node, graph.value_info):
            left = [i for i in items if not gone & set(getattr(i, "output", [getattr(i, "name", "")]))]
            del items[:]
            items.extend(left)
    return copy


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [part for part in everything.parts(model) if isinstance(part, onnx.NodeProto)]


def value_names(graph: onnx.GraphProto) -> set[str]:
    return {
        name for part in everything.parts(graph) if isinstance(part, onnx.NodeProto) for name in part.output
    }


def _load(proto: onnx.ModelProto, path: Path) -> LoadedModel:
    path.write_bytes(proto.SerializeToString())
    return load_onnx(path)


def _plain(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Our own notes taken out, metadata in the order of its keys, an empty overload left out."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for part in everything.parts(copy):
        if any(f.name == "metadata_props" for f in part.DESCRIPTOR.fields):
            entries = sorted((e.key, e.value) for e in part.metadata_props)  # type: ignore[attr-defined]
            del part.metadata_props[:]  # type: ignore[attr-defined]
            for key, value in entries:
                if not key.startswith("pkg.fp16conv."):
                    part.metadata_props.add(key=key, value=value)  # type: ignore[attr-defined]
        if isinstance(part, onnx.FunctionProto | onnx.NodeProto) and not part.overload:
            part.ClearField("overload")
    return copy


@pytest.fixture
def full(tmp_path: Path) -> LoadedModel:
    return _load(everything.build(), tmp_path / "everything.onnx")


def test_the_model_uses_every_field_of_the_format(full: LoadedModel) -> None:
    assert everything.unused_fields(full.proto) == NOT_HELD.keys()


def test_a_plan_of_fp32_gives_the_model_back(full: LoadedModel) -> None:
    result = serialize(convert(full, all_fp32(full.graph)), full)
    assert _plain(result) == _plain(full.proto)


@pytest.mark.parametrize("plan", [all_fp16, lambda g: random_plan(g, 0), lambda g: random_plan(g, 1)])
def test_any_other_plan_keeps_every_word(full: LoadedModel, plan: object, tmp_path: Path) -> None:
    chosen: PrecisionPlan = plan(full.graph)  # type: ignore[operator]
    result = serialize(convert(full, chosen), full)
    source = _without_dropped_casts(full.proto, result)
    assert not losses(_plain(source), _plain(result))
    assert value_names(source.graph) <= value_names(result.graph)
    assert not verify(_load(result, tmp_path / "result.onnx").path, full, chosen)


def test_a_second_conversion_keeps_all_as_it_is(full: LoadedModel, tmp_path: Path) -> None:
    once = serialize(convert(full, all_fp16(full.graph)), full)
    again = _load(once, tmp_path / "once.onnx")
    twice = serialize(convert(again, all_fp32(again.graph)), again)
    assert twice.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)


@pytest.mark.parametrize("name", sorted(path.stem for path in CASES.glob("*.onnx")))
def test_cases_keep_every_word(name: str) -> None:
    loaded = load_onnx(CASES / f"{name}.onnx")
    kept = serialize(convert(loaded, all_fp32(loaded.graph)), loaded)
    lost = losses(loaded.proto, kept)
    mixed = serialize(convert(loaded, all_fp16(loaded.graph)), loaded)
    half = losses(_without_dropped_casts(loaded.proto, mixed), mixed)
    assert not {key for key in lost if key[1] not in ("key", "value")}  # where external weights lie
    assert not {key for key in half - lost if key[:2] not in ATTRIBUTE_FORMS}


ATTRIBUTE_FORMS = {
    ("AttributeProto", "name"),
    ("AttributeProto", "f"),
    ("AttributeProto", "floats"),
    ("AttributeProto", "type"),
}
"""Constants that are written as plain numbers become tensors: FP16 has no other form. Their numbers stay."""


@pytest.mark.parametrize("attribute", ["sparse_value", "sparse_values"])
def test_sparse_tensors_in_attributes_are_refused_by_name(tmp_path: Path, attribute: str) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.zeros(1, np.int64), ""), [2])
    content = sparse if attribute == "sparse_value" else [sparse]
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], "holder", **{attribute: content})],
        "then",
        [],
        [helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, [2])],
    )
    node = helper.make_node("If", ["flag"], ["y"], "choice", then_branch=inner, else_branch=inner)
    flag = helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, [])
    graph = helper.make_graph(
        [node], "g", [flag], [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])]
    )
    with pytest.raises(ModelError, match=rf"'holder' \(Constant\).*attribute '{attribute}'"):
        _load(helper.make_model(graph), tmp_path / "sparse.onnx")


def test_what_is_refused_is_refused_before_any_work(full: LoadedModel) -> None:
    full.proto.training_info.add().algorithm.name = "sgd"
    with pytest.raises(ModelError, match="training_info"):
        refuse_losses(full.proto, "model.onnx")


def test_maps_of_classical_models_are_kept(tmp_path: Path) -> None:
    """A classifier as scikit-learn's converter writes it: probabilities as a sequence of maps."""
    node, info = helper.make_node, helper.make_tensor_value_info
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(onnx.TensorProto.INT64, helper.make_tensor_type_proto(1, []))
    )
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "product"),
        node("Softmax", ["m"], ["p"], "softmax"),
        node("ZipMap", ["p"], ["z"], "zip", domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
        node("ZipMap", ["p"], ["unused"], "again", domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
    ]
    weight = numpy_helper.from_array(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "w")
    graph = helper.make_graph(
        nodes,
        "classifier",
        [info("x", 1, ["n", 4])],
        [helper.make_value_info("z", maps), info("p", 1, ["n", 3])],
        [weight],
        value_info=[helper.make_value_info("unused", maps)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    onnx.checker.check_model(proto, full_check=True)
    loaded = _load(proto, tmp_path / "classifier.onnx")
    assert loaded.proto == proto
    assert _plain(serialize(convert(loaded, all_fp32(loaded.graph)), loaded)) == _plain(proto)
    report = fp16conv.convert(loaded, tmp_path / "result.onnx")
    result = onnx.load(tmp_path / "result.onnx")
    assert result.graph.output[0].type == maps
    assert [i.type for i in result.graph.value_info if i.name == "unused"] == [maps]
    assert report.validation is not None
    assert report.ok
