"""Writing behind the caller's back: nothing is lost, nothing is out of order, no failure is swallowed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from fp16conv.conversion import write_behind
from fp16conv.conversion.write_behind import WriteBehind

PIECES = [bytes([i]) * (1000 * i + 1) for i in range(50)]


def _write(path: Path, pieces: Iterable[bytes]) -> int:
    with WriteBehind(path) as file:
        for piece in pieces:
            file.write(piece)
    return file.size


def test_pieces_arrive_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "_SYNCED", 5000)
    assert _write(tmp_path / "file", PIECES) == (tmp_path / "file").stat().st_size
    assert (tmp_path / "file").read_bytes() == b"".join(PIECES)


@pytest.mark.parametrize("count", [1, 20], ids=["found at the end", "found by a later piece"])
def test_a_piece_that_is_not_written_is_an_error(tmp_path: Path, small_files: int, count: int) -> None:
    with pytest.raises(OSError, match="too large"):
        _write(tmp_path / "file", [bytes(small_files + 1)] * count)


def test_what_does_not_reach_the_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "_SYNCED", 1)
    failures = [OSError(errno.EIO, "the disk is broken")]

    def sync(handle: int) -> None:
        if failures:
            raise failures.pop()

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(OSError, match="the disk is broken"):
        _write(tmp_path / "file", [b"1234"])


def test_an_error_of_the_caller_stays_the_error(tmp_path: Path, small_files: int) -> None:
    def pieces() -> Iterator[bytes]:
        yield bytes(small_files + 1)
        raise ValueError("the caller's")

    with pytest.raises(ValueError, match="the caller's"):
        _write(tmp_path / "file", pieces())
