"""Type variables of ATen calls: which tensors of a call must share their dtype.

Read off the operator schemas, with the few facts they do not tell: ATen promotes or refuses mixed floating
types, so all floating tensors of a call share one variable. Exceptions are calls whose `dtype` argument types
the result (input "T", result "U": a free cast inside the kernel), batch norms (parameters "U" stay FP32) and
fused attention's statistics (always FP32).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from torch._ops import OpOverload

from fp16conv.frontends.fx.program import Slot
from fp16conv.graph import DataType, Value

__all__ = ["CASTS", "Variable", "is_free_cast", "type_variables"]

CASTS: Final = frozenset({"_to_copy", "to"})
"""Calls that change the dtype and nothing else."""

_BATCH_NORMS: Final = frozenset(
    {"batch_norm", "cudnn_batch_norm", "native_batch_norm", "_native_batch_norm_legit"}
    | {"_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_no_update"}
    | {"_native_batch_norm_legit_functional"}
)
_FP32_STATISTICS: Final = ("_scaled_dot_product_", "_flash_attention", "_efficient_attention")
_FLOATING: Final = (DataType.FLOAT16, DataType.BFLOAT16, DataType.DOUBLE, DataType.OTHER)


@dataclass(frozen=True, slots=True)
class Variable:
    """A type variable of one call: input slots, output indices, whether FP16 is legal."""

    symbol: str
    uses: tuple[int, ...]
    defs: tuple[int, ...]
    admits_fp16: bool


def base_name(target: OpOverload) -> str:
    """`softmax` of `aten::softmax.int`."""
    return target._schema.name.partition("::")[2]


def has_dtype(target: OpOverload) -> bool:
    """Whether the call takes a `dtype` that types its result."""
    return any(a.name == "dtype" for a in target._schema.arguments)


def is_free_cast(target: OpOverload) -> bool:
    """Whether the call can read FP16 and give FP32 through its `dtype` argument alone."""
    return has_dtype(target) and base_name(target) not in CASTS


def type_variables(
    target: object,
    slots: Sequence[Slot | None],
    inputs: Sequence[Value | None],
    is_scalar: Sequence[bool],
    outputs: Sequence[Value | None],
) -> Iterator[Variable]:
    """Group the FLOAT values of a call.

    Args:
        target: what is called; only ATen overloads can change.
        slots: where each input sits.
        inputs: value per slot.
        is_scalar: whether the value is a literal number of the call.
        outputs: value per output.
    """
    uses = [i for i, v in enumerate(inputs) if v is not None and v.dtype is DataType.FLOAT]
    tensors = [i for i in uses if not is_scalar[i]]
    scalars = [i for i in uses if is_scalar[i]]
    defs = [i for i, v in enumerate(outputs) if v is not None and v.dtype is DataType.FLOAT]
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        if uses or defs:
            yield Variable("T", tuple(uses), tuple(defs), False)
        return
    name, foreign = base_name(target), _is_foreign(inputs, outputs)
    if name in CASTS and has_dtype(target):
        if tensors:
            yield Variable("T1", tuple(tensors), (), True)
        if defs:
            yield Variable("T2", (), tuple(defs), True)
    elif has_dtype(target) and tensors:
        yield Variable("T", tuple(tensors), (), not foreign)
        if scalars or defs:
            yield Variable("U", tuple(scalars), tuple(defs), not foreign)
    elif name in _BATCH_NORMS:
        data = [i for i in uses if (slot := slots[i]) is not None and slot.position == 0]
        updated = (3, 4) if name == "_native_batch_norm_legit_functional" else ()  # running statistics
        legal = not foreign and all(i == 0 or i in updated for i in defs)  # of this batch: their type varies
        yield Variable("T", tuple(data), tuple(i for i in defs if i == 0), legal)
        rest = tuple(i for i in uses if i not in data)
        yield Variable("U", rest, tuple(i for i in defs if i), False)
    else:
        fixed = [i for i in defs if i and name.startswith(_FP32_STATISTICS)]
        free = tuple(i for i in defs if i not in fixed)
        legal = not foreign and (bool(tensors) or has_dtype(target))
        if uses or free:
            yield Variable("T", tuple(uses), free, legal)
        if fixed:
            yield Variable("U", (), tuple(fixed), False)


def _is_foreign(inputs: Sequence[Value | None], outputs: Sequence[Value | None]) -> bool:
    """Whether another floating or complex type takes part: then ATen's promotion decides, not we."""
    return any(v is not None and v.dtype in _FLOATING for v in (*inputs, *outputs))
