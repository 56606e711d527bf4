"""Operators inside a function whose attributes are arguments of its call: nothing takes them for values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import AttributeProto, helper

from fp16conv import api
from fp16conv.frontends.onnx import load_onnx
from fp16conv.graph import Reference
from tests.conformance.node_models import all_node_models

BODIES = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


def _move_into_function(model: onnx.ModelProto) -> None:
    """Make the only operator the body of a function that gets every attribute from its caller."""
    (node,) = model.graph.node
    given, made = [name for name in node.input if name], [name for name in node.output if name]
    body, call = onnx.NodeProto(), helper.make_node("F", given, made, "call", domain="local")
    body.CopyFrom(node)
    formal = iter([f"in{i}" for i in range(len(given))])
    for slot, name in enumerate(node.input):
        body.input[slot] = next(formal) if name else ""
    call.attribute.extend(node.attribute)
    for attribute in body.attribute:
        attribute.CopyFrom(
            AttributeProto(name=attribute.name, type=attribute.type, ref_attr_name=attribute.name)
        )
    names = [attribute.name for attribute in body.attribute]
    formals = [name for name in body.input if name]
    function = helper.make_function("local", "F", formals, made, [body], model.opset_import, names)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.ir_version = max(model.ir_version, 8)
    node.CopyFrom(call)


def _models() -> Iterator[tuple[str, onnx.ModelProto]]:
    """One model per operator and set of attributes."""
    seen = set()
    for case in all_node_models():
        source, _ = case.read()
        if len(source.graph.node) != 1 or source.functions:
            continue
        node = source.graph.node[0]
        kind = node.domain, node.op_type, *sorted(a.name for a in node.attribute)
        fits = node.attribute and not any(a.type in BODIES for a in node.attribute)
        if fits and kind not in seen and node.op_type != "TreeEnsemble":  # whose tensors type its output
            seen.add(kind)
            model = onnx.ModelProto()
            model.CopyFrom(source)
            yield case.name, model


@pytest.mark.parametrize("chunk", range(4))
def test_attributes_given_by_the_caller(chunk: int, tmp_path: Path) -> None:
    models = list(_models())
    assert len(models) > 200
    for name, model in models[chunk::4]:
        _move_into_function(model)
        path = tmp_path / f"{name}.onnx"
        onnx.save(model, path)
        loaded = load_onnx(path)
        inner = [op for op in loaded.graph.ops if op.callee is None]
        assert any(isinstance(a, Reference) for op in inner for a in op.attrs.values()), name
        options = {"keep_io_types": False, "profile": "half", "validate": False}
        assert api.convert(loaded, tmp_path / "out.onnx", **options).output is not None, name
