"""A small sound model that tests spoil."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, numpy_helper

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[4] x, bool c) => (float[4] y) {
   [mul] a = Mul(x, w)
   [if] b = If (c) <then_branch = t () => (float[4] p) { p = Relu(a) },
                    else_branch = e () => (float[4] q) { q = Mul(a, w) }>
   [add] y = Add(b, w)
}"""


def make_model() -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "w"))
    return model


def weight(model: onnx.ModelProto) -> TensorProto:
    return model.graph.initializer[0]
