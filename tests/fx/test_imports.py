"""torch is an extra: nothing about ONNX imports it, and without it one line says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "samples" / "digits_transformer.onnx"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    return done.stdout + done.stderr


@pytest.mark.skipif(not SAMPLE.is_file(), reason="the bundled sample is not there")
def test_analyze_of_an_onnx_file_imports_no_torch() -> None:
    code = f"import sys, fp16conv; fp16conv.analyze({str(SAMPLE)!r}); print('torch' in sys.modules)"
    assert run(code).strip().endswith("False")


@pytest.mark.parametrize(
    "words",
    [
        ["analyze", "net.pt2"],
        ["analyze", "package.nets:build"],
        ["plan", "package.nets:build"],
        ["convert", "net.pt2", "-o", "half.pt2"],
        ["tune", "net.pt2", "--tolerance", "0.01"],
        ["validate", "net.pt2", "half.pt2"],
        ["explain", "net.pt2", "softmax"],
        ["diff", "net.pt2", "half.pt2"],
        ["export", "net.pt2", "-o", "net.onnx"],
        ["train-audit", "package.nets:build"],
    ],
    ids=" ".join,
)
def test_without_the_extra_one_line_says_what_to_install(words: list[str]) -> None:
    code = f"from fp16conv.cli import run; print('code', run({words!r}))"
    output = run(f"import sys; sys.modules['torch'] = None\n{code}")
    assert "pip install 'fp16conv[torch]'" in output
    assert "Traceback" not in output
    assert "code 2" in output
