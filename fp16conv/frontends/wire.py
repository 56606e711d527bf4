"""The bytes of a model piece by piece; protobuf itself takes three times their size to write them at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx

__all__ = ["serialize_in_pieces"]

LARGE = 2**20  # bytes; smaller pieces are kept while their sizes are summed, so that they are made once
TOGETHER = 16  # messages that one call writes; tensors are written one by one
_DELIMITED = 2  # wire type of what begins with its length


def serialize_in_pieces(model: onnx.ModelProto) -> Iterator[bytes]:
    """What `model.SerializeToString(deterministic=True)` gives, with one tensor or few operators in memory.

    Args:
        model: not changed while the pieces are read.

    Yields:
        Bytes, in order.

    Example:
        >>> model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float x) => () {}')
        >>> b"".join(serialize_in_pieces(model)) == model.SerializeToString(deterministic=True)
        True
    """
    for field, content in model.ListFields():
        if field.name != "graph":
            yield onnx.ModelProto(**{field.name: content}).SerializeToString(deterministic=True)
            continue
        kept: list[bytes | None] = []
        size = 0
        for name, items in _split(content):
            piece = _write(name, items)
            size += len(piece)
            kept.append(piece if len(piece) <= LARGE else None)
        yield _head(field.number, size)
        for part, small in zip(_split(content), kept, strict=True):
            yield _write(*part) if small is None else small


def _split(graph: onnx.GraphProto) -> Iterator[tuple[str, Any]]:
    """The fields in order of their numbers, the repeated ones in parts."""
    for field, content in graph.ListFields():
        if hasattr(content, "extend"):  # repeated; what the field says of that depends on protobuf's version
            step = 1 if field.name == "initializer" else TOGETHER
            for start in range(0, len(content), step):
                yield field.name, content[start : start + step]
        else:
            yield field.name, content


def _write(name: str, content: Any) -> bytes:
    if name == "initializer":  # in a graph of its own it would be a copy
        (tensor,) = content
        number = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
        data: bytes = tensor.SerializeToString(deterministic=True)
        return _head(number, len(data)) + data
    written: bytes = onnx.GraphProto(**{name: content}).SerializeToString(deterministic=True)
    return written


def _head(number: int, size: int) -> bytes:
    """What stands before a message: the number of its field, its type on the wire, its size."""
    return bytes((*_varint(number << 3 | _DELIMITED), *_varint(size)))


def _varint(number: int) -> Iterator[int]:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    while number > 0x7F:
        yield number & 0x7F | 0x80
        number >>= 7
    yield number
