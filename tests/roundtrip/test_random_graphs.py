"""Random graphs with branches, loops, functions and shared weights stay valid under random plans."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from fp16conv.conversion.onnx import convert
from fp16conv.conversion.save import save
from fp16conv.conversion.verify import verify
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import load_onnx
from tests.roundtrip.plans import all_fp32, random_plan
from tests.strategies import error_bound, feeds, models


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(proto=models(), plan_seed=st.integers(0, 3))
def test_random_graphs_convert(proto: onnx.ModelProto, plan_seed: int, runtime: Runtime) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        note(onnx.printer.to_text(proto))
        onnx.checker.check_model(proto, full_check=True)
        onnx.save(proto, folder / "in.onnx")
        loaded = load_onnx(folder / "in.onnx")
        plan = random_plan(loaded.graph, plan_seed, share=0.5 + 0.5 * (plan_seed == 3))
        (written,) = save(convert(loaded, plan), folder / "out.onnx", loaded)
        assert not verify(written, loaded, plan)
        before, after = runtime.load(folder / "in.onnx"), runtime.load(written)
        bounds = error_bound(proto)
        for feed in feeds():
            expected, found = runtime.run(before, feed), runtime.run(after, feed)
            for key, value in expected.items():
                np.testing.assert_allclose(found[key], value, atol=bounds[key], rtol=0, err_msg=key)
        again = load_onnx(written)
        (twice,) = save(convert(again, all_fp32(again.graph)), folder / "twice.onnx", again)
        assert twice.read_bytes() == written.read_bytes()
