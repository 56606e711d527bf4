"""Constants that act as infinity saturate; weights and guards do not."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

from fp16conv.frontends.onnx import from_proto
from fp16conv.graph import ModelGraph, Origin, RangeFact
from fp16conv.rulebook.book import load_book
from fp16conv.rulebook.judge import judge
from fp16conv.rulebook.types import Verdict, Verdicts

BOOK = load_book()


def load(body: str) -> ModelGraph:
    text = (
        '<ir_version: 10, opset_import: ["" : 21]>'
        f"g (float[2,4] x, bool[2,4] m, float[2,4] z) => (float[2,4] y) {{ {body} }}"
    )
    return from_proto(onnx.parser.parse_model(text), Path("test.onnx")).graph


def saturated(graph: ModelGraph, verdicts: Verdicts) -> set[str]:
    return {graph.values[value].name for value in verdicts.saturated}


def verdict(graph: ModelGraph, verdicts: Verdicts, key: str) -> Verdict:
    found = (j for tv, j in zip(graph.typevars, verdicts.judgements, strict=True) if tv.op is not None
             and graph.ops[tv.op].key == key)  # fmt: skip
    return next(found).verdict


CONST = "c = Constant <value_float = {}> () "


@pytest.mark.parametrize(
    ("number", "body", "op", "saturates", "denied"),
    [
        (-3.4e38, "y = Clip(x, c)", "Clip", True, False),
        (3.4e38, "y = Min(x, c)", "Min", True, False),
        (-1e9, "a = Where(m, x, c)  b = Softmax(a)  y = Neg(b)", "Where", True, False),
        (-1e9, "a = Where(m, x, c)  y = Mul(a, z)", "Where", False, True),  # might be a real number
        (-3e38, "a = Where(m, x, c)  y = Mul(a, z)", "Where", True, False),  # cannot be one
        (1e6, "y = Mul(x, c)", "Mul", False, True),
        (1e6, "y = Add(x, c)", "Add", False, True),
        (60000.0, "y = Mul(x, c)", "Mul", False, False),
        (-1e12, "a = Cast <to = 1> (m)  b = Mul(a, c)  d = Add(x, b)  y = Softmax(d)", "Mul", True, True),
        (-1e9, "a = Add(x, c)  y = Softmax(a)", "Add", True, True),
    ],
)
def test_role_of_a_large_constant(number: float, body: str, op: str, saturates: bool, denied: bool) -> None:
    graph = load(CONST.format(number) + body)
    verdicts = judge(graph, BOOK, {})
    assert ("c" in saturated(graph, verdicts)) == saturates
    assert (verdict(graph, verdicts, op) is Verdict.DENY) == denied


def test_shared_constant_is_not_clipped_where_it_is_a_weight() -> None:
    graph = load(CONST.format(1e6) + "a = Clip(x, , c)  y = Mul(a, c)")
    verdicts = judge(graph, BOOK, {})
    assert saturated(graph, verdicts) == set()
    assert verdict(graph, verdicts, "Mul") is Verdict.DENY


def test_true_infinity_stays_infinity() -> None:
    """+-inf are FP16 numbers: neither saturated nor a reason for FP32."""
    graph = load("c = Constant <value = float {inf}> ()  y = Min(x, c)")
    verdicts = judge(graph, BOOK, {})
    assert saturated(graph, verdicts) == set()
    assert verdict(graph, verdicts, "Min") is Verdict.FOLLOW


def test_half_profile_saturates_nothing() -> None:
    graph = load(CONST.format(-3.4e38) + "y = Clip(x, c)")
    verdicts = judge(graph, BOOK, {}, profile="half")
    assert saturated(graph, verdicts) == set()
    assert verdict(graph, verdicts, "Clip") is Verdict.ALLOW


def test_observed_mask_values_are_no_overflow() -> None:
    graph = load(CONST.format(-3.4e38) + "a = Where(m, x, c)  b = Softmax(a)  y = Neg(b)")
    masked = next(v.id for v in graph.values if v.name == "a")
    for hi, wanted in [(20.0, Verdict.FOLLOW), (60000.0, Verdict.DENY)]:
        facts = {masked: RangeFact(-3.4e38, hi, Origin.OBSERVED)}
        assert verdict(graph, judge(graph, BOOK, facts), "Where") is wanted


def test_damped_mask_is_still_a_mask() -> None:
    body = (
        "a = Where(m, x, c)  s = Constant <value_float = 8.0> ()  d = Div(a, s)  b = Softmax(d)  y = Neg(b)"
    )
    graph = load(CONST.format(-1e8) + body)
    facts = {v.id: RangeFact(-1e8, 20.0, Origin.OBSERVED) for v in graph.values if v.name in ("a", "d")}
    verdicts = judge(graph, BOOK, facts)
    assert verdict(graph, verdicts, "Where") is Verdict.FOLLOW
    assert verdict(graph, verdicts, "Div") is Verdict.INFER
