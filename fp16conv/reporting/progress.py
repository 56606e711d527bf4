"""How long-running functions tell what they are doing."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress"]


class Progress(Protocol):
    """Called at the start of each step and, where the amount of work is known, as it advances.

    A step lasts until another one is reported. Reporting must never change a result.
    """

    def __call__(self, step: str, done: int = 0, total: int | None = None) -> None:
        """Report a step.

        Args:
            step: what is going on, e.g. `calibrating`.
            done: units finished.
            total: units in all, None when unknown.
        """
