from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from fp16conv.batch import jobs
from fp16conv.batch.confined import can_limit
from fp16conv.batch.executors import run_local
from fp16conv.batch.jobs import Job, Outcome, run_job
from fp16conv.batch.rows import Status, make_row
from fp16conv.files import sweep

MIB = 2**20


def _status(job: Job, outcome: Outcome) -> tuple[Status, str]:
    row = make_row("m", job, outcome, digest=None, cached=False)
    return row.status, row.detail


def test_a_model_that_takes_too_long_is_stopped(samples: Path) -> None:
    job = Job(str(samples / "digits_cnn.onnx"), timeout=0.05)
    outcome = run_job(job)
    assert outcome.code is None
    assert _status(job, outcome) == (Status.TIMEOUT, "stopped after 50.0 ms")


def test_stopping_kills_what_runs_and_starts_no_more(samples: Path) -> None:
    stop = threading.Event()
    stop.set()
    assert run_job(Job(str(samples / "digits_cnn.onnx")), stop).code is None
    outcomes = run_local([Job(str(samples / "digits_cnn.onnx"), timeout=0.05)] * 3, workers=2)
    assert sorted(index for index, _ in outcomes) == [0, 1, 2]


@pytest.mark.skipif(not can_limit(), reason="needs limits that a process sets on itself")
def test_a_limit_of_memory_ends_the_process_and_not_us(samples: Path) -> None:
    job = Job(str(samples / "digits_cnn.onnx"), memory_limit=40 * MIB)
    outcome = run_job(job)
    status, detail = _status(job, outcome)
    assert status is Status.CRASHED, (outcome, detail)


def test_the_child_ignores_modules_that_lie_beside_a_model(tmp_path: Path, samples: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(77)", encoding="utf-8")
    (tmp_path / "onnx.py").write_text("raise SystemExit(77)", encoding="utf-8")
    (tmp_path / "--help.onnx").symlink_to(samples / "digits_cnn.onnx")
    outcome = run_job(Job(str(tmp_path / "--help.onnx"), ("--target", "generic")))
    assert outcome.code == 0, outcome.message
    assert outcome.report is not None
    assert outcome.report["model"]["ops"] == 16
    assert sorted(os.listdir(tmp_path)) == ["--help.onnx", "json.py", "onnx.py"]


@pytest.mark.parametrize(
    ("code", "message", "status", "detail"),
    [
        (3, "noise\nerror: a.onnx: is no model", Status.UNREADABLE, "is no model"),
        (2, "error: a pattern matches nothing", Status.ERROR, "a pattern matches nothing"),
        (-11, "", Status.CRASHED, "killed by SIGSEGV (limit 1.00 kB per process)"),
        (
            70,
            "error: MemoryError: . This is a bug",
            Status.CRASHED,
            "out of memory (limit 1.00 kB per process)",
        ),
        (1, "ImportError: no", Status.CRASHED, "ImportError: no"),
        (0, "", Status.CRASHED, "exit code 0 and no report"),
    ],
)
def test_how_a_process_ended_is_told(code: int, message: str, status: Status, detail: str) -> None:
    job = Job("/models/a.onnx", memory_limit=1000)
    assert _status(job, Outcome(code, 1.0, message=message)) == (status, detail)


def test_the_worst_finding_is_the_status() -> None:
    def finding(severity: str) -> dict[str, str]:
        return {"severity": severity, "rule": "r", "where": "w", "message": f"a {severity}", "fix": ""}

    def judge(*severities: str, ok: bool = True) -> tuple[Status, str]:
        report = {"findings": [finding(name) for name in severities], "ok": ok}
        return _status(Job("/a.onnx"), Outcome(0, 1.0, report))

    assert judge("note") == (Status.OK, "")
    assert judge("note", "warning") == (Status.WARNING, "a warning")
    assert judge("warning", "error", ok=False) == (Status.ERROR, "a error")


def test_what_a_killed_audit_leaves_is_removed_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", os.fspath(tmp_path))
    child = os.fork()
    if child == 0:
        try:
            jobs.subprocess.Popen = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[attr-defined,assignment,misc]
            run_job(Job(path="/m.onnx"))
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []
