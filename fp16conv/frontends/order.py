"""The order of operators: a model lists each behind those whose results it reads."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from fp16conv.errors import ModelError

__all__ = ["is_sorted", "sort"]


def _graphs(model: ir.Model) -> list[ir.Graph | ir.Function]:
    return [model.graph, *model.functions.values()]


def is_sorted(model: ir.Model) -> bool:
    """Whether no operator, in functions and subgraphs too, reads what a later one makes."""
    return all(_is_scope_sorted(graph, set()) for graph in _graphs(model))


def _is_scope_sorted(graph: ir.Graph | ir.Function, done: set[ir.Node]) -> bool:
    own = set(graph)
    for node in graph:
        reads = [v.producer() for v in node.inputs if v is not None]
        for attr in node.attributes.values():
            if not attr.is_ref() and attr.type is ir.AttributeType.GRAPH:
                body = attr.as_graph()
                if not _is_scope_sorted(body, done):
                    return False
                reads += [v.producer() for n in body.all_nodes() for v in n.inputs if v is not None]
        if any(p is not None and p in own and p not in done for p in reads):
            return False
        done.add(node)
    return True


def sort(model: ir.Model, path: Path) -> None:
    """Sort all graphs of a model in place.

    Raises:
        ModelError: a graph has a cycle; `path` names the model.
    """
    try:
        for graph in _graphs(model):
            graph.sort()
    except ValueError as e:
        raise ModelError(
            "the graph has a cycle", where=str(path), why=str(e), hint="export the model again"
        ) from e
