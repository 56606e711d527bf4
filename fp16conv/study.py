"""Study: everything known about a model before a decision is carried out - evidence, verdicts, prices.

The first half of every verb: load, observe, judge, plan.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fp16conv.collector import collection_paused
from fp16conv.errors import ValidationError
from fp16conv.evidence.bounds import prove_bounds
from fp16conv.evidence.calibration import Calibration, calibrate
from fp16conv.evidence.constants import constant_facts
from fp16conv.evidence.safety import merge_facts
from fp16conv.execution.capacity import refuse_oversized
from fp16conv.execution.feeds import FeedSource
from fp16conv.execution.runtime import Runtime, RuntimeFailure
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import DataType, ModelGraph, RangeFact
from fp16conv.inputs import Options, load_model, open_feeds
from fp16conv.planning.costs import CostModel, estimate_costs
from fp16conv.planning.devices import load_device
from fp16conv.planning.macs import Shape
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.planning.planner import make_plan
from fp16conv.reporting.details import Details
from fp16conv.reporting.inventory import list_operators
from fp16conv.reporting.progress import Progress
from fp16conv.reporting.report import ModelFacts
from fp16conv.reporting.summary import describe_model
from fp16conv.rulebook.book import RuleBook, load_book
from fp16conv.rulebook.judge import judge
from fp16conv.rulebook.types import Judgement, Reason, Verdict, Verdicts
from fp16conv.validation.depth import errors_of_plan
from fp16conv.validation.probe import Probe, ProbeBase, rewritten_by
from fp16conv.validation.reference import load_reference, run_reference

__all__ = [
    "Study",
    "StudyBase",
    "start_study",
]


def _silent(step: str, done: int = 0, total: int | None = None) -> None:
    """Report nothing."""


class StudyBase(ABC):
    """What follows from a model's graph and what was observed, whatever the model came from."""

    options: Options
    book: RuleBook
    feeds: FeedSource
    calibration: Calibration | None
    unobserved: str

    @property
    @abstractmethod
    def graph(self) -> ModelGraph:
        """The neutral graph."""

    @property
    @abstractmethod
    def engine(self) -> str:
        """What measures, with its version: readings of another one are not comparable."""

    @abstractmethod
    def describe(self) -> ModelFacts:
        """What the report says about the model."""

    @abstractmethod
    def under(self, options: Options) -> StudyBase:
        """The same model and observations under other options."""

    @abstractmethod
    def open_probe(
        self,
        plan: PrecisionPlan | Verdicts,
        *,
        rtol: float,
        atol: float,
        allow_integer_changes: bool = False,
        batches: int = 1,
    ) -> ProbeBase:
        """Measure assignments of the model on the first batches.

        Args:
            plan: says what is rewritten besides dtypes.
            rtol: allowed relative L2 error per output.
            atol: allowed root mean square error per output, on top.
            allow_integer_changes: integer outputs may change.
            batches: number of batches.
        """

    @abstractmethod
    def measure_values(self, plan: PrecisionPlan, batch: Mapping[str, Any]) -> tuple[dict[int, float], str]:
        """Relative L2 error per value id under a plan on a batch, and what that rests on."""

    @cached_property
    def proven(self) -> dict[int, RangeFact]:
        """Bounds that hold for all inputs in the declared ranges; a range that the data leaves is void."""
        ranges = dict(self.options.input_ranges)
        observed = self.calibration.facts if self.calibration is not None else {}
        for value in self.graph.main.inputs:
            name, fact = self.graph.values[value].name, observed.get(value)
            if name in ranges and fact is not None:
                low, high = ranges[name]
                if fact.has_nan or fact.lo < low or fact.hi > high:
                    del ranges[name]
        return prove_bounds(self.graph, ranges, constants=self.constants)

    @cached_property
    def constants(self) -> dict[int, RangeFact]:
        """Facts about the model's own numbers."""
        return constant_facts(self.graph)

    @cached_property
    def facts(self) -> dict[int, RangeFact]:
        """Range per value id for the rules: constants, what was observed, and what is proven in range."""
        floats = {v: f for v, f in self.proven.items() if self.graph.values[v].dtype is DataType.FLOAT}
        return merge_facts(self.observed, floats)

    @cached_property
    def observed(self) -> dict[int, RangeFact]:
        """Range per value id: constants, and what was observed."""
        facts = dict(self.constants)
        if self.calibration is not None:
            for value, fact in self.calibration.facts.items():
                facts.setdefault(value, fact)
        return facts

    @property
    def shapes(self) -> Mapping[int, Shape]:
        """Observed shape per value id."""
        return self.calibration.shapes if self.calibration is not None else {}

    @cached_property
    def costs(self) -> CostModel:
        """Prices on the device the user named."""
        return estimate_costs(self.graph, self.shapes, load_device(self.options.device))

    @cached_property
    def verdicts(self) -> Verdicts:
        """What the rule book says."""
        options = self.options
        return judge(
            self.graph,
            self.book,
            self.facts,
            profile=options.profile,
            target=options.target,
            keep_fp32=options.keep_fp32,
            force_fp16=options.force_fp16,
            keep_io_types=options.keep_io_types,
            repairs=options.repairs,
        )

    @collection_paused()
    def plan(self, pinned: Mapping[int, Reason] | None = None) -> PrecisionPlan:
        """The cheapest plan the verdicts permit.

        Args:
            pinned: type variables that measurement moved to FP32, with the reason.
        """
        return make_plan(
            self.graph,
            _pin(self.verdicts, pinned or {}),
            self.costs,
            rules_digest=self.book.digest,
            options=self.options.recorded(),
        )

    def list_details(self, plan: PrecisionPlan) -> Details:
        """Every operator with its reasons, observed ranges, and error under the plan on the first batch."""
        seen = self.calibration
        errors: dict[int, float] = {}
        note = ""
        batch = next(iter(self.feeds), None) if seen is not None else None
        if batch is not None:
            errors, note = self.measure_values(plan, batch)
        return list_operators(
            self.graph,
            plan,
            self.book,
            facts={**self.facts, **self.observed},
            proven=self.proven,
            histograms=seen.histograms if seen is not None else None,
            shapes=self.shapes,
            macs=self.costs.macs,
            errors=errors,
            error_note=note,
        )


@dataclass(frozen=True)
class Study(StudyBase):
    """An ONNX model with all that is known about it.

    Args:
        loaded: the model and its graph.
        feeds: the inputs used to observe and to compare.
        calibration: what the FP32 run over them showed, None where it could not run.
        unobserved: why there is no calibration, empty otherwise.
        runtime: runs models.
    """

    options: Options
    loaded: LoadedModel
    book: RuleBook
    feeds: FeedSource
    calibration: Calibration | None
    unobserved: str
    runtime: Runtime

    @property
    def graph(self) -> ModelGraph:
        return self.loaded.graph

    @property
    def engine(self) -> str:
        return self.runtime.version

    def under(self, options: Options) -> Study:
        return replace(self, options=options)

    def describe(self) -> ModelFacts:
        proto = self.loaded.proto
        return describe_model(
            self.graph,
            ir_version=proto.ir_version,
            producer=f"{proto.producer_name} {proto.producer_version}".strip(),
            macs=sum(self.costs.macs.values()) or None,
        )

    def open_probe(
        self,
        plan: PrecisionPlan | Verdicts,
        *,
        rtol: float,
        atol: float,
        allow_integer_changes: bool = False,
        batches: int = 1,
    ) -> Probe:
        return Probe(
            self.loaded,
            self.feeds,
            self.runtime,
            **rewritten_by(plan),
            rtol=rtol,
            atol=atol,
            allow_integer_changes=allow_integer_changes,
            batches=batches,
        )

    def measure_values(self, plan: PrecisionPlan, batch: Mapping[str, Any]) -> tuple[dict[int, float], str]:
        errors: dict[int, float] = {}
        with contextlib.suppress(RuntimeFailure):
            errors = errors_of_plan(
                self.loaded,
                plan.dtype_list(len(self.graph.typevars)),
                batch,
                self.runtime,
                **rewritten_by(plan),
                shapes=self.shapes,
                memory_limit=self.options.memory_limit,
            )
        return errors, "the first batch, the plan emulated: every FP16 tensor is rounded"


def _pin(verdicts: Verdicts, pinned: Mapping[int, Reason]) -> Verdicts:
    """Deny what measurement showed to be harmful; a user's command still wins."""
    judgements = list(verdicts.judgements)
    for typevar, reason in pinned.items():
        old = judgements[typevar]
        if old.is_commanded:
            continue
        judgements[typevar] = Judgement(Verdict.DENY, (reason, *old.reasons))
    return replace(verdicts, judgements=tuple(judgements))


def start_study(
    model: str | os.PathLike[str] | LoadedModel,
    options: Options,
    runtime: Runtime,
    progress: Progress | None = None,
    *,
    observe: bool = True,
) -> Study:
    """Load a model and observe it.

    Args:
        model: path of an .onnx file, or a loaded model.
        options: what the user asked for.
        runtime: runs the FP32 model.
        progress: told about each step.
        observe: whether to run the model; without, only constants are known.

    Raises:
        ModelError: the model cannot be read.
        DataError: the data does not fit.
        UsageError: an option is wrong.
    """
    report = progress or _silent
    if observe:
        runtime.start()
    report("loading")
    loaded = load_model(model)
    book = load_book(*(Path(p) for p in options.rules))
    load_device(options.device)
    feeds = open_feeds(loaded, options, runtime if observe else None)
    calibration, unobserved = None, "not asked for"
    if observe:
        report("observing ranges")
        calibration, unobserved = _observe(loaded, runtime, feeds, options)
    return Study(options, loaded, book, feeds, calibration, unobserved, runtime)


def _observe(
    loaded: LoadedModel, runtime: Runtime, feeds: FeedSource, options: Options
) -> tuple[Calibration | None, str]:
    """Calibrate; a model that does not run here is judged without (the user's own data must run)."""
    try:
        refuse_oversized(loaded.graph)
        calibration = calibrate(loaded, runtime, feeds, memory_limit=options.memory_limit)
        if not calibration.batches:  # there was no value to read, so nothing ran yet
            _try_run(loaded, runtime, feeds)
    except ValidationError as error:
        return None, str(error)
    return calibration, ""


def _try_run(loaded: LoadedModel, runtime: Runtime, feeds: FeedSource) -> None:
    session = load_reference(runtime, loaded)
    try:
        for batch in feeds:
            run_reference(runtime, session, loaded.graph.source, batch)
    finally:
        runtime.unload(session)
