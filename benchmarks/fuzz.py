"""Fuzzing: mutated models, programs, plans, rules, devices and data through the program, with a time limit.

    python -m benchmarks.fuzz --runs 5000 --seed 1 --jobs 2
    python -m benchmarks.fuzz --subject program --runs 500

A run fails where the tool shows a bug (exit code 70), takes longer than the limit, dies, leaves a partial
file, changes its input, runs code from the file, or refuses without a message. Files of failed runs are
kept in `--keep`.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import functools
import importlib
import io
import json
import os
import re
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.mutations.archives import CANARY
from benchmarks.subjects import ROOT, SUBJECTS, Subject, make_case, model

__all__ = ["Result", "fuzz", "main"]

LIMIT: Final = 20.0  # seconds of processor time one run may take: others use the machine too
PATIENCE: Final = 15  # wall seconds waited per second of the limit
MEMORY: Final = 8 << 30  # bytes of address space of a worker


@dataclass(frozen=True, slots=True)
class Result:
    """What one run came to.

    Args:
        index: number of the run.
        verb: of the program.
        code: exit code, None where there is none.
        problem: what is wrong with the tool, empty if nothing.
        message: the last line on stderr.
        seconds: wall time.
    """

    index: int
    verb: str
    code: int | None
    problem: str
    message: str
    seconds: float


def fuzz(
    subject: str, runs: int, seed: int, *, every: int = 0, keep: Path | None = None, start: int = 0
) -> Iterator[Result]:
    """Run the tool on mutated files.

    Args:
        subject: what is mutated, a key of `SUBJECTS`.
        runs: how many.
        seed: of the mutations.
        every: every so many runs the slower verbs too (they start a runtime); 0 for never.
        keep: folder for the files of failed runs.
        start: number of the first run.
    """
    worker = _Worker()
    verbs = list(SUBJECTS[subject].commands)
    try:
        for index in range(start, start + runs):
            for verb in verbs if every and index % every == 0 else verbs[:1]:
                result = worker.run(subject, seed, index, verb)
                if result.problem and keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    name = f"{subject}-{seed}-{index}{Path(SUBJECTS[subject].file).suffix}"
                    (keep / name).write_bytes(make_case(subject, seed, index))
                yield result
    finally:
        worker.close()


class _Worker:
    """A process that runs cases; replaced where it hangs or dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, subject: str, seed: int, index: int, verb: str) -> Result:
        if self._process is None:
            self._process = self._start(subject)
        process, begun = self._process, time.monotonic()
        assert process.stdin is not None
        assert process.stdout is not None
        used = _processor_time(process.pid)
        with contextlib.suppress(BrokenPipeError):  # it is dead; what follows finds out why
            process.stdin.write(json.dumps([subject, seed, index, verb]) + "\n")
            process.stdin.flush()
        line = None
        while line is None:
            ready, _, _ = select.select([process.stdout], [], [], 1.0)
            seconds = time.monotonic() - begun
            if ready:
                line = process.stdout.readline()
            elif seconds > LIMIT * PATIENCE or _processor_time(process.pid) - used > LIMIT:
                break
        if line:
            return Result(index, verb, *json.loads(line), seconds)
        if line is None:
            process.kill()
        code = process.wait()
        self.close()
        problem = f"hangs for more than {LIMIT:.0f} s" if line is None else f"died with code {code}"
        return Result(index, verb, None, problem, "", seconds)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(BrokenPipeError), process:  # leaving closes the pipes and waits
                assert process.stdin is not None
                process.stdin.close()

    @staticmethod
    def _start(subject: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fuzz", "--worker", "--subject", subject],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        process.stdout.readline()  # the imports and the seeds do not count
        return process


def _processor_time(process: int) -> float:
    """Seconds of processor time of a process and all below it, as far as they still run."""
    ticks, waiting = 0, [process]
    while waiting:
        number = waiting.pop()
        with contextlib.suppress(OSError, ValueError):
            for task in os.listdir(f"/proc/{number}/task"):
                children = Path(f"/proc/{number}/task/{task}/children").read_text(encoding="ascii")
                waiting += map(int, children.split())
            ticks += sum(map(int, Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _work(subject: str) -> None:
    """Answer requests on stdin until it ends; the answers must not mix with what libraries print."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faulthandler.enable()
    importlib.import_module("fp16conv.api")  # the imports, once
    _warm_up()
    make_case(subject, 0, 0)
    print("ready", file=answers, flush=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_fast_folder()) as name:
        place = _Place(Path(name))
        for line in sys.stdin:
            print(json.dumps(place.run(*json.loads(line))), file=answers, flush=True)


def _warm_up() -> None:
    """What costs time in each run and is the same in each: reading the rule book, waiting for the disk."""
    study = importlib.import_module("fp16conv.study")
    read = functools.cache(study.load_book)
    study.load_book = lambda *files: read(*files) if not files else read.__wrapped__(*files)
    os.fsync = lambda file: None
    # A model may compute for long: that is its right, and the runtime's time.
    runtime = importlib.import_module("fp16conv.execution.runtime").Runtime
    runtime.__init__.__kwdefaults__["timeout"] = 5.0


def _fast_folder() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


class _Place:
    """A folder for inputs, with traps in it, and one for outputs."""

    def __init__(self, root: Path) -> None:
        self.input, self.output, self.canary = root / "in", root / "out", root / "canary"
        self.input.mkdir()
        self.output.mkdir()
        (self.input / "data.bin").write_bytes(bytes(64))
        (root / "data.bin").write_bytes(bytes(64))
        os.mkfifo(self.input / "fifo")
        (self.input / "link").symlink_to("/dev/zero")
        self.traps = set(self.input.iterdir())
        os.environ[CANARY] = os.fspath(self.canary)

    def run(self, subject: str, seed: int, index: int, verb: str) -> tuple[int, str, str]:
        """Exit code, problem and message of one run."""
        from fp16conv.cli.app import run

        kind = SUBJECTS[subject]
        file, output = self.input / kind.file, self.output / kind.output
        content = make_case(subject, seed, index)
        file.write_bytes(content)
        words = {"FILE": file, "OUT": output}
        if "MODEL" in kind.commands[verb]:
            words["MODEL"] = model()
        args = [os.fspath(words.get(word, word)) for word in kind.commands[verb]]
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run([*args, "--verbose"])
            return self._judge(kind, verb, code, err.getvalue().strip(), content)
        finally:
            for left in (*self.output.iterdir(), *(set(self.input.iterdir()) - self.traps)):
                shutil.rmtree(left) if left.is_dir() else left.unlink()

    def _judge(self, kind: Subject, verb: str, code: int, text: str, content: bytes) -> tuple[int, str, str]:
        message = next((row for row in text.splitlines() if row.startswith("error:")), "")
        left = {p.name for p in self.output.iterdir()}
        problem = ""
        if code not in kind.codes[verb]:
            problem = f"exit code {code}: {message[:160]} | {_trail(text)}"
        elif code >= 2 and not message:
            problem = "no message"
        elif code != 0 and left:
            problem = f"left {sorted(left)} behind"
        elif left - {kind.output, f"{Path(kind.output).stem}.data"}:
            problem = f"temporary files {sorted(left)}"
        elif (self.input / kind.file).read_bytes() != content:
            problem = "the input changed"
        elif {p for p in self.input.iterdir() if p.name != kind.file} != self.traps:
            problem = "the input's folder changed"
        elif self.canary.exists():
            self.canary.unlink()
            problem = "code of the file ran"
        return code, problem, message


def _trail(text: str) -> str:
    """The innermost frames of ours in a traceback, and what was raised first."""
    frames = re.findall(r'File "\S*/(fp16conv/\S+)", line (\d+), in (\S+)', text)
    causes = re.findall(r"^(\w[\w.]*(?:Error|Exception)\b.*)", text, re.M)
    return (
        " > ".join(f"{file}:{line} {name}" for file, line, name in frames[-3:])
        + " | "
        + "".join(causes[:1])[:120]
    )


def _kind(message: str) -> str:
    """A message without the names and numbers of its model."""
    text = message.rsplit(": ", 1)[0] if message.count(": ") > 3 else message
    return re.sub(r"'[^']*'|\S*/\S+|-?\d+", "_", text)[:90]


def main(argv: list[str] | None = None) -> int:
    """Fuzz and print a summary; 1 where a run failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--subject", choices=list(SUBJECTS), default="model", help="what is mutated")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first run")
    parser.add_argument(
        "--every", type=int, default=20, help="every so many runs the slower verbs too; 0: never"
    )
    parser.add_argument("--keep", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the runs")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args(argv)
    if flags.worker:
        _work(flags.subject)
        return 0
    tally, begun = _Tally(), time.monotonic()
    with ThreadPoolExecutor(flags.jobs) as pool:
        list(pool.map(lambda job: _run_share(flags, job, tally), range(flags.jobs)))
    print(tally.describe(time.monotonic() - begun))
    return 1 if tally.failed else 0


def _run_share(flags: argparse.Namespace, job: int, tally: _Tally) -> None:
    """One of several equal parts of the runs."""
    first, last = (flags.runs * n // flags.jobs for n in (job, job + 1))
    begun = time.monotonic()
    for result in fuzz(
        flags.subject,
        last - first,
        flags.seed,
        every=flags.every,
        keep=flags.keep,
        start=flags.start + first,
    ):
        if result.problem:
            name = f"{flags.subject} {flags.seed}-{result.index} {result.verb}"
            print(f"FAILED {name}: {result.problem}", flush=True)
        if tally.add(result) % 1000 == 0:
            print(tally.describe_briefly(), flush=True)
        if time.monotonic() - begun > flags.seconds:
            break


class _Tally:
    """Counts of results, of several threads."""

    def __init__(self) -> None:
        self.codes: collections.Counter[Any] = collections.Counter()
        self.kinds: collections.Counter[str] = collections.Counter()
        self.failed, self.slowest = 0, 0.0
        self._lock = threading.Lock()

    def add(self, result: Result) -> int:
        """Count a result; returns how many there are."""
        with self._lock:
            self.codes[result.verb, result.code] += 1
            if result.message:
                self.kinds[_kind(result.message)] += 1
            self.slowest = max(self.slowest, result.seconds)
            self.failed += bool(result.problem)
            return self.codes.total()

    def describe_briefly(self) -> str:
        return f"{self.codes.total()} runs, {self.failed} failed, slowest {self.slowest:.1f} s"

    def describe(self, seconds: float) -> str:
        lines = [f"\n{self.describe_briefly()}, {seconds:.0f} s"]
        lines += [
            f"  {verb}: exit code {code}: {n}" for (verb, code), n in sorted(self.codes.items(), key=str)
        ]
        lines += [f"  {count:5d}  {kind}" for kind, count in self.kinds.most_common(60)]
        return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
