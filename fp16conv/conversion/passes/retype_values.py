"""Values get the dtype of their type variable: inputs, results and their value_info."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from fp16conv.conversion.assignment import Assignment
from fp16conv.conversion.tensors import Fp16Tensor, retype
from fp16conv.conversion.workspace import Workspace
from fp16conv.graph import DataType

__all__ = ["RetypeValuesPass"]


@dataclass(frozen=True)
class RetypeValuesPass(ir.passes.InPlacePass):
    """Retype what has a type; values without one (no value_info) stay without."""

    workspace: Workspace
    assignment: Assignment

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for info in self.workspace.graph.values:
            if info.dtype is not DataType.FLOAT or self.assignment.of_value(info.id) is DataType.FLOAT:
                continue
            value = self.workspace.values[info.id]
            value.type = retype(value.type, DataType.FLOAT16)
            if value.is_initializer() and value.const_value is not None:  # the default of an input
                value.const_value = Fp16Tensor(value.const_value, saturating=False)
            else:
                value.const_value = None
            modified = True
        return ir.passes.PassResult(model, modified)
