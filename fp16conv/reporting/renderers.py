"""The formats a report can be rendered in: one file each, one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fp16conv.reporting.html import render_html
from fp16conv.reporting.json import render_json
from fp16conv.reporting.junit import render_junit
from fp16conv.reporting.markdown import render_markdown
from fp16conv.reporting.model_explorer import render_model_explorer
from fp16conv.reporting.report import Report
from fp16conv.reporting.sarif import render_sarif
from fp16conv.reporting.text import render_text

__all__ = ["RENDERERS"]

RENDERERS: Mapping[str, Callable[[Report], str]] = {
    "text": render_text,
    "json": render_json,
    "html": render_html,
    "markdown": render_markdown,
    "sarif": render_sarif,
    "junit": render_junit,
    "model-explorer": render_model_explorer,
}
