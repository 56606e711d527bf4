"""`fp16conv audit`: a folder of models, one process each, one table."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from fp16conv.cli.environment import Environment
from fp16conv.cli.options import level_flags, policy_flags
from fp16conv.cli.params import BYTES, Choice, Tolerance
from fp16conv.cli.terminal import is_fancy, print_text, show_progress
from fp16conv.reporting.sanitize import clip, sanitize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fp16conv.batch.rows import Row

__all__ = ["command"]

_WIDTH = 80  # columns of the table where there is no terminal
_STYLES = {"good": "green", "warn": "yellow", "bad": "bold red"}

_HELP = """Analyze every model of a registry: PATH is a model, a folder, or a .txt file of paths.

Each model is analyzed in a process of its own with limits of time and memory: one that crashes or hangs costs
its own row. Results are kept by the digest of the model, the rules, the options and the versions, so that the
next night looks at what changed only.

\b
Examples:
  fp16conv audit models/
  fp16conv audit models/ --jobs 4 --timeout 300 --cache .cache/audit -o out/
  fp16conv audit list.txt --memory-limit-per-model 8GiB --format jsonl > audit.jsonl
  fp16conv audit /shared/models --executor dask --scheduler tcp://10.0.0.1:8786

\b
Exits with 1 if a model has a finding that --fail-on names; a model that crashed,
hung or cannot be read counts as an error.

\b
Known limitations: inputs are synthetic. The memory limit is RLIMIT_DATA (Linux,
macOS) of each process, and a model has two: the analysis and the one that runs it.
With Dask, the workers must see the models under the same paths.
"""


class _Seconds(Tolerance):
    name = "SECONDS"


@click.command("audit", help=_HELP)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "-o", "--output", metavar="DIR", help="Write index.html, audit.jsonl and an HTML report per model here."
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Models at a time.")
@click.option("--timeout", type=_Seconds(), default=600.0, show_default=True, help="Per model.")
@click.option("--memory-limit-per-model", type=BYTES, help="Memory of each process of a model, e.g. 8GiB.")
@click.option("--cache", metavar="DIR", help="Keep results here.")
@click.option(
    "--executor", type=Choice("local", "dask"), default="local", show_default=True, help="Where models run."
)
@click.option("--scheduler", metavar="ADDRESS", help="Of a running Dask cluster, e.g. tcp://10.0.0.1:8786.")
@policy_flags
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of synthetic data.")
@click.option(
    "--format",
    "form",
    type=Choice("text", "jsonl"),
    default="text",
    show_default=True,
    help="Form on stdout.",
)
@click.option(
    "--fail-on",
    type=Choice("error", "warning", "never"),
    default="error",
    show_default=True,
    help="Which findings make the exit code 1.",
)
@level_flags
@click.pass_obj
def command(env: Environment, /, paths: tuple[str, ...], **flags: Any) -> int:
    """Run the verb."""
    if (flags["executor"] == "dask") != (flags["scheduler"] is not None):
        raise click.UsageError("--executor dask and --scheduler ADDRESS belong together.")

    from fp16conv.batch import Settings, audit_models, find_models
    from fp16conv.batch.page import render_lines, write_folder
    from fp16conv.batch.rows import must_fail

    rules = tuple(map(os.path.abspath, flags["rules"]))
    settings = Settings(
        arguments=_hand_on(flags, rules),
        rules=rules,
        timeout=flags["timeout"],
        memory_limit=flags["memory_limit_per_model"],
        jobs=flags["jobs"],
        cache=flags["cache"],
        html=flags["output"] is not None,
        scheduler=flags["scheduler"],
    )
    models = find_models(paths)
    with show_progress(env) as progress:
        audited = audit_models(models, settings, progress=progress)
    rows = [entry.row for entry in audited]
    index = None if flags["output"] is None else write_folder(flags["output"], audited)
    if flags["form"] == "jsonl":
        print_text(render_lines(rows))
    else:
        _print_table(rows)
        if index is not None:
            print_text(f"\n{sanitize(str(index))} links a report per model.")
    return int(any(must_fail(row, flags["fail_on"]) for row in rows))


def _hand_on(flags: dict[str, Any], rules: Sequence[str]) -> tuple[str, ...]:
    """Flags for `analyze`; files by absolute path, because the process runs in the model's folder."""
    device = flags["device"]
    device = os.path.abspath(device) if device.endswith(".toml") else device
    words = ["--profile", flags["profile"], "--target", flags["target"], "--device", device]
    words += ["--seed", str(flags["seed"])]
    return (*words, *(word for file in rules for word in ("--rules", file)))


def _print_table(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fp16conv.batch.page import MARKS, describe_counts, size_of
    from fp16conv.reporting.units import format_share

    console = Console(
        file=sys.stdout,
        highlight=False,
        markup=False,
        emoji=False,
        width=None if is_fancy(sys.stdout) else _WIDTH,
        color_system="auto" if is_fancy(sys.stdout) else None,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("Status", no_wrap=True)
    table.add_column("Model", no_wrap=True, ratio=1)
    for name in ("FP16", "Weights", "Speed"):
        table.add_column(name, justify="right", no_wrap=True)
    room = max(20, console.width - 48)
    for row in rows:
        mark, tone = MARKS[row.status]
        # Text objects, never markup: a name like [red] is a name.
        table.add_row(
            Text(f"{mark} {row.status}", style=_STYLES[tone]),
            Text(clip(sanitize(row.path), room, keep_end=True)),
            "-" if row.operators is None else format_share(row.macs_share),
            size_of(row),
            "-" if row.speedup is None else f"{row.speedup:.2f}x",
        )
    console.print(table)
    console.print()
    for row in rows:
        if row.detail:
            name = clip(sanitize(row.path), room, keep_end=True)
            console.print(Text(f"{name}: {sanitize(row.detail)}"))
    console.print(Text(describe_counts(rows), style="bold"))
