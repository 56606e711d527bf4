"""Real trained models convert within the bounds of benchmarks/zoo/registry.py, on unseen data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fp16conv
from benchmarks.zoo.measure import measure
from benchmarks.zoo.registry import CALIBRATION_SEED, EVALUATION_SEED, MODELS, Entry, write_feeds

pytestmark = pytest.mark.models

BATCHES = 2


def model_of(entry: Entry) -> Path:
    try:
        return entry.path()
    except RuntimeError as problem:
        if os.environ.get("CI"):
            raise  # a machine that must check this may not pass without having checked it
        pytest.skip(str(problem))


@pytest.mark.parametrize("entry", MODELS, ids=lambda entry: entry.key)
def test_real_model_meets_its_bounds(entry: Entry, tmp_path: Path) -> None:
    source = model_of(entry)
    data = write_feeds(tmp_path / "data", entry.feeds(CALIBRATION_SEED, BATCHES))
    target = tmp_path / "out.onnx"
    report = fp16conv.convert(source, target, data=[data])
    assert report.output is not None
    result = measure(source, target, entry.feeds(EVALUATION_SEED, BATCHES))
    assert result.valid, result.note
    assert result.loads, result.note
    assert result.within_tolerance, result
    if entry.max_error is not None:
        assert result.error <= (entry.known_error or entry.max_error)
    if entry.min_fp16_macs is not None:
        assert result.fp16_macs >= entry.min_fp16_macs
    assert result.casts <= entry.max_casts
