"""Measures precision assignments of PyTorch programs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fp16conv.conversion.assignment import Assignment
from fp16conv.conversion.fx import convert_program
from fp16conv.errors import ValidationError
from fp16conv.evidence.fx import calibrate_program
from fp16conv.execution.feeds import FeedSource
from fp16conv.execution.fx import Roundings, find_roundings
from fp16conv.execution.switches import Slot, Switches
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.graph import DataType, RangeFact, Use
from fp16conv.validation.fx.outputs import ProgramOutputs
from fp16conv.validation.metrics import ATOL, RTOL
from fp16conv.validation.probe import Measurement, ProbeBase, Rewritten

__all__ = ["ProgramProbe"]


class ProgramProbe(ProbeBase):
    """Measures assignments of a program: converts by each and runs the half kernels.

    Single roundings (`measure_switches`) are made on the way through the FP32 program.

    Args:
        loaded: the FP32 program.
        feeds: batches of inputs.
        rewritten: what the plan changes besides dtypes.
        device: `cpu` or `cuda`, whose half kernels run.
        rtol: allowed relative L2 error per output.
        atol: allowed root mean square error per output, on top.
        allow_integer_changes: integer and bool outputs may change.
        batches: how many batches to look at, from the first.

    Raises:
        ValidationError: the FP32 program does not run, or there is no batch.
    """

    def __init__(
        self,
        loaded: LoadedProgram,
        feeds: FeedSource,
        rewritten: Rewritten,
        *,
        device: str = "cpu",
        rtol: float = RTOL,
        atol: float = ATOL,
        allow_integer_changes: bool = False,
        batches: int = 1,
    ) -> None:
        names = list(loaded.output_names.values())
        super().__init__(
            loaded.graph,
            names,
            None,
            rewritten,
            rtol=rtol,
            atol=atol,
            allow_integer_changes=allow_integer_changes,
        )
        self._loaded, self._device = loaded, device
        self._exact = ProgramOutputs(loaded, "cpu")
        for batch in itertools.islice(feeds, batches):
            self.batches.append((batch, self._exact.run(batch)))
        self._require_batches()

    @cached_property
    def _roundings(self) -> tuple[tuple[Slot, tuple[Use, ...]], ...]:
        return find_roundings(self.graph)

    @cached_property
    def switched(self) -> Switches:
        return Switches(tuple(slot for slot, _ in self._roundings), frozenset())

    def measure(self, dtypes: Sequence[DataType]) -> Measurement:
        """Convert with this dtype (FLOAT or FLOAT16) per type variable id, run and compare.

        A program that torch refuses to run gives NaN.
        """
        if DataType.FLOAT16 not in dtypes:
            return self._compare(None)
        self.runs += 1
        assignment = Assignment(
            self.graph,
            tuple(dtypes),
            (None,) * len(dtypes),
            frozenset(self.rewritten.get("saturated", ())),
        )
        program = convert_program(self._loaded, assignment)
        halved = ProgramOutputs(replace(self._loaded, program=program), self._device)

        def run(batch: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
            try:
                return halved.run(batch)
            except ValidationError:
                exact = self._exact.run(batch).items()
                return {n: np.full_like(a, np.nan) if a.dtype.kind == "f" else a for n, a in exact}

        return self._compare(run)

    def measure_switches(self, switches: npt.NDArray[np.bool_]) -> Measurement:
        if not switches.any():
            return self._compare(None)
        self.runs += 1
        uses: dict[int, tuple[Use, ...]] = {}
        for (slot, readers), is_on in zip(self._roundings, switches, strict=True):
            if is_on:
                uses[slot.value] = uses.get(slot.value, ()) + readers
        rounded = Roundings.of(self._loaded, uses, frozenset(self.rewritten.get("saturated", ())))
        return self._compare(lambda batch: self._exact.run(batch, rounded))

    def observe(self) -> Mapping[int, RangeFact]:
        makers: tuple[Callable[[], Any], ...] = tuple(partial(dict, batch) for batch, _ in self.batches)
        return calibrate_program(self._loaded, FeedSource("real", "the batches measured", makers)).facts
