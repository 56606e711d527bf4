"""What costs the user time before anything happens: `--help` and `import fp16conv` must stay cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"numpy", "onnx", "onnx_ir", "onnxruntime", "networkx", "torch", "rich", "ml_dtypes", "google"}

ALLOWED = {"fp16conv", "click", "colorama"}

_PROBE = """
import sys
before = set(sys.modules)
{code}
loaded = {{name.partition('.')[0] for name in set(sys.modules) - before}}
extra = sorted(n for n in loaded if n not in sys.stdlib_module_names and not n.startswith('_'))
print('LOADED', *extra)
"""


def _loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE.format(code=code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.rsplit("LOADED", 1)[1].split())


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["--version"],
        ["analyze", "--help"],
        ["plan", "--help"],
        ["convert", "--help"],
        ["validate", "--help"],
        ["rules", "--help"],
        ["rules", "explain", "--help"],
        ["doctor", "--help"],
        ["analyze", "x.onnx", "--profile", "nonsense"],
    ],
    ids=" ".join,
)
def test_help_and_usage_errors_load_nothing_heavy(args: list[str]) -> None:
    loaded = _loaded(f"from fp16conv.cli import run; run({args!r})")
    assert "click" in loaded
    assert loaded <= ALLOWED


@pytest.mark.parametrize("flag", ["--help", "-h", "--version"])
def test_what_the_program_says_of_itself_needs_no_parser(flag: str) -> None:
    code = f"import sys; sys.argv = ['fp16conv', {flag!r}]; import fp16conv.cli as cli; cli.main()"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    ours = lines[lines.index("site") + 1 :]
    assert set(ours) == {"__future__", "fp16conv", "fp16conv.cli", "fp16conv.cli.overview"}


def test_importing_the_package_loads_only_itself() -> None:
    assert _loaded("import fp16conv; fp16conv.__version__; dir(fp16conv)") == {"fp16conv"}


def test_the_probe_sees_heavy_modules() -> None:
    assert _loaded("import fp16conv; fp16conv.ModelGraph") & HEAVY == {"numpy", "networkx"}
