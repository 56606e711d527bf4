"""SARIF renderer: findings for code scanning (SARIF 2.1.0, OASIS Standard, 27 March 2020)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from fp16conv.reporting.facts import sort_findings
from fp16conv.reporting.report import (
    AnalyzeReport,
    ConvertReport,
    DecisionSummary,
    Finding,
    KeptGroup,
    PlanReport,
    Report,
    ValidateReport,
)
from fp16conv.reporting.sanitize import sanitize
from fp16conv.reporting.source_lines import split_line
from fp16conv.reporting.training import TrainAuditReport
from fp16conv.reporting.units import plural

__all__ = ["render_sarif"]

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
VERSION = "2.1.0"


def render_sarif(report: Report) -> str:
    """Render as SARIF: one run, a result per finding and per group of operators that stays FP32.

    Every location is the model file and the operator as a logical location: an ONNX file has no lines, and
    code scanning wants one, so line 1 stands for the whole file. Operators that come from PyTorch are
    located at their source line instead.
    """
    model = _model_of(report)
    results = [*_findings(report, model), *_kept(report, model)]
    rules = _rules(report, results)
    index = {rule["id"]: number for number, rule in enumerate(rules)}
    for result in results:
        result["ruleIndex"] = index[result["ruleId"]]
    verb = report.schema.partition("/")[0].rpartition(".")[2]
    run = {
        # One category per model, so that the runs of several models can be uploaded together.
        "automationDetails": {"id": f"fp16conv-{verb}/{_uri(model)}/"},
        "tool": {
            "driver": {
                "name": "fp16conv",
                "version": report.tool_version,
                "semanticVersion": report.tool_version,
                "rules": rules,
            }
        },
        "artifacts": [{"location": {"uri": _uri(model)}, "roles": ["analysisTarget"]}],
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "exitCode": 0 if report.ok else 1}],
        "results": results,
    }
    log = {"$schema": SCHEMA, "version": VERSION, "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def _model_of(report: Report) -> str:
    if isinstance(report, AnalyzeReport | ConvertReport):
        return report.model.path
    if isinstance(report, PlanReport):
        return report.model_path
    if isinstance(report, TrainAuditReport):
        return report.source
    return report.candidate if isinstance(report, ValidateReport) else "model"


def _uri(path: str) -> str:
    """A relative reference where the path is relative, so that it is found in a checkout elsewhere.

    Example:
        >>> _uri("my models/a#1.onnx"), _uri("/srv/a.onnx")
        ('my%20models/a%231.onnx', 'file:///srv/a.onnx')
    """
    plain = PurePath(path).as_posix()
    encoded = quote(plain.encode("utf-8", "surrogateescape"), safe="/")
    if plain.startswith("/"):
        return f"file://{encoded}"
    return f"file:///{encoded}" if PurePath(path).is_absolute() else encoded


def _message(*lines: str) -> dict[str, str]:
    """Plain text: brackets would be links (section 3.11.6)."""
    return {"text": "\n".join(re.sub(r"([\[\]])", r"\\\1", sanitize(row)) for row in lines) or "-"}


def _location(report: Report, model: str, where: str) -> dict[str, Any]:
    artifact: dict[str, Any] = {"uri": _uri(model), "index": 0}
    number = 1
    if (line := report.source_lines.get(where)) is not None:
        file, number = split_line(line)
        artifact = {"uri": _uri(file)}
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": artifact, "region": {"startLine": number}}
    }
    if where and where != model:
        name = sanitize(where)
        location["logicalLocations"] = [{"name": name, "fullyQualifiedName": name, "kind": "element"}]
    return location


def _result(
    report: Report, model: str, rule: str, level: str, text: str, places: list[str]
) -> dict[str, Any]:
    identity = "\0".join([rule, model, *places]).encode("utf-8", "surrogatepass")
    return {
        "ruleId": sanitize(rule),
        "level": level,
        "message": _message(text),
        "locations": [_location(report, model, place) for place in places],
        "partialFingerprints": {"fp16conv/v1": hashlib.sha256(identity).hexdigest()[:32]},
    }


def _findings(report: Report, model: str) -> Iterator[dict[str, Any]]:
    for finding in sort_findings(report.findings):
        level, text = finding.severity.value, _sentence(finding)
        yield _result(report, model, finding.rule, level, text, [finding.where])


def _sentence(finding: Finding) -> str:
    return finding.message + (f". Fix: {finding.fix}" if finding.fix else "")


def _kept(report: Report, model: str) -> Iterator[dict[str, Any]]:
    decisions: DecisionSummary | None = getattr(report, "decisions", None)
    for group in decisions.kept if decisions is not None else ():
        text = f"{plural(group.count, 'operator')} in FP32 ({_types(group.op_types)}): {group.text}"
        result = _result(report, model, group.rule, "note", text, list(group.examples) or [""])
        result["properties"] = {"authority": group.authority, "operators": group.count}
        yield result


def _types(op_types: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in list(op_types.items())[:5])


def _rules(report: Report, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    notes = {note.id: note for note in getattr(getattr(report, "details", None), "rules", ())}
    kept: dict[str, KeptGroup] = {}
    decisions = getattr(report, "decisions", None)
    for group in decisions.kept if decisions is not None else ():
        kept.setdefault(group.rule, group)
    first: dict[str, str] = {}
    for result in results:
        first.setdefault(result["ruleId"], result["message"]["text"])
    rules = []
    for identifier in sorted(first):
        note = notes.get(identifier)
        # GitHub refuses rules without a full description and help.
        full = {"text": first[identifier]} if note is None else _message(note.rationale or note.name)
        more = () if note is None else (note.rationale, *(f"Source: {source}" for source in note.sources))
        rules.append(
            {
                "id": identifier,
                "name": "".join(word.capitalize() for word in re.split(r"\W+", identifier)),
                "shortDescription": _message(identifier.replace("-", " ") if note is None else note.name),
                "fullDescription": full,
                "help": _message(*more, f"More: fp16conv rules explain {identifier}") if more else full,
                "defaultConfiguration": {"level": "note" if identifier in kept else "warning"},
            }
        )
    return rules
