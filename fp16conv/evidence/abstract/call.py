"""What a transfer function sees of an operator: bounds of its inputs, constants, shapes, attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fp16conv.evidence.abstract.domain import TOP, UNIT_ROUNDOFF, Bounds, gamma
from fp16conv.graph import DataType, Op

__all__ = ["FUNCTION_SLACK", "OPEN_COUNT", "ROUNDING", "Call", "Shape", "Transfer"]

Shape = tuple[int | None, ...]

OPEN_COUNT: Final = 2.0**20
"""Elements that a reduction over dimensions the model leaves open is taken to add into one partial sum.

It only enters the allowance for roundings of means and norms (6 %); a sum over an open number of elements
has no bound. A plane of 1024 x 1024 is covered even if it were added up one by one.
"""

FUNCTION_SLACK: Final = 2.0**-18
"""Relative allowance for exp, tanh, erf and their kind, 64 units in the last place of binary32.

ONNX Runtime's MLAS approximates them by polynomials; their stated errors are a few units in the last place.
"""

ROUNDING: Final = 4.0
"""Unit roundoffs allowed per elementary operation: the runtime may fuse it with its neighbours."""


@dataclass(frozen=True, slots=True)
class Call:
    """One evaluation of an operator.

    Args:
        op: the operator; attributes of a function's caller are filled in.
        ins: bounds per input slot, None where absent.
        roots: value id per input slot with pure copies seen through, None where absent.
        shapes, out_shapes: per slot; None where not even the rank is known.
        dtypes: per input slot; out_dtypes: per output slot.
        read: numbers of the input at a slot where they are constant.
        read_head: the first rows of them; the rest may be large.
    """

    op: Op
    ins: tuple[Bounds | None, ...]
    roots: tuple[int | None, ...]
    shapes: tuple[Shape | None, ...]
    out_shapes: tuple[Shape | None, ...]
    dtypes: tuple[DataType, ...]
    out_dtypes: tuple[DataType, ...]
    read: Callable[[int], npt.NDArray[np.generic] | None]
    read_head: Callable[[int, int], npt.NDArray[np.generic] | None]

    def has(self, slot: int) -> bool:
        return slot < len(self.ins) and self.ins[slot] is not None

    def get(self, slot: int) -> Bounds:
        """Bounds of an input; nothing is known of one that is absent."""
        found = self.ins[slot] if slot < len(self.ins) else None
        return TOP if found is None else found

    def given(self) -> list[Bounds]:
        return [b for b in self.ins if b is not None]

    def array(self, slot: int) -> npt.NDArray[np.generic] | None:
        return self.read(slot) if self.has(slot) else None

    def head(self, slot: int, rows: int) -> npt.NDArray[np.generic] | None:
        return self.read_head(slot, rows) if self.has(slot) else None

    def ints(self, slot: int, name: str = "") -> tuple[int, ...] | None:
        """Integers given as an attribute or as a constant input."""
        listed = self.op.attrs.get(name) if name else None
        if isinstance(listed, tuple):
            return tuple(int(i) for i in listed)
        if isinstance(listed, int):
            return (int(listed),)
        array = self.array(slot)
        return None if array is None else tuple(int(i) for i in array.reshape(-1))

    def attr(self, name: str, default: Any) -> Any:
        return self.op.attrs.get(name, default)

    def shape(self, slot: int) -> Shape | None:
        return self.shapes[slot] if slot < len(self.shapes) else None

    def out_shape(self, slot: int = 0) -> Shape | None:
        return self.out_shapes[slot] if slot < len(self.out_shapes) else None

    def rank(self, slot: int) -> int | None:
        shape = self.shape(slot)
        return None if shape is None else len(shape)

    def dim(self, slot: int, axis: int) -> int | None:
        """Size of a dimension, None where open or unknown."""
        shape = self.shape(slot)
        return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None

    def count(self, slot: int, axes: Sequence[int]) -> int | None:
        """Number of elements along some axes, None where one is open or unknown."""
        dims = [self.dim(slot, axis) for axis in axes]
        return None if any(d is None for d in dims) else prod(d for d in dims if d is not None)

    @property
    def unit(self) -> float:
        """Unit roundoff of the narrowest type the operator computes in."""
        return max(
            (UNIT_ROUNDOFF.get(t, 2.0**-24) for t in (*self.dtypes, *self.out_dtypes)), default=2.0**-24
        )

    @property
    def slack(self) -> float:
        """Relative rounding of one elementary operation."""
        return ROUNDING * self.unit

    @property
    def function_slack(self) -> float:
        return FUNCTION_SLACK * (self.unit / 2.0**-24)

    def sum_slack(self, n: float | None) -> float:
        """Relative rounding of a sum of n products, in any order and algorithm.

        The count is multiplied by 4 and has 64 added: bias, fused neighbours and fast algorithms add a few
        roundings per term (Higham 2002, section 23.2 for Winograd-type algorithms).
        """
        return gamma(OPEN_COUNT if n is None else 4.0 * n + 64.0, self.unit)


Transfer = Callable[[Call], "Bounds | Sequence[Bounds | None]"]
"""Bounds of the first output, or of each output; None: nothing is known beyond the type."""

Table = Mapping[str, Transfer]
