"""Tells a PyTorch source from an ONNX file, without importing torch."""

from __future__ import annotations

import os
import re
from pathlib import PurePath
from typing import Final

__all__ = ["FACTORY", "TORCH_SUFFIXES", "is_torch_source"]

TORCH_SUFFIXES: Final = frozenset({".pt2", ".pt", ".pth", ".ckpt", ".bin", ".pkl", ".safetensors"})
"""Files that people have of PyTorch models. Only .pt2 holds a graph; the others are refused with a hint."""

FACTORY: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


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
    return bool(kinds & {"torch.nn.modules.module.Module", "torch.export.exported_program.ExportedProgram"})
