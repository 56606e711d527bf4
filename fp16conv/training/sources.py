"""`package.module:factory` for training: a module, its loss and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from fp16conv.errors import UsageError
from fp16conv.frontends.fx.sources import call_factory
from fp16conv.frontends.sources import FACTORY
from fp16conv.training.audit import TrainAudit, audit

__all__ = ["audit_source", "load_training"]

Training = tuple[torch.nn.Module, Callable[[Any, Any], torch.Tensor], Iterable[tuple[Any, Any]]]


def load_training(source: str) -> Training:
    """Call a factory that returns (module, loss, batches).

    Args:
        source: `package.module:factory`, importable from here.

    Returns:
        The module, the loss of (output, target), and the (inputs, target) pairs.

    Raises:
        UsageError: it cannot be imported, or returns something else.
        ModelError: the factory fails.
    """
    hint = "a callable that returns (module, loss, batches); batches are (inputs, target) pairs"
    if FACTORY.fullmatch(source) is None:
        raise UsageError(f"'{source}' is not package.module:factory", hint=hint)
    made = call_factory(source)
    if not (isinstance(made, tuple) and len(made) == 3):
        raise UsageError(f"'{source}' returns {type(made).__name__}", hint=hint)
    module, loss, batches = made
    if not isinstance(module, torch.nn.Module) or not callable(loss):
        raise UsageError(f"'{source}' returns no module and loss", hint=hint)
    return module, loss, batches


def audit_source(source: str, *, learning_rate: float = 1e-3) -> TrainAudit:
    """Audit what a factory gives; see `audit` and `load_training`."""
    module, loss, batches = load_training(source)
    return audit(module, loss, batches, learning_rate=learning_rate)
