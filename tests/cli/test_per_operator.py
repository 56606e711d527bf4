"""`fp16conv validate --per-op`: the operators to blame, on files of any converter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest

import fp16conv


def build(path: Path, *, swapped: bool = False) -> None:
    """Two branches; one adds an offset that swallows digits and takes it away again."""
    rng = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(rng.normal(size=(32, 32)).astype(np.float32) / 6, f"w{i}")
        for i in range(2)
    ]
    weights.append(onnx.numpy_helper.from_array(np.array(900.0, np.float32), "offset"))
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w0"], ["a"], "plain"),
        onnx.helper.make_node("Add", ["x", "offset"], ["b"], "shift"),
        onnx.helper.make_node("Sub", ["b", "offset"], ["c"], "back"),
        onnx.helper.make_node("MatMul", ["c", "w1"], ["d"], "other"),
        onnx.helper.make_node("Add", ["a", "d"], ["y"], "join"),
    ]
    if swapped:
        nodes = [nodes[1], nodes[0], *nodes[2:]]
    info = [onnx.helper.make_tensor_value_info(n, 1, [8, 32]) for n in ("x", "y")]
    graph = onnx.helper.make_graph(nodes, "g", info[:1], info[1:], weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build(tmp_path / "m.onnx")
    build(tmp_path / "swapped.onnx", swapped=True)
    np.savez(tmp_path / "0.npz", x=np.random.default_rng(1).normal(size=(8, 32)).astype(np.float32))
    fp16conv.convert(
        tmp_path / "m.onnx",
        tmp_path / "half.onnx",
        data=[tmp_path / "0.npz"],
        profile="half",
        allow_out_of_tolerance=True,
        provider="emulated",
        repair=False,
    )
    return tmp_path


def validate(cli: Any, folder: Path, candidate: str, *more: str) -> Any:
    data = ("--data", str(folder / "0.npz"), "--provider", "emulated", *more)
    return cli("validate", str(folder / "m.onnx"), str(folder / candidate), *data)


def test_the_operator_that_swallows_digits_is_to_blame(cli: Any, folder: Path) -> None:
    done = validate(cli, folder, "half.onnx", "--per-op", "--format", "json")
    report = json.loads(done.out)
    found = report["per_operator"]
    worst = found["operators"][0]
    assert worst["op"] == "shift"
    assert worst["share"] > 0.9
    assert sum(item["share"] for item in found["operators"]) == pytest.approx(1.0)
    assert found["first"] == "back"  # the sum is right to 11 bits; what is left after the difference is not
    assert found["first_error"] > 0.02


def test_nothing_is_reported_that_was_not_asked_for(cli: Any, folder: Path) -> None:
    assert "per_operator" not in json.loads(validate(cli, folder, "half.onnx", "--format", "json").out)


def test_an_exact_copy_has_no_culprits(cli: Any, folder: Path) -> None:
    done = validate(cli, folder, "m.onnx", "--per-op")
    assert done.code == 0
    assert "none: the outputs are equal" in done.out


def test_models_that_do_not_correspond_are_refused(cli: Any, folder: Path) -> None:
    done = validate(cli, folder, "swapped.onnx", "--per-op")
    assert done.code == 5
    assert "do not correspond" in done.err
