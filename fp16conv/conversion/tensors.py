"""Tensors and types that change precision: lazy, so that memory never holds more than one."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fp16conv.graph import DataType
from fp16conv.half import saturate

__all__ = ["Fp16Tensor", "dtype_attribute", "is_external", "retype", "to_ir"]


CHUNK = 1 << 21  # numbers converted in one go by one thread: 8 MiB, read once
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
        if self.size < 2 * CHUNK:
            super().tofile(file)
            return
        flat = np.asarray(self.source.numpy()).reshape(-1)
        pieces = (flat[start : start + CHUNK] for start in range(0, flat.size, CHUNK))
        threads = max(1, min(MAX_THREADS, os.cpu_count() or 1))
        with ThreadPoolExecutor(threads) as pool:
            pending: deque[Future[memoryview]] = deque()
            for piece in pieces:
                pending.append(pool.submit(self._round, piece))
                if len(pending) > threads:
                    file.write(pending.popleft().result())
            while pending:
                file.write(pending.popleft().result())
        del flat, piece
        if isinstance(self.source, ir.ExternalTensor):
            self.source.release()

    def _round(self, numbers: npt.NDArray[np.generic]) -> memoryview:
        with np.errstate(over="ignore", under="ignore"):
            rounded = saturate(numbers) if self.saturating else numbers.astype("<f2")
        return rounded.astype("<f2", copy=False).data.cast("B")

    def _convert(self) -> ir.TensorProtocol:
        numbers = np.asarray(self.source.numpy())
        with np.errstate(over="ignore", under="ignore"):
            rounded = saturate(numbers) if self.saturating else numbers.astype(np.float16)
        del numbers
        if isinstance(self.source, ir.ExternalTensor):
            self.source.release()  # else every weight read so far stays mapped
        return ir.Tensor(rounded)


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
