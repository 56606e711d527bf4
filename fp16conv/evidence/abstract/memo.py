"""Results of transfer functions, kept: layers repeat, and what is known of their inputs often does too."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from fp16conv.evidence.abstract.domain import Bounds
from fp16conv.graph import Op

__all__ = ["MAX_NUMBERS", "Memo", "key_of_attributes", "key_of_numbers"]

MAX_NUMBERS: Final = 256
"""Bytes of a constant that is told apart by its numbers; a larger one is only equal to itself."""

_PLAIN: Final = (int, float, str, bool)


class Memo:
    """Equal bounds as one object, and what operators made of them.

    A transfer function depends on nothing but its call: the same operator on equal bounds, shapes, types
    and constants gives equal bounds. What names other values (tags, ceilings) belongs to one place of the
    graph and is left out.
    """

    def __init__(self) -> None:
        self._bounds: dict[Hashable, Bounds] = {}
        self._results: dict[Hashable, Sequence[Bounds]] = {}

    def unify(self, bounds: Bounds) -> Bounds:
        """The first object that was equal to these bounds, bit by bit; balls and relations are kept apart."""
        if bounds.ball is not None or bounds.tags or bounds.ceilings:
            return bounds
        lo, hi = bounds.lo, bounds.hi
        if lo.size > MAX_NUMBERS:
            return bounds
        key = (
            lo.tobytes(), hi.tobytes(), bounds.axis, bounds.tiny, bounds.integral, bounds.nan, bounds.simplex
        )  # fmt: skip
        return self._bounds.setdefault(key, bounds)

    def get(self, key: Hashable) -> Sequence[Bounds] | None:
        """What a call gave before."""
        return self._results.get(key)

    def keep(self, key: Hashable, results: Sequence[Bounds]) -> None:
        """Note what a call gave, unless it names other values."""
        if not any(b.tags or b.ceilings for b in results):
            self._results[key] = results


def key_of_attributes(op: Op) -> str | None:
    """An operator's attributes to compare calls by, bit by bit; None where they hold tensors."""
    if not op.attrs:
        return ""
    for value in op.attrs.values():
        if not isinstance(value, _PLAIN) and not (
            isinstance(value, tuple) and all(isinstance(item, _PLAIN) for item in value)
        ):
            return None
    return repr(op.attrs)


def key_of_numbers(array: npt.NDArray[np.generic]) -> Hashable | None:
    """A small constant to compare calls by, None for a large one."""
    if array.nbytes > MAX_NUMBERS or array.dtype.kind == "O":
        return None
    return array.dtype.str, array.shape, array.tobytes()
