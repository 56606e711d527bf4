"""The verbs as functions: each one readable pipeline from file to result. The same words as the flags.

What not every verb needs is imported by those that do: an audit does not wait for converter and tuner.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Unpack

from fp16conv.collector import collection_paused
from fp16conv.errors import UsageError
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.frontends.sources import are_torch_sources, is_torch_source
from fp16conv.inputs import InputWords, OptionWords, load_model, read_options
from fp16conv.reporting.report import AnalyzeReport, ConvertReport, HalfOutcome, ValidateReport
from fp16conv.validation.compare import Provider
from fp16conv.validation.metrics import ATOL, RTOL

if TYPE_CHECKING:
    from fp16conv.auditor import audit_rules
    from fp16conv.planning.plan import PrecisionPlan
    from fp16conv.reporting.details import Details
    from fp16conv.reporting.inspection import DiffReport, ExplainReport
    from fp16conv.reporting.progress import Progress
    from fp16conv.reporting.tuning import TuneReport
    from fp16conv.study import Study
    from fp16conv.tuner import default_cache

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

_HOME = {"audit_rules": "fp16conv.auditor", "default_cache": "fp16conv.tuner"}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


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
    from fp16conv.reporting.inventory import node_notes
    from fp16conv.reports import report_analysis, summarize_outlook
    from fp16conv.study import start_study
    from fp16conv.validation.outlook import what_half_does

    chosen = read_options(**options)
    loaded = load_model(model)
    if annotate is not None:
        from fp16conv.conversion.annotation import annotate as annotate_nodes
        from fp16conv.conversion.save import check_target, save

        check_target(Path(annotate), loaded)
    with Runtime() as runtime:
        study = start_study(loaded, chosen, runtime, progress)
        _tell(progress, "planning")
        made = study.plan()
        half = HalfOutcome(None, note=study.unobserved)
        if study.calibration is not None:
            _tell(progress, "trying model.half()")
            half = summarize_outlook(what_half_does(study.loaded, study.feeds, runtime, facts=study.facts))
        details = _details(study, made, progress, wanted=chosen.details or annotate is not None)
    if annotate is not None and details is not None:
        notes = {number: node_notes(op) for number, op in enumerate(details.operators)}
        save(annotate_nodes(loaded, notes), annotate, loaded)
    return report_analysis(study, made, half, details if chosen.details else None)


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
    from fp16conv.study import start_study

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
            repair=repair,
            allow_out_of_tolerance=allow_out_of_tolerance,
            allow_integer_changes=allow_integer_changes,
            provider=provider,
            progress=progress,
            **options,
        )
        return report
    from fp16conv.conversion.save import check_target
    from fp16conv.job import MAX_REPAIRS, Comparison, OnnxJob
    from fp16conv.reports import report_conversion
    from fp16conv.study import start_study

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
            comparison = Comparison(rtol, atol, allow_integer_changes, provider)
        job = OnnxJob(study, Path(output), comparison, allow_out_of_tolerance, progress)
        with contextlib.nullcontext() if validate else collection_paused():
            outcome = job.run(given, MAX_REPAIRS if repair and given is None else 0)
            details = _details(study, outcome.plan, progress, wanted=chosen.details)
            return report_conversion(job, outcome, details)


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
        per_op: also tell which operators cause the error (at most 32 runs more).
        progress: told about each step.
        **inputs: see `InputWords`.

    Returns:
        the report; `report.ok` is False where an output is out of tolerance.

    Raises:
        ValidationError: the comparison could not run.
        ModelError, DataError, UsageError: as in `analyze`.
    """
    from fp16conv.validator import validate as validate_onnx

    verb = _torch_verbs().validate if are_torch_sources(reference, candidate) else validate_onnx
    report: ValidateReport = verb(
        reference,
        candidate,
        rtol=rtol,
        atol=atol,
        allow_integer_changes=allow_integer_changes,
        provider=provider,
        per_op=per_op,
        progress=progress,
        **inputs,
    )
    return report


def tune(
    model: Source,
    output: PathLike | None = None,
    *,
    tolerance: float,
    atol: float | None = None,
    budget_seconds: float | None = None,
    cache: PathLike | None = None,
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
        model: path of an .onnx or .pt2 file, `package.module:factory`, or a model in memory.
        output: file to write; None only searches.
        tolerance: allowed relative L2 error per output.
        atol: allowed root mean square error per output, on top; a thousandth of the tolerance by default.
        budget_seconds: stop searching after this time with the best plan so far.
        cache: folder for measurements, by which an interrupted search goes on; None keeps none.
        allow_integer_changes: integer outputs may differ.
        provider: of the final comparison: auto, emulated or cuda. The search of an ONNX model emulates.
        progress: told about each run.
        **options: see `OptionWords`.

    Returns:
        The report; `report.met` is False where no plan is within tolerance, and no file is written then.

    Raises:
        ValidationError: the FP32 model does not run.
        ConversionError: the result is not valid; no file was written.
        ModelError, DataError, UsageError: as in `analyze`.
    """
    from fp16conv.tuner import tune as tune_onnx

    search = _torch_verbs().tune if is_torch_source(model) else tune_onnx
    report: TuneReport = search(
        model,
        output,
        tolerance=tolerance,
        atol=atol,
        budget_seconds=budget_seconds,
        cache=cache,
        allow_integer_changes=allow_integer_changes,
        provider=provider,
        progress=progress,
        **options,
    )
    return report


def explain(
    model: Source, operator: str, *, progress: Progress | None = None, **options: Unpack[OptionWords]
) -> ExplainReport:
    """Say why an operator has its precision, and make the plans that would change it.

    Args:
        model: path of an .onnx or .pt2 file, `package.module:factory`, or a model in memory.
        operator: its name, or a pattern that fits only one.
        progress: told about each step.
        **options: see `OptionWords`.

    Returns:
        The report: every reason, the numbers, and what other options would give.

    Raises:
        UsageError: no operator has the name, or several fit; suggests names.
        ModelError, DataError: as in `analyze`.
    """
    from fp16conv.inspection import explain as explain_onnx

    verb = _torch_verbs().explain if is_torch_source(model) else explain_onnx
    report: ExplainReport = verb(model, operator, progress=progress, **options)
    return report


def diff(first: PathLike, second: PathLike) -> DiffReport:
    """Compare two plans, or two models: what changed in precision and casts.

    Args:
        first: a plan (.json) or a model (.onnx, .pt2 or `package.module:factory`).
        second: another one of the same kind.

    Returns:
        The report; `report.differs` says whether there is any difference. Operators are matched by scope and
        name.

    Raises:
        UsageError: they are not of one kind.
        PlanError, ModelError: one cannot be read.
    """
    from fp16conv.inspection import diff as diff_onnx

    verb = _torch_verbs().diff if are_torch_sources(first, second) else diff_onnx
    report: DiffReport = verb(first, second)
    return report


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


def _details(study: Study, made: PrecisionPlan, progress: Progress | None, *, wanted: bool) -> Details | None:
    if not wanted:
        return None
    _tell(progress, "measuring every value")
    return study.list_details(made)


def _tell(progress: Progress | None, step: str) -> None:
    if progress is not None:
        progress(step)


def _read_plan(plan: PrecisionPlan | PathLike | None, loaded: LoadedModel) -> PrecisionPlan | None:
    if plan is None:
        return None
    from fp16conv.planning.plan import PrecisionPlan
    from fp16conv.planning.serialize import bind_plan, load_plan

    if isinstance(plan, PrecisionPlan):
        return bind_plan(plan, loaded.graph)
    return load_plan(Path(plan), loaded.graph)
