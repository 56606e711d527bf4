"""The Report: what an analysis, a conversion or a validation found out, as frozen data.

JSON is the dump of these classes with a `schema` field; every other format renders the same data. Sizes are
in bytes, times in seconds, shares between 0 and 1. This module,
`alignment`, `bounds`, `details` and `per_operator` import the standard library only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import ClassVar

from fp16conv.reporting.alignment import AlignmentSummary
from fp16conv.reporting.bounds import BoundsSummary
from fp16conv.reporting.details import Details
from fp16conv.reporting.per_operator import PerOperator

__all__ = [
    "Accuracy",
    "AnalyzeReport",
    "Backend",
    "Check",
    "ConvertReport",
    "DecisionSummary",
    "Evidence",
    "Finding",
    "HalfOutcome",
    "KeptGroup",
    "ModelFacts",
    "OperatorError",
    "OutputCheck",
    "OutputFile",
    "PlanReport",
    "Port",
    "Prediction",
    "Repair",
    "Report",
    "Severity",
    "Size",
    "ValidateReport",
    "ValidationResult",
    "dump",
]


class Severity(StrEnum):
    """How bad a finding is. Only ERROR changes an exit code."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


def dump(item: object) -> object:
    """Turn report data into plain JSON values.

    Numbers that JSON lacks become the strings "inf", "-inf" and "nan".

    Example:
        >>> dump(Size(weights_before=8, weights_after=4))
        {'weights_before': 8, 'weights_after': 4, 'saving': 0.5}
        >>> dump(float("inf"))
        'inf'
    """
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        fields = {f.name: dump(getattr(item, f.name)) for f in dataclasses.fields(item)}
        derived: tuple[str, ...] = getattr(type(item), "derived", ())
        return fields | {name: dump(getattr(item, name)) for name in derived}
    if isinstance(item, Enum):
        return item.value
    if isinstance(item, Mapping):
        return {str(key): dump(value) for key, value in item.items()}
    if isinstance(item, tuple | list):
        return [dump(value) for value in item]
    if isinstance(item, float):
        if math.isfinite(item):
            return item
        return "nan" if math.isnan(item) else "inf" if item > 0 else "-inf"
    if item is None or isinstance(item, bool | int | str):
        return item
    return str(item)


@dataclass(frozen=True, slots=True)
class Port:
    """A graph input or output. Dimensions are sizes, symbolic names, or None where unknown."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the file holds.

    Args:
        path: as the user gave it.
        digest: sha256 of the model, hexadecimal.
        opsets: version per imported domain ("" is ai.onnx).
        op_types: number of operators per `domain::type`, most frequent first.
        weights: bytes of all constants.
        macs: multiply-accumulates of one run, None where shapes are unknown.
    """

    path: str
    digest: str
    opsets: Mapping[str, int]
    ir_version: int | None
    producer: str
    ops: int
    op_types: Mapping[str, int]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    weights: int
    macs: int | None = None


@dataclass(frozen=True, slots=True)
class KeptGroup:
    """Operators that stay FP32 for the same rule.

    Args:
        rule: id of the rule, `keep-fp32`, or `planner`.
        authority: who says so (built-in, evidence, profile, rules file, command line).
        text: the reason of the first operator of the group, one sentence.
        count: number of operators.
        op_types: number of operators per type, most frequent first.
        examples: labels of a few of them, in file order.
        macs_share: share of the model's MACs in this group, None where unknown.
    """

    rule: str
    authority: str
    text: str
    count: int
    op_types: Mapping[str, int]
    examples: tuple[str, ...]
    macs_share: float | None = None


@dataclass(frozen=True, slots=True)
class DecisionSummary:
    """The plan in numbers. Counts are operators with at least one FLOAT-bound type variable.

    Args:
        fp16, fp32, mixed: operators all of whose type variables are FP16, are FP32, or that have both.
        verdicts: number of type variables per verdict.
        casts: number of casts the converter inserts.
        macs_share: share of the model's MACs that run in FP16, None where unknown.
        kept: what stays FP32 and why, largest group first.
        saturated: number of constants that act as infinity and become +-65504.
        folded: number of BatchNormalizations that become a Mul and an Add.
    """

    fp16: int
    fp32: int
    mixed: int
    verdicts: Mapping[str, int]
    casts: int
    macs_share: float | None
    kept: tuple[KeptGroup, ...]
    saturated: int = 0
    folded: int = 0


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of the constants before and after."""

    derived: ClassVar[tuple[str, ...]] = ("saving",)

    weights_before: int
    weights_after: int

    @property
    def saving(self) -> float:
        """Share of the bytes that goes away (negative when constants exist in both precisions)."""
        return 1.0 - self.weights_after / self.weights_before if self.weights_before else 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """Run time by a roofline model (FLOPs and bytes against a device file): an estimate, never measured.

    Args:
        device: name of the device file.
        device_name: the device as its maker calls it.
        fp32_seconds: everything in FP32.
        plan_seconds: the plan with its casts.
    """

    derived: ClassVar[tuple[str, ...]] = ("speedup", "method")

    device: str
    device_name: str
    fp32_seconds: float
    plan_seconds: float

    @property
    def speedup(self) -> float | None:
        return self.fp32_seconds / self.plan_seconds if self.plan_seconds > 0 else None

    @property
    def method(self) -> str:
        return "roofline estimate"


@dataclass(frozen=True, slots=True)
class HalfOutcome:
    """What casting everything (`model.half()`) would do, by emulation.

    Args:
        finite: all outputs finite wherever the FP32 model's are; None when it could not be tried.
        first_overflow: first operator whose FP16 result is not finite although FP32's is, "" if none.
        rel_l2: worst relative L2 error over the outputs, None when not measured.
        within_tolerance: whether plain FP16 would have passed the tolerance, None when not measured.
        note: why it could not be tried, or what limits the statement.
        error: what it raises instead of giving a result, "" where it runs.
    """

    finite: bool | None
    first_overflow: str = ""
    first_overflow_type: str = ""
    rel_l2: float | None = None
    within_tolerance: bool | None = None
    note: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the decisions and errors rest on.

    Args:
        synthetic: inputs were made up, not the user's.
        batches: number of runs.
        sources: data files in the order of use.
        seed: of the synthetic inputs.
        note: anything a reader must know about them.
    """

    synthetic: bool
    batches: int
    sources: tuple[str, ...] = ()
    seed: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnostic.

    Args:
        rule: id of the rule or check.
        where: operator, output or file.
        fix: what the user can do, "" if nothing.
    """

    severity: Severity
    rule: str
    where: str
    message: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """Comparison of one graph output over all batches.

    Args:
        rel_l2: ||candidate - reference||2 / ||reference||2.
        max_abs: largest absolute difference.
        snr_db: 20 log10(||reference||2 / ||difference||2); infinite when equal.
        cosine: cosine similarity.
        top1: share of rows whose arg max agrees, None where that means nothing.
        new_nan, new_inf: elements that are NaN or infinite only in the candidate.
        changed: integer, boolean or string elements that differ.
        limit: the bound of the verdict, `rtol + atol * sqrt(n) / ||reference||2`, in units of rel_l2.
        ok: the verdict.
        problems: why not, one sentence each.
    """

    name: str
    kind: str
    ok: bool
    rel_l2: float | None = None
    max_abs: float | None = None
    snr_db: float | None = None
    cosine: float | None = None
    top1: float | None = None
    new_nan: int = 0
    new_inf: int = 0
    changed: int = 0
    elements: int = 0
    limit: float | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Task accuracy on the labels the user gave (share of rows whose arg max is right)."""

    output: str
    reference: float
    candidate: float


@dataclass(frozen=True, slots=True)
class OperatorError:
    """Share (0 to 1) of the squared error that rounding at this operator causes."""

    op: str
    op_type: str
    share: float


@dataclass(frozen=True, slots=True)
class Backend:
    """The comparison on one backend.

    Args:
        name: `emulated` or `cuda`.
        description: what ran the models.
        limits: what this backend cannot show, one sentence each.
        fallbacks: operators that ran on another device than asked for.
    """

    name: str
    description: str
    ok: bool
    outputs: tuple[OutputCheck, ...]
    limits: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """Verdict of a comparison.

    Args:
        backends: one or more, the deciding one first.
        accuracy: per output that fits the labels, on the deciding backend.
        culprits: operators that add most of the error, worst first (when attributed).
        notes: what was skipped and why.
    """

    rtol: float
    atol: float
    ok: bool
    backends: tuple[Backend, ...]
    accuracy: tuple[Accuracy, ...] = ()
    culprits: tuple[OperatorError, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """One verification step. `ok` is None where it could not run (`detail` says why)."""

    name: str
    ok: bool | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Repair:
    """Operators moved back to FP32 in one round because the tolerance was missed.

    Args:
        error: worst relative L2 error before this round; infinite where NaN or infinities were new.
    """

    round: int
    ops: tuple[str, ...]
    error: float


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A written model; `external` are its data files."""

    path: str
    nbytes: int
    external: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """Common head of all reports.

    Args:
        next_command: what a user would type now, "" if nothing.
        details: every operator, where they were asked for.
        source_lines: file:number by the label of an operator that the report names, where the model comes
            from PyTorch and tells.
    """

    derived: ClassVar[tuple[str, ...]] = ("ok",)
    schema: str
    tool_version: str
    options: Mapping[str, object] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    next_command: str = ""
    details: Details | None = None
    source_lines: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """No finding of severity error (and, in subclasses, nothing missed): the exit code is 0."""
        return all(f.severity is not Severity.ERROR for f in self.findings)

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values, `schema` first; details and lines that there are none of are left out."""
        values = dump(self)
        assert isinstance(values, dict)
        for name in ("details", "source_lines"):
            if not getattr(self, name):
                del values[name]
        result: dict[str, object] = {"schema": self.schema}
        result.update(values)
        return result


@dataclass(frozen=True, kw_only=True)
class AnalyzeReport(Report):
    """Audit of a model; nothing was edited."""

    schema: str = "fp16conv.analyze/1"
    model: ModelFacts
    decisions: DecisionSummary
    size: Size
    prediction: Prediction | None = None
    half: HalfOutcome | None = None
    evidence: Evidence | None = None
    bounds: BoundsSummary | None = None
    alignment: AlignmentSummary | None = None


@dataclass(frozen=True, kw_only=True)
class PlanReport(Report):
    """Summary of a plan; the plan itself is its own file."""

    schema: str = "fp16conv.plan-summary/1"
    model_path: str
    plan_path: str
    decisions: DecisionSummary
    prediction: Prediction | None = None


@dataclass(frozen=True, kw_only=True)
class ConvertReport(Report):
    """A conversion: what was decided, verified, measured and written.

    `output` is None when nothing was written because the tolerance was missed. A file that the user
    asked for although it misses the tolerance is no failure: `validation.ok` and a warning say so.
    """

    schema: str = "fp16conv.convert/1"
    model: ModelFacts
    decisions: DecisionSummary
    size: Size
    output: OutputFile | None
    prediction: Prediction | None = None
    evidence: Evidence | None = None
    checks: tuple[Check, ...] = ()
    validation: ValidationResult | None = None
    repairs: tuple[Repair, ...] = ()

    @property
    def ok(self) -> bool:
        return super().ok and self.output is not None


@dataclass(frozen=True, kw_only=True)
class ValidateReport(Report):
    """Comparison of two models on the same inputs; `per_operator` where it was asked for."""

    schema: str = "fp16conv.validate/1"
    reference: str
    candidate: str
    evidence: Evidence
    validation: ValidationResult
    per_operator: PerOperator | None = None

    @property
    def ok(self) -> bool:
        return super().ok and self.validation.ok

    def to_dict(self) -> dict[str, object]:
        values = super().to_dict()
        if self.per_operator is None:
            del values["per_operator"]  # not asked for
        return values
