"""`fp16conv train-audit`: what FP16 would do to the gradients of a training."""

from __future__ import annotations

import importlib
import json

import click

from fp16conv.cli.options import level_flags
from fp16conv.cli.params import Choice, Tolerance
from fp16conv.cli.terminal import print_text
from fp16conv.errors import UsageError

__all__ = ["command"]


_HELP = """Run SOURCE (package.module:factory) forward and backward in FP32 and look at it with FP16's eyes.

The factory returns (module, loss, batches): loss takes the module's output and a target, batches are
(inputs, target) pairs. Reported are the gradients that vanish in FP16 without a loss scale, the power of
two that rescues them without overflow, the updates that FP16 weights would lose, the activations that
overflow, and what CUDA autocast keeps in FP32. No weight is changed.

\b
Examples:
  fp16conv train-audit mynets.train:setup
  fp16conv train-audit mynets.train:setup --learning-rate 0.1 --format json

\b
Known limitations: needs the extra (pip install 'fp16conv[torch]'). Updates are
those of SGD; adaptive optimizers make larger ones.
"""


@click.command("train-audit", help=_HELP)
@click.argument("source")
@click.option(
    "--learning-rate",
    type=Tolerance(),
    default=1e-3,
    show_default=True,
    help="The one that lost updates are judged with.",
)
@click.option(
    "--format",
    "form",
    type=Choice("text", "json"),
    default="text",
    show_default=True,
    help="Form of the report on stdout.",
)
@level_flags
def command(source: str, learning_rate: float, form: str) -> int:
    """Run the verb."""
    try:
        sources = importlib.import_module("fp16conv.training.sources")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(
            "PyTorch sources need torch, which is not installed", hint="pip install 'fp16conv[torch]'"
        ) from None
    report = sources.audit_source(source, learning_rate=learning_rate)
    if form == "json":
        print_text(json.dumps(report.to_dict(), indent=2))
    else:
        print_text(report.describe())
    return 0
