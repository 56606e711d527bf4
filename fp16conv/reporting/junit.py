"""JUnit XML renderer: one test case per output, check and finding, for dashboards that read test results."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass

from fp16conv.reporting.facts import headline_of, sort_findings
from fp16conv.reporting.report import Check, Report, Severity, ValidationResult
from fp16conv.reporting.sanitize import sanitize
from fp16conv.reporting.source_lines import located
from fp16conv.reporting.units import format_error

__all__ = ["render_junit"]


@dataclass(frozen=True, slots=True)
class _Case:
    """A test case; it failed if `failure` is not empty and was skipped if `skipped` is not."""

    group: str
    name: str
    failure: str = ""
    skipped: str = ""
    output: str = ""


def render_junit(report: Report) -> str:
    """Render as JUnit XML (the dialect that GitLab, Jenkins and pytest share).

    Findings of severity error are failures; warnings and notes pass and say their text as output.
    """
    verb = report.schema.partition("/")[0].rpartition(".")[2]
    cases = list(_cases(report))
    failures = sum(bool(case.failure) for case in cases)
    skipped = sum(bool(case.skipped) for case in cases)
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}
    root = ET.Element("testsuites", {"name": f"fp16conv {verb}", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": f"fp16conv {verb}", **counts})
    for case in cases:
        classname = f"fp16conv.{verb}.{case.group}"
        item = ET.SubElement(suite, "testcase", {"classname": classname, "name": sanitize(case.name)})
        if case.failure:
            failure = ET.SubElement(item, "failure", {"message": sanitize(case.failure), "type": case.group})
            failure.text = sanitize(case.failure)
        elif case.skipped:
            ET.SubElement(item, "skipped", {"message": sanitize(case.skipped)})
        if case.output:
            ET.SubElement(item, "system-out").text = sanitize(case.output)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _cases(report: Report) -> Iterator[_Case]:
    head = headline_of(report)
    sentence = f"{head.label}: {head.text}"
    yield _Case("verdict", head.label, failure="" if report.ok else sentence, output=sentence)
    for finding in sort_findings(report.findings):
        text = f"{finding.message}" + (f" -> {finding.fix}" if finding.fix else "")
        failed = finding.severity is Severity.ERROR
        name = f"{finding.rule} at {located(report, finding.where)}" if finding.where else finding.rule
        output = "" if failed else f"{finding.severity.value}: {text}"
        yield _Case("finding", name, failure=text if failed else "", output=output)
    checks: tuple[Check, ...] = getattr(report, "checks", ())
    for check in checks:
        yield _Case(
            "check",
            check.name,
            failure=check.detail or "failed" if check.ok is False else "",
            skipped=check.detail or "could not run" if check.ok is None else "",
        )
    result: ValidationResult | None = getattr(report, "validation", None)
    for backend in result.backends if result is not None else ():
        for measured in backend.outputs:
            problems = "; ".join(measured.problems) or "the output differs more than allowed"
            numbers = (
                f"relative L2 error {format_error(measured.rel_l2)}, limit {format_error(measured.limit)}"
            )
            failure = "" if measured.ok else problems
            yield _Case(f"output.{backend.name}", measured.name, failure=failure, output=numbers)
