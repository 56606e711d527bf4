"""Replace calls of a model's functions by what they compute, so that a runtime sees one body per call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import onnx_ir as ir
import onnx_ir.passes.common

__all__ = ["inline_functions"]


def inline_functions(model: ir.Model) -> None:
    """Replace every call of a function by the function's body.

    Args:
        model: changed. Values of bodies get other names where theirs are taken.

    Raises:
        ValueError: a call hands a graph to a function, which onnx_ir does not inline.
        onnx_ir.passes.PassError: functions call each other in a circle.
    """
    if not model.functions:
        return
    _agree_on_opsets(model)
    _name_unused_results(model)
    ir.passes.common.InlinePass()(model)
    _rename_shadows(model.graph, set())


def _agree_on_opsets(model: ir.Model) -> None:
    """Read bodies with the model's opsets.

    A function may import another version only where it has the same operators there (onnx's checker sees to
    it), so nothing changes but the number.
    """
    versions: dict[str, int] = {}
    for imports in (model.opset_imports, *(f.opset_imports for f in model.functions.values())):
        for domain, version in imports.items():
            versions.setdefault(domain, version)
    for function in model.functions.values():
        for domain in function.opset_imports:
            function.opset_imports[domain] = versions[domain]


def _name_unused_results(model: ir.Model) -> None:
    """Name the results that calls leave out: the operators inside that make them would lose their names."""
    taken = {value.name for value in _values(model)}
    numbers = itertools.count()
    for node in _nodes(model):
        if node.op_identifier() not in model.functions:
            continue
        for output in node.outputs:
            if not output.name:
                output.name = next(n for i in numbers if (n := f"{node.op_type}/unused{i}") not in taken)


def _rename_shadows(graph: ir.Graph, outer: set[str | None]) -> None:
    """Rename what a graph inside an operator calls as the graphs around it call something else.

    Inlining gives free names among those it has seen, which later graphs may have, too.
    """
    own = [*graph.inputs, *graph.initializers.values()]
    own += [output for node in graph for output in node.outputs if output.name]
    taken = outer | {value.name for value in own}
    for value in own:
        if value.name in outer:
            name = value.name
            value.name = next(n for i in itertools.count() if (n := f"{name}/inner{i}") not in taken)
            taken.add(value.name)
    for node in graph:
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.GRAPH:
                _rename_shadows(attribute.as_graph(), taken)
            elif attribute.type is ir.AttributeType.GRAPHS:
                for body in attribute.as_graphs():
                    _rename_shadows(body, taken)


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for node in _nodes(model):
        yield from node.outputs
    for graph in model.graphs():
        yield from (*graph.inputs, *graph.initializers.values())
