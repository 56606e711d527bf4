"""The verbs for PyTorch: audit, plan and convert a module, an ExportedProgram or a .pt2 file.

Needs torch (`pip install 'fp16conv[torch]'`). The functions of `fp16conv.api` come here by themselves for
`.pt2` files and `package.module:factory`; `convert_module` is the way for models in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, Unpack

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

import fp16conv
from fp16conv.conversion.fx import convert_program, save_program, verify_types
from fp16conv.conversion.save import save
from fp16conv.errors import UsageError, ValidationError
from fp16conv.evidence.calibration import Calibration
from fp16conv.evidence.fx import calibrate_program
from fp16conv.execution.feeds import FeedSource, load_feeds, synthesize
from fp16conv.frontends.fx.export import export_program
from fp16conv.frontends.fx.importer import import_program
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.frontends.fx.sources import TorchSource, load_program
from fp16conv.graph import ModelGraph
from fp16conv.planning.devices import load_device
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.planning.serialize import bind_plan, load_plan
from fp16conv.reporting.comparison import find_in_validation, summarize_validation
from fp16conv.reporting.progress import Progress
from fp16conv.reporting.report import (
    AnalyzeReport,
    Check,
    ConvertReport,
    Evidence,
    Finding,
    HalfOutcome,
    ModelFacts,
    OutputFile,
    Severity,
    ValidateReport,
)
from fp16conv.reporting.summary import describe_model, read_prediction, read_size, summarize_decisions
from fp16conv.rulebook.book import RuleBook, load_book
from fp16conv.study import DEFAULT_TARGET, InputWords, Options, OptionWords, StudyBase, read_options
from fp16conv.validation.compare import ValidationResult
from fp16conv.validation.fx import compare_programs, try_half
from fp16conv.validation.metrics import ATOL, RTOL

__all__ = [
    "Conversion",
    "ProgramStudy",
    "analyze",
    "convert",
    "convert_module",
    "export",
    "load",
    "open_feeds",
    "plan",
    "validate",
]

TARGET = "torch-cuda"
Source: TypeAlias = TorchSource | LoadedProgram


@dataclass(frozen=True)
class ProgramStudy(StudyBase):
    """A PyTorch program with all that is known about it; see `fp16conv.study.Study`."""

    options: Options
    loaded: LoadedProgram
    book: RuleBook
    feeds: FeedSource
    calibration: Calibration | None
    unobserved: str

    @property
    def graph(self) -> ModelGraph:
        return self.loaded.graph


@dataclass(frozen=True)
class Conversion:
    """A converted program and what was found about it.

    Args:
        program: ExportedProgram; `torch.export.save` writes it.
        plan: the decisions.
        result: the comparison with FP32, None where none was asked for.
    """

    program: ExportedProgram
    plan: PrecisionPlan
    result: ValidationResult | None

    @property
    def module(self) -> GraphModule:
        """The program as a GraphModule to call."""
        module = self.program.module()
        assert isinstance(module, GraphModule)
        return module


def load(
    source: Source,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> LoadedProgram:
    """Load or export a PyTorch program; see `load_program` for the sources and errors."""
    if isinstance(source, LoadedProgram):
        return source
    return load_program(source, args, kwargs, dynamic_shapes=dynamic_shapes)


def analyze(
    source: Source, *, progress: Progress | None = None, **options: Unpack[OptionWords]
) -> AnalyzeReport:
    """Audit a program; see `fp16conv.analyze`. Beside it, what plain `.half()` does is tried for real."""
    study = _start(source, read_options(**options), progress)
    _tell(progress, "planning")
    made = study.plan()
    half = HalfOutcome(None, note=study.unobserved)
    if study.calibration is not None:
        _tell(progress, "trying model.half()")
        half = _summarize_half(study)
    return AnalyzeReport(
        tool_version=fp16conv.__version__,
        options=study.options.recorded(),
        model=_describe(study),
        decisions=summarize_decisions(made, study.costs.macs),
        size=read_size(made),
        prediction=read_prediction(made, load_device(study.options.device)),
        half=half,
        evidence=_evidence(study, study.calibration.batches if study.calibration else 0),
        findings=tuple(_findings(study, half)),
    )


def plan(
    source: Source, *, progress: Progress | None = None, **options: Unpack[OptionWords]
) -> PrecisionPlan:
    """Decide the precision of every type variable of a program; see `fp16conv.plan`."""
    return _start(source, read_options(**options), progress).plan()


def convert_module(
    source: Source,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    plan: PrecisionPlan | None = None,
    dynamic_shapes: Any = None,
    validate: bool = True,
    rtol: float = RTOL,
    atol: float = ATOL,
    allow_integer_changes: bool = False,
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
        rtol: allowed relative L2 error per output.
        atol: allowed root mean square error per output, on top.
        allow_integer_changes: integer outputs may differ.
        **options: see `OptionWords`.

    Returns:
        The program, the plan and the comparison; `result.ok` tells whether it is within tolerance.

    Raises:
        ModelError, UsageError, DataError, PlanError, ConversionError, ValidationError: as in `convert`.
    """
    loaded = load(source, args, kwargs, dynamic_shapes=dynamic_shapes)
    study = _start(loaded, read_options(**options), None, observe=plan is None)
    made = study.plan() if plan is None else bind_plan(plan, loaded.graph)
    program = convert_program(loaded, made)
    verify_types(program, loaded.source)
    result = None
    if validate:
        candidate = import_program(program, f"{loaded.source} (converted)")
        result = compare_programs(
            loaded, candidate, study.feeds, rtol=rtol, atol=atol, allow_integer_changes=allow_integer_changes
        )
    return Conversion(program, made, result)


def convert(
    source: Source,
    output: str | os.PathLike[str],
    *,
    plan: PrecisionPlan | str | os.PathLike[str] | None = None,
    rtol: float = RTOL,
    atol: float = ATOL,
    validate: bool = True,
    allow_out_of_tolerance: bool = False,
    allow_integer_changes: bool = False,
    progress: Progress | None = None,
    **options: Unpack[OptionWords],
) -> ConvertReport:
    """Convert a program and save it as .pt2; see `fp16conv.convert`.

    The file is written, loaded again, checked and compared under another name before it gets its own.
    """
    target = Path(output)
    if target.suffix.lower() != ".pt2":
        raise UsageError(
            f"'{target.name}' is no .pt2 file",
            hint="a PyTorch program is saved as .pt2; export it to ONNX first to get an .onnx file",
        )
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder '{target.parent}'", hint="make it first")
    given: PrecisionPlan | None = None
    loaded = _load(source, read_options(**options))
    if plan is not None:
        given = (
            bind_plan(plan, loaded.graph)
            if isinstance(plan, PrecisionPlan)
            else load_plan(os.fspath(plan), loaded.graph)
        )
    study = _start(loaded, read_options(**options), progress, observe=given is None)
    _tell(progress, "planning")
    made = given or study.plan()
    _tell(progress, "converting")
    program = convert_program(loaded, made)
    _tell(progress, "verifying")
    verify_types(program, loaded.source)
    checks = [Check("types of every call", True, "run on shapes alone")]
    staged = target.with_name(f".{target.name}.staged.pt2")
    result = None
    try:
        save_program(program, staged)
        candidate = load_program(staged)
        checks.append(Check("load with torch.export", True, ""))
        if validate:
            _tell(progress, "comparing with FP32")
            result = compare_programs(
                loaded,
                replace(candidate, source=str(target)),
                study.feeds,
                rtol=rtol,
                atol=atol,
                labels=study.feeds.labels,
                allow_integer_changes=allow_integer_changes,
            )
        written = None
        if result is None or result.ok or allow_out_of_tolerance:
            staged.replace(target)
            written = OutputFile(str(target), target.stat().st_size, ())
    finally:
        staged.unlink(missing_ok=True)
    findings = list(_findings(study))
    if result is not None:
        findings += find_in_validation(result)
    return ConvertReport(
        tool_version=fp16conv.__version__,
        options=dict(made.options),
        model=_describe(study),
        decisions=summarize_decisions(made, study.costs.macs),
        size=read_size(made),
        output=written,
        prediction=read_prediction(made, load_device(study.options.device)),
        evidence=_evidence(study, result.batches if result else 0),
        checks=tuple(checks),
        validation=summarize_validation(result) if result is not None else None,
        repairs=(),
        findings=tuple(findings),
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
    loaded = _load(source, read_options(**inputs))
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
    progress: Progress | None = None,
    **inputs: Unpack[InputWords],
) -> ValidateReport:
    """Compare two programs on the same inputs; see `fp16conv.validate`."""
    options = read_options(**inputs)
    first, second = _load(reference, options), _load(candidate, options)
    feeds = open_feeds(first, options)
    _tell(progress, "comparing")
    result = compare_programs(
        first,
        second,
        feeds,
        rtol=rtol,
        atol=atol,
        labels=feeds.labels,
        allow_integer_changes=allow_integer_changes,
    )
    return ValidateReport(
        tool_version=fp16conv.__version__,
        options=options.recorded(),
        reference=first.source,
        candidate=second.source,
        evidence=_collect(feeds, options, result.batches),
        validation=summarize_validation(result),
        findings=find_in_validation(result),
    )


def open_feeds(loaded: LoadedProgram, options: Options) -> FeedSource:
    """The user's data; else the program's example inputs; else made-up ones."""
    if options.data:
        return load_feeds([Path(p) for p in options.data], loaded.graph, labels=options.labels)
    if loaded.example is not None and not options.shapes and not options.input_ranges:
        return FeedSource("synthetic", "the example inputs of the program", (partial(dict, loaded.example),))
    return synthesize(loaded.graph, shapes=options.shapes, ranges=options.input_ranges, seed=options.seed)


def _load(source: Source, options: Options) -> LoadedProgram:
    if isinstance(source, LoadedProgram):
        return source
    data: dict[str, Any] = {}
    first = next((p for p in options.data if Path(p).suffix == ".npz" and Path(p).is_file()), None)
    if first is not None:
        with np.load(first, allow_pickle=False) as arrays:
            data = {name: arrays[name] for name in arrays.files}
    return load_program(source, data=data, shapes=options.shapes)


def _start(
    source: Source, options: Options, progress: Progress | None, *, observe: bool = True
) -> ProgramStudy:
    if options.target == DEFAULT_TARGET:
        options = replace(options, target=TARGET)
    _tell(progress, "loading")
    loaded = _load(source, options)
    book = load_book(*(Path(p) for p in options.rules))
    if book.target(options.target).kernels is not None:
        raise UsageError(
            f"target '{options.target}' runs ONNX models, not PyTorch programs",
            hint=f"use {TARGET} or generic",
        )
    load_device(options.device)
    feeds = open_feeds(loaded, options)
    calibration, unobserved = None, "not asked for"
    if observe:
        _tell(progress, "observing ranges")
        try:
            calibration, unobserved = calibrate_program(loaded, feeds), ""
        except ValidationError as error:
            unobserved = str(error)
    return ProgramStudy(options, loaded, book, feeds, calibration, unobserved)


def _tell(progress: Progress | None, step: str) -> None:
    if progress is not None:
        progress(step)


def _describe(study: ProgramStudy) -> ModelFacts:
    producer = f"torch {torch.__version__}"
    return describe_model(study.graph, producer=producer, macs=sum(study.costs.macs.values()) or None)


def _evidence(study: ProgramStudy, batches: int) -> Evidence:
    return _collect(study.feeds, study.options, batches)


def _collect(feeds: FeedSource, options: Options, batches: int) -> Evidence:
    synthetic = feeds.origin == "synthetic"
    return Evidence(synthetic, batches, options.data, options.seed if synthetic else None, feeds.describe())


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


def _findings(study: ProgramStudy, half: HalfOutcome | None = None) -> Iterator[Finding]:
    source = study.graph.source
    if study.calibration is None and study.unobserved != "not asked for":
        yield Finding(Severity.WARNING, "not-observed", source, f"ranges are unknown: {study.unobserved}")
    if half is not None and half.within_tolerance is False:
        yield Finding(Severity.WARNING, "half-unsafe", half.first_overflow or source, half.note)
