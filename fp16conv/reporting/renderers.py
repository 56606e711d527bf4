"""The formats a report can be rendered in: one file each, one entry here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from fp16conv.reporting.report import Report

__all__ = ["RENDERERS"]


def _renderer(form: str) -> Callable[[Report], str]:
    """The function `render_FORM` of the module of that name, loaded when a report is to be rendered."""
    name = form.replace("-", "_")

    def render(report: Report) -> str:
        text: str = getattr(importlib.import_module(f"fp16conv.reporting.{name}"), f"render_{name}")(report)
        return text

    return render


RENDERERS: Mapping[str, Callable[[Report], str]] = {
    form: _renderer(form) for form in ("text", "json", "html", "markdown", "sarif", "junit", "model-explorer")
}
