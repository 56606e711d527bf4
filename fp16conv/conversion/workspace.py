"""A private copy of the model under conversion, reached by the ids of the ModelGraph."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from fp16conv.errors import InternalError
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import ModelGraph, Use

__all__ = ["Names", "Workspace", "iterate_graphs", "open_workspace", "replace_input"]

CAST_OPSET = 13  # imported where a model of contrib operators alone has no ai.onnx yet


class Names:
    """All value and node names of a model, any scope; hands out unused ones."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken

    def take(self, wanted: str) -> str:
        """`wanted`, or the first of `wanted_1`, `wanted_2` ... that nothing uses yet."""
        name, count = wanted, 0
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


@dataclass(frozen=True)
class Workspace:
    """The model being converted and the map from ids to its parts.

    Args:
        model: the copy; tensors are shared with the loaded model, everything else is its own.
        nodes: node of the copy by op id.
        values: value of the copy by value id.
        graphs: graph of the copy by scope id.
    """

    graph: ModelGraph
    model: ir.Model
    nodes: tuple[ir.Node, ...]
    values: tuple[ir.Value, ...]
    graphs: tuple[ir.Graph, ...]
    names: Names
    _last: dict[ir.Node, ir.Node] = field(default_factory=dict, repr=False)
    _first: dict[ir.Graph, ir.Node | None] = field(default_factory=dict, repr=False)

    def insert_after(self, value: int, node: ir.Node) -> None:
        """Put a node right behind the producer of a value, or at the top of its scope if it has none.

        Nodes inserted at one place stand in the order of the calls.
        """
        info = self.graph.values[value]
        graph = self.graphs[info.scope]
        self._import_onnx(info.scope)
        if info.producer is None:
            if graph not in self._first:
                self._first[graph] = graph[0] if len(graph) else None
            first = self._first[graph]
            if first is None:
                graph.append(node)
            else:
                graph.insert_before(first, node)
            return
        producer = self.nodes[info.producer]
        graph.insert_after(self._last.get(producer, producer), node)
        self._last[producer] = node

    def redirect(self, use: Use, value: ir.Value) -> None:
        """Let a use read another value."""
        if use.op is None:
            self.graphs[use.scope].outputs[use.slot] = value
        else:
            replace_input(self.nodes[use.op], use.slot, value)

    def opset(self, scope: int) -> int:
        """Version of ai.onnx that nodes inserted into a scope are read with."""
        imports = self._imports(scope)
        return imports.get("", imports.get("ai.onnx", self.graph.opsets.get("", CAST_OPSET)))

    def _import_onnx(self, scope: int) -> None:
        imports = self._imports(scope)
        if "" not in imports and "ai.onnx" not in imports:
            imports[""] = self.opset(scope)

    def _imports(self, scope: int) -> dict[str, int]:
        parent = self.graph.scopes[scope].parent
        while parent is not None:
            scope, parent = parent, self.graph.scopes[parent].parent
        return self.graphs[scope].opset_imports


def open_workspace(loaded: LoadedModel) -> Workspace:
    """Copy the model in time linear in nodes and values; `loaded` stays as it is."""
    model, nodes, values = _clone(loaded.model)
    graph = loaded.graph
    new_nodes = tuple(nodes[node] for node in loaded.nodes)
    graphs: dict[int, ir.Graph] = {0: model.graph}
    functions = [scope.id for scope in graph.scopes if scope.parent is None and scope.id != 0]
    for scope_id, function in zip(functions, model.functions.values(), strict=True):
        graphs[scope_id] = function.graph
    for op in graph.ops:
        for name, scope_id in op.subscopes.items():
            graphs[scope_id] = _body(new_nodes[op.id], name)
    names = {n for g in graphs.values() for n in _names(g)}
    return Workspace(
        graph,
        model,
        new_nodes,
        tuple(values[value] for value in loaded.values),
        tuple(graphs[scope.id] for scope in graph.scopes),
        Names(names | {value.name or "" for value in values.values()}),
    )


def replace_input(node: ir.Node, slot: int, value: ir.Value) -> None:
    """Let a node read another value; how the old one is split over devices holds for the new one."""
    old, configurations = node.inputs[slot], node.device_configurations
    node.replace_input_with(slot, value)
    if not configurations:
        return
    is_read = any(other is old for other in node.inputs)
    node.device_configurations = tuple(
        dataclasses.replace(
            configuration,
            sharding_specs=tuple(
                spec
                for given in configuration.sharding_specs
                for spec in (
                    *((given,) if given.value is not old or is_read else ()),
                    *((dataclasses.replace(given, value=value),) if given.value is old else ()),
                )
            ),
        )
        for configuration in configurations
    )


def _body(node: ir.Node, name: str) -> ir.Graph:
    if name in node.attributes:
        return node.attributes[name].as_graph()
    attribute, _, index = name.rpartition("[")  # GRAPHS attributes are named body[0], body[1] ...
    return node.attributes[attribute].as_graphs()[int(index[:-1])]


def _names(graph: ir.Graph) -> Iterator[str]:
    for value in (*graph.inputs, *graph.initializers.values()):
        yield value.name or ""
    for node in graph:
        yield node.name or ""
        for value in node.outputs:
            yield value.name or ""


def iterate_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Main graph, function bodies and all their subgraphs, each once, in file order."""
    stack = [model.graph, *(function.graph for function in model.functions.values())][::-1]
    while stack:
        graph = stack.pop()
        yield graph
        stack.extend([body for node in graph for body in _bodies(node)][::-1])


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for attr in node.attributes.values():
        if attr.is_ref():
            continue
        if attr.type is ir.AttributeType.GRAPH:
            yield attr.as_graph()
        elif attr.type is ir.AttributeType.GRAPHS:
            yield from attr.as_graphs()


def _clone(model: ir.Model) -> tuple[ir.Model, dict[ir.Node, ir.Node], dict[ir.Value, ir.Value]]:
    functions = [
        ir.Function(
            f.domain,
            f.name,
            f.overload,
            graph=f.graph.clone(allow_outer_scope_values=True),
            attributes=list(f.attributes.values()),
        )
        for f in model.functions.values()
    ]
    copy = ir.Model(
        model.graph.clone(allow_outer_scope_values=True),
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=functions,
        metadata_props=dict(model.metadata_props),
        device_configurations=model.device_configurations,
    )
    nodes: dict[ir.Node, ir.Node] = {}
    values: dict[ir.Value, ir.Value] = {}
    for old, new in zip(iterate_graphs(model), iterate_graphs(copy), strict=True):
        _pair(old, new, nodes, values)
    for old_node, new_node in nodes.items():
        for slot, (read, got) in enumerate(zip(old_node.inputs, new_node.inputs, strict=True)):
            if read is not None and got is read:  # defined nowhere in the graph: a sparse initializer
                new_node.replace_input_with(slot, _stand_in(read, values))
    return copy, nodes, values


def _pair(
    old: ir.Graph, new: ir.Graph, nodes: dict[ir.Node, ir.Node], values: dict[ir.Value, ir.Value]
) -> None:
    pairs: list[tuple[Sequence[ir.Value], Sequence[ir.Value]]] = [
        (old.inputs, new.inputs),
        (tuple(old.initializers.values()), tuple(new.initializers.values())),
    ]
    for old_node, new_node in zip(old, new, strict=True):
        if old_node.op_identifier() != new_node.op_identifier():
            raise InternalError(f"the copy of node '{old_node.name}' is another operator")
        nodes[old_node] = new_node
        pairs.append((old_node.outputs, new_node.outputs))
    for old_values, new_values in pairs:
        values.update(zip(old_values, new_values, strict=True))


def _stand_in(value: ir.Value, values: dict[ir.Value, ir.Value]) -> ir.Value:
    if value not in values:
        values[value] = ir.Value(name=value.name, type=value.type, shape=value.shape)
    return values[value]
