"""`fp16conv tune`: flags, exit codes, files, from a real model to a report."""

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose large offset FP16 cannot carry, and data for it."""
    rng = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(rng.normal(size=(64, 64)).astype(np.float32) / 8, f"w{i}")
        for i in range(2)
    ]
    weights.append(onnx.numpy_helper.from_array(np.array(300.0, np.float32), "offset"))
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w0"], ["a"], "first"),
        onnx.helper.make_node("Add", ["a", "offset"], ["b"], "add"),
        onnx.helper.make_node("Sub", ["b", "offset"], ["c"], "sub"),
        onnx.helper.make_node("MatMul", ["c", "w1"], ["y"], "second"),
    ]
    info = [onnx.helper.make_tensor_value_info(n, 1, [16, 64]) for n in ("x", "y")]
    graph = onnx.helper.make_graph(nodes, "g", info[:1], info[1:], weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", x=rng.normal(size=(16, 64)).astype(np.float32))
    return tmp_path


def tune(cli: Any, folder: Path, *more: str) -> Any:
    data = [part for i in range(2) for part in ("--data", str(folder / f"{i}.npz"))]
    return cli("tune", str(folder / "m.onnx"), *data, "--cache", str(folder / "cache"), *more)


def test_a_tuned_file_meets_the_tolerance_and_the_report_says_at_what_cost(cli: Any, folder: Path) -> None:
    output = folder / "o.onnx"
    done = tune(cli, folder, "-o", str(output), "--tolerance", "0.002", "--format", "json", "-q")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["schema"] == "fp16conv.tune/1"
    assert report["met"] is True
    assert report["effort"]["runs"] <= report["effort"]["max_runs"]
    chosen = [point for point in report["frontier"] if point["chosen"]]
    assert len(chosen) == 1
    assert chosen[0]["error"] <= 0.002
    assert any(not point["ok"] for point in report["frontier"])
    assert {m["op"] for m in report["moved"]} & {"add", "sub"}
    checked = fp16conv.validate(
        folder / "m.onnx", output, data=[folder / "0.npz"], rtol=0.002, atol=2e-6, provider="emulated"
    )
    assert checked.ok


def test_measurements_are_kept_and_reused(cli: Any, folder: Path) -> None:
    first = json.loads(tune(cli, folder, "--tolerance", "0.002", "--format", "json").out)
    again = json.loads(tune(cli, folder, "--tolerance", "0.002", "--format", "json").out)
    assert first["effort"]["reused"] == 0
    assert again["effort"]["reused"] == again["effort"]["runs"]
    assert again["frontier"] == first["frontier"]


def test_a_tolerance_that_cannot_be_met_writes_no_file(cli: Any, folder: Path) -> None:
    output = folder / "o.onnx"
    done = tune(
        cli, folder, "-o", str(output), "--tolerance", "1e-5", "--force-fp16", "add", "--no-keep-io-types"
    )
    assert done.code == 1
    assert not output.exists()
    assert "cannot be met" in done.out


def test_flags_that_contradict_each_other(cli: Any, folder: Path) -> None:
    assert tune(cli, folder, "--tolerance", "0.01", "--no-cache").code == 2
    assert cli("tune", str(folder / "m.onnx")).code == 2
    assert tune(cli, folder, "--tolerance", "0.01", "-o", str(folder / "m.onnx")).code == 2


def test_the_text_report_shows_the_frontier(cli: Any, folder: Path) -> None:
    done = tune(cli, folder, "--tolerance", "0.002", "--budget", "60")
    assert done.code == 0
    assert "found by" in done.out
    assert "emulated runs of at most" in " ".join(done.out.split())
    assert done.out.count("\n> ") == 1
