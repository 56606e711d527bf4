"""Parameters of functions that some call leaves out."""

from __future__ import annotations

from collections.abc import Sequence

from fp16conv.graph.types import Op, Scope

__all__ = ["find_optional_parameters"]


def find_optional_parameters(ops: Sequence[Op], scopes: Sequence[Scope]) -> frozenset[int]:
    """The parameters of functions that are absent in at least one call.

    An operator that reads one has an absent optional input then; any other operator in between, a cast as
    much as a rounding, would have nothing to read.

    Args:
        ops: operators of the model.
        scopes: its scopes by id.

    Returns:
        Value ids of those parameters.
    """
    calls = [(op.inputs, scopes[op.callee].inputs) for op in ops if op.callee is not None]
    found: set[int] = set()
    size = -1
    while len(found) > size:  # a function may hand what it was not given to another one
        size = len(found)
        for given, parameters in calls:
            found.update(parameters[len(given) :])
            found.update(p for p, v in zip(parameters, given, strict=False) if v is None or v in found)
    return frozenset(found)
