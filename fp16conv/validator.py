"""The verb `validate` for ONNX, and its report for all sources. Loads neither rules nor planner."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Unpack

import fp16conv
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.inputs import InputWords, Options, describe_evidence, load_model, open_feeds, read_options
from fp16conv.reporting.comparison import find_in_validation, summarize_validation
from fp16conv.reporting.progress import Progress
from fp16conv.reporting.report import ValidateReport
from fp16conv.reporting.source_lines import add_source_lines
from fp16conv.validation.compare import Provider, ValidationResult, compare_models

if TYPE_CHECKING:
    from fp16conv.execution.feeds import FeedSource
    from fp16conv.graph import ModelGraph
    from fp16conv.reporting.details import Details
    from fp16conv.reporting.per_operator import PerOperator

__all__ = ["report_comparison", "validate"]

Source = str | os.PathLike[str] | LoadedModel


def validate(
    reference: Source,
    candidate: Source,
    *,
    rtol: float,
    atol: float,
    allow_integer_changes: bool,
    provider: Provider,
    per_op: bool,
    progress: Progress | None,
    **inputs: Unpack[InputWords],
) -> ValidateReport:
    """Compare two ONNX models, see `fp16conv.validate`."""
    chosen = read_options(**inputs)
    with Runtime() as runtime:
        runtime.start()
        first = load_model(reference)
        second = cache(lambda: load_model(candidate))  # while the first one runs
        feeds = open_feeds(first, chosen, runtime)
        if progress is not None:
            progress("comparing")
        result = compare_models(
            first,
            second,
            feeds,
            provider=provider,
            rtol=rtol,
            atol=atol,
            labels=feeds.labels,
            allow_integer_changes=allow_integer_changes,
            runtime=runtime,
        )
        details = blamed = None
        if chosen.details:
            from fp16conv.reports import details_of_pair

            details = details_of_pair(first, second(), feeds, chosen, runtime)
        if per_op:
            if progress is not None:
                progress("finding the operators that cause the error")
            blamed = _blame(first, second(), feeds, runtime, rtol, atol, allow_integer_changes)
    return report_comparison(first.graph, result, feeds, chosen, details, blamed)


def report_comparison(
    reference: ModelGraph,
    result: ValidationResult,
    feeds: FeedSource,
    options: Options,
    details: Details | None,
    blamed: PerOperator | None,
) -> ValidateReport:
    """The report of `validate`, whatever the models came from.

    Args:
        reference: the FP32 model.
        result: the verdict.
        feeds: the inputs.
        options: what the user asked for.
        details: every operator, where they were asked for.
        blamed: the operators by the error that they cause, where they were asked for.
    """
    report = ValidateReport(
        tool_version=fp16conv.__version__,
        options=options.recorded(),
        reference=result.reference,
        candidate=result.candidate,
        evidence=describe_evidence(feeds, options, result.batches),
        validation=summarize_validation(result),
        findings=find_in_validation(result),
        details=details,
        per_operator=blamed,
    )
    return add_source_lines(report, reference)


def _blame(
    reference: LoadedModel,
    candidate: LoadedModel,
    feeds: FeedSource,
    runtime: Runtime,
    rtol: float,
    atol: float,
    allow_integer_changes: bool,
) -> PerOperator:
    """The operators by the error that they cause."""
    from fp16conv.reporting.blame import summarize_operators
    from fp16conv.rulebook.book import load_book
    from fp16conv.validation.per_operator import rank_operators

    found = rank_operators(
        reference,
        candidate,
        feeds,
        runtime,
        rtol=rtol,
        atol=atol,
        allow_integer_changes=allow_integer_changes,
    )
    return summarize_operators(reference.graph, found, load_book().patterns)
