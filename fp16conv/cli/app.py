"""The program: finds the verb, runs it, turns every outcome into an exit code."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import NoReturn

import click

import fp16conv
from fp16conv.cli.environment import Environment, Level
from fp16conv.cli.groups import SuggestingGroup
from fp16conv.cli.terminal import print_error
from fp16conv.errors import Fp16convError

__all__ = ["VERBS", "main", "program", "run"]

INTERNAL_ERROR = 70
INTERRUPTED = 130
MACHINE_FAILED = 4
PIPE_CLOSED = 141

VERBS = {
    "analyze": "Audit a model: what can run in FP16, what not, and why.",
    "plan": "Write the decisions and their reasons to a file.",
    "convert": "Convert a model: plan, convert, verify, validate, save.",
    "tune": "Find the fastest plan that meets an accuracy target.",
    "export": "Export a PyTorch program to ONNX and audit the result.",
    "train-audit": "Audit training in FP16: gradients, loss scale, master weights.",
    "validate": "Compare a converted model with its FP32 original.",
    "explain": "Say why one operator has its precision, and what would change it.",
    "diff": "Compare two plans or two models: precision and casts.",
    "audit": "Analyze every model of a folder or list, one process each.",
    "rules": "List, explain and check the rules behind the decisions.",
    "doctor": "Show what this machine can run and whether it works.",
}
"""Each verb is the attribute `command` of the module fp16conv.cli.VERB, imported when it is called."""

_HELP = """Convert trained FP32 models to FP16 and prove the result.

\b
Examples:
  fp16conv analyze model.onnx
  fp16conv analyze model.onnx --data batches/ --format json
  fp16conv convert model.onnx -o model.fp16.onnx --data batches/
  fp16conv tune model.onnx -o model.fp16.onnx --data batches/ --tolerance 0.003
  fp16conv validate model.onnx model.fp16.onnx --data batches/
  fp16conv rules explain exp-overflow

\b
Known limitations:
  - Without a CUDA device FP16 is emulated: every FP16 tensor is rounded, sums
    inside one operator stay FP32, as Tensor Cores accumulate. Speed is never
    measured, only predicted.
  - Without --data the inputs are made up, and reports say so.
  - ONNX models, and PyTorch programs with the extra fp16conv[torch].
  - Quantized operators and unknown domains stay as they are.

Exit codes: 0 fine, 1 findings or tolerance missed, 2 usage, rules or plan error, 3 model unreadable or
unsupported, 4 conversion or machine failed (no file left), 5 validation could not run, 70 bug in fp16conv,
130 interrupted.
"""


class LazyGroup(SuggestingGroup):
    """Loads a verb's module when the verb is called; `--help` loads none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"fp16conv.cli.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(
    cls=LazyGroup, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False
)
@click.version_option(fp16conv.__version__, prog_name="fp16conv", message="%(prog)s %(version)s")
def program() -> None:
    """Hold the verbs."""


def run(args: Sequence[str], environment: Environment | None = None) -> int:
    """Run a command line.

    Args:
        args: everything after the program's name.
        environment: what the verbs work with; tests hand in their own.

    Returns:
        The exit code. Nothing is raised.
    """
    env = environment or Environment()
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.simplefilter("ignore")  # what a user must know is a finding in the report
            result = program.main(list(args), prog_name="fp16conv", standalone_mode=False, obj=env)
            sys.stdout.flush()
    except click.UsageError as error:
        return _usage_error(error)
    except click.ClickException as error:
        print_error(error.format_message())
        return 2
    except (click.Abort, KeyboardInterrupt):
        print_error("interrupted; no file was left behind")
        return INTERRUPTED
    except Fp16convError as error:
        print_error(str(error))
        _trace(env)
        return error.exit_code
    except BrokenPipeError:
        # Nobody reads any more; keep the interpreter from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except MemoryError:
        print_error("there is not enough memory; no file was left behind")
        _trace(env)
        return MACHINE_FAILED
    except OSError as error:
        print_error(f"{error.filename or 'the system'}: {error.strerror or error}; no file was left behind")
        _trace(env)
        return MACHINE_FAILED
    except Exception as error:
        print_error(
            f"{type(error).__name__}: {error}. This is a bug in fp16conv: please report it with this line, "
            "the command and the output of 'fp16conv doctor'; --verbose shows where it happened."
        )
        _trace(env)
        return INTERNAL_ERROR
    return result if isinstance(result, int) else 0


def _usage_error(error: click.UsageError) -> int:
    text = error.format_message()
    if error.ctx is not None:
        stop = "" if text.endswith((".", "?", "!", ")")) else "."
        text += f"{stop} See '{error.ctx.command_path} --help'." if text else ""
    print_error(text)
    return 2


def _trace(env: Environment) -> None:
    if env.level is Level.VERBOSE:
        traceback.print_exc(file=sys.stderr)


def main() -> NoReturn:
    """Run the process's command line and exit."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what stops jobs: clean up as after Ctrl-C
    if sys.stdout is None:  # started with stdout closed (>&-): the exit code is the answer
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # names may not fit the terminal's encoding
    sys.exit(run(sys.argv[1:]))
