"""Times a command from outside: wall, CPU and peak memory of a process and the children it waited for."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import distributions
from pathlib import Path

__all__ = ["Usage", "describe_machine", "interleave", "measure", "median"]


INTERVAL = 0.005  # seconds between looks at a running process

PACKAGES = (
    *("numpy", "onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu"),
    *("onnxconverter-common", "nvidia-modelopt"),
)
"""Distributions whose versions decide what is measured."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one run took.

    Args:
        wall: seconds; cpu: seconds of user and system time, children included; rss: peak resident set of the
            process itself, bytes.
    """

    wall: float
    cpu: float
    rss: int


def measure(command: Sequence[str]) -> Usage:
    """Run a command to its end, output thrown away; Python keeps what it compiled, as installed packages do.

    Raises:
        RuntimeError: it failed; the message holds the end of its stderr.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    peak = 0
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        while True:
            done, status, usage = os.wait4(process.pid, os.WNOHANG)
            if done:
                break
            peak = max(peak, _peak_memory(process.pid))
            time.sleep(INTERVAL)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"{command[:4]} failed: {errors.read()[-400:].decode(errors='replace')}")
    return Usage(wall, usage.ru_utime + usage.ru_stime, peak)


def _peak_memory(pid: int) -> int:
    """The kernel's high-water mark; ru_maxrss would count this process too, which the child began as."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM")), 0)
    except OSError:
        return 0


def interleave(
    commands: Mapping[str, Sequence[str]], rounds: int, slow: float = 20.0
) -> dict[str, list[Usage]]:
    """Run all commands in turns, so that what else the machine does meets all of them alike.

    Args:
        commands: command per name.
        rounds: turns.
        slow: seconds; what takes longer is run once.
    """
    found: dict[str, list[Usage]] = {name: [] for name in commands}
    for turn in range(rounds):
        for name, command in commands.items():
            if turn and found[name][0].wall > slow:
                continue
            found[name].append(measure(command))
    return found


def median(runs: Sequence[Usage]) -> Usage:
    """Median of each figure by itself."""
    return Usage(
        statistics.median(r.wall for r in runs),
        statistics.median(r.cpu for r in runs),
        int(statistics.median(r.rss for r in runs)),
    )


def describe_machine(peers: Mapping[str, Path]) -> dict[str, object]:
    """What the figures were measured on, and when.

    Args:
        peers: folder of the environment of each converter that runs in one of its own.
    """
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            cpu = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), cpu)
    except OSError:
        pass
    packages = {"fp16conv": _versions(sys.path)}
    for name, folder in peers.items():
        packages[name] = _versions(map(str, folder.glob("lib/python*/site-packages")))
    return {
        "date": date.today().isoformat(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": packages,
        "load_average": [round(x, 1) for x in os.getloadavg()],
    }


def _versions(path: Iterable[str]) -> dict[str, str]:
    """Versions of PACKAGES, as far as they are installed in these folders."""
    found = {each.name.lower().replace("_", "-"): each.version for each in distributions(path=list(path))}
    return {name: found[name] for name in PACKAGES if name in found}
