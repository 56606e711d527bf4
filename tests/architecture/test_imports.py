"""What may import what, and what `import fp16conv` may cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HELP = """
from fp16conv.cli import main
import sys
sys.argv = ["fp16conv", "--help"]
try:
    main()
except SystemExit as stop:
    assert not stop.code
"""
HEAVY = ("numpy", "onnx", "onnx_ir", "onnxruntime", "networkx", "torch")


def loaded_by(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after running `code`."""
    show = f"{code}\nimport sys\nprint(*sorted(m for m in sys.modules if '.' not in m), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_contracts_hold() -> None:
    code = "import sys; from importlinter.cli import lint_imports_command as c; sys.exit(c())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    "code",
    [
        "import fp16conv",
        "import fp16conv.cli",
        HELP,
    ],
    ids=["package", "cli", "help"],
)
def test_import_is_light(code: str) -> None:
    assert loaded_by(code).isdisjoint(HEAVY)


def test_probe_would_see_a_heavy_import() -> None:
    assert "numpy" in loaded_by("import fp16conv.half")
