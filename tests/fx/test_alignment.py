"""What Tensor Cores are told of a PyTorch program and of its ONNX export is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fp16conv
from fp16conv.reporting.report import AnalyzeReport
from fp16conv.reporting.text import render_text

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export and torch.onnx warn about themselves


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3)
        self.depthwise = nn.Conv2d(16, 16, 3, groups=16)
        self.body = nn.Conv2d(16, 24, 1)
        self.head = nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(self.depthwise(self.stem(x).relu()).relu()).relu()
        return self.head(x.mean((2, 3)))


def sizes(report: AnalyzeReport) -> list[tuple[tuple[str, int], ...]]:
    assert report.alignment is not None
    return [product.sizes for product in report.alignment.largest]


def test_program_and_export_agree(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, example = Net().eval(), (torch.randn(1, 3, 12, 12),)
    program = torch.export.export(net, example)
    one = fp16conv.analyze(program, force_fp16=["*"])
    torch.onnx.export(program, dynamo=True).save(tmp_path / "net.onnx")
    two = fp16conv.analyze(tmp_path / "net.onnx", force_fp16=["*"])
    for report in (one, two):
        assert report.alignment is not None
        assert (report.alignment.aligned, report.alignment.unaligned, report.alignment.open) == (1, 2, 0)
        assert sizes(report) == [(("input channels", 3),), (("N", 10),)]
        assert "Tensor Cores     1 of 3 products aligned" in render_text(report)
        (finding,) = [f for f in report.findings if f.rule == "unaligned-dimensions"]
        assert finding.severity == "note"
        assert "input channels 3" in finding.message
        assert "N 10" in finding.message
    assert one.alignment is not None
    assert two.alignment is not None
    assert one.alignment.macs_share == two.alignment.macs_share
    assert "stem" in next(f.where for f in one.findings if f.rule == "unaligned-dimensions")
