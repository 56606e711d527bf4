"""No value of a random graph leaves its proven bound, in chains that the runtime may fuse too."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.bounds_soundness import check, declare, find_violations, node_tests
from benchmarks.random_graphs import make_feed, make_graph
from fp16conv.errors import Fp16convError
from fp16conv.evidence.bounds import prove_bounds
from fp16conv.execution.runtime import Runtime, RuntimeFailure
from fp16conv.frontends.onnx import load_onnx
from fp16conv.graph import Origin, RangeFact
from tests.conformance.cases import Case, all_cases


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_graphs(runtime: Runtime, seed: int) -> None:
    rng = np.random.default_rng(seed)
    model, ranges = make_graph(rng)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.onnx"
        onnx.save(model, path)
        loaded = load_onnx(path)
    facts = prove_bounds(loaded.graph, ranges)
    _, found = find_violations(loaded, facts, runtime, [make_feed(model, ranges, rng) for _ in range(10)])
    assert not found, [str(v) for v in found]


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_cases(runtime: Runtime, tmp_path: Path, case: Case) -> None:
    loaded = load_onnx(case.prepare(tmp_path))
    with np.load(case.feeds) as arrays:
        feed = dict(arrays)
    for ranges in ({}, declare([feed])):
        try:
            _, found = find_violations(loaded, prove_bounds(loaded.graph, ranges), runtime, [feed])
        except RuntimeFailure:
            pytest.skip("ONNX Runtime does not run it")
        assert not found, [str(v) for v in found]


def test_node_tests(runtime: Runtime, tmp_path: Path) -> None:
    """Every fourth node test of the onnx package; all of them in benchmarks/bounds_soundness.py."""
    done, problems = 0, []
    for name, model, feeds in list(node_tests())[::4]:
        onnx.save(model, tmp_path / "node.onnx")
        try:
            loaded = load_onnx(tmp_path / "node.onnx")
            facts = prove_bounds(loaded.graph, declare(feeds))
            _, found = find_violations(loaded, facts, runtime, feeds)
        except Fp16convError:
            continue
        done += 1
        problems += [f"{name}: {v}" for v in found]
    assert done > 300
    assert not problems


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [([0.0, 1.0], False), ([1.1], True), ([-0.1], True), ([0.1], True), ([np.nan], True), ([0.5], False)],
)
def test_the_check_finds_what_leaves_a_bound(numbers: list[float], wrong: bool) -> None:
    fact = RangeFact(0.0, 1.0, Origin.PROVEN, min_abs_nonzero=0.25)
    assert (check(np.array(numbers, np.float32), fact) is not None) is wrong
