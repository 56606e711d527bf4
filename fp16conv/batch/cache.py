"""Results by digest: a model that did not change, looked at in the same way, is not looked at again."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import mmap
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import fp16conv
from fp16conv.batch.jobs import Job, Outcome
from fp16conv.files import write_whole

__all__ = ["Cache", "digest_job"]

_SCHEMA = "fp16conv.audit-cache/1"

# StringStringEntryProto of onnx.proto: field 1 (key) is "location", field 2 (value) is a file's name, whose
# length is a varint of one or two bytes. Found without parsing: the file may be broken, and parsing it here
# could cost every other model's row.
_LOCATION = re.compile(rb"\x0a\x08location\x12([\x80-\xff]?[\x00-\x7f])")

_LIBRARIES = ("numpy", "onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu", "torch")


def digest_job(job: Job, rules: str) -> str:
    """The digest of everything a result depends on.

    Args:
        job: the model with its options. Its external data counts; its timeout does not.
        rules: digest of the rule book.

    Returns:
        64 hex digits.

    Raises:
        OSError: the model cannot be read.
    """
    path = Path(job.path)
    parts = {
        "model": _digest_file(path),
        "external": {name: _digest_inside(path.parent, name) for name in _find_external(path)},
        "name": path.name,  # a report tells it
        "rules": rules,
        "arguments": [_digest_file(Path(a)) if os.path.isfile(a) else a for a in job.arguments],
        "memory_limit": job.memory_limit,
        "html": job.html,
        "version": fp16conv.__version__,
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "python": sys.version,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _find_external(path: Path) -> list[str]:
    """Names of external data files, sorted."""
    if path.stat().st_size == 0:
        return []
    names = set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for match in _LOCATION.finditer(content):
            prefix = match.group(1)
            length = prefix[0] if len(prefix) == 1 else (prefix[0] & 0x7F) | prefix[1] << 7
            names.add(content[match.end() : match.end() + length])
    return sorted(name.decode("utf-8", "backslashreplace") for name in names)


def _digest_inside(folder: Path, name: str) -> str | None:
    """None for what a model may not read: another folder's file, a device, nothing."""
    try:
        file = (folder / name).resolve()
        if not file.is_relative_to(folder.resolve()) or not file.is_file():
            return None
        return _digest_file(file)
    except (OSError, ValueError):
        return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


class Cache:
    """Outcomes with a report, one JSON file each. What crashed or hung is tried again in the next run.

    Args:
        folder: made if missing; several audits may share it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def find(self, key: str) -> Outcome | None:
        """The outcome kept under a key; None where there is none, or none that can be read."""
        try:
            entry = json.loads(self._path(key).read_bytes())
            if entry["schema"] != _SCHEMA or not isinstance(entry["outcome"]["report"], dict):
                return None
            return Outcome(**entry["outcome"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, key: str, outcome: Outcome) -> None:
        """Keep an outcome that has a report.

        Raises:
            OSError: the folder cannot be written.
        """
        if outcome.report is None:
            return
        text = json.dumps({"schema": _SCHEMA, "outcome": asdict(outcome)})
        write_files([(self._path(key), text)])

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def write_files(files: Iterable[tuple[Path, str]]) -> None:
    """Write texts; each file appears complete or not at all.

    Raises:
        OSError: a file cannot be written.
    """
    for path, text in files:
        write_whole(path, text.encode("utf-8", "backslashreplace"))
