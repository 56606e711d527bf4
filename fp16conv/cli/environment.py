"""What a verb works with: the functions behind the command line and how much to print."""

from __future__ import annotations

import gc
import importlib
from dataclasses import dataclass, field
from enum import IntEnum
from types import ModuleType

from fp16conv.collector import collection_paused

__all__ = ["Environment", "Level"]


class Level(IntEnum):
    """How much goes to stderr, and whether reports are shortened to one screen."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


@dataclass
class Environment:
    """Handed to every verb.

    Args:
        level: set by --quiet and --verbose.
        functions: stands in for fp16conv.api, which is imported on first use otherwise.
    """

    level: Level = Level.NORMAL
    functions: object | None = field(default=None, repr=False)

    @property
    def api(self) -> ModuleType:
        """The module fp16conv.api, or what stands in for it."""
        if self.functions is None:
            with collection_paused():
                self.functions = importlib.import_module("fp16conv.api")
            gc.freeze()  # modules stay: no round of the collector need walk them
        return self.functions  # type: ignore[return-value]
