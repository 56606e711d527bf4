"""One conversion: stage the file, check it there, repair the plan where the tolerance is missed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from fp16conv.conversion.onnx import convert
from fp16conv.conversion.save import save
from fp16conv.conversion.verify import require_valid
from fp16conv.execution.feeds import FeedSource
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.reporting.progress import Progress
from fp16conv.reporting.report import Check, OperatorError, OutputFile, Repair
from fp16conv.rulebook.types import Authority, Reason
from fp16conv.study import Study, StudyBase
from fp16conv.validation.attribution import attribute, repair_plan
from fp16conv.validation.compare import Provider, ValidationResult, compare_models
from fp16conv.validation.probe import ProbeBase

__all__ = ["MAX_REPAIRS", "Comparison", "ConversionJob", "OnnxJob", "Outcome", "Tolerance"]

MAX_REPAIRS = 3
"""Rounds of: attribute the error, move the worst to FP32, plan again."""

MEASURED = "measured-error"
"""Rule id of what the repair moved to FP32."""

TIGHTER = 0.8
"""Each further repair aims lower: a plan that passed as emulated may miss by a little in the file."""


@dataclass(frozen=True)
class Tolerance:
    """How far from FP32 an output may be, see `validation.metrics`."""

    rtol: float
    atol: float
    allow_integer_changes: bool = False


@dataclass(frozen=True)
class Comparison(Tolerance):
    """How to compare ONNX models: the user's tolerance and provider."""

    provider: Provider = "auto"

    def run(
        self, reference: LoadedModel, candidate: LoadedModel, feeds: FeedSource, runtime: Runtime
    ) -> ValidationResult:
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
            runtime=runtime,
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


class ConversionJob(ABC):
    """Convert, verify, compare and save, with repairs.

    Args:
        study: the model and what is known about it.
        output: file to write; None keeps the result in memory, where the kind of job allows it.
        tolerance: how far the file may be from the FP32 model, None to save it unvalidated.
        allow_out_of_tolerance: write the file even where repairs do not help.
        progress: told about each step.
    """

    def __init__(
        self,
        study: StudyBase,
        output: Path | None,
        tolerance: Tolerance | None,
        allow_out_of_tolerance: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.study, self.tolerance = study, tolerance
        self._output, self._allow, self._progress = output, allow_out_of_tolerance, progress
        self._checks: list[Check] = []
        self._result: ValidationResult | None = None
        self._files: tuple[Path, ...] = ()

    def run(self, given: PrecisionPlan | None, rounds: int) -> Outcome:
        """Convert by a given plan, or by one of our own that is repaired at most `rounds` times.

        Raises:
            ConversionError: the result is not valid.
            ValidationError: the comparison could not run.
        """
        pinned: dict[int, Reason] = {}
        repairs: list[Repair] = []
        self._tell("planning")
        plan = given or self.study.plan()
        accepted = self._write(plan, self._allow and not rounds)
        for number in range(1, rounds + 1):
            repair = None if accepted else self._repair(plan, pinned, number)
            if repair is None:
                break
            repairs.append(repair)
            plan = self.study.plan(pinned)
            accepted = self._write(plan, self._allow and number == rounds)
        if not accepted and self._allow:
            self._write(plan, True)
        return Outcome(plan, self._files, tuple(self._checks), self._result, tuple(repairs))

    def find_culprits(self, plan: PrecisionPlan) -> tuple[OperatorError, ...]:
        """The operators that cause the error of a plan, worst first, with their share of it."""
        with self._open_probe(plan) as probe:
            blames = attribute(probe, plan.dtype_list(len(probe.graph.typevars)))
        return tuple(OperatorError(b.label, b.op_type, b.share) for b in blames[:10])

    @abstractmethod
    def _write(self, plan: PrecisionPlan, accept: bool) -> bool:
        """Write the model if it passes (or in any case, if `accept`); False where it misses the tolerance.

        Fills `_checks`, `_result` and `_files`.
        """

    def _tell(self, step: str) -> None:
        if self._progress is not None:
            self._progress(step)

    def _open_probe(self, plan: PrecisionPlan, *, tighter: float = 1.0, batches: int = 1) -> ProbeBase:
        assert self.tolerance is not None
        return self.study.open_probe(
            plan,
            rtol=self.tolerance.rtol * tighter,
            atol=self.tolerance.atol * tighter,
            allow_integer_changes=self.tolerance.allow_integer_changes,
            batches=batches,
        )

    def _repair(self, plan: PrecisionPlan, pinned: dict[int, Reason], number: int) -> Repair | None:
        """Find what causes the error and pin it to FP32; None where nothing is left to move."""
        assert self._result is not None
        self._tell("finding the operators that cause the error")
        tighter = TIGHTER ** (number - 1)
        with self._open_probe(plan, tighter=tighter, batches=self._result.batches) as probe:
            dtypes = plan.dtype_list(len(probe.graph.typevars))
            found = repair_plan(probe, dtypes, facts=self.study.facts)
        judgements = self.study.verdicts.judgements
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


class _Missed(Exception):  # noqa: N818 - a signal from the check to the loop, not an error
    """The staged file is out of tolerance."""


class OnnxJob(ConversionJob):
    """A job whose result is an .onnx file."""

    study: Study
    tolerance: Comparison | None

    def _write(self, plan: PrecisionPlan, accept: bool) -> bool:
        assert self._output is not None
        self._tell("converting")
        loaded = self.study.loaded
        mixed = convert(loaded, plan)
        self._checks.clear()

        def check(staged: Path) -> None:
            self._tell("verifying")
            require_valid(staged, loaded, plan)
            self._checks += [
                Check("ONNX checker", True, "full check"),
                Check("type inference", True, "strict, with data propagation"),
                Check("interface", True, "names, types and shapes as asked"),
            ]
            if self.tolerance is not None:
                self._compare(staged, self.tolerance, accept)

        try:
            self._files = save(mixed, self._output, loaded, check=check)
        except _Missed:
            return False
        return True

    def _compare(self, staged: Path, comparison: Comparison, accept: bool) -> None:
        self._tell("comparing with FP32")
        study = self.study
        self._result = comparison.run(study.loaded, load_onnx(staged), study.feeds, study.runtime)
        failed = [f for f in self._result.findings if f.stage in ("load", "run")]
        detail = "; ".join(f"{f.runtime}, {f.provider}: {f.message}" for f in failed)
        self._checks.append(Check("load in ONNX Runtime", None if failed else True, detail))
        if not self._result.ok and not accept:
            raise _Missed
