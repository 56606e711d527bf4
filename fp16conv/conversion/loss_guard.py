"""What onnx_ir would drop without a word: carried over where possible, refused by name where not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx
import onnx.numpy_helper
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from fp16conv.errors import ModelError

__all__ = ["carry_over", "refuse_losses"]

HINT = "remove it from the model first if it is not needed for inference"


def refuse_losses(proto: onnx.ModelProto, where: str) -> None:
    """Refuse a model that holds something the conversion could not keep.

    Args:
        proto: the parsed file.
        where: its name, for the message.

    Raises:
        ModelError: it has training information, two initializers of one name in a graph, sparse initializers
            in a subgraph, or fields that this version of onnx does not know.
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
    for path in _unknown_fields(proto, "model"):
        raise ModelError(
            f"holds a field that onnx {onnx.__version__} does not know, in {path}",
            where=where,
            hint="install a newer onnx package, or save the model with the installed one",
        )


def carry_over(source: onnx.ModelProto, target: onnx.ModelProto, halves: Mapping[str, str]) -> None:
    """Copy the main graph's sparse initializers, which onnx_ir does not read, into the converted model.

    Args:
        source: the model as parsed.
        target: the converted model.
        halves: name of each FP16 sparse initializer of `target`, and the name of the FP32 one in `source`;
            equal where it replaces it.
    """
    for sparse in source.graph.sparse_initializer:
        name = sparse.values.name
        if halves.get(name) != name:
            target.graph.sparse_initializer.append(sparse)
        for copy in (copy for copy, origin in halves.items() if origin == name):
            added = target.graph.sparse_initializer.add()
            added.CopyFrom(sparse)
            with np.errstate(over="ignore", under="ignore"):
                numbers = onnx.numpy_helper.to_array(sparse.values).astype(np.float16)
            added.values.CopyFrom(onnx.numpy_helper.from_array(numbers, copy))


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
