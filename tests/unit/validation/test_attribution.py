"""Blame falls on the operator that has to change, for each way FP16 goes wrong."""

from pathlib import Path

import numpy as np
import pytest

from fp16conv.errors import ValidationError
from fp16conv.evidence.constants import constant_facts
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import DataType, Origin, RangeFact
from fp16conv.validation import attribution
from fp16conv.validation.attribution import Blame, Repair, find_overflows, repair_candidates
from fp16conv.validation.outlook import what_half_does
from fp16conv.validation.probe import NONFINITE, Probe
from tests.unit.validation.models import (
    batches,
    cancellation,
    deep_cnn,
    everything,
    residual_overflow,
    write,
)

RNG = np.random.default_rng(7)
IMAGE = batches({"x": RNG.normal(size=(1, 4, 8, 8)).astype(np.float32)})
ROWS = batches({"x": RNG.normal(size=(4, 16)).astype(np.float32)})
SMALL_ROWS = batches({"x": RNG.normal(size=(4, 8)).astype(np.float32)})


def attribute(
    loaded: LoadedModel, dtypes, feeds, runtime: Runtime, outputs=None, **budget
) -> tuple[Blame, ...]:
    with Probe(loaded, feeds, runtime, outputs=outputs) as probe:
        return attribution.attribute(probe, dtypes, **budget)


def repair_plan(loaded: LoadedModel, dtypes, feeds, runtime: Runtime, batches: int = 4, **bounds) -> Repair:
    with Probe(loaded, feeds, runtime, batches=batches) as probe:
        return attribution.repair_plan(probe, dtypes, **bounds)


def made_by(loaded, blame: Blame) -> str:
    if blame.op is None:
        return blame.label
    return loaded.graph.values[loaded.graph.ops[blame.op].outputs[0]].name


def test_one_batch_normalization_in_a_deep_cnn(tmp_path: Path, runtime: Runtime) -> None:
    loaded = deep_cnn(tmp_path)
    blames = attribute(loaded, everything(loaded), IMAGE, runtime)
    assert made_by(loaded, blames[0]) == "n7"
    assert blames[0].share > 0.99
    assert blames[0].resolved
    assert sum(b.share for b in blames) == pytest.approx(1.0)


def test_the_repair_moves_only_that_normalization(tmp_path: Path, runtime: Runtime) -> None:
    loaded = deep_cnn(tmp_path)
    repair = repair_plan(loaded, everything(loaded), IMAGE, runtime)
    moved = {loaded.graph.typevars[t].op for t in repair.typevars}
    assert [made_by(loaded, b) for b in repair.blames] == ["n7"]
    assert moved == {repair.blames[0].op}
    assert not repair.before.ok
    assert repair.after.ok
    assert repair.runs <= 14  # 36 operators: 6 bisections, and the plan before and after


def test_the_first_overflow_of_a_residual_stream_takes_the_blame(tmp_path: Path, runtime: Runtime) -> None:
    loaded = residual_overflow(tmp_path)
    blames = attribute(loaded, everything(loaded), ROWS, runtime)
    assert made_by(loaded, blames[0]) == "d2"
    assert blames[0].share > 0.99


def test_the_repair_follows_the_overflow_down_the_stream(tmp_path: Path, runtime: Runtime) -> None:
    loaded = residual_overflow(tmp_path)
    repair = repair_plan(loaded, everything(loaded), ROWS, runtime, rounds=8)
    assert not repair.before.is_finite
    assert repair.after.ok
    # Everything from the overflow to the end carries numbers beyond 65504, and the norm reads them.
    moved = {made_by(loaded, b) for b in repair.blames}
    assert {"d2", "a2", "a3", "a4"} <= moved
    assert not moved & {"h0", "t0", "g0", "a0", "h1", "t1", "g1", "a1"}


def test_known_ranges_spare_the_search_for_overflows(tmp_path: Path, runtime: Runtime) -> None:
    loaded = residual_overflow(tmp_path)
    large = {"d2", "a2", "a3", "a4"}
    facts = {
        v.id: RangeFact(-1.2e5, 1.2e5, Origin.OBSERVED, share_overflow=0.5)
        for v in loaded.graph.values
        if v.name in large
    }
    found = find_overflows(loaded.graph, everything(loaded), facts)
    assert [made_by(loaded, b) for b in found] == ["d2", "a2", "h3", "a3", "h4", "a4", "y"]
    repair = repair_plan(loaded, everything(loaded), ROWS, runtime, facts=facts)
    assert repair.after.ok
    assert repair.runs == 2


def test_cancellation_is_blamed_on_what_rounded_the_large_numbers(tmp_path: Path, runtime: Runtime) -> None:
    loaded = cancellation(tmp_path)
    blames = attribute(loaded, everything(loaded), SMALL_ROWS, runtime)
    assert made_by(loaded, blames[0]) == "shifted"
    assert blames[0].share > 0.9
    repair = repair_plan(loaded, everything(loaded), SMALL_ROWS, runtime)
    assert repair.after.ok
    # The difference itself reads FP16 unless it moves too: rounding shows wherever it happens.
    assert {made_by(loaded, b) for b in repair.blames} == {"shifted", "centred"}


def test_blame_stays_within_the_budget_and_says_what_it_could_not_tell(
    tmp_path: Path, runtime: Runtime
) -> None:
    loaded = deep_cnn(tmp_path)
    blames = attribute(loaded, everything(loaded), IMAGE, runtime, budget_runs=2)
    guilty = [b for b in blames if made_by(loaded, b) == "n7"]
    assert not guilty[0].resolved
    assert sum(b.share for b in blames) == pytest.approx(1.0)


def test_no_error_no_blame(tmp_path: Path, runtime: Runtime) -> None:
    loaded = deep_cnn(tmp_path)
    exact = [DataType.FLOAT] * len(loaded.graph.typevars)
    assert attribute(loaded, exact, IMAGE, runtime) == ()
    repair = repair_plan(loaded, exact, IMAGE, runtime)
    assert (repair.typevars, repair.runs, repair.after.error) == ((), 0, 0.0)


def test_only_the_outputs_asked_for_count(tmp_path: Path, runtime: Runtime) -> None:
    text = """g (float[3] x) => (float[3] fine, float[3] broken) {
        fine = Relu(x)
        big = Mul(x, k)
        broken = Mul(big, k)
    }"""
    loaded = write(tmp_path, text, {"k": np.array(1e4, np.float32)})
    feeds = batches({"x": np.array([1.0, 2.0, 3.0], np.float32)})
    assert attribute(loaded, everything(loaded), feeds, runtime, ["fine"]) == ()
    blames = attribute(loaded, everything(loaded), feeds, runtime, ["broken"])
    assert made_by(loaded, blames[0]) == "broken"
    with pytest.raises(ValidationError, match="no output is named 'brken'"):
        attribute(loaded, everything(loaded), feeds, runtime, ["brken"])


def test_the_same_question_gets_the_same_answer(tmp_path: Path, runtime: Runtime) -> None:
    loaded = cancellation(tmp_path)
    first, second = (attribute(loaded, everything(loaded), SMALL_ROWS, runtime) for _ in range(2))
    assert first == second


def test_candidates_are_the_fewest_that_reach_the_target() -> None:
    blames = [
        Blame(0, "a", "Mul", (1, 2), 0.6, True),
        Blame(1, "b", "Mul", (5,), 0.3, True),
        Blame(2, "c", "Mul", (3,), 0.1, True),
    ]
    assert repair_candidates(blames, 1.05, target=1.0) == (1, 2)  # 1.1025 * 0.4 < 1
    assert repair_candidates(blames, 1.7, target=1.0) == (1, 2, 5)  # 2.89 * 0.1 < 1 < 2.89 * 0.4
    assert repair_candidates(blames, NONFINITE, target=1.0) == (1, 2, 3, 5)


def test_a_probe_counts_new_infinities_above_any_norm(tmp_path: Path, runtime: Runtime) -> None:
    loaded = write(tmp_path, "g (float[2] x) => (float[2] y) { y = Mul(x, x) }")
    with Probe(loaded, batches({"x": np.array([300.0, 1.0], np.float32)}), runtime) as probe:
        half = probe.measure(everything(loaded))
        exact = probe.measure([DataType.FLOAT] * len(loaded.graph.typevars))
    assert half.error == NONFINITE * 1.5
    assert not half.is_finite
    assert exact.error == 0.0


def test_a_probe_without_a_batch_is_an_error(tmp_path: Path, runtime: Runtime) -> None:
    loaded = write(tmp_path, "g (float[2] x) => (float[2] y) { y = Relu(x) }")
    with pytest.raises(ValidationError, match="no batch"):
        Probe(loaded, batches(), runtime)


def test_what_half_does_names_the_culprit(tmp_path: Path, runtime: Runtime) -> None:
    loaded = deep_cnn(tmp_path)
    outlook = what_half_does(loaded, IMAGE, runtime, facts=constant_facts(loaded.graph))
    assert not outlook.ok
    assert [made_by(loaded, b) for b in outlook.overflowing] == ["n7"]
    assert made_by(loaded, outlook.culprits[0]) == "n7"
    assert outlook.culprits[0].label in outlook.describe()


def test_what_half_does_to_a_harmless_model(tmp_path: Path, runtime: Runtime) -> None:
    loaded = write(tmp_path, "g (float[2] x) => (float[2] y) { y = Relu(x) }")
    outlook = what_half_does(loaded, batches({"x": np.ones(2, np.float32)}), runtime)
    assert outlook.ok
    assert outlook.culprits == ()
    assert outlook.describe() == "model.half() would be within tolerance"


def test_what_half_does_says_where_the_nan_comes_from(tmp_path: Path, runtime: Runtime) -> None:
    text = """g (float[2] x) => (float[2] y) {
        square = Mul(x, x)
        twice = Mul(square, square)
        y = Div(square, twice)
    }"""
    loaded = write(tmp_path, text)
    outlook = what_half_does(loaded, batches({"x": np.array([300.0, 1.0], np.float32)}), runtime)
    assert "would give NaN in output y, first at" in outlook.describe()


def test_a_later_batch_can_show_what_the_first_does_not(tmp_path: Path, runtime: Runtime) -> None:
    loaded = write(tmp_path, "g (float[2] x) => (float[2] y) { s = Mul(x, x) y = Sqrt(s) }")
    feeds = batches({"x": np.array([1.0, 2.0], np.float32)}, {"x": np.array([300.0, 2.0], np.float32)})
    assert repair_plan(loaded, everything(loaded), feeds, runtime, batches=1).before.ok
    repair = repair_plan(loaded, everything(loaded), feeds, runtime)
    assert repair.after.ok
    assert {made_by(loaded, b) for b in repair.blames} == {"s", "y"}
