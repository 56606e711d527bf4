from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import fp16conv
from fp16conv.execution.emulator import emulate_model
from fp16conv.execution.runtime import Runtime
from tests.conformance.cases import Case, all_cases, relative_error

CASES = all_cases()


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as r:
        yield r


def io_types(path: Path) -> tuple[list[tuple[str, bytes]], list[tuple[str, bytes]]]:
    """Names and types of inputs and outputs; before IR 4 initializers are inputs only by form."""
    model = onnx.load(path, load_external_data=False)
    weights = {t.name for t in model.graph.initializer} if model.ir_version < 4 else set()
    inputs = [(v.name, v.type.SerializeToString()) for v in model.graph.input if v.name not in weights]
    return inputs, [(v.name, v.type.SerializeToString()) for v in model.graph.output]


def count_casts(path: Path) -> int:
    def count(nodes: Iterator[onnx.NodeProto]) -> int:
        total = 0
        for node in nodes:
            total += node.op_type == "Cast"
            total += sum(count(a.g.node) for a in node.attribute if a.HasField("g"))
        return total

    return count(onnx.load(path, load_external_data=False).graph.node)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case_converts_and_stays_right(case: Case, tmp_path: Path, runtime: Runtime) -> None:
    source, output = case.prepare(tmp_path), tmp_path / "out.onnx"
    report = fp16conv.convert(source, output, data=case.feeds, keep_fp32=case.keep_fp32())
    assert report.output is not None, report.findings
    onnx.checker.check_model(output, full_check=True)
    assert io_types(output) == io_types(source)
    if case.max_casts is not None:
        assert count_casts(output) - count_casts(source) <= case.max_casts

    with np.load(case.feeds) as archive:
        feeds = dict(archive)
    reference_session = runtime.load(source)
    reference = runtime.run(reference_session, feeds)
    emulated_session = runtime.load(emulate_model(ir.load(output)))
    candidate = runtime.run(emulated_session, feeds)
    runtime.unload(reference_session)
    runtime.unload(emulated_session)
    for i, (name, expected) in enumerate(reference.items()):
        tolerance = case.tolerances[min(i, len(case.tolerances) - 1)]
        pairs = zip(
            expected if isinstance(expected, list) else [expected],
            candidate[name] if isinstance(expected, list) else [candidate[name]],
            strict=True,
        )
        for a, b in pairs:
            if not np.issubdtype(a.dtype, np.floating):
                assert np.array_equal(a, b), f"{name} changed"
            elif case.compare == "finite":
                assert np.array_equal(np.isfinite(a), np.isfinite(b)), name
            else:
                assert relative_error(a, b) <= tolerance, name
