"""Judging: precedence, pins, kernels, numbers, profiles, and what the user names."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

from fp16conv.errors import UsageError
from fp16conv.frontends.onnx import from_proto
from fp16conv.graph import ModelGraph, Origin, RangeFact
from fp16conv.rulebook.book import RuleBook, load_book
from fp16conv.rulebook.judge import judge
from fp16conv.rulebook.types import Authority, Judgement, Verdict, Verdicts

BOOK = load_book()
MLP = """(float[2,3] x, float[3,4] w) => (float[2,4] y) {
    [first] a = MatMul(x, w)
    [act] b = Relu(a)
    [soft] y = Softmax(b)
}"""


def load(text: str, opset: int = 21) -> ModelGraph:
    imports = f'"" : {opset}, "com.microsoft" : 1, "my.domain" : 1'
    proto = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{imports}]> g {text}")
    return from_proto(proto, Path("test.onnx")).graph


def of(graph: ModelGraph, verdicts: Verdicts, key: str, symbol: str | None = None) -> Judgement:
    """Judgement of the first type variable of an operator type (`-` for the interface)."""
    for tv, judgement in zip(graph.typevars, verdicts.judgements, strict=True):
        found = "-" if tv.op is None else graph.ops[tv.op].key
        if found == key and symbol in (None, tv.symbol):
            return judgement
    raise AssertionError(f"no {key} {symbol}")


def fact(graph: ModelGraph, name: str, lo: float, hi: float, **more: object) -> dict[int, RangeFact]:
    index = next(v.id for v in graph.values if v.name == name)
    return {index: RangeFact(lo, hi, **{"origin": Origin.OBSERVED, **more})}  # type: ignore[arg-type]


def test_interface_is_pinned_unless_asked_otherwise() -> None:
    graph = load(MLP)
    pinned = of(graph, judge(graph, BOOK, {}), "-")
    free = of(graph, judge(graph, BOOK, {}, keep_io_types=False), "-")
    assert (pinned.verdict, pinned.reasons[0].rule) == (Verdict.NEVER, "io-type")
    assert free.verdict is Verdict.FOLLOW


def test_illegal_type_is_never_and_cannot_be_forced() -> None:
    graph = load("(float[2] x) => (float[2] y) { y = Celu(x) }", opset=12)
    found = of(graph, judge(graph, BOOK, {}, force_fp16=["type:Celu"]), "Celu")
    assert (found.verdict, found.reasons[0].rule) == (Verdict.NEVER, "illegal-type")


def test_unknown_domain_is_never() -> None:
    graph = load("(float[2] x) => (float[2] y) { z = my.domain.Foo(x)  y = Relu(z) }")
    reasons = [j.reasons[0].rule for j in judge(graph, BOOK, {}).judgements if j.verdict is Verdict.NEVER]
    assert {"unknown-domain", "illegal-type"} & set(reasons)


def test_the_rim_of_a_graph_inside_an_unknown_operator_is_never() -> None:
    graph = load("""(float[2] x) => (float[2] y) {
        y = my.domain.Map <body = b (float[2] s) => (float[2] t) { t = Relu(s) }> (x)
    }""")
    rim = [
        judgement.reasons[0]
        for tv, judgement in zip(graph.typevars, judge(graph, BOOK, {}).judgements, strict=True)
        if tv.op is None and tv.scope != graph.main.id
    ]
    assert [reason.rule for reason in rim] == ["illegal-type", "illegal-type"]
    assert all("inside an operator" in reason.text for reason in rim)


def test_command_line_wins_and_keeps_the_losers() -> None:
    graph = load(MLP)
    verdicts = judge(graph, BOOK, {}, keep_fp32=["first"], force_fp16=["type:Softmax"])
    kept, forced = of(graph, verdicts, "MatMul"), of(graph, verdicts, "Softmax")
    assert kept.verdict is Verdict.DENY
    assert [r.rule for r in kept.reasons] == ["keep-fp32", "matrix-product"]
    assert kept.reasons[0].authority is Authority.COMMAND_LINE
    assert forced.verdict is Verdict.ALLOW
    assert [r.rule for r in forced.reasons] == ["force-fp16", "softmax-overflow"]


def test_globs_match_names_and_types() -> None:
    graph = load(MLP)
    verdicts = judge(graph, BOOK, {}, keep_fp32=["*t"])
    assert of(graph, verdicts, "MatMul").verdict is Verdict.DENY  # first
    assert of(graph, verdicts, "Relu").verdict is Verdict.DENY  # act
    assert [r.rule for r in of(graph, verdicts, "Softmax").reasons] == ["keep-fp32", "softmax-overflow"]


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("frist", "did you mean 'first'?"),
        ("type:Sofmax", "did you mean 'type:Softmax'?"),
        ("Softmax", "did you mean 'type:Softmax'?"),
        ("zzz", "globs on operator names"),
        ("", "globs on operator names"),
    ],
)
def test_unmatched_pattern_is_an_error_with_a_suggestion(pattern: str, hint: str) -> None:
    with pytest.raises(UsageError, match="matches no operator") as caught:
        judge(load(MLP), BOOK, {}, keep_fp32=[pattern])
    assert hint in str(caught.value)


def test_contradictory_patterns_are_an_error() -> None:
    with pytest.raises(UsageError, match="both"):
        judge(load(MLP), BOOK, {}, keep_fp32=["first"], force_fp16=["type:MatMul"])


def test_keep_fp32_reaches_into_bodies() -> None:
    graph = load(
        "(bool c, float[2] x) => (float[2] y) { [choice] y = If <"
        "then_branch = t () => (float[2] a) { a = Relu(x) },"
        "else_branch = e () => (float[2] b) { b = Neg(x) }> (c) }"
    )
    verdicts = judge(graph, BOOK, {}, keep_fp32=["choice"])
    assert {of(graph, verdicts, key).verdict for key in ("If", "Relu", "Neg")} == {Verdict.DENY}


def user_book(tmp_path: Path, text: str) -> RuleBook:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return load_book(path)


def test_rules_file_beats_profile_and_loses_to_command_line(tmp_path: Path) -> None:
    book = user_book(
        tmp_path, '[[rule]]\nid = "softmax-is-fine"\nverdict = "allow"\nmatch = { op = ["Softmax"] }\n'
    )
    graph = load(MLP)
    for profile in ("balanced", "safe"):
        found = of(graph, judge(graph, book, {}, profile=profile), "Softmax")
        assert found.verdict is Verdict.ALLOW
        assert found.reasons[0].authority is Authority.RULES_FILE
    found = of(graph, judge(graph, book, {}, keep_fp32=["soft"]), "Softmax")
    assert [r.rule for r in found.reasons] == ["keep-fp32", "softmax-is-fine", "softmax-overflow"]


def test_rules_file_can_name_operators_and_numbers(tmp_path: Path) -> None:
    text = (
        '[[rule]]\nid = "named"\nverdict = "deny"\nmatch = { name = ["fir*"] }\n'
        '[[rule]]\nid = "spacing"\nverdict = "deny"\n'
        'match = { op = ["Re*"], fact = { on = "output", when = [{ metric = "max_abs", above = 512 }] } }\n'
    )
    book, graph = user_book(tmp_path, text), load(MLP)
    verdicts = judge(graph, book, fact(graph, "b", 0.0, 600.0))
    assert of(graph, verdicts, "MatMul").reasons[0].rule == "named"
    relu = of(graph, verdicts, "Relu")
    assert (relu.verdict, relu.reasons[0].rule) == (Verdict.DENY, "spacing")
    assert "600" in relu.reasons[0].text


def test_profiles() -> None:
    text = "(float[2,3] x, float[3,4] w) => (float[2,4] y) { a = MatMul(x, w)  b = Sigmoid(a)  y = Exp(b) }"
    graph = load(text)
    expected = {
        "balanced": (Verdict.ALLOW, Verdict.INFER, Verdict.DENY),
        "safe": (Verdict.ALLOW, Verdict.DENY, Verdict.DENY),
        "half": (Verdict.ALLOW, Verdict.ALLOW, Verdict.ALLOW),
    }
    for profile, wanted in expected.items():
        verdicts = judge(graph, BOOK, {}, profile=profile)
        assert tuple(of(graph, verdicts, k).verdict for k in ("MatMul", "Sigmoid", "Exp")) == wanted


def test_fast_relaxes_only_where_the_range_is_known() -> None:
    graph = load("(float[2,4] x) => (float[2,4] y) { a = Neg(x)  b = Softmax(a)  y = Neg(b) }")
    known = {**fact(graph, "a", -9.0, 9.0), **fact(graph, "b", 0.0, 1.0)}
    made_up = {**known, **fact(graph, "a", -9.0, 9.0, origin=Origin.SYNTHETIC)}
    large = {**known, **fact(graph, "a", -60000.0, 9.0)}
    wanted = [({}, Verdict.DENY), (known, Verdict.INFER), (made_up, Verdict.DENY), (large, Verdict.DENY)]
    for facts, verdict in wanted:
        assert of(graph, judge(graph, BOOK, facts, profile="fast"), "Softmax").verdict is verdict
    assert of(graph, judge(graph, BOOK, known), "Softmax").verdict is Verdict.DENY, "balanced does not"
    generic = judge(graph, BOOK, known, profile="fast", target="generic")
    assert of(graph, generic, "Softmax").verdict is Verdict.DENY, "no fused kernel is known"


def test_headroom_depends_on_the_origin() -> None:
    graph = load("(float[2] a, float[2] b) => (float[2] y) { c = Add(a, b)  y = Neg(c) }")
    for origin, magnitude, verdict in [
        (Origin.PROVEN, 65000.0, Verdict.INFER),
        (Origin.PROVEN, 65505.0, Verdict.INFER),  # a bound that is large shows nothing
        (Origin.OBSERVED, 32000.0, Verdict.INFER),
        (Origin.OBSERVED, 33000.0, Verdict.DENY),
        (Origin.SYNTHETIC, 17000.0, Verdict.DENY),
    ]:
        verdicts = judge(graph, BOOK, fact(graph, "c", 0.5, magnitude, origin=origin))
        assert of(graph, verdicts, "Add").verdict is verdict, (origin, magnitude)


def test_kernel_coverage() -> None:
    sample = "(float[1,1,4,4] x, float[1,2,2,2] g) => (float[1,1,2,2] y) { y = GridSample(x, g) }"
    graph = load(sample)
    cuda = of(graph, judge(graph, BOOK, {}), "GridSample")
    assert cuda.reasons[0].rule == "no-fp16-kernel"
    assert "sampling-grid-rounding" in {r.rule for r in cuda.reasons}
    atan = load("(float[2] x) => (float[2] y) { y = Atan(x) }")
    assert of(atan, judge(atan, BOOK, {}), "Atan").reasons[0].rule == "no-kernel"
    assert of(atan, judge(atan, BOOK, {}, target="tensorrt"), "Atan").verdict is Verdict.INFER
    conv = load("(float[1,2,4,4] x, float[3,2,3,3] w) => (float[1,3,2,2] y) { y = Conv(x, w) }")
    assert of(conv, judge(conv, BOOK, {}, target="onnxruntime-cpu"), "Conv").verdict is Verdict.DENY


def test_kernels_that_need_equal_types_make_a_group() -> None:
    graph = load(
        "(float[1,2,4] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[1,2,4] y)"
        "{ y = BatchNormalization(x, s, b, m, v) }"
    )
    members = {tv.id for tv in graph.typevars if tv.op is not None}
    assert len(members) == 3
    grouped = {tv for group in judge(graph, BOOK, {}).groups for tv in group.typevars}
    assert grouped == members
    assert judge(graph, BOOK, {}, target="tensorrt").groups == ()


def test_kernel_that_exists_in_fp16_only_is_mandatory() -> None:
    graph = load(
        "(float[1,2,8] q, float[1,2,8] k, float[1,2,8] v, int32[1] n, int32 t) => (float[1,2,8] y)"
        "{ y = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2> (q, k, v, , , n, t) }"
    )
    found = of(graph, judge(graph, BOOK, {}), "com.microsoft::GroupQueryAttention", "T")
    assert (found.verdict, found.reasons[0].rule) == (Verdict.ALLOW, "only-fp16-kernel")


ISLAND = """(float16[2,4] x) => (float16[2,4] y) {
    [up] a = Cast <to = 1> (x)
    [inside] b = Softmax(a)
    [down] c = Cast <to = 10> (b)
    y = Neg(c)
}"""


def test_fp32_island_of_the_user_stays() -> None:
    graph = load(ISLAND)
    verdicts = judge(graph, BOOK, {})
    assert {j.verdict for j in verdicts.judgements} == {Verdict.NEVER}
    assert of(graph, verdicts, "Softmax").reasons[0].rule == "fp32-island"
    forced = judge(graph, BOOK, {}, force_fp16=["inside"])
    assert of(graph, forced, "Softmax").verdict is Verdict.ALLOW


def test_fp32_model_with_half_inputs_is_no_island() -> None:
    graph = load("(float16[2,4] x, float[2,4] z) => (float[2,4] y) { a = Cast <to = 1> (x)  y = Add(a, z) }")
    assert of(graph, judge(graph, BOOK, {}), "Add").verdict is Verdict.INFER


def test_narrowing_cast_of_the_user_stays() -> None:
    graph = load("(float[2] x) => (bfloat16[2] y) { a = Neg(x)  y = Cast <to = 16> (a) }")
    found = of(graph, judge(graph, BOOK, {}), "Cast")
    assert (found.verdict, found.reasons[0].rule) == (Verdict.NEVER, "users-cast")
    assert "BFLOAT16" in found.reasons[0].text


def test_rules_may_name_attributes_that_hold_types(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        '[[rule]]\nid = "own"\nname = "own"\nverdict = "deny"\nrationale = "r"\nevidence = ["e"]\n'
        'match = { op = ["Optional"], attribute = { type = ["float"] } }\n'
    )
    element = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2])
    nodes = [
        onnx.helper.make_node("Optional", [], ["o"], type=element),
        onnx.helper.make_node("OptionalGetElement", ["o"], ["y"]),
    ]
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    proto = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], [output]))
    graph = from_proto(proto, Path("test.onnx")).graph
    assert "own" not in [r.rule for r in of(graph, judge(graph, load_book(path), {}), "Optional").reasons]
