"""Honest FP16 without a GPU: every FP16 tensor is really rounded, inside an operator numbers are FP32.

ONNX Runtime's CPU provider runs chains of FP16 operators in FP32 and does not round between them. Here an
FP16 value is an FP32 value behind `Cast(FLOAT16) -> Cast(FLOAT)`, a pair ONNX Runtime keeps at every
optimisation level. Operators compute in FP32 inside, as Tensor Cores accumulate and as ONNX Runtime's CUDA
kernels for softmax and normalization do.

Two doors: `emulate_model` takes a mixed model, `emulate_plan` an FP32 model plus the dtype of each type
variable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from fp16conv.execution.accumulation import split_reductions
from fp16conv.execution.failures import clone_to_run
from fp16conv.execution.retyping import forget_shapes, renew_shapes, retype_model
from fp16conv.execution.rounded_constants import replace_folded, replace_rounded
from fp16conv.execution.rounding import DEFAULT, EmulationOptions, Rounder
from fp16conv.execution.traits import is_exact
from fp16conv.execution.twins import Twins
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import Container, DataType, Use
from fp16conv.rulebook.folding import STATISTICS
from fp16conv.rulebook.rescaling import Scales, find_scales

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
        forget_shapes(work)
    work.meta[_NOTES] = tuple(notes)
    return work


def emulation_notes(model: ir.Model) -> tuple[str, ...]:
    """What the emulation of a model cannot show, e.g. operators that had to stay in real FP16."""
    notes = model.meta.get(_NOTES, ())
    return tuple(notes) if isinstance(notes, tuple) else ()


def emulate_plan(
    loaded: LoadedModel,
    dtypes: Sequence[DataType],
    *,
    saturated: Collection[int] = (),
    folded: Collection[int] = (),
    rescaled: Mapping[int, int] | None = None,
    options: EmulationOptions = DEFAULT,
) -> ir.Model:
    """Emulate a plan on the FP32 model, without converting it.

    Args:
        loaded: the FP32 model.
        dtypes: FLOAT or FLOAT16 per type variable id.
        saturated: ids of constants that become +-65504 instead of +-infinity where FP16 reads them.
        folded: ids of BatchNormalizations that are a Mul and an Add in FP16.
        rescaled: exponents k by id of the products that are computed times 2^-k in FP16.
        options: pessimistic switches.

    Returns:
        A new FP32 model with the same interface; values keep their names and hold the rounded numbers.
    """
    work = clone_to_run(loaded.model)
    scales = find_scales(loaded.graph, rescaled or {}, dtypes)
    emulation = _PlanEmulation(loaded, work, dtypes, frozenset(saturated), frozenset(folded), scales, options)
    rounded = emulation.run()
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
        folded: frozenset[int],
        scales: Scales,
        options: EmulationOptions,
    ) -> None:
        self.twins = Twins(loaded, work)
        self.graph, self.values, self.nodes = loaded.graph, self.twins.values, self.twins.nodes
        self.work, self.saturated, self.folded, self.options = work, saturated, folded, options
        self.scales = scales
        self.is_fp16 = [dtype is DataType.FLOAT16 for dtype in dtypes]
        self.rounder = Rounder(work, options)

    def run(self) -> ir.Model:
        if not self.options.fp16_accumulation:
            renew_shapes(self.work)
        for op in self.graph.ops:
            self._round_attributes(op.id)
        for value in self.graph.values:
            if value.container is Container.TENSOR and value.dtype is DataType.FLOAT:
                self._round(value.id)
        self.twins.finish()
        if self.options.fp16_accumulation:
            narrow = {
                self.nodes[op.id]
                for op in self.graph.ops
                if any(self.is_fp16[t] and self.graph.typevars[t].defs for t in op.typevars)
            }
            split_reductions(self.work, self.rounder, narrow)
            forget_shapes(self.work)
        return self.work

    def _round_attributes(self, op: int) -> None:
        """Numbers in attributes (fill values, split points) have the dtype of the operator's FP16 results."""
        facts, node = self.graph.ops[op], self.nodes[op]
        if facts.op_type == "Constant" and not facts.domain:
            return
        variables = [self.graph.typevars[t] for t in facts.typevars]
        if not any(v.defs and self.is_fp16[v.id] for v in variables):
            return
        is_saturated = any(output in self.saturated for output in facts.outputs)
        for name, attr in list(node.attributes.items()):
            if attr.is_ref() or attr.type is not ir.AttributeType.TENSOR:
                continue
            if (tensor := attr.as_tensor()).dtype is ir.DataType.FLOAT:
                numbers = self.rounder.numbers(tensor.numpy(), saturated=is_saturated)
                node.attributes[name] = ir.AttrTensor(name, ir.tensor(numbers))

    def _round(self, index: int) -> None:
        """Round a value where it is made in FP16, or once for all its FP16 readers."""
        value, twin = self.graph.values[index], self.values[index]
        if twin is None:
            return
        variable = self.graph.typevar_of_value(index)
        if variable is not None and self.is_fp16[variable.id]:
            producer = None if value.producer is None else self.nodes[value.producer]
            exponent = self.scales.values.get(index, 0)
            if producer is None or not is_exact(producer):
                self._round_all(twin, exponent)
            if exponent:
                self._leave(index)
            return
        uses = [use for use in self.graph.consumers(index) if self._reads_fp16(use)]
        for use in [use for use in uses if use.op in self.folded and use.slot in STATISTICS]:
            uses.remove(use)
            self._rewire(use, twin, replace_folded(self.twins, self.rounder, use, twin))
        if not uses:
            return
        if value.is_constant and index in self.graph.constants:
            replacements: dict[int, ir.Value] = {}
            for use in uses:
                exponent = self.scales.uses.get(use, 0)
                if exponent not in replacements:
                    replacements[exponent] = replace_rounded(
                        self.twins,
                        self.rounder,
                        index,
                        twin,
                        saturated=index in self.saturated,
                        exponent=exponent,
                    )
                self._rewire(use, twin, replacements[exponent])
        else:
            nodes = self.rounder.round(twin, self.rounder.fresh(twin.name, "rounded"))
            self.twins.insert(twin, nodes)
            for use in uses:
                self._rewire(use, twin, nodes[-1].outputs[0])

    def _leave(self, index: int) -> None:
        """FP16 readers outside its region read a rescaled value at its own size, which FP16 may not hold."""
        for use in self.graph.consumers(index):
            if use.op is None or use in self.scales.uses or not self._reads_fp16(use):
                continue
            read = self.nodes[use.op].inputs[use.slot]
            assert read is not None
            nodes = self.rounder.round(read, self.rounder.fresh(read.name, "left"))
            self.twins.insert(read, nodes)
            self.nodes[use.op].replace_input_with(use.slot, nodes[-1].outputs[0])

    def _reads_fp16(self, use: Use) -> bool:
        variable = self.graph.typevar_of_use(use)
        return variable is not None and self.is_fp16[variable.id]

    def _round_all(self, twin: ir.Value, exponent: int) -> None:
        """Give every reader of a value the rounded one; it takes over the name where it can."""
        readers = list(twin.uses())
        outputs = _output_slots(twin, self.twins.owner(twin))
        if twin.producer() is None:
            nodes = self.rounder.round(twin, self.rounder.fresh(twin.name, "rounded"), exponent)
            if twin.graph is self.work.graph:
                outputs = []  # an input that is an output: one name, one value
        else:
            name = twin.name or ""
            twin.name = self.rounder.fresh(name, "raw")
            nodes = self.rounder.round(twin, name, exponent)
        self.twins.insert(twin, nodes)
        replacement = nodes[-1].outputs[0]
        for node, slot in readers:
            node.replace_input_with(slot, replacement)
        for graph, slot in outputs:
            graph.outputs[slot] = replacement

    def _rewire(self, use: Use, twin: ir.Value, replacement: ir.Value) -> None:
        if use.op is not None:
            self.nodes[use.op].replace_input_with(use.slot, replacement)
            return
        graph = self.twins.graph_of(use.scope)
        if graph is self.work.graph:
            if twin.producer() is None:
                return  # the name of an input or initializer cannot name another value
            twin.name, replacement.name = self.rounder.fresh(twin.name, "raw"), twin.name
        graph.outputs[use.slot] = replacement


def _output_slots(value: ir.Value, owner: ir.Graph | ir.Function) -> list[tuple[ir.Graph | ir.Function, int]]:
    return [(owner, slot) for slot, output in enumerate(owner.outputs) if output is value]
