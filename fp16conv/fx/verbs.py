"""The verbs as functions, for PyTorch sources: each one readable pipeline, as in `fp16conv.api`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from torch.export import ExportedProgram
from torch.fx import GraphModule

from fp16conv.conversion.save import save
from fp16conv.errors import UsageError
from fp16conv.frontends.fx.export import export_program
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.fx.job import ProgramComparison, ProgramJob, rank_calls
from fp16conv.fx.study import ERROR_NOTE, ProgramStudy, Source, load, load_source, open_feeds, start_study
from fp16conv.graph import DataType
from fp16conv.inputs import InputWords, OptionWords, read_options
from fp16conv.inspection import diff_graphs, explain_operator, find_operator
from fp16conv.job import MAX_REPAIRS
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.planning.serialize import bind_plan, load_plan
from fp16conv.reporting.blame import summarize_operators
from fp16conv.reporting.details import Details
from fp16conv.reporting.inspection import DiffReport, ExplainReport
from fp16conv.reporting.inventory import list_converted
from fp16conv.reporting.progress import Progress
from fp16conv.reporting.report import AnalyzeReport, ConvertReport, HalfOutcome, Repair, ValidateReport
from fp16conv.reporting.tuning import TuneReport
from fp16conv.reports import report_analysis, report_conversion
from fp16conv.rulebook.book import load_book
from fp16conv.tuner import ATOL_SHARE, run_tuning
from fp16conv.validation.compare import Provider, ValidationResult
from fp16conv.validation.fx.depth import errors_of_program
from fp16conv.validation.fx.half import try_half
from fp16conv.validation.metrics import ATOL, RTOL
from fp16conv.validator import report_comparison

__all__ = [
    "Conversion",
    "analyze",
    "convert",
    "convert_module",
    "diff",
    "explain",
    "export",
    "plan",
    "tune",
    "validate",
]


@dataclass(frozen=True)
class Conversion:
    """A converted program and what was found about it.

    Args:
        program: ExportedProgram; `torch.export.save` writes it.
        plan: the decisions.
        result: the comparison with FP32, None where none was asked for.
        repairs: what was moved to FP32 because the tolerance was missed.
    """

    program: ExportedProgram
    plan: PrecisionPlan
    result: ValidationResult | None
    repairs: tuple[Repair, ...] = ()

    @property
    def module(self) -> GraphModule:
        """The program as a GraphModule to call."""
        module = self.program.module()
        assert isinstance(module, GraphModule)
        return module


def analyze(
    source: Source, *, progress: Progress | None = None, **options: Unpack[OptionWords]
) -> AnalyzeReport:
    """Audit a program; see `fp16conv.analyze`. Beside it, what plain `.half()` does is tried for real."""
    study = start_study(source, read_options(**options), progress)
    _tell(progress, "planning")
    made = study.plan()
    half = HalfOutcome(None, note=study.unobserved)
    if any(value.dtype is DataType.FLOAT16 for value in study.graph.values):
        half = HalfOutcome(None, note="the program holds FP16 already")
    elif study.calibration is not None:
        _tell(progress, "trying model.half()")
        half = _summarize_half(study)
    return report_analysis(study, made, half, _details(study, made, progress))


def plan(
    source: Source, *, progress: Progress | None = None, **options: Unpack[OptionWords]
) -> PrecisionPlan:
    """Decide the precision of every type variable of a program; see `fp16conv.plan`."""
    return start_study(source, read_options(**options), progress).plan()


def explain(
    source: Source, operator: str, *, progress: Progress | None = None, **options: Unpack[OptionWords]
) -> ExplainReport:
    """Say why a call has its precision; see `fp16conv.explain`."""
    chosen = read_options(**options)
    loaded = load_source(source, chosen)
    op = find_operator(loaded.graph, operator)
    return explain_operator(start_study(loaded, chosen, progress), op)


def diff(first: Source, second: Source) -> DiffReport:
    """Compare two programs: what changed in precision and casts; see `fp16conv.diff`."""
    options = read_options()
    one, two = load_source(first, options), load_source(second, options)
    names = one.output_names, two.output_names
    return diff_graphs(one.source, one.graph, two.source, two.graph, outputs=names)


def convert_module(
    source: Source,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    plan: PrecisionPlan | str | os.PathLike[str] | None = None,
    dynamic_shapes: Any = None,
    validate: bool = True,
    repair: bool = True,
    rtol: float = RTOL,
    atol: float = ATOL,
    allow_integer_changes: bool = False,
    provider: Provider = "auto",
    **options: Unpack[OptionWords],
) -> Conversion:
    """Convert a module or program in memory.

    Args:
        source: nn.Module, GraphModule, ExportedProgram, `package.module:factory` or a .pt2 file.
        args: example inputs of a module.
        kwargs: example inputs by name.
        plan: a plan to apply instead of making one.
        dynamic_shapes: as `torch.export.export` takes them.
        validate: compare with FP32 on the inputs.
        repair: move operators to FP32 where the tolerance is missed.
        rtol: allowed relative L2 error per output.
        atol: allowed root mean square error per output, on top.
        allow_integer_changes: integer outputs may differ.
        provider: auto, emulated or cuda, as in `convert`.
        **options: see `OptionWords`.

    Returns:
        The program, the plan and the comparison; `result.ok` tells whether it is within tolerance.

    Raises:
        ModelError, UsageError, DataError, PlanError, ConversionError, ValidationError: as in `convert`.
    """
    chosen = read_options(**options)
    loaded = load(source, args, kwargs, dynamic_shapes=dynamic_shapes)
    given = _read_plan(plan, loaded)
    study = start_study(loaded, chosen, observe=given is None, provider=provider)
    comparison = ProgramComparison(rtol, atol, allow_integer_changes, provider) if validate else None
    job = ProgramJob(study, None, comparison)
    outcome = job.run(given, MAX_REPAIRS if repair and given is None else 0)
    return Conversion(job.program, outcome.plan, outcome.result, outcome.repairs)


def convert(
    source: Source,
    output: str | os.PathLike[str],
    *,
    plan: PrecisionPlan | str | os.PathLike[str] | None = None,
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
    """Convert a program and save it as .pt2; see `fp16conv.convert`.

    The file is written, loaded again, checked and compared under another name before it gets its own.
    """
    target = _check_output(output)
    chosen = read_options(**options)
    loaded = load_source(source, chosen)
    given = _read_plan(plan, loaded)
    study = start_study(loaded, chosen, progress, observe=given is None, provider=provider)
    comparison = ProgramComparison(rtol, atol, allow_integer_changes, provider) if validate else None
    job = ProgramJob(study, target, comparison, allow_out_of_tolerance, progress)
    outcome = job.run(given, MAX_REPAIRS if repair and given is None else 0)
    return report_conversion(job, outcome, _details(study, outcome.plan, progress))


def tune(
    source: Source,
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
    """Find the fastest plan whose error meets a tolerance; see `fp16conv.tune`.

    Plans are measured on PyTorch's half kernels, single roundings on the way through the FP32 program.
    """
    target = None if output is None else _check_output(output)
    study = start_study(source, read_options(**options), progress, provider=provider)
    allowed = tolerance * ATOL_SHARE if atol is None else atol
    comparison = ProgramComparison(tolerance, allowed, allow_integer_changes, provider)
    return run_tuning(
        study,
        None if target is None else ProgramJob(study, target, comparison, False, progress),
        comparison,
        cache=None if cache is None else Path(cache),
        budget_seconds=budget_seconds,
        progress=progress,
    )


def export(
    source: Source,
    output: str | os.PathLike[str],
    *,
    opset: int | None = None,
    progress: Progress | None = None,
    **inputs: Unpack[InputWords],
) -> tuple[Path, ...]:
    """Export a program to an .onnx file in FP32, for the ONNX verbs.

    Args:
        source: nn.Module, ExportedProgram, `package.module:factory` or a .pt2 file.
        output: .onnx file to write.
        opset: ONNX opset, the exporter's default if None.
        progress: told about each step.
        **inputs: see `InputWords`; example inputs where the source has none.

    Returns:
        The files written, the model first.

    Raises:
        ModelError: it cannot be exported.
        UsageError: the output is no .onnx file, or lies in no folder.
    """
    target = Path(output)
    if target.suffix.lower() != ".onnx":
        raise UsageError(f"'{target.name}' is no .onnx file", hint="name the file to write: OUT.onnx")
    _tell(progress, "loading")
    loaded = load_source(source, read_options(**inputs))
    _tell(progress, "exporting to ONNX")
    exported = export_program(loaded, Path(f"{loaded.source}.exported"), opset=opset)
    return save(exported.model, target, exported)


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
    """Compare two programs on the same inputs; see `fp16conv.validate`."""
    options = read_options(**inputs)
    first, second = load_source(reference, options), load_source(candidate, options)
    feeds = open_feeds(first, options)
    _tell(progress, "comparing")
    comparison = ProgramComparison(rtol, atol, allow_integer_changes, provider)
    result = comparison.run(first, second, feeds)
    errors: dict[int, float] = {}
    if per_op or options.details:
        _tell(progress, "measuring every value")
        errors = errors_of_program(first, second.program, next(iter(feeds)), {}, options.memory_limit)
    blamed = None
    if per_op:
        _tell(progress, "finding the operators that cause the error")
        found = rank_calls(first, second, feeds, errors, comparison)
        blamed = summarize_operators(first.graph, found, load_book().patterns)
    details = None
    if options.details:
        named = {first.graph.values[value].name: error for value, error in errors.items()}
        details = list_converted(second.graph, errors=named, error_note=ERROR_NOTE)
    return report_comparison(first.graph, result, feeds, options, details, blamed)


def _check_output(output: str | os.PathLike[str]) -> Path:
    """Refuse what cannot be written before any work."""
    target = Path(output)
    if target.suffix.lower() != ".pt2":
        raise UsageError(
            f"'{target.name}' is no .pt2 file",
            hint="a PyTorch program is saved as .pt2; 'fp16conv export' it first to convert it as .onnx",
        )
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder '{target.parent}'", hint="make it first")
    if target.exists() and not target.is_file():
        raise UsageError("is no regular file", where=str(target), hint="name the .pt2 file to write")
    return target


def _read_plan(
    plan: PrecisionPlan | str | os.PathLike[str] | None, loaded: LoadedProgram
) -> PrecisionPlan | None:
    if plan is None or isinstance(plan, PrecisionPlan):
        return None if plan is None else bind_plan(plan, loaded.graph)
    return load_plan(os.fspath(plan), loaded.graph)


def _details(study: ProgramStudy, made: PrecisionPlan, progress: Progress | None) -> Details | None:
    if not study.options.details:
        return None
    _tell(progress, "measuring every value")
    return study.list_details(made)


def _tell(progress: Progress | None, step: str) -> None:
    if progress is not None:
        progress(step)


def _summarize_half(study: ProgramStudy) -> HalfOutcome:
    tried = try_half(study.loaded, study.feeds)
    errors = [m.relative_l2 for m in tried.outputs if m.kind == "float" and m.relative_l2 is not None]
    return HalfOutcome(
        finite=None if tried.error else not tried.broken,
        first_overflow=tried.where[0],
        first_overflow_type=tried.where[1],
        rel_l2=max(errors, default=None),
        within_tolerance=tried.ok,
        note=tried.describe(),
        error=tried.error,
    )
