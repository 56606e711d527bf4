"""`fp16conv tune`: the fastest plan that meets an accuracy target."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

import click

from fp16conv.cli.delivery import Delivery, report_flags
from fp16conv.cli.environment import Environment
from fp16conv.cli.options import (
    api_arguments,
    decision_flags,
    input_flags,
    level_flags,
    refuse_overwrite,
)
from fp16conv.cli.params import Choice, Tolerance
from fp16conv.cli.terminal import show_progress

__all__ = ["command"]


_HELP = """Find the fastest plan for MODEL whose error meets --tolerance on all batches, and convert by it.

Measures how much error each rounding adds, prices it in the plan, and bisects the price on the measured
error. Rules are relaxed where your data shows that they cost more than they save, and operators go to FP32
where they must. If no plan meets the tolerance, the report says how near it gets, nothing is written and
the exit code is 1.

\b
Examples:
  fp16conv tune model.onnx -o model.fp16.onnx --data batches/ --tolerance 0.003
  fp16conv tune model.onnx --data batches/ --tolerance 0.01 --format json
  fp16conv tune mynets.vit:build -o vit.fp16.pt2 --data batches/ --tolerance 0.003

\b
Known limitations: FP16 is emulated (every FP16 tensor is rounded; sums
inside one operator stay FP32; plans of PyTorch programs run on its half
kernels instead) and time is predicted, not measured.
Made-up inputs (no --data) relax no rule.
"""


class _Seconds(Tolerance):
    name = "SECONDS"


@click.command("tune", help=_HELP)
@click.argument("model")
@click.option("-o", "--output", metavar="OUT.onnx|OUT.pt2", help="Where to write; without it only a report.")
@click.option("--tolerance", required=True, type=Tolerance(), help="Largest relative L2 error of an output.")
@click.option(
    "--atol",
    type=Tolerance(),
    help="Root mean square error allowed on top.  [default: tolerance / 1000]",
)
@click.option("--budget", type=_Seconds(), help="Stop after this time with the best plan so far.")
@click.option(
    "--cache",
    metavar="DIR",
    help="Where measurements are kept, so that a search can go on.  [default: the user's cache folder]",
)
@click.option("--no-cache", is_flag=True, help="Keep no measurements.")
@input_flags
@decision_flags
@click.option(
    "--allow-integer-changes", is_flag=True, help="Integer outputs may differ (an arg max of near ties)."
)
@click.option(
    "--provider",
    type=Choice("auto", "emulated", "cuda"),
    default="auto",
    show_default=True,
    help="What computes the FP16 model in the final comparison.",
)
@report_flags
@level_flags
@click.pass_obj
def command(
    env: Environment,
    /,
    model: str,
    output: str | None,
    tolerance: float,
    budget: float | None,
    cache: str | None,
    no_cache: bool,
    **flags: Any,
) -> int:
    """Run the verb."""
    if no_cache and cache is not None:
        raise click.UsageError("--cache and --no-cache exclude each other.")
    if output is not None:
        refuse_overwrite(output, [model, *flags["data"], *flags["rules"]])
    files = {"model": model, "output": output or (), "data": flags["data"], "rules": flags["rules"]}
    delivery = Delivery.take(flags, files)
    arguments = (
        api_arguments(flags) | delivery.details(env) | {"tolerance": tolerance, "budget_seconds": budget}
    )
    arguments["cache"] = None if no_cache else cache or env.api.default_cache()
    with show_progress(env) as progress:
        report = env.api.tune(model, output, progress=progress, **arguments)
    if report.output is not None and output is not None:
        following = shlex.join(["fp16conv", "validate", model, output, "--data", "TEST.npz"])
        report = dataclasses.replace(report, next_command=following)
    delivery.send(report, env)
    return delivery.exit_code(report)
