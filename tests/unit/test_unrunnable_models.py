"""A model that the runtime here cannot load is judged all the same, by its rules and constants."""

from pathlib import Path

import onnx
import onnx.parser
import pytest

import fp16conv
from fp16conv.errors import ValidationError

READABLE = "g (float[2] x) => (float[2] y) { t = custom.Unknown (x) y = Neg (t) }"
NOTHING_TO_READ = "g (seq(float[2]) x) => (seq(float[2]) y) { y = custom.Unknown (x) }"
BODY = """g (float[2] x) => (float[2] y) {
    y = custom.Unknown <body = b (float[2] s) => (float[2] t) { t = Relu (s) }> (x)
}"""

UNMADE = "g (float8e4m3fn[2] x) => (float[2] y) { t = Cast <to = 1> (x) y = Neg (t) }"
OVERSIZED = "g (float[1,4] x, int64[2] n) => (float[1,1099511627776] y) { y = Expand (x, n) }"

HEAD = '<ir_version: 9, opset_import: ["" : 19, "custom" : 1]> '


@pytest.mark.parametrize(
    "text",
    [READABLE, NOTHING_TO_READ, BODY, UNMADE, OVERSIZED],
    ids=["readable", "nothing to read", "body", "input of a type that numpy lacks", "oversized"],
)
def test_model_that_does_not_load_is_analyzed(text: str, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    report = fp16conv.analyze(tmp_path / "m.onnx")
    assert [f.rule for f in report.findings] == ["not-observed"]
    assert report.half.finite is None


def test_inputs_that_cannot_be_made_up_are_no_obstacle_to_a_conversion(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(HEAD + UNMADE), tmp_path / "m.onnx")
    with pytest.raises(ValidationError, match="input 'x' has a type that cannot be made up"):
        fp16conv.convert(tmp_path / "m.onnx", tmp_path / "out.onnx")
    assert fp16conv.convert(tmp_path / "m.onnx", tmp_path / "out.onnx", validate=False).output is not None


def test_a_model_too_large_for_the_machine_is_not_compared(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(HEAD + OVERSIZED), tmp_path / "m.onnx")
    with pytest.raises(ValidationError, match="'y' has more numbers than this machine's memory holds"):
        fp16conv.validate(tmp_path / "m.onnx", tmp_path / "m.onnx")
