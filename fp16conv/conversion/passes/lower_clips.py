"""Clip in FP16 at opsets where the target has no kernel for it: Min(Max(x, min), max) computes the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fp16conv import half
from fp16conv.conversion.assignment import Assignment
from fp16conv.conversion.workspace import Workspace
from fp16conv.graph import DataType, Op

__all__ = ["LowerClipsPass"]


@dataclass(frozen=True)
class LowerClipsPass(ir.passes.InPlacePass):
    """Write the FP16 Clips that the plan lists as Max and Min.

    Bounds are inputs from opset 11 on and attributes before; a bound FP16 does not reach is left out. The
    last operator keeps the Clip's name, output and notes.
    """

    workspace: Workspace
    assignment: Assignment

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for op in self.workspace.graph.ops:
            if op.id in self.assignment.lowered and op.key == "Clip":
                dtypes = [self.assignment.dtypes[t] for t in op.typevars]
                if DataType.FLOAT16 in dtypes:
                    self._lower(op)
                    modified = True
        return ir.passes.PassResult(model, modified)

    def _lower(self, op: Op) -> None:
        node = self.workspace.nodes[op.id]
        source, (result,) = node.inputs[0], node.outputs
        bounds = [("Max", self._bound(op, 1, "min")), ("Min", self._bound(op, 2, "max"))]
        steps = [(kind, bound) for kind, bound in bounds if bound is not None]
        assert source is not None
        assert node.graph is not None
        read = source
        for kind, bound in steps[:-1]:
            name = self.workspace.names.take(f"{result.name}__{kind.lower()}")
            step = ir.Node("", kind, [read, bound], outputs=[ir.Value(name=name)], name=name)
            step.metadata_props.update(node.metadata_props)
            node.graph.insert_before(node, step)
            read = step.outputs[0]
        kind, last = steps[-1] if steps else ("Identity", None)
        node.op_type = kind
        node.attributes.clear()
        node.resize_inputs(1 if last is None else 2)
        node.replace_input_with(0, read)
        if last is not None:
            node.replace_input_with(1, last)

    def _bound(self, op: Op, slot: int, attribute: str) -> ir.Value | None:
        node = self.workspace.nodes[op.id]
        if slot < len(node.inputs):
            return node.inputs[slot]
        attr = node.attributes.get(attribute)
        if attr is None or attr.is_ref() or abs(attr.as_float()) > half.MAX:
            return None
        name = self.workspace.names.take(f"{node.outputs[0].name}__{attribute}")
        tensor = ir.Tensor(np.asarray(attr.as_float(), dtype=np.float16), name=name)
        constant = ir.Node(
            "", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[ir.Value(name=name)], name=name
        )
        assert node.graph is not None
        node.graph.insert_before(node, constant)
        return constant.outputs[0]
