"""The verb `tune`: relax what the evidence allows, search, convert by the plan that won."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Unpack

import numpy as np
import numpy.typing as npt

import fp16conv
from fp16conv.conversion.save import check_target
from fp16conv.errors import ValidationError
from fp16conv.execution.feeds import FeedSource
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.job import Comparison, ConversionJob, Outcome
from fp16conv.planning.cut import Charge
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.planning.planner import make_plan
from fp16conv.reporting.comparison import find_in_validation, summarize_validation
from fp16conv.reporting.frontier import find_moved, list_frontier, list_roundings
from fp16conv.reporting.progress import Progress
from fp16conv.reporting.report import Finding, Severity
from fp16conv.reporting.summary import read_prediction, read_size, summarize_decisions
from fp16conv.reporting.tuning import Effort, TuneReport
from fp16conv.rulebook.rescaling import exponents_of
from fp16conv.study import (
    OptionWords,
    Study,
    describe_evidence,
    describe_study,
    list_details,
    load_model,
    read_options,
    start_study,
)
from fp16conv.tuning.meter import Journal, Meter
from fp16conv.tuning.relaxation import relax
from fp16conv.tuning.search import Point, Search, TuneResult, max_runs
from fp16conv.validation.compare import Provider
from fp16conv.validation.probe import Probe

__all__ = ["ATOL_SHARE", "default_cache", "tune", "tune_study"]

ATOL_SHARE = 1e-3
"""Absolute error that is always fine, as a part of the tolerance: outputs are mostly of the order of 1."""


def tune(
    model: str | os.PathLike[str] | LoadedModel,
    output: str | os.PathLike[str] | None = None,
    *,
    tolerance: float,
    atol: float | None = None,
    budget_seconds: float | None = None,
    cache: str | os.PathLike[str] | None = None,
    allow_integer_changes: bool = False,
    provider: Provider = "auto",
    progress: Progress | None = None,
    **options: Unpack[OptionWords],
) -> TuneReport:
    """Find the fastest plan whose error meets a tolerance on all batches, and convert by it.

    Predicted time is traded against measured error: operators that the rules keep in FP32 are relaxed where
    this model's numbers show that they are safe and it pays, others go to FP32 where they must. The plan that
    `convert` makes is a candidate: the result is never predicted slower where that plan is within tolerance.

    Args:
        model: path of an .onnx file, or a loaded model.
        output: file to write; None only searches.
        tolerance: allowed relative L2 error per output.
        atol: allowed root mean square error per output, on top; a thousandth of the tolerance by default.
        budget_seconds: stop searching after this time with the best plan so far.
        cache: folder for measurements, by which an interrupted search goes on; None keeps none.
        allow_integer_changes: integer outputs may differ.
        provider: of the final comparison: auto, emulated or cuda. The search itself emulates.
        progress: told about each run.
        **options: see `OptionWords`.

    Returns:
        The report; `report.met` is False where no plan is within tolerance, and no file is written then.

    Raises:
        ValidationError: the FP32 model does not run.
        ConversionError: the result is not valid; no file was written.
        ModelError, DataError, UsageError: as in `analyze`.
    """
    chosen = read_options(**options)
    loaded = load_model(model)
    if output is not None:
        check_target(Path(output), loaded)
    allowed = tolerance * ATOL_SHARE if atol is None else atol
    with Runtime() as runtime:
        study = start_study(loaded, chosen, runtime, progress)
        result = tune_study(
            study,
            runtime,
            rtol=tolerance,
            atol=allowed,
            allow_integer_changes=allow_integer_changes,
            cache=None if cache is None else Path(cache),
            budget_seconds=budget_seconds,
            progress=progress,
        )
        comparison = Comparison(runtime, provider, tolerance, allowed, allow_integer_changes)
        outcome, best = _write(study, comparison, result, output, progress)
        report = _report(study, result, outcome, best, tolerance, output is not None)
        if not chosen.details:
            return report
        shown = best or min(result.points, key=lambda p: p.reading.worst, default=None)
        plan = result.default if shown is None else shown.plan
        return dataclasses.replace(report, details=list_details(study, plan, runtime))


def _write(
    study: Study,
    comparison: Comparison,
    result: TuneResult,
    output: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> tuple[Outcome | None, Point | None]:
    """Convert by the best plan; by the next one where the file misses what its emulation met."""
    if output is None or result.best is None:
        return None, result.best
    outcome = None
    for point in (result.best, *result.alternatives[:2]):
        job = ConversionJob(study, Path(output), comparison, False, progress)
        outcome = job.run(point.plan, 0)
        if outcome.files:
            return outcome, point
    return outcome, None


ENOUGH_BATCHES: Final = 8
"""Below this many batches the report says that other data may err more (see docs/concepts/tuning.md)."""


def _report(
    study: Study,
    result: TuneResult,
    outcome: Outcome | None,
    best: Point | None,
    tolerance: float,
    wanted: bool,
) -> TuneReport:
    nearest = min(result.points, key=lambda p: p.reading.worst, default=None)
    shown = best or nearest
    plan = result.default if shown is None else shown.plan
    graph = study.graph
    findings = []
    if best is None and shown is not None:
        text = f"no plan errs less than {shown.reading.worst:.3g} times the allowed error"
        fix = "raise --tolerance, or give up what forces operators into FP16"
        findings.append(Finding(Severity.ERROR, "tolerance-missed", graph.source, text, fix))
    evidence = describe_evidence(study.feeds, study.options, len(study.feeds))
    if evidence.synthetic:
        text = "made-up inputs relax no rule: with --data the search can"
        findings.append(Finding(Severity.NOTE, "synthetic-evidence", graph.source, text))
    elif best is not None and len(study.feeds) < ENOUGH_BATCHES:
        reserve = f"{1 - best.reading.worst:.0%} in reserve"
        text = f"met on {len(study.feeds)} batches with {reserve}: other data may err more"
        fix = "give more batches with --data, and validate the result on data that the search did not see"
        findings.append(Finding(Severity.NOTE, "few-batches", graph.source, text, fix))
    validation = None
    if outcome is not None and outcome.result is not None:
        validation = summarize_validation(outcome.result)
        findings += find_in_validation(outcome.result)
    return TuneReport(
        tool_version=fp16conv.__version__,
        options=dict(plan.options),
        model=describe_study(study),
        decisions=summarize_decisions(plan, study.costs.macs),
        size=read_size(plan),
        prediction=read_prediction(plan, study.costs.device),
        evidence=evidence,
        output=None if outcome is None else outcome.output,
        checks=outcome.checks if outcome is not None else (),
        validation=validation,
        tolerance=tolerance,
        met=best is not None,
        nearest=shown.reading.worst if shown is not None else 0.0,
        wanted=wanted,
        frontier=list_frontier(result.points, best),
        effort=Effort(
            runs=result.runs,
            reused=result.reused,
            max_runs=result.max_runs,
            exhaustive_runs=sum(bool(op.typevars) for op in graph.ops),
            out_of_time=result.out_of_time,
        ),
        moved=find_moved(result.default, plan),
        roundings=list_roundings(graph, result),
        findings=tuple(findings),
    )


def default_cache() -> Path:
    """The user's cache folder: $XDG_CACHE_HOME/fp16conv, or ~/.cache/fp16conv."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "fp16conv"


def tune_study(
    study: Study,
    runtime: Runtime,
    *,
    rtol: float,
    atol: float,
    allow_integer_changes: bool = False,
    cache: Path | None = None,
    budget_seconds: float | None = None,
    progress: Progress | None = None,
) -> TuneResult:
    """Find the fastest plan whose error over all batches is within tolerance.

    Args:
        study: the model and what is known about it.
        runtime: CPU runtime.
        rtol: allowed relative L2 error per output.
        atol: allowed root mean square error per output, on top.
        allow_integer_changes: integer outputs may change.
        cache: folder for readings, None to keep none.
        budget_seconds: when to stop with the best plan so far.
        progress: told about each run.

    Raises:
        ValidationError: the FP32 model does not run.
    """
    graph = study.loaded.graph
    if study.calibration is None:
        raise ValidationError(
            "the FP32 model does not run, so there is nothing to tune by",
            where=graph.source,
            why=study.unobserved,
        )
    relaxed, _ = relax(graph, study.verdicts, study.facts)
    options = study.options.recorded() | {"tolerance": rtol, "atol": atol}

    def planner(*, charges: Sequence[Charge], lam: float, kept: Collection[int] = ()) -> PrecisionPlan:
        return make_plan(
            graph,
            relaxed,
            study.costs,
            rules_digest=study.book.digest,
            options=options,
            errors=dict.fromkeys(kept, float("inf")),
            charges=charges,
            lam=lam,
            soft_allow=True,
        )

    parts = [
        fp16conv.__version__,
        runtime.version,
        graph.digest,
        study.book.digest,
        _digest(study.feeds),
        repr(
            (
                rtol,
                atol,
                allow_integer_changes,
                sorted(study.verdicts.saturated),
                sorted(study.verdicts.folded),
                sorted(exponents_of(study.verdicts.rescaled).items()),
            )
        ),
    ]
    with Probe(
        study.loaded,
        study.feeds,
        runtime,
        saturated=tuple(study.verdicts.saturated),
        folded=tuple(study.verdicts.folded),
        rescaled=exponents_of(study.verdicts.rescaled),
        rtol=rtol,
        atol=atol,
        allow_integer_changes=allow_integer_changes,
        batches=len(study.feeds),
    ) as probe:
        operators = sum(bool(op.typevars) for op in graph.ops)
        meter = Meter(
            probe,
            Journal(cache, parts),
            max_runs=max_runs(operators),
            seconds=budget_seconds,
            tell=progress,
        )
        search = Search(
            graph,
            relaxed,
            study.costs,
            study.facts,
            probe.switched.slots,
            study.plan(),
            planner,
            meter,
        )
        return search.run()


def _digest(feeds: FeedSource) -> str:
    """Digest of all inputs."""
    digest = hashlib.sha256()
    for batch in feeds:
        for name in sorted(batch):
            digest.update(name.encode())
            for array in _arrays(batch[name]):
                digest.update(f"{array.dtype}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _arrays(item: object) -> Iterable[npt.NDArray[Any]]:
    if isinstance(item, list | tuple):
        for part in item:
            yield from _arrays(part)
    elif item is not None:
        array = np.asarray(item)
        yield array.astype(np.str_) if array.dtype == object else array
