"""Attributes that type an output follow the plan: Cast.to, ConstantOfShape.value, dtype ..."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fp16conv.conversion.assignment import Assignment
from fp16conv.conversion.dtype_attributes import DTYPE_ATTRIBUTES, DtypeAttribute, Form
from fp16conv.conversion.tensors import Fp16Tensor, dtype_attribute, retype
from fp16conv.conversion.workspace import Workspace
from fp16conv.graph import DataType, Op, Use

__all__ = ["RetargetAttributesPass"]


@dataclass(frozen=True)
class RetargetAttributesPass(ir.passes.InPlacePass):
    """Set dtype attributes where the output's type variable is FLOAT16, or no longer that of the input."""

    workspace: Workspace
    assignment: Assignment

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for op in self.workspace.graph.ops:
            for attribute in DTYPE_ATTRIBUTES.get(op.key, ()):
                modified |= self._retarget(op, attribute)
        return ir.passes.PassResult(model, modified)

    def _retarget(self, op: Op, attribute: DtypeAttribute) -> bool:
        output = op.outputs[0] if op.outputs else None
        if output is None or self.workspace.graph.values[output].dtype is not DataType.FLOAT:
            return False
        node = self.workspace.nodes[op.id]
        dtype = self.assignment.of_value(output)
        old = node.attributes.get(attribute.name)
        if old is not None and old.is_ref():
            return False
        is_absent = old is None or (attribute.form is Form.CODE and not old.value)
        if is_absent and attribute.follows is not None:
            slot = attribute.follows
            read = self.assignment.of_use(Use(op.id, slot, op.scope)) if slot < len(op.inputs) else dtype
            if read is dtype:
                return False
        elif dtype is not DataType.FLOAT16 or (is_absent and not attribute.is_implied):
            return False
        doc_string = None if old is None else old.doc_string
        if attribute.form is Form.CODE:
            as_text = old is not None and old.type is ir.AttributeType.STRING
            new = dtype_attribute(attribute.name, dtype, as_text=as_text, doc_string=doc_string)
        elif attribute.form is Form.TENSOR:
            tensor = ir.Tensor(np.zeros(1, np.float32)) if old is None else old.as_tensor()
            if tensor.dtype is not ir.DataType.FLOAT:
                return False
            saturating = output in self.assignment.saturated
            converted = Fp16Tensor(tensor, saturating=saturating)
            new = ir.Attr(attribute.name, ir.AttributeType.TENSOR, converted, doc_string=doc_string)
        else:
            assert old is not None
            what = ir.TypeAndShape(retype(old.value.type, dtype), old.value.shape)
            new = ir.Attr(attribute.name, ir.AttributeType.TYPE_PROTO, what, doc_string=doc_string)
        node.attributes[attribute.name] = new
        return True
