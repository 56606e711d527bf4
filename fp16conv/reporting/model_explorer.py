"""Node data for Google's Model Explorer: the precision of every operator, to lay over the graph.

Format: `GraphNodeData` of the package ai-edge-model-explorer (node_data_builder.py): one JSON object with a
`results` entry per node, keyed by the name of a tensor that the node makes.
"""

from __future__ import annotations

import json

from fp16conv.errors import UsageError
from fp16conv.reporting.report import Report
from fp16conv.reporting.sanitize import sanitize

__all__ = ["render_model_explorer"]

_COLORS = {"fp16": "#2166c2", "mixed": "#7b3fb5", "fp32": "#c2570a"}
_NAMES = {"fp16": "FP16", "mixed": "mixed", "fp32": "FP32"}


def render_model_explorer(report: Report) -> str:
    """Render the precision of every floating operator; FP32 ones carry the rule that keeps them there.

    Raises:
        UsageError: the report has no operators.
    """
    if report.details is None:
        raise UsageError("the report lists no operators, so there is nothing for Model Explorer to show")
    results: dict[str, dict[str, str]] = {}
    for op in report.details.operators:
        if op.precision not in _NAMES:
            continue
        value = _NAMES[op.precision]
        if op.precision != "fp16" and op.reasons:
            value += f" ({sanitize(op.reasons[0].rule)})"
        entry = {"value": value, "bgColor": _COLORS[op.precision], "textColor": "#ffffff"}
        # The keys are the names in the model: they have to match, so they stay as they are.
        results.update({output.name: entry for output in op.outputs if output.name})
    data = {
        "results": results,
        "name": "fp16conv precision",
        "showExpandedSummaryOnGroupNode": True,
        "showLabelCountColumnsInChildrenStatsTable": True,
    }
    return json.dumps(data, indent=1, ensure_ascii=True) + "\n"
