"""A full disk, a folder that cannot be written and a missing input, for every verb that writes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fp16conv.cli import run

TORCH = """
import torch

def net():
    return torch.nn.Linear(8, 8), (torch.ones(2, 8),)

def setup():
    return torch.nn.Linear(8, 8), torch.nn.functional.mse_loss, [(torch.ones(2, 8), torch.ones(2, 8))]
"""
QUICK = "--no-validate"

# The place of the output is OUT, another one is FINE, the input is IN.
VERBS = {
    "convert": f"convert IN -o OUT/h.onnx {QUICK}",
    "convert, report": f"convert IN -o FINE/h.onnx {QUICK} --report OUT/r.html",
    "plan": "plan IN -o OUT/p.json",
    "analyze": "analyze IN --report FINE/r.json --report OUT/r.html",
    "tune": "tune IN -o OUT/h.onnx --tolerance 0.01 --no-cache",
    "tune, report": "tune IN --tolerance 0.01 --no-cache --report OUT/r.md",
    "validate": "validate IN IN --report OUT/r.xml",
    "audit": "audit IN -o OUT/site",
    "audit, cache": "audit IN --cache OUT",
    "export": "export faults_nets:net -o OUT/e.onnx",
    "convert, torch": f"convert faults_nets:net -o OUT/e.pt2 {QUICK}",
    "train-audit": "train-audit faults_nets:setup --report OUT/r.html",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("in", "out", "fine", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "faults_nets.py").write_text(TORCH)
    weight = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 16]) for n in "xy"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "in" / "m.onnx")
    monkeypatch.setenv("TMPDIR", os.fspath(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def _words(folder: Path, verb: str) -> list[str]:
    if "faults_nets" in VERBS[verb] and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    places = {"IN": folder / "in" / "m.onnx", "OUT": folder / "out", "FINE": folder / "fine"}
    words = []
    for word in VERBS[verb].split():
        head, slash, rest = word.partition("/")
        words.append(f"{places[head]}{slash}{rest}" if head in places else word)
    return words


@pytest.fixture
def mount(folder: Path) -> Iterator[Callable[[str], None]]:
    """Puts a small disk under the outputs."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mounted = []

    def put(options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "none", folder / "out"]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"no small disk can be mounted here: {done.stderr.decode().strip()}")
        mounted.append(folder / "out")

    yield put
    for place in mounted:
        subprocess.run(["umount", "-l", place], check=True)


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def _left(folder: Path) -> list[str]:
    names = [p.name for name in ("out", "tmp") for p in (folder / name).iterdir()]
    return sorted(n for n in names if n not in (".ses", "fill") and not n.startswith("torchinductor"))


@pytest.mark.parametrize("verb", VERBS)
def test_a_full_disk(
    folder: Path, verb: str, mount: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    words, before = _words(folder, verb), (folder / "in" / "m.onnx").read_bytes()
    mount("size=64k")
    _fill(folder / "out" / "fill")
    code = run(words)
    err = capsys.readouterr().err
    assert (code, _left(folder)) == (4, []), err
    assert "No space left on device" in err or "disk is full" in err
    assert (folder / "in" / "m.onnx").read_bytes() == before
    assert not [p.name for p in (folder / "fine").iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("verb", VERBS)
def test_a_read_only_folder(
    folder: Path, verb: str, mount: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    words = _words(folder, verb)
    mount("size=64k,ro")
    code = run(words)
    err = capsys.readouterr().err
    assert (code, _left(folder)) == (2, []), err
    assert "Read-only file system" in err


@pytest.mark.parametrize("verb", [verb for verb in VERBS if " IN" in VERBS[verb] and "audit" not in verb])
def test_a_missing_input(folder: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "in" / "m.onnx").unlink()
    assert (run(_words(folder, verb)), _left(folder)) == (3, [])
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize("failing", ["full", "read-only"])
def test_a_search_goes_on_without_its_cache(folder: Path, failing: str, mount: Callable[[str], None]) -> None:
    mount("size=4k" if failing == "full" else "size=4k,ro")
    words = ["tune", str(folder / "in" / "m.onnx"), "-o", str(folder / "fine" / "h.onnx")]
    assert run([*words, "--tolerance", "0.01", "--cache", str(folder / "out" / "cache")]) == 0
    assert (folder / "fine" / "h.onnx").is_file()
