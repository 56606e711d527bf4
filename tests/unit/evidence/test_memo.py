"""What is kept of transfer functions changes no bound."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from benchmarks.random_graphs import make_graph
from fp16conv.evidence.abstract.domain import interval
from fp16conv.evidence.abstract.memo import Memo
from fp16conv.evidence.bounds import prove_bounds
from fp16conv.frontends.onnx import load_onnx


def _prove(model: onnx.ModelProto, ranges: dict[str, tuple[float, float]], path: Path) -> str:
    onnx.save(model, path)
    return repr(prove_bounds(load_onnx(path).graph, ranges))


def _forget(self: Memo, key: Hashable) -> None:
    """Stands in for `Memo.get`."""


@pytest.mark.parametrize("seed", range(12))
def test_same_bounds_without(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ranges = make_graph(np.random.default_rng(seed), steps=20)
    expected = _prove(model, ranges, tmp_path / "model.onnx")
    monkeypatch.setattr(Memo, "get", _forget)
    assert _prove(model, ranges, tmp_path / "model.onnx") == expected


TWINS = """
<ir_version: 8, opset_import: ["" : 17]>
twins (float[4, 4] x) => (float[4, 4] y)
<float[4, 4] u = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}, float[4, 4] v = {2,0,0,0, 0,2,0,0, 0,0,2,0, 0,0,0,2}>
{
    a = Softmax(x)
    b = Softmax(x)
    p = MatMul(a, u)
    q = MatMul(b, v)
    c = Tanh(x)
    d = Tanh(x)
    product = Mul(c, d)
    square = Mul(c, c)
    y = Sum(p, q, product, square)
}
"""


def test_constants_and_repeated_operands_are_told_apart(tmp_path: Path) -> None:
    onnx.save(parser.parse_model(TWINS), tmp_path / "model.onnx")
    graph = load_onnx(tmp_path / "model.onnx").graph
    facts = {graph.values[v].name: fact for v, fact in prove_bounds(graph).items()}
    assert facts["p"].hi < 1.1
    assert 1.9 < facts["q"].hi < 2.1
    assert facts["product"].lo < -0.9
    assert facts["square"].lo >= 0


def test_a_negative_zero_is_not_a_zero() -> None:
    memo = Memo()
    zero, negative = interval(0.0, 1.0), interval(-0.0, 1.0)
    assert memo.unify(zero) is zero
    assert memo.unify(negative) is negative
    assert memo.unify(interval(0.0, 1.0)) is zero
