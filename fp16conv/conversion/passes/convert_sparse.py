"""Sparse initializers that are read in FP16: noted here, written when the model becomes protobuf again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from fp16conv.conversion.assignment import Assignment
from fp16conv.conversion.workspace import Workspace
from fp16conv.graph import Container, ModelGraph

__all__ = ["ConvertSparsePass", "is_sparse_initializer", "sparse_halves"]

META_KEY = "pkg.fp16conv.sparse"


def is_sparse_initializer(graph: ModelGraph, value: int) -> bool:
    """Whether the value is a sparse weight (not a sparse graph input); onnx_ir does not hold those."""
    info = graph.values[value]
    inputs = graph.scopes[info.scope].inputs
    return info.container is Container.SPARSE and info.producer is None and value not in inputs


def sparse_halves(model: ir.Model) -> Mapping[str, str]:
    """FP16 sparse initializers of a converted model: name, and name in the source."""
    noted: Mapping[str, str] = model.meta.get(META_KEY, {})
    return noted


@dataclass(frozen=True)
class ConvertSparsePass(ir.passes.InPlacePass):
    """Convert in place where only FP16 reads a sparse weight, else add `<name>__fp16`."""

    workspace: Workspace
    assignment: Assignment

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        ws = self.workspace
        halves: dict[str, str] = {}
        for info in ws.graph.values:
            uses = self.assignment.misfits(info.id)
            if not uses or not is_sparse_initializer(ws.graph, info.id):
                continue
            if len(uses) == len(ws.graph.consumers(info.id)):
                halves[info.name] = info.name
                continue
            copy = ir.Value(name=ws.names.take(f"{info.name}__fp16"))
            halves[copy.name or ""] = info.name
            for use in uses:
                ws.redirect(use, copy)
        model.meta[META_KEY] = halves
        return ir.passes.PassResult(model, bool(halves))
