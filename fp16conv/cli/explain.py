"""`fp16conv explain`: why one operator has its precision."""

from __future__ import annotations

from typing import Any

import click

from fp16conv.cli.environment import Environment
from fp16conv.cli.options import api_arguments, decision_flags, format_flag, input_flags, level_flags
from fp16conv.cli.terminal import print_report, show_progress

__all__ = ["command"]


_HELP = """Say why OPERATOR of MODEL runs in FP16 or FP32: every reason, the numbers behind it, the rules with
their sources, and what the plan would be under other options.

\b
Examples:
  fp16conv explain model.onnx /encoder/layer.0/Softmax --data batches/
  fp16conv explain model.onnx node_softmax --format json
  fp16conv explain mynets.vit:build blocks.0.norm/layer_norm

Known limitation: ranges and errors are those of the given inputs, on the first batch.
"""


@click.command("explain", help=_HELP)
@click.argument("model")
@click.argument("operator")
@input_flags
@decision_flags
@format_flag
@level_flags
@click.pass_obj
def command(env: Environment, /, model: str, operator: str, form: str, **flags: Any) -> int:
    """Run the verb."""
    arguments = api_arguments(flags)
    with show_progress(env) as progress:
        report = env.api.explain(model, operator, progress=progress, **arguments)
    print_report(report, form, env)
    return 0
