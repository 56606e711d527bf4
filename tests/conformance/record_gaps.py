"""Record what ONNX Runtime itself cannot do with the models of onnx's backend tests.

Run it after an update of onnx or onnxruntime, read the difference, and commit it:

    python -m tests.conformance.record_gaps
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import onnx

from fp16conv.execution.runtime import Runtime
from tests.conformance.node_models import Sweep, all_node_models, examine

GAPS = Path(__file__).with_name("runtime_gaps.toml")
HEAD = """# What ONNX Runtime (CPU provider) itself cannot do with the models of onnx.backend.test.
# Written by `python -m tests.conformance.record_gaps`; test_node_models.py fails where it is not exact.
"""


def main() -> None:
    failures: dict[str, str] = {}
    gaps: dict[str, str] = {}
    integers: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    problems = []
    os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"
    with Runtime(threads=1) as runtime, tempfile.TemporaryDirectory() as folder:
        sweep = Sweep(runtime, Path(folder))
        for model in all_node_models():
            found = examine(sweep, model)
            counts += found.counts
            problems += found.problems
            if found.failure:
                failures[model.name] = found.failure
            if found.gap:
                gaps[model.name] = found.gap
            if found.integers:
                integers[model.name] = found.integers
        version = runtime.version
    lines = [HEAD, "[versions]", f'onnx = "{onnx.__version__}"', f'onnxruntime = "{version}"']
    lines += ["", "[half]  # loads or runs in FP32, but not with every legal type variable in FP16"]
    lines += [f"{name} = {json.dumps(message)}" for name, message in gaps.items()]
    lines += ["", "[integers]  # outputs that change with every FP16 that balanced permits"]
    lines += [f"{name} = {json.dumps(names)}" for name, names in integers.items()]
    lines += ["", "[fp32]  # does not run as it is: out of scope, but must convert to a valid model"]
    lines += [f"{name} = {json.dumps(message)}" for name, message in failures.items()]
    GAPS.write_text("\n".join(lines) + "\n")
    report = [f"{len(all_node_models())} models", *(f"{n} {what}" for what, n in sorted(counts.items()))]
    sys.stdout.write("\n".join(report) + "\n")
    sys.stderr.write("\n".join(problems) + "\n" if problems else "")


if __name__ == "__main__":
    main()
