"""Reading files that may be hostile, and writing files so that a killed run leaves nothing half done."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import stat
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "is_regular",
    "make_temporary",
    "read_regular",
    "read_toml",
    "replace_together",
    "sweep",
    "write_whole",
]

MAX_TOML = 1 << 22  # bytes; tomllib reads about 2 MB a second
PREFIX = ".fp16conv-"
_JOURNAL = "replacing.json"
_PREVIOUS = "previous"
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
        OSError: it cannot be read, is no regular file, or has more than `MAX_TOML` bytes.
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
    return Path(tempfile.mkdtemp(prefix=prefix + _owner(), dir=place))


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file that appears complete or not at all; what killed runs left in the same place goes.

    Raises:
        OSError: it cannot be written; an earlier file stays as it was.
    """
    target = Path(path).absolute()
    if target.exists() and not target.is_file():  # a rename would replace /dev/null itself
        raise OSError(22, "it is no regular file", os.fspath(path))
    sweep(target.parent)
    temporary = target.parent / f"{PREFIX}{_owner()}{os.urandom(6).hex()}"
    try:
        with temporary.open("xb") as file:
            file.write(content)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replace_together(staging: Path, names: Sequence[str], folder: Path) -> None:
    """Give staged files their names in the folder, all or none; what they replace is lost once all have them.

    A file that refers to others comes first: at no moment does it lie there beside others than its own. A
    run that is killed in between is undone by whoever sweeps the folder next.

    Args:
        staging: a folder of `make_temporary(folder)` that holds the files.
        names: of the files, here and there.
        folder: where they go.

    Raises:
        OSError: one could not be renamed; the folder is as it was.
    """
    if len(names) > 1:
        (staging / _PREVIOUS).mkdir()
        files = {name: (staging / name).stat().st_ino for name in names}
        write_whole(staging / _JOURNAL, json.dumps(files).encode())
    try:
        for name in names if len(names) > 1 else ():
            with contextlib.suppress(FileNotFoundError):
                os.replace(folder / name, staging / _PREVIOUS / name)
        for name in reversed(names):
            os.replace(staging / name, folder / name)
    except BaseException:
        _undo(staging, folder)
        raise


def _undo(staging: Path, folder: Path) -> None:
    """Put back what `replace_together` took away, unless it was done."""
    try:
        files = json.loads((staging / _JOURNAL).read_bytes())
    except (OSError, ValueError):
        return
    if not (staging / next(iter(files))).exists():  # the first gets its name last
        return
    for name, number in files.items():
        with contextlib.suppress(OSError):
            if (folder / name).lstat().st_ino == number:
                os.replace(folder / name, staging / name)
    for name in reversed(files):
        with contextlib.suppress(OSError):
            if not os.path.lexists(folder / name):
                os.replace(staging / _PREVIOUS / name, folder / name)


def sweep(place: Path) -> None:
    """Remove what killed runs left: ours by name and user, of this host, whose process is gone.

    A replacement of several files that was cut off is undone first.
    """
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            owner = _OURS.fullmatch(entry.name)
            if owner is None or owner[1] != _host() or entry.is_symlink():
                continue
            is_mine = not hasattr(os, "getuid") or entry.stat(follow_symlinks=False).st_uid == os.getuid()
            if not is_mine or _is_running(int(owner[2]), owner[3]):
                continue
            if entry.is_dir(follow_symlinks=False):
                _undo(Path(entry.path), place)
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def _owner() -> str:
    """The part of a temporary name that says which process made it."""
    return f"{_host()}-{os.getpid()}-{_started(os.getpid())}-"


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
