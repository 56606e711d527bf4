"""A fixed part of the fuzzing, and that the fuzzer can fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import fuzz as module
from benchmarks.fuzz import fuzz
from benchmarks.mutations.graphs import MUTATIONS
from benchmarks.subjects import SUBJECTS, make_case, model_files

RUNS = {"model": 120, "plan": 40, "rules": 40, "device": 40, "data": 40, "program": 15}


@pytest.mark.parametrize("subject", list(RUNS))
def test_mutated_files_are_converted_or_refused(subject: str) -> None:
    if subject == "program":
        pytest.importorskip("torch")
    runs = RUNS[subject]
    every = 30 if subject == "model" else 0
    results = list(fuzz(subject, runs, seed=11, every=every))
    assert not [r for r in results if r.problem]
    assert len(results) == runs + (runs // every if every else 0)
    codes = {r.code for r in results if r.verb == "convert"}
    assert 0 in codes  # it neither accepts nor refuses everything
    assert codes & {2, 3}
    assert len({r.message for r in results}) > runs // 10


@pytest.mark.parametrize("subject", ["model", "plan", "rules", "device", "data"])
def test_cases_depend_on_seed_and_number_only(subject: str) -> None:
    cases = [make_case(subject, 5, i) for i in range(20)]
    assert cases == [make_case(subject, 5, i) for i in range(20)]
    assert len(set(cases)) > 15
    assert cases != [make_case(subject, 6, i) for i in range(20)]


@pytest.mark.parametrize("name", list(MUTATIONS))
def test_each_mutation_changes_some_model(name: str) -> None:
    changed = 0
    for i, path in enumerate(model_files()[:10]):
        model = onnx.load(path, load_external_data=False)
        before = model.SerializeToString(deterministic=True)
        MUTATIONS[name](model, np.random.default_rng(i))
        changed += model.SerializePartialToString(deterministic=True) != before
    assert changed


@pytest.fixture
def place(tmp_path: Path) -> module._Place:
    return module._Place(tmp_path)


def test_a_bug_is_reported(place: module._Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: object) -> None:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr("fp16conv.frontends.onnx.read_proto", broken)
    codes = [place.run("model", 0, i, "convert") for i in range(3)]
    assert all(code == 70 and "IndexError" in problem for code, problem, _ in codes)


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        (lambda p: (p.output / "out.onnx.tmp").touch(), "temporary files"),
        (lambda p: (p.input / "other").touch(), "the input's folder changed"),
        (lambda p: (p.input / "model.onnx").write_bytes(b""), "the input changed"),
        (lambda p: p.canary.touch(), "code of the file ran"),
    ],
)
def test_traces_are_reported(
    place: module._Place,
    act: Callable[[module._Place], object],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(args: list[str]) -> int:
        act(place)
        return 0

    monkeypatch.setattr("fp16conv.cli.app.run", run)
    assert place.run("model", 0, 0, "convert")[1].startswith(problem)


def test_a_refusal_needs_a_message(place: module._Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fp16conv.cli.app.run", lambda args: 3)
    assert place.run("model", 0, 0, "convert") == (3, "no message", "")


@pytest.mark.parametrize(
    ("code", "problem"),
    [("while True: pass", "hangs for more than 0 s"), ("import os; os.abort()", "died with code -6")],
)
def test_deaths_and_endless_runs_are_reported(
    code: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMIT", 0.2)
    worker = module._Worker()
    worker._process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.run("model", 0, 0, "convert").problem == problem


def test_every_subject_has_codes_for_its_commands() -> None:
    assert all(set(s.commands) == set(s.codes) for s in SUBJECTS.values())
