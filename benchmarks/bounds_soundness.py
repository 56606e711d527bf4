"""Look for a value that leaves its proven bound: the search must find none.

    python -m benchmarks.bounds_soundness [--runs 10000] [--seed 0] [--nodes] [--models]

Random well-typed graphs run with random inputs inside declared ranges, extremes included; `--nodes` takes the
node tests of the onnx package with the range of their own inputs, `--models` the real models of the table.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper

from benchmarks.random_graphs import make_feed, make_graph
from fp16conv.errors import Fp16convError
from fp16conv.evidence.bounds import prove_bounds
from fp16conv.execution.runtime import Runtime
from fp16conv.execution.taps import tap, tap_inside
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from fp16conv.graph import RangeFact

__all__ = ["Violation", "declare", "find_violations", "run_nodes"]

Feed = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Violation:
    """A number outside a bound that was called proven."""

    value: str
    op_type: str
    fact: RangeFact
    found: float

    def __str__(self) -> str:
        fact = self.fact
        known = f"[{fact.lo:.8g}, {fact.hi:.8g}], |x| >= {fact.min_abs_nonzero}, nan {fact.has_nan}"
        return f"{self.op_type} {self.value}: {self.found:.8g} outside {known}, integral {fact.is_integral}"


def declare(feeds: Iterable[Feed]) -> dict[str, tuple[float, float]]:
    """The range of each numeric input over some feeds; inputs with NaN or infinity stay undeclared."""
    ranges: dict[str, tuple[float, float]] = {}
    for feed in feeds:
        for name, array in feed.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf" or not array.size:
                continue
            if not np.isfinite(array).all():
                ranges[name] = (-np.inf, np.inf)
                continue
            low, high = float(array.min()), float(array.max())
            known = ranges.get(name, (low, high))
            ranges[name] = (min(known[0], low), max(known[1], high))
    return {name: ends for name, ends in ranges.items() if np.isfinite(ends).all()}


def find_violations(
    loaded: LoadedModel, facts: Mapping[int, RangeFact], runtime: Runtime, feeds: Sequence[Feed]
) -> tuple[int, list[Violation]]:
    """Run a model over feeds and compare every value that can be read with its bound.

    Returns:
        Number of values compared, and those that left their bounds.
    """
    compared, found = 0, []
    seen: set[int] = set()
    # All values at once, insides of branches and functions too, and the outputs alone: what is read cannot
    # be fused away.
    outputs = [v for v in loaded.graph.main.outputs if v in facts]
    inside = ((r.value, r.array) for r in tap_inside(loaded, runtime, feeds, sorted(facts)))
    fused = ((value, array) for _, value, array in tap(loaded, runtime, feeds, outputs))
    for value, array in itertools.chain(inside, fused):
        compared += 1
        wrong = check(array, facts[value])
        if wrong is not None and value not in seen:
            seen.add(value)
            op = loaded.graph.producer(value)
            name = loaded.graph.values[value].name
            found.append(Violation(name, "input" if op is None else op.op_type, facts[value], wrong))
    return compared, found


def check(array: npt.NDArray[np.generic], fact: RangeFact) -> float | None:
    """A number of the array that contradicts the fact, None if there is none."""
    numbers = array.astype(np.float64).reshape(-1)
    nan = np.isnan(numbers)
    if nan.any():
        if not fact.has_nan:
            return float("nan")
        numbers = numbers[~nan]
    if not numbers.size:
        return None
    outside = (numbers < fact.lo) | (numbers > fact.hi)
    if fact.min_abs_nonzero is not None:
        outside |= (numbers != 0) & (np.abs(numbers) < fact.min_abs_nonzero * (1 - 2.0**-20))
    if fact.is_integral:
        outside |= np.rint(numbers) != numbers
    return float(numbers[outside][0]) if outside.any() else None


def run_random(runs: int, seed: int, runtime: Runtime, folder: Path) -> tuple[int, int, list[Violation]]:
    """`runs` runs: each graph is run with 20 feeds."""
    done = compared = 0
    found: list[Violation] = []
    index = seed * 1_000_003
    while done < runs:
        index += 1
        rng = np.random.default_rng(index)
        model, ranges = make_graph(rng)
        path = folder / "random.onnx"
        onnx.save(model, path)
        loaded = load_onnx(path)
        facts = prove_bounds(loaded.graph, ranges)
        feeds = [make_feed(model, ranges, rng) for _ in range(20)]
        try:
            count, wrong = find_violations(loaded, facts, runtime, feeds)
        except Fp16convError as problem:
            print(f"graph {index}: {problem}", file=sys.stderr)
            continue
        done += len(feeds)
        compared += count
        for violation in wrong:
            print(f"graph {index}: {violation}", flush=True)
        found += wrong
    return done, compared, found


def node_tests() -> Iterator[tuple[str, onnx.ModelProto, list[dict[str, Any]]]]:
    """The node tests of the onnx package with their inputs; those that read other than tensors are out."""
    import onnx.backend.test.loader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they compute their own references, overflows included
        cases = onnx.backend.test.loader.load_model_tests(kind="node")
    for case in cases:
        names = [info.name for info in case.model.graph.input]
        feeds = [dict(zip(names, map(_array, inputs), strict=False)) for inputs, _ in case.data_sets]
        if feeds and all(isinstance(a, np.ndarray) for feed in feeds for a in feed.values()):
            yield case.name, case.model, feeds


def _array(item: Any) -> Any:
    return onnx.numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item


def run_nodes(runtime: Runtime, folder: Path) -> tuple[int, int, list[Violation]]:
    """All node tests that ONNX Runtime runs, with the range of their own inputs declared."""
    done = compared = 0
    found: list[Violation] = []
    for name, model, feeds in node_tests():
        path = folder / "node.onnx"
        try:
            onnx.save(model, path)
            loaded = load_onnx(path)
            facts = prove_bounds(loaded.graph, declare(feeds))
            count, wrong = find_violations(loaded, facts, runtime, feeds)
        except Fp16convError:
            continue  # ONNX Runtime has no kernel for it
        done, compared = done + 1, compared + count
        for violation in wrong:
            print(f"{name}: {violation}", flush=True)
        found += wrong
    return done, compared, found


def run_models(runtime: Runtime) -> tuple[int, int, list[Violation]]:
    """The real models on their own data, with and without the range of their inputs declared."""
    from benchmarks.zoo.registry import EVALUATION_SEED, MODELS

    done = compared = 0
    found: list[Violation] = []
    for entry in MODELS:
        loaded = load_onnx(entry.path())
        feeds = entry.feeds(EVALUATION_SEED, 1)
        for ranges in ({}, declare(feeds)):
            count, wrong = find_violations(loaded, prove_bounds(loaded.graph, ranges), runtime, feeds)
            done, compared = done + 1, compared + count
            for violation in wrong:
                print(f"{entry.key}: {violation}", flush=True)
            found += wrong
    return done, compared, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="random runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", action="store_true", help="the node tests of the onnx package too")
    parser.add_argument("--models", action="store_true", help="the real models of the table too")
    arguments = parser.parse_args()
    violations = 0
    with Runtime(threads=1) as runtime, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        parts = {"random graphs": lambda: run_random(arguments.runs, arguments.seed, runtime, folder)}
        if arguments.nodes:
            parts["node tests"] = lambda: run_nodes(runtime, folder)
        if arguments.models:
            parts["real models"] = lambda: run_models(runtime)
        for title, run in parts.items():
            done, compared, found = run()
            print(f"{title}: {done} runs, {compared} values compared, {len(found)} outside their bounds")
            violations += len(found)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
