"""Source lines of the operators that a report names: findings lead back to the PyTorch code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath
from typing import Final, TypeVar

from fp16conv.graph import ModelGraph
from fp16conv.reporting.report import DecisionSummary, Report

__all__ = ["LINE", "add_source_lines", "located", "split_line"]

LINE: Final = "line"
"""Key of an operator's metadata: file:number, as the PyTorch front end and `export` write it."""

R = TypeVar("R", bound=Report)


def add_source_lines(report: R, graph: ModelGraph) -> R:
    """The report, with the source line of each operator that it names.

    Args:
        report: names operators by label.
        graph: the model; its operators say where they come from, or nothing.
    """
    lines = {op.label: op.metadata[LINE] for op in graph.ops if op.metadata.get(LINE)}
    named = {label: lines[label] for label in _labels(report) if label in lines} if lines else {}
    return replace(report, source_lines=named)


def located(report: Report, label: str) -> str:
    """The label, with the name of the source file and the line where they are known.

    Example:
        >>> report = Report(schema="s", tool_version="1", source_lines={"fc/linear": "src/net.py:7"})
        >>> located(report, "fc/linear"), located(report, "head/linear")
        ('fc/linear (net.py:7)', 'head/linear')
    """
    line = report.source_lines.get(label)
    return label if line is None else f"{label} ({PurePath(line).name})"


def split_line(line: str) -> tuple[str, int]:
    """File and number of `file:number`.

    Example:
        >>> split_line("src/net.py:7")
        ('src/net.py', 7)
    """
    file, _, number = line.rpartition(":")
    return file, int(number)


def _labels(report: Report) -> Iterator[str]:
    decisions = getattr(report, "decisions", None)
    if isinstance(decisions, DecisionSummary):
        for group in decisions.kept:
            yield from group.examples
    for finding in report.findings:
        yield finding.where
    for repair in getattr(report, "repairs", ()):
        yield from repair.ops
    for culprit in getattr(getattr(report, "validation", None), "culprits", ()):
        yield culprit.op
    half = getattr(report, "half", None)
    if half is not None:
        yield half.first_overflow
    blamed = getattr(report, "per_operator", None)
    if blamed is not None:
        yield blamed.first
        for share in blamed.operators:
            yield share.op
