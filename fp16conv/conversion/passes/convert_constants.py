"""Constants that are read in FP16: converted at no cost, copied only where FP32 reads them too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fp16conv.conversion.assignment import Assignment
from fp16conv.conversion.tensors import Fp16Tensor, retype
from fp16conv.conversion.workspace import Workspace
from fp16conv.graph import DataType, ScopeKind, Use

__all__ = ["ConvertConstantsPass", "constant_tensor"]

FIRST_IR_WITH_FREE_INITIALIZERS = 4  # before it, every initializer must be listed as a graph input


def constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """The FP32 tensor of an initializer or a Constant node, None where it is given in another form."""
    node = value.producer()
    if node is None:
        return value.const_value
    for attr in node.attributes.values():
        if attr.is_ref():
            return None
        if attr.type is ir.AttributeType.TENSOR:
            return attr.as_tensor()
        if attr.type in (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS):
            return ir.Tensor(np.asarray(attr.value, dtype=np.float32))
    return None


@dataclass(frozen=True)
class ConvertConstantsPass(ir.passes.InPlacePass):
    """Convert FLOAT constants: in place where only FP16 reads them, else as `<name>__fp16` beside them."""

    workspace: Workspace
    assignment: Assignment

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for info in self.workspace.graph.values:
            if not info.is_constant or info.dtype is not DataType.FLOAT:
                continue
            uses = [u for u in self.workspace.graph.consumers(info.id) if not self.assignment.is_folded(u)]
            halves = [use for use in uses if self.assignment.of_use(use) is DataType.FLOAT16]
            tensor = constant_tensor(self.workspace.values[info.id]) if halves else None
            if tensor is None:
                continue
            saturating = info.id in self.assignment.saturated
            half = Fp16Tensor(tensor, saturating=saturating)
            if len(halves) == len(uses):
                self._replace(info.id, half)
            elif self._keeps_name_in_fp16(halves):
                self._swap(info.id, half, [use for use in uses if use not in halves], tensor)
            else:
                self._redirect(halves, self._add_copy(info.id, half, "fp16", DataType.FLOAT16))
            modified = True
        return ir.passes.PassResult(model, modified)

    def _keeps_name_in_fp16(self, halves: Sequence[Use]) -> bool:
        """Whether a graph output that must be FP16 has the constant's name."""
        scopes = self.workspace.graph.scopes
        return any(use.op is None and scopes[use.scope].kind is ScopeKind.MAIN for use in halves)

    def _swap(self, value: int, half: Fp16Tensor, floats: Sequence[Use], tensor: ir.TensorProtocol) -> None:
        self._redirect(floats, self._add_copy(value, tensor, "fp32", DataType.FLOAT))
        self._replace(value, half)

    def _replace(self, value: int, half: Fp16Tensor) -> None:
        target = self.workspace.values[value]
        node = target.producer()
        target.type = retype(target.type, DataType.FLOAT16)
        if node is None:
            target.const_value = half
            return
        target.const_value = None
        doc_string = next((attr.doc_string for attr in node.attributes.values()), None)
        node.attributes.clear()
        node.attributes["value"] = ir.Attr("value", ir.AttributeType.TENSOR, half, doc_string=doc_string)

    def _add_copy(self, value: int, tensor: ir.TensorProtocol, suffix: str, dtype: DataType) -> ir.Value:
        ws = self.workspace
        info, original = ws.graph.values[value], ws.values[value]
        copy = ir.Value(name=ws.names.take(f"{info.name}__{suffix}"))
        if info.producer is None and ws.model.ir_version >= FIRST_IR_WITH_FREE_INITIALIZERS:
            copy.type = retype(original.type, dtype)
            copy.shape = None if original.shape is None else original.shape.copy()
            if not isinstance(tensor, Fp16Tensor):  # the name of a tensor is that of its value
                source = tensor
                tensor = ir.LazyTensor(
                    lambda: source, source.dtype, ir.Shape([int(d) for d in source.shape.numpy()])
                )
            copy.const_value = tensor
            ws.graphs[info.scope].register_initializer(copy)
            return copy
        attribute = ir.Attr("value", ir.AttributeType.TENSOR, tensor)
        node = ir.Node("", "Constant", [], [attribute], outputs=[copy], name=copy.name)
        ws.insert_after(value, node)
        return copy

    def _redirect(self, uses: Sequence[Use], value: ir.Value) -> None:
        for use in uses:
            self.workspace.redirect(use, value)
