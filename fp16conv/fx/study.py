"""What is known of a PyTorch program before a decision is carried out."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from fp16conv.conversion.fx import convert_program
from fp16conv.errors import ConversionError, DataError, UsageError, ValidationError
from fp16conv.evidence.calibration import Calibration
from fp16conv.evidence.fx import calibrate_program
from fp16conv.execution.feeds import FeedSource, load_feeds, synthesize
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.frontends.fx.sources import TorchSource, load_program
from fp16conv.graph import ModelGraph
from fp16conv.inputs import DEFAULT_TARGET, Options
from fp16conv.planning.devices import load_device
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.reporting.progress import Progress
from fp16conv.reporting.report import ModelFacts
from fp16conv.reporting.summary import describe_model
from fp16conv.rulebook.book import RuleBook, load_book
from fp16conv.rulebook.repair_names import SATURATE, check_repairs
from fp16conv.rulebook.types import Verdicts
from fp16conv.study import StudyBase
from fp16conv.validation.compare import Provider
from fp16conv.validation.fx.compare import require_cuda
from fp16conv.validation.fx.depth import errors_of_program
from fp16conv.validation.fx.probe import ProgramProbe
from fp16conv.validation.probe import rewritten_by

__all__ = ["ERROR_NOTE", "ProgramStudy", "Source", "load", "load_source", "open_feeds", "start_study"]

ERROR_NOTE: Final = "the first batch, the converted program on PyTorch's half kernels"
TARGET: Final = "torch-cuda"
Source: TypeAlias = TorchSource | LoadedProgram


@dataclass(frozen=True)
class ProgramStudy(StudyBase):
    """A PyTorch program with all that is known about it; see `fp16conv.study.Study`.

    Args:
        device: whose half kernels measure assignments, `cpu` or `cuda`.
    """

    options: Options
    loaded: LoadedProgram
    book: RuleBook
    feeds: FeedSource
    calibration: Calibration | None
    unobserved: str
    device: str = "cpu"

    @property
    def graph(self) -> ModelGraph:
        return self.loaded.graph

    @property
    def engine(self) -> str:
        return f"torch {torch.__version__} {self.device}"

    def describe(self) -> ModelFacts:
        producer = f"torch {torch.__version__}"
        return describe_model(self.graph, producer=producer, macs=sum(self.costs.macs.values()) or None)

    def under(self, options: Options) -> ProgramStudy:
        return replace(self, options=options)

    def open_probe(
        self,
        plan: PrecisionPlan | Verdicts,
        *,
        rtol: float,
        atol: float,
        allow_integer_changes: bool = False,
        batches: int = 1,
    ) -> ProgramProbe:
        return ProgramProbe(
            self.loaded,
            self.feeds,
            rewritten_by(plan),
            device=self.device,
            rtol=rtol,
            atol=atol,
            allow_integer_changes=allow_integer_changes,
            batches=batches,
        )

    def measure_values(self, plan: PrecisionPlan, batch: Mapping[str, Any]) -> tuple[dict[int, float], str]:
        errors: dict[int, float] = {}
        with contextlib.suppress(ConversionError, RuntimeError):
            program = convert_program(self.loaded, plan)
            limit = self.options.memory_limit
            errors = errors_of_program(self.loaded, program, batch, self.shapes, limit)
        return errors, ERROR_NOTE


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


def load_source(source: Source, options: Options) -> LoadedProgram:
    """Load a program; the user's data or shapes stand in for example inputs.

    Raises:
        ModelError, UsageError: as in `load_program`.
    """
    if isinstance(source, LoadedProgram):
        return source
    data: dict[str, Any] = {}
    first = next((p for p in options.data if Path(p).suffix == ".npz" and Path(p).is_file()), None)
    if first is not None:
        with np.load(first, allow_pickle=False) as arrays:
            data = {name: arrays[name] for name in arrays.files}
    return load_program(source, data=data, shapes=options.shapes)


def open_feeds(loaded: LoadedProgram, options: Options) -> FeedSource:
    """The user's data; else the program's example inputs; else made-up ones."""
    if options.data:
        try:
            return load_feeds([Path(p) for p in options.data], loaded.graph, labels=options.labels)
        except DataError as error:
            if error.hint or loaded.call is None:
                raise
            hint = "sizes are those of the example inputs unless the factory returns dynamic_shapes too"
            raise DataError(error.what, where=error.where, why=error.why, hint=hint) from None
    if loaded.example is not None and not options.shapes and not options.input_ranges:
        text = "the example inputs of the program"
        return FeedSource("synthetic", text, (partial(dict, loaded.example),), is_example=True)
    return synthesize(loaded.graph, shapes=options.shapes, ranges=options.input_ranges, seed=options.seed)


def start_study(
    source: Source,
    options: Options,
    progress: Progress | None = None,
    *,
    observe: bool = True,
    provider: Provider = "auto",
) -> ProgramStudy:
    """Load a program and observe it.

    Args:
        source: the program.
        options: what the user asked for.
        progress: told about each step.
        observe: whether to run the program; without, only constants are known.
        provider: whose half kernels measure: the CPU's unless it is `cuda`.

    Raises:
        ModelError: the program cannot be loaded.
        DataError: the data does not fit.
        UsageError: an option is wrong, or exists for ONNX models only.
        ValidationError: CUDA was asked for and is not there.
    """
    if options.target == DEFAULT_TARGET:
        options = replace(options, target=TARGET)
    check_repairs(options.repairs)
    if foreign := [name for name in options.repairs if name != SATURATE]:
        raise UsageError(
            f"repair '{foreign[0]}' rewrites ONNX operators, not PyTorch programs",
            hint="leave it out, or 'fp16conv export' the program and convert the .onnx file",
        )
    if provider == "cuda":
        require_cuda()
    if progress is not None:
        progress("loading")
    loaded = load_source(source, options)
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
        if progress is not None:
            progress("observing ranges")
        try:
            calibration, unobserved = calibrate_program(loaded, feeds), ""
        except ValidationError as error:
            unobserved = str(error)
    device = "cuda" if provider == "cuda" else "cpu"
    return ProgramStudy(options, loaded, book, feeds, calibration, unobserved, device)
