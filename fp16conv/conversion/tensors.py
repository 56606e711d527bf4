"""Tensors and types that change precision: lazy, so that memory never holds more than one."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fp16conv import half
from fp16conv.graph import DataType, open_numbers

__all__ = ["Fp16Tensor", "dtype_attribute", "is_external", "retype", "to_ir"]


PIECE = 1 << 18  # numbers that one thread converts and writes together
MAX_THREADS = 4  # more only wait for the memory


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

    def tofile(self, file: BinaryIO) -> None:
        """Write the numbers in FP16, in pieces that are converted in parallel: never whole in memory."""
        size, begin, lock = self.size, file.tell(), threading.Lock()
        threads = max(1, min(MAX_THREADS, os.cpu_count() or 1, size // (2 * PIECE)))

        def write(first: int) -> None:
            """Every so-manieth piece, from the first one of this thread on."""
            read = open_numbers(self.source, PIECE)
            halves = np.empty(min(PIECE, size), np.float16)
            for start in range(first * PIECE, size, threads * PIECE):
                piece = read(start)
                content = self._round(piece, halves[: piece.size]).astype("<f2", copy=False).data.cast("B")
                with lock:
                    file.seek(begin + 2 * start)
                    file.write(content)

        if threads == 1:
            write(0)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(write, range(threads)))
        file.seek(begin + 2 * size)

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
