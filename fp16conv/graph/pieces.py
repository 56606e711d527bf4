"""The numbers of large constants, piece by piece: never whole in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from fp16conv.graph.types import Tensor

__all__ = ["PIECE", "Piece", "read_pieces"]

Piece = tuple[int, npt.NDArray[np.generic]]
"""Index of the first number, and the numbers, flat."""

PIECE: Final = 1 << 18  # numbers read in one go: about 5 MB with all that is computed from them


def read_pieces(tensor: Tensor, size: int | None = None) -> Iterator[Piece]:
    """The numbers of a constant in memory order, piece by piece.

    Tensors in files are never whole in memory: the next piece overwrites what was given.

    Args:
        tensor: the constant.
        size: numbers per piece, `PIECE` if None; the last one may be shorter.

    Example:
        >>> class Ramp:
        ...     nbytes, size = 16, 4
        ...     def numpy(self):
        ...         return np.arange(4.0, dtype=np.float32).reshape(2, 2)
        >>> [(start, numbers.tolist()) for start, numbers in read_pieces(Ramp(), 3)]
        [(0, [0.0, 1.0, 2.0]), (3, [3.0])]
    """
    size = size or PIECE
    of_file: Callable[[int], Iterator[Piece]] | None = getattr(tensor, "read_pieces", None)
    if of_file is not None:
        yield from of_file(size)
        return
    flat = np.asarray(tensor.numpy()).reshape(-1)
    for start in range(0, flat.size, size):
        yield start, flat[start : start + size]
