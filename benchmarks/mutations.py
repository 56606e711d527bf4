"""A structured mutator for ONNX models: it edits the protobuf tree, the wiring of the graph, the bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

__all__ = ["MUTATIONS", "mutate"]

Rng = np.random.Generator

_INTS: Final = (0, 1, -1, 2, 3, 7, 255, 65536, 10**6, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
_FLOATS: Final = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, -3.4e38, float("inf"), float("-inf"), float("nan"))
_TEXTS: Final = (
    "",
    "x",
    "../x",
    "/etc/passwd",
    "a/b",
    "a\0b",
    "\n",
    "ü\u202e",
    "x" * 5000,
    "ai.onnx",
    "%s{0}",
    "..",
)
_SIZES: Final = (0, -1, 1, 2**31, 2**40, 2**62, 3)
_ONNX_TYPES: Final = (
    "Abs",
    "Cast",
    "Concat",
    "Constant",
    "ConstantOfShape",
    "Conv",
    "Expand",
    "Flatten",
    "Gather",
    "Gemm",
    "Identity",
    "If",
    "LayerNormalization",
    "Loop",
    "MatMul",
    "OneHot",
    "Pad",
    "Pow",
    "Range",
    "ReduceSum",
    "Reshape",
    "Resize",
    "Scan",
    "SequenceConstruct",
    "Slice",
    "Softmax",
    "Split",
    "Squeeze",
    "Tile",
    "TopK",
    "Transpose",
    "Unsqueeze",
    "Where",
)


def mutate(model: onnx.ModelProto, rng: Rng) -> bytes:
    """Return the bytes of a mutated copy.

    Args:
        model: the seed; not changed.
        rng: same state, same bytes.

    Returns:
        what to write to the file: one or two edits of the tree, sometimes more, and in one of ten cases
        of the bytes too.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    names = list(MUTATIONS)
    for _ in range(int(_pick((1, 1, 1, 2, 2, 4), rng))):
        MUTATIONS[names[int(rng.integers(len(names)))]](copy, rng)
    content = copy.SerializeToString(deterministic=True)
    return _spoil(content, rng) if rng.random() < 0.1 else content


def _spoil(content: bytes, rng: Rng) -> bytes:
    data = bytearray(content)
    kind = int(rng.integers(4))
    if not data or kind == 0:
        return bytes(data[: int(rng.integers(len(data) + 1))])
    if kind == 1:
        for _ in range(int(rng.integers(1, 9))):
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    elif kind == 2:
        at, size = int(rng.integers(len(data))), int(rng.integers(1, 64))
        data[at : at + size] = rng.bytes(int(rng.integers(64)))
    else:
        start, end = sorted(int(rng.integers(len(data) + 1)) for _ in range(2))
        data[end:end] = data[start : min(end, start + 4096)]
    return bytes(data)


def _messages(message: Message) -> Iterator[Message]:
    """Return the message and all below it, without recursion."""
    stack = [message]
    while stack:
        item = stack.pop()
        yield item
        for field, content in item.ListFields():
            if field.message_type is not None:
                stack += list(content) if _is_repeated(field) else [content]


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _pick(items: Any, rng: Rng) -> Any:
    return items[int(rng.integers(len(items)))]


def _edit_field(model: onnx.ModelProto, rng: Rng) -> None:
    """Change one scalar field anywhere, set or not."""
    message = _pick(list(_messages(model)), rng)
    fields = [f for f in message.DESCRIPTOR.fields if f.message_type is None]
    filled = [f for f, _ in message.ListFields() if f.message_type is None]
    if not fields:
        return
    field = _pick(filled if filled and rng.random() < 0.8 else fields, rng)
    if not _is_repeated(field):
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
        return _pick([v.number for v in field.enum_type.values], rng)
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return float(_pick(_FLOATS, rng))
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            data = old if isinstance(old, bytes) else b""
            return _pick((b"", data[: len(data) // 2], data + b"\0\1\xff", data[1:], rng.bytes(9)), rng)
        return _pick(_TEXTS, rng)
    number = int(_pick(_INTS, rng)) if rng.random() < 0.6 else int(rng.integers(-2, 40))
    low, high = {
        FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
        FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
        FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    }.get(kind, (-(2**63), 2**63 - 1))
    return min(max(number, low), high)


def _edit_list(model: onnx.ModelProto, rng: Rng) -> None:
    """Delete, repeat, swap or shuffle messages in one repeated field."""
    lists = [
        (m, f.name)
        for m in _messages(model)
        for f, content in m.ListFields()
        if f.message_type is not None and _is_repeated(f) and len(content)
    ]
    if not lists:
        return
    message, name = _pick(lists, rng)
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
    kept = [type(i).FromString(i.SerializePartialToString()) for i in items]
    message.ClearField(name)
    getattr(message, name).extend(kept)


def _clear(model: onnx.ModelProto, rng: Rng) -> None:
    """Clear one field anywhere."""
    filled = [(m, f.name) for m in _messages(model) for f, _ in m.ListFields()]
    if filled:
        message, name = _pick(filled, rng)
        message.ClearField(name)


def _transplant(model: onnx.ModelProto, rng: Rng) -> None:
    """Overwrite one message with another one of its type."""
    groups: dict[str, list[Message]] = {}
    for message in _messages(model):
        groups.setdefault(message.DESCRIPTOR.name, []).append(message)
    many = [group for name, group in groups.items() if len(group) > 1 and name != "GraphProto"]
    if many:
        group = _pick(many, rng)
        content = _pick(group, rng).SerializePartialToString()
        target = _pick(group, rng)
        target.Clear()
        target.MergeFromString(content)


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [m for m in _messages(model) if isinstance(m, onnx.NodeProto)]


def _rewire(model: onnx.ModelProto, rng: Rng) -> None:
    """Connect an input or output of a node to any name of the model: cycles, self-loops, second producers."""
    nodes = _nodes(model)
    names = [n for node in nodes for n in (*node.input, *node.output)]
    names += [t.name for t in model.graph.initializer] + [v.name for v in model.graph.input] + ["", "nowhere"]
    if not nodes:
        return
    node = _pick(nodes, rng)
    slots = _pick((node.input, node.input, node.input, node.output), rng)
    if slots and rng.random() < 0.8:
        slots[int(rng.integers(len(slots)))] = _pick(names, rng)
    else:
        slots.append(_pick(names, rng))


def _rename_op(model: onnx.ModelProto, rng: Rng) -> None:
    """Make a node another operator, or a call of a function (maybe of the one it is in)."""
    nodes = _nodes(model)
    if not nodes:
        return
    node = _pick(nodes, rng)
    if model.functions and rng.random() < 0.5:
        function = _pick(model.functions, rng)
        node.domain, node.op_type = function.domain, function.name
    else:
        node.op_type = _pick([*_ONNX_TYPES, *(n.op_type for n in nodes)], rng)


def _resize(model: onnx.ModelProto, rng: Rng) -> None:
    """Change a dimension of a tensor or of a declared shape."""
    tensors = [m for m in _messages(model) if isinstance(m, onnx.TensorProto)]
    shapes = [m for m in _messages(model) if isinstance(m, onnx.TensorShapeProto)]
    if tensors and (not shapes or rng.random() < 0.5):
        dims = _pick(tensors, rng).dims
        if dims and rng.random() < 0.7:
            dims[int(rng.integers(len(dims)))] = int(_pick(_SIZES, rng))
        else:
            dims.extend([int(_pick(_SIZES, rng))] * int(rng.integers(1, 12)))
    elif shapes:
        shape = _pick(shapes, rng)
        dim = _pick(shape.dim, rng) if shape.dim and rng.random() < 0.8 else shape.dim.add()
        dim.dim_value = int(_pick(_SIZES, rng))


def _refill(model: onnx.ModelProto, rng: Rng) -> None:
    """Put other integers into a small constant: shapes, axes, repeats, depths."""
    tensors = [
        m
        for m in _messages(model)
        if isinstance(m, onnx.TensorProto)
        and m.data_type == onnx.TensorProto.INT64
        and len(m.raw_data) <= 256
    ]
    if tensors:
        tensor = _pick(tensors, rng)
        count = max(len(tensor.raw_data) // 8, len(tensor.int64_data))
        numbers = [int(_pick(_INTS, rng)) for _ in range(count)]
        if tensor.int64_data:
            tensor.int64_data[:] = numbers
        else:
            tensor.raw_data = np.array(numbers, np.int64).tobytes()


def _externalize(model: onnx.ModelProto, rng: Rng) -> None:
    """Point a tensor at a file, of any kind."""
    tensors = [m for m in _messages(model) if isinstance(m, onnx.TensorProto)]
    if not tensors:
        return
    tensor = _pick(tensors, rng)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    if rng.random() < 0.7:
        tensor.ClearField("raw_data")
    places = (
        "data.bin",
        "../data.bin",
        "/dev/zero",
        "fifo",
        "link",
        "",
        ".",
        "model.onnx",
        "no.bin",
        "a\0b",
        "x" * 300,
    )
    keys = {"location": _pick(places, rng), "offset": _pick(("0", "8", "-1", "x", str(2**63)), rng)}
    keys["length"] = _pick(("0", "16", "64", "-5", "1e3", str(2**62), "٣"), rng)
    for key, value in keys.items():
        if rng.random() < 0.7 or key == "location":
            tensor.external_data.add(key=key, value=value)


def _nest(model: onnx.ModelProto, rng: Rng) -> None:
    """Wrap the graph into branches of an If, a few or very many deep."""
    body = onnx.GraphProto()
    body.CopyFrom(model.graph)
    if body.ByteSize() > 200_000:
        return
    for level in range(int(_pick((1, 2, 5, 20), rng))):
        outer = onnx.GraphProto(name=f"g{level}")
        node = outer.node.add(op_type="If", input=["condition"], output=[o.name for o in body.output])
        node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g.CopyFrom(body)
        node.attribute.add(name="else_branch", type=onnx.AttributeProto.GRAPH).g.CopyFrom(model.graph)
        for attr in node.attribute:
            attr.g.ClearField("input")
        outer.output.extend(body.output)
        if outer.ByteSize() > 1_000_000:
            return
        body = outer
    body.input.extend(model.graph.input)
    body.initializer.append(
        onnx.TensorProto(name="condition", data_type=onnx.TensorProto.BOOL, raw_data=b"\1")
    )
    model.graph.CopyFrom(body)


MUTATIONS: Final[dict[str, Callable[[onnx.ModelProto, Rng], None]]] = {
    "edit a field": _edit_field,
    "edit another field": _edit_field,
    "edit a list": _edit_list,
    "clear a field": _clear,
    "transplant a message": _transplant,
    "rewire a node": _rewire,
    "rewire another node": _rewire,
    "rename an operator": _rename_op,
    "resize": _resize,
    "refill a constant": _refill,
    "externalize": _externalize,
    "nest": _nest,
}
