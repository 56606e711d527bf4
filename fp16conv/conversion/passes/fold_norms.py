"""BatchNormalization in FP16 whose statistics FP16 cannot hold: its scale and shift as Mul and Add."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fp16conv.conversion.assignment import Assignment
from fp16conv.conversion.workspace import Workspace
from fp16conv.errors import PlanError
from fp16conv.graph import Op
from fp16conv.rulebook.folding import STATISTICS, fold_batch_norm

__all__ = ["FoldNormsPass", "drop_unread"]


@dataclass(frozen=True)
class FoldNormsPass(ir.passes.InPlacePass):
    """Write the FP16 BatchNormalizations that the plan lists as Mul and Add.

    Factor and shift are computed in float64. The Add keeps the operator's name, output and notes; statistics
    that nothing else reads are removed.
    """

    workspace: Workspace
    assignment: Assignment

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        for index in sorted(self.assignment.folded):
            self._fold(self.workspace.graph.ops[index])
        return ir.passes.PassResult(model, bool(self.assignment.folded))

    def _fold(self, op: Op) -> None:
        node, names = self.workspace.nodes[op.id], self.workspace.names
        folded = fold_batch_norm(self.workspace.graph, op)
        if folded is None:
            raise PlanError("this operator cannot be folded into Mul and Add", where=op.label)
        source, result, graph = node.inputs[0], node.outputs[0], node.graph
        assert source is not None
        assert graph is not None
        statistics = [node.inputs[slot] for slot in STATISTICS]
        factor = self._constant(f"{result.name}__factor", folded.broadcast(folded.factor))
        shift = self._constant(f"{result.name}__shift", folded.broadcast(folded.shift))
        name = names.take(f"{result.name}__scaled")
        scaled = ir.Node("", "Mul", [source, factor.outputs[0]], outputs=[ir.Value(name=name)], name=name)
        scaled.metadata_props.update(node.metadata_props)
        graph.insert_before(node, [factor, shift, scaled])
        node.op_type = "Add"
        node.attributes.clear()
        node.resize_inputs(2)
        node.replace_input_with(0, scaled.outputs[0])
        node.replace_input_with(1, shift.outputs[0])
        node.resize_outputs(1)
        for value in dict.fromkeys(statistics):
            if value is not None:
                drop_unread(value)

    def _constant(self, wanted: str, array: npt.NDArray[np.float32]) -> ir.Node:
        name = self.workspace.names.take(wanted)
        tensor = ir.Tensor(array.astype(np.float16), name=name)
        return ir.Node(
            "", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[ir.Value(name=name)], name=name
        )


def drop_unread(value: ir.Value) -> None:
    """Remove a constant that nothing reads any more; one that is an input or output stays."""
    if value.uses() or value.is_graph_output() or value.is_graph_input():
        return
    node = value.producer()
    if node is not None:
        if node.graph is not None:
            node.graph.remove(node, safe=True)
    elif value.graph is not None and value.name is not None and value.name in value.graph.initializers:
        del value.graph.initializers[value.name]
