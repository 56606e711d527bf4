"""What the emulator must know of operators: which make no new numbers, and which cannot leave FP16."""

from __future__ import annotations

import onnx_ir as ir

from fp16conv.frontends.schemas import find_schema
from fp16conv.rulebook.families import FAMILIES

__all__ = ["is_exact", "is_exact_operator", "needs_fp16"]

_STANDARD = ("", "ai.onnx")

_EXACT = frozenset(
    (
        "Abs",
        "Ceil",
        "Compress",
        "Concat",
        "ConcatFromSequence",
        "DepthToSpace",
        "Expand",
        "EyeLike",
        "Flatten",
        "Floor",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "If",
        "Loop",
        "Max",
        "MaxPool",
        "GlobalMaxPool",
        "Min",
        "Neg",
        "Optional",
        "OptionalGetElement",
        "ReduceMax",
        "ReduceMin",
        "Relu",
        "Reshape",
        "ReverseSequence",
        "Round",
        "Scan",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceMap",
        "Shape",
        "Sign",
        "Slice",
        "SpaceToDepth",
        "Split",
        "SplitToSequence",
        "Squeeze",
        "Tile",
        "TopK",
        "Transpose",
        "Trilu",
        "Unique",
        "Unsqueeze",
        "Where",
    )
)
"""Operators of ai.onnx whose outputs are FP16 numbers when their inputs are: moved, chosen, negated, or made
integral (every integer part of an FP16 number is one). The others are rounded."""

_FINITE_START = frozenset(("MaxPool", "GlobalMaxPool"))
"""Exact operators whose kernel of ONNX Runtime's CPU provider begins at the lowest finite number: where all
is -infinity it gives -3.4e38, which rounding makes -infinity again (measured with version 1.31)."""


def is_exact(node: ir.Node) -> bool:
    """Whether rounding the outputs that ONNX Runtime gives would change nothing."""
    if node.op_type == "Clip" and node.domain in _STANDARD:  # attributes and defaults are no FP16 numbers
        return len(node.inputs) == 3 and all(value is not None for value in node.inputs)
    return is_exact_operator(node.domain, node.op_type) and node.op_type not in _FINITE_START


def is_exact_operator(domain: str, op_type: str) -> bool:
    """Whether an operator's outputs are FP16 numbers when its inputs are.

    Example:
        >>> is_exact_operator("", "Reshape"), is_exact_operator("aten", "view.default")
        (True, True)
    """
    if domain in _STANDARD:
        return op_type in _EXACT
    return FAMILIES.get(f"{domain}::{op_type}", "") in _EXACT


def needs_fp16(node: ir.Node, opset: int) -> bool:
    """Whether the operator cannot be computed in FP32 with the same meaning.

    That is: nobody knows the operator, it reads the bits themselves, or its schema admits FP16 where it
    does not admit FP32.
    """
    if node.op_type == "BitCast" and node.domain in _STANDARD:
        return True
    schema = find_schema(node.domain, node.op_type, opset)
    if schema is None:
        return True
    slots = [(v, schema.input(i)) for i, v in enumerate(node.inputs)]
    slots += [(v, schema.output(i)) for i, v in enumerate(node.outputs)]
    for value, parameter in slots:
        if value is None or parameter is None or value.dtype is not ir.DataType.FLOAT16:
            continue
        allowed = schema.types.get(parameter.type_str, frozenset((parameter.type_str,)))
        if not any("tensor(float)" in t for t in allowed):
            return True
    return False
