"""The switched emulator: with the switches of a plan it computes what the emulator of that plan does."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from fp16conv.errors import Fp16convError
from fp16conv.execution.emulator import emulate_plan
from fp16conv.execution.feeds import load_feeds
from fp16conv.execution.runtime import Results, Runtime, RuntimeFailure
from fp16conv.execution.switches import SWITCHES, emulate_switched
from fp16conv.frontends.onnx import LoadedModel, from_proto, load_onnx
from fp16conv.graph import Container, DataType

CASES = sorted((Path(__file__).parents[2] / "cases").glob("*.onnx"))


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1, optimization="disabled") as runtime:
        yield runtime


def plans(loaded: LoadedModel) -> Iterator[list[DataType]]:
    sequences = any(v.container is not Container.TENSOR for v in loaded.graph.values)
    for share, seed in ((0.0, 0), (0.5, 1), (0.5, 2), (1.1, 3)):
        if sequences and share == 0.5:
            continue  # no cast can change a sequence: such plans do not exist
        rng = np.random.default_rng(seed)
        yield [
            DataType.FLOAT16 if t.admits_fp16 and rng.random() < share else DataType.FLOAT
            for t in loaded.graph.typevars
        ]


def same(left: Results, right: Results) -> bool:
    """Equal up to the order of sums: a weight behind a switch is not packed for the kernel."""

    def equal(a: object, b: object) -> bool:
        if isinstance(a, list) and isinstance(b, list):
            return len(a) == len(b) and all(map(equal, a, b))
        if a is None or b is None:
            return a is b
        x, y = np.asarray(a), np.asarray(b)
        if x.dtype.kind != "f":
            return np.array_equal(x, y)
        return np.allclose(x, y, rtol=2**-10, atol=1e-6, equal_nan=True)

    return all(equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_cases(path: Path, runtime: Runtime) -> None:
    try:
        loaded = load_onnx(path)
        feed = next(iter(load_feeds([path.with_suffix(".npz")], loaded.graph)))
    except (Fp16convError, zipfile.BadZipFile):
        pytest.skip("not a model that can be run")
    switched = emulate_switched(loaded)
    if not switched.slots:
        pytest.skip("nothing to round")
    if any(op.op_type.startswith("Random") or op.op_type == "Multinomial" for op in loaded.graph.ops):
        pytest.skip("no two runs are alike")
    session = runtime.load(switched.model)
    try:
        for dtypes in plans(loaded):
            if any(dtypes[t] is DataType.FLOAT16 for t in switched.fixed):
                continue
            try:
                plain = runtime.load(emulate_plan(loaded, dtypes))
                wanted = runtime.run(plain, feed)
            except RuntimeFailure:
                continue  # this plan cannot run at all, however it is emulated
            runtime.unload(plain)
            found = runtime.run(session, feed | {SWITCHES: switched.switches(dtypes)})
            assert same(wanted, found)
    finally:
        runtime.unload(session)


def test_functions_get_the_switches_from_their_callers(runtime: Runtime) -> None:
    text = """<ir_version: 9, opset_import: ["": 18, "f": 1]>
        g (float[3] x) => (float[3] y) { y = f.twice(x) }
        <domain: "f", opset_import: ["": 18, "f": 1]> twice (a) => (b) { c = f.third(a) b = Add(c, c) }
        <domain: "f", opset_import: ["": 18]> third (a) => (b) {
            k = Constant<value_float = 0.3333333>() b = Mul(a, k)
        }"""
    loaded = from_proto(onnx.parser.parse_model(text), Path("m.onnx"))
    switched = emulate_switched(loaded)
    session = runtime.load(switched.model)
    x = np.array([1.0, 2.5, 1000.1], np.float32)
    for dtypes in plans(loaded):
        wanted = runtime.run(runtime.load(emulate_plan(loaded, dtypes)), {"x": x})
        found = runtime.run(session, {"x": x, SWITCHES: switched.switches(dtypes)})
        assert same(wanted, found)


def test_saturated_constants(runtime: Runtime) -> None:
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (float[2] y) {
        k = Constant<value_float = -1e9>() y = Add(x, k) }"""
    loaded = from_proto(onnx.parser.parse_model(text), Path("m.onnx"))
    (constant,) = (v.id for v in loaded.graph.values if v.name == "k")
    switched = emulate_switched(loaded, saturated=[constant])
    session = runtime.load(switched.model)
    on = np.array([slot.value == constant for slot in switched.slots])
    (y,) = runtime.run(session, {"x": np.zeros(2, np.float32), SWITCHES: on}).values()
    np.testing.assert_array_equal(y, np.float32([-65504, -65504]))
