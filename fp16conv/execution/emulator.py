"""Honest FP16 without a GPU: every FP16 tensor is really rounded, inside an operator numbers are FP32.

ONNX Runtime's CPU provider runs chains of FP16 operators in FP32 and does not round between them. Here an
FP16 value is an FP32 value behind `Cast(FLOAT16) -> Cast(FLOAT)`, a pair ONNX Runtime keeps at every
optimisation level. Operators compute in FP32 inside, as Tensor Cores accumulate and as ONNX Runtime's CUDA
kernels for softmax and normalization do.

Two doors: `emulate_model` takes a mixed model, `emulate_plan` an FP32 model plus the dtype of each type
variable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from fp16conv.execution.accumulation import split_reductions
from fp16conv.execution.retyping import retype_model
from fp16conv.execution.rounding import DEFAULT, EmulationOptions, Rounder, shape_of
from fp16conv.execution.traits import is_exact
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import Container, DataType, ModelGraph, Use

__all__ = ["EmulationOptions", "emulate_model", "emulate_plan", "emulation_notes"]

_NOTES = "fp16conv.emulation_notes"


def emulate_model(model: ir.Model, *, options: EmulationOptions = DEFAULT) -> ir.Model:
    """Turn a mixed model into an FP32 model that computes what FP16 hardware would.

    Intermediate values keep their names and hold the rounded numbers. The interface keeps its types; local
    functions are inlined. FP32, BFLOAT16 and DOUBLE parts stay as they are.

    Args:
        model: a model with FP16 values; not changed.
        options: pessimistic switches.

    Returns:
        A new model over the same tensors (FP16 weights are widened when they are read).
    """
    work, rounder, notes, narrow = retype_model(model, options)
    if options.fp16_accumulation:
        split_reductions(work, rounder, narrow)
    return _finish(work, notes)


def emulation_notes(model: ir.Model) -> tuple[str, ...]:
    """What the emulation of a model cannot show, e.g. operators that had to stay in real FP16."""
    notes = model.meta.get(_NOTES, ())
    return tuple(notes) if isinstance(notes, tuple) else ()


def emulate_plan(
    loaded: LoadedModel,
    dtypes: Sequence[DataType],
    *,
    saturated: Collection[int] = (),
    options: EmulationOptions = DEFAULT,
) -> ir.Model:
    """Emulate a plan on the FP32 model, without converting it.

    Args:
        loaded: the FP32 model.
        dtypes: FLOAT or FLOAT16 per type variable id.
        saturated: ids of constants that become +-65504 instead of +-infinity where FP16 reads them.
        options: pessimistic switches.

    Returns:
        A new FP32 model with the same interface; values keep their names and hold the rounded numbers.
    """
    work = loaded.model.clone()
    rounded = _PlanEmulation(loaded, work, dtypes, frozenset(saturated), options).run()
    if any(value.dtype is DataType.FLOAT16 for value in loaded.graph.values):
        return emulate_model(rounded, options=options)  # the user's own FP16 parts
    return rounded


class _PlanEmulation:
    def __init__(
        self,
        loaded: LoadedModel,
        work: ir.Model,
        dtypes: Sequence[DataType],
        saturated: frozenset[int],
        options: EmulationOptions,
    ) -> None:
        self.graph: ModelGraph = loaded.graph
        self.work, self.saturated, self.options = work, saturated, options
        self.is_fp16 = [dtype is DataType.FLOAT16 for dtype in dtypes]
        self.rounder = Rounder(work, options)
        twins: dict[ir.Value, ir.Value] = {}
        twin_nodes: dict[ir.Node, ir.Node] = {}
        for old, new in _scopes(loaded.model, work):
            _match(old, new, twins, twin_nodes)
        self.values = [twins.get(value) for value in loaded.values]
        self.nodes = [twin_nodes[node] for node in loaded.nodes]
        self.heads: dict[ir.Graph | ir.Function, list[ir.Node]] = {}

    def run(self) -> ir.Model:
        for op in self.graph.ops:
            self._saturate_fill(op.id)
        for value in self.graph.values:
            if value.container is Container.TENSOR and value.dtype is DataType.FLOAT:
                self._round(value.id)
        for graph, nodes in self.heads.items():
            _prepend(graph, nodes)
        if self.options.fp16_accumulation:
            narrow = {
                self.nodes[op.id]
                for op in self.graph.ops
                if any(self.is_fp16[t] and self.graph.typevars[t].defs for t in op.typevars)
            }
            split_reductions(self.work, self.rounder, narrow)
        return _finish(self.work, ())

    def _saturate_fill(self, op: int) -> None:
        """A fill value that acts as infinity lives in an attribute."""
        node = self.nodes[op]
        if node.op_type != "ConstantOfShape" or self.graph.ops[op].outputs[0] not in self.saturated:
            return
        variable = self.graph.typevar_of_value(self.graph.ops[op].outputs[0] or 0)
        if variable is not None and self.is_fp16[variable.id] and "value" in node.attributes:
            numbers = self.rounder.numbers(node.attributes["value"].as_tensor().numpy(), saturated=True)
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(numbers))

    def _round(self, index: int) -> None:
        """Round a value where it is made in FP16, or once for all its FP16 readers."""
        value, twin = self.graph.values[index], self.values[index]
        if twin is None:
            return
        variable = self.graph.typevar_of_value(index)
        if variable is not None and self.is_fp16[variable.id]:
            producer = None if value.producer is None else self.nodes[value.producer]
            if producer is None or not is_exact(producer):
                self._round_all(twin)
            return
        uses = [use for use in self.graph.consumers(index) if self._reads_fp16(use)]
        if not uses:
            return
        if value.is_constant and index in self.graph.constants:
            replacement = self._round_constant(index, twin)
        else:
            nodes = self.rounder.round(twin, self.rounder.fresh(twin.name, "rounded"))
            self._insert(twin, nodes)
            replacement = nodes[-1].outputs[0]
        for use in uses:
            self._rewire(use, twin, replacement)

    def _reads_fp16(self, use: Use) -> bool:
        variable = self.graph.typevar_of_use(use)
        return variable is not None and self.is_fp16[variable.id]

    def _round_all(self, twin: ir.Value) -> None:
        """Give every reader of a value the rounded one; it takes over the name where it can."""
        readers = list(twin.uses())
        outputs = _output_slots(twin, self._owner(twin))
        if twin.producer() is None:
            nodes = self.rounder.round(twin, self.rounder.fresh(twin.name, "rounded"))
            if twin.graph is self.work.graph:
                outputs = []  # an input that is an output: one name, one value
        else:
            name = twin.name or ""
            twin.name = self.rounder.fresh(name, "raw")
            nodes = self.rounder.round(twin, name)
        self._insert(twin, nodes)
        replacement = nodes[-1].outputs[0]
        for node, slot in readers:
            node.replace_input_with(slot, replacement)
        for graph, slot in outputs:
            graph.outputs[slot] = replacement

    def _round_constant(self, index: int, twin: ir.Value) -> ir.Value:
        tensor, is_saturated = self.graph.constants[index], index in self.saturated
        name = self.rounder.fresh(twin.name, "rounded")

        def read() -> ir.TensorProtocol:
            numbers = self.rounder.numbers(np.asarray(tensor.numpy()), saturated=is_saturated)
            return ir.tensor(numbers, name=name)

        graph = self._owner(twin)
        if isinstance(graph, ir.Graph) and twin.producer() is None:
            shape = shape_of(twin.const_value) if twin.const_value is not None else ir.Shape(twin.shape or ())
            rounded = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=shape)
            rounded.const_value = ir.LazyTensor(read, ir.DataType.FLOAT, shape, name=name)
            graph.register_initializer(rounded)
            return rounded
        node = self.rounder.constant(
            self.rounder.numbers(np.asarray(tensor.numpy()), saturated=is_saturated), name
        )
        self._insert(twin, [node])
        return node.outputs[0]

    def _rewire(self, use: Use, twin: ir.Value, replacement: ir.Value) -> None:
        if use.op is not None:
            self.nodes[use.op].replace_input_with(use.slot, replacement)
            return
        graph = self._graph_of(use.scope)
        if graph is self.work.graph:
            if twin.producer() is None:
                return  # the name of an input or initializer cannot name another value
            twin.name, replacement.name = self.rounder.fresh(twin.name, "raw"), twin.name
        graph.outputs[use.slot] = replacement

    def _graph_of(self, scope: int) -> ir.Graph | ir.Function:
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

    def _owner(self, twin: ir.Value) -> ir.Graph | ir.Function:
        producer = twin.producer()
        owner = producer.graph if producer is not None else twin.graph
        if owner is None:
            raise KeyError(twin.name)
        return owner

    def _insert(self, twin: ir.Value, nodes: list[ir.Node]) -> None:
        producer = twin.producer()
        if producer is None:
            self.heads.setdefault(self._owner(twin), []).extend(nodes)
        else:
            self._owner(twin).insert_after(producer, nodes)


def _finish(work: ir.Model, notes: Iterable[str]) -> ir.Model:
    """Drop the declared shapes of results.

    Where symbolic names in a file are wrong, ONNX Runtime would share buffers between values of two sizes.
    It infers the shapes it needs.
    """
    for node in work.graph.all_nodes():
        for output in node.outputs:
            if output.is_graph_output() and output.shape is not None:  # the checker wants a rank here
                output.shape = ir.Shape([None] * len(output.shape))
            else:
                output.shape = None
    work.meta[_NOTES] = tuple(notes)
    return work


def _prepend(graph: ir.Graph | ir.Function, nodes: list[ir.Node]) -> None:
    first = next(iter(graph), None)
    if first is None:
        graph.extend(nodes)
    else:
        graph.insert_before(first, nodes)


def _output_slots(value: ir.Value, owner: ir.Graph | ir.Function) -> list[tuple[ir.Graph | ir.Function, int]]:
    return [(owner, slot) for slot, output in enumerate(owner.outputs) if output is value]


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
