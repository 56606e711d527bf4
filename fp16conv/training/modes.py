"""What training asks of a module, and leaves as it found it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fp16conv.errors import UsageError

__all__ = ["modes_kept", "require_fp32"]


@contextmanager
def modes_kept(module: torch.nn.Module) -> Iterator[None]:
    """Give every submodule its own mode back: a frozen BatchNorm is in eval mode while all else trains."""
    modes = [(m, m.training) for m in module.modules()]
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training


def require_fp32(module: torch.nn.Module) -> None:
    """The parameters of a module are the master weights: they are FP32.

    Raises:
        UsageError: one is of another floating type.
    """
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point() and parameter.dtype is not torch.float32:
            raise UsageError(
                f"parameter '{name}' is {str(parameter.dtype).removeprefix('torch.')}",
                hint="give the FP32 module (module.float()): its parameters are the master weights",
            )
