"""`fp16conv diff`: what differs between two plans or two models."""

from __future__ import annotations

import click

from fp16conv.cli.environment import Environment
from fp16conv.cli.options import format_flag, level_flags
from fp16conv.cli.terminal import print_report

__all__ = ["command"]


_HELP = """Compare two plans (.json) or two models (ONNX or PyTorch): what changed in precision and casts.

\b
Examples:
  fp16conv diff plan.json edited.json
  fp16conv diff model.onnx model.fp16.onnx
  fp16conv diff mynets.vit:build vit.fp16.pt2
  fp16conv diff --exit-code released.fp16.onnx model.fp16.onnx

Operators are matched by name. Known limitation: an operator without a name that moved counts as changed.
"""


@click.command("diff", help=_HELP)
@click.argument("first")
@click.argument("second")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if there is a difference.")
@format_flag
@level_flags
@click.pass_obj
def command(env: Environment, /, first: str, second: str, form: str, exit_code: bool) -> int:
    """Run the verb."""
    report = env.api.diff(first, second)
    print_report(report, form, env)
    return 1 if exit_code and report.differs else 0
