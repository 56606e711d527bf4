"""A clone of a model whose parts can be found by the ids of the original's graph, and edited."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fp16conv.execution.rounding import shape_of
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.frontends.sparse import stray_weights
from fp16conv.graph import ModelGraph

__all__ = ["Twins"]


class Twins:
    """The twin of every value and node of a loaded model in a clone of it.

    Nodes that belong at the head of a graph are collected in `insert` and put there by `finish`.

    Args:
        loaded: the model.
        work: its clone.
    """

    def __init__(self, loaded: LoadedModel, work: ir.Model) -> None:
        self.graph: ModelGraph = loaded.graph
        self.work = work
        twins: dict[ir.Value, ir.Value] = {}
        twin_nodes: dict[ir.Node, ir.Node] = {}
        for old, new in _scopes(loaded.model, work):
            _match(old, new, twins, twin_nodes)
        for name, value in stray_weights(loaded.model).items():
            twins[value] = work.graph.initializers[name]
        self.values = [twins.get(value) for value in loaded.values]
        self.nodes = [twin_nodes[node] for node in loaded.nodes]
        self._heads: dict[ir.Graph | ir.Function, list[ir.Node]] = {}

    def finish(self) -> None:
        """Put the collected nodes at the head of their graphs."""
        for graph, nodes in self._heads.items():
            _prepend(graph, nodes)
        self._heads.clear()

    def graph_of(self, scope: int) -> ir.Graph | ir.Function:
        """The graph or function that is a scope of the original."""
        facts = self.graph.scopes[scope]
        if scope == 0:
            return self.work.graph
        if facts.owner is not None:
            node = self.nodes[facts.owner]
            name, _, position = facts.name.partition("[")
            if name in node.attributes:
                attr = node.attributes[name]
                return attr.as_graphs()[int(position[:-1])] if position else attr.as_graph()
        for function in self.work.functions.values():
            key = function.identifier()
            if facts.name == f"{key[0]}::{key[1]}" + (f":{key[2]}" if key[2] else ""):
                return function
        raise KeyError(facts.name)

    def owner(self, twin: ir.Value) -> ir.Graph | ir.Function:
        """The graph or function that holds a value."""
        producer = twin.producer()
        owner = producer.graph if producer is not None else twin.graph
        if owner is None:
            raise KeyError(twin.name)
        return owner

    def insert(self, twin: ir.Value, nodes: list[ir.Node]) -> None:
        """Put nodes right behind the place where a value is made."""
        producer = twin.producer()
        if producer is None:
            self._heads.setdefault(self.owner(twin), []).extend(nodes)
        else:
            self.owner(twin).insert_after(producer, nodes)

    def replace_constant(
        self, twin: ir.Value, name: str, numbers: Callable[[], npt.NDArray[np.float32]]
    ) -> ir.Value:
        """Add a constant that some readers get instead of the constant `twin`.

        Args:
            twin: an initializer, or the output of a Constant node.
            name: of the new constant.
            numbers: float32, same shape; called when an initializer is read, at once otherwise.
        """
        graph = self.owner(twin)
        if isinstance(graph, ir.Graph) and twin.producer() is None:
            shape = shape_of(twin.const_value) if twin.const_value is not None else ir.Shape(twin.shape or ())
            added = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=shape)
            added.const_value = ir.LazyTensor(
                lambda: ir.tensor(numbers(), name=name), ir.DataType.FLOAT, shape, name=name
            )
            graph.register_initializer(added)
            return added
        array = numbers()
        node = ir.node("Constant", [], attributes={"value": ir.tensor(array)}, name=f"{name}/constant")
        (output,) = node.outputs
        output.name, output.type = name, ir.TensorType(ir.DataType.FLOAT)
        output.shape = ir.Shape(array.shape)
        self.insert(twin, [node])
        return output


def _prepend(graph: ir.Graph | ir.Function, nodes: list[ir.Node]) -> None:
    first = next(iter(graph), None)
    if first is None:
        graph.extend(nodes)
    else:
        graph.insert_before(first, nodes)


def _scopes(old: ir.Model, new: ir.Model) -> list[tuple[ir.Graph | ir.Function, ir.Graph | ir.Function]]:
    functions = zip(old.functions.values(), new.functions.values(), strict=True)
    return [(old.graph, new.graph), *functions]


def _match(
    old: ir.Graph | ir.Function,
    new: ir.Graph | ir.Function,
    values: dict[ir.Value, ir.Value],
    nodes: dict[ir.Node, ir.Node],
) -> None:
    """Pair the values and nodes of a graph with those of its clone."""
    values.update(zip(old.inputs, new.inputs, strict=True))
    if isinstance(old, ir.Graph) and isinstance(new, ir.Graph):
        for name, value in old.initializers.items():
            values[value] = new.initializers[name]
    for node, twin in zip(old, new, strict=True):
        nodes[node] = twin
        values.update(zip(node.outputs, twin.outputs, strict=True))
        for name, attr in node.attributes.items():
            if attr.is_ref():
                continue
            if attr.type is ir.AttributeType.GRAPH:
                _match(attr.as_graph(), twin.attributes[name].as_graph(), values, nodes)
            elif attr.type is ir.AttributeType.GRAPHS:
                bodies = zip(attr.as_graphs(), twin.attributes[name].as_graphs(), strict=True)
                for body, copy in bodies:
                    _match(body, copy, values, nodes)
