"""Fuzzing: mutated models through `convert --no-validate` and `analyze`, with a time limit for each.

    python -m benchmarks.fuzz --runs 5000 --seed 1

A run fails where the tool shows a bug (exit code 70), takes longer than the limit, dies, leaves a partial
file, changes its input, or refuses without a message. Failing models are kept in `--keep`.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import importlib
import io
import json
import os
import re
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx

from benchmarks.mutations import mutate

__all__ = ["Result", "fuzz", "main"]

ROOT: Final = Path(__file__).resolve().parents[1]
LIMIT: Final = 20.0  # seconds one run may take
MAX_SEED_BYTES: Final = 300_000  # larger seeds say nothing more and take longer
MEMORY: Final = 8 << 30  # bytes of address space of a worker
CODES: Final = {"convert": {0, 2, 3, 4}, "analyze": {0, 1, 2, 3, 5}}
"""Exit codes that are no bug; 2 says that no inputs can be made up."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one run came to.

    Args:
        index: number of the run.
        verb: `convert` or `analyze`.
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


def seeds() -> list[Path]:
    """The models that are mutated, in a fixed order."""
    files = [*(ROOT / "tests" / "cases").glob("*.onnx"), *(ROOT / "samples").glob("*.onnx")]
    return sorted(f for f in files if f.stat().st_size <= MAX_SEED_BYTES)


def make_case(seed: int, index: int) -> bytes:
    """The bytes of run `index`; they depend on nothing else."""
    rng = np.random.default_rng((seed, index))
    files = seeds()
    return mutate(onnx.load(files[int(rng.integers(len(files)))], load_external_data=False), rng)


def fuzz(runs: int, seed: int, analyze_every: int, keep: Path | None, start: int = 0) -> Iterator[Result]:
    """Run the tool on mutated models.

    Args:
        runs: how many.
        seed: of the mutations.
        analyze_every: every so many runs also `analyze` (it starts a runtime: slow); 0 for never.
        keep: folder for the models of failed runs.
        start: number of the first run.
    """
    worker = _Worker()
    try:
        for index in range(start, start + runs):
            verbs = ["convert"] + (["analyze"] if analyze_every and index % analyze_every == 0 else [])
            for verb in verbs:
                result = worker.run(seed, index, verb)
                if result.problem.startswith("hang"):  # a busy machine can look like one: once more
                    result = worker.run(seed, index, verb)
                if result.problem and keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{seed}-{index}.onnx").write_bytes(make_case(seed, index))
                yield result
    finally:
        worker.close()


class _Worker:
    """A process that runs cases; replaced where it hangs or dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, seed: int, index: int, verb: str) -> Result:
        if self._process is None:
            self._process = self._start()
        process, begun = self._process, time.monotonic()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([seed, index, verb]) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], LIMIT)
        line = process.stdout.readline() if ready else ""
        seconds = time.monotonic() - begun
        if line:
            return Result(index, verb, *json.loads(line), seconds)
        code = None
        if not ready:
            process.kill()
        code = process.wait()
        self.close()
        problem = f"died with code {code}" if ready else f"hangs for more than {LIMIT:.0f} s"
        return Result(index, verb, None, problem, "", seconds)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(BrokenPipeError), process:  # leaving closes the pipes and waits
                assert process.stdin is not None
                process.stdin.close()

    @staticmethod
    def _start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fuzz", "--worker"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        process.stdout.readline()  # the imports do not count
        return process


def _work() -> None:
    """Answer requests on stdin until it ends; the answers must not mix with what libraries print."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faulthandler.enable()
    importlib.import_module("fp16conv.api")  # the imports, once
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_run_case(*json.loads(line))), file=answers, flush=True)


def _run_case(seed: int, index: int, verb: str) -> tuple[int, str, str]:
    """Exit code, problem and message of one run."""
    from fp16conv.cli.app import run

    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name) / "in"
        folder.mkdir()
        (folder / "data.bin").write_bytes(bytes(64))
        (Path(name) / "data.bin").write_bytes(bytes(64))
        os.mkfifo(folder / "fifo")
        (folder / "link").symlink_to("/dev/zero")
        model, output = folder / "model.onnx", Path(name) / "out"
        output.mkdir()
        content = make_case(seed, index)
        model.write_bytes(content)
        args = [verb, os.fspath(model), "--quiet"]
        args += ["--no-validate", "-o", os.fspath(output / "out.onnx")] if verb == "convert" else []
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([*args[:1], "--verbose", *args[1:2], *args[3:]])
        text = err.getvalue().strip()
        message = next((row for row in text.splitlines() if row.startswith("error:")), "")
        problem = ""
        left = sorted(p.name for p in output.iterdir())
        if code not in CODES[verb]:
            problem = f"exit code {code}: {message[:160]} | {_trail(text)}"
        elif code >= 2 and not message:
            problem = "no message"
        elif code != 0 and left:
            problem = f"left {left} behind"
        elif set(left) - {"out.onnx", "out.data"}:
            problem = f"temporary files {left}"
        elif model.read_bytes() != content:
            problem = "the input changed"
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
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first run")
    parser.add_argument("--analyze-every", type=int, default=20)
    parser.add_argument("--keep", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args(argv)
    if flags.worker:
        _work()
        return 0
    codes: collections.Counter[Any] = collections.Counter()
    kinds: collections.Counter[str] = collections.Counter()
    failed, slowest, begun = 0, 0.0, time.monotonic()
    for result in fuzz(flags.runs, flags.seed, flags.analyze_every, flags.keep, flags.start):
        codes[result.verb, result.code] += 1
        if result.message:
            kinds[_kind(result.message)] += 1
        slowest = max(slowest, result.seconds)
        if result.problem:
            failed += 1
            print(f"FAILED {flags.seed}-{result.index} {result.verb}: {result.problem}", flush=True)
        if time.monotonic() - begun > flags.seconds:
            break
    print(
        f"\n{sum(codes.values())} runs, {failed} failed, slowest {slowest:.1f} s, "
        f"{time.monotonic() - begun:.0f} s"
    )
    for (verb, code), count in sorted(codes.items(), key=str):
        print(f"  {verb}: exit code {code}: {count}")
    for kind, count in kinds.most_common(40):
        print(f"  {count:5d}  {kind}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
