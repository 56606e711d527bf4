"""Every report in every format against a file. UPDATE_GOLDEN=1 writes the files anew: read the difference."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from fp16conv.reporting.renderers import RENDERERS

HERE = Path(__file__).parent
SOURCE = HERE.parent / "unit" / "reporting" / "sample_reports.py"
SUFFIX = {"text": "txt", "json": "json", "markdown": "md", "sarif": "sarif", "junit": "xml"}

_spec = importlib.util.spec_from_file_location("sample_reports", SOURCE)
assert _spec is not None
assert _spec.loader is not None
samples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(samples)

CASES = [
    (kind, label, form)
    for kind in sorted(samples.all_reports("x"))
    for label in ("encoder", "hostile")
    for form in sorted(SUFFIX)
]


@pytest.mark.parametrize(("kind", "label", "form"), CASES, ids="-".join)
def test_report(kind: str, label: str, form: str) -> None:
    name = samples.HOSTILE if label == "hostile" else label
    text = RENDERERS[form](samples.all_reports(name)[kind])
    file = HERE / f"{kind}.{label}.{SUFFIX[form]}"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8", newline="\n")
    assert text == file.read_text(encoding="utf-8")


def test_every_format_has_a_file_ending() -> None:
    # A page of HTML is mostly its script: tests/unit/reporting/test_html.py and tests/browser look at it.
    assert set(SUFFIX) | {"html", "model-explorer"} == set(RENDERERS)
