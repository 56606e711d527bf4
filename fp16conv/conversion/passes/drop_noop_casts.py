"""Widening casts of FP16 values whose result became FP16: they do nothing any more."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from fp16conv.conversion.assignment import Assignment
from fp16conv.conversion.workspace import Workspace, replace_input
from fp16conv.graph import DataType

__all__ = ["DropNoopCastsPass"]


@dataclass(frozen=True)
class DropNoopCastsPass(ir.passes.InPlacePass):
    """Drop `Cast(FLOAT16 -> FLOAT)` nodes that the plan turned into FLOAT16 -> FLOAT16.

    Narrowing casts round, so the user's stay, whatever they read; so does a cast that gives a scope its
    output.
    """

    workspace: Workspace
    assignment: Assignment

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        ws = self.workspace
        modified = False
        for op in ws.graph.ops:
            if op.key != "Cast" or op.inputs[0] is None or op.outputs[0] is None:
                continue
            if ws.graph.values[op.inputs[0]].dtype is not DataType.FLOAT16:
                continue
            if ws.graph.typevar_of_value(op.outputs[0]) is None:
                continue
            node = ws.nodes[op.id]
            result, source = node.outputs[0], node.inputs[0]
            if self.assignment.of_value(op.outputs[0]) is not DataType.FLOAT16 or result.is_graph_output():
                continue
            assert source is not None
            for reader, slot in tuple(result.uses()):
                replace_input(reader, slot, source)
            assert node.graph is not None
            node.graph.remove(node, safe=True)
            modified = True
        return ir.passes.PassResult(model, modified)
