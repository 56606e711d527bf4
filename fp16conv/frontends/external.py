"""Weights in external files, read and never mapped: one that shrinks meanwhile is an error, not a crash."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from fp16conv.errors import ModelError
from fp16conv.graph import Piece

__all__ = ["FileTensor", "changed_meanwhile", "read_from_files"]

_KEPT: Final = 1 << 12  # bytes; smaller tensors are read again and again, as scalars of many operators
_COPIED: Final = 1 << 20  # bytes copied in one go


class FileTensor(ir.ExternalTensor):
    """A tensor in an external file. A memory map would kill the process where the file is truncated.

    Args:
        stored: where the numbers are, and of which type and shape.
        base_dir: folder that the location is relative to.
    """

    __slots__ = ("_small",)

    def __init__(self, stored: ir.ExternalTensor, base_dir: str | os.PathLike[str]) -> None:
        super().__init__(
            stored.location,
            stored.offset,
            stored.length,
            stored.dtype,
            shape=ir.Shape([int(d) for d in stored.shape.numpy()]),
            name=stored.name,
            doc_string=stored.doc_string,
            metadata_props=dict(stored.metadata_props),
            base_dir=base_dir,
        )
        self._small: npt.NDArray[np.generic] | None = None

    def read_pieces(self, size: int) -> Iterator[Piece]:
        """The numbers in order, `size` at a time, flat; the next piece overwrites them.

        Raises:
            ModelError: the file is gone or has become shorter.
        """
        if self.dtype.bitwidth < 8:
            flat = self.numpy().reshape(-1)
            for start in range(0, flat.size, size):
                yield start, flat[start : start + size]
            return
        scratch = np.empty(min(size, self.size), self._stored_as())
        with self._open() as file:
            for start in range(0, self.size, size):
                numbers = scratch[: self.size - start]
                self._fill(numbers.view(np.uint8).data, start * scratch.itemsize, file)
                yield start, numbers

    def numpy(self) -> npt.NDArray[np.generic]:
        """All numbers, read-only; only those of small tensors are kept for the next time."""
        if self._small is not None:
            return self._small
        shape = self.shape.numpy()
        if self.dtype.bitwidth < 8:  # packed
            proto = onnx.TensorProto(data_type=int(self.dtype), dims=shape, raw_data=self.tobytes())
            numbers: npt.NDArray[np.generic] = ir.serde.TensorProtoTensor(proto).numpy()
        else:
            numbers = np.empty(shape, self._stored_as())
            with self._open() as file:
                self._fill(numbers.reshape(-1).view(np.uint8).data, 0, file)
        numbers.flags.writeable = False
        if numbers.nbytes <= _KEPT:
            self._small = numbers
        return numbers

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.numpy(), dtype, copy=copy)

    def tobytes(self) -> bytes:
        return b"".join(self.chunks())

    def tofile(self, file: BinaryIO) -> None:
        for chunk in self.chunks():
            file.write(chunk)

    def chunks(self) -> Iterator[memoryview]:
        """All bytes, piece by piece; each is a copy."""
        with self._open() as file:
            for start in range(0, self.nbytes, _COPIED):
                chunk = memoryview(bytearray(min(_COPIED, self.nbytes - start)))
                self._fill(chunk, start, file)
                yield chunk

    def _stored_as(self) -> np.dtype[np.generic]:
        return np.dtype(self.dtype.numpy()).newbyteorder("<")

    def _open(self) -> io.FileIO:
        try:
            return open(self.path, "rb", buffering=0)
        except FileNotFoundError:
            raise changed_meanwhile(Path(self.path)) from None

    def _fill(self, buffer: memoryview, start: int, file: io.FileIO) -> None:
        """Read from `start` (bytes into the tensor) until the buffer is full."""
        file.seek((self.offset or 0) + start)
        while buffer:
            count = file.readinto(buffer)
            if not count:
                raise changed_meanwhile(Path(self.path))
            buffer = buffer[count:]


def changed_meanwhile(file: Path) -> ModelError:
    """The error of external data that is no longer what it was when the model was loaded."""
    return ModelError(
        "changed while it was read",
        where=str(file),
        why="what was read of it may be a mixture",
        hint="wait until it is written, then run again",
    )


def read_from_files(model: ir.Model, base_dir: Path) -> None:
    """Let all external tensors of a model, those of functions too, be read from files in the folder."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for value in [v for g in (graph, *graph.subgraphs()) for v in g.initializers.values()]:
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = FileTensor(value.const_value, base_dir)
        for node in graph.all_nodes():
            for attr in [a for a in node.attributes.values() if not a.is_ref()]:
                if attr.type is ir.AttributeType.TENSOR and isinstance(attr.value, ir.ExternalTensor):
                    tensor = FileTensor(attr.value, base_dir)
                    node.attributes[attr.name] = ir.Attr(
                        attr.name, attr.type, tensor, doc_string=attr.doc_string
                    )
