"""`fp16conv train-audit` and the sample that trains four ways."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fp16conv.cli import run
from fp16conv.reporting.units import format_share

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about itself

ROOT = Path(__file__).resolve().parents[2]
SETUP = """
import torch
from torch import nn
def setup():
    torch.manual_seed(0)
    batches = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(2)]
    return nn.Linear(4, 3), lambda out, y: nn.functional.cross_entropy(out, y) * 1e-7, batches
class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.weight = nn.Parameter(torch.ones(8))
    def forward(self, x): return x * self.weight * self.factor
def wide():
    net = nn.Sequential(Scaled(1e6), Scaled(1e-12))
    return net, lambda out, y: (out * y).sum(), [(torch.ones(1, 8), torch.logspace(0, 30, 8))]
def wrong(): return nn.Linear(4, 3)
def swapped():
    module, loss, batches = setup()
    return module, batches, loss
def unused():
    net = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
    net.forward = lambda x: net[0](x)
    return net, setup()[1], setup()[2]
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"training_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(SETUP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_text_and_json_say_the_same(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train-audit", f"{source}:setup"]) == 0
    text = capsys.readouterr().out
    assert run(["train-audit", f"{source}:setup", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "fp16conv.train-audit/1"
    assert data["batches"] == 2
    assert f"{format_share(data['share_zeroed'])} of the non-zero parameter gradients vanish" in text
    window = data["window"]
    assert f"safe from 2^{window['lowest']} to 2^{window['highest']}" in text
    assert 2.0 ** window["lowest"] <= data["loss_scale"] <= 2.0 ** window["highest"]
    weight = data["gradients"][0]
    assert (weight["name"], weight["kind"], sum(weight["counts"])) == ("weight", "parameter", 2 * 12)
    top = weight["first_exponent"] + len(weight["counts"]) - 1
    assert 2.0**top <= weight["max_abs"] < 2.0 ** (top + 1)


def test_reports_are_written_beside_stdout(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("a.html", "a.md", "a.sarif", "a.xml")]
    flags = [word for file in files for word in ("--report", str(file))]
    assert run(["train-audit", f"{source}:setup", *flags]) == 0
    assert capsys.readouterr().out
    assert "Gradients against FP16" in files[0].read_text(encoding="utf-8")
    assert "| <code>weight</code> | parameter |" in files[1].read_text(encoding="utf-8")
    assert json.loads(files[2].read_text(encoding="utf-8"))["runs"][0]["results"] == []
    assert 'failures="0"' in files[3].read_text(encoding="utf-8")


def test_overflow_and_a_closed_window_are_warnings(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train-audit", f"{source}:wide", "--format", "json"]
    assert run(command) == 0
    found = {(f["rule"], f["where"]) for f in json.loads(capsys.readouterr().out)["findings"]}
    assert found == {("activation-overflow", "0"), ("activation-overflow", "1:mul"), ("no-loss-scale", "")}
    assert run([*command, "--fail-on", "warning"]) == 1


def test_what_gets_no_gradient_is_a_note(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train-audit", f"{source}:unused", "--format", "json"]) == 0
    found = {(f["rule"], f["where"], f["severity"]) for f in json.loads(capsys.readouterr().out)["findings"]}
    assert found == {("no-gradient", "1.weight", "note"), ("no-gradient", "1.bias", "note")}


@pytest.mark.parametrize("name", ["wrong", "swapped", "absent"])
def test_bad_sources_are_usage_errors(source: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train-audit", f"{source}:{name}"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert run(["train-audit", "net.pt2"]) == 2


@pytest.fixture(scope="module")
def sample() -> Any:
    spec = importlib.util.spec_from_file_location("train_digits", ROOT / "samples" / "train_digits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_digits"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_sample_needs_its_loss_scale_and_its_master_weights(sample: Any) -> None:
    """A third of the sample's steps: two ways learn the same, two stay where they were."""
    torch.set_num_threads(1)
    task = sample.Task()
    found = sample.audit(task)
    assert found.window.is_open
    assert found.share_zeroed > 0.5
    assert found.share_lost == 1.0
    fp32, half, unscaled, mixed = (
        sample.train(task, way, found.loss_scale, sample.STEPS // 3) for way in sample.WAYS
    )
    points = 0.01
    assert fp32.after >= fp32.before + 25 * points
    assert fp32.last_loss < 0.5 * fp32.first_loss
    assert abs(mixed.after - fp32.after) <= 0.5 * points
    assert mixed.last_loss == pytest.approx(fp32.last_loss, rel=0.02)
    assert (mixed.skipped, mixed.zeroed < 0.01, mixed.unmoved < 0.01) == (0, True, True)
    for stalled in (half, unscaled):
        assert abs(stalled.after - stalled.before) <= 0.5 * points
        assert stalled.last_loss > 0.8 * stalled.first_loss
        assert stalled.unmoved > 0.999
    assert unscaled.zeroed == 1.0  # nothing comes back
    assert half.zeroed < 0.01  # all comes back, and is lost behind


def test_the_sample_is_a_source_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert run(["train-audit", "samples.train_digits:setup", "--batches", "2", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["batches"], data["optimizer"], data["share_lost"]) == (2, "Adam", 1.0)
    assert run(["train-audit", "samples.train_digits:setup", "--learning-rate", "0.1"]) == 2
    assert "has its own learning rate" in capsys.readouterr().err
