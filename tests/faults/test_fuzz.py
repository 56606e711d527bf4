"""A fixed part of the fuzzing, and that the fuzzer can fail."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from benchmarks import fuzz as module
from benchmarks.fuzz import fuzz, make_case, seeds
from benchmarks.mutations import MUTATIONS

RUNS = 150


def test_mutated_models_are_converted_or_refused() -> None:
    results = list(fuzz(RUNS, seed=11, analyze_every=30, keep=None))
    assert not [r for r in results if r.problem]
    assert len(results) == RUNS + RUNS // 30
    codes = {r.code for r in results if r.verb == "convert"}
    assert {0, 3} <= codes  # it neither accepts nor refuses everything
    assert len({r.message for r in results}) > 20


def test_cases_depend_on_seed_and_number_only() -> None:
    cases = [make_case(5, i) for i in range(20)]
    assert cases == [make_case(5, i) for i in range(20)]
    assert len(set(cases)) == len(cases)
    assert cases != [make_case(6, i) for i in range(20)]


@pytest.mark.parametrize("name", list(MUTATIONS))
def test_each_mutation_changes_some_model(name: str) -> None:
    changed = 0
    for i, path in enumerate(seeds()[:10]):
        model = onnx.load(path, load_external_data=False)
        before = model.SerializeToString(deterministic=True)
        MUTATIONS[name](model, np.random.default_rng(i))
        changed += model.SerializeToString(deterministic=True) != before
    assert changed


def test_a_bug_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: object) -> None:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr("fp16conv.frontends.onnx.read_proto", broken)
    codes = [module._run_case(0, i, "convert") for i in range(3)]
    assert all(code == 70 and "IndexError" in problem for code, problem, _ in codes)
