"""PyTorch to ONNX: the same decisions on both ways, and every node leads back to its module and line."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fp16conv import api, fx
from fp16conv.errors import UsageError
from fp16conv.frontends.fx.export import export_program
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import DataType, ModelGraph
from fp16conv.planning.plan import Decision, PrecisionPlan
from fp16conv.rulebook.families import family
from fp16conv.rulebook.types import Verdict
from tests.fx.nets import build

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export and torch.onnx warn about themselves


@cache
def pair(name: str) -> tuple[LoadedProgram, LoadedModel]:
    loaded = fx.load(*build(name))
    return loaded, export_program(loaded, Path(f"{name}.exported"))


def decided(graph: ModelGraph, plan: PrecisionPlan) -> dict[tuple[str, str, str], Decision]:
    """Decision per (module, source line, what is done there), where that names one operator only."""
    decisions = {d.typevar: d for d in plan.decisions}
    found: dict[tuple[str, str, str], list[Decision]] = {}
    for op in graph.ops:
        result = op.outputs[0] if op.outputs else None
        variable = None if result is None else graph.typevar_of_value(result)
        if variable is not None and "line" in op.metadata:
            kind = {"Gemm": "MatMul"}.get(family(op), family(op))
            key = op.metadata.get("module", ""), op.metadata["line"], kind
            found.setdefault(key, []).append(decisions[variable.id])
    return {key: some[0] for key, some in found.items() if len(some) == 1}


@pytest.mark.parametrize("name", ["vit", "llama"])
def test_both_ways_agree_on_every_operator_that_both_have(name: str) -> None:
    """One class, and one precision wherever a rule decides it.

    What is left to the planner (`infer`, `follow`) may differ at the rim of what only one of them has whole.
    """
    loaded, exported = pair(name)
    ours = decided(loaded.graph, fx.plan(loaded))
    theirs = decided(exported.graph, api.plan(exported))
    both = sorted(ours.keys() & theirs.keys())
    products = [key for key in both if key[2] == "MatMul"]
    assert len(products) >= 6
    assert (
        {ours[key].dtype for key in products} == {theirs[key].dtype for key in products} == {DataType.FLOAT16}
    )
    assert [key for key in both if ours[key].verdict is not theirs[key].verdict] == []
    ruled = [key for key in both if ours[key].verdict in (Verdict.ALLOW, Verdict.DENY)]
    assert len(ruled) > len(products) or name == "vit"
    assert [key for key in ruled if ours[key].dtype is not theirs[key].dtype] == []


def test_nodes_bear_module_and_line() -> None:
    graph = pair("vit")[1].graph
    (head,) = [op for op in graph.ops if op.metadata.get("module") == "head"]
    assert head.label.startswith("head/linear")
    assert head.metadata["module_type"].endswith("Linear")
    assert "nets.py:" in head.metadata["line"]
    assert "self.head(" in head.metadata["code"]
    labels = [op.label for op in graph.ops]
    assert len(set(labels)) == len(labels)


def test_findings_name_the_module() -> None:
    report = api.analyze(pair("vit")[1])
    kept = {name for group in report.decisions.kept for name in group.examples}
    assert any(name.startswith("blocks.0.norm1/") for name in kept)


def test_the_file_is_written_and_audited(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)).eval()
    shapes = ({0: torch.export.Dim("batch", min=2)},)
    torch.export.save(
        torch.export.export(net, (torch.ones(2, 8),), dynamic_shapes=shapes), tmp_path / "n.pt2"
    )
    report = api.export(tmp_path / "n.pt2", tmp_path / "n.onnx")
    assert report.ok
    loaded = api.load(tmp_path / "n.onnx")
    image = loaded.graph.values[loaded.graph.main.inputs[0]]
    assert image.name == "input"
    assert isinstance(image.shape[0], str)
    assert [loaded.graph.values[i].name for i in loaded.graph.main.outputs if i is not None] == ["output"]


def test_the_way_to_fp16_onnx_works_end_to_end(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    fx.export(fx.load(net, (torch.randn(1, 3, 8, 8),)), tmp_path / "net.onnx")
    np.savez(tmp_path / "batch.npz", input=np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype("f4"))
    report = api.convert(tmp_path / "net.onnx", tmp_path / "half.onnx", data=tmp_path / "batch.npz")
    assert report.ok
    assert report.decisions.macs_share == 1.0


def test_what_export_refuses(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.onnx"):
        fx.export(fx.load(nn.Linear(2, 2), (torch.ones(1, 2),)), tmp_path / "net.pt2")
    with pytest.raises(UsageError, match="no PyTorch source"):
        api.export("net.onnx", tmp_path / "net2.onnx")
