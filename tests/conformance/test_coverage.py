from __future__ import annotations

import onnx
import onnxruntime
import pytest

from tools import generate_coverage


def test_the_coverage_page_is_current() -> None:
    page = generate_coverage.OUTPUT.read_text(encoding="utf-8")
    if f"from onnx {onnx.__version__} and ONNX Runtime {onnxruntime.__version__}," not in page:
        pytest.skip("the page was written with other versions of onnx and ONNX Runtime")
    assert generate_coverage.render() == page, "run `python -m tools.generate_coverage`"


def test_every_operator_that_admits_fp16_has_a_class_and_a_test() -> None:
    rows = [line.split(" | ") for line in generate_coverage.OUTPUT.read_text("utf-8").splitlines()]
    table = [row for row in rows if len(row) == 7 and row[1].isdigit()]
    assert len(table) > 600
    assert not [row[0] for row in table if "no rule" in row[3]]
    untested = {row[0].removeprefix("| ") for row in table if row[6] == "none |"}
    assert untested == {
        "ai.onnx.preview.training::Gradient",
        "com.microsoft::BeamSearch",
        "com.microsoft::WhisperBeamSearch",
    }
