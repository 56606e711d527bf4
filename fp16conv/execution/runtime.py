"""Runs models with ONNX Runtime in a child process, so that a crash is a finding and not the end."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, Literal, Self, cast

import numpy as np
import onnx_ir as ir

from fp16conv.execution import worker
from fp16conv.execution.failures import RuntimeFailure, Stage
from fp16conv.execution.launch import take_child
from fp16conv.execution.staging import stage_model
from fp16conv.files import make_temporary
from fp16conv.graph import Dim

__all__ = [
    "Feeds",
    "ModelSource",
    "NodePlacement",
    "Optimization",
    "Provider",
    "Results",
    "Runtime",
    "RuntimeFailure",
    "SessionHandle",
    "TensorInfo",
]

Provider = Literal["cpu", "cuda"]
Optimization = Literal["disabled", "basic", "extended", "all"]
ModelSource = str | Path | bytes | ir.Model
Feeds = Mapping[str, Any]
Results = dict[str, Any]
"""Output name -> array, list of arrays (a sequence) or None (an empty optional)."""

_PROVIDERS: Mapping[Provider, tuple[str, ...]] = {
    "cpu": ("CPUExecutionProvider",),
    "cuda": ("CUDAExecutionProvider", "CPUExecutionProvider"),
}
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_STAMP = re.compile(r"^\d{4}-\d\d-\d\d [\d:.]+ \[[^\]]*\] ")  # date, time, severity and source file
_LOG_TAIL = 4000  # characters of the child's stderr that go into a message


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, type as ONNX Runtime writes it (`tensor(float16)`) and shape of a graph input or output."""

    name: str
    type: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """The provider that ran a node."""

    name: str
    op_type: str
    provider: str


@dataclass(frozen=True, slots=True)
class SessionHandle:
    """A loaded model. It stays usable after a crash: the model is then loaded again.

    Args:
        number: the session's number in its Runtime.
        inputs: graph inputs that must be fed or may be.
        outputs: graph outputs.
        providers: execution providers the session really uses, preferred first.
    """

    number: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    providers: tuple[str, ...]


class Runtime:
    """ONNX Runtime in a child process.

    Args:
        provider: `cpu`, or `cuda`, which is an error where CUDA does not really work.
        threads: threads inside one operator; 0 lets ONNX Runtime choose.
        optimization: graph optimisation level.
        timeout: seconds one load or run may take; None is for ever.
        profile: record which provider runs each node (read with `placements`).

    Example:
        >>> with Runtime() as runtime:  # doctest: +SKIP
        ...     session = runtime.load("model.onnx")
        ...     runtime.run(session, {"x": np.zeros(3, np.float32)})
    """

    def __init__(
        self,
        provider: Provider = "cpu",
        *,
        threads: int = 0,
        optimization: Optimization = "all",
        timeout: float | None = 600.0,
        profile: bool = False,
    ) -> None:
        self.provider, self.threads, self.optimization = provider, threads, optimization
        self.timeout, self._profile = timeout, profile
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._folder: Path | None = None
        self._sources: dict[int, dict[str, object]] = {}
        self._staged: dict[int, Path] = {}
        self._alive: set[int] = set()
        self._count = 0
        self._version = ""
        self._companion: Runtime | None = None
        self._is_stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    @property
    def name(self) -> str:
        return "ONNX Runtime"

    @property
    def version(self) -> str:
        """Version of the runtime in the child."""
        if not self._version:
            self.describe()
        return self._version

    @property
    def folder(self) -> Path:
        """A temporary folder that lives as long as the Runtime; staged models lie in it."""
        if self._folder is None:
            self._folder = make_temporary()
        return self._folder

    @property
    def companion(self) -> Runtime:
        """A second Runtime with the same settings, for what runs at the same time; closed with this one."""
        if self._companion is None:
            self._companion = Runtime(
                self.provider,
                threads=self.threads,
                optimization=self.optimization,
                timeout=self.timeout,
                profile=self._profile,
            )
        return self._companion

    def start(self) -> None:
        """Start the child without waiting for it: it imports the runtime while the caller does other work."""
        if self._process is None:
            self._start()

    def describe(self) -> dict[str, Any]:
        """Name, version and the providers the build lists (which does not mean that they work here)."""
        facts = cast(dict[str, Any], self._call("start", "describe", {}))
        self._version = str(facts["version"])
        return facts

    def why_no_cuda(self) -> str:
        """Why no session can get CUDA here, known without a session; empty where only one can tell."""
        facts = self.describe()
        if "CUDAExecutionProvider" not in facts["providers"]:
            return f"this build of {self.name} {self._version} has no CUDA provider"
        return "" if facts["cuda_driver"] else "there is no NVIDIA driver"

    def load(
        self,
        model: ModelSource,
        *,
        base_dir: Path | None = None,
        custom_ops: Sequence[Path] = (),
        threads: int | None = None,
    ) -> SessionHandle:
        """Load a model.

        Args:
            model: path, serialized model, or an onnx_ir model (staged in a temporary folder where it is large
                or has external weights; the folder the weights come from is never written).
            base_dir: folder of the external weights of a serialized model.
            custom_ops: shared libraries with custom operators.
            threads: threads inside one operator; those of the Runtime if None.

        Raises:
            RuntimeFailure: the runtime refused the model, crashed, took too long, or did not use the provider
                asked for.
        """
        number, self._count = self._count, self._count + 1
        source: str | bytes
        if isinstance(model, ir.Model):
            staged = stage_model(model, self.folder / str(number))
            source = staged if isinstance(staged, bytes) else str(staged)
            if not isinstance(staged, bytes):
                self._staged[number] = staged.parent
        else:
            source = model if isinstance(model, bytes) else os.fspath(model)
        self._sources[number] = {
            "model": source,
            "providers": _PROVIDERS[self.provider],
            "threads": self.threads if threads is None else threads,
            "optimization": self.optimization,
            "custom_ops": [os.fspath(p) for p in custom_ops],
            "folder": os.fspath(base_dir) if base_dir is not None else "",
            "profile": os.fspath(self.folder) if self._profile else "",
        }
        try:
            facts = self._open(number)
        except BaseException:
            self.unload(number)
            raise
        return SessionHandle(
            number,
            tuple(TensorInfo(n, t, tuple(s)) for n, t, s in facts["inputs"]),
            tuple(TensorInfo(n, t, tuple(s)) for n, t, s in facts["outputs"]),
            tuple(facts["providers"]),
        )

    def run(self, session: SessionHandle, feeds: Feeds, outputs: Sequence[str] | None = None) -> Results:
        """Run a model once.

        Args:
            session: from `load` of this Runtime.
            feeds: input name -> array; BFLOAT16 inputs as float32 or as uint16 bits.
            outputs: names of the outputs to compute, None for all.

        Returns:
            Output name -> array (BFLOAT16 as float32), list for a sequence, None for an empty optional.

        Raises:
            RuntimeFailure: the runtime failed, crashed or took too long.
        """
        self._drop_stopped()
        if session.number not in self._alive:
            self._open(session.number)
        plain = {n: np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for n, a in feeds.items()}
        arguments = {
            "number": session.number,
            "feeds": plain,
            "outputs": None if outputs is None else list(outputs),
        }
        return cast(Results, self._call("run", "run", arguments))

    def placements(self, session: SessionHandle) -> tuple[NodePlacement, ...]:
        """Which provider ran each node so far; ends the session's profile (so: once per session)."""
        rows = cast(list[tuple[str, str, str]], self._call("run", "profile", {"number": session.number}))
        return tuple(NodePlacement(*row) for row in rows)

    def unload(self, session: SessionHandle | int) -> None:
        """Free a session and its staged files."""
        number = session if isinstance(session, int) else session.number
        self._sources.pop(number, None)
        if number in self._alive:
            self._alive.discard(number)
            if self._process is not None:
                self._call("run", "unload", {"number": number})
        if (folder := self._staged.pop(number, None)) is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """End the child process and remove the temporary folder."""
        process, self._process = self._process, None
        companion, self._companion = self._companion, None
        self._alive.clear()
        if process is not None:
            _hang_up(process)
        if companion is not None:
            companion.close()  # both end at the same time
        if process is not None:
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def stop(self) -> None:
        """End the child process whatever it is at, from any thread; the next call starts another."""
        self._is_stopped = True
        if (process := self._process) is not None:
            process.kill()

    def warnings(self) -> tuple[str, ...]:
        """What the runtime printed since the child was started, one entry per line."""
        return tuple(_ESCAPES.sub("", line) for line in self._log_text().splitlines() if line.strip())

    def _open(self, number: int) -> dict[str, Any]:
        if not self._version:
            self.describe()
        facts = cast(dict[str, Any], self._call("load", "load", {"number": number, **self._sources[number]}))
        wanted = _PROVIDERS[self.provider][0]
        if wanted not in facts["providers"]:
            raise RuntimeFailure(
                "load",
                self.name,
                self._version,
                f"{wanted} was asked for but the session fell back to {', '.join(facts['providers'])}",
                hint=self._last_line() or "is there a driver, and do the CUDA libraries match this build?",
            )
        self._alive.add(number)
        return facts

    def _start(self) -> subprocess.Popen[bytes]:
        child = take_child()
        if self._log is not None:
            self._log.close()
        self._process, self._log, self._is_stopped = child.process, child.log, False
        self._alive.clear()
        return self._process

    def _drop_stopped(self) -> None:
        if self._is_stopped and self._process is not None:
            self._forget(self._process)

    def _call(self, stage: Stage, command: str, arguments: Mapping[str, object]) -> object:
        self._drop_stopped()
        process = self._process or self._start()
        expired = threading.Event()

        def stop() -> None:
            expired.set()
            process.kill()

        timer = threading.Timer(self.timeout, stop) if self.timeout is not None else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            worker.write_message(cast(BinaryIO, process.stdin), (command, dict(arguments)))
            status, reply = worker.read_message(cast(BinaryIO, process.stdout))
        except (EOFError, OSError):
            raise self._died(stage, process, expired.is_set()) from None
        except BaseException:  # interrupted in the middle of a message: the pipe is out of step
            process.kill()
            self._forget(process)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if status != "ok":
            raise RuntimeFailure(stage, self.name, self._version, str(reply))
        return cast(object, reply)

    def _died(self, stage: Stage, process: subprocess.Popen[bytes], expired: bool) -> RuntimeFailure:
        if not expired:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
        process.kill()
        code = process.wait()
        text = self._last_line()
        self._forget(process)
        return RuntimeFailure(
            stage, self.name, self._version, text, signal=-code if code < 0 else code, timed_out=expired
        )

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        _hang_up(process)
        self._process = None
        self._alive.clear()

    def _log_text(self) -> str:
        if self._log is None:
            return ""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _LOG_TAIL))
        return self._log.read().decode(errors="replace")

    def _last_line(self) -> str:
        lines = [_STAMP.sub("", line).strip() for line in self.warnings()]
        return next((line for line in reversed(lines) if line), "")


def _hang_up(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
