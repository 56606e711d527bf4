"""SARIF, Markdown and JUnit XML: structure, and names that attack whoever reads them."""

from __future__ import annotations

import html
import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from markdown_it import MarkdownIt

from fp16conv.reporting.junit import render_junit
from fp16conv.reporting.markdown import render_markdown
from fp16conv.reporting.sarif import render_sarif
from tests.unit.reporting import sample_details as details
from tests.unit.reporting import sample_reports as samples

KINDS = sorted(samples.all_reports("x"))
NASTY = (
    *details.HOSTILE,
    "[a](http://evil.example)",
    "@team #1 www.evil.example",
    "a|b\n# h",
    "``` x",
    "$$x$$",
)

# ---- SARIF 2.1.0: the parts of the schema that are used, closed ----

MESSAGE = {"text"}
ALLOWED: dict[str, set[str]] = {
    "": {"$schema", "version", "runs"},
    "runs": {"automationDetails", "tool", "artifacts", "columnKind", "invocations", "results"},
    "automationDetails": {"id"},
    "tool": {"driver"},
    "driver": {"name", "version", "semanticVersion", "rules"},
    "rules": {"id", "name", "shortDescription", "fullDescription", "help", "defaultConfiguration"},
    "shortDescription": MESSAGE,
    "fullDescription": MESSAGE,
    "help": MESSAGE,
    "message": MESSAGE,
    "defaultConfiguration": {"level"},
    "artifacts": {"location", "roles"},
    "location": {"uri"},
    "invocations": {"executionSuccessful", "exitCode"},
    "results": {"ruleId", "ruleIndex", "level", "message", "locations", "partialFingerprints", "properties"},
    "locations": {"physicalLocation", "logicalLocations"},
    "physicalLocation": {"artifactLocation", "region"},
    "artifactLocation": {"uri", "index"},
    "region": {"startLine"},
    "logicalLocations": {"name", "fullyQualifiedName", "kind"},
    "partialFingerprints": {"fp16conv/v1"},
    "properties": {"authority", "operators"},
}


def check(item: Any, kind: str = "") -> None:
    if isinstance(item, dict):
        assert set(item) <= ALLOWED[kind], (kind, set(item) - ALLOWED[kind])
        for key, value in item.items():
            check(value, key)
    elif isinstance(item, list):
        for value in item:
            check(value, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["encoder", *NASTY])
def test_sarif(kind: str, name: str) -> None:
    report = samples.all_reports(name)[kind]
    text = render_sarif(report)
    assert text.isascii()
    log = json.loads(text)
    check(log)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["locations"]
        # An unescaped bracket would start a link.
        assert not re.search(r"(?<!\\)[\[\]]", result["message"]["text"])
        for location in result["locations"]:
            uri = location["physicalLocation"]["artifactLocation"]["uri"]
            assert re.fullmatch(r"[A-Za-z0-9._~/%:-]+", uri)
    assert "\\u001b" not in text
    findings = [r for r in run["results"] if "properties" not in r]
    assert len(findings) == len(report.findings)
    assert len({r["partialFingerprints"]["fp16conv/v1"] for r in findings}) == len(findings)


def test_sarif_with_details_carries_the_rules_text_and_sources() -> None:
    log = json.loads(render_sarif(details.report(20)))
    rules = {rule["id"]: rule for rule in log["runs"][0]["tool"]["driver"]["rules"]}
    assert rules["exp-overflow"]["fullDescription"]["text"] == "ln(65504) is 11.09."
    assert "Source: IEEE 754" in rules["exp-overflow"]["help"]["text"]


# ---- Markdown ----


def shown(markdown: str) -> str:
    return MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(markdown)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NASTY)
def test_markdown_names_format_nothing(kind: str, name: str) -> None:
    clean = shown(render_markdown(samples.all_reports("encoder")[kind]))
    page = shown(render_markdown(samples.all_reports(name)[kind]))
    tags = re.compile(r"</?([a-z0-9]+)")
    assert sorted(tags.findall(page)) == sorted(tags.findall(clean))
    assert "\x1b" not in page
    # Comments keep mentions, references and bare addresses apart.
    outside = re.sub(r"<pre>.*?</pre>", "", page, flags=re.DOTALL)
    assert not re.search(r"@[A-Za-z]", outside)
    assert not re.search(r"#\d", html.unescape(outside))
    assert "www.evil" not in outside
    assert "http://" not in outside


def test_markdown_reads_as_the_report() -> None:
    page = re.sub(r"<[^>]*>", "", shown(render_markdown(samples.analyze())))
    for part in ("yes, with some operators kept in FP32", "2.35 MB", "exp-overflow", "declare it"):
        assert part in html.unescape(page)
    assert "fp16conv convert encoder.onnx -o encoder.fp16.onnx" in page


def test_markdown_fits_a_comment() -> None:
    assert len(render_markdown(samples.analyze("x" * 5000))) < 65_536


# ---- JUnit XML ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["encoder", *NASTY])
def test_junit(kind: str, name: str) -> None:
    report = samples.all_reports(name)[kind]
    root = ET.fromstring(render_junit(report))
    assert root.tag == "testsuites"
    (suite,) = root
    cases = suite.findall("testcase")
    for attribute, tag in (("failures", "failure"), ("skipped", "skipped")):
        assert int(suite.attrib[attribute]) == len(suite.findall(f"testcase/{tag}"))
    assert int(suite.attrib["tests"]) == len(cases)
    assert (int(suite.attrib["failures"]) == 0) == report.ok
    assert all(case.attrib["name"] and case.attrib["classname"] for case in cases)


def test_junit_has_a_case_per_output() -> None:
    root = ET.fromstring(render_junit(samples.validate(ok=False)))
    failed = [c.attrib["name"] for c in root.iter("testcase") if c.find("failure") is not None]
    assert "encoder" in failed
    assert "y" not in failed
