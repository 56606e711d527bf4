"""Size budget of modules, docstrings of the public API, the contents of a wheel and an sdist."""

from __future__ import annotations

import inspect
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import fp16conv
from benchmarks.zoo.packages import extract_sdist

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 500


@pytest.mark.parametrize("folder", ["fp16conv", "tests", "benchmarks", "samples", "tools"])
def test_modules_stay_small(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    long = {
        str(p.relative_to(ROOT)): n
        for p in files
        if (n := len(p.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert not long, f"split these (more than {MAX_LINES} lines): {long}"


@pytest.mark.parametrize("name", [n for n in fp16conv.__all__ if n != "__version__"])
def test_public_name_is_documented(name: str) -> None:
    item = getattr(fp16conv, name)
    text = inspect.getdoc(item) or ""
    assert text.strip(), f"fp16conv.{name} has no docstring"
    if inspect.isfunction(item):
        for section in ("Args:", "Returns:"):
            assert section in text, f"fp16conv.{name}: docstring lacks {section}"


def test_every_exported_name_exists() -> None:
    for name in fp16conv.__all__:
        assert getattr(fp16conv, name) is not None
    with pytest.raises(AttributeError):
        fp16conv.no_such_name  # noqa: B018


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made from an sdist made from the checkout, as a release is."""
    out = tmp_path_factory.mktemp("dist")

    def build(target: str, folder: Path) -> None:
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    build("sdist", ROOT)
    extract_sdist(next(out.glob("*.tar.gz")), out / "source")
    build("wheel", next((out / "source").iterdir()))
    return out


def test_wheel_holds_package_and_rules_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    source = next((built / "source").iterdir())
    rules = {f"fp16conv/_rules/{n}" for n in files_in(source / "rules")}
    modules = {f"fp16conv/{n}" for n in files_in(source / "fp16conv")}
    package = {n for n in names if not n.startswith("fp16conv-")}
    assert rules
    assert package == rules | modules
    assert "fp16conv/py.typed" in modules
    assert any(n.endswith(".dist-info/licenses/LICENSE") for n in names)
    assert any(n.endswith(".dist-info/entry_points.txt") for n in names)


def test_sdist_can_run_the_tests(built: Path) -> None:
    source = next((built / "source").iterdir())
    for name in (
        "Makefile",
        "constraints.txt",
        "LICENSE",
        "README.md",
        "samples/digits_cnn.onnx",
        "tests/conftest.py",
    ):
        assert (source / name).is_file(), name
    assert not (source / ".cache").exists()
    assert not (source / ".venv").exists()


def files_in(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
