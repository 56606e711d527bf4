"""Protobuf of a model's structure alone: large weights stay where they are and only their headers enter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import onnx_ir as ir

from fp16conv.frontends.inference import MAX_INLINE_FOR_INFERENCE

__all__ = ["weights_left_out"]


@contextlib.contextmanager
def weights_left_out(model: ir.Model) -> Iterator[list[ir.TensorProtocol]]:
    """While this lasts, a model's large initializers have a type and a shape but no numbers.

    Args:
        model: put back as it was in the end.

    Yields:
        The tensors that are left out, in the order of the graph.
    """
    values = [
        value
        for graph in model.graphs()
        for value in graph.initializers.values()
        if (tensor := value.const_value) is not None
        and tensor.dtype is not ir.DataType.STRING
        and not isinstance(tensor, ir.ExternalTensor)
        and tensor.nbytes > MAX_INLINE_FOR_INFERENCE
    ]
    tensors = [value.const_value for value in values if value.const_value is not None]
    try:
        for value, tensor in zip(values, tensors, strict=True):
            value.const_value = cast(
                ir.TensorProtocol,
                _Header(
                    tensor.name,
                    tensor.dtype,
                    tensor.shape,
                    tensor.doc_string,
                    tensor.metadata_props,
                ),
            )
        yield tensors
    finally:
        for value, tensor in zip(values, tensors, strict=True):
            value.const_value = tensor


@dataclass
class _Header:
    """What onnx_ir writes of a tensor: all but the numbers."""

    name: str | None
    dtype: ir.DataType
    shape: ir.ShapeProtocol
    doc_string: str | None
    metadata_props: Mapping[str, str]

    def tobytes(self) -> bytes:
        return b""
