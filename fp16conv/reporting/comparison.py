"""Turn the outcome of a validation into report data and findings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fp16conv.reporting.report import (
    Accuracy,
    Backend,
    Finding,
    OperatorError,
    OutputCheck,
    Severity,
    ValidationResult,
)
from fp16conv.validation import compare
from fp16conv.validation.metrics import OutputMetrics

__all__ = ["find_in_validation", "summarize_validation"]


def summarize_validation(
    result: compare.ValidationResult, culprits: Sequence[OperatorError] = ()
) -> ValidationResult:
    """Condense a comparison.

    Args:
        result: the verdict and what it rests on.
        culprits: operators that add most of the error, worst first.
    """
    return ValidationResult(
        rtol=result.rtol,
        atol=result.atol,
        ok=result.ok,
        backends=tuple(
            Backend(b.backend, b.description, b.ok, tuple(map(_check, b.outputs)), b.limits, b.fallbacks)
            for b in result.backends
        ),
        accuracy=tuple(
            Accuracy(m.name, m.reference_accuracy, m.accuracy)
            for m in result.outputs
            if m.reference_accuracy is not None and m.accuracy is not None
        ),
        culprits=tuple(culprits),
        notes=result.notes,
    )


def _check(metrics: OutputMetrics) -> OutputCheck:
    is_float = metrics.kind == "float"
    limit = metrics.allowed_error / metrics.rms_reference if metrics.rms_reference > 0 else None
    measured = is_float and not (metrics.relative_l2 is None and metrics.new_nan + metrics.new_inf)
    exact = measured and metrics.snr_db is None and metrics.rms_error == 0
    return OutputCheck(
        name=metrics.name,
        kind=metrics.kind,
        ok=metrics.ok,
        rel_l2=metrics.relative_l2 if is_float else None,
        max_abs=metrics.max_abs if measured else None,
        snr_db=math.inf if exact else metrics.snr_db,
        cosine=metrics.cosine,
        top1=metrics.top1_agreement,
        new_nan=metrics.new_nan,
        new_inf=metrics.new_inf,
        changed=metrics.changed,
        elements=metrics.elements,
        limit=limit if is_float else None,
        problems=metrics.problems,
    )


def find_in_validation(result: compare.ValidationResult, *, accepted: bool = False) -> tuple[Finding, ...]:
    """Findings of a comparison: outputs out of tolerance, and runtimes that cannot run the model.

    A runtime's failure is a warning named after that runtime: the verdict rests on the rest. FP16 operators
    that a GPU session ran on the CPU are an error.

    Args:
        result: the verdict and what it rests on.
        accepted: the user wanted the model in any case, so that a missed tolerance is a warning.
    """
    findings = [
        Finding(
            Severity.WARNING if accepted else Severity.ERROR,
            "tolerance-missed",
            metrics.name,
            "; ".join(metrics.problems) or "the output differs more than allowed",
            "keep the operators that add most of the error in FP32, or allow a larger --rtol",
        )
        for metrics in result.outputs
        if not metrics.ok
    ]
    findings += [
        Finding(
            Severity.ERROR,
            "silent-fallback",
            backend.description,
            f"FP16 operators ran on the CPU: {', '.join(backend.fallbacks[:5])}",
            "keep them in FP32 with --keep-fp32, or use a provider that has the kernels",
        )
        for backend in result.backends
        if backend.fallbacks
    ]
    findings += [
        Finding(
            Severity.WARNING,
            "runtime-crash" if found.crashed else "runtime-failure",
            f"{found.runtime}, {found.provider}",
            f"cannot {found.stage} the converted model: {found.message}",
            "use another version or provider of this runtime",
        )
        for found in result.findings
    ]
    return tuple(findings)
