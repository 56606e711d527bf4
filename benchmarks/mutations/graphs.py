"""Mutations of ONNX models: wiring, operators, shapes, types, functions, nesting, external data, sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, TensorProto, helper

from benchmarks.mutations import protobuf
from benchmarks.mutations.protobuf import copy_of, messages
from benchmarks.mutations.values import BINARY, INTS, TEXTS, Rng, pick, spoil

__all__ = ["MUTATIONS", "mutate"]

_SIZES: Final = (0, -1, 1, 2**31, 2**40, 2**62, 3)
_TYPES: Final = [s.name for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated]
_DOMAINS: Final = (
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "com.microsoft",
    "ai.onnx.preview.training",
    "x",
    "ai.onnx.training",
)
_ATTRIBUTE_TYPES: Final = tuple(AttributeProto.AttributeType.values())
_LARGE: Final = 1_000_000  # bytes; what would be larger is left alone


def mutate(model: onnx.ModelProto, rng: Rng) -> bytes:
    """Return the bytes of a mutated copy.

    Args:
        model: the seed; not changed.
        rng: same state, same bytes.

    Returns:
        what to write to the file: one or two edits of the tree, sometimes more, and in one of ten cases
        of the bytes too.
    """
    copy = copy_of(model)
    names = list(MUTATIONS)
    for _ in range(int(pick((1, 1, 1, 2, 2, 4), rng))):
        try:
            MUTATIONS[pick(names, rng)](copy, rng)
        except DecodeError:  # nested so deeply that protobuf copies it no more
            break
    content = copy.SerializePartialToString(deterministic=True)
    content = content.replace(BINARY.encode(), b"\xff\xfe" * (len(BINARY.encode()) // 2))
    return spoil(content, rng) if rng.random() < 0.1 else content


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [m for m in messages(model) if isinstance(m, onnx.NodeProto)]


def _tensors(model: onnx.ModelProto) -> list[TensorProto]:
    return [m for m in messages(model) if isinstance(m, TensorProto)]


def _names(model: onnx.ModelProto) -> list[str]:
    names = [n for node in _nodes(model) for n in (*node.input, *node.output)]
    return names + [t.name for t in model.graph.initializer] + [v.name for v in model.graph.input]


def _rewire(model: onnx.ModelProto, rng: Rng) -> None:
    """Connect an input or output of a node to any name of the model: cycles, self-loops, second producers."""
    nodes, names = _nodes(model), [*_names(model), "", "nowhere"]
    if not nodes:
        return
    node = pick(nodes, rng)
    slots = pick((node.input, node.input, node.input, node.output), rng)
    if slots and rng.random() < 0.8:
        slots[int(rng.integers(len(slots)))] = pick(names, rng)
    else:
        slots.append(pick(names, rng))


def _rename_op(model: onnx.ModelProto, rng: Rng) -> None:
    """Make a node another operator, or a call of a function (maybe of the one it is in)."""
    nodes = _nodes(model)
    if not nodes:
        return
    node = pick(nodes, rng)
    if model.functions and rng.random() < 0.5:
        function = pick(model.functions, rng)
        node.domain, node.op_type = function.domain, function.name
    else:
        node.op_type = pick([*_TYPES, *(n.op_type for n in nodes)], rng)


def _rename_value(model: onnx.ModelProto, rng: Rng) -> None:
    """Give two values, nodes or functions one name, or one a strange name, everywhere it is used."""
    names = [n for n in _names(model) if n]
    if not names:
        return
    old, new = pick(names, rng), pick([*names, *TEXTS], rng)
    for message in messages(model):
        if isinstance(message, onnx.NodeProto):
            for slots in (message.input, message.output):
                slots[:] = [new if n == old else n for n in slots]
        elif isinstance(message, TensorProto | onnx.ValueInfoProto) and message.name == old:
            message.name = new


def _resize(model: onnx.ModelProto, rng: Rng) -> None:
    """Change a dimension of a tensor or of a declared shape."""
    tensors = _tensors(model)
    shapes = [m for m in messages(model) if isinstance(m, onnx.TensorShapeProto)]
    if tensors and (not shapes or rng.random() < 0.5):
        dims = pick(tensors, rng).dims
        if dims and rng.random() < 0.7:
            dims[int(rng.integers(len(dims)))] = int(pick(_SIZES, rng))
        else:
            dims.extend([int(pick(_SIZES, rng))] * int(rng.integers(1, 12)))
    elif shapes:
        shape = pick(shapes, rng)
        dim = pick(shape.dim, rng) if shape.dim and rng.random() < 0.8 else shape.dim.add()
        dim.dim_value = int(pick(_SIZES, rng))


def _refill(model: onnx.ModelProto, rng: Rng) -> None:
    """Put other integers into a small constant: shapes, axes, repeats, depths."""
    tensors = [t for t in _tensors(model) if t.data_type == TensorProto.INT64 and len(t.raw_data) <= 256]
    if tensors:
        tensor = pick(tensors, rng)
        count = max(len(tensor.raw_data) // 8, len(tensor.int64_data))
        numbers = [int(pick(INTS, rng)) for _ in range(count)]
        if tensor.int64_data:
            tensor.int64_data[:] = numbers
        else:
            tensor.raw_data = np.array(numbers, np.int64).tobytes()


def _retype(model: onnx.ModelProto, rng: Rng) -> None:
    """Store a tensor in another data type, its bytes fitting or not; a declared type changes too."""
    if rng.random() < 0.5 and model.graph.initializer:
        tensor = pick(model.graph.initializer, rng)
        code = int(pick(TensorProto.DataType.values(), rng))
        count = int(np.prod([max(d, 0) for d in tensor.dims], dtype=np.float64))
        if 0 <= count < 100_000:
            tensor.data_type = code
            tensor.ClearField("float_data")
            tensor.raw_data = rng.bytes(count * int(pick((1, 2, 4, 8, 16), rng)))
        return
    infos = [m for m in messages(model) if isinstance(m, onnx.TypeProto.Tensor)]
    if infos:
        pick(infos, rng).elem_type = int(pick(TensorProto.DataType.values(), rng))


def _contain(model: onnx.ModelProto, rng: Rng) -> None:
    """Declare a value as a sequence, an optional, a map or a sparse tensor, a few or many deep."""
    infos = [m for m in messages(model) if isinstance(m, onnx.ValueInfoProto)]
    if not infos:
        return
    info = pick(infos, rng)
    for _ in range(int(pick((1, 1, 2, 30), rng))):
        inner = copy_of(info.type)
        kind = int(rng.integers(4))
        if kind == 0:
            info.type.sequence_type.elem_type.CopyFrom(inner)
        elif kind == 1:
            info.type.optional_type.elem_type.CopyFrom(inner)
        elif kind == 2:
            info.type.map_type.key_type = int(pick((7, 8, 1), rng))
            info.type.map_type.value_type.CopyFrom(inner)
        else:
            info.type.sparse_tensor_type.elem_type = 1


def _version(model: onnx.ModelProto, rng: Rng) -> None:
    """Change an imported version, the IR version, or import a domain (again)."""
    kind = int(rng.integers(3))
    if kind == 0 and model.opset_import:
        pick(model.opset_import, rng).version = int(
            pick((0, -1, 1, 6, 7, 12, 13, 18, 21, 25, 99, 2**62), rng)
        )
    elif kind == 1:
        model.ir_version = int(pick((0, -1, 1, 2, 3, 4, 7, 8, 10, 13, 14, 99, 2**62), rng))
    else:
        model.opset_import.add(domain=pick(_DOMAINS, rng), version=int(pick((0, 1, 5, 13, 17, 22), rng)))


def _annotate(model: onnx.ModelProto, rng: Rng) -> None:
    """Add what few models have: quantization notes, training graphs, devices, much metadata, a segment."""
    names = _names(model) or ["x"]
    kind = int(rng.integers(5))
    if kind == 0:
        note = model.graph.quantization_annotation.add(tensor_name=pick(names, rng))
        note.quant_parameter_tensor_names.add(key=pick(("SCALE_TENSOR", "x"), rng), value=pick(names, rng))
    elif kind == 1:
        model.training_info.add().algorithm.CopyFrom(model.graph)
    elif kind == 2:
        model.configuration.add(name="c", num_devices=int(pick((0, 2, -1), rng)))
        for node in _nodes(model)[:2]:
            node.device_configurations.add(configuration_id=pick(("c", "d"), rng))
    elif kind == 3:
        owner = pick([model, model.graph, *_nodes(model)], rng)
        size = int(pick((1, 100, 10_000, 5_000_000), rng))
        owner.metadata_props.add(key=pick(("k", "k", ""), rng), value="x" * size)
        owner.metadata_props.add(key="k", value=pick(TEXTS, rng))
    elif model.graph.initializer:
        segment = pick(model.graph.initializer, rng).segment
        segment.begin, segment.end = int(pick(INTS, rng)), int(pick(INTS, rng))


def _sparsify(model: onnx.ModelProto, rng: Rng) -> None:
    """Store a constant sparsely, with indices that may be wrong."""
    if not model.graph.initializer:
        return
    at = int(rng.integers(len(model.graph.initializer)))
    tensor = model.graph.initializer[at]
    count = int(pick((0, 1, 3), rng))
    rank = int(pick((1, max(len(tensor.dims), 1)), rng))
    sparse = model.graph.sparse_initializer.add(dims=tensor.dims)
    sparse.values.CopyFrom(helper.make_tensor(tensor.name, TensorProto.FLOAT, [count], [1.0] * count))
    indices = [int(pick((0, 1, 2, -1, 2**40), rng)) for _ in range(count * rank)]
    shape = [count, rank] if rank > 1 else [count]
    sparse.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, shape, indices))
    if rng.random() < 0.8:
        del model.graph.initializer[at]


def _externalize(model: onnx.ModelProto, rng: Rng) -> None:
    """Point a tensor at a file, of any kind."""
    tensors = _tensors(model)
    if not tensors:
        return
    tensor = pick(tensors, rng)
    tensor.data_location = TensorProto.EXTERNAL
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
    keys = {"location": pick(places, rng), "offset": pick(("0", "8", "-1", "x", str(2**63)), rng)}
    keys["length"] = pick(("0", "16", "64", "-5", "1e3", str(2**62), "٣"), rng)
    for key, value in keys.items():
        if rng.random() < 0.7 or key == "location":
            tensor.external_data.add(key=key, value=value)


def _nest(model: onnx.ModelProto, rng: Rng) -> None:
    """Wrap the graph into branches of an If, a few or very many deep."""
    body = copy_of(model.graph)
    if body.ByteSize() > _LARGE // 5:
        return
    is_slim = rng.random() < 0.5  # the other branch is cheap
    for level in range(int(pick((1, 2, 5, 20, 70), rng))):
        outer = onnx.GraphProto(name=f"g{level}")
        node = outer.node.add(op_type="If", input=["condition"], output=[o.name for o in body.output])
        node.attribute.add(name="then_branch", type=AttributeProto.GRAPH).g.CopyFrom(body)
        other = node.attribute.add(name="else_branch", type=AttributeProto.GRAPH).g
        if is_slim:
            for output in model.graph.output:
                other.node.add(op_type="Constant", output=[output.name]).attribute.add(
                    name="value_float", type=AttributeProto.FLOAT, f=1.0
                )
            other.output.extend(model.graph.output)
        else:
            other.CopyFrom(model.graph)
        for attr in node.attribute:
            attr.g.ClearField("input")
        outer.output.extend(body.output)
        if outer.ByteSize() > _LARGE:
            return
        body = outer
    body.input.extend(model.graph.input)
    body.initializer.append(TensorProto(name="condition", data_type=TensorProto.BOOL, raw_data=b"\1"))
    model.graph.CopyFrom(body)


def _loop(model: onnx.ModelProto, rng: Rng) -> None:
    """Make the graph the body of a Loop or Scan that carries one of its values, sometimes wrongly."""
    graph = model.graph
    if graph.ByteSize() > _LARGE // 5 or not graph.input or not graph.output:
        return
    body, outer = copy_of(graph), onnx.GraphProto(name="outer")
    carried = body.input[0]
    op_type = pick(("Loop", "Loop", "Scan"), rng)
    results = [f"{o.name}_last" for o in body.output]
    if op_type == "Loop":
        del body.input[:]
        body.input.append(helper.make_tensor_value_info("i", TensorProto.INT64, []))
        body.input.append(helper.make_tensor_value_info("go", TensorProto.BOOL, []))
        body.input.append(carried)
        body.output.insert(0, helper.make_tensor_value_info("go", TensorProto.BOOL, []))
        node = outer.node.add(op_type="Loop", input=["count", "", carried.name], output=results)
    else:
        node = outer.node.add(op_type="Scan", input=[i.name for i in body.input], output=results)
        node.attribute.add(name="num_scan_inputs", type=AttributeProto.INT, i=int(pick((1, 1, 0, 5), rng)))
    node.attribute.add(name="body", type=AttributeProto.GRAPH).g.CopyFrom(body)
    outer.input.extend(graph.input)
    outer.initializer.append(
        helper.make_tensor("count", TensorProto.INT64, [], [int(pick((0, 1, 3, 2**62), rng))])
    )
    for info, name in zip(graph.output, results, strict=True):
        outer.output.add(name=name).type.CopyFrom(info.type)
    graph.CopyFrom(outer)


def _outline(model: onnx.ModelProto, rng: Rng) -> None:
    """Move a node into a function, that into another, and so on; calls may double or go in circles."""
    nodes = [n for n in model.graph.node if not any(a.HasField("g") for a in n.attribute)]
    if not nodes:
        return
    node, start = pick(nodes, rng), len(model.functions)
    inner = copy_of(node)
    inputs, outputs = [n for n in dict.fromkeys(node.input) if n], [n for n in node.output if n]
    calls = int(pick((1, 1, 2), rng))
    for level in range(int(pick((1, 2, 5, 30, 80), rng))):
        function = model.functions.add(name=f"f{start + level}", domain="fuzz", input=inputs, output=outputs)
        function.opset_import.extend(model.opset_import)
        function.opset_import.add(domain="fuzz", version=1)
        for _ in range(calls):
            function.node.add().CopyFrom(inner)
        if calls > 1:
            for n, name in itertools.product(range(1, calls), range(len(outputs))):
                function.node[n].output[name] = f"{outputs[name]}_{n}"
        inner = onnx.NodeProto(op_type=function.name, domain="fuzz", input=inputs, output=outputs)
    if rng.random() < 0.1:  # the first calls the last
        model.functions[start].node[0].CopyFrom(inner)
    node.CopyFrom(inner)
    model.opset_import.add(domain="fuzz", version=1)


def _refer(model: onnx.ModelProto, rng: Rng) -> None:
    """Let an attribute refer to one of a function, add one, or change its type."""
    nodes = _nodes(model)
    if not nodes:
        return
    node = pick(nodes, rng)
    if not node.attribute or rng.random() < 0.3:
        node.attribute.add(name=pick(("axis", "to", "value", "alpha", "perm"), rng))
    attr = pick(node.attribute, rng)
    kind = int(rng.integers(3))
    if kind == 0:
        attr.ref_attr_name = pick(("a", attr.name, ""), rng)
    elif kind == 1:
        attr.type = int(pick(_ATTRIBUTE_TYPES, rng))
    elif model.functions:
        pick(model.functions, rng).attribute.append(attr.name)


def _grow(model: onnx.ModelProto, rng: Rng) -> None:
    """Compute something gigantic: a long list, an astronomic tensor, a rank that grows, behind a value."""
    names = [n for n in _names(model) if n]
    if not names:
        return
    size = int(pick((10**5, 10**7, 2**31, 2**40, 2**62, -1), rng))
    model.graph.initializer.append(helper.make_tensor("grow_size", TensorProto.INT64, [1], [size]))
    old, name = pick(names, rng), "grow_0"
    make = helper.make_node
    chain = [make("Concat", [f"grow_{i}"] * 2, [f"grow_{i + 1}"], axis=0) for i in range(1, 41)]
    nodes = {
        "list": [
            make("ConstantOfShape", ["grow_size"], ["grow_1"]),
            make("Cast", ["grow_1"], ["grow_2"], to=TensorProto.INT64),
            make("Mul", ["grow_2", "grow_2"], ["grow_3"]),
            make("Expand", [old, "grow_3"], [name]),
        ],
        "expand": [make("Expand", [old, "grow_size"], [name])],
        "double": [make("Identity", [old], ["grow_1"]), *chain, make("Identity", ["grow_41"], [name])],
        "shape": [make("Shape", [old], ["grow_1"]), *chain, make("Reshape", [old, "grow_41"], [name])],
    }[
        pick(("expand", "expand", "double") if rng.random() < 0.9 else ("list", "shape"), rng)
    ]  # these are slow
    for node in model.graph.node:
        node.input[:] = [name if n == old else n for n in node.input]
    at = next((i + 1 for i, n in enumerate(model.graph.node) if old in n.output), 0)
    kept = list(model.graph.node)
    kept[at:at] = nodes
    copies = [copy_of(n) for n in kept]
    model.graph.ClearField("node")
    model.graph.node.extend(copies)


MUTATIONS: Final[dict[str, Callable[[Any, Rng], None]]] = {
    **protobuf.MUTATIONS,
    "rewire a node": _rewire,
    "rewire another node": _rewire,
    "rename an operator": _rename_op,
    "rename a value": _rename_value,
    "resize": _resize,
    "refill a constant": _refill,
    "change a type": _retype,
    "contain": _contain,
    "change a version": _version,
    "annotate": _annotate,
    "store sparsely": _sparsify,
    "externalize": _externalize,
    "nest": _nest,
    "loop": _loop,
    "move into functions": _outline,
    "refer to an attribute": _refer,
    "grow": _grow,
}
