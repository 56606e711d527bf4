"""Measure the error of a precision assignment without converting the model."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Final, Self, TypedDict

import numpy as np
import numpy.typing as npt

from fp16conv.errors import ValidationError
from fp16conv.evidence.calibration import observe
from fp16conv.execution.emulator import emulate_plan
from fp16conv.execution.feeds import FeedSource
from fp16conv.execution.matching import match_feeds
from fp16conv.execution.runtime import Feeds, Results, Runtime, SessionHandle
from fp16conv.execution.switches import SWITCHES, SwitchedModel, Switches, emulate_switched
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import DataType, ModelGraph, Origin, RangeFact
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.rulebook.rescaling import exponents_of
from fp16conv.rulebook.types import Verdicts
from fp16conv.validation.metrics import ATOL, RTOL, OutputComparison, OutputMetrics
from fp16conv.validation.reference import load_reference, run_reference

__all__ = ["NONFINITE", "Measurement", "Probe", "ProbeBase", "Rewritten", "rewritten_by"]

NONFINITE: Final = 1e6
"""Error given to an output with new NaN or infinities: far above what any norm can add up to."""


class Rewritten(TypedDict, total=False):
    """What a plan changes besides dtypes.

    Args:
        saturated: constants that become +-65504 instead of infinite.
        folded: BatchNormalizations that become a Mul and an Add.
        rescaled: exponents k by id of the products that are computed times 2^-k.
    """

    saturated: Collection[int]
    folded: Collection[int]
    rescaled: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Error of one assignment.

    Args:
        outputs: metrics per watched output.
        error: root of the summed squares of (error / allowed error) over the outputs; 1 or less is
            certainly within tolerance.
        peak: largest error over allowed error of any output in any single batch: 1 or less means that
            each batch is within tolerance, not only all of them together.
    """

    outputs: tuple[OutputMetrics, ...]
    error: float
    peak: float

    @property
    def ok(self) -> bool:
        """Whether every output is within tolerance."""
        return all(m.ok for m in self.outputs)

    @property
    def relative_l2(self) -> float | None:
        """Largest relative L2 error of any floating output; None where none is defined."""
        errors = [m.relative_l2 for m in self.outputs if m.relative_l2 is not None and m.kind == "float"]
        return max(errors, default=None)

    @property
    def is_finite(self) -> bool:
        """Whether no output has new NaN or infinities."""
        return not any(m.new_nan or m.new_inf for m in self.outputs)


def rewritten_by(plan: PrecisionPlan | Verdicts) -> Rewritten:
    """What a plan, or one that follows these verdicts, changes besides dtypes."""
    return {
        "saturated": tuple(sorted(plan.saturated)),
        "folded": tuple(sorted(plan.folded)),
        "rescaled": dict(sorted(exponents_of(plan.rescaled).items())),
    }


class ProbeBase(ABC):
    """Runs an FP32 model once, then measures any number of precision assignments against it.

    Args:
        graph: the model.
        known: names of all its outputs.
        watched: names of the outputs to watch, None for all.
        rewritten: what the plan changes besides dtypes.
        rtol: allowed relative L2 error per output.
        atol: allowed root mean square error per output, on top.
        allow_integer_changes: whether integer, bool and string outputs may change.

    Raises:
        ValidationError: there is no output of a name that is to be watched.
    """

    def __init__(
        self,
        graph: ModelGraph,
        known: Sequence[str],
        watched: Collection[str] | None,
        rewritten: Rewritten,
        *,
        rtol: float,
        atol: float,
        allow_integer_changes: bool,
    ) -> None:
        self.graph, self.rewritten, self.runs = graph, rewritten, 0
        self._rtol, self._atol, self._allow = rtol, atol, allow_integer_changes
        if watched is not None and (unknown := sorted(set(watched) - set(known))):
            raise ValidationError(f"no output is named '{unknown[0]}'", hint=f"there is {', '.join(known)}")
        self.outputs = tuple(n for n in known if watched is None or n in watched)
        self.batches: list[tuple[Feeds, Results]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.batches.clear()

    @property
    @abstractmethod
    def switched(self) -> Switches:
        """The roundings that can be switched at run time."""

    @abstractmethod
    def measure(self, dtypes: Sequence[DataType]) -> Measurement:
        """Run the model with this dtype (FLOAT or FLOAT16) per type variable id, and compare."""

    @abstractmethod
    def measure_switches(self, switches: npt.NDArray[np.bool_]) -> Measurement:
        """Run the model with these roundings on, and compare.

        Args:
            switches: bool [slots], one per slot of `switched`.
        """

    @abstractmethod
    def observe(self) -> Mapping[int, RangeFact]:
        """The range of each value, in FP32 on the batches, that can cause an error."""

    def _require_batches(self) -> None:
        if not self.batches:
            raise ValidationError(
                "there is no batch to measure on", hint="give data, or let inputs be made up"
            )

    def _compare(self, run: Callable[[Feeds], Results] | None) -> Measurement:
        """Compare with the FP32 results; nothing to run is the FP32 model itself."""
        comparisons = {name: OutputComparison(name) for name in self.outputs}
        peak = 0.0
        for batch, reference in self.batches:
            results = reference if run is None else run(batch)
            for name, comparison in comparisons.items():
                comparison.update(reference[name], results[name])
                if len(self.batches) > 1:
                    alone = OutputComparison(name, scores=False)
                    alone.update(reference[name], results[name])
                    peak = max(peak, _error(self._metrics(alone)))
        metrics = tuple(map(self._metrics, comparisons.values()))
        errors = [_error(m) for m in metrics]
        return Measurement(metrics, math.sqrt(sum(e**2 for e in errors)), max([peak, *errors], default=0.0))

    def _metrics(self, comparison: OutputComparison) -> OutputMetrics:
        return comparison.metrics(rtol=self._rtol, atol=self._atol, allow_integer_changes=self._allow)


class Probe(ProbeBase):
    """Measures assignments of an ONNX model by emulation.

    The roundings of one emulated model are switched at run time: it is built and loaded only once.

    Args:
        loaded: the FP32 model.
        feeds: batches of inputs.
        runtime: CPU runtime.
        outputs: names of the outputs to watch, None for all.
        saturated: constants that become +-65504 instead of infinite.
        folded: BatchNormalizations that become a Mul and an Add.
        rescaled: exponents k by id of the products that are computed times 2^-k.
        rtol: allowed relative L2 error per output.
        atol: allowed root mean square error per output, on top.
        allow_integer_changes: whether integer, bool and string outputs may change.
        batches: how many batches to look at, from the first.

    Raises:
        ValidationError: the FP32 model does not run, or there is no batch.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        feeds: FeedSource,
        runtime: Runtime,
        *,
        outputs: Collection[str] | None = None,
        saturated: Collection[int] = (),
        folded: Collection[int] = (),
        rescaled: Mapping[int, int] | None = None,
        rtol: float = RTOL,
        atol: float = ATOL,
        allow_integer_changes: bool = False,
        batches: int = 1,
    ) -> None:
        self.loaded, self.runtime = loaded, runtime
        self._session: SessionHandle | None = None
        session = load_reference(runtime, loaded)
        super().__init__(
            loaded.graph,
            [info.name for info in session.outputs],
            outputs,
            {
                "saturated": frozenset(saturated),
                "folded": frozenset(folded),
                "rescaled": dict(rescaled or {}),
            },
            rtol=rtol,
            atol=atol,
            allow_integer_changes=allow_integer_changes,
        )
        for batch in itertools.islice(feeds, batches):
            results = run_reference(runtime, session, loaded.graph.source, batch)
            self.batches.append((batch, {name: results[name] for name in self.outputs}))
        runtime.unload(session)
        self._require_batches()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._session is not None:
            self.runtime.unload(self._session)
            self._session = None

    @cached_property
    def switched(self) -> SwitchedModel:
        """The emulated model whose roundings are switched at run time; built once."""
        return emulate_switched(self.loaded, **self.rewritten)

    def measure(self, dtypes: Sequence[DataType]) -> Measurement:
        """Emulate the model with this dtype (FLOAT or FLOAT16) per type variable id, and compare.

        Raises:
            RuntimeFailure: the emulated model does not load or run.
        """
        if not any(dtypes[t] is DataType.FLOAT16 for t in self.switched.fixed):
            return self.measure_switches(self.switched.switches(dtypes))
        self.runs += 1
        session = self.runtime.load(emulate_plan(self.loaded, dtypes, **self.rewritten))
        try:
            return self._compare(self._run(session, {}))
        finally:
            self.runtime.unload(session)

    def measure_switches(self, switches: npt.NDArray[np.bool_]) -> Measurement:
        """Emulate the model with these roundings on, and compare.

        Args:
            switches: bool [slots], one per slot of `switched`.

        Raises:
            RuntimeFailure: the emulated model does not load or run.
        """
        if not switches.any():
            return self._compare(None)
        self.runs += 1
        if self._session is None:
            self._session = self.runtime.load(self.switched.model)
        return self._compare(self._run(self._session, {SWITCHES: switches}))

    def observe(self) -> Mapping[int, RangeFact]:
        """As `ProbeBase.observe`: what a branch would compute if it were taken causes no error."""
        seen = observe(self.loaded, self.runtime, [batch for batch, _ in self.batches], Origin.OBSERVED)
        return {value: fact for value, fact in seen.facts.items() if value not in seen.untaken}

    def _run(self, session: SessionHandle, more: Feeds) -> Callable[[Feeds], Results]:
        return lambda batch: self.runtime.run(session, match_feeds(session, batch) | dict(more), self.outputs)


def _error(m: OutputMetrics) -> float:
    """Error over allowed error; unlike `badness` it grows with the number of new NaN and infinities."""
    if m.new_nan or m.new_inf or (m.structure and not m.ok):
        return NONFINITE * (1.0 + (m.new_nan + m.new_inf) / max(m.elements, 1))
    error = m.rms_error / m.allowed_error if m.allowed_error else 0.0
    return error if m.ok else max(error, m.badness)
