"""Any assignment of legal dtypes must give a valid model that loads and has the same interface."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fp16conv.conversion.loss_guard import refuse_losses
from fp16conv.conversion.onnx import convert
from fp16conv.conversion.save import save
from fp16conv.conversion.verify import verify
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import load_onnx
from fp16conv.graph import ModelGraph
from fp16conv.planning.plan import PrecisionPlan
from tests.roundtrip.plans import all_fp16, all_fp32, random_plan

CASES = Path(__file__).parent.parent / "cases"
NAMES = sorted(path.stem for path in CASES.glob("*.onnx"))
SEEDS = (0, 1)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


def _plans(graph: ModelGraph) -> dict[str, PrecisionPlan]:
    plans = {"fp16": all_fp16(graph), "fp32": all_fp32(graph)}
    return plans | {f"seed {seed}": random_plan(graph, seed) for seed in SEEDS}


@pytest.mark.parametrize("name", NAMES)
def test_any_legal_plan_gives_a_valid_model(name: str, tmp_path: Path, runtime: Runtime) -> None:
    loaded = load_onnx(CASES / f"{name}.onnx")
    refuse_losses(loaded.proto, name)
    source = loaded.proto.SerializeToString(deterministic=True)
    before = runtime.load(loaded.path)
    second = tmp_path / "twice"
    second.mkdir()
    for label, plan in _plans(loaded.graph).items():
        written = save(convert(loaded, plan), tmp_path / "out.onnx", loaded)
        findings = [
            f for f in verify(written[0], loaded, plan) if f.check != "overflow"
        ]  # no evidence was asked
        assert not findings, (label, findings)
        after = runtime.load(written[0])
        assert after.inputs == before.inputs, label
        assert after.outputs == before.outputs, label
        again = load_onnx(written[0])
        content = [path.read_bytes() for path in written]
        twice = save(convert(again, all_fp32(again.graph)), second / "out.onnx", again)
        assert [path.read_bytes() for path in twice] == content, label
    assert loaded.proto.SerializeToString(deterministic=True) == source


@pytest.mark.parametrize("name", NAMES)
def test_an_fp32_plan_gives_bit_equal_results(name: str, tmp_path: Path, runtime: Runtime) -> None:
    loaded = load_onnx(CASES / f"{name}.onnx")
    if any(op.op_type in ("RandomNormalLike", "RandomUniform", "Multinomial") for op in loaded.graph.ops):
        pytest.skip("its results are random")
    written = save(convert(loaded, all_fp32(loaded.graph)), tmp_path / "out.onnx", loaded)
    before, after = runtime.load(loaded.path), runtime.load(written[0])
    with np.load(CASES / f"{name}.npz") as feeds:
        feed = {info.name: feeds[info.name] for info in before.inputs if info.name in feeds}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected, found = runtime.run(before, feed), runtime.run(after, feed)
    assert list(expected) == list(found)
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)
