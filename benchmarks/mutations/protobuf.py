"""Mutations of any protobuf message: fields, lists, whole messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from benchmarks.mutations.values import INTS, TEXTS, Rng, pick

__all__ = ["MUTATIONS", "copy_of", "messages"]

M = TypeVar("M", bound=Message)

_FLOATS: Final = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, -3.4e38, float("inf"), float("-inf"), float("nan"))


def copy_of(message: M) -> M:
    """A copy that belongs to nothing."""
    made = type(message)()
    made.CopyFrom(message)
    return made


def messages(message: Message) -> Iterator[Message]:
    """The message and all below it, without recursion."""
    stack = [message]
    while stack:
        item = stack.pop()
        yield item
        for field, content in item.ListFields():
            if field.message_type is not None:
                stack += list(content) if field.is_repeated else [content]


def _edit_field(model: Message, rng: Rng) -> None:
    """Change one scalar field anywhere, set or not."""
    message = pick(list(messages(model)), rng)
    fields = [f for f in message.DESCRIPTOR.fields if f.message_type is None]
    filled = [f for f, _ in message.ListFields() if f.message_type is None]
    if not fields:
        return
    field = pick(filled if filled and rng.random() < 0.8 else fields, rng)
    if not field.is_repeated:
        setattr(message, field.name, _scalar(field, getattr(message, field.name), rng))
        return
    items = getattr(message, field.name)
    if items and rng.random() < 0.7:
        at = int(rng.integers(len(items)))
        items[at] = _scalar(field, items[at], rng)
    elif items and rng.random() < 0.5:
        del items[int(rng.integers(len(items))) :]
    else:
        items.extend([_scalar(field, 0, rng)] * int(rng.integers(1, 4)))


def _scalar(field: FieldDescriptor, old: Any, rng: Rng) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return pick([v.number for v in field.enum_type.values], rng)
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return float(pick(_FLOATS, rng))
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            data = old if isinstance(old, bytes) else b""
            return pick((b"", data[: len(data) // 2], data + b"\0\1\xff", data[1:], rng.bytes(9)), rng)
        return pick(TEXTS, rng)
    number = int(pick(INTS, rng)) if rng.random() < 0.6 else int(rng.integers(-2, 40))
    low, high = {
        FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
        FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
        FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    }.get(kind, (-(2**63), 2**63 - 1))
    return min(max(number, low), high)


def _edit_list(model: Message, rng: Rng) -> None:
    """Delete, repeat, swap or shuffle messages in one repeated field."""
    lists = [
        (m, f.name)
        for m in messages(model)
        for f, content in m.ListFields()
        if f.message_type is not None and f.is_repeated and len(content)
    ]
    if not lists:
        return
    message, name = pick(lists, rng)
    items = list(getattr(message, name))
    at, kind = int(rng.integers(len(items))), int(rng.integers(4))
    if kind == 0:
        del items[at]
    elif kind == 1:
        items.insert(int(rng.integers(len(items) + 1)), items[at])
    elif kind == 2:
        items = [items[int(i)] for i in rng.permutation(len(items))]
    else:
        del items[at:]
    kept = [copy_of(i) for i in items]
    message.ClearField(name)
    getattr(message, name).extend(kept)


def _clear(model: Message, rng: Rng) -> None:
    """Clear one field anywhere."""
    filled = [(m, f.name) for m in messages(model) for f, _ in m.ListFields()]
    if filled:
        message, name = pick(filled, rng)
        message.ClearField(name)


def _transplant(model: Message, rng: Rng) -> None:
    """Overwrite one message with another one of its type."""
    groups: dict[str, list[Message]] = {}
    for message in messages(model):
        groups.setdefault(message.DESCRIPTOR.name, []).append(message)
    many = [group for name, group in groups.items() if len(group) > 1 and name != "GraphProto"]
    if many:
        group = pick(many, rng)
        source = copy_of(pick(group, rng))  # one may lie in the other
        pick(group, rng).CopyFrom(source)


MUTATIONS: Final[dict[str, Callable[[Message, Rng], None]]] = {
    "edit a field": _edit_field,
    "edit another field": _edit_field,
    "edit a list": _edit_list,
    "clear a field": _clear,
    "transplant a message": _transplant,
}
