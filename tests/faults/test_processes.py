"""A system that starts no further process or thread: one line, exit code 4, nothing left."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from fp16conv import isolation
from fp16conv.cli import run
from fp16conv.execution import launch

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[n, 4] x) => (float[n, 4] y) { h = Exp(x) y = Relu(h) }"""
REFUSALS = [errno.EAGAIN, errno.ENOMEM]
VERBS = {
    "analyze": ("analyze", "m.onnx"),
    "convert": ("convert", "m.onnx", "-o", "out/half.onnx", "--data", "x.npz"),
    "tune": ("tune", "m.onnx", "-o", "out/half.onnx", "--tolerance", "0.01", "--no-cache"),
    "validate": ("validate", "m.onnx", "m.onnx", "--data", "x.npz"),
}


@pytest.fixture(autouse=True)
def nothing_runs() -> Iterator[None]:
    """Neither helper nor waiting children of an earlier test."""
    isolation._KEEPER.forget()
    launch._dismiss()
    yield
    launch._dismiss()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((2, 4), np.float32))
    for name in ("out", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", os.fspath(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def failing(real: Callable[..., Any], at: int, error: BaseException) -> Callable[..., Any]:
    """The same function, but from its `at`-th call on it raises."""
    calls = 0

    def call(*args: Any, **words: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= at:
            raise error
        return real(*args, **words)

    return call


def check_refused(code: int, folder: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    out, err = capsys.readouterr()
    assert (code, out) == (4, ""), err
    lines = [line for line in err.splitlines() if not line.startswith("fp16conv: ")]
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    assert what in lines[0]
    assert [p.name for name in ("out", "tmp") for p in (folder / name).iterdir() if p.name != ".ses"] == []


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("verb", VERBS)
def test_no_helper(
    verb: str, number: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "fork", failing(os.fork, 1, OSError(number, os.strerror(number))))
    code = run(VERBS[verb])
    check_refused(code, folder, capsys, f"the helper process cannot be started: {os.strerror(number)}")


def test_no_second_helper(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first one dies while the model is read."""
    started = isolation._Helper.__init__

    def start(self: isolation._Helper) -> None:
        started(self)
        os.kill(self._process, 9)

    monkeypatch.setattr(isolation._Helper, "__init__", start)
    monkeypatch.setattr(os, "fork", failing(os.fork, 2, OSError(errno.EAGAIN, "no room")))
    code = run(VERBS["convert"])
    check_refused(code, folder, capsys, "the helper process cannot be started: no room")


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("verb", VERBS)
def test_no_runtime(
    verb: str, at: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    popen = failing(subprocess.Popen, at, refusal)
    monkeypatch.setattr(launch.subprocess, "Popen", popen)
    code = run(VERBS[verb])
    if code == 4:
        check_refused(code, folder, capsys, f"the runtime's process cannot be started: {refusal.strerror}")
    else:
        assert (code, at) == (0, 2)  # one process is enough for some
        assert verb in ("analyze", "tune")


@pytest.mark.parametrize("verb", VERBS)
def test_no_thread(
    verb: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = RuntimeError("can't start new thread")
    monkeypatch.setattr(threading.Thread, "start", failing(threading.Thread.start, 1, refusal))
    code = run(VERBS[verb])
    check_refused(code, folder, capsys, "can't start new thread")


@pytest.mark.skipif(os.getuid() == 0, reason="the limit does not hold for root")
@pytest.mark.parametrize("verb", VERBS)
def test_a_real_limit(verb: str, folder: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))

    program = [sys.executable, "-m", "fp16conv", *VERBS[verb]]
    done = subprocess.run(program, preexec_fn=limit, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr
    assert "cannot be started" in done.stderr
