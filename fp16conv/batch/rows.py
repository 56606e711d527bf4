"""What an audit says about one model: a line of a table."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from fp16conv.batch.jobs import Job, Outcome
from fp16conv.reporting.units import format_bytes, format_seconds

__all__ = ["Finding", "Row", "Status", "make_row", "must_fail"]

REFUSED = 2  # exit code for flags, rules or data that do not fit the model
UNREADABLE = 3  # exit code for a model that cannot be read or is not supported
_NO_MEMORY = (
    "MemoryError",
    "bad_alloc",
    "Cannot allocate memory",
    "failed to map segment",
    "not enough memory",
)


class Status(StrEnum):
    """The worst that is known of a model."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNREADABLE = "unreadable"
    CRASHED = "crashed"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of the report: severity (error, warning, note), rule, operator or value, message, fix."""

    severity: str
    rule: str
    where: str
    message: str
    fix: str


@dataclass(frozen=True, slots=True)
class Row:
    """One model.

    Args:
        path: as it was given.
        status: see `Status`.
        detail: why, in one sentence; the worst finding, or how the process ended. Empty if all is well.
        digest: SHA-256 of what the result depends on; None if the model's bytes cannot be read.
        cached: whether an earlier run found this.
        seconds: what the analysis took when it ran.
        operators: number of operators, like all below None where there is no report.
        macs_share: share of the multiply-accumulates that the plan runs in FP16; None if unknown.
        casts: casts that the plan inserts.
        weights_before: bytes of weights.
        weights_after: bytes of weights under the plan.
        speedup: predicted (roofline), not measured; None if unknown.
        half_ok: whether casting everything (`model.half()`) stays within tolerance; None if that did not run.
        findings: all of them.
    """

    path: str
    status: Status
    detail: str = ""
    digest: str | None = None
    cached: bool = False
    seconds: float | None = None
    operators: int | None = None
    macs_share: float | None = None
    casts: int | None = None
    weights_before: int | None = None
    weights_after: int | None = None
    speedup: float | None = None
    half_ok: bool | None = None
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The row as a JSON object."""
        return {"schema": "fp16conv.audit/1", **asdict(self)}


def make_row(path: str, job: Job, outcome: Outcome, *, digest: str | None, cached: bool) -> Row:
    """Judge an outcome.

    Args:
        path: how the row calls the model.
        job: what was run.
        outcome: what came back.
        digest: see `Row`.
        cached: see `Row`.
    """
    common: dict[str, Any] = {"digest": digest, "cached": cached, "seconds": round(outcome.seconds, 3)}
    if outcome.report is None:
        status, detail = _judge_failure(job, outcome)
        return Row(path, status, detail, **common)
    report = outcome.report
    findings = tuple(
        Finding(*(str(finding.get(k, "")) for k in ("severity", "rule", "where", "message", "fix")))
        for finding in report.get("findings", ())
    )
    status, detail = _judge_findings(findings, bool(report.get("ok")))
    model, decisions, size, prediction, half = (
        _part(report, name) for name in ("model", "decisions", "size", "prediction", "half")
    )
    return Row(
        path,
        status,
        detail,
        **common,
        operators=model.get("ops"),
        macs_share=decisions.get("macs_share"),
        casts=decisions.get("casts"),
        weights_before=size.get("weights_before"),
        weights_after=size.get("weights_after"),
        speedup=prediction.get("speedup"),
        half_ok=None if half.get("error") else half.get("within_tolerance"),
        findings=findings,
    )


def _part(report: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = report.get(name)
    return part if isinstance(part, dict) else {}


def _judge_findings(findings: tuple[Finding, ...], ok: bool) -> tuple[Status, str]:
    for status in (Status.ERROR, Status.WARNING):
        for finding in findings:
            if finding.severity == status:
                return status, finding.message
    return (Status.OK, "") if ok else (Status.ERROR, "the report is not ok")


def _judge_failure(job: Job, outcome: Outcome) -> tuple[Status, str]:
    code = outcome.code
    if code is None:
        limit = "" if job.timeout is None else f" after {format_seconds(job.timeout)}"
        return Status.TIMEOUT, f"stopped{limit}"
    words = outcome.message.splitlines()
    # The row names the model already.
    last = words[-1].removeprefix("error: ").removeprefix(f"{os.path.basename(job.path)}: ") if words else ""
    limited = f" (limit {format_bytes(job.memory_limit)} per process)" if job.memory_limit else ""
    if any(sign in outcome.message for sign in _NO_MEMORY):
        return Status.CRASHED, f"out of memory{limited}"
    if code == UNREADABLE:
        return Status.UNREADABLE, last
    if code == REFUSED:
        return Status.ERROR, last
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return Status.CRASHED, f"killed by {name}{limited}"
    return Status.CRASHED, last or f"exit code {code} and no report"


def must_fail(row: Row, fail_on: str) -> bool:
    """Whether a row fails the audit: a model that was not analyzed counts as an error.

    Args:
        row: one model.
        fail_on: `error`, `warning` or `never`.

    Example:
        >>> [must_fail(Row("a.onnx", status), "error") for status in (Status.WARNING, Status.TIMEOUT)]
        [False, True]
    """
    if fail_on == "never" or row.status is Status.OK:
        return False
    return row.status is not Status.WARNING or fail_on == "warning"
