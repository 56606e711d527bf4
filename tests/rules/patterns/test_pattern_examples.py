"""Every pattern rule is tried on the examples it carries."""

from __future__ import annotations

import tomllib
from pathlib import Path

import onnx
import onnx.parser
import pytest

from fp16conv._data import rules_dir
from fp16conv.frontends.onnx import from_proto
from fp16conv.graph import ModelGraph
from fp16conv.rulebook.patterns import PatternExample, PatternRule, match_patterns, parse_pattern


def _rules() -> list[PatternRule]:
    rules = []
    for path in sorted((rules_dir() / "patterns").glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        assert set(table) == {"pattern"}, path
        rules += [parse_pattern(entry, path.name) for entry in table["pattern"]]
    return rules


RULES = _rules()


def _graph(example: PatternExample) -> ModelGraph:
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {example.opset}]> g {example.graph}'
    )
    return from_proto(proto, Path("example.onnx")).graph


def _typevars(graph: ModelGraph, output: str) -> set[int]:
    [op] = [
        op for op in graph.ops if any(v is not None and graph.values[v].name == output for v in op.outputs)
    ]
    return set(op.typevars)


CASES = [
    pytest.param(rule, example, id=f"{rule.id}-{i}")
    for rule in RULES
    for i, example in enumerate(rule.examples)
]


@pytest.mark.parametrize(("rule", "example"), CASES)
def test_example(rule: PatternRule, example: PatternExample) -> None:
    graph = _graph(example)
    others = [r for r in RULES if r.id in rule.yields_to]
    hits = [h for h in match_patterns(graph, [*others, rule], {}) if h.rule == rule.id]
    assert bool(hits) is example.flagged
    marked = {tv for hit in hits for tv in hit.typevars}
    for name in example.marks:
        assert _typevars(graph, name) & marked, f"'{name}' is not marked"
    for name in example.spares:
        assert not _typevars(graph, name) & marked, f"'{name}' is marked"
    saturated = {graph.values[v].name for hit in hits for v in hit.saturated}
    assert saturated == set(example.saturates)


def test_every_rule_has_examples_of_both_kinds_and_a_source() -> None:
    for rule in RULES:
        assert {e.flagged for e in rule.examples} == {True, False}, rule.id
        assert rule.evidence, rule.id
    assert len({rule.id for rule in RULES}) == len(RULES)
