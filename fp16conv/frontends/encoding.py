"""Are the texts of a protobuf message UTF-8? Its parser does not check: it hands out bytes where not."""

from __future__ import annotations

import re
from collections.abc import Iterable

import onnx
from google.protobuf.message import Message

__all__ = ["find_undecodable"]

SMALL = 1024  # bytes; messages up to this size are printed whole, which native code does
_ESCAPED = re.compile(r"\\[23][0-7]{2}")  # how a byte from 128 on is printed that is not part of UTF-8


def find_undecodable(message: Message) -> bytes | None:
    r"""Return a text that is not UTF-8, None where there is none; fields of type bytes are no text.

    Example:
        >>> from onnx import ModelProto
        >>> content = ModelProto(producer_name="abc").SerializeToString()
        >>> find_undecodable(ModelProto.FromString(content.replace(b"b", b"\xff")))
        b'a\xffc'
    """
    if isinstance(message, onnx.TensorProto):  # printing or reading its data would copy it
        return _first((message.name, message.doc_string), message.external_data, message.metadata_props)
    # To count the bytes of a model or graph is to write it once, with its weights.
    if not isinstance(message, (onnx.ModelProto, onnx.GraphProto)) and message.ByteSize() <= SMALL:
        is_plain = message.SerializeToString().isascii()  # several times faster than to print it
        if is_plain or _prints(message):
            return None
    for field, content in message.ListFields():
        items = content if hasattr(content, "extend") else (content,)
        if field.message_type is not None:
            found = _first((), items)
        else:
            found = _first(items if field.type == field.TYPE_STRING else ())
        if found is not None:
            return found
    return None


def _prints(message: Message) -> bool:
    """Whether a message can be printed as text; protobuf before 5 cannot print others at all."""
    try:
        return not _ESCAPED.search(str(message))
    except UnicodeDecodeError:
        return False


def _first(texts: Iterable[str | bytes], *messages: Iterable[Message]) -> bytes | None:
    found: bytes | None = next((text for text in texts if isinstance(text, bytes)), None)
    for group in messages:
        for message in group:
            if found is None:
                found = find_undecodable(message)
    return found
