"""Names of repairs and what each one does; light enough for a command line to import."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from fp16conv.errors import UsageError

__all__ = ["FOLD", "REPAIRS", "RESCALE", "SATURATE", "check_repairs"]

FOLD: Final = "fold-batchnorm"
RESCALE: Final = "rescale"
SATURATE: Final = "saturate"

REPAIRS: Final[Mapping[str, str]] = {
    FOLD: "BatchNormalization whose statistics leave the range becomes x * factor + shift",
    RESCALE: "a matrix product that overflows is computed at a power of two of its size, undone in FP32",
    SATURATE: "constants that act as infinity (masks, bounds, fills) become +-65504",
}
"""What may be asked for, and what it does."""


def check_repairs(repairs: Collection[str]) -> None:
    """Raise if a repair is unknown.

    Raises:
        UsageError: names those that exist.
    """
    for name in repairs:
        if name not in REPAIRS:
            raise UsageError(f"unknown repair '{name}'", hint=f"there is {', '.join(sorted(REPAIRS))}")
