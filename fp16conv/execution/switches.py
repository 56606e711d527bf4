"""One emulated model for all precision plans: every rounding is chosen at run time.

The FP32 model gets one more input, a vector of bools. Where a plan may round a value, the readers get
`Where(switch, rounded, exact)`. The model is built and loaded once; each plan is then only another vector.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fp16conv import half
from fp16conv.execution.emulator import emulate_model
from fp16conv.execution.failures import clone_to_run
from fp16conv.execution.retyping import renew_shapes
from fp16conv.execution.rounded_constants import replace_folded, replace_rounded
from fp16conv.execution.rounding import DEFAULT, Rounder
from fp16conv.execution.traits import is_exact
from fp16conv.execution.twins import Twins
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import Container, DataType, ModelGraph, Use
from fp16conv.rulebook.folding import STATISTICS
from fp16conv.rulebook.rescaling import find_scales

__all__ = ["SWITCHES", "Slot", "SwitchedModel", "Switches", "emulate_switched", "group_readers"]

SWITCHES = "fp16conv.switches"
"""Name of the input that holds the switches, bool [slots]."""

_WHERE_SINCE = 9  # opset of ai.onnx that has Where


@dataclass(frozen=True, slots=True)
class Slot:
    """A rounding that can be switched: what some readers of a value see.

    Args:
        value: id of the value.
        source: type variable that gives the value its dtype, None for a constant.
        reader: type variable in which the value is read; None for readers that have none or share `source`.
    """

    value: int
    source: int | None
    reader: int | None


@dataclass(frozen=True)
class Switches:
    """The roundings of a model that can be switched.

    Args:
        slots: what each switch rounds.
        fixed: type variables whose FP16 effect no switch shows (numbers in attributes).
    """

    slots: tuple[Slot, ...]
    fixed: frozenset[int]

    def switches(self, dtypes: Sequence[DataType]) -> npt.NDArray[np.bool_]:
        """The vector of a plan, bool [slots].

        Args:
            dtypes: FLOAT or FLOAT16 per type variable id.
        """
        is_fp16 = [dtype is DataType.FLOAT16 for dtype in dtypes]
        return np.array(
            [any(t is not None and is_fp16[t] for t in (slot.source, slot.reader)) for slot in self.slots],
            np.bool_,
        )


@dataclass(frozen=True)
class SwitchedModel(Switches):
    """An emulated model whose roundings are switched by an input.

    Args:
        model: FP32 model with the additional input `SWITCHES`.
    """

    model: ir.Model


def group_readers(
    graph: ModelGraph, value: int, is_moved: bool
) -> Iterator[tuple[int | None, tuple[Use, ...]]]:
    """The readers of a value that see the same rounding of it, by type variable.

    Args:
        graph: the model.
        value: id of the value.
        is_moved: whether it is made of what was rounded before, so that rounding it changes nothing.

    Returns:
        Per rounding that a plan can switch on: the type variable of the readers (None for those that have
        none or share the value's own) and the readers.
    """
    source = graph.typevar_of_value(value)
    admits = source is not None and source.admits_fp16
    groups: dict[int | None, list[Use]] = {}
    for use in graph.consumers(value):
        reader = graph.typevar_of_use(use)
        groups.setdefault(None if reader is None or reader is source else reader.id, []).append(use)
    for reader_id, uses in groups.items():
        if reader_id is None and (not admits or is_moved):
            continue  # nothing to round, or rounded on the way in
        if reader_id is not None and not admits and not graph.typevars[reader_id].admits_fp16:
            continue
        yield reader_id, tuple(uses)


def emulate_switched(
    loaded: LoadedModel,
    *,
    saturated: Collection[int] = (),
    folded: Collection[int] = (),
    rescaled: Mapping[int, int] | None = None,
) -> SwitchedModel:
    """Build the model. With the switches of a plan it computes what `emulate_plan` does with its dtypes.

    Args:
        loaded: the FP32 model.
        saturated: ids of constants that become +-65504 instead of +-infinity where FP16 reads them.
        folded: ids of BatchNormalizations that are a Mul and an Add in FP16.
        rescaled: exponents k by id of the products that are computed times 2^-k in FP16. What only part of
            a region in FP16 does is shown where that part is its beginning.
    """
    work = clone_to_run(loaded.model)
    emulation = _SwitchedEmulation(loaded, work, frozenset(saturated), frozenset(folded), rescaled or {})
    emulation.run()
    model = work
    if any(value.dtype is DataType.FLOAT16 for value in loaded.graph.values):
        model = emulate_model(work)  # the user's own FP16 parts
    return SwitchedModel(tuple(emulation.slots), _fixed(loaded), model)


def _fixed(loaded: LoadedModel) -> frozenset[int]:
    found: set[int] = set()
    for op in loaded.graph.ops:
        if op.op_type in ("Constant", "ConstantOfShape") and not op.domain:
            continue  # the fill value is rounded where it comes out
        node = loaded.nodes[op.id]
        attributes = [attr for attr in node.attributes.values() if not attr.is_ref()]
        if any(
            a.type is ir.AttributeType.TENSOR and a.as_tensor().dtype is ir.DataType.FLOAT for a in attributes
        ):
            found.update(op.typevars)
    return frozenset(found)


class _SwitchedEmulation:
    def __init__(
        self,
        loaded: LoadedModel,
        work: ir.Model,
        saturated: frozenset[int],
        folded: frozenset[int],
        rescaled: Mapping[int, int],
    ) -> None:
        self.twins = Twins(loaded, work)
        self.graph, self.work = loaded.graph, work
        self.saturated, self.folded = saturated, folded
        self.scales = find_scales(loaded.graph, rescaled)
        self.rounder = Rounder(work, DEFAULT)
        self.slots: list[Slot] = []
        self._vectors: dict[ir.Graph | ir.Function, ir.Value] = {}
        self._conditions: dict[ir.Graph | ir.Function, list[ir.Node]] = {}
        self._limits: dict[ir.Graph | ir.Function, list[ir.Value]] = {}

    def run(self) -> None:
        renew_shapes(self.work)
        self._add_inputs()
        for value in self.graph.values:
            if value.container is Container.TENSOR and value.dtype is DataType.FLOAT:
                self._switch(value.id)
        self.twins.finish()
        for root, nodes in self._conditions.items():
            first = next(iter(root), None)
            if first is None:
                root.extend(nodes)
            else:
                root.insert_before(first, nodes)
        (vector,) = (v for v in self.work.graph.inputs if v.name == SWITCHES)
        vector.shape = ir.Shape([len(self.slots)])

    def _add_inputs(self) -> None:
        """The vector is an input of the model and of each function, which its callers hand on."""
        roots: list[ir.Graph | ir.Function] = [self.work.graph, *self.work.functions.values()]
        arity = {root: len(root.inputs) for root in roots}
        for root in roots:
            vector = ir.Value(name=SWITCHES, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([None]))
            root.inputs.append(vector)
            self._vectors[root] = vector
            self._conditions[root] = []
        for op in self.graph.ops:
            if op.callee is None:
                continue
            node = self.twins.nodes[op.id]
            target = self.twins.graph_of(op.callee)
            node.resize_inputs(arity[target] + 1)
            node.replace_input_with(arity[target], self._vectors[self._root(op.scope)])

    def _root(self, scope: int) -> ir.Graph | ir.Function:
        """The main graph or function body around a scope."""
        facts = self.graph.scopes[scope]
        while facts.owner is not None:
            facts = self.graph.scopes[self.graph.ops[facts.owner].scope]
        return self.twins.graph_of(facts.id)

    def _switch(self, index: int) -> None:
        value, twin = self.graph.values[index], self.twins.values[index]
        if twin is None:
            return
        source = self.graph.typevar_of_value(index)
        held = self.scales.values.get(index, 0)
        if held and source is not None:
            twin = self._switch_scaled(index, twin, source.id, held)
        producer = None if value.producer is None else self.twins.nodes[value.producer]
        is_moved = producer is not None and is_exact(producer)
        groups: dict[tuple[int | None, Use | None, int], list[Use]] = {}
        for key, readers in group_readers(self.graph, index, is_moved):
            for use in readers:
                statistic = use if use.op in self.folded and use.slot in STATISTICS else None
                exponent = self.scales.uses.get(use, 0)
                if held and (exponent or key is None):
                    continue  # of one precision with the value
                groups.setdefault((key, statistic, exponent), []).append(use)
        rounded: dict[int, ir.Value] = {}
        for (key, statistic, exponent), uses in groups.items():
            if statistic is not None:
                other = replace_folded(self.twins, self.rounder, statistic, twin)
            else:
                if exponent not in rounded:
                    rounded[exponent] = self._rounded(index, twin, exponent)
                other = rounded[exponent]
            slot = Slot(index, None if source is None or held else source.id, key)
            condition = self._condition(value.scope, slot)
            chosen = self._choose(condition, other, twin)
            self._insert_after(other, twin, chosen)
            for use in uses:
                self._rewire(use, twin, chosen.outputs[0])

    def _switch_scaled(self, index: int, twin: ir.Value, source: int, exponent: int) -> ir.Value:
        """A value of a rescaled region: all its readers get it rounded at its scale."""
        value = self.graph.values[index]
        if value.producer is not None and is_exact(self.twins.nodes[value.producer]):
            return twin
        rounded = self._rounded(index, twin, exponent)
        chosen = self._choose(self._condition(value.scope, Slot(index, source, None)), rounded, twin)
        self._insert_after(rounded, twin, chosen)
        for use in self.graph.consumers(index):
            self._rewire(use, twin, chosen.outputs[0])
        return chosen.outputs[0]

    def _condition(self, scope: int, slot: Slot) -> ir.Value:
        root = self._root(scope)
        name = self.rounder.fresh(SWITCHES, str(len(self.slots)))
        index = self.rounder.constant(np.int64(len(self.slots)), f"{name}/index")
        gather = self.rounder.node(
            "Gather", [self._vectors[root], index.outputs[0]], ir.DataType.BOOL, name, axis=0
        )
        gather.outputs[0].shape = ir.Shape(())
        self._conditions[root] += [index, gather]
        self.slots.append(slot)
        return gather.outputs[0]

    def _choose(self, condition: ir.Value, rounded: ir.Value, exact: ir.Value) -> ir.Node:
        name = self.rounder.fresh(exact.name, "seen")
        if self.work.opset_imports.get("", _WHERE_SINCE) >= _WHERE_SINCE:
            node = self.rounder.node("Where", [condition, rounded, exact], ir.DataType.FLOAT, name)
        else:
            self.work.ir_version = max(self.work.ir_version, 4)  # before, an initializer had to be an input
            node = self.rounder.node("If", [condition], ir.DataType.FLOAT, name)
            for branch, value in (("then_branch", rounded), ("else_branch", exact)):
                copy = self.rounder.node(
                    "Identity", [value], ir.DataType.FLOAT, self.rounder.fresh(name, branch)
                )
                graph = ir.Graph([], copy.outputs, nodes=[copy], name=f"{name}/{branch}")
                node.attributes[branch] = ir.AttrGraph(branch, graph)
        node.outputs[0].shape = exact.shape
        return node

    def _rounded(self, index: int, twin: ir.Value, exponent: int) -> ir.Value:
        if self.graph.values[index].is_constant and index in self.graph.constants:
            return replace_rounded(
                self.twins, self.rounder, index, twin, saturated=index in self.saturated, exponent=exponent
            )
        nodes: list[ir.Node] = []
        start = twin
        if index in self.saturated:  # a fill value that acts as infinity
            for op_type, bound in (("Max", -half.MAX), ("Min", half.MAX)):
                limit = self.rounder.constant(np.float32(bound), self.rounder.fresh(twin.name, "limit"))
                name = self.rounder.fresh(twin.name, "saturated")
                clip = self.rounder.node(op_type, [start, limit.outputs[0]], ir.DataType.FLOAT, name)
                nodes += [limit, clip]
                start = clip.outputs[0]
        nodes += self.rounder.round(start, self.rounder.fresh(twin.name, "rounded"), exponent)
        self.twins.insert(twin, nodes)
        return nodes[-1].outputs[0]

    def _insert_after(self, rounded: ir.Value, twin: ir.Value, node: ir.Node) -> None:
        """Behind the rounding, or (inputs, initializers) at the head of the graph, behind what is there."""
        before = rounded.producer()
        if before is not None and before.graph is not None:
            before.graph.insert_after(before, [node])
        else:
            self.twins.insert(twin, [node])

    def _rewire(self, use: Use, twin: ir.Value, replacement: ir.Value) -> None:
        if use.op is not None:
            self.twins.nodes[use.op].replace_input_with(use.slot, replacement)
            return
        graph = self.twins.graph_of(use.scope)
        if graph is self.work.graph:
            if twin.producer() is None:
                return  # the name of an input or initializer cannot name another value
            twin.name, replacement.name = self.rounder.fresh(twin.name, "raw"), twin.name
        graph.outputs[use.slot] = replacement
