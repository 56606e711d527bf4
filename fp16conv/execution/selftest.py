"""Does FP16 emulation work on this machine, and does a CUDA session? Answered by running, not by asking."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir

from fp16conv.execution.emulator import emulate_model
from fp16conv.execution.runtime import Runtime, RuntimeFailure

__all__ = ["ProbeResult", "probe_cuda", "probe_emulator"]

# x * 100 * 1000 * 1e-3: the second product is beyond 65504 for x = 1. ONNX Runtime's CPU provider keeps
# the chain in FP32 and prints 100; real FP16 gives infinity.
_PROBE = """
<ir_version: 8, opset_import: ["" : 17]>
probe (float16[2] x) => (float[2] y)
<float16 a = {100.0}, float16 b = {1000.0}, float16 c = {0.001}>
{
  xa = Mul(x, a)
  xb = Mul(xa, b)
  xc = Mul(xb, c)
  y = Cast<to = 1>(xc)
}
"""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Outcome of a probe; `detail` says what ran or why it did not work."""

    ok: bool
    detail: str


def probe_emulator() -> ProbeResult:
    """Emulate a model that overflows only in honest FP16 and check that it does.

    Never raises for a runtime that does not work: that is the answer.
    """
    model = ir.from_proto(onnx.parser.parse_model(_PROBE))
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
            session = runtime.load(onnx.parser.parse_model(_PROBE).SerializeToString())
            runtime.run(session, {"x": np.ones(2, np.float16)})
            return ProbeResult(True, f"ONNX Runtime {facts['version']}, CUDA")
    except RuntimeFailure as failure:
        return ProbeResult(False, str(failure))
