"""Overflowing linear regions computed at a power of two of their size.

    (x W + b) 2^-k = x (W 2^-k) + b 2^-k

Relu, pooling and whatever only moves data commute with a positive factor, so the region behind a product
holds its values times 2^-k in FP16. At its rim FP32 gets them times 2^k. Powers of two change exponents only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from fp16conv.graph import DataType, ModelGraph, Op, Use
from fp16conv.half import MAX, round_to_fp16
from fp16conv.rulebook.types import Reason

__all__ = [
    "EXPONENT",
    "MAX_EXPONENT",
    "RESTORED",
    "Region",
    "Scales",
    "exponents_of",
    "find_region",
    "fits_rescaled",
    "find_scales",
]

EXPONENT: Final = "exponent"
"""Key of k in the numbers of a reason."""

MAX_EXPONENT: Final = 126
"""Largest k: 2^k and 2^-k are normal numbers in FP32."""

RESTORED: Final = "__restored"
"""What the name of the Mul that ends a region appends to that of the value it restores."""

_PRODUCTS: Final = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
_SINCE: Final = 7  # opset from which Mul broadcasts without being told to
_CONVOLUTIONS: Final = frozenset(("Conv", "ConvTranspose"))
_HOMOGENEOUS: Final = frozenset(
    (
        *("Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
        *("Identity", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice"),
    )
)
_ROUNDOFF: Final = 2.0**-11  # FP16's unit roundoff: what rounding may cost where nothing is subnormal


@dataclass(frozen=True, slots=True)
class Region:
    """A product with constant weights, and the operators behind it that commute with a positive factor.

    Args:
        ops: operator ids in execution order; the product is the first.
        values: the value that each of them makes.
        constants: uses of weights and biases, those of each operator.
        links: the use at which each operator reads the one before; None for the product.
        source: id of what the product reads.
    """

    ops: tuple[int, ...]
    values: tuple[int, ...]
    constants: tuple[tuple[Use, ...], ...]
    links: tuple[Use | None, ...]
    source: int

    def first(self, count: int) -> Region:
        """The beginning of the region: `count` operators."""
        end = slice(count)
        return Region(self.ops[end], self.values[end], self.constants[end], self.links[end], self.source)


@dataclass(frozen=True, slots=True)
class Scales:
    """Exponents k of what is held times 2^-k: of values where they are made, of uses where they are read."""

    values: Mapping[int, int]
    uses: Mapping[Use, int]


def exponents_of(rescaled: Mapping[int, Reason]) -> dict[int, int]:
    """The exponent per operator id that a plan's reasons name; 0 (as it is) where one names none."""
    return {op: int(reason.numbers.get(EXPONENT, 0)) for op, reason in rescaled.items()}


def find_region(graph: ModelGraph, op: Op) -> Region | None:
    """The longest region that starts at a product of the main graph.

    Returns:
        None where the operator is no product of one computed float32 value with constants, or where the graph
        gives out its result.
    """
    if op.key not in _PRODUCTS or op.opset < _SINCE or not _is_inner(graph, op):
        return None
    slots = [0] if op.key in _CONVOLUTIONS else [0, 1]
    read = [slot for slot in slots if not _is_constant(graph, op, slot)]
    weights = [slot for slot, value in enumerate(op.inputs) if slot not in read and value is not None]
    if len(read) != 1 or not all(_is_constant(graph, op, slot) for slot in weights):
        return None
    source = op.inputs[read[0]]
    if source is None or graph.values[source].dtype is not DataType.FLOAT:
        return None
    ops, values = [op.id], [_result(op)]
    links: list[Use | None] = [None]
    constants = [tuple(Use(op.id, slot, op.scope) for slot in weights)]
    while (step := _follow(graph, values[-1])) is not None:
        use, others = step
        assert use.op is not None
        ops.append(use.op)
        values.append(_result(graph.ops[use.op]))
        links.append(use)
        constants.append(others)
    return Region(tuple(ops), tuple(values), tuple(constants), tuple(links), source)


def find_scales(
    graph: ModelGraph, rescaled: Mapping[int, int], dtypes: Sequence[DataType] | None = None
) -> Scales:
    """What is held at another scale.

    Args:
        graph: the model.
        rescaled: exponent by id of the product.
        dtypes: FLOAT or FLOAT16 per type variable id: a region ends where FP32 begins. None: nowhere.

    Returns:
        Exponents above zero.
    """
    values: dict[int, int] = {}
    uses: dict[Use, int] = {}
    for op, exponent in sorted(rescaled.items()):
        region = find_region(graph, graph.ops[op])
        if region is None:
            continue
        for value, constants, link in zip(region.values, region.constants, region.links, strict=True):
            variable = graph.typevar_of_value(value)
            if dtypes is not None and (variable is None or dtypes[variable.id] is not DataType.FLOAT16):
                break
            values[value] = exponent
            uses.update(dict.fromkeys((*constants, *(() if link is None else (link,))), exponent))
    return Scales(values, uses)


def fits_rescaled(array: npt.NDArray[np.generic], exponent: int) -> bool:
    """Whether a constant times 2^-exponent is as exact in FP16 as numbers of a normal size are.

    Args:
        array: float32, any shape.
        exponent: k.

    Returns:
        False where a number is beyond 65504, or where subnormal numbers make the relative L2 error of the
        rounding larger than 2^-11.
    """
    numbers = np.ldexp(array.astype(np.float64), -exponent)
    if not np.isfinite(numbers).all() or np.abs(numbers).max(initial=0.0) > MAX:
        return False
    error = round_to_fp16(numbers).astype(np.float64) - numbers
    return float(np.linalg.norm(error)) <= _ROUNDOFF * float(np.linalg.norm(numbers))


def _follow(graph: ModelGraph, value: int) -> tuple[Use, tuple[Use, ...]] | None:
    """The only reader of a value, if it commutes with a factor, and the constants it adds."""
    uses = graph.consumers(value)
    if len(uses) != 1 or uses[0].op is None:
        return None
    use, op = uses[0], graph.ops[uses[0].op]
    if not _is_inner(graph, op):
        return None
    if op.key in _HOMOGENEOUS and use.slot == 0:
        return use, ()
    if op.key == "Add" and _is_constant(graph, op, 1 - use.slot):
        return use, (Use(op.id, 1 - use.slot, op.scope),)
    return None


def _is_inner(graph: ModelGraph, op: Op) -> bool:
    """Whether it makes one float32 value of the main graph that only operators read."""
    if op.scope != 0 or not op.outputs or op.outputs[0] is None or any(o is not None for o in op.outputs[1:]):
        return False
    value = op.outputs[0]
    uses = graph.consumers(value)
    return graph.values[value].dtype is DataType.FLOAT and bool(uses) and all(u.op is not None for u in uses)


def _result(op: Op) -> int:
    assert op.outputs[0] is not None
    return op.outputs[0]


def _is_constant(graph: ModelGraph, op: Op, slot: int) -> bool:
    value = op.inputs[slot] if slot < len(op.inputs) else None
    if value is None:
        return False
    return value in graph.constants and graph.values[value].dtype is DataType.FLOAT
