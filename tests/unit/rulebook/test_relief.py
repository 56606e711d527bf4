"""A norm written out goes FP16 only where measured numbers show that it does no harm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx.parser
import pytest

from fp16conv.frontends.onnx import from_proto
from fp16conv.graph import ModelGraph, Origin, RangeFact
from fp16conv.rulebook.book import load_book
from fp16conv.rulebook.judge import judge
from fp16conv.rulebook.types import Authority, Verdict

BOOK = load_book()


def layer_norm(eps: str = "1e-5") -> ModelGraph:
    text = f"""<ir_version: 8, opset_import: ["" : 13]> g (float[2,8] x, float[8,8] w) => (float[2,8] y)
    <float[1] two = {{2}}, float[1] eps = {{{eps}}}> {{
        h = MatMul(x, w)
        mu = ReduceMean <axes = [-1], keepdims = 1> (h)
        d = Sub(h, mu)
        sq = Pow(d, two)
        var = ReduceMean <axes = [-1], keepdims = 1> (sq)
        e = Add(var, eps)
        s = Sqrt(e)
        n = Div(d, s)
        y = MatMul(n, w)
    }}"""
    return from_proto(onnx.parser.parse_model(text), Path("norm.onnx")).graph


def verdicts_inside(
    graph: ModelGraph, change: Callable[[str, RangeFact], RangeFact | None], profile: str
) -> set[Verdict]:
    calm = {"mu": (-1.0, 1.0, 0.5), "var": (0.5, 2.0, 1.0), "e": (0.5, 2.0, 1.0), "s": (0.7, 1.5, 1.0)}
    facts = {}
    for value in graph.values:
        lo, hi, rms = calm.get(value.name, (-4.0, 4.0, 1.0))
        fact = change(value.name, RangeFact(lo, hi, Origin.OBSERVED, rms=rms))
        if fact is not None and not value.is_constant:
            facts[value.id] = fact
    result = judge(graph, BOOK, facts, profile=profile)
    inside = ("ReduceMean", "Sub", "Pow", "Add", "Sqrt", "Div")
    return {
        j.verdict
        for tv, j in zip(graph.typevars, result.judgements, strict=True)
        if tv.op is not None and graph.ops[tv.op].key in inside
    }


def unchanged(_: str, fact: RangeFact) -> RangeFact:
    return fact


@pytest.mark.parametrize("profile", ["balanced", "fast"])
def test_harmless_norm_is_relieved(profile: str) -> None:
    assert verdicts_inside(layer_norm(), unchanged, profile) == {Verdict.INFER}


def test_safe_profile_grants_no_relief() -> None:
    assert verdicts_inside(layer_norm(), unchanged, "safe") == {Verdict.DENY}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda name, fact: None if name == "sq" else fact, id="a value was not observed"),
        pytest.param(lambda _, fact: replace(fact, origin=Origin.SYNTHETIC), id="synthetic inputs"),
        pytest.param(lambda n, f: replace(f, hi=40000.0) if n == "sq" else f, id="headroom"),
        pytest.param(lambda n, f: replace(f, rms=5.0) if n == "h" else f, id="cancellation"),
        pytest.param(lambda n, f: replace(f, rms=1e-4) if n == "var" else f, id="tiny variance"),
        pytest.param(lambda n, f: replace(f, has_nan=True) if n == "e" else f, id="NaN"),
        pytest.param(lambda n, f: replace(f, min_abs_nonzero=1e-6) if n == "s" else f, id="one tiny divisor"),
    ],
)
def test_any_doubt_keeps_fp32(change: Callable[[str, RangeFact], RangeFact | None]) -> None:
    assert Verdict.DENY in verdicts_inside(layer_norm(), change, "balanced")


def test_small_eps_keeps_fp32() -> None:
    assert Verdict.DENY in verdicts_inside(layer_norm("1e-7"), unchanged, "balanced")


def test_reason_says_so() -> None:
    graph = layer_norm()
    facts = {v.id: RangeFact(-4.0, 4.0, Origin.OBSERVED, rms=1.0) for v in graph.values if not v.is_constant}
    result = judge(graph, BOOK, facts)
    sub = next(tv for tv in graph.typevars if tv.op is not None and graph.ops[tv.op].key == "Sub")
    reason = result.judgements[sub.id].reasons[0]
    assert (reason.rule, reason.authority) == ("decomposed-layer-norm", Authority.EVIDENCE)
    assert "nothing cancels" in reason.text
