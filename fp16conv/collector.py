"""Python's cycle collector, out of the way while large graphs are built."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["collection_paused"]


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Do not look for garbage cycles for a while.

    Building a graph allocates objects that all stay, and each round of the collector walks every one of
    them: a quarter of the time of a conversion, more in larger models. What is dropped by reference
    counting is freed as ever. Safe to nest; also a decorator.

    Example:
        >>> with collection_paused():
        ...     gc.isenabled()
        False
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
