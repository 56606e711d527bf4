"""Local functions that are called with several dtypes: one copy per combination of input dtypes.

A function body is one piece of the file, so its operators have one precision. Where calls already differ in
dtype, each combination gets a function of its own, and the calls are pointed to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from fp16conv.frontends.inference import TypeTable, element_type

__all__ = ["MAX_COPIES", "specialize"]

MAX_COPIES = 64
"""Copies made per model; functions that want more keep one body, and that stays as it is."""

Signature = tuple[int, ...]


def specialize(model: ir.Model, types: TypeTable, polymorphic: Collection[ir.OperatorIdentifier]) -> bool:
    """Give calls with other input dtypes functions of their own; the first combination keeps the original.

    Calls inside functions that are polymorphic themselves wait until those are specialized: call again with
    fresh types.

    Args:
        model: changed in place.
        types: type per value.
        polymorphic: functions whose calls disagree.

    Returns:
        whether anything changed.
    """
    first: dict[ir.OperatorIdentifier, Signature] = {}
    copies: dict[tuple[ir.OperatorIdentifier, Signature], ir.OperatorIdentifier] = {}
    for node in list(_calls(model, polymorphic)):
        key = node.op_identifier()
        signature = tuple(element_type(types[v]) if v is not None and v in types else 0 for v in node.inputs)
        if first.setdefault(key, signature) == signature:
            continue
        if (key, signature) not in copies:
            if len(model.functions) >= MAX_COPIES:
                continue
            copies[key, signature] = _copy(model, key, signature)
        _, node.op_type, node.overload = copies[key, signature]
    return bool(copies)


def _calls(model: ir.Model, polymorphic: Collection[ir.OperatorIdentifier]) -> Iterator[ir.Node]:
    graphs = [model.graph.all_nodes()]
    graphs += [f.all_nodes() for key, f in model.functions.items() if key not in polymorphic]
    for nodes in graphs:
        for node in nodes:
            if node.op_identifier() in polymorphic:
                yield node


def _copy(model: ir.Model, key: ir.OperatorIdentifier, signature: Signature) -> ir.OperatorIdentifier:
    """Add a copy of a function, named after the dtypes it is called with."""
    original = model.functions[key]
    suffix = "_".join(ir.DataType(t).name.lower() if t else "none" for t in signature)
    name, count = f"{original.name}__{suffix}", 0
    while (original.domain, name, original.overload) in model.functions:
        count += 1
        name = f"{original.name}__{suffix}_{count}"
    copy = ir.Function(
        original.domain,
        name,
        original.overload,
        graph=original.graph.clone(allow_outer_scope_values=True),
        attributes=list(original.attributes.values()),
    )
    copy.metadata_props.update(original.metadata_props)
    for value in (*copy.inputs, *(o for node in copy.all_nodes() for o in node.outputs)):
        value.type = value.shape = None  # what the file declares holds for the original's calls
    model.functions[copy.identifier()] = copy
    return copy.identifier()
