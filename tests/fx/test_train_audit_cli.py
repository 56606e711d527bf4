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

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about itself

ROOT = Path(__file__).resolve().parents[2]
SETUP = """
import torch
from torch import nn
def setup():
    torch.manual_seed(0)
    batches = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(2)]
    return nn.Linear(4, 3), lambda out, y: nn.functional.cross_entropy(out, y) * 1e-7, batches
def wrong(): return nn.Linear(4, 3)
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
    assert data["batches"] == 2
    assert f"{data['share_zeroed']:.1%} vanish" in text
    window = data["window"]
    assert f"safe from 2^{window['lowest']} to 2^{window['highest']}" in text
    assert 2.0 ** window["lowest"] <= data["loss_scale"] <= 2.0 ** window["highest"]


@pytest.mark.parametrize("name", ["wrong", "absent"])
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
def test_the_sample_needs_its_loss_scale(sample: Any) -> None:
    """With few steps: the scale that the audit finds trains like FP32, none does not train at all."""
    torch.set_num_threads(1)
    scale = sample.audit().loss_scale
    outcomes = {way: sample.train(way, 80, scale) for way in ("fp32", "mixed", "mixed-unscaled")}
    assert outcomes["fp32"].last_loss < 0.6 * outcomes["fp32"].first_loss
    assert outcomes["mixed"].last_loss == pytest.approx(outcomes["fp32"].last_loss, rel=0.02)
    assert abs(outcomes["mixed"].accuracy - outcomes["fp32"].accuracy) <= 0.02
    assert outcomes["mixed-unscaled"].last_loss > 0.9 * outcomes["mixed-unscaled"].first_loss
    assert outcomes["mixed-unscaled"].zeroed > 0.99
    assert outcomes["mixed"].zeroed < 0.5
