"""Bring the insides of functions and If branches into the main graph, where their values can be read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from fp16conv.execution.failures import clone_to_run
from fp16conv.execution.inlining import inline_functions
from fp16conv.execution.twins import Twins
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import Container, DataType, ModelGraph, Scope, ScopeKind, Value
from fp16conv.rulebook.op_sets import TRANSPARENT

__all__ = ["OpenedModel", "Place", "has_bodies", "is_readable", "open_bodies"]

_MARK = "fp16conv.id"
_PREFIX = "hoisted"
_STANDARD = ("", "ai.onnx")
_NOT_READABLE = (DataType.UNKNOWN, DataType.OTHER, DataType.STRING)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value can be read.

    Args:
        value: its id in the loaded model's graph.
        conditions: (name of a boolean in the main graph, what it must be) of every If around the value;
            the original model computes the value where all of them hold.
    """

    value: int
    conditions: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True)
class OpenedModel:
    """A copy of a model whose branches run unconditionally; its outputs are the same.

    Args:
        model: the copy.
        places: name in its main graph -> which value that is; a value of a function comes once per call.
        hoisted: scope ids of the branches that were hoisted, ascending.
    """

    model: ir.Model
    places: dict[str, Place]
    hoisted: tuple[int, ...]

    def find_branch(self, message: str) -> int | None:
        """The branch that a runtime's message is about, None where it names none.

        Example:
            >>> OpenedModel(None, {}, (3, 7)).find_branch("running Squeeze node. Name:'hoisted/7/4' ...")
            7
        """
        found = re.search(rf"{_PREFIX}/(\d+)/", message)
        return int(found[1]) if found and int(found[1]) in self.hoisted else None


def is_readable(value: Value) -> bool:
    """Whether a runtime can hand out the value: a named tensor of a known plain type, and no constant."""
    return (
        value.container is Container.TENSOR
        and not value.is_constant
        and bool(value.name)
        and value.dtype not in _NOT_READABLE
    )


def has_bodies(graph: ModelGraph) -> bool:
    """Whether there is a function or an If branch to open."""
    return any(scope.kind is ScopeKind.FUNCTION or _computes(graph, scope) for scope in graph.scopes[1:])


def _computes(graph: ModelGraph, scope: Scope) -> bool:
    """Whether it is an If branch with arithmetic in it.

    The others (`if the axis has length 1: Squeeze, else Identity`) move numbers whose range is known from
    the outside, and often fail where they are not taken.
    """
    if scope.owner is None or graph.ops[scope.owner].key != "If":
        return False
    keys = {graph.ops[op].key for op in scope.ops}
    return not keys <= TRANSPARENT | {"Constant"}


def open_bodies(loaded: LoadedModel, skip: Collection[int] = ()) -> OpenedModel:
    """Inline the functions of a model and move the nodes of If branches in front of the If.

    The If remains and chooses between the results, so the model's outputs stay what they were. Both
    branches run: the values of the branch that is not taken are what it would compute on this data. It may
    also fail on this data; such a branch belongs into `skip`. Branches that only move numbers, and bodies of
    Loop, Scan and others stay closed.

    Args:
        loaded: the model; stays as it was.
        skip: scope ids of branches that stay where they are, with all that is inside them.

    Returns:
        The copy and where its values are. Names do not depend on `skip`.
    """
    work = _marked(loaded)
    if work.functions:
        try:
            inline_functions(work)
        except (ValueError, ir.passes.PassError):  # functions with graph attributes
            work = _marked(loaded)
        else:
            _drop_absent(work.graph)
    hoisting = _Hoisting(work, loaded.graph, skip)
    hoisting.run()
    return OpenedModel(work, hoisting.places(), tuple(sorted(hoisting.hoisted)))


def _marked(loaded: LoadedModel) -> ir.Model:
    """A clone with ids written where inlining copies them along: on values and on If nodes.

    Inlining merges a parameter with its argument and a call's result with the function's: these get copies.
    """
    work, graph = clone_to_run(loaded.model), loaded.graph
    twins = Twins(loaded, work)
    for value, twin in zip(graph.values, twins.values, strict=True):
        if twin is not None and is_readable(value):
            twin.metadata_props[_MARK] = str(value.id)
    for op, node in zip(graph.ops, twins.nodes, strict=True):
        if op.key == "If":
            node.metadata_props[_MARK] = str(op.id)
        if op.callee is not None and node.graph is not None:
            node.graph.insert_after(node, _copies(node.outputs))
    for scope in graph.scopes[1:]:
        body = twins.graph_of(scope.id) if scope.kind is ScopeKind.FUNCTION else None
        first = next(iter(body), None) if body is not None else None
        if body is not None and first is not None:
            body.insert_before(first, _copies(body.inputs))
    return work


def _copies(values: Iterable[ir.Value]) -> list[ir.Node]:
    """Copies that take over the marks."""
    nodes = []
    for value in values:
        if mark := value.metadata_props.pop(_MARK, ""):
            node = ir.node("Identity", [value], name=f"{_PREFIX}/copy{mark}")
            node.outputs[0].name = node.name
            node.outputs[0].metadata_props[_MARK] = mark
            nodes.append(node)
    return nodes


def _drop_absent(graph: ir.Graph) -> None:
    """Remove the copies of parameters that a call leaves out."""
    for node in list(graph.all_nodes()):
        if node.op_type == "Identity" and node.domain in _STANDARD and node.inputs[0] is None:
            owner = node.graph
            if owner is not None and not node.outputs[0].is_graph_output():
                owner.remove(node)


class _Hoisting:
    def __init__(self, work: ir.Model, graph: ModelGraph, skip: Collection[int]) -> None:
        self.work, self.graph, self.skip = work, graph, frozenset(skip)
        self.hoisted: set[int] = set()
        self._conditions: dict[ir.Node, tuple[tuple[str, bool], ...]] = {}
        values = [v for node in work.graph.all_nodes() for v in node.outputs]
        values += [v for g in work.graphs() for v in g.initializers.values()]
        self._names = {v.name for v in values} | {v.name for g in work.graphs() for v in g.inputs}
        # Numbers are given before anything moves, so that they are the same whatever is skipped.
        self._numbers = {value: number for number, value in enumerate(values)}
        self._nodes = {node: number for number, node in enumerate(work.graph.all_nodes())}

    def run(self) -> None:
        waiting = [node for node in self.work.graph if self._op(node) is not None]
        while waiting:
            waiting = [inner for node in waiting for inner in self._open(node)]

    def places(self) -> dict[str, Place]:
        places = {
            value.name: Place(int(mark))
            for value in self.work.graph.inputs
            if value.name and (mark := value.metadata_props.pop(_MARK, ""))
        }
        for node in self.work.graph:
            for value in node.outputs:
                if value.name and (mark := value.metadata_props.pop(_MARK, "")):
                    places[value.name] = Place(int(mark), self._conditions.get(node, ()))
        for node in self.work.graph.all_nodes():
            node.metadata_props.pop(_MARK, None)
            for value in node.outputs:
                value.metadata_props.pop(_MARK, None)
        return places

    def _op(self, node: ir.Node) -> int | None:
        mark = node.metadata_props.get(_MARK)
        return None if mark is None else int(mark)

    def _open(self, node: ir.Node) -> Iterator[ir.Node]:
        """Hoist the branches of an If of the main graph; gives the Ifs that came out."""
        op, condition = self._op(node), node.inputs[0]
        if op is None or condition is None:
            return
        copy = ""
        for name, taken in (("then_branch", True), ("else_branch", False)):
            scope, body = self.graph.ops[op].subscopes[name], node.attributes[name].as_graph()
            if scope in self.skip or not _computes(self.graph, self.graph.scopes[scope]):
                continue
            copy = copy or self._copy_condition(node, condition, op)
            around = (*self._conditions.get(node, ()), (copy, taken))
            for moved in self._hoist(body, node, scope):
                self._conditions[moved] = around
                if self._op(moved) is not None:
                    yield moved

    def _copy_condition(self, node: ir.Node, condition: ir.Value, op: int) -> str:
        """A value of the main graph that can be read even where the condition is an input or a constant."""
        copy = ir.node("Identity", [condition])
        copy.name = copy.outputs[0].name = self._fresh(f"{_PREFIX}/if{op}/{self._nodes[node]}")
        copy.outputs[0].type, copy.outputs[0].shape = ir.TensorType(ir.DataType.BOOL), condition.shape
        self.work.graph.insert_before(node, copy)
        return copy.name

    def _hoist(self, body: ir.Graph, node: ir.Node, scope: int) -> list[ir.Node]:
        main = self.work.graph
        nodes = list(body)
        for slot, result in enumerate(list(body.outputs)):
            copy = ir.node("Identity", [result], name=self._fresh(f"{_PREFIX}/{scope}/out{slot}"))
            out = copy.outputs[0]
            out.name, out.type, out.shape = copy.name, result.type, result.shape
            body.outputs[slot] = out
            body.append(copy)
        # Only now: a value belongs to the graph that has it as an output.
        for value in list(body.initializers.values()):
            del body.initializers[value.name or ""]
            self._rename(value, scope)
            main.register_initializer(value)
        body.remove(nodes)
        main.insert_before(node, nodes)
        for moved in nodes:
            moved.name = f"{_PREFIX}/{scope}/{self._nodes[moved]}"
            for value in moved.outputs:
                if value.name:
                    self._rename(value, scope)
        self.hoisted.add(scope)
        return nodes

    def _rename(self, value: ir.Value, scope: int) -> None:
        value.name = self._fresh(f"{_PREFIX}/{scope}/v{self._numbers[value]}")

    def _fresh(self, name: str) -> str:
        for suffix in itertools.count():
            unique = f"{name}_{suffix}" if suffix else name
            if unique not in self._names:
                self._names.add(unique)
                return unique
        raise AssertionError("unreachable")
