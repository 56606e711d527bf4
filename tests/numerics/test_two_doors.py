"""Both doors of the emulator give the same bits: the converted model, and the FP32 model plus the plan."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fp16conv.conversion.onnx import convert
from fp16conv.execution.emulator import emulate_model, emulate_plan
from fp16conv.execution.feeds import load_feeds
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import load_onnx
from tests.roundtrip.plans import all_fp16, random_plan

ROOT = Path(__file__).resolve().parents[1]

MODELS = sorted((ROOT / "cases").glob("*.onnx"))


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


def assert_same(a: object, b: object) -> None:
    if isinstance(a, list):
        assert isinstance(b, list)
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), strict=True)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_doors_agree(path: Path, runtime: Runtime) -> None:
    loaded = load_onnx(path)
    seed = random.Random(path.stem).randrange(2**16)
    feeds = list(load_feeds([path.with_suffix(".npz")], loaded.graph))
    for plan in (all_fp16(loaded.graph), random_plan(loaded.graph, seed)):
        by_model = runtime.load(emulate_model(convert(loaded, plan)))
        by_plan = runtime.load(emulate_plan(loaded, [d.dtype for d in plan.decisions]))
        for feed in feeds:
            first, second = runtime.run(by_model, feed), runtime.run(by_plan, feed)
            assert list(first) == list(second)
            for name in first:
                assert_same(first[name], second[name])
        runtime.unload(by_model)
        runtime.unload(by_plan)
