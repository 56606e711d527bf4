from __future__ import annotations

import dataclasses
import importlib.util
import unicodedata
from pathlib import Path
from types import ModuleType

import pytest

from fp16conv.reporting.report import HalfOutcome, Report
from fp16conv.reporting.sanitize import display_width
from fp16conv.reporting.text import HEIGHT, WIDTH, layout_report, render_text


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


samples = _load("sample_reports")
NAMES = ["encoder", samples.HOSTILE, "x" * 300, ""]
KINDS = sorted(samples.all_reports("x"))


def _report(kind: str, name: str) -> Report:
    report = samples.all_reports(name)[kind]
    assert isinstance(report, Report)
    return report


@pytest.mark.parametrize("name", NAMES, ids=["plain", "hostile", "long", "empty"])
@pytest.mark.parametrize("kind", KINDS)
def test_lines_fit_and_hold_nothing_a_terminal_acts_on(kind: str, name: str) -> None:
    text = render_text(_report(kind, name))
    assert text.endswith("\n")
    for row in text.splitlines():
        assert display_width(row) <= WIDTH
    bad = [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")]
    assert bad == []


@pytest.mark.parametrize("name", NAMES, ids=["plain", "hostile", "long", "empty"])
@pytest.mark.parametrize("kind", ["analyze", "plan"])
def test_an_audit_is_one_screen_even_with_many_reasons_and_findings(kind: str, name: str) -> None:
    assert len(render_text(_report(kind, name)).splitlines()) <= HEIGHT


def test_findings_do_not_push_out_what_stays_fp32() -> None:
    text = render_text(samples.analyze())
    assert "exp-overflow [evidence]: Exp 9" in text
    assert text.count("beyond 65504") >= 2
    assert "rule-1 at /encoder/1" in text
    assert "more reasons" in text


def test_full_shows_every_group_and_finding() -> None:
    text = "\n".join("".join(s.text for s in row) for row in layout_report(samples.analyze(), full=True))
    for i in range(8):
        assert f"rule-{i} at" in text
    for i in range(1, 9):
        assert f" rule-{i}: Exp" in text
    assert "more reasons" not in text


def test_errors_come_first() -> None:
    report = samples.convert(ok=False)
    rows = render_text(report).splitlines()
    head = next(i for i, row in enumerate(rows) if row.startswith("Output "))
    assert rows[head + 1].startswith("encoder")
    assert rows[head + 1].endswith("missed")


@pytest.mark.parametrize(
    ("half", "expected"),
    [
        (HalfOutcome(False, "/a/Pow", "Pow"), "breaks: NaN or infinity first at /a/Pow (Pow)"),
        (
            HalfOutcome(True, rel_l2=0.3, within_tolerance=False),
            "misses the tolerance, relative L2 error 3.0e-01",
        ),
        (
            HalfOutcome(True, rel_l2=1e-4, within_tolerance=True),
            "stays within tolerance, relative L2 error 1.0e-04",
        ),
        (HalfOutcome(None, note="the runtime crashed"), "not tried: the runtime crashed"),
    ],
)
def test_what_plain_half_would_do(half: HalfOutcome, expected: str) -> None:
    text = render_text(dataclasses.replace(samples.analyze(), half=half))
    assert expected in text


def test_unknown_report_class_is_an_error() -> None:
    with pytest.raises(TypeError, match="no text layout"):
        render_text(Report(schema="x/1", tool_version="0"))
