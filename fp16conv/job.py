"""One conversion: stage the file, check it there, repair the plan where the tolerance is missed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from fp16conv.conversion.onnx import convert
from fp16conv.conversion.save import save
from fp16conv.conversion.verify import require_valid
from fp16conv.execution.feeds import FeedSource
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from fp16conv.graph import DataType
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.reporting.progress import Progress
from fp16conv.reporting.report import Check, OperatorError, OutputFile, Repair
from fp16conv.rulebook.rescaling import exponents_of
from fp16conv.rulebook.types import Authority, Reason
from fp16conv.study import Study
from fp16conv.validation.attribution import attribute, repair_plan
from fp16conv.validation.compare import Provider, ValidationResult, compare_models

__all__ = ["Comparison", "ConversionJob", "Outcome", "culprits_of"]

MEASURED = "measured-error"
"""Rule id of what the repair moved to FP32."""

TIGHTER = 0.8
"""Each further repair aims lower: a plan that passed as emulated may miss by a little in the file."""


@dataclass(frozen=True)
class Comparison:
    """How to compare: the user's tolerance and provider."""

    runtime: Runtime
    provider: Provider
    rtol: float
    atol: float
    allow_integer_changes: bool

    def run(self, reference: LoadedModel, candidate: LoadedModel, feeds: FeedSource) -> ValidationResult:
        """Compare two models on the feeds."""
        return compare_models(
            reference,
            candidate,
            feeds,
            provider=self.provider,
            rtol=self.rtol,
            atol=self.atol,
            labels=feeds.labels,
            allow_integer_changes=self.allow_integer_changes,
            runtime=self.runtime,
        )


@dataclass(frozen=True)
class Outcome:
    """What came of a conversion; `files` is empty where nothing was written."""

    plan: PrecisionPlan
    files: tuple[Path, ...]
    checks: tuple[Check, ...]
    result: ValidationResult | None
    repairs: tuple[Repair, ...]

    @property
    def output(self) -> OutputFile | None:
        """The files that were written; None where there are none."""
        if not self.files:
            return None
        model, *external = self.files
        nbytes = sum(file.stat().st_size for file in self.files)
        return OutputFile(str(model), nbytes, tuple(map(str, external)))


class _Missed(Exception):  # noqa: N818 - a signal from the check to the loop, not an error
    """The staged file is out of tolerance."""


class ConversionJob:
    """Convert, verify, compare and save, with repairs.

    Args:
        study: the model and what is known about it.
        output: file to write.
        comparison: how to compare with the FP32 model, None to save unvalidated.
        allow_out_of_tolerance: write the file even where repairs do not help.
        progress: told about each step.
    """

    def __init__(
        self,
        study: Study,
        output: Path,
        comparison: Comparison | None,
        allow_out_of_tolerance: bool,
        progress: Progress | None,
    ) -> None:
        self._study, self._output, self._comparison = study, output, comparison
        self._allow, self._progress = allow_out_of_tolerance, progress
        self._checks: list[Check] = []
        self._result: ValidationResult | None = None

    def run(self, given: PrecisionPlan | None, rounds: int) -> Outcome:
        """Convert by a given plan, or by one of our own that is repaired at most `rounds` times.

        Raises:
            ConversionError: the result is not valid.
            ValidationError: the comparison could not run.
        """
        pinned: dict[int, Reason] = {}
        repairs: list[Repair] = []
        self._tell("planning")
        plan = given or self._study.plan()
        files = self._write(plan, self._allow and not rounds)
        for number in range(1, rounds + 1):
            repair = None if files else self._repair(plan, pinned, number)
            if repair is None:
                break
            repairs.append(repair)
            plan = self._study.plan(pinned)
            files = self._write(plan, self._allow and number == rounds)
        if not files and self._allow:
            files = self._write(plan, True)
        return Outcome(plan, files, tuple(self._checks), self._result, tuple(repairs))

    def _tell(self, step: str) -> None:
        if self._progress is not None:
            self._progress(step)

    def _write(self, plan: PrecisionPlan, accept: bool) -> tuple[Path, ...]:
        """Write the model if it passes (or in any case, if `accept`); empty where it misses the tolerance."""
        self._tell("converting")
        mixed = convert(self._study.loaded, plan)
        self._checks.clear()

        def check(staged: Path) -> None:
            self._tell("verifying")
            require_valid(staged, self._study.loaded, plan)
            self._checks += [
                Check("ONNX checker", True, "full check"),
                Check("type inference", True, "strict, with data propagation"),
                Check("interface", True, "names, types and shapes as asked"),
            ]
            if self._comparison is not None:
                self._compare(staged, accept)

        try:
            return save(mixed, self._output, self._study.loaded, check=check)
        except _Missed:
            return ()

    def _compare(self, staged: Path, accept: bool) -> None:
        assert self._comparison is not None
        self._tell("comparing with FP32")
        self._result = self._comparison.run(self._study.loaded, load_onnx(staged), self._study.feeds)
        failed = [f for f in self._result.findings if f.stage in ("load", "run")]
        detail = "; ".join(f"{f.runtime}, {f.provider}: {f.message}" for f in failed)
        self._checks.append(Check("load in ONNX Runtime", None if failed else True, detail))
        if not self._result.ok and not accept:
            raise _Missed

    def _repair(self, plan: PrecisionPlan, pinned: dict[int, Reason], number: int) -> Repair | None:
        """Find what causes the error and pin it to FP32; None where nothing is left to move."""
        assert self._result is not None
        assert self._comparison is not None
        self._tell("finding the operators that cause the error")
        found = repair_plan(
            self._study.loaded,
            _dtypes(self._study, plan),
            self._study.feeds,
            self._comparison.runtime,
            facts=self._study.facts,
            saturated=tuple(plan.saturated),
            folded=tuple(plan.folded),
            rescaled=exponents_of(plan.rescaled),
            rtol=self._comparison.rtol * TIGHTER ** (number - 1),
            atol=self._comparison.atol * TIGHTER ** (number - 1),
            allow_integer_changes=self._comparison.allow_integer_changes,
            batches=self._result.batches,
        )
        judgements = self._study.verdicts.judgements
        new = [t for t in found.typevars if t not in pinned and not judgements[t].is_commanded]
        shares = {t: b.share for b in found.blames for t in b.typevars}
        for typevar in new:
            share = shares.get(typevar, 0.0)
            text = f"in FP16 it causes {share:.0%} of an error that is out of tolerance (measured)"
            pinned[typevar] = Reason(MEASURED, text, Authority.EVIDENCE, {"share": share})
        labels = dict.fromkeys(b.label for b in found.blames if set(b.typevars) & set(new))
        broken = any(output.new_nan or output.new_inf for output in self._result.outputs)
        error = math.inf if broken else self._result.relative_l2 or 0.0
        return Repair(number, tuple(labels), error) if new else None


def culprits_of(study: Study, comparison: Comparison, plan: PrecisionPlan) -> tuple[OperatorError, ...]:
    """The operators that cause the error of a plan, worst first, with their share of it."""
    blames = attribute(
        study.loaded,
        _dtypes(study, plan),
        study.feeds,
        comparison.runtime,
        saturated=tuple(plan.saturated),
        folded=tuple(plan.folded),
        rescaled=exponents_of(plan.rescaled),
        rtol=comparison.rtol,
        atol=comparison.atol,
        allow_integer_changes=comparison.allow_integer_changes,
    )
    return tuple(OperatorError(b.label, b.op_type, b.share) for b in blames[:10])


def _dtypes(study: Study, plan: PrecisionPlan) -> list[DataType]:
    dtypes = [DataType.FLOAT] * len(study.loaded.graph.typevars)
    for decision in plan.decisions:
        dtypes[decision.typevar] = decision.dtype
    return dtypes
