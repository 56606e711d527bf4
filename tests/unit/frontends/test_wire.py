"""A model written in pieces is, byte for byte, what protobuf writes at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from fp16conv.frontends import wire
from fp16conv.frontends.wire import serialize_in_pieces

CASES = sorted((Path(__file__).parents[2] / "cases").glob("*.onnx"))
SIDE = 1024


@pytest.mark.parametrize(("large", "together"), [(wire.LARGE, wire.TOGETHER), (1, 1), (100, 2)])
def test_cases_give_the_same_bytes_whatever_the_sizes_of_pieces(
    large: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "LARGE", large)
    monkeypatch.setattr(wire, "TOGETHER", together)
    for path in CASES:
        model = onnx.load(path, load_external_data=False)
        assert b"".join(serialize_in_pieces(model)) == model.SerializeToString(deterministic=True), path.stem


def test_no_two_weights_are_in_a_piece() -> None:
    weights = [numpy_helper.from_array(np.full((SIDE, SIDE), i, np.float32), f"w{i}") for i in range(4)]
    nodes = [helper.make_node("Add", [f"w{i}", "x"], [f"y{i}"]) for i in range(4)]
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [SIDE])
    output = helper.make_tensor_value_info("y3", onnx.TensorProto.FLOAT, [SIDE, SIDE])
    model = helper.make_model(helper.make_graph(nodes, "g", [value], [output], weights))
    sizes = [len(piece) for piece in serialize_in_pieces(model)]
    assert sum(sizes) == model.ByteSize()
    weight = 4 * SIDE * SIDE
    assert sum(size >= weight for size in sizes) == 4
    assert max(sizes) < weight + 100


@pytest.mark.parametrize("model", [onnx.ModelProto(), onnx.ModelProto(graph=onnx.GraphProto())])
def test_empty_messages(model: onnx.ModelProto) -> None:
    assert b"".join(serialize_in_pieces(model)) == model.SerializeToString(deterministic=True)
