"""One conversion of a PyTorch program: what is special about it beside `fp16conv.job`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch.export import ExportedProgram

from fp16conv.conversion.fx import convert_program, save_program, verify_types
from fp16conv.execution.feeds import FeedSource
from fp16conv.frontends.fx.importer import import_program
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.frontends.fx.sources import load_program
from fp16conv.fx.study import ProgramStudy
from fp16conv.job import ConversionJob, Tolerance
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.reporting.report import Check
from fp16conv.validation.compare import Provider, ValidationResult
from fp16conv.validation.fx.compare import compare_programs

__all__ = ["ProgramComparison", "ProgramJob"]


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
        staged = target.with_name(f".{target.name}.staged.pt2")
        try:
            save_program(self.program, staged)
            candidate = replace(load_program(staged), source=str(target))
            self._checks.append(Check("load with torch.export", True, ""))
            if not self._passes(candidate, accept):
                return False
            staged.replace(target)
            self._files = (target,)
            return True
        finally:
            staged.unlink(missing_ok=True)

    def _passes(self, candidate: LoadedProgram, accept: bool) -> bool:
        if self.tolerance is None:
            return True
        self._tell("comparing with FP32")
        self._result = self.tolerance.run(self.study.loaded, candidate, self.study.feeds)
        return accept or self._result.ok
