"""One model, one process: whatever it does, what comes back is an outcome."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp16conv.files import make_temporary

__all__ = ["Job", "Outcome", "run_job"]

_POLL = 0.05  # seconds between looks at the child
_TAIL = 4000  # bytes of stderr that are kept


@dataclass(frozen=True, slots=True)
class Job:
    """What to run; can be pickled and run on another machine that sees the same files.

    Args:
        path: absolute path of the model.
        arguments: flags of `fp16conv analyze`, with absolute paths.
        timeout: seconds, or None.
        memory_limit: bytes of data per process (the analysis, and the one that runs the model), or None.
        html: whether to make the HTML report as well.
    """

    path: str
    arguments: tuple[str, ...] = ()
    timeout: float | None = None
    memory_limit: int | None = None
    html: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went.

    Args:
        code: exit code, negative for a signal (as subprocess has it); None: killed after the timeout.
        seconds: wall time.
        report: the JSON report of `analyze`, None where there is none.
        html: the HTML report, None where there is none.
        message: last words on stderr, as they came.
    """

    code: int | None
    seconds: float
    report: dict[str, Any] | None = None
    html: str | None = None
    message: str = ""


def run_job(job: Job, stop: threading.Event | None = None) -> Outcome:
    """Run `fp16conv analyze` on a model in a child process.

    It runs in the model's folder, so that a report does not depend on where the folder is.

    Args:
        job: what to run.
        stop: when set, the child is killed and the outcome is that of a timeout.

    Returns:
        The outcome; a crash, a hang or nonsense on stdout is one too.

    Raises:
        OSError: no process can be started on this machine at all.
    """
    stop = stop or threading.Event()
    folder = make_temporary()
    try:
        return _run_in(os.fspath(folder), job, stop)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_in(folder: str, job: Job, stop: threading.Event) -> Outcome:
    page = Path(folder, "report.html")
    command = [sys.executable, "-P", "-m", "fp16conv.batch.confined", str(job.memory_limit or 0)]
    command += ["analyze", *job.arguments, "--format", "json", "--quiet", "--fail-on", "never"]
    command += ["--report", str(page)] if job.html else []
    command += ["--", os.path.basename(job.path)]
    begin = time.monotonic()
    # Files, not pipes: a grandchild that outlives a killed child would hold a pipe open.
    out_path, err_path = Path(folder, "out"), Path(folder, "err")
    with out_path.open("wb") as out, err_path.open("wb") as err:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=os.path.dirname(job.path),
            env=_environment(folder),
            start_new_session=True,
        )
        try:
            code = _wait(process, None if job.timeout is None else begin + job.timeout, stop)
        finally:
            _kill(process)
    seconds = time.monotonic() - begin
    report = _read_report(out_path) if code == 0 else None
    html = page.read_text(encoding="utf-8") if report is not None and page.is_file() else None
    return Outcome(code, seconds, report, html, _tail(err_path))


def _environment(scratch: str) -> dict[str, str]:
    """Variables for the child: it finds this very package, and nothing that lies beside the model.

    Its temporary files go with ours, even if it is killed.
    """
    known = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    search = os.pathsep.join([str(Path(__file__).parents[2]), *known])
    return os.environ | {"PYTHONPATH": search, "TMPDIR": scratch}


def _wait(process: subprocess.Popen[bytes], deadline: float | None, stop: threading.Event) -> int | None:
    while (code := process.poll()) is None:
        if stop.is_set() or (deadline is not None and time.monotonic() >= deadline):
            return None
        stop.wait(_POLL)
    return code


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a child that still runs, with everything it started."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _read_report(path: Path) -> dict[str, Any] | None:
    try:
        report = json.loads(path.read_bytes())
    except ValueError:
        return None
    is_report = isinstance(report, dict) and str(report.get("schema", "")).startswith("fp16conv.analyze/")
    return report if is_report else None


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        return file.read().decode("utf-8", "backslashreplace").strip()
