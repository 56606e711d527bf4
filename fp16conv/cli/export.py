"""`fp16conv export`: a PyTorch program to an .onnx file, and an audit of what came out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from fp16conv.cli.delivery import Delivery, report_flags
from fp16conv.cli.environment import Environment
from fp16conv.cli.options import (
    api_arguments,
    decision_flags,
    input_flags,
    level_flags,
    rebuild_command,
    refuse_overwrite,
)
from fp16conv.cli.terminal import show_progress

__all__ = ["command"]


_HELP = """Export SOURCE (a .pt2 file or package.module:factory) to OUT.onnx in FP32, and audit the result.

Dynamic shapes stay dynamic. Nodes are named after the PyTorch module they come from
(layers.0.attn/linear_3) and carry its source line as metadata, so that findings lead back to the code.

\b
Examples:
  fp16conv export net.pt2 -o net.onnx
  fp16conv export mynets.vit:build -o vit.onnx --data batches/
  fp16conv convert vit.onnx -o vit.fp16.onnx --data batches/

\b
Weights of more than 2 GB go to OUT.data beside the model.

Known limitation: needs the extra (pip install 'fp16conv[torch]').
"""


@click.command("export", help=_HELP)
@click.argument("source")
@click.option("-o", "--output", required=True, metavar="OUT.onnx", help="Where to write; never the input.")
@click.option("--opset", type=click.IntRange(min=18), help="ONNX opset.  [default: the exporter's]")
@input_flags
@decision_flags
@report_flags
@level_flags
@click.pass_obj
def command(env: Environment, /, source: str, output: str, opset: int | None, **flags: Any) -> int:
    """Run the verb."""
    busy = {"source": source, "output": output, "data": flags["data"], "rules": flags["rules"]}
    delivery = Delivery.take(flags, busy)
    refuse_overwrite(output, [source, *flags["data"], *flags["rules"]])
    arguments = api_arguments(flags) | delivery.details(env)
    with show_progress(env) as progress:
        report = env.api.export(source, output, opset=opset, progress=progress, **arguments)
    if not report.next_command and report.ok:
        target = str(Path(output).with_suffix(".fp16.onnx"))
        handed_on = {key: value for key, value in flags.items() if key != "memory_limit"}
        report = dataclasses.replace(
            report, next_command=rebuild_command("convert", [output, "-o", target], handed_on)
        )
    delivery.send(report, env)
    return delivery.exit_code(report)
