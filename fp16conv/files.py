"""Reading files that may be hostile, and temporary folders that do not pile up when a run is killed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import stat
import tempfile
import tomllib
from pathlib import Path
from typing import Any

__all__ = ["is_regular", "make_temporary", "read_regular", "read_toml", "sweep"]

MAX_TOML = 1 << 24  # bytes
PREFIX = ".fp16conv-"
_OURS = re.compile(r"\.?fp16conv-(\w{1,16})-(\d{1,10})-(\d{1,20})-\w+")


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """Read a file whole; never a pipe or a device, which might not end.

    Args:
        path: the file, or a symbolic link to it.
        limit: bytes it may have.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger than the limit.

    Example:
        >>> read_regular("/dev/zero", 10)
        Traceback (most recent call last):
            ...
        OSError: [Errno 22] not a regular file: '/dev/zero'
    """
    name = os.fspath(path)
    try:
        # Without O_NONBLOCK, opening a FIFO waits for a writer.
        handle = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a NUL in the name
        raise OSError(22, str(error), name.replace("\0", "\\0")) from None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(21, "is a folder", name)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(22, "not a regular file", name)
        content = file.read(limit + 1) if status.st_size <= limit else b""
        if status.st_size > limit or len(content) > limit:
            raise OSError(27, f"{status.st_size} bytes are more than the limit of {limit}", name)
        return content


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Whether there is a regular file; False for names that no file can have."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a TOML file that somebody else may have written.

    Raises:
        OSError: it cannot be read, is no regular file, or has more than 16 MiB.
        ValueError: it is not TOML, not UTF-8, or nested too deeply.
    """
    try:
        return tomllib.loads(read_regular(path, MAX_TOML).decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def make_temporary(parent: str | os.PathLike[str] | None = None) -> Path:
    """Make a folder whose name says which process owns it; what killed runs left in the same place goes.

    Args:
        parent: where to make it, the system's folder for temporary files if None.

    Raises:
        OSError: it cannot be made.
    """
    place = Path(tempfile.gettempdir() if parent is None else parent)
    sweep(place)
    prefix = PREFIX if parent is not None else PREFIX[1:]
    return Path(
        tempfile.mkdtemp(prefix=f"{prefix}{_host()}-{os.getpid()}-{_started(os.getpid())}-", dir=place)
    )


def sweep(place: Path) -> None:
    """Remove what killed runs left: folders ours by name and user, of this host, whose process is gone."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            owner = _OURS.fullmatch(entry.name)
            if owner is None or owner[1] != _host() or not entry.is_dir(follow_symlinks=False):
                continue
            is_mine = not hasattr(os, "getuid") or entry.stat(follow_symlinks=False).st_uid == os.getuid()
            if is_mine and not _is_running(int(owner[2]), owner[3]):
                shutil.rmtree(entry.path, ignore_errors=True)


def _host() -> str:
    """This machine, as in a folder's name: other machines' processes are not ours to judge."""
    return re.sub(r"\W", "", socket.gethostname())[:16] or "host"


def _is_running(process: int, started: str) -> bool:
    """Whether the process that made a folder still runs; where it is unclear, yes."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    found = _started(process)
    return found == started or "0" in (found, started)  # else its number was given to another process


def _started(process: int) -> str:
    """When a process began, in clock ticks since boot; `0` where the system does not say."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
        return text.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"
