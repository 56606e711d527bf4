"""What cannot be run here, known before memory is taken for it."""

from __future__ import annotations

import math
import os

from fp16conv.errors import ValidationError
from fp16conv.graph import ModelGraph

__all__ = ["refuse_oversized"]


def refuse_oversized(graph: ModelGraph) -> None:
    """Refuse to run a model that declares a value which no memory of this machine holds.

    The runtime would find out, too: when it has taken all that there is.

    Args:
        graph: the model; sizes that it leaves open say nothing.

    Raises:
        ValidationError: names the first such value.
    """
    limit = _memory_of_machine()
    for value in graph.values:
        sizes = [size for size in value.shape or () if isinstance(size, int) and size > 0]
        if len(sizes) == len(value.shape or ()) and math.prod(sizes) * value.dtype.itemsize > limit:
            raise ValidationError(
                f"value '{value.name}' has more numbers than this machine's memory holds",
                where=graph.source,
                why=f"its shape is {' x '.join(map(str, sizes))}",
                hint="run it on a larger machine, or convert it with --no-validate",
            )


def _memory_of_machine() -> float:
    """Bytes of physical memory; infinite where the system does not say (Windows)."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return math.inf
