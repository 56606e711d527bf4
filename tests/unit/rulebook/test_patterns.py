"""The pattern engines: language errors, bindings, boundaries of subgraphs, rims, order and limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx.parser
import pytest

from fp16conv.errors import RuleError
from fp16conv.frontends.onnx import from_proto
from fp16conv.graph import ModelGraph, Origin, RangeFact
from fp16conv.rulebook.pattern_language import parse_condition, parse_specs, parse_template
from fp16conv.rulebook.patterns import PatternRule, match_patterns, parse_pattern
from fp16conv.rulebook.types import PatternHit, Verdict


def load(text: str, opset: int = 13) -> ModelGraph:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}, "my" : 1]> g {text}')
    return from_proto(proto, Path("test.onnx")).graph


def rule(match: Mapping[str, object], **more: object) -> PatternRule:
    head = {"id": "test", "name": "test", "verdict": "deny", "rationale": "r", "evidence": "e"}
    return parse_pattern({**head, "match": match, **more}, "test.toml")


def hits(
    graph: ModelGraph, *rules: PatternRule, facts: Mapping[int, RangeFact] | None = None
) -> list[PatternHit]:
    return list(match_patterns(graph, rules, facts or {}))


def marked(graph: ModelGraph, found: list[PatternHit]) -> set[str]:
    """Output names of marked operators; symbols of marked boundaries."""
    names = set()
    for tv in (graph.typevars[i] for hit in found for i in hit.typevars):
        if tv.op is None or graph.ops[tv.op].subscopes:
            names.add(f"<{tv.symbol}>")
        else:
            names.add(graph.values[graph.ops[tv.op].outputs[0]].name)  # type: ignore[index]
    return names


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", "without statements"),
        ("y = Div(x", "expected"),
        ("y = Div(x, {big})", "not a condition"),
        ("y = Div(x, {>>3})", "not a condition"),
        ("y = x", "made of calls"),
        ("a = Abs(x)\ny = Neg(x)", "never used"),
        ("y = Abs(x)\ny = Neg(x)", "defined twice"),
        ("y = Abs(x) z", "left over"),
        ("y = Abs(x ! z)", "cannot read"),
        ("y = Clip[min<low](x)", "not a condition"),
    ],
)
def test_malformed_templates_are_refused(template: str, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        parse_template(template, "test")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("Sin:", "not an operator specification"),
        ("@moves", "unknown operator set"),
        ("Cast text->int", "not a kind"),
        ("Add const{huge}", "not a condition"),
    ],
)
def test_malformed_specifications_are_refused(spec: str, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        parse_specs((spec,), "test")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verdict": "maybe"}, "maybe"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"match": {}}, "needs 'template' or 'start'"),
        ({"match": {"start": ["Sin:0", "Range"]}}, "must go up"),
        ({"match": {"template": "y = Abs(x)", "mark": ["z"]}}, "unknown value 'z'"),
        ({"match": {"template": "y = Abs(x)", "saturate": ["c"]}}, "unknown value 'c'"),
        ({"match": {"template": "y = Abs(x)", "start": ["Sin:0"]}}, "unknown key 'start'"),
        ({"name": ""}, "name"),
        ({"example": [{"marks": ["x"]}]}, "must hold the graph"),
    ],
)
def test_malformed_rules_are_refused(change: dict[str, object], message: str) -> None:
    data = {"id": "t", "name": "t", "verdict": "deny", "rationale": "r", "match": {"template": "y = Abs(x)"}}
    with pytest.raises(RuleError, match=message):
        parse_pattern({**data, **change}, "test.toml")


def test_conditions_look_at_every_element_or_at_the_peak() -> None:
    graph = load("""(float[3] x) => (float[3] a, float[3] b)
        <float[3] mask = {0, -20000, -1e30}, float[3] mixed = {0, -20000, 5}> {
        a = Add(x, mask)
        b = Add(x, mixed)
    }""")
    for condition, expected in (
        ("{nonzero<=-1e4}", {"a"}),
        ("{peak>=20000}", {"a", "b"}),
        ("{<10}", {"a", "b"}),
        ("{<=0}", {"a"}),
        ("{vector, peak>1e6}", {"a"}),
        ("{scalar}", set()),
    ):
        assert marked(graph, hits(graph, rule({"template": f"y = Add(_, {condition})"}))) == expected
    with pytest.raises(RuleError, match="left over"):
        parse_condition("{<1} 2", "test")


def test_a_free_name_is_one_value_and_reshapes_are_seen_through() -> None:
    graph = load("""(float[4] x, float[4] z) => (float[2,2] a, float[4] b) <int64[2] s = {2, 2}> {
        r = Reshape(x, s)
        t = Reshape(x, s)
        a = Mul(r, t)
        b = Mul(x, z)
    }""")
    assert marked(graph, hits(graph, rule({"template": "y = Mul(x, x)"}))) == {"a"}


def test_reshapes_between_matched_operators_belong_to_the_interior() -> None:
    graph = load("""(float[4] x) => (float[2,2] y) <int64[2] s = {2, 2}> {
        e = Exp(x)
        r = Reshape(e, s)
        y = Neg(r)
        out = Reshape(y, s)
    }""")
    found = hits(graph, rule({"template": "y = Neg(e)\n", "mark": ["y"]}))
    assert marked(graph, found) == {"y"}
    found = hits(graph, rule({"template": "y = Neg(Exp(_))"}))
    assert marked(graph, found) == {"e", "r", "y"}


def test_a_recursive_production_ends() -> None:
    lines = "\n".join(f"t{i + 1} = Add(t{i}, t{i})" for i in range(60))
    graph = load(f"(float[4] t0) => (float[4] y) {{ {lines}\n y = Sqrt(t60) }}")
    deep = rule({"template": "s := Add(s, s) | Exp(_)\ny = Sqrt(s)"})
    assert hits(graph, deep) == []


def test_a_template_reads_captured_values_inside_a_subgraph() -> None:
    graph = load("""(float[4] x, bool c) => (float[4] y) {
        e = Exp(x)
        y = If (c) <
            then_branch = t () => (float[4] ty) { ty = Neg(e) },
            else_branch = f () => (float[4] fy) { fy = Abs(e) }
        >
    }""")
    assert marked(graph, hits(graph, rule({"template": "y = Neg(Exp(_))"}))) == {"e", "ty"}


def test_a_walk_up_crosses_an_if() -> None:
    graph = load("""(float[4] x, bool c) => (float[4] y) {
        v = If (c) <
            then_branch = t () => (float[4] ty) { ty = Mul(x, x) },
            else_branch = f () => (float[4] fy) { fy = Neg(x) }
        >
        y = Sin(v)
    }""")
    found = hits(graph, rule({"start": ["Sin:0"], "through": ["@arithmetic"]}))
    assert marked(graph, found) == {"y", "ty", "fy", "<V:0>"}


def test_a_walk_crosses_a_function() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13, "my" : 1]>
        g (float[4] x) => (float[4] y) { a = Mul(x, x) b = my.Wave(a) y = Relu(b) }
        <domain: "my", opset_import: ["" : 13]>
        Wave (u) => (v) { n = Neg(u) v = Sin(n) }
    """)
    graph = from_proto(proto, Path("test.onnx")).graph
    found = hits(graph, rule({"start": ["Sin:0"], "through": ["Mul", "Neg"]}))
    assert {"a", "n", "v"} <= marked(graph, found)
    assert "y" not in marked(graph, found)


def test_a_walk_down_enters_a_subgraph_by_capture() -> None:
    graph = load("""(int64[4] n, bool c) => (float[4] y) <float[1] k = {3}> {
        f = Cast <to = 1> (n)
        y = If (c) <
            then_branch = t () => (float[4] ty) { ty = Mul(f, k) },
            else_branch = e () => (float[4] ey) { ey = Neg(f) }
        >
    }""")
    found = hits(graph, rule({"start": ["Cast int->float"], "through": ["@arithmetic"]}))
    assert {"f", "ty", "ey"} <= marked(graph, found)


def test_movement_at_the_rim_is_not_marked() -> None:
    graph = load("""(float[4] x) => (float[4] y) <int64[1] s = {4}> {
        a = Reshape(x, s)
        b = Neg(a)
        c = Reshape(b, s)
        y = Sin(c)
    }""")
    found = hits(graph, rule({"start": ["Sin:0"], "through": ["@arithmetic", "@movement"]}))
    assert marked(graph, found) == {"b", "c", "y"}


def test_a_start_without_a_path_is_no_hit() -> None:
    graph = load("(float[4] x) => (float[4] y) { y = Sin(x) }")
    assert hits(graph, rule({"start": ["Sin:0"], "through": ["@arithmetic"]})) == []


def test_what_depends_on_a_product_is_left_alone_with_unless() -> None:
    graph = load("""(float[4,4] x) => (float[4,4] y, float[4,4] z) {
        m = MatMul(x, x)
        a = Neg(m)
        b = Neg(x)
        y = Sin(a)
        z = Sin(b)
    }""")
    walk = rule({"start": ["Sin:0"], "through": ["@arithmetic"], "unless": ["@product"]})
    assert marked(graph, hits(graph, walk)) == {"b", "z"}


def test_a_walk_stops_at_the_trunk_of_a_residual_network() -> None:
    graph = load("""(float[4,4] x, float[4,4] w) => (int64[4] y) {
        a = MatMul(x, w)
        r1 = Add(x, a)
        b = MatMul(r1, w)
        r2 = Add(r1, b)
        n = Neg(r2)
        y = ArgMax <axis = 1, keepdims = 0> (n)
    }""")
    walk = rule({"start": ["ArgMax:0"], "through": ["@arithmetic"]})
    assert marked(graph, hits(graph, walk)) == {"n", "y"}


def test_a_short_contraction_is_geometry_and_not_a_layer() -> None:
    graph = load("""(float[1,8] p, float[8,8] x) => (float[8,8] y, float[8,8] z)
        <float[8,1] f = {1,2,3,4,5,6,7,8}> {
        a = MatMul(f, p)
        b = MatMul(x, x)
        y = Sin(a)
        z = Sin(b)
    }""")
    assert marked(graph, hits(graph, rule({"start": ["Sin:0"], "through": ["MatMul inner<=4"]}))) == {
        "a",
        "y",
    }


def test_proven_small_integers_lift_a_hit_and_observed_ones_do_not() -> None:
    graph = load(
        """(int64[4] n) => (float[4] y) <float[1] one = {1}> { f = Cast <to = 1> (n) y = Add(f, one) }"""
    )
    walk = rule({"start": ["Cast int->float"], "through": ["Add"], "unless_exact_integers": True})
    values = [v.id for v in graph.values if v.name in ("f", "y")]

    def facts(top: float, origin: Origin) -> dict[int, RangeFact]:
        return {v: RangeFact(0.0, top, origin, is_integral=True) for v in values}

    assert hits(graph, walk, facts=facts(2048, Origin.PROVEN)) == []
    assert len(hits(graph, walk, facts=facts(2049, Origin.PROVEN))) == 1
    assert len(hits(graph, walk, facts=facts(100, Origin.OBSERVED))) == 1


def test_a_rule_yields_whatever_the_order_of_the_files() -> None:
    graph = load("(float[4] x) => (float[4] y) { e = Exp(x) y = Neg(e) }")
    broad = rule({"template": "y = Neg(_)", "yields_to": "narrow"}, id="broad")
    narrow = rule({"template": "y = Neg(Exp(_))"}, id="narrow")
    for order in ((broad, narrow), (narrow, broad)):
        assert [h.rule for h in hits(graph, *order)] == ["narrow"]
    loop = rule({"template": "y = Neg(Exp(_))", "yields_to": "broad"}, id="narrow")
    with pytest.raises(RuleError, match="circle"):
        hits(graph, broad, loop)


def test_a_hit_names_operators_and_saturating_constants() -> None:
    graph = load("""(bool[4] m, float[4] x) => (float[4] y) <float[1] low = {-1e9}> {
        w = Where(m, x, low)
        y = Softmax(w)
    }""")
    match = {"template": "y = Softmax(Where(_, _, low{<-1e4}))", "mark": [], "saturate": "low"}
    [hit] = hits(graph, rule(match, verdict="follow"))
    assert hit.verdict is Verdict.FOLLOW
    assert hit.typevars == ()
    assert [graph.values[v].name for v in hit.saturated] == ["low"]
    assert "low" in hit.reason.text


def test_fills_and_reshaped_constants_count_as_constants() -> None:
    graph = load("""(bool[4] m, float[4] x, int64[1] n) => (float[4] y)
        <float low = {-1e9}, int64[1] s = {1}> {
        fill = ConstantOfShape <value = float[1] {-1e9}> (n)
        flat = Reshape(low, s)
        a = Where(m, x, fill)
        b = Where(m, a, flat)
        y = Neg(b)
    }""")
    found = hits(graph, rule({"template": "y = Where(_, _, {<-1e4})"}))
    assert marked(graph, found) == {"a", "b"}
