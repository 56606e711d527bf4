"""The search against exhaustive enumeration, and what it promises about runs, time and the default plan."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx.helper
import onnx.numpy_helper
import pytest

from fp16conv.evidence.calibration import calibrate
from fp16conv.execution.feeds import FeedSource, synthesize
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import LoadedModel, from_proto
from fp16conv.graph import DataType
from fp16conv.planning.casts import assignment_cost
from fp16conv.planning.costs import CostModel, estimate_costs
from fp16conv.planning.cut import Charge
from fp16conv.planning.devices import load_device
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.planning.planner import make_plan
from fp16conv.rulebook.types import Judgement, Reason, Verdict, Verdicts
from fp16conv.tuning.meter import Journal, Meter
from fp16conv.tuning.search import Search, TuneResult, max_runs
from fp16conv.validation.probe import Probe

WIDTH = 24


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


def network(seed: int, layers: int) -> LoadedModel:
    """A chain of products, activations and residuals whose layers differ widely in sensitivity."""
    rng = np.random.default_rng(seed)
    nodes, weights, previous, last = [], [], "x", "x"
    for i in range(layers):
        kind = rng.choice(["product", "product", "activation", "residual", "scale"])
        if kind == "product":
            matrix = rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / np.sqrt(np.float32(WIDTH))
            weights.append(onnx.numpy_helper.from_array(matrix, f"w{i}"))
            nodes.append(onnx.helper.make_node("MatMul", [last, f"w{i}"], [f"v{i}"], f"n{i}"))
        elif kind == "activation":
            nodes.append(
                onnx.helper.make_node(str(rng.choice(["Tanh", "Sigmoid"])), [last], [f"v{i}"], f"n{i}")
            )
        elif kind == "residual":
            nodes.append(onnx.helper.make_node("Add", [last, previous], [f"v{i}"], f"n{i}"))
        else:  # an offset swallows digits, and the difference shows what is gone
            offset = np.float32(10.0 ** rng.integers(0, 3))
            weights.append(onnx.numpy_helper.from_array(np.array(offset), f"w{i}"))
            nodes.append(onnx.helper.make_node("Add", [last, f"w{i}"], [f"u{i}"], f"m{i}"))
            nodes.append(onnx.helper.make_node("Sub", [f"u{i}", f"w{i}"], [f"v{i}"], f"n{i}"))
        previous, last = last, f"v{i}"
    info = [onnx.helper.make_tensor_value_info(n, 1, [8, WIDTH]) for n in ("x", last)]
    graph = onnx.helper.make_graph(nodes, "g", info[:1], info[1:], weights)
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    return from_proto(proto, Path("m.onnx"))


def judged(loaded: LoadedModel, kept: Collection[str] = ()) -> Verdicts:
    judgements = []
    for variable in loaded.graph.typevars:
        op = None if variable.op is None else loaded.graph.ops[variable.op]
        verdict = Verdict.INFER
        if op is None:
            verdict = Verdict.NEVER
        elif op.op_type in kept:
            verdict = Verdict.DENY
        elif op.op_type == "MatMul":
            verdict = Verdict.ALLOW
        judgements.append(Judgement(verdict, (Reason("rule", "why"),)))
    return Verdicts(tuple(judgements))


@dataclasses.dataclass
class Setup:
    """Everything a search needs for one model."""

    loaded: LoadedModel
    feeds: FeedSource
    costs: CostModel
    verdicts: Verdicts
    runtime: Runtime

    def planner(self, *, charges: Sequence[Charge], lam: float, kept: Collection[int] = ()) -> PrecisionPlan:
        return make_plan(
            self.loaded.graph,
            self.verdicts,
            self.costs,
            rules_digest="r",
            errors=dict.fromkeys(kept, float("inf")),
            charges=charges,
            lam=lam,
            soft_allow=True,
        )

    def probe(self, rtol: float) -> Probe:
        return Probe(self.loaded, self.feeds, self.runtime, rtol=rtol, atol=0.0, batches=len(self.feeds))

    def search(self, rtol: float, journal: Journal | None = None, runs: int | None = None) -> TuneResult:
        graph = self.loaded.graph
        operators = sum(bool(op.typevars) for op in graph.ops)
        with self.probe(rtol) as probe:
            meter = Meter(
                probe,
                Journal(None, []) if journal is None else journal,
                max_runs=max_runs(operators) if runs is None else runs,
            )
            default = make_plan(graph, self.verdicts, self.costs, rules_digest="r")
            found = Search(
                graph, self.verdicts, self.costs, {}, probe.switched.slots, default, self.planner, meter
            ).run()
            assert meter.runs <= meter.max_runs
            assert probe.runs <= meter.max_runs
        return found


def setup(loaded: LoadedModel, runtime: Runtime, kept: Collection[str] = ()) -> Setup:
    feeds = synthesize(loaded.graph, batches=2)
    # Launches would make every cast of so small a model dearer than all it can save.
    device = dataclasses.replace(load_device("t4"), launch_us=1e-6)
    costs = estimate_costs(loaded.graph, calibrate(loaded, runtime, feeds).shapes, device)
    return Setup(loaded, feeds, costs, judged(loaded, kept), runtime)


def fastest_by_enumeration(setting: Setup, rtol: float) -> float:
    """Predicted time of the fastest assignment that meets the tolerance, by running all of them."""
    graph = setting.loaded.graph
    free = [v.id for v in graph.typevars if v.op is not None]
    best = float("inf")
    with setting.probe(rtol) as probe:
        for choice in itertools.product((DataType.FLOAT, DataType.FLOAT16), repeat=len(free)):
            dtypes = [DataType.FLOAT] * len(graph.typevars)
            for variable, dtype in zip(free, choice, strict=True):
                dtypes[variable] = dtype
            time = assignment_cost(graph, setting.costs, dict(enumerate(dtypes))) / 1e6
            if time < best and probe.measure(dtypes).ok:
                best = time
    return best


@pytest.mark.parametrize(("seed", "share"), [(0, 0.3), (1, 0.7), (2, 0.5), (3, 0.3), (4, 0.7), (7, 0.7)])
def test_within_ten_per_cent_of_the_best_plan_by_exhaustive_search(
    seed: int, share: float, runtime: Runtime
) -> None:
    setting = setup(network(seed, 7), runtime)
    everything = setting.planner(charges=(), lam=0.0)
    with setting.probe(1.0) as probe:
        whole = probe.measure([everything.dtypes[v.id] for v in setting.loaded.graph.typevars]).error
    rtol = share * whole
    found = setting.search(rtol)
    assert found.best is not None
    assert found.best.reading.ok
    assert found.best.time <= 1.1 * fastest_by_enumeration(setting, rtol)


def test_the_default_plan_wins_where_nothing_tolerable_is_faster(runtime: Runtime) -> None:
    setting = setup(network(1, 7), runtime)
    found = setting.search(0.5)
    default = next(p for p in found.points if p.origin == "default")
    assert found.best is not None
    assert default.reading.ok
    assert found.best.time <= default.time


def test_a_tolerance_of_zero_leaves_everything_in_fp32(runtime: Runtime) -> None:
    found = setup(network(3, 7), runtime).search(0.0)
    assert found.best is not None
    assert not any(d.dtype is DataType.FLOAT16 for d in found.best.plan.decisions)


def test_runs_stay_within_the_bound_and_a_small_budget_still_answers(runtime: Runtime) -> None:
    setting = setup(network(4, 24), runtime)
    whole = setting.search(0.001)
    assert whole.runs <= max_runs(24) < 45
    short = setting.search(0.5, runs=1)
    assert short.runs == 1
    assert short.best is not None
    assert short.best.origin == "default"


def test_a_search_goes_on_where_it_was_interrupted(tmp_path: Path, runtime: Runtime) -> None:
    setting = setup(network(5, 7), runtime)
    first = setting.search(0.001, Journal(tmp_path, ["a"]), runs=9)
    again = setting.search(0.001, Journal(tmp_path, ["a"]))
    fresh = setting.search(0.001, Journal(tmp_path, ["b"]))
    # What the short search knew of sensitivities led it to a plan or two of its own.
    assert 0 < first.runs - 2 <= again.reused <= first.runs
    assert fresh.reused == 0
    assert again.best is not None
    assert fresh.best is not None
    assert again.best.plan == fresh.best.plan
    third = setting.search(0.001, Journal(tmp_path, ["a"]))
    assert third.reused == third.runs


def test_a_damaged_journal_is_measured_anew(tmp_path: Path) -> None:
    journal = Journal(tmp_path, ["a"])
    assert journal.path is not None
    journal.path.write_text("{")
    assert len(Journal(tmp_path, ["a"])) == 0


def test_the_clock_ends_a_search_with_the_best_so_far(runtime: Runtime) -> None:
    setting = setup(network(6, 7), runtime)
    ticks = itertools.count()
    with setting.probe(0.5) as probe:
        meter = Meter(probe, Journal(None, []), max_runs=30, seconds=3.0, clock=lambda: float(next(ticks)))
        graph = setting.loaded.graph
        default = make_plan(graph, setting.verdicts, setting.costs, rules_digest="r")
        found = Search(
            graph, setting.verdicts, setting.costs, {}, probe.switched.slots, default, setting.planner, meter
        ).run()
    assert found.out_of_time
    assert found.runs <= 3
    assert found.best is not None
