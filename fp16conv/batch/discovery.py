"""Which models an audit looks at: files, folders, and lists of files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from fp16conv.errors import UsageError
from fp16conv.frontends.sources import is_torch_source

__all__ = ["ENDINGS", "find_models"]

ENDINGS = (".onnx", ".pt2")
"""What a folder is searched for. A file that is named itself may have any ending."""


def find_models(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """List models in a stable order, each once.

    Args:
        paths: model files; folders, searched for `ENDINGS` at any depth (hidden folders and links to folders
            are left out); `.txt` files with one path per line, relative to the list, `#` starts a comment.

    Returns:
        Paths as given, or below the folder as given. A path on a list need not exist: a registry's list can
        be older than the registry, and that is a result, not a reason to look at nothing.

    Raises:
        UsageError: a path does not exist, a list cannot be read, or there is no model at all.
    """
    found: dict[str, str] = {}
    given = [os.fspath(path) for path in paths]
    for path in given:
        for model in _expand(path):
            found.setdefault(os.path.realpath(model), model)
    if not found:
        raise UsageError(
            "no models to look at",
            where=", ".join(given),
            hint=f"folders are searched for {' and '.join(ENDINGS)} files",
        )
    return list(found.values())


def _expand(path: str) -> Iterator[str]:
    if os.path.isdir(path):
        yield from _walk(path)
    elif not os.path.lexists(path):
        hint = (
            "save the program as .pt2 with torch.export.save" if is_torch_source(path) else "check the path"
        )
        raise UsageError("no such file or folder", where=path, hint=hint)
    elif path.endswith(".txt"):
        yield from _read_list(Path(path))
    else:
        yield path


def _walk(folder: str) -> Iterator[str]:
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(root, name) for name in sorted(files) if name.endswith(ENDINGS))


def _read_list(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("the list of models cannot be read", where=str(path), why=str(error)) from error
    lines = (line.strip() for line in text.splitlines())
    yield from (os.path.join(path.parent, line) for line in lines if line and not line.startswith("#"))
