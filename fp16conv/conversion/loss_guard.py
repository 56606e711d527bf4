"""What onnx_ir would drop or add without a word: put right where possible, refused by name where not."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import onnx
import onnx.defs
import onnx.numpy_helper
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from fp16conv.errors import ModelError
from fp16conv.frontends.schemas import ONNX_DOMAINS

__all__ = ["carry_over", "refuse_losses"]

HINT = "remove it from the model first if it is not needed for inference"


def refuse_losses(proto: onnx.ModelProto, where: str) -> None:
    """Refuse a model that holds something the conversion could not keep.

    Args:
        proto: the parsed file.
        where: its name, for the message.

    Raises:
        ModelError: it has training information, two initializers of one name in a graph, sparse initializers
            in a subgraph, functions that shadow operators of ONNX, or fields that this version of onnx does
            not know.
    """
    if proto.training_info:
        names = ", ".join(
            repr(info.algorithm.name or info.initialization.name) for info in proto.training_info
        )
        raise ModelError(
            f"holds training_info ({names}), which refers to the FP32 weights by name", where=where, hint=HINT
        )
    for path, graph in _graphs(proto):
        if path and graph.sparse_initializer:
            name = graph.sparse_initializer[0].values.name
            raise ModelError(
                f"holds the sparse initializer '{name}' in subgraph {path}", where=where, hint=HINT
            )
        seen: set[str] = set()
        for name in [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]:
            if name in seen:
                raise ModelError(
                    f"holds two initializers of the name '{name}'",
                    where=where,
                    why="which one the operators read is not defined",
                    hint="rename or remove one of them",
                )
            seen.add(name)
    for function in proto.functions:
        if function.domain in ONNX_DOMAINS and onnx.defs.has(function.name):
            raise ModelError(
                f"holds a function of its own with the name of ONNX's operator {function.name}",
                where=where,
                why="runtimes run the operator where ONNX means the function, so what is right is open",
                hint="give the function a domain of its own",
            )
    for path in _unknown_fields(proto, "model"):
        raise ModelError(
            f"holds a field that onnx {onnx.__version__} does not know, in {path}",
            where=where,
            hint="install a newer onnx package, or save the model with the installed one",
        )


def carry_over(source: onnx.ModelProto, target: onnx.ModelProto, halves: Mapping[str, str]) -> None:
    """Give the converted model what onnx_ir loses of the source, and take away what it adds.

    Sparse initializers, which it does not read; notes and denotations of values that are input and output,
    which it keeps once; type entries of initializers, which it adds; metadata of initializers, which it
    doubles.

    Args:
        source: the model as parsed.
        target: the converted model.
        halves: name of each FP16 sparse initializer of `target`, and the name of the FP32 one in `source`;
            equal where it replaces it.
    """
    _restore_interface(source.graph, target.graph)
    noted = {info.name for _, graph in _graphs(source) for info in graph.value_info}
    for _, graph in _graphs(target):
        _tidy(graph, noted)
    for sparse in source.graph.sparse_initializer:
        name = sparse.values.name
        if halves.get(name) != name:
            target.graph.sparse_initializer.append(sparse)
        for half in (half for half, origin in halves.items() if origin == name):
            added = target.graph.sparse_initializer.add()
            added.CopyFrom(sparse)
            with np.errstate(over="ignore", under="ignore"):
                numbers = onnx.numpy_helper.to_array(sparse.values).astype(np.float16)
            added.values.CopyFrom(onnx.numpy_helper.from_array(numbers, half))


def _restore_interface(source: onnx.GraphProto, target: onnx.GraphProto) -> None:
    for before, after in ((source.input, target.input), (source.output, target.output)):
        for old, new in zip(before, after, strict=True):
            converted = onnx.TypeProto()
            converted.CopyFrom(new.type)
            new.CopyFrom(old)
            if not new.type.WhichOneof("value"):
                new.type.CopyFrom(converted)
            elif element := _innermost(converted).elem_type:
                _innermost(new.type).elem_type = element
    noted = {info.name for info in target.value_info}
    outputs = {info.name: info for info in target.output}
    for info in source.value_info:
        if info.name in noted:
            continue
        if info.name in outputs:  # some exporters list outputs there too
            entry = target.value_info.add()
            entry.CopyFrom(info)
            entry.type.CopyFrom(outputs[info.name].type)
        elif info.type.WhichOneof("value") not in (None, "tensor_type"):
            target.value_info.add().CopyFrom(info)  # maps, which are never retyped


def _innermost(type_: onnx.TypeProto) -> onnx.TypeProto.Tensor:
    """What a tensor, or the tensors in a sequence or optional, are made of."""
    while (kind := type_.WhichOneof("value")) in ("sequence_type", "optional_type"):
        type_ = getattr(type_, kind).elem_type
    return type_.tensor_type


def _tidy(graph: onnx.GraphProto, noted: Collection[str]) -> None:
    initializers = {tensor.name for tensor in graph.initializer}
    kept = [i for i in graph.value_info if i.name not in initializers or i.name in noted]
    if len(kept) < len(graph.value_info):
        entries = [copy.deepcopy(info) for info in kept]
        del graph.value_info[:]
        graph.value_info.extend(entries)
    for tensor in graph.initializer:
        entries_by_key = {entry.key: entry.value for entry in tensor.metadata_props}
        if len(entries_by_key) < len(tensor.metadata_props):
            del tensor.metadata_props[:]
            for key, text in entries_by_key.items():
                tensor.metadata_props.add(key=key, value=text)


def _graphs(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    yield "", proto.graph
    yield from _subgraphs(proto.graph.node, "main")
    for function in proto.functions:
        yield from _subgraphs(function.node, function.name)


def _subgraphs(nodes: Iterable[onnx.NodeProto], parent: str) -> Iterator[tuple[str, onnx.GraphProto]]:
    for node in nodes:
        for attr in node.attribute:
            for graph in (*([attr.g] if attr.HasField("g") else ()), *attr.graphs):
                path = f"{parent}/{node.name or node.op_type}.{attr.name}"
                yield path, graph
                yield from _subgraphs(graph.node, path)


def _unknown_fields(message: Message, path: str) -> Iterator[str]:
    if len(UnknownFieldSet(message)):
        yield path
    for descriptor, content in message.ListFields():
        if descriptor.message_type is None:
            continue
        label = f"{path}.{descriptor.name}"
        if isinstance(content, Message):
            yield from _unknown_fields(content, label)
        else:
            for i, item in enumerate(content):
                yield from _unknown_fields(item, f"{label}[{i}]")
