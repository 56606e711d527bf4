"""Each decision is written on its node, where Netron and other viewers show it."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from fp16conv.conversion.assignment import Assignment
from fp16conv.conversion.workspace import Workspace
from fp16conv.graph import DataType

__all__ = ["PRECISION_KEY", "REASON_KEY", "RULE_KEY", "AnnotateNodesPass", "describe"]

PRECISION_KEY = "pkg.fp16conv.precision"
RULE_KEY = "pkg.fp16conv.rule"
REASON_KEY = "pkg.fp16conv.reason"
MAX_REASON = 160  # characters


def describe(assignment: Assignment, typevar: int | None) -> dict[str, str]:
    """Rule and reason of one decision as metadata."""
    reason = None if typevar is None else assignment.reasons[typevar]
    if reason is None:
        return {RULE_KEY: "plan"}
    text = reason.text if len(reason.text) <= MAX_REASON else reason.text[: MAX_REASON - 3] + "..."
    return {RULE_KEY: reason.rule, REASON_KEY: text}


@dataclass(frozen=True)
class AnnotateNodesPass(ir.passes.InPlacePass):
    """Write precision, rule and reason into `metadata_props`.

    A node that an earlier conversion annotated keeps its note unless its precision changes now: converting
    twice changes nothing.
    """

    workspace: Workspace
    assignment: Assignment

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for op in self.workspace.graph.ops:
            if not op.typevars:
                continue
            node = self.workspace.nodes[op.id]
            dtypes = [self.assignment.of_typevar(t) for t in op.typevars]
            if RULE_KEY in node.metadata_props and DataType.FLOAT16 not in dtypes:
                continue
            symbols = [self.workspace.graph.typevars[t].symbol for t in op.typevars]
            uniform = len(set(dtypes)) == 1
            text = (
                str(dtypes[0])
                if uniform
                else " ".join(f"{s}={d}" for s, d in zip(symbols, dtypes, strict=True))
            )
            first = dtypes.index(DataType.FLOAT) if DataType.FLOAT in dtypes else 0
            node.metadata_props.pop(REASON_KEY, None)
            node.metadata_props.update({PRECISION_KEY: text, **describe(self.assignment, op.typevars[first])})
            modified = True
        return ir.passes.PassResult(model, modified)
