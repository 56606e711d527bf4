"""`fp16conv plan`: the decisions as a file."""

from __future__ import annotations

from typing import Any

import click

import fp16conv
from fp16conv.cli.environment import Environment
from fp16conv.cli.options import (
    api_arguments,
    decision_flags,
    format_flag,
    input_flags,
    level_flags,
    rebuild_command,
    refuse_overwrite,
)
from fp16conv.cli.terminal import print_report, print_text, show_progress
from fp16conv.frontends.sources import is_torch_source

__all__ = ["command"]


_HELP = """Decide what runs in FP16 in MODEL and write the plan: decisions with reasons, casts, options.

Edit it and hand it to `fp16conv convert --plan`. Without -o the plan goes to stdout; with -o stdout
carries a summary in the form of --format.

\b
Examples:
  fp16conv plan model.onnx -o plan.json
  fp16conv plan model.onnx --keep-fp32 'type:Softmax' --keep-fp32 '/head/*' > plan.json
  fp16conv convert model.onnx -o model.fp16.onnx --plan plan.json

Known limitation: a plan belongs to the exact model it was made for.
"""


@click.command("plan", help=_HELP)
@click.argument("model")
@click.option("-o", "--output", metavar="PLAN.json", help="Where to write the plan; stdout if not given.")
@input_flags
@decision_flags
@format_flag
@level_flags
@click.pass_obj
def command(env: Environment, /, model: str, output: str | None, form: str, **flags: Any) -> int:
    """Run the verb."""
    arguments = api_arguments(flags)
    from fp16conv.planning.devices import load_device
    from fp16conv.planning.serialize import dump_plan, save_plan
    from fp16conv.reporting.report import PlanReport
    from fp16conv.reporting.summary import read_prediction, summarize_decisions

    if output is not None:
        refuse_overwrite(output, [model, *flags["data"], *flags["rules"]])
    with show_progress(env) as progress:
        plan = env.api.plan(model, progress=progress, **arguments)
    if output is None:
        print_text(dump_plan(plan))
        return 0
    save_plan(plan, output)
    report = PlanReport(
        tool_version=fp16conv.__version__,
        options=dict(plan.options),
        model_path=model,
        plan_path=output,
        decisions=summarize_decisions(plan),
        prediction=read_prediction(plan, load_device(flags["device"])),
        next_command=rebuild_command(
            "convert",
            [model, "-o", "OUT.pt2" if is_torch_source(model) else "OUT.onnx", "--plan", output],
            {key: flags[key] for key in ("data", "shape", "input_range", "seed")},
        ),
    )
    print_report(report, form, env)
    return 0
