"""The emulator against onnx's ReferenceEvaluator, on all models of onnx's backend tests with everything FP16.

The reference computes in numpy float16 and rounds after each operator, independently of ONNX Runtime. Both
must agree within 2 units in the last place of FP16 at the output's largest magnitude, in integers exactly.
What differs more is in emulator_differences.toml, by kind; the list is exact for the versions it names.
"""

from __future__ import annotations

import math
import os
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from fp16conv.execution.emulator import emulate_model
from fp16conv.execution.matching import match_feeds
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import DataType, ValueKind
from tests.conformance.node_models import Feeds, NodeModel, Sweep, all_node_models

CHUNKS = 8
ULPS = 2.0
LISTED = Path(__file__).with_name("emulator_differences.toml")


@pytest.fixture(scope="module")
def listed() -> dict[str, Any]:
    return tomllib.loads(LISTED.read_text())


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
        with Runtime(threads=1, timeout=120) as runtime:
            yield Sweep(runtime, tmp_path_factory.mktemp("models"))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_emulator_agrees_with_the_reference(chunk: int, sweep: Sweep, listed: dict[str, Any]) -> None:
    models = all_node_models()[chunk::CHUNKS]
    found = {model.name: said for model in models if (said := differ(sweep, model))}
    known = {name: entry["kind"] for entry in listed["difference"] for name in entry["models"]}
    unknown = {name: said for name, said in found.items() if name not in known}
    assert not unknown
    for name, said in found.items():
        assert (known[name] == "the reference cannot") == (said == "cannot"), (name, said)
    if listed["versions"] == {"onnx": onnx.__version__, "onnxruntime": sweep.runtime.version}:
        assert set(found) == {name for name in known if name in {model.name for model in models}}


def differ(sweep: Sweep, model: NodeModel) -> str:
    """What differs, `cannot` where the reference does not run, empty where all is well or nothing is FP16."""
    source = sweep.reference(model)
    if not source.runs:
        return ""
    plan = sweep.most(sweep.study(source, observe=False), "half")
    if all(decision.dtype is not DataType.FLOAT16 for decision in plan.decisions):
        return ""
    result, problems = sweep.convert(source, plan)
    assert not problems
    session = sweep.runtime.load(emulate_model(result.model))
    halves = {
        v.name for v in result.graph.values if v.kind is ValueKind.INPUT and v.dtype is DataType.FLOAT16
    }
    worst = ""
    for batch in source.feeds:
        feeds = {k: np.asarray(v) if np.isscalar(v) else v for k, v in match_feeds(session, batch).items()}
        expected = evaluate(result, {k: _in_half(v) if k in halves else v for k, v in feeds.items()})
        if expected is None:
            return "cannot"
        emulated = sweep.runtime.run(session, feeds)
        for info in session.outputs:
            error = distance(emulated[info.name], expected[info.name])
            if error > ULPS:
                worst = f"{info.name}: {error:.1f} ulp"
    sweep.runtime.unload(session)
    return worst


def _in_half(fed: Any) -> Any:
    """What the model declares as FP16; the emulation takes sequences in FP32."""
    return [_in_half(item) for item in fed] if isinstance(fed, list) else fed.astype(np.float16)


def evaluate(result: LoadedModel, feeds: Feeds) -> Feeds | None:
    """Run the reference; None where it does not know an operator, or not in float16."""
    names = [info.name for info in result.proto.graph.output]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return dict(zip(names, ReferenceEvaluator(result.proto).run(None, feeds), strict=True))
        except Exception:  # whatever it throws where it lacks something
            return None


def distance(found: Any, expected: Any) -> float:
    """Largest difference in ulp of FP16 at the largest magnitude; infinite where it is no rounding."""
    if found is None or expected is None:
        return 0.0 if found is expected else math.inf
    ours, theirs = list(_leaves(found)), list(_leaves(expected))
    if len(ours) != len(theirs):
        return math.inf
    return max((_array_distance(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def _leaves(value: Any) -> Iterator[Any]:
    """The arrays of a sequence; an optional sequence may come in a list of one."""
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield np.asarray(value)


def _array_distance(found: np.ndarray, expected: np.ndarray) -> float:
    if found.shape != expected.shape:
        return math.inf
    floats = (np.floating, ml_dtypes.bfloat16)
    if not all(any(np.issubdtype(a.dtype, kind) for kind in floats) for a in (found, expected)):
        return 0.0 if np.array_equal(found, expected) else math.inf
    a, b = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return math.inf
    size = np.abs(b[finite]).max(initial=2.0**-14)
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0) / 2.0 ** (math.floor(math.log2(size)) - 10))
