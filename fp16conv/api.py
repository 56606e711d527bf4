"""The verbs as functions: each one readable pipeline from file to result. The same words as the flags."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Unpack

import fp16conv
from fp16conv.auditor import audit_rules
from fp16conv.conversion.annotation import annotate as annotate_nodes
from fp16conv.conversion.save import check_target, save
from fp16conv.errors import UsageError
from fp16conv.execution.feeds import FeedSource
from fp16conv.execution.runtime import Runtime, RuntimeFailure
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.frontends.sources import is_torch_source
from fp16conv.graph import DataType, Origin
from fp16conv.inspection import diff, explain
from fp16conv.job import Comparison, ConversionJob, Outcome, culprits_of
from fp16conv.planning.devices import load_device
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.planning.serialize import bind_plan, load_plan
from fp16conv.reporting.comparison import find_in_validation, summarize_operators, summarize_validation
from fp16conv.reporting.details import Details
from fp16conv.reporting.inventory import list_converted, node_notes
from fp16conv.reporting.progress import Progress
from fp16conv.reporting.report import (
    AnalyzeReport,
    ConvertReport,
    Finding,
    HalfOutcome,
    Severity,
    ValidateReport,
)
from fp16conv.reporting.safety import summarize_bounds
from fp16conv.reporting.summary import read_prediction, read_size, summarize_decisions
from fp16conv.rulebook.book import load_book
from fp16conv.study import (
    InputWords,
    Options,
    OptionWords,
    Study,
    describe_evidence,
    describe_study,
    list_details,
    load_model,
    open_feeds,
    read_options,
    start_study,
)
from fp16conv.tuner import default_cache, tune
from fp16conv.validation.compare import Provider
from fp16conv.validation.depth import errors_of_model
from fp16conv.validation.metrics import ATOL, RTOL
from fp16conv.validation.outlook import HalfOutlook, what_half_does
from fp16conv.validation.per_operator import rank_operators

__all__ = [
    "analyze",
    "audit_rules",
    "convert",
    "default_cache",
    "diff",
    "explain",
    "export",
    "load",
    "plan",
    "tune",
    "validate",
]

PathLike = str | os.PathLike[str]
Source = PathLike | LoadedModel
"""A path, `package.module:factory`, or a model that was loaded before."""

MAX_REPAIRS = 3  # rounds of: attribute the error, move the worst to FP32, plan again


def load(model: PathLike) -> LoadedModel:
    """Read an .onnx file and check that nothing in it would be lost.

    Args:
        model: path; external data must lie in its folder.

    Returns:
        the onnx_ir model, its ModelGraph and the map between them.

    Raises:
        ModelError: it cannot be read, or holds what a conversion could not keep.
    """
    return load_model(model)


def analyze(
    model: Source,
    *,
    annotate: PathLike | None = None,
    progress: Progress | None = None,
    **options: Unpack[OptionWords],
) -> AnalyzeReport:
    """Audit a model: what can run in FP16, what stays FP32 and why. Nothing is edited.

    Args:
        model: path of an .onnx file, or a loaded model.
        annotate: .onnx file to write: the same model with precision, reason, range and error as notes on its
            nodes, for viewers.
        progress: told about each step.
        **options: see `OptionWords`.

    Returns:
        the report; `report.ok` is False where a finding has severity error.

    Raises:
        ModelError: the model cannot be read.
        DataError: the data does not fit the model's inputs.
        UsageError: an option is wrong.
    """
    if is_torch_source(model):
        if annotate is not None:
            raise UsageError(
                "only .onnx files can be annotated", where=str(model), hint="'fp16conv export' writes one"
            )
        report: AnalyzeReport = _torch_verbs().analyze(model, progress=progress, **options)
        return report
    chosen = read_options(**options)
    loaded = load_model(model)
    if annotate is not None:
        check_target(Path(annotate), loaded)
    with Runtime() as runtime:
        study = start_study(loaded, chosen, runtime, progress)
        _tell(progress, "planning")
        made = study.plan()
        half = HalfOutcome(None, note=study.unobserved)
        if study.calibration is not None:
            _tell(progress, "trying model.half()")
            half = _summarize_half(what_half_does(study.loaded, study.feeds, runtime, facts=study.facts))
        details = _details(study, made, runtime, progress, wanted=chosen.details or annotate is not None)
    if annotate is not None and details is not None:
        notes = {number: node_notes(op) for number, op in enumerate(details.operators)}
        save(annotate_nodes(loaded, notes), annotate, loaded)
    return AnalyzeReport(
        tool_version=fp16conv.__version__,
        options=chosen.recorded(),
        model=describe_study(study),
        decisions=summarize_decisions(made, study.costs.macs),
        size=read_size(made),
        prediction=read_prediction(made, load_device(chosen.device)),
        half=half,
        evidence=describe_evidence(
            study.feeds, chosen, study.calibration.batches if study.calibration else 0
        ),
        bounds=summarize_bounds(study.graph, made, study.proven, study.observed, study.costs.macs),
        findings=(*_not_finite(study), *_findings(study, made, half)),
        details=details if chosen.details else None,
    )


def export(
    source: Source,
    output: PathLike,
    *,
    opset: int | None = None,
    progress: Progress | None = None,
    **options: Unpack[OptionWords],
) -> AnalyzeReport:
    """Export a PyTorch program to an .onnx file in FP32, and audit that file.

    Args:
        source: .pt2 file, `package.module:factory`, or a program or module in memory.
        output: .onnx file to write.
        opset: ONNX opset, the exporter's default if None.
        progress: told about each step.
        **options: see `OptionWords`.

    Returns:
        the report of `analyze` on the file; its operators bear the names of PyTorch modules.

    Raises:
        ModelError: the source cannot be read or exported.
        UsageError: torch is not installed, the source is not PyTorch's, or an option is wrong.
    """
    if not is_torch_source(source):
        raise UsageError(
            f"'{source}' is no PyTorch source", hint="name a .pt2 file or package.module:factory"
        )
    inputs: InputWords = {k: v for k, v in options.items() if k in InputWords.__annotations__}  # type: ignore[assignment]
    _torch_verbs().export(source, output, opset=opset, progress=progress, **inputs)
    return analyze(output, progress=progress, **options)


def plan(model: Source, *, progress: Progress | None = None, **options: Unpack[OptionWords]) -> PrecisionPlan:
    """Decide the precision of every type variable.

    Args:
        model: path of an .onnx file, or a loaded model.
        progress: told about each step.
        **options: see `OptionWords`.

    Returns:
        the plan; `planning.serialize.save_plan` writes it.

    Raises:
        ModelError, DataError, UsageError: as in `analyze`.
    """
    if is_torch_source(model):
        made: PrecisionPlan = _torch_verbs().plan(model, progress=progress, **options)
        return made
    with Runtime() as runtime:
        return start_study(load_model(model), read_options(**options), runtime, progress).plan()


def convert(
    model: Source,
    output: PathLike,
    *,
    plan: PrecisionPlan | PathLike | None = None,
    rtol: float = RTOL,
    atol: float = ATOL,
    validate: bool = True,
    repair: bool = True,
    allow_out_of_tolerance: bool = False,
    allow_integer_changes: bool = False,
    provider: Provider = "auto",
    progress: Progress | None = None,
    **options: Unpack[OptionWords],
) -> ConvertReport:
    """Convert a model: decide, insert the casts, verify, compare with FP32, save.

    The file gets its name only after it passed the checker, strict type inference and the honest comparison.
    Where the tolerance is missed, the operators that cause it move to FP32, a bounded number of times.

    Args:
        model: path of an .onnx file, or a loaded model.
        output: file to write; never the input.
        plan: a plan to apply instead of making one.
        rtol: allowed relative L2 error per output.
        atol: allowed root mean square error per output, on top.
        validate: compare with the FP32 model before saving.
        repair: move operators to FP32 where the tolerance is missed.
        allow_out_of_tolerance: write the file even so.
        allow_integer_changes: integer outputs may differ.
        provider: auto, emulated or cuda.
        progress: told about each step.
        **options: see `OptionWords`.

    Returns:
        the report; `report.output` is None where nothing was written because the tolerance was missed.

    Raises:
        ConversionError: the result is not valid; no file was written.
        ValidationError: the comparison could not run; no file was written.
        ModelError, DataError, UsageError, PlanError: as in `analyze`.
    """
    if is_torch_source(model):
        report: ConvertReport = _torch_verbs().convert(
            model,
            output,
            plan=plan,
            rtol=rtol,
            atol=atol,
            validate=validate,
            allow_out_of_tolerance=allow_out_of_tolerance,
            allow_integer_changes=allow_integer_changes,
            progress=progress,
            **options,
        )
        return report
    chosen = read_options(**options)
    loaded = load_model(model)
    check_target(Path(output), loaded)
    given = _read_plan(plan, loaded)
    with Runtime() as runtime:
        study = start_study(
            loaded, chosen, runtime, progress, observe=given is None and (validate or bool(chosen.data))
        )
        comparison = None
        if validate:
            comparison = Comparison(runtime, provider, rtol, atol, allow_integer_changes)
        job = ConversionJob(study, Path(output), comparison, allow_out_of_tolerance, progress)
        outcome = job.run(given, MAX_REPAIRS if repair and given is None else 0)
        report = _report_conversion(study, comparison, outcome)
        return dataclasses.replace(
            report, details=_details(study, outcome.plan, runtime, progress, wanted=chosen.details)
        )


def validate(
    reference: Source,
    candidate: Source,
    *,
    rtol: float = RTOL,
    atol: float = ATOL,
    allow_integer_changes: bool = False,
    provider: Provider = "auto",
    per_op: bool = False,
    progress: Progress | None = None,
    **inputs: Unpack[InputWords],
) -> ValidateReport:
    """Compare two models on the same inputs: the reference in FP32, the candidate in honest FP16.

    Args:
        reference: the FP32 model.
        candidate: the converted model.
        rtol: allowed relative L2 error per output.
        atol: allowed root mean square error per output, on top.
        allow_integer_changes: integer outputs may differ.
        provider: auto, emulated or cuda.
        per_op: also tell which operators cause the error (ONNX only; at most 32 emulated runs more).
        progress: told about each step.
        **inputs: see `InputWords`.

    Returns:
        the report; `report.ok` is False where an output is out of tolerance.

    Raises:
        ValidationError: the comparison could not run.
        ModelError, DataError, UsageError: as in `analyze`.
    """
    if is_torch_source(reference) and is_torch_source(candidate):
        compared: ValidateReport = _torch_verbs().validate(
            reference,
            candidate,
            rtol=rtol,
            atol=atol,
            allow_integer_changes=allow_integer_changes,
            progress=progress,
            **inputs,
        )
        return compared
    chosen = read_options(**inputs)
    first, second = load_model(reference), load_model(candidate)
    with Runtime() as runtime:
        feeds = open_feeds(first, chosen, runtime)
        _tell(progress, "comparing")
        comparison = Comparison(runtime, provider, rtol, atol, allow_integer_changes)
        result = comparison.run(first, second, feeds)
        details = _details_of_pair(first, second, feeds, chosen, runtime) if chosen.details else None
        blamed = None
        if per_op:
            _tell(progress, "finding the operators that cause the error")
            found = rank_operators(
                first,
                second,
                feeds,
                runtime,
                rtol=rtol,
                atol=atol,
                allow_integer_changes=allow_integer_changes,
            )
            blamed = summarize_operators(first.graph, found, load_book().patterns)
    return ValidateReport(
        tool_version=fp16conv.__version__,
        options=chosen.recorded(),
        reference=first.graph.source,
        candidate=second.graph.source,
        evidence=describe_evidence(feeds, chosen, result.batches),
        validation=summarize_validation(result),
        findings=find_in_validation(result),
        details=details,
        per_operator=blamed,
    )


def _details_of_pair(
    reference: LoadedModel, candidate: LoadedModel, feeds: FeedSource, options: Options, runtime: Runtime
) -> Details:
    """The candidate's operators, and how far each value is from the one of the same name in the reference."""
    named: dict[str, float] = {}
    batch = next(iter(feeds), None)
    if batch is not None:
        with contextlib.suppress(RuntimeFailure):
            errors = errors_of_model(reference, candidate, batch, runtime, memory_limit=options.memory_limit)
            named = {reference.graph.values[v].name: error for v, error in errors.items()}
    return list_converted(
        candidate.graph,
        errors=named,
        error_note="the first batch, the candidate emulated: every FP16 tensor is rounded",
    )


def _torch_verbs() -> ModuleType:
    """The same verbs for PyTorch sources; torch is imported here and nowhere before."""
    try:
        return importlib.import_module("fp16conv.fx")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(
            "PyTorch sources need torch, which is not installed", hint="pip install 'fp16conv[torch]'"
        ) from None


def _details(
    study: Study, made: PrecisionPlan, runtime: Runtime, progress: Progress | None, *, wanted: bool
) -> Details | None:
    if not wanted:
        return None
    _tell(progress, "measuring every value")
    return list_details(study, made, runtime)


def _tell(progress: Progress | None, step: str) -> None:
    if progress is not None:
        progress(step)


def _read_plan(plan: PrecisionPlan | PathLike | None, loaded: LoadedModel) -> PrecisionPlan | None:
    if plan is None:
        return None
    if isinstance(plan, PrecisionPlan):
        return bind_plan(plan, loaded.graph)
    return load_plan(Path(plan), loaded.graph)


def _summarize_half(outlook: HalfOutlook) -> HalfOutcome:
    broken = [m for m in outlook.outputs if m.new_nan or m.new_inf]
    cause = (outlook.overflowing or outlook.culprits)[:1]
    errors = [m.relative_l2 for m in outlook.outputs if m.kind == "float" and m.relative_l2 is not None]
    return HalfOutcome(
        finite=not broken,
        first_overflow=cause[0].label if cause and (broken or outlook.overflowing) else "",
        first_overflow_type=cause[0].op_type if cause and (broken or outlook.overflowing) else "",
        rel_l2=max(errors, default=None),
        within_tolerance=outlook.ok,
        note=outlook.describe(),
    )


def _findings(study: Study, plan: PrecisionPlan, half: HalfOutcome | None = None) -> Iterator[Finding]:
    source = study.loaded.graph.source
    speedup = plan.predicted.get("speedup", 1.0)
    if plan.predicted.get("macs_fp16") and speedup < 1.0:
        text = f"the casts are predicted to cost more than FP16 saves on this device ({speedup:.2f}x)"
        hint = "measure it on the device, or let `fp16conv tune` look for a faster plan"
        yield Finding(Severity.NOTE, "no-speedup", source, text, hint)
    halves = any(value.dtype is DataType.FLOAT16 for value in study.loaded.graph.values)
    if halves and not plan.predicted.get("macs_fp16") and DataType.FLOAT16 not in plan.dtypes.values():
        text = "it holds FP16 already, and nothing else in it would gain"
        yield Finding(Severity.NOTE, "already-fp16", source, text, "deploy it as it is")
    if study.calibration is None and study.unobserved not in ("", "not asked for"):
        yield Finding(Severity.WARNING, "not-observed", source, f"ranges are unknown: {study.unobserved}")
    if study.calibration is not None and study.calibration.untaken:
        text = f"{len(study.calibration.untaken)} values lie in branches that no batch takes"
        hint = "they are judged by what the branch would compute on this data; give data that takes it"
        yield Finding(Severity.NOTE, "branch-not-taken", source, text, hint)
    if half is not None and half.within_tolerance is False:
        fix = "convert with fp16conv: its plan keeps in FP32 what breaks"
        yield Finding(Severity.WARNING, "half-unsafe", half.first_overflow or source, half.note, fix)


def _not_finite(study: Study) -> Iterator[Finding]:
    """Outputs that are broken in FP32 already: an error on the user's data, a warning on made-up inputs."""
    if study.calibration is None:
        return
    real = study.calibration.origin is Origin.OBSERVED
    hint = "look at the data and the FP32 model first: FP16 cannot repair it"
    for number in study.graph.scopes[0].outputs:
        fact = None if number is None else study.calibration.facts.get(number)
        if number is None or fact is None or not (fact.has_nan or math.isinf(fact.max_abs)):
            continue
        what = "NaN" if fact.has_nan else "infinity"
        yield Finding(
            Severity.ERROR if real else Severity.WARNING,
            "fp32-not-finite",
            study.graph.values[number].name,
            f"the FP32 model gives {what} on {'your data' if real else 'made-up inputs'}",
            hint if real else "give --data, or --input-range for the numbers that the model expects",
        )


def _report_conversion(study: Study, comparison: Comparison | None, outcome: Outcome) -> ConvertReport:
    findings = list(_findings(study, outcome.plan))
    validation = None
    if outcome.result is not None and comparison is not None:
        culprits = () if outcome.result.ok else culprits_of(study, comparison, outcome.plan)
        validation = summarize_validation(outcome.result, culprits)
        findings += find_in_validation(outcome.result, accepted=bool(outcome.files))
    return ConvertReport(
        tool_version=fp16conv.__version__,
        options=dict(outcome.plan.options),
        model=describe_study(study),
        decisions=summarize_decisions(outcome.plan, study.costs.macs),
        size=read_size(outcome.plan),
        output=outcome.output,
        prediction=read_prediction(outcome.plan, load_device(study.options.device)),
        evidence=describe_evidence(
            study.feeds, study.options, outcome.result.batches if outcome.result else 0
        ),
        checks=outcome.checks,
        validation=validation,
        repairs=outcome.repairs,
        findings=tuple(findings),
    )
