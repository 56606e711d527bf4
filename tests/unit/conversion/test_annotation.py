from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import fp16conv.api as api
from fp16conv.conversion.annotation import PREFIX
from fp16conv.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "samples" / "digits_transformer.onnx"
DATA = ROOT / "samples" / "digits_calibration.npz"


def notes(model: onnx.ModelProto) -> dict[str, dict[str, str]]:
    return {
        node.name: {
            p.key.removeprefix(PREFIX): p.value for p in node.metadata_props if p.key.startswith(PREFIX)
        }
        for node in model.graph.node
    }


def test_notes_are_on_the_nodes_and_nothing_else_changes(tmp_path: Path) -> None:
    target = tmp_path / "annotated.onnx"
    report = api.analyze(MODEL, data=str(DATA), annotate=target)
    assert report.details is None
    model = onnx.load(target)
    onnx.checker.check_model(model, full_check=True)
    found = notes(model)
    assert found["node_softmax"]["precision"] == "FP32"
    assert found["node_softmax"]["rule"] == "softmax-overflow"
    assert "exponentiates" in found["node_softmax"]["reason"]
    assert "softmax: " in found["node_softmax"]["range"]
    assert float(found["node_gelu"]["error"]) > 0
    # Without the notes it is the model that was read.
    original = onnx.load(MODEL)
    for node in [*model.graph.node, *original.graph.node]:
        del node.metadata_props[:]
    assert [n.SerializeToString() for n in model.graph.node] == [
        n.SerializeToString() for n in original.graph.node
    ]
    with np.load(DATA) as arrays:
        feed = {"image": arrays["image"][:8]}
    results = [ort.InferenceSession(str(p)).run(None, feed) for p in (MODEL, target)]
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_second_analysis_replaces_the_notes_and_a_conversion_ignores_them(tmp_path: Path) -> None:
    first, second = tmp_path / "a.onnx", tmp_path / "b.onnx"
    api.analyze(MODEL, data=str(DATA), annotate=first)
    api.analyze(first, data=str(DATA), annotate=second, keep_fp32="node_gelu")
    assert notes(onnx.load(second))["node_gelu"]["precision"] == "FP32"
    assert notes(onnx.load(first))["node_gelu"]["precision"] == "FP16"
    plans = [api.plan(path, data=str(DATA)) for path in (MODEL, first)]
    assert [d.dtype for d in plans[0].decisions] == [d.dtype for d in plans[1].decisions]


def test_the_input_is_never_annotated_in_place(tmp_path: Path) -> None:
    copy = tmp_path / "m.onnx"
    copy.write_bytes(MODEL.read_bytes())
    with pytest.raises(UsageError, match="same file"):
        api.analyze(copy, data=str(DATA), annotate=copy)
    assert copy.read_bytes() == MODEL.read_bytes()
