"""Runs a command line under a limit of memory: `python -m fp16conv.batch.confined BYTES VERB ...`.

The limit is set here, before anything is loaded, and not between fork and exec: that would run Python code in
a copy of a process with threads.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

__all__ = ["can_limit", "main"]


def can_limit() -> bool:
    """Whether this platform has limits that a process sets on itself (Windows has not)."""
    try:
        import resource
    except ModuleNotFoundError:
        return False
    return hasattr(resource, "RLIMIT_DATA")


def main(args: Sequence[str]) -> None:
    """Limit the data of this process and of those it starts, then run the command line.

    Args:
        args: bytes (0 sets no limit), then the command line without the program's name.

    RLIMIT_DATA counts private memory that can be written (setrlimit(2), Linux 4.7 and later). RLIMIT_AS would
    also count mapped files and address space that allocators and drivers reserve and never touch.
    """
    limit = int(args[0])
    if limit:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    sys.argv = ["fp16conv", *args[1:]]
    runpy.run_module("fp16conv", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
