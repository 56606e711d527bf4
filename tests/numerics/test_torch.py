"""The emulator against PyTorch's CPU half, which rounds every tensor and accumulates in FP32 as GPUs do.

Tolerance: elementwise 1 ulp (libm differences can cross one rounding boundary); sums and products in another
order differ by K half-ulps of FP32 before one FP16 rounding, so 1 ulp at the output's largest magnitude
again; norms and softmax have one more rounding on PyTorch's side: 2 ulps there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from fp16conv.execution.emulator import emulate_model
from fp16conv.execution.runtime import Runtime

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float16)


CASES: dict[str, tuple[list[np.ndarray], dict[str, object], Callable[..., object], int]] = {
    "Add": ([normal(64), normal(64)], {}, lambda a, b: a + b, 1),
    "Mul": ([normal(64), normal(64)], {}, lambda a, b: a * b, 1),
    "Exp": ([normal(64)], {}, lambda a: a.exp(), 1),
    "Tanh": ([normal(64)], {}, lambda a: a.tanh(), 1),
    "Sigmoid": ([normal(64)], {}, lambda a: a.sigmoid(), 1),
    "Sqrt": ([np.abs(normal(64))], {}, lambda a: a.sqrt(), 1),
    "MatMul": ([normal(8, 64), normal(64, 8)], {}, lambda a, b: a @ b, 1),
    "Softmax": ([normal(8, 32)], {}, lambda a: torch.softmax(a, -1), 2),
    "LayerNormalization": (
        [normal(8, 32), normal(32), normal(32)],
        {},
        lambda x, w, b: torch.nn.functional.layer_norm(x, (32,), w, b),
        2,
    ),
    "Conv": ([normal(1, 4, 9, 9), normal(3, 4, 3, 3)], {}, lambda x, w: torch.conv2d(x, w), 1),
}


@pytest.mark.parametrize("op", CASES)
def test_agrees_with_torch_half(op: str) -> None:
    arrays, attrs, compute, ulps = CASES[op]
    names = [f"x{i}" for i in range(len(arrays))]
    infos = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT16, a.shape)
        for n, a in zip(names, arrays, strict=True)
    ]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, None)
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attrs)], "g", infos, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with Runtime(threads=1) as runtime:
        session = runtime.load(emulate_model(ir.from_proto(model)))
        found = runtime.run(session, dict(zip(names, arrays, strict=True)))["y"].astype(np.float64)
    expected = np.asarray(compute(*(torch.from_numpy(a) for a in arrays))).astype(np.float64)
    step = np.spacing(np.abs(expected).max().astype(np.float16)).astype(np.float64)
    assert np.abs(found - expected).max() <= ulps * step
