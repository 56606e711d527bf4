"""Sites of a model, and how halving finds what they add."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from fp16conv.evidence.sensitivity import Site, estimate, find_sites
from fp16conv.execution.switches import emulate_switched
from fp16conv.frontends.onnx import from_proto

CEILING = 1e12


def sites(count: int) -> list[Site]:
    return [Site(i, (i,), (i,), False) for i in range(count)]


@pytest.mark.parametrize("seed", range(10))
def test_the_few_that_matter_are_found_in_few_runs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.random(300) * 1e-6
    guilty = rng.choice(300, 3, replace=False)
    truth[guilty] = [1.0, 0.5, 0.25]
    found = estimate(sites(300), lambda s: float(truth[list(s)].sum()), budget_runs=40, ceiling=CEILING)
    assert found.runs <= 40
    for index in guilty:
        assert found.resolved[index]
        assert found.squared[index] == pytest.approx(truth[index], rel=1e-3)
    assert sum(found.squared) == pytest.approx(truth.sum(), rel=1e-6)


def test_what_destroys_the_output_is_infinite_and_the_rest_is_still_measured() -> None:
    truth = np.full(64, 0.01)
    truth[[7, 40]] = CEILING
    truth[20] = 3.0
    found = estimate(sites(64), lambda s: float(truth[list(s)].sum()), budget_runs=60, ceiling=CEILING)
    assert [i for i, e in enumerate(found.squared) if math.isinf(e)] == [7, 40]
    assert found.squared[20] == pytest.approx(3.0, rel=1e-2)


def test_suspects_are_measured_apart() -> None:
    calls: list[tuple[int, ...]] = []

    def measure(members: tuple[int, ...]) -> float:
        calls.append(members)
        return 0.0

    estimate(sites(4), measure, budget_runs=9, ceiling=CEILING, suspects=[False, True, False, False])
    assert calls == [(0, 2, 3), (1,)]


def test_an_empty_budget_measures_nothing() -> None:
    found = estimate(sites(4), lambda s: 1.0, budget_runs=0, ceiling=CEILING)
    assert (found.runs, found.squared) == (0, (0.0,) * 4)
    assert estimate([], lambda s: 1.0, budget_runs=5, ceiling=CEILING).squared == ()


def test_moved_values_are_no_sites_and_their_readers_make_the_rounding_happen() -> None:
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[2,4] x) => (float[4] y) {
        k = Constant<value_float = 0.1>()
        two = Constant<value_float = 2.0>()
        shape = Constant<value_ints = [8]>()
        first = Mul(x, k)
        flat = Reshape(first, shape)
        half = Mul(flat, two)
        axes = Constant<value_ints = [0]>()
        y = ReduceSum<keepdims = 0>(half, axes)
    }"""
    loaded = from_proto(onnx.parser.parse_model(text), Path("m.onnx"))
    graph = loaded.graph
    switched = emulate_switched(loaded)
    found = find_sites(graph, switched.slots, [v.op is not None for v in graph.typevars])
    by_op = {(None if s.op is None else graph.ops[s.op].outputs[0], s.is_constant): s for s in found}
    name = {v.name: v.id for v in graph.values}
    # 2.0 is exact in FP16; what Reshape moves was rounded where it was made.
    assert {key for key in by_op if key[1]} == {(name["first"], True)}
    assert (name["flat"], False) not in by_op
    readers = {graph.ops[graph.typevars[t].op].op_type for t in by_op[name["first"], False].typevars}  # type: ignore[index]
    assert readers == {"Mul", "Reshape"}
    assert len(by_op[name["first"], False].typevars) == 3  # both products and the Reshape between them
