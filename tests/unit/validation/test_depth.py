from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx.parser

from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import load_onnx
from fp16conv.graph import DataType
from fp16conv.validation.depth import errors_of_model, errors_of_plan

TEXT = """
<ir_version: 8, opset_import: ["": 17]>
g (float[4] x) => (float[4] y, float[4] w) {
    big = Mul(x, x)
    y = Relu(big)
    w = Relu(x)
}
"""


def save(folder: Path) -> Path:
    path = folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return path


def test_overflow_shows_where_it_starts_and_behind_it(tmp_path: Path) -> None:
    loaded = load_onnx(save(tmp_path))
    batch = {"x": np.array([1000.0, 1.0, 2.0, 0.1], np.float32)}
    with Runtime() as runtime:
        half = [DataType.FLOAT16] * len(loaded.graph.typevars)
        errors = errors_of_plan(loaded, half, batch, runtime)
        exact = errors_of_plan(loaded, [DataType.FLOAT] * len(half), batch, runtime)
        split = errors_of_plan(loaded, half, batch, runtime, memory_limit=1)
    named = {loaded.graph.values[v].name: error for v, error in errors.items()}
    assert named["big"] == named["y"] == math.inf
    assert 0 < named["w"] < 2.0**-11
    assert set(exact.values()) == {0.0}
    assert split == errors


def test_two_models_are_matched_by_name(tmp_path: Path) -> None:
    loaded = load_onnx(save(tmp_path))
    with Runtime() as runtime:
        errors = errors_of_model(loaded, loaded, {"x": np.ones(4, np.float32)}, runtime)
    assert {loaded.graph.values[v].name for v in errors} == {"big", "y", "w"}
    assert set(errors.values()) == {0.0}
