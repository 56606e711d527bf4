"""Run one other converter on one model. Executed by the Python of that converter's own environment.

    PEER_PYTHON benchmarks/peers.py onnxconverter-common|onnxruntime|autocast IN.onnx OUT.onnx DATA_DIR

Every converter runs the way its own documentation tells a user to, graph inputs and outputs kept in FP32.
"""

from __future__ import annotations

import subprocess
import sys


def onnxconverter_common(source: str, target: str, data: str) -> None:
    import onnx
    from onnxconverter_common import float16

    onnx.save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


def onnxruntime_float16(source: str, target: str, data: str) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    model = OnnxModel(convert_float_to_float16(onnx.load(source), keep_io_types=True))
    model.topological_sort()  # the converter leaves its casts at the end of the graph
    onnx.save(model.model, target)


def autocast(source: str, target: str, data: str) -> None:
    command = [sys.executable, "-m", "modelopt.onnx.autocast", "--onnx_path", source, "--output_path", target]
    done = subprocess.run([*command, "--keep_io_types", "--calibration_data", data], check=False)
    sys.exit(done.returncode)


PEERS = {
    "onnxconverter-common": onnxconverter_common,
    "onnxruntime": onnxruntime_float16,
    "autocast": autocast,
}

if __name__ == "__main__":
    PEERS[sys.argv[1]](*sys.argv[2:5])
