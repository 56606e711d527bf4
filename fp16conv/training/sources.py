"""`package.module:factory` for training: a module, its loss, batches, and an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from fp16conv.errors import UsageError
from fp16conv.frontends.fx.sources import call_factory
from fp16conv.frontends.sources import FACTORY
from fp16conv.training.audit import TrainAudit, audit

__all__ = ["Training", "audit_source", "load_training"]

_HINT = "a callable that returns (module, loss, batches) or (module, loss, batches, optimizer)"


@dataclass(frozen=True)
class Training:
    """What a factory gives.

    Args:
        module: FP32 module.
        loss: (output of the module, target) -> scalar.
        batches: (inputs, target) pairs.
        optimizer: over parameters of the module; None where the factory gives none.
    """

    module: torch.nn.Module
    loss: Callable[[Any, Any], torch.Tensor]
    batches: Iterable[tuple[Any, Any]]
    optimizer: torch.optim.Optimizer | None = None


def load_training(source: str) -> Training:
    """Call a factory that returns a module, a loss, batches, and perhaps an optimizer.

    Args:
        source: `package.module:factory`, importable from here.

    Raises:
        UsageError: it cannot be imported, or returns something else.
        ModelError: the factory fails.
    """
    if FACTORY.fullmatch(source) is None:
        raise UsageError(f"'{source}' is not package.module:factory", hint=_HINT)
    made = call_factory(source)
    if not isinstance(made, tuple) or len(made) not in (3, 4):
        size = f" of {len(made)}" if isinstance(made, tuple) else ""
        raise UsageError(f"'{source}' returns a {type(made).__name__}{size}", hint=_HINT)
    wanted = {
        "module": (torch.nn.Module, "a torch.nn.Module"),
        "loss": (Callable, "a function of (output, target)"),
        "batches": (Iterable, "an iterable of (inputs, target) pairs"),
        "optimizer": (torch.optim.Optimizer, "a torch.optim.Optimizer"),
    }
    for thing, (name, (kind, words)) in zip(made, wanted.items(), strict=False):
        if not isinstance(thing, kind):
            raise UsageError(
                f"'{source}' returns a {type(thing).__name__} as {name}", why=f"it is {words}", hint=_HINT
            )
    return Training(*made)


def audit_source(source: str, *, learning_rate: float | None = None, limit: int | None = None) -> TrainAudit:
    """Audit what a factory gives; see `audit` and `load_training`.

    Args:
        source: `package.module:factory`.
        learning_rate: of SGD; 0.001 by default. The factory's own optimizer has its own.
        limit: look at so many batches only.

    Raises:
        UsageError: a learning rate beside an optimizer; see `load_training`, `audit`.
    """
    made = load_training(source)
    if made.optimizer is not None and learning_rate is not None:
        raise UsageError(
            f"'{source}' returns an optimizer, which has its own learning rate",
            hint="leave --learning-rate out, or return (module, loss, batches)",
        )
    rate = 1e-3 if learning_rate is None else learning_rate
    return audit(
        made.module, made.loss, made.batches, optimizer=made.optimizer, learning_rate=rate, limit=limit
    )
