"""Tensors and types that change precision: lazy, so that memory never holds more than one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fp16conv import half
from fp16conv.graph import DataType, read_pieces

__all__ = ["Fp16Tensor", "dtype_attribute", "is_external", "retype", "to_ir"]


class Fp16Tensor(ir.LazyTensor):
    """An FP32 tensor read as FP16; converted anew each time it is read, nothing is cached.

    Args:
        source: the FP32 tensor.
        saturating: set what FP16 cannot hold to +-65504 (for constants that act as infinity only).
    """

    __slots__ = ("saturating", "source")

    def __init__(self, source: ir.TensorProtocol, *, saturating: bool) -> None:
        super().__init__(
            self._convert,
            ir.DataType.FLOAT16,
            ir.Shape([int(d) for d in source.shape.numpy()]),
            name=source.name,
            doc_string=source.doc_string,
            metadata_props=dict(source.metadata_props),
        )
        self.source = source
        self.saturating = saturating

    def chunks(self) -> Iterator[memoryview]:
        """The bytes in FP16, little-endian, piece by piece: never whole in memory."""
        for _, numbers in read_pieces(self.source):
            halves = self._round(numbers, np.empty(numbers.size, np.float16))
            yield halves.astype("<f2", copy=False).data.cast("B")

    def _convert(self) -> ir.TensorProtocol:
        numbers = np.asarray(self.source.numpy())
        return ir.Tensor(self._round(numbers, np.empty(numbers.shape, np.float16)))

    def _round(
        self, numbers: npt.NDArray[np.generic], out: npt.NDArray[np.float16]
    ) -> npt.NDArray[np.float16]:
        return half.saturate(numbers) if self.saturating else half.to_fp16(numbers, out)


def is_external(tensor: ir.TensorProtocol | None) -> bool:
    """Whether the numbers come from an external data file."""
    if isinstance(tensor, Fp16Tensor):
        return is_external(tensor.source)
    return isinstance(tensor, ir.ExternalTensor)


def to_ir(dtype: DataType) -> ir.DataType:
    """The onnx_ir element type of FLOAT or FLOAT16."""
    return ir.DataType.FLOAT16 if dtype is DataType.FLOAT16 else ir.DataType.FLOAT


def dtype_attribute(name: str, dtype: DataType, *, as_text: bool, doc_string: str | None = None) -> ir.Attr:
    """An attribute that names a dtype: its code, or its name as Cast wants it before opset 6."""
    if as_text:
        return ir.Attr(name, ir.AttributeType.STRING, to_ir(dtype).name, doc_string=doc_string)
    return ir.Attr(name, ir.AttributeType.INT, int(to_ir(dtype)), doc_string=doc_string)


def retype(old: ir.TypeProtocol | None, dtype: DataType) -> ir.TypeProtocol | None:
    """The same type (tensor, sequence, optional) around another element type; a new object."""
    if old is None:
        return None
    if isinstance(old, (ir.SequenceType, ir.OptionalType)):
        inner = retype(old.elem_type, dtype)
        return type(old)(inner if inner is not None else old.elem_type, denotation=old.denotation)
    kind = ir.SparseTensorType if isinstance(old, ir.SparseTensorType) else ir.TensorType
    return kind(to_ir(dtype), denotation=old.denotation)
