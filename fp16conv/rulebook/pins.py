"""What cannot change whatever the rules say: schema, interface, unknown operators, the user's own casts."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fp16conv.graph import DataType, ModelGraph, Op, TypeVar, find_optional_parameters
from fp16conv.rulebook.families import family
from fp16conv.rulebook.types import Reason

__all__ = ["find_islands", "find_pins"]

_HALVES = (DataType.FLOAT16, DataType.BFLOAT16)


def find_pins(graph: ModelGraph, domains: Collection[str], *, keep_io_types: bool) -> dict[int, Reason]:
    """Type variables that cannot be FP16.

    Args:
        graph: the model.
        domains: operator domains the rule book knows.
        keep_io_types: graph inputs and outputs keep their types.

    Returns:
        Type variable id -> reason.
    """
    pins: dict[int, Reason] = {}
    shared = _find_functions_of_several_types(graph)
    optional = find_optional_parameters(graph.ops, graph.scopes)
    for tv in graph.typevars:
        op = None if tv.op is None else graph.ops[tv.op]
        if not tv.admits_fp16 and (function := _enclosing(graph, tv.scope)) in shared:
            name = graph.scopes[function].name
            text = f"the function {name} is called with several types: its one body fits all of them as it is"
            pins[tv.id] = Reason("function-of-several-types", text)
        elif not tv.admits_fp16 and (absent := _optional_among(graph, tv, optional)):
            text = f"some call of the function leaves out '{absent}': a cast of it would have nothing to read"
            pins[tv.id] = Reason("optional-parameter", text)
        elif not tv.admits_fp16:
            pins[tv.id] = _illegal(tv, op, domains)
        elif op is None and tv.scope == 0 and tv.symbol.startswith(("input:", "output:")):
            if keep_io_types:
                pins[tv.id] = Reason("io-type", "graph inputs and outputs keep their types")
        elif op is not None and op.callee is None and op.domain not in domains:
            pins[tv.id] = _unknown(op)
        elif op is not None and _is_narrowing(graph, op) and tv.uses:
            to = graph.values[op.outputs[0] or 0].dtype.upper()
            pins[tv.id] = Reason("users-cast", f"the model itself rounds to {to} here; that cast stays")
    return pins


def _optional_among(graph: ModelGraph, tv: TypeVar, optional: Collection[int]) -> str:
    """Name of a parameter that may be absent and that the variable types or reads, "" if none."""
    read = [value.id for use in tv.uses if (value := graph.value_at(use)) is not None]
    return next((graph.values[v].name for v in (*tv.defs, *read) if v in optional), "")


def _illegal(tv: TypeVar, op: Op | None, domains: Collection[str]) -> Reason:
    if op is None and tv.scope != 0:
        text = f"'{tv.symbol}' belongs to a graph inside an operator that says nothing of its types"
    elif op is None:
        text = f"'{tv.symbol}' cannot be FP16: what the model writes back keeps its type"
    elif op.domain == "higher_order":
        return Reason("control-flow", f"{op.op_type} and what its branches compute keep their types")
    elif op.domain == "aten":
        text = f"{op.key} takes no FP16 for {tv.symbol}, or another floating or complex type takes part"
    elif op.callee is None and op.domain not in domains:
        return _unknown(op)
    else:
        text = f"FP16 is not a legal type of {tv.symbol} of {op.key} at opset {op.opset}"
    return Reason("illegal-type", text)


def _unknown(op: Op) -> Reason:
    return Reason("unknown-domain", f"nothing is known of operators of domain '{op.domain}'")


def _find_functions_of_several_types(graph: ModelGraph) -> frozenset[int]:
    """Scopes of the functions whose calls disagree about the types of their inputs."""
    seen: dict[int, set[tuple[DataType | None, ...]]] = {}
    for op in graph.ops:
        if op.callee is not None:
            types = tuple(None if v is None else graph.values[v].dtype for v in op.inputs)
            seen.setdefault(op.callee, set()).add(types)
    return frozenset(scope for scope, signatures in seen.items() if len(signatures) > 1)


def _enclosing(graph: ModelGraph, scope: int) -> int:
    """The function (or main graph) that a scope lies in."""
    while (parent := graph.scopes[scope].parent) is not None:
        scope = parent
    return scope


def _is_narrowing(graph: ModelGraph, op: Op) -> bool:
    return (
        family(op) == "Cast"
        and bool(op.outputs)
        and op.outputs[0] is not None
        and graph.values[op.outputs[0]].dtype in _HALVES
    )


def _is_widening(graph: ModelGraph, op: Op) -> bool:
    source = op.inputs[0] if op.inputs else None
    return (
        family(op) == "Cast"
        and source is not None
        and not graph.values[source].is_constant
        and graph.values[source].dtype is DataType.FLOAT16
    )


def find_islands(graph: ModelGraph) -> Mapping[int, Reason]:
    """Regions that the user of a half-precision model runs in FP32 on purpose.

    A region is a connected set of FLOAT type variables. It is an island if all that enters it comes
    through casts from FLOAT16 (or is constant), all that leaves goes back through casts to FLOAT16, and
    something happens inside.

    Returns:
        Type variable id -> reason.
    """
    reason = Reason("fp32-island", "the model goes up to FP32 here and back to FP16: that is meant")
    found: dict[int, Reason] = {}
    for region in _regions(graph):
        if all(_belongs(graph, tv) for tv in region):
            ops = [graph.ops[tv.op] for tv in region if tv.op is not None]
            up = any(_is_widening(graph, op) for op in ops)
            down = any(_is_narrowing(graph, op) for op in ops)
            inside = any(family(op) != "Cast" for op in ops)
            if up and down and inside:
                found.update({tv.id: reason for tv in region})
    return found


def _belongs(graph: ModelGraph, tv: TypeVar) -> bool:
    """Whether a type variable may be part of an island: not an entrance of other FP32 numbers."""
    if tv.op is None:
        return False
    op = graph.ops[tv.op]
    if family(op) == "Cast":
        return _is_widening(graph, op) or _is_narrowing(graph, op) or not tv.defs
    return True


def _regions(graph: ModelGraph) -> list[list[TypeVar]]:
    parent = list(range(len(graph.typevars)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for tv in graph.typevars:
        for use in tv.uses:
            value = graph.value_at(use)
            source = None if value is None else graph.typevar_of_value(value.id)
            if source is not None:
                parent[max(root(source.id), root(tv.id))] = min(root(source.id), root(tv.id))
        if tv.op is not None and family(graph.ops[tv.op]) != "Cast":
            first = graph.ops[tv.op].typevars[0]
            parent[max(root(first), root(tv.id))] = min(root(first), root(tv.id))
    regions: dict[int, list[TypeVar]] = {}
    for tv in graph.typevars:
        regions.setdefault(root(tv.id), []).append(tv)
    return list(regions.values())
