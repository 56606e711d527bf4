"""Applies a plan to an ONNX model. The plan decides everything; nothing is decided here."""

from __future__ import annotations

import onnx_ir as ir

from fp16conv.collector import collection_paused
from fp16conv.conversion.assignment import assign
from fp16conv.conversion.passes.annotate_nodes import AnnotateNodesPass
from fp16conv.conversion.passes.convert_constants import ConvertConstantsPass
from fp16conv.conversion.passes.convert_sparse import ConvertSparsePass
from fp16conv.conversion.passes.drop_noop_casts import DropNoopCastsPass
from fp16conv.conversion.passes.fold_norms import FoldNormsPass
from fp16conv.conversion.passes.insert_casts import InsertCastsPass
from fp16conv.conversion.passes.lower_clips import LowerClipsPass
from fp16conv.conversion.passes.rescale_regions import RescaleRegionsPass
from fp16conv.conversion.passes.retarget_attributes import RetargetAttributesPass
from fp16conv.conversion.passes.retype_values import RetypeValuesPass
from fp16conv.conversion.workspace import open_workspace
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.planning.plan import PrecisionPlan

__all__ = ["convert"]


@collection_paused()
def convert(loaded: LoadedModel, plan: PrecisionPlan) -> ir.Model:
    """Return a mixed-precision copy of the model; `loaded` stays as it is.

    Weights are converted lazily, when the result is saved or run. Node order, names, interface, opset
    imports and everything else the plan does not mention stay.

    Args:
        loaded: the FP32 model.
        plan: FLOAT or FLOAT16 for every type variable of the model's graph.

    Returns:
        the mixed model; its FP16 tensors read the tensors of `loaded`.

    Raises:
        PlanError: the plan belongs to another model, is incomplete, or asks for what ONNX cannot say.
    """
    assignment = assign(loaded.graph, plan)
    workspace = open_workspace(loaded)
    model = workspace.model
    for run in (
        RetargetAttributesPass(workspace, assignment),
        ConvertConstantsPass(workspace, assignment),
        ConvertSparsePass(workspace, assignment),
        RetypeValuesPass(workspace, assignment),
        AnnotateNodesPass(workspace, assignment),
        InsertCastsPass(workspace, assignment),
        DropNoopCastsPass(workspace, assignment),
        LowerClipsPass(workspace, assignment),
        FoldNormsPass(workspace, assignment),
        RescaleRegionsPass(workspace, assignment),
    ):
        run(model)
    return model
