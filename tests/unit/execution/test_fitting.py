from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

from fp16conv.errors import DataError
from fp16conv.execution.fitting import fit_synthetic
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import LoadedModel, from_proto


def load(text: str) -> LoadedModel:
    head = '<ir_version: 9, opset_import: ["": 18]>'
    return from_proto(onnx.parser.parse_model(f"{head} {text}"), Path("m.onnx"))


def test_a_batch_of_one_is_tried_where_two_does_not_run() -> None:
    """The graph says `n` but adds a state of one row in a Reshape."""
    loaded = load(
        "g (float[n, 8] x) => (float[a, b] y) "
        "{ shape = Constant<value_ints = [1, 8]>() y = Reshape(x, shape) }"
    )
    with Runtime(threads=1) as runtime:
        source = fit_synthetic(loaded, runtime)
    assert [batch["x"].shape for batch in source] == [(1, 8), (1, 8)]


def test_image_height_is_found() -> None:
    loaded = load(
        "g (float[n, 3, h, w] x) => (float[a, b, c] y) "
        "{ shape = Constant<value_ints = [1, 144, 320]>() y = Reshape(x, shape) }"
    )
    with Runtime(threads=1) as runtime:
        source = fit_synthetic(loaded, runtime)
    assert next(iter(source))["x"].shape == (1, 3, 48, 320)
    assert "synthetic" in source.describe()


def test_where_nothing_runs_the_hint_says_what_to_do() -> None:
    loaded = load(
        "g (float[n, 3] x) => (float[a] y) { shape = Constant<value_ints = [17, 7]>() y = Reshape(x, shape) }"
    )
    with Runtime(threads=1) as runtime, pytest.raises(DataError, match=r"Reshape(.|\n)*--data(.|\n)*--shape"):
        fit_synthetic(loaded, runtime)
