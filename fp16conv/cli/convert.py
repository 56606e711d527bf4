"""`fp16conv convert`: the whole way from an FP32 file to a proven FP16 file."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
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
    tolerance_flags,
)
from fp16conv.cli.terminal import show_progress

__all__ = ["command"]

# The flags that make the plan what it is, for a plan to edit after a miss.
_OF_A_PLAN = (
    *("data", "shape", "input_range", "seed", "profile", "target", "device"),
    *("keep_fp32", "force_fp16", "rules", "repair", "keep_io_types"),
)


_HELP = """Convert MODEL: decide, insert the casts, verify, compare with FP32, save.

The output passes the checker, strict type inference, a load in ONNX Runtime and a comparison under
honest FP16 before it gets its name. If it misses the tolerance, the operators that add most of the error
go back to FP32; if that does not help, nothing is written and the exit code is 1. A PyTorch program
becomes a .pt2 file in the same way: its types are checked, and PyTorch's own half kernels run it.

\b
Examples:
  fp16conv convert model.onnx -o model.fp16.onnx --data batches/
  fp16conv convert model.onnx -o out.onnx --keep-fp32 '/decoder/*' --tolerance 0.005
  fp16conv convert model.onnx -o out.onnx --plan plan.json
  fp16conv convert digits.onnx -o out.onnx --data digits.npz --labels labels
  fp16conv convert mynets.vit:build -o vit.fp16.pt2 --data batches/

\b
Known limitations: without CUDA the FP16 run is emulated (every FP16 tensor
is rounded; sums inside one operator stay FP32). Without --data the inputs
are synthetic.
"""


@click.command("convert", help=_HELP)
@click.argument("model")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="OUT.onnx|OUT.pt2",
    help="Where to write; never the input.",
)
@click.option("--plan", metavar="PLAN.json", help="Apply this plan instead of making one.")
@input_flags
@decision_flags
@tolerance_flags
@click.option(
    "--allow-out-of-tolerance", is_flag=True, help="Write the file even if it misses the tolerance."
)
@click.option("--no-repair", is_flag=True, help="Do not move operators back to FP32 to meet the tolerance.")
@click.option(
    "--no-validate",
    is_flag=True,
    help="Skip the comparison with the FP32 model, and so loading the result in ONNX Runtime.",
)
@report_flags
@level_flags
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: str,
    output: str,
    no_repair: bool,
    no_validate: bool,
    **flags: Any,
) -> int:
    """Run the verb."""
    env = ctx.find_object(Environment)
    assert env is not None
    plan = flags["plan"]
    if plan is not None:
        _refuse_decisions(ctx)
    refuse_overwrite(output, [model, *flags["data"], *flags["rules"], *([plan] if plan else [])])
    files = {
        "model": model,
        "output": output,
        "data": flags["data"],
        "rules": flags["rules"],
        "plan": plan or (),
    }
    delivery = Delivery.take(flags, files)
    arguments = (
        api_arguments(flags) | delivery.details(env) | {"repair": not no_repair, "validate": not no_validate}
    )
    with show_progress(env) as progress:
        report = env.api.convert(model, output, progress=progress, **arguments)
    if not report.next_command:
        report = dataclasses.replace(
            report, next_command=_next_command(report.output is not None, model, output, flags)
        )
    delivery.send(report, env)
    return delivery.exit_code(report)


def _next_command(written: bool, model: str, output: str, flags: Mapping[str, Any]) -> str:
    """After success: a test on data the decisions have not seen. After a miss: a plan to edit."""
    if written:
        return shlex.join(["fp16conv", "validate", model, output, "--data", "TEST.npz"])
    return rebuild_command("plan", [model, "-o", "plan.json"], {key: flags[key] for key in _OF_A_PLAN})


def _refuse_decisions(ctx: click.Context) -> None:
    """A plan holds all decisions: flags that would change them are a contradiction, not a preference."""
    for name in ("profile", "target", "keep_fp32", "force_fp16", "rules", "repair", "keep_io_types"):
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag} has no effect beside --plan: change it in the plan.", ctx)
