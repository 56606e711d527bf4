"""Which attributes type an output: the data behind retargeting.

Source: operator schemas of onnx 1.23 (`onnx.defs`) and of ONNX Runtime's com.microsoft domain; the
attributes of all other operators hold numbers or shapes and do not depend on the precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

__all__ = ["DTYPE_ATTRIBUTES", "DtypeAttribute", "Form"]


class Form(StrEnum):
    """How the attribute says the dtype."""

    CODE = "code"  # a TensorProto.DataType
    TENSOR = "tensor"  # the dtype of a tensor
    TYPE = "type"  # a TypeProto


@dataclass(frozen=True, slots=True)
class DtypeAttribute:
    """An attribute whose dtype must equal that of the operator's first output.

    Args:
        name: name of the attribute.
        follows: input slot that gives the dtype where the attribute is absent (or 0), None if none does.
        is_implied: where the attribute is absent the output is FLOAT (a zero of it, for tensors).
    """

    name: str
    form: Form
    follows: int | None = None
    is_implied: bool = False


_CODE_IMPLIED = (DtypeAttribute("dtype", Form.CODE, is_implied=True),)
_CODE_LIKE = (DtypeAttribute("dtype", Form.CODE, follows=0),)
_WINDOW = (DtypeAttribute("output_datatype", Form.CODE, is_implied=True),)

DTYPE_ATTRIBUTES: Final[Mapping[str, tuple[DtypeAttribute, ...]]] = MappingProxyType(
    {
        "Bernoulli": _CODE_LIKE,
        "BlackmanWindow": _WINDOW,
        "Cast": (DtypeAttribute("to", Form.CODE),),
        "ConstantOfShape": (DtypeAttribute("value", Form.TENSOR, is_implied=True),),
        "DequantizeLinear": (DtypeAttribute("output_dtype", Form.CODE, follows=1),),
        "EyeLike": _CODE_LIKE,
        "HammingWindow": _WINDOW,
        "HannWindow": _WINDOW,
        "MelWeightMatrix": _WINDOW,
        "Optional": (DtypeAttribute("type", Form.TYPE),),
        "RandomNormal": _CODE_IMPLIED,
        "RandomNormalLike": _CODE_LIKE,
        "RandomUniform": _CODE_IMPLIED,
        "RandomUniformLike": _CODE_LIKE,
        "SequenceEmpty": _CODE_IMPLIED,
        "ai.onnx.ml::TreeEnsemble": (
            DtypeAttribute("leaf_weights", Form.TENSOR),
            DtypeAttribute("membership_values", Form.TENSOR),
            DtypeAttribute("nodes_hitrates", Form.TENSOR),
            DtypeAttribute("nodes_splits", Form.TENSOR),
        ),
        "com.microsoft::DequantizeBFP": (DtypeAttribute("dtype", Form.CODE),),
        "com.microsoft::DequantizeWithOrder": (DtypeAttribute("to", Form.CODE),),
        "com.microsoft::GemmFloat8": (DtypeAttribute("dtype", Form.CODE, is_implied=True),),
    }
)
"""By `Op.key`."""
