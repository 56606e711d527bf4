"""A model that is in FP16 already needs no conversion, and the analysis says so."""

from pathlib import Path

import onnx
import onnx.parser

import fp16conv
from fp16conv.reporting.text import render_text

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[1,4] x) => (float[1,4] y) <float[4,4] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}> {
  y = MatMul(x, w)
}"""


def test_converted_model_is_done(tmp_path: Path) -> None:
    source, output = tmp_path / "m.onnx", tmp_path / "h.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), source)
    fp16conv.convert(source, output)
    assert "already-fp16" not in [f.rule for f in fp16conv.analyze(source).findings]
    report = fp16conv.analyze(output)
    assert "already-fp16" in [f.rule for f in report.findings]
    assert "it is in FP16 already" in render_text(report)
