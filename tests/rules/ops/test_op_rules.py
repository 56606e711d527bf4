"""Every packaged rule does what its examples say, and every operator has exactly one class."""

from __future__ import annotations

from pathlib import Path

import onnx.defs
import onnx.parser
import pytest

from fp16conv.frontends.onnx import from_proto
from fp16conv.graph import ModelGraph, Origin, RangeFact
from fp16conv.rulebook.book import RuleBook, load_book
from fp16conv.rulebook.judge import judge
from fp16conv.rulebook.schema import Example, Rule, RuleKind
from fp16conv.rulebook.types import Verdict

BOOK = load_book()
DOMAINS = ("com.microsoft", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
VERSION = {"ai.onnx.ml": 5}
ENUMERATION = 30  # smallest plausible number of com.microsoft operators in the schema file


def load(example: Example) -> ModelGraph:
    imports = ", ".join(f'"{d}" : {VERSION.get(d, 1)}' for d in DOMAINS)
    text = f'<ir_version: 10, opset_import: ["" : {example.opset}, {imports}]> g {example.graph}'
    return from_proto(onnx.parser.parse_model(text), Path("example.onnx")).graph


def fired(rule: Rule, example: Example, book: RuleBook = BOOK) -> bool:
    """Whether the rule is among the reasons of any type variable of an operator."""
    graph = load(example)
    ids = {value.name: value.id for value in graph.values}
    facts = {
        ids[name]: RangeFact(**{"origin": Origin.OBSERVED, **fact})  # type: ignore[arg-type]
        for name, fact in example.facts.items()
    }
    verdicts = judge(graph, book, facts, target=example.target)
    return any(rule.id in {r.rule for r in j.reasons} for j in verdicts.judgements)


CASES = [
    pytest.param(rule, example, id=f"{rule.id}-{i}-{'flagged' if example.flagged else 'ok'}")
    for rule in BOOK.rules
    if rule.file.startswith("ops/")  # those of aten/ are PyTorch calls: tests/fx
    for i, example in enumerate(rule.examples)
    if rule.verdict is not Verdict.NEVER
]


@pytest.mark.parametrize(("rule", "example"), CASES)
def test_rule_fires_on_its_flagged_examples_only(rule: Rule, example: Example) -> None:
    assert fired(rule, example) == example.flagged


NEVER = [r for r in BOOK.rules if r.verdict is Verdict.NEVER and r.file.startswith("ops/")]


@pytest.mark.parametrize("rule", NEVER, ids=lambda r: r.id)
def test_operators_of_fixed_type_never_change(rule: Rule) -> None:
    for example in rule.examples:
        graph = load(example)
        verdicts = judge(graph, BOOK, {}, keep_io_types=False)
        for tv, judgement in zip(graph.typevars, verdicts.judgements, strict=True):
            if tv.op is not None and graph.ops[tv.op].key in rule.match.op:
                assert judgement.verdict in (Verdict.NEVER, Verdict.DENY)


def test_every_onnx_operator_has_one_class() -> None:
    """All operators of all opsets that onnx knows; `load_book` itself refuses two classes for one."""
    keys = {f"{s.domain}::{s.name}" if s.domain else s.name for s in onnx.defs.get_all_schemas_with_history()}
    assert sorted(k for k in keys if BOOK.base_rule(k) is None) == []


def test_every_contrib_operator_has_one_class() -> None:
    import json

    from fp16conv._data import rules_dir

    data = json.loads((rules_dir() / "schemas" / "com.microsoft.json").read_text(encoding="utf-8"))
    keys = [f"com.microsoft::{op}" for op in data["operators"]]
    assert len(keys) > ENUMERATION
    assert [k for k in keys if BOOK.base_rule(k) is None] == []


def test_operators_that_only_old_runtimes_know_have_a_class() -> None:
    for key in ("ParametricSoftplus", "Scale", "Crop", "GRUUnit", "SimplifiedLayerNormalization", "Upsample"):
        assert BOOK.base_rule(key) is not None


def test_denied_operators_name_their_arithmetic() -> None:
    for rule in BOOK.rules:
        assert len(rule.rationale) > 20, rule.id
        assert rule.evidence, rule.id
        if rule.kind is RuleKind.EVIDENCE:
            text = rule.text.format(value="v", measured=1.0, limit=2.0, origin="observed", headroom=2.0)
            assert "'v'" in text, rule.id


@pytest.mark.parametrize(
    ("key", "verdict"),
    [
        ("Conv", "allow"),
        ("Gemm", "allow"),
        ("MatMul", "allow"),
        ("LSTM", "allow"),
        ("Attention", "allow"),
        ("Softmax", "deny"),
        ("LayerNormalization", "deny"),
        ("ReduceMean", "deny"),
        ("Exp", "deny"),
        ("Pow", "deny"),
        ("Relu", "follow"),
        ("Reshape", "follow"),
        ("Concat", "follow"),
        ("Add", "infer"),
        ("Mul", "infer"),
        ("Sigmoid", "infer"),
        ("Gelu", "infer"),
        ("GlobalAveragePool", "infer"),
        ("NonMaxSuppression", "never"),
        ("com.microsoft::Attention", "allow"),
        ("com.microsoft::SkipLayerNormalization", "deny"),
        ("com.microsoft::FastGelu", "infer"),
    ],
)
def test_classes_of_well_known_operators(key: str, verdict: str) -> None:
    rule = BOOK.base_rule(key)
    assert rule is not None
    assert rule.verdict == verdict
