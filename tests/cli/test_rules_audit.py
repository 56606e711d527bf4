"""`fp16conv rules audit`: what a rule costs and saves, on a model where one is needed and one is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """exp of numbers beyond 11, undone by log; then a harmless softmax."""
    rng = np.random.default_rng(0)
    weights = [onnx.numpy_helper.from_array(np.float32(np.eye(32) * 13), "w0")]
    matrix = rng.normal(size=(32, 32)).astype(np.float32) / 8
    weights.append(onnx.numpy_helper.from_array(matrix, "w1"))
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w0"], ["a"], "first"),
        onnx.helper.make_node("Exp", ["a"], ["e"], "exp"),
        onnx.helper.make_node("Log", ["e"], ["l"], "log"),
        onnx.helper.make_node("MatMul", ["l", "w1"], ["b"], "second"),
        onnx.helper.make_node("Softmax", ["b"], ["s"], "softmax"),
        onnx.helper.make_node("MatMul", ["s", "w1"], ["y"], "third"),
    ]
    info = [onnx.helper.make_tensor_value_info(n, 1, [16, 32]) for n in ("x", "y")]
    graph = onnx.helper.make_graph(nodes, "g", info[:1], info[1:], weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "0.npz", x=rng.uniform(0.1, 1.0, size=(16, 32)).astype(np.float32))
    return tmp_path


def test_what_a_rule_saves_and_what_it_costs(cli: Any, folder: Path) -> None:
    done = cli("rules", "audit", str(folder / "m.onnx"), "--data", str(folder / "0.npz"), "--format", "json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["schema"] == "fp16conv.rules-audit/1"
    effects = {effect["rule"]: effect for effect in report["effects"]}
    softmax = effects["softmax-overflow"]
    assert softmax["op_types"] == {"Softmax": 1}
    assert softmax["changed"] == 1
    assert softmax["casts"] == 2
    assert softmax["seconds"] > 0
    assert softmax["ok"] is True
    harmful = [effect for effect in effects.values() if "Exp" in effect["op_types"]]
    assert harmful
    assert any(
        effect["used"] == "inf" and effect["error"] == "inf" and not effect["ok"] for effect in harmful
    )


def test_the_text_names_the_rules(cli: Any, folder: Path) -> None:
    done = cli("rules", "audit", str(folder / "m.onnx"), "--data", str(folder / "0.npz"))
    assert done.code == 0
    assert "softmax-overflow" in done.out
    assert "breaks" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
