"""How operators are classed, and which proofs the rules see."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from fp16conv.evidence.bounds import prove_bounds
from fp16conv.evidence.constants import constant_facts
from fp16conv.evidence.safety import Safety, classify, merge_facts
from fp16conv.frontends.onnx import load_onnx
from fp16conv.graph import ModelGraph, Origin, RangeFact
from fp16conv.rulebook.book import load_book
from fp16conv.rulebook.judge import judge
from fp16conv.rulebook.types import Verdict


def load(folder: Path, body: str, head: str = "float[2] x") -> ModelGraph:
    text = f'<ir_version: 9, opset_import: ["" : 18]> g ({head}) => (float[2] y) {{ {body} }}'
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    return load_onnx(folder / "m.onnx").graph


def by_name(graph: ModelGraph, lo: float, hi: float, origin: Origin, *names: str) -> dict[int, RangeFact]:
    found = {v.name: v.id for v in graph.values}
    return {found[name]: RangeFact(lo, hi, origin) for name in names}


def classes(graph: ModelGraph, **kinds: dict[int, RangeFact]) -> dict[str, Safety]:
    result = classify(graph, kinds.get("proven", {}), kinds.get("observed", {}))
    return {graph.ops[op].op_type: safety for op, safety in result.items()}


def test_each_class(tmp_path: Path) -> None:
    graph = load(tmp_path, "a = Tanh(x) b = Exp(a) c = Neg(b) y = Sin(c)")
    proven = by_name(graph, -1, 1, Origin.PROVEN, "x", "a")
    observed = by_name(graph, 0, 9e4, Origin.OBSERVED, "c") | by_name(
        graph, 0, 9, Origin.OBSERVED, "b", "a", "x"
    )
    found = classes(graph, proven=proven, observed=observed)
    assert found == {
        "Tanh": Safety.PROVEN, "Exp": Safety.OBSERVED, "Neg": Safety.UNSAFE, "Sin": Safety.UNSAFE
    }  # fmt: skip
    assert classes(graph, proven=proven)["Exp"] is Safety.UNKNOWN


def test_proofs_leave_a_binade_for_roundings(tmp_path: Path) -> None:
    graph = load(tmp_path, "y = Neg(x)")
    for bound, safety in ((32752.0, Safety.PROVEN), (32753.0, Safety.UNKNOWN)):
        assert classes(graph, proven=by_name(graph, -1, bound, Origin.PROVEN, "x", "y"))["Neg"] is safety


@pytest.mark.parametrize(("eps", "safety"), [(1e-2, Safety.PROVEN), (1e-7, Safety.UNKNOWN)])
def test_a_divisor_that_fp16_may_lose_is_not_proven(tmp_path: Path, eps: float, safety: Safety) -> None:
    graph = load(tmp_path, f"e = Constant <value_float = {eps}> () s = Abs(x) d = Add(s, e) y = Div(x, d)")
    proven = prove_bounds(graph, {"x": (-1e-6, 1e-6)})
    assert classes(graph, proven=proven, observed=constant_facts(graph))["Div"] is safety


def test_constants_beyond_the_range_are_unsafe(tmp_path: Path) -> None:
    graph = load(tmp_path, "e = Constant <value_float = 70000.0> () y = Min(x, e)")
    proven = prove_bounds(graph, {"x": (-1, 1)})
    assert classes(graph, proven=proven, observed=constant_facts(graph))["Min"] is Safety.UNSAFE


def test_only_proofs_of_safety_reach_the_rules(tmp_path: Path) -> None:
    graph = load(tmp_path, "a = Neg(x) y = Neg(a)")
    names = {v.name: v.id for v in graph.values}
    observed = by_name(graph, 0, 40000, Origin.OBSERVED, "x", "a")
    proven = by_name(graph, 0, 50000, Origin.PROVEN, "a") | by_name(graph, 0, 1e9, Origin.PROVEN, "x", "y")
    merged = merge_facts(observed, proven)
    assert merged[names["a"]].proven_max_abs == 50000
    assert merged[names["a"]].hi == 40000, "what was observed stays visible"
    assert merged[names["x"]] == observed[names["x"]]
    assert names["y"] not in merged


def test_a_proof_caps_the_headroom(tmp_path: Path) -> None:
    graph = load(tmp_path, "a = Add(x, x) y = Neg(a)")
    op = next(op for op in graph.ops if op.op_type == "Add")
    observed = by_name(graph, 0.5, 40000, Origin.OBSERVED, "x", "a")
    proven = by_name(graph, 0, 60000, Origin.PROVEN, "x", "a")
    for facts, verdict in ((observed, Verdict.DENY), (merge_facts(observed, proven), Verdict.INFER)):
        verdicts = judge(graph, load_book(), facts)
        assert verdicts.judgements[op.typevars[0]].verdict is verdict


def test_a_loose_bound_denies_nothing(tmp_path: Path) -> None:
    graph = load(tmp_path, "a = Ceil(x) y = Neg(a)")
    proven = prove_bounds(graph, {"x": (0.0, 60000.0)})
    names = {v.name: v.id for v in graph.values}
    assert proven[names["a"]].is_integral
    with_proof = judge(graph, load_book(), merge_facts({}, proven)).judgements
    without = judge(graph, load_book(), {}).judgements
    assert [j.verdict for j in with_proof] == [j.verdict for j in without]


def test_proven_small_integers_stay_proven(tmp_path: Path) -> None:
    graph = load(tmp_path, "t = Constant <value_floats = [1.0, 7.0]> () y = Gather(t, i)", "int64[2] i")
    (value,) = (v for v in graph.main.outputs if v is not None)
    observed = {value: RangeFact(1.0, 1.0, Origin.OBSERVED, is_integral=True, rms=1.0)}
    merged = merge_facts(observed, prove_bounds(graph))[value]
    assert (merged.origin, merged.lo, merged.hi, merged.rms) == (Origin.PROVEN, 1.0, 7.0, 1.0)
    assert np.isfinite(merged.max_abs)
