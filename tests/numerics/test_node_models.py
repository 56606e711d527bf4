"""Both doors of the emulator on the models of onnx's backend node tests, with everything FP16 that may be.

The doors must agree bit for bit. The reference evaluator, which computes the converted model in float16, must
be within 2^-8 of the largest magnitude (it rounds inside operators and accumulates in float16, the emulator
does neither); the few operators where ONNX Runtime differs from it in FP32 too are listed. By default every
tenth model is tried (some seconds); `FP16CONV_ALL_NODE_MODELS=1` tries all.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from fp16conv.conversion.onnx import convert
from fp16conv.execution.emulator import emulate_model, emulate_plan
from fp16conv.execution.failures import RuntimeFailure
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import from_proto
from fp16conv.graph import DataType
from tests.roundtrip.plans import all_fp16

STRIDE = 1 if os.environ.get("FP16CONV_ALL_NODE_MODELS") else 10
CLOSE = 2.0**-8
RANDOM = ("random", "bernoulli", "dropout", "multinomial")
DIFFERS_IN_FP32_TOO = {
    "test_maxunpool_export_with_output_shape": "positions outside the pooled shape",
    "test_resize_downsample_scales_cubic_align_corners": "output length of align_corners",
    "test_resize_downsample_scales_linear_align_corners": "output length of align_corners",
}
FLOAT16_ACCUMULATION = {"test_gru_bidirectional": "0.004: the reference rounds gates and sums"}


def load_cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return sorted(load_model_tests(kind="node"), key=lambda case: str(case.name))[::STRIDE]


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1, timeout=120) as runtime:
        yield runtime


def decode(data: object) -> object:
    if isinstance(data, onnx.TensorProto):
        return numpy_helper.to_array(data)
    if isinstance(data, onnx.SequenceProto):
        return numpy_helper.to_list(data)
    if isinstance(data, onnx.OptionalProto):
        return numpy_helper.to_optional(data)
    return data


def same(a: object, b: object) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if a is None or b is None:
        return a is b
    x, y = np.asarray(a), np.asarray(b)
    return x.dtype == y.dtype and np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


def distance(a: object, b: object) -> float:
    """Largest difference relative to the largest magnitude; infinite where more than rounding differs."""
    if a is None or isinstance(a, list):
        return 0.0
    x, y = np.asarray(a), np.asarray(b)
    if x.shape != y.shape:
        return np.inf
    if x.dtype.kind != "f":
        return 0.0 if x.dtype.kind not in "iub" or np.array_equal(x, y) else np.inf
    x, y = x.astype(np.float64), y.astype(np.float64)
    finite = np.isfinite(x)
    if not np.array_equal(finite, np.isfinite(y)) or not np.array_equal(np.isnan(x), np.isnan(y)):
        return np.inf
    return float(np.abs(x[finite] - y[finite]).max(initial=0) / (np.abs(y[finite]).max(initial=0) + 1e-6))


def check(case: Any, runtime: Runtime) -> str:
    """An empty string where all is well or the model is none of our business, else what is wrong."""
    feeds = dict(
        zip((i.name for i in case.model.graph.input), map(decode, case.data_sets[0][0]), strict=True)
    )
    try:
        session = runtime.load(case.model.SerializeToString())
        runtime.run(session, feeds)
        runtime.unload(session)
    except RuntimeFailure:
        return ""  # nor does it run in FP32
    loaded = from_proto(case.model, Path(f"{case.name}.onnx"))
    dtypes = [decision.dtype for decision in all_fp16(loaded.graph).decisions]
    if DataType.FLOAT16 not in dtypes:
        return ""
    mixed = convert(loaded, all_fp16(loaded.graph))
    results = []
    for emulated in (emulate_model(mixed), emulate_plan(loaded, dtypes)):
        session = runtime.load(emulated)
        results.append(runtime.run(session, feeds))
        runtime.unload(session)
    if any(word in case.name for word in RANDOM):
        return ""
    if not all(same(results[0][name], results[1][name]) for name in results[0]):
        return f"{case.name}: the doors differ"
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reference = ReferenceEvaluator(ir.to_proto(mixed)).run(None, feeds)
    except Exception:  # the reference does not know every operator in float16
        return ""
    expected = dict(zip((o.name for o in case.model.graph.output), reference, strict=True))
    error = max((distance(value, expected[name]) for name, value in results[0].items()), default=0.0)
    if error <= CLOSE or case.name in DIFFERS_IN_FP32_TOO or case.name in FLOAT16_ACCUMULATION:
        return ""
    return f"{case.name}: {error:.3g} from the reference evaluator"


def test_node_models(runtime: Runtime) -> None:
    cases = load_cases()
    assert len(cases) > 100
    assert not [problem for case in cases if (problem := check(case, runtime))]
