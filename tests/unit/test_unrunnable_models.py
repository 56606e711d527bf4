"""A model that the runtime here cannot load is judged all the same, by its rules and constants."""

from pathlib import Path

import onnx
import onnx.parser
import pytest

import fp16conv

READABLE = "g (float[2] x) => (float[2] y) { t = custom.Unknown (x) y = Neg (t) }"
NOTHING_TO_READ = "g (seq(float[2]) x) => (seq(float[2]) y) { y = custom.Unknown (x) }"
BODY = """g (float[2] x) => (float[2] y) {
    y = custom.Unknown <body = b (float[2] s) => (float[2] t) { t = Relu (s) }> (x)
}"""


@pytest.mark.parametrize(
    "text", [READABLE, NOTHING_TO_READ, BODY], ids=["readable", "nothing to read", "body"]
)
def test_model_that_does_not_load_is_analyzed(text: str, tmp_path: Path) -> None:
    head = '<ir_version: 9, opset_import: ["" : 18, "custom" : 1]> '
    onnx.save(onnx.parser.parse_model(head + text), tmp_path / "m.onnx")
    report = fp16conv.analyze(tmp_path / "m.onnx")
    assert [f.rule for f in report.findings] == ["not-observed"]
    assert report.half.finite is None
