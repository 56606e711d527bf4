"""What a .pt2 file may hold to be loaded: numbers and a graph, nothing that runs as code.

`torch.export.load` unpickles some members, evaluates symbolic sizes with sympy and looks up operators by
dotted name. All of that is checked first, so that a file can only name ATen and custom operators.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from fp16conv.errors import ModelError, first_line
from fp16conv.frontends.fx.sizes import is_arithmetic

__all__ = ["check_archive"]

EXPORT_HINT: Final = (
    "save the graph instead: torch.export.save(torch.export.export(model.eval(), args), 'model.pt2'), "
    "or name a factory: package.module:function"
)

MAX_UNPACKED: Final = 1 << 28  # bytes an archive may unpack to, however small it is
MAX_RATIO: Final = 100  # and how many times its size

_TARGET: Final = re.compile(r"torch\.ops(\.\w+){2,3}|_operator\.\w+|torch\.sym_\w+|torch\._sym_\w+|math\.\w+")


def check_archive(path: Path) -> None:
    """Check that loading a .pt2 file runs no code from it.

    Args:
        path: the file.

    Raises:
        ModelError: it is no .pt2 archive, or a member could run code.
    """
    where = str(path)
    if path.suffix.lower() != ".pt2":
        raise ModelError(
            f"a {path.suffix} file holds weights or a pickle, not a graph",
            where=where,
            why="unpickling can run any code, so it is not tried",
            hint=EXPORT_HINT,
        )
    if not path.is_file():
        raise ModelError("no such file", where=where, hint="check the path")
    try:
        with zipfile.ZipFile(path) as archive:
            _refuse_bomb(archive, path.stat().st_size, where)
            names = archive.namelist()
            if not any(n.endswith((".json", "/archive_format")) for n in names):
                raise ModelError("is not a torch.export archive", where=where, hint=EXPORT_HINT)
            for name in names:
                _check_member(archive, name, where)
    except zipfile.BadZipFile:
        raise ModelError("is not a .pt2 archive or is truncated", where=where, hint=EXPORT_HINT) from None


def _refuse_bomb(archive: zipfile.ZipFile, size: int, where: str) -> None:
    unpacked = sum(info.file_size for info in archive.infolist())
    if unpacked > max(MAX_UNPACKED, size * MAX_RATIO):
        raise ModelError(f"unpacks to {unpacked} bytes, {unpacked // size} times its size", where=where)


def _read(archive: zipfile.ZipFile, name: str, where: str) -> bytes:
    try:
        return archive.read(name)
    except KeyError:
        raise ModelError(f"names '{name[:200]}', which it does not hold", where=where) from None
    except (OSError, ValueError, RuntimeError, NotImplementedError, EOFError, zlib.error) as error:
        why = str(error)[:200]
        raise ModelError(f"'{name[:200]}' cannot be unpacked", where=where, why=why) from None


def _check_member(archive: zipfile.ZipFile, name: str, where: str) -> None:
    leaf = name.rpartition("/")[2]
    if "/aotinductor/" in name:
        raise _refusal(name, where, "it holds compiled code")
    if leaf.startswith(("custom_obj", "opaque_obj")):
        raise _refusal(name, where, "it holds a pickled object")
    if leaf.endswith(".pt"):
        _check_pickle(_read(archive, name, where), name, where)
    elif leaf.endswith(".json"):
        try:
            content = json.loads(_read(archive, name, where))
            texts = list(_entries(content))
        except (ValueError, RecursionError):
            raise ModelError(f"'{name}' is not JSON", where=where, hint="export the model again") from None
        for key, text in texts:
            _check_entry(archive, name, key, text, where)


def _check_entry(archive: zipfile.ZipFile, name: str, key: str, value: Any, where: str) -> None:
    if key == "target" and isinstance(value, str) and "nodes" not in value:
        if value.startswith(("torch", "_operator", "math", "#")) and not _TARGET.fullmatch(value):
            raise _refusal(name, where, f"it calls '{value}', which is no operator")
    elif key == "expr_str" and isinstance(value, str):
        if not is_arithmetic(value):
            raise _refusal(name, where, f"it has the size '{value[:60]}', which is no arithmetic")
    elif key == "use_pickle" and isinstance(value, str):  # the path of a pickled member
        folder = name.rpartition("/")[0]
        _check_pickle(_read(archive, f"{folder}/{value}", where), value, where)


def _entries(content: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(content, dict):
        if content.get("use_pickle") and "path_name" in content:
            yield "use_pickle", str(content["path_name"])
        for key, value in content.items():
            if key in ("target", "expr_str"):
                yield key, value
            yield from _entries(value)
    elif isinstance(content, list):
        for item in content:
            yield from _entries(item)


def _check_pickle(content: bytes, name: str, where: str) -> None:
    if not content:
        return
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except pickle.UnpicklingError as error:
        raise _refusal(name, where, f"it unpickles more than tensors ({first_line(error)[:120]})") from None
    except Exception as error:  # a mutated pickle meets any: its opcodes are looked up, popped and indexed
        raise ModelError(f"'{name}' cannot be read", where=where, why=first_line(error)[:200]) from None


def _refusal(name: str, where: str, why: str) -> ModelError:
    return ModelError(f"refused to load '{name}'", where=where, why=why, hint=EXPORT_HINT)
