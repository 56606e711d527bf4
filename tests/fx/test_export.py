"""PyTorch to ONNX: every node leads back to its module, its line and the call it translates."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fp16conv import api, fx
from fp16conv.errors import ModelError, UsageError
from fp16conv.frontends.fx.export import export_program
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.frontends.onnx import LoadedModel
from tests.fx.nets import build

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export and torch.onnx warn about themselves


@cache
def pair(name: str) -> tuple[LoadedProgram, LoadedModel]:
    loaded = fx.load(*build(name))
    return loaded, export_program(loaded, Path(f"{name}.exported"))


def test_nodes_bear_module_and_line() -> None:
    graph = pair("vit")[1].graph
    (head,) = [op for op in graph.ops if op.metadata.get("module") == "head"]
    assert head.label.startswith("head/linear")
    assert head.metadata["module_type"].endswith("Linear")
    assert "nets.py:" in head.metadata["line"]
    assert "self.head(" in head.metadata["code"]
    assert head.metadata["call"].startswith("aten.linear.default linear")
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


def test_large_weights_are_taken_over_and_never_serialized(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Linear(64, 64)
    exported = export_program(fx.load(net, (torch.ones(1, 64),)), Path("net.exported"))
    (weight,) = [i for i in exported.graph.constants if exported.graph.values[i].shape == (64, 64)]
    array = exported.graph.array(weight)
    assert array is not None
    assert np.shares_memory(array, net.weight.detach().numpy())
    assert exported.proto.ByteSize() < net.weight.nbytes
    other = nn.Linear(64, 64)
    again = export_program(fx.load(other, (torch.ones(1, 64),)), Path("net.exported"))
    assert again.graph.digest != exported.graph.digest  # the numbers enter, though they are not in the proto


def test_weights_beyond_protobufs_limit_go_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is lowered: 2 GB of weights take too long for a test."""
    monkeypatch.setattr("fp16conv.conversion.save.MAX_INLINE", 8000)
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4)).eval()
    report = api.export(net_program := fx.load(net, (torch.ones(1, 64),)), tmp_path / "net.onnx")
    assert report.ok
    assert (tmp_path / "net.data").stat().st_size >= net[0].weight.nbytes
    assert (tmp_path / "net.onnx").stat().st_size < net[0].weight.nbytes
    loaded = api.load(tmp_path / "net.onnx")
    arrays = [loaded.graph.array(i) for i in loaded.graph.constants]
    assert any(a is not None and np.array_equal(a, net[0].weight.detach().numpy()) for a in arrays)
    assert len(loaded.graph.ops) == len(net_program.graph.ops)


class Distances(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(torch.relu(x), x)


def test_what_torch_cannot_export_is_named_with_the_reason() -> None:
    with pytest.raises(ModelError, match=r"Distances: cdist|Distances: _cdist_forward") as caught:
        export_program(fx.load(Distances(), (torch.ones(4, 3),)), Path("distances.exported"))
    assert "_cdist_forward" in str(caught.value)
    assert "\x1b" not in str(caught.value)
