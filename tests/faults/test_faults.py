"""Faults at every stage: the input stays, no partial output gets its name, what is left is removed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fp16conv
from fp16conv import files
from fp16conv.cli import run
from fp16conv.errors import ConversionError
from fp16conv.files import make_temporary, sweep, write_whole
from fp16conv.frontends.external import FileTensor

STAGES = ("loading", "observing ranges", "planning", "converting", "verifying", "comparing with FP32")
UNVALIDATED = ("loading", "planning", "converting", "verifying")
FULL = r"No space left on device|written: the disk is full"
SIZE = 256  # the weight has 256 KiB


class Place:
    """A folder with a model whose weight is external, and one for outputs."""

    def __init__(self, folder: Path, *, external: bool = True) -> None:
        self.input, self.output = folder / "in" / "m.onnx", folder / "out" / "half.onnx"
        self.temporary = folder / "tmp"
        for path in (self.input.parent, self.output.parent, self.temporary):
            path.mkdir()
        weight = np.random.default_rng(0).normal(size=(SIZE, SIZE)).astype(np.float32)
        infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, SIZE]) for n in "xy"]
        nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
        graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [numpy_helper.from_array(weight, "w")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, self.input, save_as_external_data=external, location="w.bin", size_threshold=0)
        self.weights = self.input.parent / "w.bin"
        self.before = self.digest()

    def digest(self) -> dict[str, str]:
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in self.input.parent.iterdir()}

    def left(self) -> list[str]:
        """What lies in the folder of outputs and among the temporary files."""
        names = [p.name for f in (self.output.parent, self.temporary) for p in f.iterdir()]
        return sorted(name for name in names if name != ".ses")  # a mark of ONNX Runtime's own

    def convert(self, **words: object) -> object:
        return fp16conv.convert(self.input, self.output, **words)  # type: ignore[arg-type]

    def check_complete(self) -> None:
        """The output is whole: it loads with its weights, and it is FP16."""
        weight = onnx.load(self.output).graph.initializer[0]
        assert weight.data_type == TensorProto.FLOAT16
        assert numpy_helper.to_array(weight).shape == (SIZE, SIZE)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    monkeypatch.setenv("TMPDIR", os.fspath(made.temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    return made


def at(stage: str, action: Callable[[], None]) -> Callable[..., None]:
    """Progress that does something when a stage begins."""

    def progress(step: str, done: int = 0, total: int | None = None) -> None:
        if step == stage:
            action()

    return progress


def throw(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


# ---- an exception anywhere ----


@pytest.mark.parametrize("stage", STAGES)
def test_interrupted_at_every_stage(place: Place, stage: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        place.convert(progress=at(stage, throw(KeyboardInterrupt())))
    assert place.left() == []
    assert place.digest() == place.before


@pytest.mark.parametrize("stage", UNVALIDATED)
@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), MemoryError()], ids=["io", "memory"])
def test_a_failing_machine_is_no_bug_of_ours(
    place: Place,
    stage: str,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "fp16conv.cli.terminal.TerminalProgress.__call__", lambda self, *a: at(stage, throw(error))(*a)
    )
    code = run(["convert", str(place.input), "-o", str(place.output), "--no-validate"])
    err = capsys.readouterr().err
    assert (code, err.count("error:")) == (4, 1)
    assert "nothing half-written was left behind" in err
    assert place.left() == []
    assert place.digest() == place.before


# ---- signals ----


def _signal_at(place: Place, stage: str, number: signal.Signals) -> subprocess.CompletedProcess[str]:
    """Run the program and send it a signal when it says that a stage begins."""
    command = [sys.executable, "-m", "fp16conv", "convert", place.input, "-o", place.output, "--verbose"]
    seen = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            seen.append(line)
            if line.startswith(f"fp16conv: {stage}"):
                process.send_signal(number)
                break
        seen.append(process.stderr.read())
    return subprocess.CompletedProcess([], process.returncode, "", "".join(seen))


@pytest.mark.parametrize("stage", STAGES)
def test_killed_at_every_stage(place: Place, stage: str) -> None:
    done = _signal_at(place, stage, signal.SIGKILL)
    assert place.digest() == place.before
    if done.returncode == 0:  # it was quicker than the signal
        place.check_complete()
        return
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not [name for name in place.left() if not name.lstrip(".").startswith("fp16conv-")]
    place.convert(validate=False)
    place.check_complete()
    sweep(place.temporary)  # as a run does that needs a temporary folder there
    assert place.left() == ["half.data", "half.onnx"]


@pytest.mark.parametrize("stage", ["observing ranges", "verifying"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_from_outside(place: Place, stage: str, number: signal.Signals) -> None:
    done = _signal_at(place, stage, number)
    assert done.returncode == 130, done.stderr
    assert done.stderr.count("error: interrupted; no file was left behind") == 1
    assert place.left() == []
    assert place.digest() == place.before


def test_interrupted_while_modules_load() -> None:
    code = """if True:
        import builtins, sys
        import fp16conv.cli
        real = builtins.__import__
        def load(name, *rest):
            if name == "fp16conv.cli.app":
                raise KeyboardInterrupt
            return real(name, *rest)
        builtins.__import__, sys.argv = load, ["fp16conv", "doctor"]
        fp16conv.cli.main()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "error: interrupted; no file was left behind\n")


@pytest.mark.parametrize(
    "meets",
    ["app.program.main = broken", "app.main = broken", "builtins.__import__ = broken"],
    ids=["in a verb", "around it", "while modules load"],
)
def test_interrupted_where_text_is_executed(tmp_path: Path, meets: str) -> None:
    # Only a program that is run with -m ends by the signal: by sys.exit in a script Python goes at once.
    code = f"""if True:
        import builtins, sys
        import fp16conv.cli
        from fp16conv.cli import app
        def broken(*args, **words):
            builtins.__import__ = real
            exec("raise KeyboardInterrupt")
        real, sys.argv = builtins.__import__, ["fp16conv", "doctor"]
        {meets}
        fp16conv.cli.main()
    """
    (tmp_path / "started.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "started"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "error: interrupted; no file was left behind\n")


def test_a_run_on_data_leaves_no_temporary_files(place: Place) -> None:
    place.convert()
    assert place.left() == ["half.data", "half.onnx"]


# ---- what killed runs leave ----


def test_only_our_own_dead_folders_are_removed(tmp_path: Path) -> None:
    alive = make_temporary(tmp_path)
    code = "from fp16conv.files import make_temporary; import sys; print(make_temporary(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    dead = Path(done.stdout.strip())
    (dead / "half.onnx").write_bytes(b"part")
    prefix, host, pid, started, rest = dead.name.split("-")
    elsewhere = tmp_path / "-".join((prefix, "otherhost", pid, started, rest))
    reused = tmp_path / "-".join((prefix, host, str(os.getpid()), "1", rest))
    others = [tmp_path / name for name in (".fp16conv-mine", "fp16conv-data", ".fp16conv-a-b-c-d")]
    for folder in (elsewhere, reused, *others):
        folder.mkdir()
    link = tmp_path / dead.name.replace(rest, "link")
    link.symlink_to(others[0])
    sweep(tmp_path)
    assert not dead.exists()
    assert not reused.exists()  # the number of the process was given to another one
    assert all(folder.exists() for folder in (alive, elsewhere, link, *others))


# ---- disks ----


@contextlib.contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("external", [True, False], ids=["external", "inline"])
def test_a_full_disk(tmp_path: Path, external: bool, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path, external=external)
    with _mounted(place.output.parent, "size=64k"):
        code = run(["convert", str(place.input), "-o", str(place.output), "--no-validate"])
        assert (code, place.left()) == (4, [])
        assert re.search(FULL, capsys.readouterr().err)
        assert place.digest() == place.before


def test_a_full_disk_keeps_the_previous_output(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with _mounted(place.output.parent, "size=200k"):
        place.convert(validate=False)
        before = {p.name: p.read_bytes() for p in place.output.parent.iterdir()}
        with pytest.raises(ConversionError, match=FULL):
            place.convert(validate=False)
        assert {p.name: p.read_bytes() for p in place.output.parent.iterdir()} == before


def test_a_full_disk_for_temporary_files(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    with _mounted(place.temporary, "size=16k"):
        code = run(["convert", str(place.input), "-o", str(place.output)])
        assert (code, place.left()) in [(4, []), (5, [])]
        assert "error:" in capsys.readouterr().err


def test_a_limit_on_the_size_of_files(place: Place, small_files: int) -> None:
    with pytest.raises(ConversionError, match=r"too large|written: the disk is full"):
        place.convert(validate=False)
    assert place.left() == []


def test_a_read_only_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path)
    if os.geteuid() != 0:
        place.output.parent.chmod(0o555)
    with _mounted(place.output.parent, "ro,size=1m") if os.geteuid() == 0 else contextlib.nullcontext():
        code = run(["convert", str(place.input), "-o", str(place.output), "--no-validate"])
        assert (code, place.left()) == (2, [])
    assert "cannot be written" in capsys.readouterr().err
    place.output.parent.chmod(0o755)


# ---- the input goes away ----


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(bytes(path.stat().st_size))
    os.replace(other, path)


def _touch(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\1\2\3\4")
    os.utime(path, ns=(1, 1))  # however coarse the clock of the disk is


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


CHANGES = {
    "deleted": Path.unlink,
    "replaced": _replace,
    "written": _touch,
    "cut": _truncate,
    "emptied": _empty,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("stage", ["planning", "converting", "verifying"])
def test_weights_that_change_meanwhile(
    place: Place,
    stage: str,
    change: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    action = at(stage, lambda: change(place.weights))
    monkeypatch.setattr("fp16conv.cli.terminal.TerminalProgress.__call__", lambda self, *a: action(*a))
    assert run(["convert", str(place.input), "-o", str(place.output), "--no-validate"]) == 3
    assert "changed while it was read" in capsys.readouterr().err
    assert place.left() == []


@pytest.mark.parametrize("keep", ["type:Relu", "type:MatMul"], ids=["rounded", "copied"])
@pytest.mark.parametrize("call", range(5))
def test_weights_that_are_cut_between_two_reads(
    place: Place, call: int, keep: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The weight is read in two pieces each time: for its facts, the proofs (its head) and the output."""
    monkeypatch.setattr("fp16conv.graph.pieces.PIECE", SIZE * SIZE // 2)
    monkeypatch.setattr("fp16conv.frontends.external._COPIED", SIZE * SIZE * 2)
    real, calls = FileTensor._fill, []

    def fill(self: FileTensor, buffer: memoryview, start: int, file: io.FileIO) -> None:
        if Path(self.path) == place.weights:
            if len(calls) == call:
                _truncate(place.weights)
            calls.append(start)
        real(self, buffer, start, file)

    monkeypatch.setattr(FileTensor, "_fill", fill)
    words = ["--no-validate", "--keep-fp32", keep]
    code = run(["convert", str(place.input), "-o", str(place.output), *words])
    assert len(calls) > call
    assert (code, place.left()) == (3, [])
    assert "changed while it was read" in capsys.readouterr().err


@pytest.mark.parametrize("stage", UNVALIDATED[1:])
def test_a_model_file_that_vanishes_was_read_already(place: Place, stage: str) -> None:
    place.convert(validate=False, progress=at(stage, place.input.unlink))
    place.check_complete()


# ---- the output's name ----


def _die_in_commit(place: Place, cut: int) -> bool:
    """Convert in a child that is killed when it renames for the n-th time; whether it was."""
    child = os.fork()
    if child == 0:
        try:
            real, steps = os.replace, []

            def dying(source: object, target: object) -> None:
                if len(steps) == cut:
                    os.kill(os.getpid(), signal.SIGKILL)
                steps.append(target)
                real(source, target)  # type: ignore[arg-type]

            files.os.replace = dying  # type: ignore[attr-defined]
            place.convert(validate=False)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "replaced"])
def test_killed_between_renames_as_if_it_had_not_run(place: Place, is_new: bool) -> None:
    """A model never lies beside weights of another run, and the next run finds what was there before."""
    if not is_new:
        place.convert(validate=False, keep_fp32=["type:Relu"])
    before = {p.name: p.read_bytes() for p in place.output.parent.iterdir()}
    kills = 0
    while _die_in_commit(place, kills):
        kills += 1
        if place.output.exists():
            assert place.output.read_bytes() == before["half.onnx"]
            assert place.output.with_suffix(".data").read_bytes() == before["half.data"]
        sweep(place.output.parent)
        assert {p.name: p.read_bytes() for p in place.output.parent.iterdir()} == before
        assert kills < 9
    assert kills == 5  # the journal, the pair that steps aside, the pair
    place.check_complete()
    assert place.left() == ["half.data", "half.onnx"]


def test_a_name_that_was_taken_meanwhile_stays(place: Place) -> None:
    assert _die_in_commit(place, 4)  # the weights have their name, the model has not
    place.output.write_bytes(b"somebody's")
    sweep(place.output.parent)
    assert {p.name: p.read_bytes() for p in place.output.parent.iterdir()} == {"half.onnx": b"somebody's"}


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "I/O error"), KeyboardInterrupt()], ids=["io", "interrupt"]
)
@pytest.mark.parametrize("cut", range(5))
def test_a_failed_rename_changes_nothing(
    place: Place, cut: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.convert(validate=False)
    before = {p.name: p.read_bytes() for p in place.output.parent.iterdir()}
    real, steps = os.replace, []

    def failing(source: object, target: object) -> None:
        steps.append(target)
        if len(steps) == cut + 1:
            raise error
        real(source, target)  # type: ignore[arg-type]

    monkeypatch.setattr(files.os, "replace", failing)
    with pytest.raises((ConversionError, KeyboardInterrupt)):
        place.convert(validate=False, keep_fp32=["type:Relu"])
    assert {p.name: p.read_bytes() for p in place.output.parent.iterdir()} == before


# ---- plans, reports and other small files ----


def _write_and_die(path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            files.os.replace = lambda source, target: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[attr-defined,assignment]
            write_whole(path, b"new")
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def test_a_killed_write_leaves_nothing_once_the_next_one_ran(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_whole(path, b"old")
    _write_and_die(path)
    assert (path.read_bytes(), len(list(tmp_path.iterdir()))) == (b"old", 2)
    write_whole(tmp_path / "other.json", b"")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.json", "plan.json"]


def test_writes_are_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    write_whole(path, b"old")
    mask = os.umask(0o077)
    try:
        write_whole(tmp_path / "mine", b"x")
    finally:
        os.umask(mask)
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o600
    (tmp_path / "mine").unlink()
    monkeypatch.setattr(files.os, "replace", lambda *names: throw(KeyboardInterrupt())())
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"new")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"report.html": b"old"}
    with pytest.raises(OSError, match="no regular file"):
        write_whole("/dev/null", b"x")
