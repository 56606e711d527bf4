"""Children that are started ahead of need: who gets them, and what becomes of the others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fp16conv.execution import launch
from fp16conv.execution.runtime import Runtime


@pytest.fixture(autouse=True)
def nobody_waits() -> Iterator[None]:
    launch._dismiss()
    yield
    launch._dismiss()


def test_runtimes_take_the_children_that_wait() -> None:
    launch.launch_ahead(2)
    launch.launch_ahead(1)  # two wait already
    waiting = [child.process.pid for child in launch._waiting]
    with Runtime(threads=1) as runtime:
        runtime.start()
        runtime.companion.start()
        processes = [runtime._process, runtime.companion._process]
        assert [process.pid for process in processes if process is not None] == waiting
        assert not launch._waiting
        assert runtime.version == runtime.companion.version
    assert all(process is not None and process.poll() is not None for process in processes)


def test_a_child_that_died_waiting_is_not_handed_out() -> None:
    launch.launch_ahead(1)
    (child,) = launch._waiting
    child.process.kill()
    child.process.wait()
    with Runtime(threads=1) as runtime:
        assert runtime.describe()["name"] == "ONNX Runtime"
        assert runtime._process is not child.process


def test_nobody_waits_behind_the_end_of_the_program() -> None:
    program = (
        "from fp16conv.execution import launch; launch.launch_ahead(1); print(launch._waiting[0].process.pid)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
