"""GraphIndex: what the pattern engines look up again and again, computed once per graph."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from fp16conv.graph import DataType, ModelGraph, Op, Use, Value
from fp16conv.rulebook.families import FILL_NUMBERS, FILL_SLOTS, family, operand_slots
from fp16conv.rulebook.op_sets import DATA_SLOTS, TRANSPARENT
from fp16conv.rulebook.pattern_language import Numbers

__all__ = ["GraphIndex"]

LARGEST_CONSTANT = 1 << 20
"""Constants with more elements are weights; no pattern asks about their numbers."""


class GraphIndex:
    """Operators by type, constants' extremes and values seen through reshapes.

    Types are those of ONNX also in a program of ATen calls (see `families`): `kinds` holds them by operator.

    Args:
        graph: the model.
    """

    def __init__(self, graph: ModelGraph) -> None:
        self.graph = graph
        self.kinds = tuple(family(op) for op in graph.ops)
        self._numbers: dict[int, Numbers | None] = {}

    @cached_property
    def by_type(self) -> dict[str, list[Op]]:
        """Operators per type, in file order."""
        found: dict[str, list[Op]] = {}
        for op in self.graph.ops:
            found.setdefault(self.kinds[op.id], []).append(op)
        return found

    def value(self, index: int) -> Value:
        return self.graph.values[index]

    def is_float(self, index: int) -> bool:
        return self.graph.values[index].dtype is DataType.FLOAT

    def see_through(self, value: int) -> tuple[int, tuple[int, ...]]:
        """Follow a value up through operators that only reshape it.

        Returns:
            The value they started from, and the operators passed on the way (nearest first).
        """
        passed: list[int] = []
        while (op := self.transparent(value)) is not None:
            passed.append(op.id)
            value = op.inputs[0]  # type: ignore[assignment]  # transparent() saw that it is there
        return value, tuple(passed)

    def transparent(self, value: int) -> Op | None:
        """The producer of the value if it leaves all numbers as they are."""
        op = self.graph.producer(value)
        if op is None or self.kinds[op.id] not in TRANSPARENT or not op.inputs:
            return None
        source = op.inputs[0]
        if source is None or (
            self.kinds[op.id] == "Cast" and self.value(source).dtype is not self.value(value).dtype
        ):
            return None
        return op

    def numbers(self, value: int) -> tuple[int, Numbers] | None:
        """The constant behind a value (also one that ConstantOfShape fills), with its extremes."""
        source, _ = self.see_through(value)
        if source not in self._numbers:
            self._numbers[source] = self._measure(source)
        numbers = self._numbers[source]
        return None if numbers is None else (source, numbers)

    def _measure(self, value: int) -> Numbers | None:
        tensor = self.graph.constants.get(value)
        fill = tensor is None
        if tensor is None:
            op = self.graph.producer(value)
            if op is None or self.kinds[op.id] != "ConstantOfShape":
                return None
            filled = self._fill(op)
            if filled is None:
                return None
            array = filled
        elif tensor.size > LARGEST_CONSTANT:
            return None
        else:
            array = np.asarray(tensor.numpy())
        if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
            return None
        flat = array.astype(np.float64).ravel()
        flat = flat[~np.isnan(flat)]
        if flat.size == 0:
            return Numbers(0, 0.0, 0.0, np.inf, 0.0, 0.0)
        nonzero = flat[flat != 0]
        size = 2 if fill else array.size  # a fill has many elements, but one number
        if nonzero.size == 0:
            return Numbers(size, 0.0, 0.0, np.inf, 0.0, 0.0)
        return Numbers(
            size,
            float(flat.min()),
            float(flat.max()),
            float(np.abs(nonzero).min()),
            float(nonzero.min()),
            float(nonzero.max()),
        )

    def _fill(self, op: Op) -> npt.NDArray[np.generic] | None:
        """The number that a ConstantOfShape fills its result with, as an array of one element."""
        if op.key in FILL_SLOTS:
            return self.graph.array(op.inputs[FILL_SLOTS[op.key]])
        attribute = op.attrs.get("value")
        if op.domain or attribute is None:
            return np.array([FILL_NUMBERS.get(op.key, 0.0)], np.float32)
        return np.asarray(attribute.numpy())  # type: ignore[attr-defined]

    def data_inputs(self, op: Op) -> list[tuple[int, int]]:
        """(slot, value) of the inputs whose numbers flow into the outputs; indices and shapes left out."""
        places = DATA_SLOTS.get(self.kinds[op.id])
        return [
            (slot, value)
            for place, slot in enumerate(operand_slots(op))
            if (value := op.inputs[slot]) is not None and (places is None or place in places)
        ]

    def boundary_above(self, value: int) -> tuple[int, list[int]] | None:
        """Where a value comes from when it crosses into or out of a subgraph or function.

        Returns:
            The boundary's type variable and the values on its other side; None for ordinary values.
        """
        v = self.value(value)
        op = None if v.producer is None else self.graph.ops[v.producer]
        if v.is_constant or (op is not None and not op.subscopes and op.callee is None):
            return None
        variable = self.graph.typevar_of_value(value)
        if variable is None or not variable.uses:
            return None
        sources = [self.graph.value_at(use) for use in variable.uses]
        return variable.id, [s.id for s in sources if s is not None]

    def boundary_below(self, use: Use) -> tuple[int, tuple[int, ...]] | None:
        """Where a value goes to when it is used by a boundary: its type variable and the values behind."""
        if use.op is not None:
            op = self.graph.ops[use.op]
            if not op.subscopes and op.callee is None:
                return None
        variable = self.graph.typevar_of_use(use)
        if variable is None or not variable.defs:
            return None
        return variable.id, variable.defs
