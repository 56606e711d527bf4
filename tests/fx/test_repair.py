"""A PyTorch plan that misses its tolerance is repaired and tuned by the loop and search of the ONNX path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fp16conv import api, fx
from fp16conv.errors import UsageError, ValidationError
from fp16conv.execution.fx import ProgramRunner, Roundings, find_roundings
from fp16conv.graph import DataType
from fp16conv.inputs import read_options
from fp16conv.tuning.meter import Journal, Meter
from fp16conv.validation.attribution import attribute
from fp16conv.validation.fx.probe import ProgramProbe

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about itself

X = torch.linspace(-2.0, 2.0, 64).reshape(4, 16)


class Cancelling(nn.Module):
    """A difference of two numbers that agree to three digits: FP16 leaves one of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.leave = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.enter(x)
        return self.leave((y * 1.002 - y) * 500.0)


@pytest.fixture(scope="module")
def cancelling() -> fx.ProgramStudy:
    return fx.start_study(fx.load(Cancelling(), (X,)), read_options())


def everything(study: fx.ProgramStudy) -> list[DataType]:
    return [DataType.FLOAT16 if t.admits_fp16 else DataType.FLOAT for t in study.graph.typevars]


def test_a_plan_that_misses_is_repaired(tmp_path: Path) -> None:
    loaded = fx.load(Cancelling(), (X,))
    missed = fx.convert(loaded, tmp_path / "half.pt2", rtol=0.01, repair=False)
    assert missed.output is None
    assert missed.validation is not None
    assert {c.op for c in missed.validation.culprits} & {"mul", "enter/linear"}
    repaired = fx.convert(loaded, tmp_path / "half.pt2", rtol=0.01)
    assert repaired.output is not None
    assert repaired.ok
    moved = {op for repair in repaired.repairs for op in repair.ops}
    assert "mul" in moved
    assert "leave/linear_1" not in moved
    assert repaired.repairs[0].error > 0.01
    assert any(group.rule == "measured-error" for group in repaired.decisions.kept)
    assert torch.export.load(tmp_path / "half.pt2").module()(X).dtype is torch.float32


def test_a_module_in_memory_is_repaired_too() -> None:
    conversion = fx.convert_module(Cancelling(), (X,), rtol=0.01)
    assert conversion.result is not None
    assert conversion.result.ok
    assert conversion.repairs
    assert conversion.module(X).dtype is torch.float32


def test_a_plan_that_was_given_is_not_repaired() -> None:
    loaded = fx.load(Cancelling(), (X,))
    conversion = fx.convert_module(loaded, plan=fx.plan(loaded), rtol=0.01)
    assert conversion.result is not None
    assert not conversion.result.ok
    assert not conversion.repairs


def test_what_the_user_forces_stays_and_the_miss_is_told(tmp_path: Path) -> None:
    words: Any = {"rtol": 0.01, "force_fp16": "*"}
    report = fx.convert(fx.load(Cancelling(), (X,)), tmp_path / "half.pt2", **words)
    assert report.output is None
    assert list(tmp_path.iterdir()) == []
    kept = fx.convert(
        fx.load(Cancelling(), (X,)), tmp_path / "half.pt2", allow_out_of_tolerance=True, **words
    )
    assert kept.output is not None
    assert kept.validation is not None
    assert not kept.validation.ok


def test_blame_falls_on_what_rounded_the_large_numbers(cancelling: fx.ProgramStudy) -> None:
    with cancelling.open_probe(cancelling.verdicts, rtol=0.01, atol=0.0) as probe:
        blames = attribute(probe, everything(cancelling))
    assert {blames[0].label, blames[1].label} <= {"mul", "enter/linear", "sub"}
    assert sum(blame.share for blame in blames) == pytest.approx(1.0)


def test_a_probe_runs_the_program_that_the_converter_makes(cancelling: fx.ProgramStudy) -> None:
    """The measured plan and the saved one are the same program: no error but that of other batches."""
    plan = cancelling.plan()
    with cancelling.open_probe(plan, rtol=0.01, atol=0.0) as probe:
        measured = probe.measure(plan.dtype_list(len(cancelling.graph.typevars)))
    converted = fx.convert_module(cancelling.loaded, plan=plan, rtol=0.01)
    assert converted.result is not None
    assert measured.relative_l2 == converted.result.relative_l2


def test_switched_roundings_do_what_half_kernels_do(cancelling: fx.ProgramStudy) -> None:
    """All roundings on is nearly the plan with everything in FP16: kernels only differ inside a call."""
    dtypes = everything(cancelling)
    with cancelling.open_probe(cancelling.verdicts, rtol=0.01, atol=0.0) as probe:
        half = probe.measure(dtypes).relative_l2
        emulated = probe.measure_switches(probe.switched.switches(dtypes)).relative_l2
        nothing = probe.measure_switches(np.zeros(len(probe.switched.slots), np.bool_))
    assert half is not None
    assert emulated is not None
    assert emulated == pytest.approx(half, rel=0.5)
    assert nothing.error == 0.0


def test_one_rounding_changes_one_value() -> None:
    """Rounding the weight of a product by hand and by a switch is the same number."""
    torch.manual_seed(0)
    lin = nn.Linear(16, 16)
    loaded = fx.load(lin, (X,))
    ((slot, uses),) = [
        (slot, uses)
        for slot, uses in find_roundings(loaded.graph)
        if loaded.graph.values[slot.value].name == "weight"
    ]
    rounded = Roundings.of(loaded, {slot.value: uses}, frozenset())
    (given,) = ProgramRunner(loaded.program).run({"input": X.numpy()}, rounded=rounded).outputs.values()
    with torch.no_grad():
        expected = nn.functional.linear(X, lin.weight.half().float(), lin.bias)
    np.testing.assert_array_equal(given, expected.numpy())


def test_literals_and_saturated_numbers_are_rounded_too() -> None:
    loaded = fx.load(Scaled(), (X,))
    found = find_roundings(loaded.graph)
    literals = {slot.value: uses for slot, uses in found if loaded.graph.array(slot.value) is not None}
    rounded = Roundings.of(loaded, literals, frozenset(literals))
    (given,) = ProgramRunner(loaded.program).run({"x": X.numpy()}, rounded=rounded).outputs.values()
    expected = torch.where(X > 1, torch.tensor(-65504.0), X * float(np.float16(0.1)))
    np.testing.assert_array_equal(given, expected.numpy())


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 0.1).masked_fill(x > 1, -1e9)


def test_a_program_that_does_not_run_in_half_counts_as_destroyed(cancelling: fx.ProgramStudy) -> None:
    loaded = fx.load(Scaled(), (X,))
    feeds = fx.open_feeds(loaded, read_options())
    dtypes = [DataType.FLOAT16 if t.admits_fp16 else DataType.FLOAT for t in loaded.graph.typevars]
    with ProgramProbe(loaded, feeds, {}) as probe:
        assert not probe.measure(dtypes).is_finite
    saturated = {v.id for v in loaded.graph.values if v.is_constant}
    with ProgramProbe(loaded, feeds, {"saturated": saturated}) as probe:
        assert probe.measure(dtypes).is_finite


def test_tune_finds_a_plan_and_writes_it(tmp_path: Path) -> None:
    batches = [X.numpy() * scale for scale in (0.5, 1.0)]
    for number, array in enumerate(batches):
        np.savez(tmp_path / f"{number}.npz", x=array)
    output = tmp_path / "tuned.pt2"
    data = [tmp_path / "0.npz", tmp_path / "1.npz"]
    report = api.tune(Cancelling(), output, tolerance=0.01, data=data)  # type: ignore[arg-type]
    assert report.met
    assert report.output is not None
    assert report.validation is not None
    assert report.validation.ok
    assert report.effort.runs <= report.effort.max_runs
    assert any(not point.ok for point in report.frontier)  # the default plan misses
    assert {rounding.op for rounding in report.roundings} & {"mul", "enter/linear"}
    assert torch.export.load(output).module()(x=X).dtype is torch.float32


def test_an_interrupted_search_goes_on(cancelling: fx.ProgramStudy, tmp_path: Path) -> None:
    counts = []
    for _ in range(2):
        with cancelling.open_probe(cancelling.verdicts, rtol=0.01, atol=0.0) as probe:
            meter = Meter(probe, Journal(tmp_path, [cancelling.engine]), max_runs=9)
            meter.measure_plan(everything(cancelling))
            counts.append((probe.runs, meter.reused))
    assert counts == [(1, 0), (0, 1)]


def test_cuda_is_refused_where_it_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    loaded = fx.load(nn.Linear(4, 4), (torch.ones(1, 4),))
    for verb in (
        lambda: fx.convert(loaded, tmp_path / "half.pt2", provider="cuda"),
        lambda: fx.tune(loaded, tolerance=0.1, provider="cuda"),
        lambda: fx.validate(loaded, loaded, provider="cuda"),
    ):
        with pytest.raises(ValidationError, match="CUDA was asked for"):
            verb()
    report = fx.validate(loaded, loaded)
    assert any("not run on CUDA" in note for note in report.validation.notes)
    assert "on the CPU" in report.validation.backends[0].description


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_runs_the_half_kernels_of_the_device() -> None:
    loaded = fx.load(Cancelling(), (X,))
    report = fx.validate(loaded, loaded, provider="cuda")
    assert [backend.name for backend in report.validation.backends] == ["cuda"]


def test_device_arguments_of_calls_follow_the_device() -> None:
    """`meta` is a device that every machine has: what names the CPU inside must not be left behind."""

    class Makes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(4, device=torch.device("cpu"))

    loaded = fx.load(Makes(), (torch.ones(4),))
    seen = []
    runner = ProgramRunner(loaded.program, device="meta")
    with pytest.raises(NotImplementedError):  # there are no numbers to hand out in the end
        runner.run({"x": np.ones(4, np.float32)}, lambda node, result: seen.append(result))
    assert {tensor.device.type for tensor in seen} == {"meta"}


def test_repairs_of_onnx_operators_are_refused() -> None:
    loaded = fx.load(nn.Linear(4, 4), (torch.ones(1, 4),))
    for name in ("fold-batchnorm", "rescale"):
        with pytest.raises(UsageError, match="rewrites ONNX operators"):
            fx.plan(loaded, repairs=name)
    assert fx.plan(loaded, repairs="saturate").decisions
