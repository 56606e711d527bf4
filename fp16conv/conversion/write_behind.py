"""A file that is written while what comes next is still computed."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

__all__ = ["WriteBehind"]

_WAITING: Final = 4  # pieces that may wait to be written
_SYNCED: Final = 1 << 26  # bytes from which on the disk begins to store them


class WriteBehind:
    """A new file that a thread writes and another one brings to the disk, while the caller goes on.

    When the context ends without an error, all of it is on the disk.

    Args:
        path: where; nothing may be there.

    Attributes:
        size: bytes taken so far.

    Raises:
        OSError: from any call where an earlier piece could not be written, at the latest at the end.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with WriteBehind(Path(folder, "weights")) as file:
        ...         file.write(b"1234")
        ...         file.write(b"56")
        ...     Path(folder, "weights").read_bytes(), file.size
        (b'123456', 6)
    """

    def __init__(self, path: Path) -> None:
        self.size = 0
        self._resources = contextlib.ExitStack()
        self._file = self._resources.enter_context(path.open("xb", buffering=0))
        self._writer = self._resources.enter_context(ThreadPoolExecutor(1))
        self._syncer = self._resources.enter_context(ThreadPoolExecutor(1))
        self._writing: deque[Future[None]] = deque()
        self._syncing: deque[Future[None]] = deque()
        self._unsynced = 0

    def write(self, piece: bytes | memoryview) -> None:
        """Take a piece, contiguous and never changed again."""
        if len(self._writing) == _WAITING:
            self._writing.popleft().result()
        self._writing.append(self._writer.submit(self._write_whole, memoryview(piece)))
        self.size += len(piece)

    def _write_whole(self, piece: memoryview) -> None:
        self._unsynced += len(piece)
        while piece:
            piece = piece[self._file.write(piece) :]
        if self._unsynced >= _SYNCED and all(sync.done() for sync in self._syncing):
            self._unsynced = 0
            self._syncing.append(self._syncer.submit(os.fsync, self._file.fileno()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        with self._resources:
            if kind is None:
                for write in self._writing:
                    write.result()
                os.fsync(self._file.fileno())
                for sync in self._syncing:
                    sync.result()
