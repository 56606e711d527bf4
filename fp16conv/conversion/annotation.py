"""Notes on the nodes of a model, where Netron and other viewers show them. Nothing that computes changes."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from fp16conv.conversion.workspace import open_workspace
from fp16conv.frontends.onnx import LoadedModel

__all__ = ["PREFIX", "annotate"]

PREFIX = "pkg.fp16conv.analysis."
"""Of the keys in a node's `metadata_props`; a conversion writes `pkg.fp16conv.` keys of its own."""


def annotate(loaded: LoadedModel, notes: Mapping[int, Mapping[str, str]]) -> ir.Model:
    """Return a copy of the model with notes on its nodes; `loaded` stays as it is.

    Notes of an earlier analysis are replaced.

    Args:
        loaded: the model.
        notes: per operator id, text by key; the keys get `PREFIX`.
    """
    workspace = open_workspace(loaded)
    for op in loaded.graph.ops:
        properties = workspace.nodes[op.id].metadata_props
        for key in [key for key in properties if key.startswith(PREFIX)]:
            del properties[key]
        properties.update({PREFIX + key: text for key, text in notes.get(op.id, {}).items() if text})
    return workspace.model
