"""`fp16conv validate`: compare two models."""

from __future__ import annotations

from typing import Any

import click

from fp16conv.cli.delivery import Delivery, report_flags
from fp16conv.cli.environment import Environment
from fp16conv.cli.options import api_arguments, input_flags, level_flags, tolerance_flags
from fp16conv.cli.terminal import show_progress
from fp16conv.execution.launch import launch_ahead
from fp16conv.frontends.sources import are_torch_sources

__all__ = ["command"]


_HELP = """Run REFERENCE in FP32 and CANDIDATE in honest FP16 on the same inputs and compare the outputs.

An output passes if ||d||2 <= rtol * ||reference||2 + atol * sqrt(n), with no new NaN or infinity and
integers unchanged. Exits with 1 if one does not pass, with 5 if the comparison could not run.

\b
Examples:
  fp16conv validate model.onnx model.fp16.onnx --data batches/
  fp16conv validate model.onnx model.fp16.onnx --data test.npz --labels labels
  fp16conv validate model.onnx model.fp16.onnx --data batches/ --per-op
  fp16conv validate model.onnx model.fp16.onnx --provider cuda --rtol 0.005
  fp16conv validate mynets.vit:build vit.fp16.pt2 --data test.npz

\b
Known limitations: without CUDA the FP16 run is emulated: every FP16 tensor is
rounded, sums inside one operator stay FP32. Synthetic inputs prove little.
"""


@click.command("validate", help=_HELP)
@click.argument("reference")
@click.argument("candidate")
@input_flags
@tolerance_flags
@click.option("--per-op", is_flag=True, help="Rank the operators by the error that they cause.")
@report_flags
@level_flags
@click.pass_obj
def command(env: Environment, /, reference: str, candidate: str, **flags: Any) -> int:
    """Run the verb."""
    files = {"reference": reference, "candidate": candidate, "data": flags["data"]}
    delivery = Delivery.take(flags, files)
    arguments = api_arguments(flags) | delivery.details(env)
    if env.functions is None and not are_torch_sources(reference, candidate):
        launch_ahead(2)  # one per model; they load the runtime while this process loads the verb's modules
    with show_progress(env) as progress:
        report = env.api.validate(reference, candidate, progress=progress, **arguments)
    delivery.send(report, env)
    return delivery.exit_code(report)
