"""--format, --report and --fail-on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from fp16conv.cli import delivery
from fp16conv.reporting.renderers import RENDERERS
from fp16conv.reporting.report import Finding, Severity
from tests.unit.reporting import sample_details as details
from tests.unit.reporting import sample_reports as samples

WARNING = Finding(Severity.WARNING, "half-unsafe", "w", "m")
ERROR = Finding(Severity.ERROR, "broken", "w", "m")


def analyze_with(*findings: Finding) -> Any:
    def function(model: str, **options: Any) -> Any:
        return dataclasses.replace(details.report(20), findings=findings)

    return function


def test_forms_are_the_renderers() -> None:
    assert set(delivery.FORMS) == set(RENDERERS)
    assert set(delivery.SUFFIXES.values()) <= set(RENDERERS)
    assert set(RENDERERS) >= delivery.DETAILED & set(delivery.FORMS)


@pytest.mark.parametrize("form", delivery.FORMS)
def test_every_form_goes_to_stdout(cli: Any, form: str) -> None:
    done = cli("analyze", "m.onnx", "--format", form, analyze=analyze_with())
    assert done.code == 0, done.err
    assert done.out.strip()
    assert not done.err


def test_files_are_written_beside_stdout(cli: Any, tmp_path: Path) -> None:
    files = [tmp_path / f"r{suffix}" for suffix in delivery.SUFFIXES]
    flags = [word for file in files for word in ("--report", str(file))]
    done = cli("analyze", "m.onnx", *flags, analyze=analyze_with())
    assert done.code == 0, done.err
    assert "Can go FP16" in done.out
    assert all(file.stat().st_size for file in files)
    assert json.loads((tmp_path / "r.json").read_text())["schema"] == "fp16conv.analyze/1"


def test_details_are_asked_for_only_where_a_form_shows_them(cli: Any) -> None:
    seen: list[dict[str, Any]] = []

    def function(model: str, **options: Any) -> Any:
        seen.append(options)
        return samples.analyze()

    for flags in (["text"], ["json"], ["text", "-v"], ["sarif"], ["json", "-v"]):
        assert cli("analyze", "m.onnx", "--format", *flags, analyze=function).code == 0
    assert ["details" in options for options in seen] == [False, False, False, True, True]


def test_unknown_ending_is_refused_before_the_run(cli: Any, tmp_path: Path) -> None:
    done = cli("analyze", "m.onnx", "--report", str(tmp_path / "r.pdf"), analyze=None)
    assert done.code == 2
    assert ".sarif" in done.err


def test_a_report_never_overwrites_an_input(cli: Any, tmp_path: Path) -> None:
    model = tmp_path / "m.json"
    model.write_text("{}")
    done = cli("analyze", str(model), "--report", str(model), analyze=analyze_with())
    assert done.code == 2
    assert model.read_text() == "{}"


def test_missing_folder_is_refused_before_the_run(cli: Any, tmp_path: Path) -> None:
    assert cli("analyze", "m.onnx", "--report", str(tmp_path / "no" / "r.md"), analyze=None).code == 2


@pytest.mark.parametrize(
    ("fail_on", "findings", "code"),
    [
        ("error", (WARNING,), 0),
        ("error", (ERROR,), 1),
        ("warning", (), 0),
        ("warning", (WARNING,), 1),
        ("warning", (ERROR,), 1),
        ("never", (ERROR, WARNING), 0),
    ],
)
def test_fail_on(cli: Any, fail_on: str, findings: tuple[Finding, ...], code: int) -> None:
    done = cli("analyze", "m.onnx", "--fail-on", fail_on, analyze=analyze_with(*findings))
    assert done.code == code, done.err


def test_a_file_that_was_not_written_fails_in_any_case(cli: Any, tmp_path: Path) -> None:
    missed = samples.convert(ok=False)
    done = cli(
        "convert",
        "m.onnx",
        "-o",
        str(tmp_path / "o.onnx"),
        "--fail-on",
        "never",
        convert=lambda *a, **k: missed,
    )
    assert done.code == 1
