"""Overflowing products in FP16 at a power of two of their size; FP32 gets the values at their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fp16conv.conversion.assignment import Assignment
from fp16conv.conversion.passes.fold_norms import drop_unread
from fp16conv.conversion.passes.insert_casts import CODES_SINCE
from fp16conv.conversion.tensors import dtype_attribute
from fp16conv.conversion.workspace import Workspace, replace_input
from fp16conv.graph import DataType, Use
from fp16conv.rulebook.rescaling import RESTORED, Scales, find_scales

__all__ = ["RescaleRegionsPass"]


@dataclass(frozen=True)
class RescaleRegionsPass(ir.passes.InPlacePass):
    """Scale the constants of the regions that the plan lists, and multiply in FP32 where a region ends.

    What is held at another scale is renamed `<name>__scaled`; the product in FP32 takes the name, so that
    values of one name are comparable. FP16 readers outside the region read a cast of that product.
    """

    workspace: Workspace
    assignment: Assignment

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        graph = self.workspace.graph
        scales = find_scales(graph, self.assignment.rescaled, self.assignment.dtypes)
        for use, exponent in scales.uses.items():
            value = graph.value_at(use)
            if value is not None and value.id in graph.constants:
                self._scale(use, value.id, exponent)
        for value_id, exponent in scales.values.items():
            self._restore(value_id, exponent, scales)
        return ir.passes.PassResult(model, bool(scales.values))

    def _scale(self, use: Use, value: int, exponent: int) -> None:
        ws = self.workspace
        assert use.op is not None
        node, array = ws.nodes[use.op], ws.graph.array(value)
        old = node.inputs[use.slot]
        assert array is not None
        assert old is not None
        assert node.graph is not None
        name = ws.names.take(f"{ws.graph.values[value].name}__scaled")
        numbers = np.ldexp(array.astype(np.float32), -exponent).astype(np.float16)
        scaled = _constant(ir.tensor(numbers, name=name), name)
        node.graph.insert_before(node, scaled)
        replace_input(node, use.slot, scaled.outputs[0])
        drop_unread(old)

    def _restore(self, value: int, exponent: int, scales: Scales) -> None:
        """Give the readers outside the region the value at its own size."""
        ws = self.workspace
        held, name = ws.values[value], ws.graph.values[value].name
        held.name = ws.names.take(f"{name}__scaled")
        held_node = held.producer()
        assert held_node is not None
        inside = {(ws.nodes[use.op], use.slot) for use in scales.uses if use.op is not None}
        outside = [reader for reader in held.uses() if tuple(reader) not in inside]
        own = set(ws.nodes)  # casts that are not: the converter put them behind the value
        wide = [node for node, _ in outside if node.op_type == "Cast" and node not in own]
        halves = [reader for reader in outside if reader[0] not in wide]
        if not outside:
            return
        assert held_node.graph is not None
        if wide:
            cast = wide[0]
        else:
            cast = self._cast(held, DataType.FLOAT, ws.names.take(f"{name}__fp32"))
            held_node.graph.insert_after(held_node, cast)
        readers = [reader for node in wide for reader in node.outputs[0].uses()]
        factor_name = ws.names.take(f"{name}__factor")
        factor = _constant(ir.tensor(np.float32(2.0**exponent), name=factor_name), factor_name)
        result = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=held.shape)
        label = ws.names.take(f"{name}{RESTORED}")
        product = ir.Node("", "Mul", [cast.outputs[0], factor.outputs[0]], outputs=[result], name=label)
        product.metadata_props.update(held_node.metadata_props)
        added = [factor, product]
        if halves:
            narrow = self._cast(result, DataType.FLOAT16, ws.names.take(f"{name}__fp16"))
            added.append(narrow)
            for node, slot in halves:
                replace_input(node, slot, narrow.outputs[0])
        held_node.graph.insert_after(cast, added)
        for node, slot in readers:
            replace_input(node, slot, result)

    def _cast(self, value: ir.Value, to: DataType, name: str) -> ir.Node:
        in_words = self.workspace.opset(0) < CODES_SINCE
        attribute = dtype_attribute("to", to, as_text=in_words)
        return ir.Node("", "Cast", [value], [attribute], outputs=[ir.Value(name=name)], name=name)


def _constant(tensor: ir.TensorProtocol, name: str) -> ir.Node:
    return ir.Node(
        "", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[ir.Value(name=name)], name=name
    )
