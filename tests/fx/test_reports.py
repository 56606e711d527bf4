"""What reports say of PyTorch programs: source lines, and what keeps its types and why."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from fp16conv import api, fx
from fp16conv.errors import UsageError
from fp16conv.graph import DataType
from fp16conv.reporting.renderers import RENDERERS
from fp16conv.reporting.report import AnalyzeReport
from fp16conv.validation.per_operator import read_precisions, read_saturated

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export and torch.onnx warn about themselves

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        y = self.fc(x)
        return torch.softmax(y, -1)

def build(): return Net(), (torch.ones(2, 8),)
"""
SOFTMAX_LINE = 1 + NET.splitlines().index("        return torch.softmax(y, -1)")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"lines{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(NET, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield f"{name}:build"
    sys.modules.pop(name, None)


def exported(source: str) -> AnalyzeReport:
    return api.export(source, "net.onnx", details=True)


def imported(source: str) -> AnalyzeReport:
    return api.analyze(source, details=True)


@pytest.mark.parametrize("audit", [imported, exported])
def test_every_form_names_module_and_line(source: str, audit: object) -> None:
    report = audit(source)  # type: ignore[operator]
    line = f"{source.partition(':')[0]}.py:{SOFTMAX_LINE}"
    (label,) = [label for group in report.decisions.kept for label in group.examples]
    assert report.source_lines == {label: line}
    for form in ("text", "markdown", "html"):
        assert f"{line}" in RENDERERS[form](report), form
    assert json.loads(RENDERERS["json"](report))["source_lines"] == {label: line}
    results = json.loads(RENDERERS["sarif"](report))["runs"][0]["results"]
    places = [place for result in results for place in result["locations"] if "logicalLocations" in place]
    (place,) = [p for p in places if p["logicalLocations"][0]["name"] == label]
    assert place["physicalLocation"]["artifactLocation"] == {"uri": line.partition(":")[0]}
    assert place["physicalLocation"]["region"] == {"startLine": SOFTMAX_LINE}
    assert report.details is not None
    (operator,) = [op for op in report.details.operators if op.label == label]
    assert operator.line == line


def test_explain_tells_line_numbers_and_what_would_change_it(source: str) -> None:
    report = api.explain(source, "softmax")
    assert report.operator.line.endswith(f".py:{SOFTMAX_LINE}")
    assert report.operator.precision == "mixed"  # reads FP16, computes in FP32
    assert report.operator.error is not None
    assert report.operator.outputs[0].origin == "synthetic"
    assert {outcome.change for outcome in report.outcomes} >= {"--profile half", "--force-fp16 softmax"}
    assert f".py:{SOFTMAX_LINE}" in RENDERERS["text"](report)
    with pytest.raises(UsageError, match="did you mean 'softmax'"):
        api.explain(source, "sofmax")


def test_details_hold_the_error_of_the_half_kernels(source: str) -> None:
    details = imported(source).details
    assert details is not None
    errors = {op.op_type: op.error for op in details.operators}
    assert 0 < (errors["aten::linear.default"] or 0.0) < 1e-2
    assert "half kernels" in details.error_note


def test_diff_compares_programs(source: str, tmp_path: Path) -> None:
    fx.convert(source, tmp_path / "half.pt2")
    report = api.diff(source, tmp_path / "half.pt2")
    assert [(c.op_type, c.before, c.after) for c in report.changes] == [
        ("aten::linear.default", "FP32", "FP16"),
        ("aten::softmax.int", "FP32", "mixed"),
    ]
    assert report.casts == (0, 1)
    assert not any(note.startswith(("input", "output")) for note in report.notes)
    assert not api.diff(source, source).differs


def test_a_pytorch_program_is_not_compared_with_an_onnx_file(source: str, tmp_path: Path) -> None:
    api.export(source, "net.onnx")
    for verb in (api.validate, api.diff):
        with pytest.raises(UsageError, match="compare two of one kind"):
            verb(source, "net.onnx")


def test_validate_ranks_the_calls_of_a_converted_program(source: str, tmp_path: Path) -> None:
    fx.convert(source, tmp_path / "half.pt2")
    report = api.validate(source, tmp_path / "half.pt2", per_op=True, details=True)
    assert report.per_operator is not None
    assert [op.op_type for op in report.per_operator.operators] == ["aten::linear.default"]
    assert report.per_operator.operators[0].error == report.details.operators[1].error  # type: ignore[union-attr]
    assert "fc/linear" in report.source_lines
    nothing = api.validate(source, source, per_op=True)
    assert nothing.per_operator is not None
    assert nothing.per_operator.operators == ()


def test_precisions_are_read_off_a_converted_program() -> None:
    """What was decided is what is found: casts by `dtype` arguments, literals that saturate, odd calls."""
    for module, example in ((Odd(), torch.randn(4, 16)), (Masked(), torch.randn(4, 16))):
        conversion = fx.convert_module(module, (example,))
        reference, candidate = fx.load(module, (example,)), fx.load(conversion.program)
        planned = {
            d.typevar: d.dtype for d in conversion.plan.decisions if d.op_type != "aten::_to_copy.default"
        }
        found = read_precisions(reference.graph, candidate.graph)
        assert {v: found[v] for v in planned} == planned
        saturated = read_saturated(reference.graph, candidate.graph)
        assert saturated == tuple(conversion.plan.saturated)
    assert saturated  # the mask's


def test_example_inputs_are_no_seed(source: str) -> None:
    evidence = imported(source).evidence
    assert evidence is not None
    assert evidence.seed is None
    assert "1 example batch" in RENDERERS["text"](imported(source))


def test_a_program_in_fp16_is_told_so(source: str, tmp_path: Path) -> None:
    fx.convert(source, tmp_path / "half.pt2")
    report = api.analyze(tmp_path / "half.pt2")
    assert [f.rule for f in report.findings if f.rule == "already-fp16"]
    assert not [f for f in report.findings if f.rule == "half-unsafe"]


@torch.library.custom_op("fp16conv_tests::thrice", mutates_args=())
def thrice(x: torch.Tensor) -> torch.Tensor:
    assert x.dtype is torch.float32
    return x * 3.0


thrice.register_fake(torch.empty_like)


class Odd(nn.Module):
    """A buffer that is written to, an operator nobody knows, branches, complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.leave = nn.Linear(16, 16), nn.Linear(16, 16)
        self.register_buffer("total", torch.zeros(4, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.enter(x)
        self.total.add_(y)
        y = thrice(y)
        y = torch.cond(y.sum() > 100, lambda t: t * 2.0, lambda t: t - 1.0, (y,))
        y = torch.fft.irfft(torch.fft.rfft(y), n=16)
        return self.leave(y) + self.total


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.enter(x).masked_fill(x > 1, -1e9), -1)


def test_what_keeps_its_types_is_said_at_each_operator(tmp_path: Path) -> None:
    loaded = fx.load(Odd(), (torch.randn(4, 16),))
    report = fx.convert(loaded, tmp_path / "odd.pt2")
    assert report.ok
    kept = {group.rule: group for group in report.decisions.kept}
    assert kept["unknown-domain"].op_types == {"fp16conv_tests::thrice.default": 1}
    assert kept["control-flow"].op_types == {"higher_order::cond": 1}
    assert set(kept["illegal-type"].op_types) == {"aten::fft_rfft.default", "aten::fft_irfft.default"}
    assert "total" in next(f.message for f in report.findings if f.rule == "state-stays-fp32")
    made = {d.op_type: d.dtype for d in fx.plan(loaded).decisions}
    assert made["aten::linear.default"] is DataType.FLOAT16
    assert all(".py:" in line and "<" not in line for line in report.source_lines.values())
    assert torch.export.load(tmp_path / "odd.pt2").module()(torch.randn(4, 16)).shape == (4, 16)
