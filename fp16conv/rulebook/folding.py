"""BatchNormalization with frozen statistics as the scale and shift that it computes.

y = (x - mean) / sqrt(var + epsilon) * scale + bias  =  x * factor + shift

    factor = scale / sqrt(var + epsilon)
    shift  = bias - mean * factor                        (ONNX schema BatchNormalization-15)

A running variance of 9.8e7 is no FP16 number, its factor of 1e-4 is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from fp16conv.graph import DataType, ModelGraph, Op, RangeFact
from fp16conv.half import MAX, SMALLEST_NORMAL

__all__ = ["STATISTICS", "FoldedNorm", "fits_fp16", "fold_batch_norm", "stand_ins"]

STATISTICS: Final = range(1, 5)
"""Input slots of scale, bias, mean and variance."""

_SINCE: Final = 9  # opset from which one output means inference, and `spatial` is gone
_EPSILON: Final = 1e-5  # default of the attribute


@dataclass(frozen=True)
class FoldedNorm:
    """Factor and shift per channel.

    Args:
        factor: float32 [channels].
        shift: float32 [channels].
        rank: of the input; channels are its axis 1.
    """

    factor: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]
    rank: int

    def broadcast(self, array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """A factor or shift in the shape that broadcasts along axis 1 of the input."""
        return array.reshape(array.shape + (1,) * (self.rank - 2))


def fold_batch_norm(graph: ModelGraph, op: Op) -> FoldedNorm | None:
    """Compute factor and shift in float64, rounded once to float32.

    Args:
        graph: the model.
        op: any operator of it.

    Returns:
        None where the operator is no BatchNormalization in inference mode whose four statistics are float32
        constants and whose input has a known rank.
    """
    if op.key != "BatchNormalization" or op.opset < _SINCE or op.attrs.get("training_mode", 0):
        return None
    if len(op.inputs) != 1 + len(STATISTICS) or any(o is not None for o in op.outputs[1:]):
        return None
    source = None if op.inputs[0] is None else graph.values[op.inputs[0]]
    if source is None or source.dtype is not DataType.FLOAT or source.is_constant:
        return None
    if source.shape is None or len(source.shape) < 2:
        return None
    arrays = []
    for slot in STATISTICS:
        array = graph.array(op.inputs[slot])
        if array is None or array.dtype != np.float32 or array.ndim != 1:
            return None
        arrays.append(array.astype(np.float64))
    scale, bias, mean, var = arrays
    if not scale.shape == bias.shape == mean.shape == var.shape:
        return None
    with np.errstate(all="ignore"):  # a negative variance gives NaN, which does not fit
        factor = scale / np.sqrt(var + _epsilon(op))
        shift = bias - mean * factor
        return FoldedNorm(factor.astype(np.float32), shift.astype(np.float32), len(source.shape))


def stand_ins(
    graph: ModelGraph, op: Op, round_numbers: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
) -> dict[int, npt.NDArray[np.float32]]:
    """Statistics with which the operator computes what its folded form does in FP16.

    x * factor + shift is the norm of mean 0 and variance 1 - epsilon. What these cannot show is the rounding
    of the product before the sum.

    Args:
        graph: the model.
        op: a BatchNormalization that can be folded.
        round_numbers: rounds factor and shift to FP16.

    Returns:
        float32 [channels] by input slot; empty where the operator cannot be folded.
    """
    folded = fold_batch_norm(graph, op)
    if folded is None:
        return {}
    zeros = np.zeros_like(folded.factor)
    epsilon = np.float32(_epsilon(op))
    arrays = (round_numbers(folded.factor), round_numbers(folded.shift), zeros, zeros + 1 - epsilon)
    return dict(zip(STATISTICS, arrays, strict=True))


def _epsilon(op: Op) -> float:
    epsilon = op.attrs.get("epsilon", _EPSILON)
    return float(epsilon) if isinstance(epsilon, float | int) else math.nan  # NaN: no number, fits nothing


def fits_fp16(folded: FoldedNorm, source: RangeFact | None) -> bool:
    """Whether factor, shift and product can be FP16 numbers without a loss of bits.

    Args:
        folded: factor and shift.
        source: range of the input, None if unknown: then the product must not exceed the input.

    Returns:
        False where a number overflows, a factor is not zero but below 2^-14, or x * factor may overflow.
    """
    factor, shift = np.abs(folded.factor), np.abs(folded.shift)
    if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
        return False
    largest = float(factor.max(initial=0.0))
    if largest > MAX or float(shift.max(initial=0.0)) > MAX or (factor[factor > 0] < SMALLEST_NORMAL).any():
        return False
    reach = MAX if source is None or source.has_nan else min(source.max_abs, MAX)
    return math.isfinite(reach) and reach * largest <= MAX
