"""The program: finds the verb, runs it, turns every outcome into an exit code."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import click

import fp16conv
from fp16conv.cli.deferral import defer_imports
from fp16conv.cli.environment import Environment, Level
from fp16conv.cli.groups import SuggestingGroup
from fp16conv.cli.overview import VERBS, overview, version
from fp16conv.cli.terminal import print_error
from fp16conv.errors import Fp16convError

__all__ = ["answer_failure", "main", "program", "run"]

INTERNAL_ERROR = 70
INTERRUPTED = 130
MACHINE_FAILED = 4
PIPE_CLOSED = 141
_NOTHING_HALF = "nothing half-written was left behind"
NO_THREAD = "can't start new thread"  # a bare RuntimeError of Python's, where the system has no room for one


class _PipeClosedError(Exception):
    """Nobody reads stdout any more. Not an OSError: click would exit with 1 on it."""


@contextlib.contextmanager
def _hiding_pipes() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _PipeClosedError from error


class LazyGroup(SuggestingGroup):
    """Loads a verb's module when the verb is called; `--help` loads none of them."""

    @_hiding_pipes()
    def make_context(self, *args: Any, **words: Any) -> click.Context:
        return super().make_context(*args, **words)

    @_hiding_pipes()
    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"fp16conv.cli.{cmd_name.replace('-', '_')}").command
        return command

    def get_help(self, ctx: click.Context) -> str:
        return overview().rstrip()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(fp16conv.__version__, message=version().rstrip())
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
    except _PipeClosedError:
        return answer_failure(BrokenPipeError())
    except MemoryError:
        print_error(f"there is not enough memory; {_NOTHING_HALF}")
        _trace(env)
        return MACHINE_FAILED
    except OSError as error:
        code = answer_failure(error)
        _trace(env)
        return code
    except Exception as error:
        if str(error) == NO_THREAD:
            print_error(f"the system: {error}; {_NOTHING_HALF}")
            _trace(env)
            return MACHINE_FAILED
        print_error(
            f"{type(error).__name__}: {error}. This is a bug in fp16conv: please report it with this line, "
            "the command and the output of 'fp16conv doctor'; --verbose shows where it happened."
        )
        _trace(env)
        return INTERNAL_ERROR
    return result if isinstance(result, int) else 0


def answer_failure(error: OSError) -> int:
    """Say what the system refused; the exit code."""
    if isinstance(error, BrokenPipeError):
        # Nobody reads any more; keep the interpreter from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    print_error(f"{error.filename or 'the system'}: {error.strerror or error}; {_NOTHING_HALF}")
    return MACHINE_FAILED


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
    """Run the process's command line and exit; `fp16conv.cli.main` comes here."""
    defer_imports()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what stops jobs: clean up as after Ctrl-C
    if sys.stdout is None:  # started with stdout closed (>&-): the exit code is the answer
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # names may not fit the terminal's encoding
    code = run(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM):  # done is done, and no traceback of the interpreter's end
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()  # or the interpreter looks for garbage in all of it before it goes
    sys.exit(code)
