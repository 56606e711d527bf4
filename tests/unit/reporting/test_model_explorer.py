from __future__ import annotations

import json

import pytest

from fp16conv.errors import UsageError
from fp16conv.reporting.model_explorer import render_model_explorer
from tests.unit.reporting import sample_details as details
from tests.unit.reporting import sample_reports as samples

# Fields of GraphNodeData and NodeDataResult in node_data_builder.py of ai-edge-model-explorer 0.1.34.
GRAPH = {
    "results",
    "name",
    "thresholds",
    "gradient",
    "hideInAggregatedStatsTable",
    "hideInChildrenStatsTable",
    "hideAggregatedStats",
    "showExpandedSummaryOnGroupNode",
    "showLabelCountColumnsInChildrenStatsTable",
}


def test_every_floating_operator_is_keyed_by_its_output() -> None:
    report = details.report(40, names=details.HOSTILE)
    data = json.loads(render_model_explorer(report))
    assert set(data) <= GRAPH
    assert report.details is not None
    expected = {v.name for op in report.details.operators if op.precision != "other" for v in op.outputs}
    assert set(data["results"]) == expected
    assert {tuple(sorted(result)) for result in data["results"].values()} == {
        ("bgColor", "textColor", "value")
    }
    assert data["results"][f"{details.CLOSE}_output_0"]["value"] == "FP32 (exp-overflow)"


def test_without_operators_it_is_an_error() -> None:
    with pytest.raises(UsageError):
        render_model_explorer(samples.analyze())
