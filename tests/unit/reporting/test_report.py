from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp16conv.reporting.json import render_json
from fp16conv.reporting.layout import wrap
from fp16conv.reporting.report import (
    DecisionSummary,
    Finding,
    PlanReport,
    Report,
    Severity,
    Size,
    dump,
)
from fp16conv.reporting.sanitize import clip, display_width, sanitize
from fp16conv.reporting.units import format_bytes, format_count, format_seconds, format_share

DECISIONS = DecisionSummary(1, 1, 0, {}, 0, None, ())


def test_json_is_strict_ascii_and_starts_with_the_schema() -> None:
    report = PlanReport(
        tool_version="1",
        model_path="m\x1b\u202e.onnx",
        plan_path="",
        decisions=DECISIONS,
        options={"e": math.inf},
    )
    text = render_json(report)
    assert text.isascii()
    assert "\x1b" not in text
    values = json.loads(text, parse_constant=lambda c: pytest.fail(c))
    assert next(iter(values)) == "schema"
    assert values["schema"] == "fp16conv.plan-summary/1"
    assert values["options"]["e"] == "inf"
    assert values["model_path"] == "m\x1b\u202e.onnx"


@pytest.mark.parametrize(
    ("severity", "ok"), [(Severity.NOTE, True), (Severity.WARNING, True), (Severity.ERROR, False)]
)
def test_only_errors_make_a_report_fail(severity: Severity, ok: bool) -> None:
    assert Report(schema="x/1", tool_version="1", findings=(Finding(severity, "r", "w", "m"),)).ok is ok


def test_reports_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Report(schema="x/1", tool_version="1").schema = "y"  # type: ignore[misc]


def test_dump_adds_derived_figures() -> None:
    assert dump(Size(100, 50)) == {"weights_before": 100, "weights_after": 50, "saving": 0.5}
    assert dump((math.nan, -math.inf)) == ["nan", "-inf"]
    assert Size(0, 0).saving == 0.0


@given(st.text(max_size=60), st.integers(9, 40), st.integers(0, 6))
def test_wrapped_lines_are_never_too_wide_and_lose_nothing(text: str, width: int, indent: int) -> None:
    rows = wrap(text, width, indent=" " * indent)
    assert all(display_width(row) <= width for row in rows)
    joined = "".join("".join(rows).split())
    assert joined == "".join(sanitize(text.replace("\n", " ")).split())


@given(st.text(max_size=80), st.integers(1, 40), st.booleans())
def test_clip_never_exceeds_its_width(text: str, width: int, keep_end: bool) -> None:
    assert display_width(clip(sanitize(text), width, keep_end=keep_end)) <= width


@given(st.text())
def test_sanitize_leaves_only_printable_characters(text: str) -> None:
    assert all(c == " " or c.isprintable() or c == "\u00a0" or c.isspace() for c in sanitize(text))
    assert not set(sanitize(text)) & set("\x1b\r\n\t\x00\x9b\u202e\u2028\u2066")


def test_figures() -> None:
    assert format_bytes(999_499) == "999 kB"
    assert format_bytes(1e15) == "1000 TB"
    assert format_count(9_999_999) == "10.0 M"
    assert format_seconds(1e-9) == "0.00 us"
    assert format_share(0.99999) == "99.9 %"
