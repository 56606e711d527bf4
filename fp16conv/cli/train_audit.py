"""`fp16conv train-audit`: what FP16 would do to the gradients of a training."""

from __future__ import annotations

import importlib
from typing import Any

import click

from fp16conv.cli.delivery import Delivery, report_flags
from fp16conv.cli.environment import Environment
from fp16conv.cli.options import level_flags
from fp16conv.cli.params import Tolerance
from fp16conv.errors import UsageError

__all__ = ["command"]


_HELP = """Run SOURCE (package.module:factory) forward and backward in FP32 and look at it with FP16's eyes.

The factory returns (module, loss, batches) or (module, loss, batches, optimizer): loss takes the module's
output and a target, batches are (inputs, target) pairs; several inputs are a tuple, or a dict by argument.
Reported are the gradients that vanish in FP16 without a loss scale, the power of two that rescues them
without overflow, the updates that FP16 weights would lose, the activations that overflow, and what CUDA
autocast keeps in FP32. No weight is changed: all batches see the same.

\b
Examples:
  fp16conv train-audit mynets.train:setup
  fp16conv train-audit mynets.train:setup --batches 64
  fp16conv train-audit mynets.train:setup --learning-rate 0.1 --report gradients.html

\b
Known limitations: needs the extra (pip install 'fp16conv[torch]'). Gradients
are not clipped, nor added up over batches. What happens inside of one call of
PyTorch (an LSTM, nn.MultiheadAttention) is not seen.
"""


@click.command("train-audit", help=_HELP)
@click.argument("source")
@click.option(
    "--learning-rate",
    type=Tolerance(),
    help="Of the SGD that lost updates are judged with, 0.001 by default; a factory's optimizer has its own.",
)
@click.option(
    "--batches",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Look at so many batches at most.",
)
@report_flags
@level_flags
@click.pass_obj
def command(env: Environment, /, source: str, learning_rate: float | None, batches: int, **flags: Any) -> int:
    """Run the verb."""
    delivery = Delivery.take(flags, {})
    try:
        sources = importlib.import_module("fp16conv.training.sources")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(
            "PyTorch sources need torch, which is not installed", hint="pip install 'fp16conv[torch]'"
        ) from None
    import fp16conv
    from fp16conv.reporting.gradients import summarize_training

    audit = sources.audit_source(source, learning_rate=learning_rate, limit=batches)
    report = summarize_training(audit, source, fp16conv.__version__)
    delivery.send(report, env)
    return delivery.exit_code(report)
