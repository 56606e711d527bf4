from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import fp16conv

ATTRIBUTES = """<ir_version: 6, opset_import: ["" : {opset}]>
g (float[1,4,6,6] x) => (float[1,4,6,6] y) <float[4,4,1,1] w = {{1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}}> {{
  c = Conv(x, w)
  [clip] d = Clip <{bounds}> (c)
  y = Conv(d, w)
}}"""
INPUTS = """<ir_version: 6, opset_import: ["" : 11]>
g (float[1,4,6,6] x) => (float[1,4,6,6] y)
<float[4,4,1,1] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}, float lo = {0}, float hi = {6}> {
  c = Conv(x, w)
  [clip] d = Clip(c, lo, hi)
  y = Conv(d, w)
}"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ATTRIBUTES.format(opset=9, bounds="min = 0.0, max = 6.0"), ["Max", "Min"]),
        (ATTRIBUTES.format(opset=9, bounds="min = -1.0"), ["Max"]),
        (ATTRIBUTES.format(opset=10, bounds="max = 2.5, min = -3.4e38"), ["Min"]),
        (INPUTS, ["Max", "Min"]),
        (ATTRIBUTES.format(opset=7, bounds="min = 0.0, max = 6.0"), ["Clip"]),
    ],
)
def test_clip_without_kernel_is_written_as_max_and_min(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    source, output = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(onnx.parser.parse_model(text), source)
    report = fp16conv.convert(source, output, input_ranges={"x": (-9.0, 9.0)})
    assert report.ok
    nodes = [n for n in onnx.load(output).graph.node if n.op_type in ("Clip", "Max", "Min")]
    assert [n.op_type for n in nodes] == expected
    assert nodes[-1].name == "clip"
    again = tmp_path / "again.onnx"
    fp16conv.convert(output, again, input_ranges={"x": (-9.0, 9.0)})
    assert again.read_bytes() == output.read_bytes()


def test_bounds_hold_their_numbers(tmp_path: Path) -> None:
    source, output = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(onnx.parser.parse_model(ATTRIBUTES.format(opset=9, bounds="min = 0.5, max = 6.0")), source)
    fp16conv.convert(source, output)
    numbers = [
        float(onnx.numpy_helper.to_array(n.attribute[0].t))
        for n in onnx.load(output).graph.node
        if n.op_type == "Constant"
    ]
    np.testing.assert_array_equal(numbers, [0.5, 6.0])
