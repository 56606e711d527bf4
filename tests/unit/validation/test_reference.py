"""The reference runs ahead of what it is compared with, and only so far."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from fp16conv.errors import ValidationError
from fp16conv.execution.lanes import Lane
from fp16conv.execution.runtime import Feeds, Runtime
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from fp16conv.validation import reference
from fp16conv.validation.reference import ReferenceRun

DOUBLE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n] x) => (float[n] y) { y = Add(x, x) }"""


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    onnx.save(onnx.parser.parse_model(DOUBLE), tmp_path / "m.onnx")
    return load_onnx(tmp_path / "m.onnx")


class Rows:
    """Batches that count how many of them were read."""

    def __init__(self, count: int, size: int = 4) -> None:
        self.count, self.size, self.read = count, size, 0

    def __iter__(self) -> Iterator[Feeds]:
        for number in range(self.count):
            self.read += 1
            yield {"x": np.full(self.size, number, np.float32)}


def take_all(run: ReferenceRun) -> list[float]:
    return [float(run.take(batch, coming)["y"][0]) for batch, coming in run]


def test_every_batch_has_its_own_result_in_every_iteration(model: LoadedModel) -> None:
    with Runtime() as runtime, Lane(runtime) as lane:
        run = ReferenceRun(lane, model, Rows(50))
        run.advance()
        assert take_all(run) == take_all(run) == [2.0 * i for i in range(50)]


def test_it_runs_before_anything_is_taken_and_not_beyond_the_limit(model: LoadedModel) -> None:
    rows = Rows(1000)
    with Runtime() as runtime, Lane(runtime) as lane:
        run = ReferenceRun(lane, model, rows)
        run.advance()
        assert rows.read == reference.AHEAD_BATCHES
        assert len(take_all(run)) == 1000


def test_results_that_are_too_large_to_wait_are_made_when_they_are_taken(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "AHEAD_BYTES", 100)
    with Runtime() as runtime, Lane(runtime) as lane:
        run = ReferenceRun(lane, model, Rows(9, size=24))  # 96 bytes each
        run.advance()
        lane.submit(time.monotonic).result()  # all that was ahead is done
        assert take_all(run) == [2.0 * i for i in range(9)]


def test_a_batch_that_it_cannot_run_is_an_error_when_it_is_taken(model: LoadedModel) -> None:
    with Runtime() as runtime, Lane(runtime) as lane:
        run = ReferenceRun(lane, model, [{"x": np.zeros((2, 2), np.float32)}])
        run.advance()
        with pytest.raises(ValidationError, match="does not run on these inputs"):
            take_all(run)
