"""JSON renderer: the dump of a report, for machines."""

from __future__ import annotations

import json

from fp16conv.reporting.report import Report

__all__ = ["render_json"]


def render_json(report: Report) -> str:
    """Render as strict JSON (ASCII only, so no name can reach a terminal raw), one trailing newline."""
    return json.dumps(report.to_dict(), indent=2, ensure_ascii=True, allow_nan=False) + "\n"
