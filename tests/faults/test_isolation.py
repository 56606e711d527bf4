"""The helper process that runs native code: it may die, the program does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx.parser
import pytest

from fp16conv import isolation
from fp16conv.cli import run
from fp16conv.frontends.onnx import from_proto
from fp16conv.frontends.onnx_library import check_file
from fp16conv.graph import DataType
from fp16conv.isolation import IsolationError, isolated, start_helper

LISTS = """<ir_version: 8, opset_import: ["": 17]>
g (float[n] x) => (float[m] y) <int64[1] count = {1000000000}> {
    sizes = ConstantOfShape <value: tensor = int64[1] {1}> (count)
    twice = Mul(sizes, sizes)
    y = Expand(x, twice)
}"""
"""onnx's inference follows each of the 10^9 numbers as if it were a size."""


def _raise(kind: type[Exception]) -> None:
    raise kind("what happened")


class UnpicklableError(Exception):
    def __init__(self, first: str, second: str = "") -> None:
        super().__init__(first)
        self.lock = threading.Lock()


def test_relative_paths_are_those_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_helper()
    onnx.save(onnx.parser.parse_model(LISTS), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    check_file("model.onnx")


def test_results_and_errors_come_back() -> None:
    assert isolated(int, 0, "12", base=3) == 5
    with pytest.raises(onnx.checker.ValidationError, match="what happened"):
        isolated(_raise, 0, onnx.checker.ValidationError)
    with pytest.raises(RuntimeError, match="UnpicklableError: what happened"):
        isolated(_raise, 0, UnpicklableError)


def test_it_is_another_process_and_the_same_one_each_time() -> None:
    first, second = isolated(os.getpid, 0), isolated(os.getpid, 0)
    assert first == second != os.getpid()


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL])
def test_a_crash_is_an_error_and_the_next_call_works(number: signal.Signals) -> None:
    with pytest.raises(IsolationError, match=rf"crashed \({number.name}\)"):
        isolated(_kill_itself, 0, number)
    assert isolated(int, 0, "3") == 3


def _kill_itself(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_time_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "SECONDS", 0.1)
    monkeypatch.setattr(
        isolation, "PATIENCE", 3000
    )  # the system counts whole seconds, a busy machine gives few
    with pytest.raises(IsolationError, match="of CPU time"):
        isolated(_spin, 0)


def _spin() -> None:
    while True:
        pass


def test_waiting_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "SECONDS", 0.1)
    monkeypatch.setattr(isolation, "PATIENCE", 2)
    with pytest.raises(IsolationError, match="took more than 0 s"):
        isolated(time.sleep, 0, 600)


def test_memory_has_a_limit_that_grows_with_the_input() -> None:
    size = isolation.MEMORY + (64 << 20)
    with pytest.raises(IsolationError, match="MiB of memory"):
        isolated(_allocate, 0, size)
    assert isolated(_allocate, 16 << 20, size) == size


def _allocate(size: int) -> int:
    return len(bytes(size))  # calloc: nothing is touched


def test_an_interrupt_does_not_mix_up_answers() -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            isolated(time.sleep, 0, 600)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert isolated(int, 0, "7") == 7


def test_threads_take_turns() -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda i=i: found.append(isolated(int, 0, str(i)))) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(20))


def test_a_fork_has_its_own() -> None:
    mine = isolated(os.getpid, 0)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(isolated(os.getpid, 0)).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as file:
        theirs = int(file.read())
    assert theirs not in (mine, os.getpid(), child)
    assert isolated(os.getpid, 0) == mine


def test_it_holds_nothing_open_and_ends_with_the_program() -> None:
    code = (
        "from fp16conv.isolation import isolated; import os, signal;"
        "print(isolated(os.getpid, 0), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{done.stdout.strip()}").exists():
        if Path(f"/proc/{done.stdout.strip()}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break  # gone, and nobody collects the dead here
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_is_replaced_where_others_killed_it_between_two_calls() -> None:
    first = isolated(os.getpid, 0)
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert isolated(os.getpid, 0) != first


def test_a_program_without_standard_files_has_one(tmp_path: Path) -> None:
    code = (
        "import os; os.closerange(0, 3); from fp16conv.isolation import isolated\n"
        "first = isolated(os.getpid, 0); os.write(os.open(os.devnull, 1), b'x')\n"
        f"open({str(tmp_path / 'same')!r}, 'w').write(str(isolated(os.getpid, 0) == first))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert (tmp_path / "same").read_text() == "True"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(LISTS), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_model_that_computes_an_endless_list_is_read_without_following_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "MEMORY", 64 << 20)  # the same sooner
    assert run(["convert", str(model), "-o", str(model.with_name("o.onnx")), "--no-validate", "--quiet"]) == 0


def test_what_inference_does_not_survive_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fp16conv.frontends.onnx_library._infer_model", _crash)
    output = model.with_name("o.onnx")
    assert run(["convert", str(model), "-o", str(output), "--no-validate"]) == 3
    assert (
        f"{model}: onnx's shape inference does not survive it: crashed (SIGABRT)" in capsys.readouterr().err
    )
    assert not output.exists()


def test_what_the_checker_does_not_survive_is_not_written(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fp16conv.isolation.MEMORY", 64 << 20)
    monkeypatch.setattr("fp16conv.frontends.onnx_library.onnx.checker.check_model", _crash)
    output = model.with_name("o.onnx")
    assert run(["convert", str(model), "-o", str(output), "--no-validate"]) == 4
    assert "crashed (SIGABRT)" in capsys.readouterr().err
    assert not output.exists()


def _crash(*args: object) -> None:
    os.abort()


def test_it_can_be_started_early() -> None:
    start_helper()
    assert isolated(int, 0, "1") == 1


CUSTOM = """<ir_version: 8, opset_import: ["": 17, "late.domain": 1]>
g (float[2, 3] x) => (y) { h = late.domain.Same(x) y = Relu(h) }"""


@pytest.fixture
def late_schema() -> Iterator[None]:
    """An operator whose schema is registered while the helper runs, and behind a model that has it."""
    graph = from_proto(onnx.parser.parse_model(CUSTOM), Path("m.onnx")).graph
    assert {v.name: v.shape for v in graph.values}["h"] is None
    schema = onnx.defs.OpSchema(
        "Same",
        "late.domain",
        1,
        inputs=[onnx.defs.OpSchema.FormalParameter("X", "T")],
        outputs=[onnx.defs.OpSchema.FormalParameter("Y", "T")],
        type_constraints=[("T", ["tensor(float)", "tensor(float16)"], "")],
    )
    schema.set_type_and_shape_inference_function(_same_type)
    onnx.defs.register_schema(schema)
    yield
    onnx.defs.deregister_schema("Same", 1, "late.domain")


def _same_type(context: onnx.shape_inference.InferenceContext) -> None:
    context.set_output_type(0, context.get_input_type(0))


def test_schemas_registered_since_it_started(late_schema: None) -> None:
    first = isolated(os.getpid, 0)
    graph = from_proto(onnx.parser.parse_model(CUSTOM), Path("m.onnx")).graph
    second = isolated(os.getpid, 0)
    assert second != first
    assert {v.name: (v.dtype, v.shape) for v in graph.values}["h"] == (DataType.FLOAT, (2, 3))
    assert [variable.admits_fp16 for variable in graph.typevars_of(0)] == [True]
    from_proto(onnx.parser.parse_model(CUSTOM), Path("m.onnx"))
    assert isolated(os.getpid, 0) == second  # nothing was registered meanwhile
    from_proto(onnx.parser.parse_model(LISTS), Path("m.onnx"))
    assert isolated(os.getpid, 0) == second  # a model without such operators does not ask


def test_models_of_other_domains_keep_it() -> None:
    """No schemas are registered for com.microsoft, so there is nothing to take along."""
    isolation._KEEPER.forget()
    first = isolated(os.getpid, 0)
    text = CUSTOM.replace("late.domain", "com.microsoft").replace("Same", "Gelu")
    from_proto(onnx.parser.parse_model(text), Path("m.onnx"))
    assert isolated(os.getpid, 0) == first
