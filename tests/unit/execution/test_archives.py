"""npz files that lie: refused before memory is taken, with the reason."""

from __future__ import annotations

import io
import os
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fp16conv.execution.archives import read_arrays


def _npy(array: np.ndarray, *, allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def _zip(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def test_plain_arrays_come_back(tmp_path: Path) -> None:
    given = {"a": np.arange(6.0).reshape(2, 3), "s": np.array(["x", "yz"]), "e": np.zeros((0, 4), np.int8)}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "f.npz", **given)
        found = read_arrays(tmp_path / "f.npz")
        assert list(found) == list(given)
        assert all(np.array_equal(found[k], given[k]) and found[k].dtype == given[k].dtype for k in given)


def _pickle(folder: Path) -> Path:
    return _zip(folder / "f.npz", x=_npy(np.array([{"a": 1}], object), allow_pickle=True))


def _claim(folder: Path) -> Path:
    content = _npy(np.zeros((1000, 10), np.float32)).replace(b"(1000, 10)", b"(10**9,10)"[:10])
    return _zip(folder / "f.npz", x=content.replace(b"(10**9,10)", b"(9**9, 10)"))


def _gigantic(folder: Path) -> Path:
    content = _npy(np.zeros((1000, 1000), np.int8))
    return _zip(folder / "f.npz", x=content.replace(b"(1000, 1000)", b"(9999999999,"[:10] + b",)"))


def _bomb(folder: Path) -> Path:
    header = {"descr": "|i1", "fortran_order": False, "shape": (2**28 + 1,)}
    with (
        zipfile.ZipFile(folder / "f.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(256):
            file.write(bytes(2**20))
        file.write(b"\0")
    return folder / "f.npz"


def _damaged(folder: Path) -> Path:
    path = _zip(folder / "f.npz", x=_npy(np.arange(5000)))
    content = bytearray(path.read_bytes())
    content[60:90] = bytes(30)
    path.write_bytes(content)
    return path


def _header(folder: Path) -> Path:
    return _zip(folder / "f.npz", x=b"\x93NUMPY\x01\x00\x76\x00" + b"[" * 118)


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "f.npz")
    return folder / "f.npz"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_pickle, "pickled objects"),
        (_claim, "damaged|malformed|parse"),
        (_gigantic, "claims 999999999 bytes"),
        (_bomb, "packed bytes claim to hold"),
        (_damaged, "."),
        (_header, "."),
        (_fifo, "no regular file"),
    ],
)
def test_what_is_refused(tmp_path: Path, make, reason: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=reason):
        read_arrays(make(tmp_path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB
