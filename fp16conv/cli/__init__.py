"""The command line: the only place that prints or exits."""

from __future__ import annotations

import os
import sys

from fp16conv.cli.overview import answer

TYPE_CHECKING = False  # typing's name, which type checkers know; loading typing takes half as long as Python
if TYPE_CHECKING:
    from typing import NoReturn

    from fp16conv.cli.app import run

__all__ = ["main", "run"]


def main() -> NoReturn:
    """Run the process's command line and exit."""
    try:
        text = None if "_FP16CONV_COMPLETE" in os.environ else answer(sys.argv[1:])
        if text is None:
            from fp16conv.cli.app import main as run_program

            run_program()
        sys.exit(_print(text))
    except KeyboardInterrupt:  # while modules were loaded, or behind the last thing that was done
        sys.stderr.write("error: interrupted; no file was left behind\n")
        sys.exit(130)
    finally:
        # An interrupt that meets exec of text, which dataclasses and torch call as they load, leaves a mark
        # for which `python -m` ends by the signal, not by our exit code. The next exec of text clears it.
        exec("")


def _print(text: str) -> int:
    """Write to stdout, which may be closed; the exit code."""
    try:
        if sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
    except OSError as error:
        from fp16conv.cli.app import answer_failure

        return answer_failure(error)
    return 0


def __getattr__(name: str) -> object:
    if name == "run":
        from fp16conv.cli.app import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
