"""Tells a PyTorch source from an ONNX file, without importing torch."""

from __future__ import annotations

import os
import re
from pathlib import PurePath
from typing import Final

from fp16conv.errors import UsageError

__all__ = [
    "FACTORY",
    "TORCH_SUFFIXES",
    "are_torch_sources",
    "hint_at_source",
    "is_torch_source",
    "name_source",
]

TORCH_SUFFIXES: Final = frozenset({".pt2", ".pt", ".pth", ".ckpt", ".bin", ".pkl", ".safetensors"})
"""Files that people have of PyTorch models. Only .pt2 holds a graph; the others are refused with a hint."""

FACTORY: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


_PYTHON_FILE: Final = re.compile(r"(?P<module>[A-Za-z_]\w*)\.py(:(?P<factory>[A-Za-z_][\w.]*))?$")
_MODULE: Final = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)(?P<factory>)")
_KINDS: Final = frozenset(
    {
        "torch.nn.modules.module.Module",
        "torch.export.exported_program.ExportedProgram",
        "fp16conv.frontends.fx.program.LoadedProgram",
    }
)


def is_torch_source(model: object) -> bool:
    """Whether a source is PyTorch's: a .pt2 file, `package.module:factory`, or an object of torch.

    Args:
        model: a path, or a model in memory.

    Example:
        >>> [is_torch_source(s) for s in ("net.pt2", "mynets.vit:build", "net.onnx", "C:/net.onnx")]
        [True, True, False, False]
    """
    if isinstance(model, str | os.PathLike):
        text = os.fspath(model)
        if PurePath(text).suffix.lower() in TORCH_SUFFIXES:
            return True
        return FACTORY.fullmatch(text) is not None and not os.path.exists(text)
    kinds = {f"{c.__module__}.{c.__qualname__}" for c in type(model).__mro__}
    return bool(kinds & _KINDS)


def hint_at_source(path: str) -> str:
    """What to type for a path that may stand for PyTorch code; "" for any other.

    Example:
        >>> hint_at_source("src/mynets.py:build")
        'name PyTorch code as package.module:factory, importable from here: mynets:build'
        >>> hint_at_source("mynets.vit")
        'name PyTorch code as package.module:factory, importable from here: mynets.vit:build'
        >>> hint_at_source("model.onnx"), hint_at_source("models/net")
        ('', '')
    """
    name = _PYTHON_FILE.search(path) or _MODULE.fullmatch(path)
    if name is None or PurePath(path).suffix.lower() in (*TORCH_SUFFIXES, ".onnx"):
        return ""
    factory = f"{name['module']}:{name['factory'] or 'build'}"
    return f"name PyTorch code as package.module:factory, importable from here: {factory}"


def are_torch_sources(first: object, second: object) -> bool:
    """Whether two models to compare are both PyTorch's.

    Raises:
        UsageError: only one of them is.
    """
    kinds = is_torch_source(first), is_torch_source(second)
    if kinds[0] != kinds[1]:
        ours, other = map(name_source, (first, second) if kinds[0] else (second, first))
        raise UsageError(
            f"'{ours}' is a PyTorch program and '{other}' is not",
            hint=f"compare two of one kind: 'fp16conv export {ours} -o OUT.onnx' writes an .onnx file",
        )
    return all(kinds)


def name_source(model: object) -> str:
    """A source in a message: a path as it is, an object by its class.

    Example:
        >>> name_source("net.pt2"), name_source([])
        ('net.pt2', 'list')
    """
    return os.fspath(model) if isinstance(model, str | os.PathLike) else type(model).__name__
