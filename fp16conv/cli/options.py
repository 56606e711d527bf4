"""Flags that several verbs share, and how they become arguments of the API: the same words in both."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from fp16conv.cli.environment import Environment, Level
from fp16conv.cli.params import BYTES, RANGE, SHAPE, Choice, RuleName, Tolerance, as_mapping
from fp16conv.errors import UsageError
from fp16conv.rulebook.repair_names import REPAIRS

__all__ = [
    "api_arguments",
    "decision_flags",
    "format_flag",
    "input_flags",
    "level_flags",
    "policy_flags",
    "rebuild_command",
    "refuse_overwrite",
    "tolerance_flags",
]

F = TypeVar("F", bound=Callable[..., Any])

_RENAMED = {"shape": "shapes", "input_range": "input_ranges"}
_PLURAL = {"repair": "repairs"}


def _stack(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def _sanitize_record(record: logging.LogRecord) -> bool:
    """Take control characters out of a line of a library's log."""
    from fp16conv.reporting.sanitize import sanitize

    record.msg, record.args = sanitize(record.getMessage()), None
    return True


def _set_level(level: Level) -> Callable[[click.Context, click.Parameter, bool], None]:
    def callback(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if not value:
            return
        env = ctx.ensure_object(Environment)
        if env.level not in (Level.NORMAL, level):
            raise click.UsageError("--quiet and --verbose exclude each other.", ctx)
        env.level = level
        logging.basicConfig(level=logging.DEBUG if level is Level.VERBOSE else logging.ERROR, force=True)
        for handler in logging.getLogger().handlers:  # libraries log names from the model
            handler.addFilter(_sanitize_record)

    return callback


level_flags = _stack(
    click.option(
        "-q",
        "--quiet",
        is_flag=True,
        expose_value=False,
        callback=_set_level(Level.QUIET),
        help="No progress on stderr.",
    ),
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=_set_level(Level.VERBOSE),
        help="Reports in full length; logs, steps and tracebacks on stderr.",
    ),
)

format_flag = click.option(
    "--format",
    "form",
    type=Choice("text", "json"),
    default="text",
    show_default=True,
    help="Form of the report on stdout.",
)

input_flags = _stack(
    click.option(
        "--data",
        multiple=True,
        metavar="FILE.npz|DIR",
        help="Real inputs: .npz files with one array per model input, one file is one batch. Repeatable.",
    ),
    click.option(
        "--labels",
        metavar="NAME",
        help="Array in the --data files that holds class labels, to report accuracy before and after.",
    ),
    click.option(
        "--shape",
        multiple=True,
        type=SHAPE,
        help="Shape of an input for synthetic data and cost estimates. Repeatable.",
    ),
    click.option(
        "--input-range",
        multiple=True,
        type=RANGE,
        help="Range of an input's numbers, for synthetic data and bounds. Repeatable.",
    ),
    click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of synthetic data."
    ),
    click.option(
        "--memory-limit",
        type=BYTES,
        help="Intermediate values read at a time while observing, beside what the model takes by itself, "
        "e.g. 2GiB.  [default: 512MiB]",
    ),
)

policy_flags = _stack(
    click.option(
        "--profile",
        type=RuleName("profiles"),
        default="balanced",
        show_default=True,
        help="Policy: balanced, fast, safe, or half (everything, as model.half() does).",
    ),
    click.option(
        "--target",
        type=RuleName("targets"),
        default="onnxruntime-cuda",
        show_default=True,
        help="What will run the model.",
    ),
    click.option(
        "--device",
        type=RuleName("devices"),
        default="a10",
        show_default=True,
        help="Device of the speed estimate, or a .toml file of your own.",
    ),
    click.option(
        "--rules",
        multiple=True,
        metavar="FILE.toml",
        help="Rules of your own; they win over the built-in ones.",
    ),
)

decision_flags = _stack(
    policy_flags,
    click.option(
        "--keep-fp32",
        multiple=True,
        metavar="PATTERN",
        help="Operators to keep in FP32: a glob on names, or type:Softmax. Repeatable.",
    ),
    click.option(
        "--force-fp16",
        multiple=True,
        metavar="PATTERN",
        help="Operators to run in FP16 whatever the rules say. Repeatable.",
    ),
    click.option(
        "--repair",
        multiple=True,
        type=Choice(*sorted(REPAIRS)),
        help="A way to keep FP16 where numbers leave its range: "
        + "; ".join(f"{name}: {text}" for name, text in sorted(REPAIRS.items()))
        + ". Repeatable.",
    ),
    click.option(
        "--keep-io-types/--no-keep-io-types",
        default=True,
        show_default=True,
        help="Whether graph inputs and outputs keep their types.",
    ),
)

tolerance_flags = _stack(
    click.option(
        "--rtol",
        type=Tolerance(),
        help="Largest relative L2 error of an output.  [default: 0.02]",
    ),
    click.option(
        "--atol",
        type=Tolerance(),
        help="Root mean square error allowed on top of --rtol.  [default: 0.001]",
    ),
    click.option("--tolerance", type=Tolerance(), help="Short for --rtol; --atol stays as it is."),
    click.option(
        "--allow-integer-changes", is_flag=True, help="Integer outputs may differ (an arg max of near ties)."
    ),
    click.option(
        "--provider",
        type=Choice("auto", "emulated", "cuda"),
        default="auto",
        show_default=True,
        help="What computes the FP16 model; auto takes CUDA where it really works.",
    ),
)


def api_arguments(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the flags' values into keyword arguments of the API; flags that were not given are left out."""
    arguments = {key: value for key, value in flags.items() if value is not None}
    for flag, name in _RENAMED.items():
        if flag in arguments:
            arguments[name] = as_mapping(f"--{flag.replace('_', '-')}", arguments.pop(flag))
    for flag, name in _PLURAL.items():
        if flag in arguments:
            arguments[name] = arguments.pop(flag)
    tolerance = arguments.pop("tolerance", None)
    if tolerance is not None:
        if "rtol" in arguments:
            raise click.UsageError("--tolerance is short for --rtol: give one of them.")
        arguments["rtol"] = tolerance
    return arguments


def refuse_overwrite(output: str, inputs: Iterable[str]) -> None:
    """Raise a usage error if `output` is one of the files the run reads (by any name or link)."""
    for path in inputs:
        same = os.path.realpath(path) == os.path.realpath(output)
        if same or (os.path.exists(path) and os.path.exists(output) and os.path.samefile(path, output)):
            raise UsageError(
                "the output is one of the input files",
                where=output,
                hint="write to another file: inputs are kept",
            )


def rebuild_command(verb: str, arguments: Sequence[str], flags: Mapping[str, Any]) -> str:
    """Write a command line that hands on the flags that differ from their defaults.

    Example:
        >>> rebuild_command("convert", ["my model.onnx"], {"data": ("a.npz",), "profile": "balanced"})
        "fp16conv convert 'my model.onnx' --data a.npz"
    """
    defaults = {"profile": "balanced", "target": "onnxruntime-cuda", "device": "a10", "seed": 0}
    words = ["fp16conv", verb, *arguments]
    for key, value in flags.items():
        flag = f"--{key.replace('_', '-')}"
        if key == "keep_io_types":
            words += [] if value else ["--no-keep-io-types"]
        elif key == "shape":
            for name, dims in value:
                words += [flag, f"{name}={'x'.join(map(str, dims))}"]
        elif key == "input_range":
            for name, (low, high) in value:
                words += [flag, f"{name}={low:g}:{high:g}"]
        elif isinstance(value, tuple):
            for item in value:
                words += [flag, str(item)]
        elif value is not None and value != defaults.get(key):
            words += [flag, str(value)]
    return shlex.join(words)
