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
from fp16conv.inputs import OptionWords, describe_evidence, load_model, read_options
from fp16conv.job import Comparison, ConversionJob, OnnxJob, Outcome, Tolerance
from fp16conv.planning.cut import Charge
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.planning.planner import make_plan
from fp16conv.reporting.comparison import find_in_validation, summarize_validation
from fp16conv.reporting.frontier import find_moved, list_frontier, list_roundings
from fp16conv.reporting.progress import Progress
from fp16conv.reporting.report import Finding, Severity
from fp16conv.reporting.source_lines import add_source_lines
from fp16conv.reporting.summary import read_prediction, read_size, summarize_decisions
from fp16conv.reporting.tuning import Effort, TuneReport
from fp16conv.study import StudyBase, start_study
from fp16conv.tuning.meter import Journal, Meter
from fp16conv.tuning.relaxation import relax
from fp16conv.tuning.search import Point, Search, TuneResult, max_runs
from fp16conv.validation.compare import Provider
from fp16conv.validation.probe import rewritten_by

__all__ = ["ATOL_SHARE", "default_cache", "run_tuning", "tune", "tune_study"]

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
    """Tune an ONNX model; see `fp16conv.tune`."""
    chosen = read_options(**options)
    loaded = load_model(model)
    if output is not None:
        check_target(Path(output), loaded)
    allowed = tolerance * ATOL_SHARE if atol is None else atol
    with Runtime() as runtime:
        study = start_study(loaded, chosen, runtime, progress)
        comparison = Comparison(tolerance, allowed, allow_integer_changes, provider)
        job = None if output is None else OnnxJob(study, Path(output), comparison, False, progress)
        return run_tuning(
            study,
            job,
            comparison,
            cache=None if cache is None else Path(cache),
            budget_seconds=budget_seconds,
            progress=progress,
        )


def run_tuning(
    study: StudyBase,
    job: ConversionJob | None,
    tolerance: Tolerance,
    *,
    cache: Path | None,
    budget_seconds: float | None,
    progress: Progress | None,
) -> TuneReport:
    """Search, and convert by what was found; see `tune`.

    Args:
        study: the model and what is known about it.
        job: converts; None only searches.
        tolerance: what an output may err.
        cache: folder for measurements, None to keep none.
        budget_seconds: when to stop searching with the best plan so far.
        progress: told about each run.
    """
    result = tune_study(study, tolerance, cache=cache, budget_seconds=budget_seconds, progress=progress)
    outcome, best = _write(job, result)
    report = _report(study, result, outcome, best, tolerance.rtol, job is not None)
    if not study.options.details:
        return report
    shown = best or min(result.points, key=lambda p: p.reading.worst, default=None)
    plan = result.default if shown is None else shown.plan
    return dataclasses.replace(report, details=study.list_details(plan))


def _write(job: ConversionJob | None, result: TuneResult) -> tuple[Outcome | None, Point | None]:
    """Convert by the best plan; by the next one where the file misses what its emulation met."""
    if job is None or result.best is None:
        return None, result.best
    outcome = None
    for point in (result.best, *result.alternatives[:2]):
        outcome = job.run(point.plan, 0)
        if outcome.files:
            return outcome, point
    return outcome, None


ENOUGH_BATCHES: Final = 8
"""Below this many batches the report says that other data may err more (see docs/concepts/tuning.md)."""


def _report(
    study: StudyBase,
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
    report = TuneReport(
        tool_version=fp16conv.__version__,
        options=dict(plan.options),
        model=study.describe(),
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
    return add_source_lines(report, graph)


def default_cache() -> Path:
    """The user's cache folder: $XDG_CACHE_HOME/fp16conv, or ~/.cache/fp16conv."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "fp16conv"


def tune_study(
    study: StudyBase,
    tolerance: Tolerance,
    *,
    cache: Path | None = None,
    budget_seconds: float | None = None,
    progress: Progress | None = None,
) -> TuneResult:
    """Find the fastest plan whose error over all batches is within tolerance.

    Args:
        study: the model and what is known about it.
        tolerance: what an output may err.
        cache: folder for readings, None to keep none.
        budget_seconds: when to stop with the best plan so far.
        progress: told about each run.

    Raises:
        ValidationError: the FP32 model does not run.
    """
    graph = study.graph
    if study.calibration is None:
        raise ValidationError(
            "the FP32 model does not run, so there is nothing to tune by",
            where=graph.source,
            why=study.unobserved,
        )
    relaxed, _ = relax(graph, study.verdicts, study.facts)
    options = study.options.recorded() | {"tolerance": tolerance.rtol, "atol": tolerance.atol}

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
        study.engine,
        graph.digest,
        study.book.digest,
        _digest(study.feeds),
        repr((tolerance.rtol, tolerance.atol, tolerance.allow_integer_changes)),
        repr(rewritten_by(study.verdicts)),
    ]
    with study.open_probe(
        study.verdicts,
        rtol=tolerance.rtol,
        atol=tolerance.atol,
        allow_integer_changes=tolerance.allow_integer_changes,
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
