"""Does FP16 emulation work on this machine, and does a CUDA session? Answered by running, not by asking."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx import ModelProto, TensorProto, helper

from fp16conv.execution.emulator import emulate_model
from fp16conv.execution.failures import RuntimeFailure
from fp16conv.execution.runtime import Runtime

__all__ = ["ProbeResult", "probe_cuda", "probe_emulator"]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Outcome of a probe; `detail` says what ran or why it did not work."""

    ok: bool
    detail: str


def _probe_model() -> ModelProto:
    """An FP16 model of x * 100 * 1000 * 0.001: the second product is beyond 65504 for x = 1.

    ONNX Runtime's CPU provider keeps the chain in FP32 and prints 100; real FP16 gives infinity.
    """
    half, single = TensorProto.FLOAT16, TensorProto.FLOAT
    factors = {"a": 100.0, "b": 1000.0, "c": 0.001}
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "a"], ["xa"]),
            helper.make_node("Mul", ["xa", "b"], ["xb"]),
            helper.make_node("Mul", ["xb", "c"], ["xc"]),
            helper.make_node("Cast", ["xc"], ["y"], to=single),
        ],
        "probe",
        [helper.make_tensor_value_info("x", half, [2])],
        [helper.make_tensor_value_info("y", single, [2])],
        [helper.make_tensor(name, half, [], [factor]) for name, factor in factors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def probe_emulator() -> ProbeResult:
    """Emulate a model that overflows only in honest FP16 and check that it does.

    Never raises for a runtime that does not work: that is the answer.
    """
    model = ir.from_proto(_probe_model())
    try:
        with Runtime() as runtime:
            emulated = runtime.load(emulate_model(model))
            found = runtime.run(emulated, {"x": np.array([1.0, 0.25], np.float16)})["y"]
            version = runtime.version
    except RuntimeFailure as failure:
        return ProbeResult(False, str(failure))
    got = np.asarray(found, np.float32)
    # 0.25 * 100 * 1000 = 25000 stays finite; 25000 * half(0.001) rounds to 25.
    expected = np.array([np.inf, 25.0], np.float32)
    ok = bool(np.array_equal(got, expected))
    return ProbeResult(ok, f"ONNX Runtime {version}: x*100*1000*0.001 of {{1, 0.25}} gives {got.tolist()}")


def probe_cuda() -> ProbeResult:
    """Load and run the probe on CUDA. A provider that is only listed does not count."""
    try:
        with Runtime("cuda") as runtime:
            facts = runtime.describe()
            if "CUDAExecutionProvider" not in facts["providers"]:
                return ProbeResult(False, "this build of ONNX Runtime has no CUDA provider")
            session = runtime.load(_probe_model().SerializeToString())
            runtime.run(session, {"x": np.ones(2, np.float16)})
            return ProbeResult(True, f"ONNX Runtime {facts['version']}, CUDA")
    except RuntimeFailure as failure:
        return ProbeResult(False, str(failure))
