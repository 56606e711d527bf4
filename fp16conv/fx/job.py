"""One conversion of a PyTorch program: what is special about it beside `fp16conv.job`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch.export import ExportedProgram

from fp16conv.conversion.fx import convert_program, save_program, verify_types
from fp16conv.errors import unwritable
from fp16conv.execution.feeds import FeedSource
from fp16conv.files import make_temporary
from fp16conv.frontends.fx.importer import import_program
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.frontends.fx.sources import load_program
from fp16conv.fx.study import ProgramStudy
from fp16conv.job import ConversionJob, Tolerance
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.reporting.report import Check
from fp16conv.validation.compare import Provider, ValidationResult
from fp16conv.validation.fx.compare import compare_programs
from fp16conv.validation.fx.probe import ProgramProbe
from fp16conv.validation.per_operator import OperatorErrors, rank_by, read_precisions, read_saturated

__all__ = ["ProgramComparison", "ProgramJob", "rank_calls"]


@dataclass(frozen=True)
class ProgramComparison(Tolerance):
    """How to compare programs: the user's tolerance and provider."""

    provider: Provider = "auto"

    def run(self, reference: LoadedProgram, candidate: LoadedProgram, feeds: FeedSource) -> ValidationResult:
        """Compare two programs on the feeds."""
        return compare_programs(
            reference,
            candidate,
            feeds,
            provider=self.provider,
            rtol=self.rtol,
            atol=self.atol,
            labels=feeds.labels,
            allow_integer_changes=self.allow_integer_changes,
        )


class ProgramJob(ConversionJob):
    """A job whose result is a program; it is saved where an output is named."""

    study: ProgramStudy
    tolerance: ProgramComparison | None
    program: ExportedProgram

    def _write(self, plan: PrecisionPlan, accept: bool) -> bool:
        self._tell("converting")
        loaded = self.study.loaded
        self.program = convert_program(loaded, plan)
        self._tell("verifying")
        verify_types(self.program, loaded.source)
        self._checks[:] = [Check("types of every call", True, "run on shapes alone")]
        if self._output is None:
            candidate = import_program(self.program, f"{loaded.source} (converted)")
            return self._passes(candidate, accept)
        target = self._output
        try:
            staging = make_temporary(target.parent)
        except OSError as error:
            raise unwritable("cannot be written", str(target.parent), error) from error
        try:
            staged = staging / target.name
            save_program(self.program, staged)
            candidate = replace(load_program(staged), source=str(target))
            self._checks.append(Check("load with torch.export", True, ""))
            if not self._passes(candidate, accept):
                return False
            staged.replace(target)
            self._files = (target,)
            return True
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _passes(self, candidate: LoadedProgram, accept: bool) -> bool:
        if self.tolerance is None:
            return True
        self._tell("comparing with FP32")
        self._result = self.tolerance.run(self.study.loaded, candidate, self.study.feeds)
        return accept or self._result.ok


def rank_calls(
    reference: LoadedProgram,
    candidate: LoadedProgram,
    feeds: FeedSource,
    errors: Mapping[int, float],
    comparison: ProgramComparison,
) -> OperatorErrors:
    """Put the error of a converted program down to its calls.

    Args:
        reference: the FP32 program.
        candidate: what the converter made of it.
        feeds: batches of inputs for the reference.
        errors: relative L2 error per value id of the reference.
        comparison: the tolerance, and whose half kernels run.

    Raises:
        ValidationError: the calls do not correspond, or the FP32 program does not run.
    """
    dtypes = read_precisions(reference.graph, candidate.graph)
    with ProgramProbe(
        reference,
        feeds,
        {"saturated": read_saturated(reference.graph, candidate.graph)},
        device="cuda" if comparison.provider == "cuda" else "cpu",
        rtol=comparison.rtol,
        atol=comparison.atol,
        allow_integer_changes=comparison.allow_integer_changes,
        batches=len(feeds),
    ) as probe:
        return rank_by(probe, dtypes, errors, comparison.rtol)
