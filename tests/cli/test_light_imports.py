"""What costs the user time before anything happens: `--help` and `import fp16conv` must stay cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper

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


def _imported_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


@pytest.mark.parametrize("flag", ["--help", "-h", "--version"])
def test_what_the_program_says_of_itself_needs_no_parser(flag: str) -> None:
    code = f"import sys; sys.argv = ['fp16conv', {flag!r}]; import fp16conv.cli as cli; cli.main()"
    ours = {"__future__", "fp16conv", "fp16conv.cli", "fp16conv.cli.overview"}
    assert _imported_by(code) - _imported_by("pass") == ours


_PROGRAM = """
import sys
from fp16conv.cli import main
sys.argv = ['fp16conv', *{args!r}]
try:
    main()
except SystemExit as stop:
    print('LOADED', *sys.modules)
    sys.exit(stop.code)
"""


def _modules_after(args: list[str]) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(args=args)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(done.stdout.rsplit("LOADED", 1)[1].split())


@pytest.fixture(params=["a Softmax", "digits_cnn.onnx"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Symbolic dimensions, which onnx_ir computes with by sympy, and a plan that leaves a cut to solve."""
    if request.param.endswith(".onnx"):
        return Path(__file__).parents[2] / "samples" / request.param
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "g", [x], [y])
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def test_an_analysis_loads_no_library_that_it_does_not_use(model: Path) -> None:
    loaded = _modules_after(["analyze", str(model), "--format", "json"])
    assert {"onnx_ir", "numpy", "fp16conv.api"} <= loaded
    unused = {"sympy.core", "mpmath", "networkx", "onnxruntime", "rich", "torch", "xml"}
    ours = {"conversion.onnx", "job", "tuner", "tuning", "auditor", "inspection", "reporting.html"}
    assert not (unused | {f"fp16conv.{name}" for name in ours}) & loaded


def test_listing_rules_loads_no_model_library() -> None:
    loaded = _modules_after(["rules", "list"])
    assert "fp16conv.rulebook.book" in loaded
    assert not {"onnx", "onnx_ir", "networkx", "onnxruntime", "rich", "sympy"} & loaded


def test_a_deferred_library_is_there_when_it_is_used() -> None:
    code = (
        "from fp16conv.cli.deferral import defer_imports\ndefer_imports()\n"
        "import sys, onnx_ir\nassert 'sympy.core' not in sys.modules\n"
        "n = onnx_ir.SymbolicDim('n')\nassert (n + 1).evaluate({'n': 2}) == 3\n"
        "import sympy.polys\nfrom sympy import Symbol\nassert 'sympy.core' in sys.modules\n"
        "assert str(Symbol('a') * 2) == '2*a'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_loads_only_itself() -> None:
    assert _loaded("import fp16conv; fp16conv.__version__; dir(fp16conv)") == {"fp16conv"}


def test_the_probe_sees_heavy_modules() -> None:
    assert _loaded("import fp16conv; fp16conv.ModelGraph") & HEAVY == {"numpy"}
