"""explain and diff, on the samples."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import fp16conv.api as api
from fp16conv.errors import ModelError, PlanError, UsageError
from fp16conv.graph import DataType
from fp16conv.planning.serialize import save_plan
from fp16conv.reporting.text import render_text

ROOT = Path(__file__).resolve().parents[2]
MODEL = str(ROOT / "samples" / "digits_transformer.onnx")
DATA = str(ROOT / "samples" / "digits_calibration.npz")


def test_explain_gives_reasons_numbers_rules_and_ways_out() -> None:
    report = api.explain(MODEL, "node_softmax", data=DATA)
    assert report.operator.precision == "fp32"
    assert report.details is not None
    assert [rule.id for rule in report.details.rules] == ["softmax-overflow"]
    assert report.variables[0].verdict == "deny"
    outcomes = {outcome.change: outcome.precision for outcome in report.outcomes}
    assert outcomes["--profile balanced (now)"] == "fp32"
    # What it promises is what those options give.
    forced = api.plan(MODEL, data=DATA, force_fp16="node_softmax")
    assert outcomes["--force-fp16 node_softmax"] == "fp16"
    assert {d.dtype for d in forced.decisions if d.label == "node_softmax"} == {DataType.FLOAT16}
    assert {o.casts for o in report.outcomes if "force" in o.change} == {len(forced.casts)}
    text = render_text(report)
    assert "Softmax exponentiates and sums" in text
    assert "Source: PyTorch" in text
    assert "0 to 1 for all inputs (proven)" in text
    assert max(map(len, text.splitlines())) <= 80
    assert json.loads(json.dumps(report.to_dict()))["schema"] == "fp16conv.explain/1"


def test_explain_finds_misspelt_names_before_it_runs_anything() -> None:
    with pytest.raises(UsageError, match="did you mean 'node_softmax'"):
        api.explain(MODEL, "node_sotmax", data="no/such/file.npz")
    with pytest.raises(UsageError, match="operators"):
        api.explain(MODEL, "type:MatMul")


def test_explain_an_operator_without_a_decision() -> None:
    report = api.explain(MODEL, "node_Concat_12", data=DATA)
    assert report.operator.precision == "other"
    assert report.outcomes == ()
    assert "no FP32 tensors" in render_text(report)


def test_diff_of_plans_shows_the_edit(tmp_path: Path) -> None:
    plan = api.plan(MODEL, data=DATA)
    save_plan(plan, tmp_path / "a.json")
    assert not api.diff(tmp_path / "a.json", tmp_path / "a.json").differs
    decisions = tuple(
        dataclasses.replace(d, dtype=DataType.FLOAT) if d.label == "node_gelu" else d for d in plan.decisions
    )
    save_plan(dataclasses.replace(plan, decisions=decisions), tmp_path / "b.json")
    report = api.diff(tmp_path / "a.json", tmp_path / "b.json")
    assert [(c.op, c.before, c.after) for c in report.changes] == [("node_gelu", "FP16", "FP32")]
    assert report.differs


def test_diff_of_plans_names_options_and_casts(tmp_path: Path) -> None:
    save_plan(api.plan(MODEL, data=DATA), tmp_path / "a.json")
    save_plan(api.plan(MODEL, data=DATA, profile="half"), tmp_path / "b.json")
    report = api.diff(tmp_path / "a.json", tmp_path / "b.json")
    assert "option profile: balanced -> half" in report.notes
    assert {"node_softmax", "node_layer_norm"} <= {c.op for c in report.changes}
    assert report.casts_removed
    assert len(report.casts_removed) - len(report.casts_added) == report.casts[0] - report.casts[1]
    assert "node_softmax" in render_text(report)


def test_diff_of_models(tmp_path: Path) -> None:
    output = tmp_path / "half.onnx"
    converted = api.convert(MODEL, output, data=DATA)
    report = api.diff(MODEL, output)
    changed = {c.op: (c.before, c.after) for c in report.changes}
    assert changed["node_gelu"] == ("FP32", "FP16")
    assert "node_softmax" not in changed
    assert report.casts == (0, converted.decisions.casts)
    assert any(note.startswith("bytes of weights") for note in report.notes)
    assert not api.diff(output, output).differs
    assert max(map(len, render_text(report).splitlines())) <= 80


def test_diff_refuses_what_cannot_be_compared(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{}")
    with pytest.raises(UsageError, match="cannot be compared"):
        api.diff(MODEL, tmp_path / "p.json")
    with pytest.raises(PlanError):
        api.diff(tmp_path / "p.json", tmp_path / "p.json")
    with pytest.raises(ModelError):
        api.diff(MODEL, tmp_path / "none.onnx")
