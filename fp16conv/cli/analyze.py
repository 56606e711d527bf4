"""`fp16conv analyze`: an audit on one screen."""

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
from fp16conv.frontends.sources import is_torch_source

__all__ = ["command"]


_HELP = """Audit MODEL: what can run in FP16, what stays FP32 and why, size, predicted speed. Edits nothing.

\b
Examples:
  fp16conv analyze model.onnx
  fp16conv analyze model.onnx --data batches/ --device t4
  fp16conv analyze model.onnx --shape image=8x3x224x224 --input-range image=0:1
  fp16conv analyze model.onnx --profile half --format json > report.json

Exits with 1 only if a finding has severity error (the model cannot be converted, or its FP32
run is broken already). That plain model.half() would break it is a warning.

\b
Known limitations: speed is a roofline estimate, not a measurement. Without
--data the ranges come from synthetic inputs, which may miss what real ones do.
"""


@click.command("analyze", help=_HELP)
@click.argument("model")
@input_flags
@decision_flags
@click.option(
    "--annotate",
    metavar="OUT.onnx",
    help="Also write the model with precision, reason, range and error as notes on its nodes, for viewers.",
)
@report_flags
@level_flags
@click.pass_obj
def command(env: Environment, /, model: str, annotate: str | None, **flags: Any) -> int:
    """Run the verb."""
    files = {"model": model, "data": flags["data"], "rules": flags["rules"], "annotate": annotate or ()}
    delivery = Delivery.take(flags, files)
    arguments = api_arguments(flags) | delivery.details(env)
    if annotate is not None:
        refuse_overwrite(annotate, [model, *flags["data"], *flags["rules"]])
        arguments["annotate"] = annotate
    with show_progress(env) as progress:
        report = env.api.analyze(model, progress=progress, **arguments)
    is_done = any(finding.rule == "already-fp16" for finding in report.findings)
    if not report.next_command and report.ok and not is_done:
        output = _suggest_output(model)
        handed_on = {key: value for key, value in flags.items() if key != "memory_limit"}
        report = dataclasses.replace(
            report, next_command=rebuild_command("convert", [model, "-o", output], handed_on)
        )
    delivery.send(report, env)
    return delivery.exit_code(report)


def _suggest_output(model: str) -> str:
    if not is_torch_source(model):
        return str(Path(model).with_suffix(".fp16.onnx"))
    stem = model.rpartition(":")[0].rpartition(".")[2] if ":" in model else str(Path(model).with_suffix(""))
    return f"{stem}.fp16.pt2"
