"""Names for groups of operators that pattern rules use: facts of the ONNX operators, not opinions.

Source: the operators' definitions at https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["COMMUTATIVE", "DATA_SLOTS", "OP_SETS", "TRANSPARENT"]

OP_SETS: Final[Mapping[str, tuple[str, ...]]] = {
    # Outputs are elements of the data inputs, nothing is computed.
    "movement": (
        *("Cast", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements"),
        *("GatherND", "Identity", "Pad", "Reshape", "ReverseSequence", "Slice", "SpaceToDepth", "Split"),
        *("Squeeze", "Tile", "Transpose", "Unsqueeze", "Where", "ScatterElements", "ScatterND", "Compress"),
        *("Trilu",),
    ),
    "arithmetic": (
        *("Abs", "Add", "Clip", "Div", "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Pow", "Reciprocal"),
        *("Relu", "Sign", "Sqrt", "Sub", "Sum"),
    ),
    "rounding": ("Ceil", "Floor", "Round"),
    "reduction": ("ReduceMax", "ReduceMin", "ReduceMean", "ReduceSum", "ReduceProd"),
    "comparison": ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
    # Compute-bound: sums of products over a whole axis.
    "product": (
        *("Attention", "Conv", "ConvTranspose", "DeformConv", "Einsum", "Gemm", "GRU", "LSTM", "MatMul"),
        *("RNN", "com.microsoft::Attention", "com.microsoft::FusedConv", "com.microsoft::FusedGemm"),
        *("com.microsoft::FusedMatMul", "com.microsoft::MultiHeadAttention", "ConvInteger"),
        *("MatMulInteger", "com.microsoft::MatMulNBits", "com.microsoft::GroupQueryAttention"),
    ),
    "transcendental": ("Exp", "Log", "Sigmoid", "Softplus", "Tanh", "Atan", "Sin", "Cos", "Tan"),
}

DATA_SLOTS: Final[Mapping[str, tuple[int, ...]]] = {
    # Operators with inputs that steer (indices, shapes, axes) instead of being computed with.
    **dict.fromkeys(("Dropout", "Expand", "Gather", "GatherElements", "GatherND", "Reshape", "Slice"), (0,)),
    **dict.fromkeys(("ReverseSequence", "Split", "Squeeze", "Tile", "Unsqueeze", "Compress", "Trilu"), (0,)),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceMean", "ReduceSum", "ReduceProd", "CumSum"), (0,)),
    **dict.fromkeys(("Resize", "Upsample", "TopK", "AffineGrid"), (0,)),
    "Where": (1, 2),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Pad": (0, 2),
}

COMMUTATIVE: Final = frozenset({"Add", "Mul", "Min", "Max", "Equal", "And", "Or"})

# A template looks through these: the same numbers, in another shape.
TRANSPARENT: Final = frozenset(
    {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Expand", "Flatten", "Dropout"}
)
