"""Reading .npz files that somebody else made: no pickles, no bombs, nothing allocated that is not there."""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any, Final

from numpy.lib import format as npy

from fp16conv.files import is_regular

__all__ = ["read_arrays"]

BOMB_BYTES: Final = 2**28
BOMB_RATIO: Final = 100
"""More bytes than BOMB_BYTES that are more than BOMB_RATIO times their packed size are refused (deflate packs
zeros 1:1000; real data hardly 1:10)."""


def read_arrays(path: Path) -> dict[str, Any]:
    """Read all arrays of an .npz file.

    Args:
        path: the file.

    Returns:
        array by name, in the order of the file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no .npz file, damaged, holds pickled objects, claims more than it has, or unpacks to
            far more than its size.
    """
    if path.exists() and not is_regular(path):
        raise ValueError("it is no regular file")
    with path.open("rb") as file:
        if file.read(6) == npy.MAGIC_PREFIX:
            raise ValueError("it is a single array (.npy)")
        file.seek(0)
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                _refuse_bombs(members)
                arrays = dict(_read(archive, member) for member in members)
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            KeyError,
            NotImplementedError,
            RuntimeError,
        ) as error:
            raise ValueError(str(error)) from None
        except (
            struct.error,
            SyntaxError,
            tokenize.TokenError,
            TypeError,
            MemoryError,
            RecursionError,
        ) as error:
            raise ValueError(f"damaged: {error}") from None
    return arrays


def _refuse_bombs(members: list[zipfile.ZipInfo]) -> None:
    total, packed = sum(m.file_size for m in members), sum(m.compress_size for m in members)
    if total > BOMB_BYTES and total > BOMB_RATIO * packed:
        raise ValueError(f"its {packed} packed bytes claim to hold {total}")


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[str, Any]:
    name = member.filename.removesuffix(".npy")
    with archive.open(member) as file:
        version = npy.read_magic(file)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError(f"'{name}' holds pickled objects, which could run code")
    needed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or needed > member.file_size:
        raise ValueError(f"'{name}' claims {needed} bytes and has {member.file_size}")
    with archive.open(member) as file:
        return name, npy.read_array(file, allow_pickle=False)
