"""Reports with every section filled, and names that try to take over a terminal."""

from __future__ import annotations

import math

from fp16conv.reporting.alignment import AlignmentSummary, UnalignedProduct
from fp16conv.reporting.bounds import BoundsSummary
from fp16conv.reporting.report import (
    Accuracy,
    AnalyzeReport,
    Backend,
    Check,
    ConvertReport,
    DecisionSummary,
    Evidence,
    Finding,
    HalfOutcome,
    KeptGroup,
    ModelFacts,
    OperatorError,
    OutputCheck,
    OutputFile,
    PlanReport,
    Port,
    Prediction,
    Repair,
    Report,
    Severity,
    Size,
    ValidateReport,
    ValidationResult,
)
from fp16conv.reporting.training import GradientNote, ScaleRange, TrainAuditReport
from fp16conv.reporting.tuning import Effort, FrontierPoint, Moved, Rounding, TuneReport

HOSTILE = "a\x1b[31m\r\n\x9b2J[bold]\u202e\u2066" + "漢" * 60


def model(name: str) -> ModelFacts:
    return ModelFacts(
        path=f"{name}.onnx",
        digest="0" * 64,
        opsets={"": 17, "com.microsoft": 1},
        ir_version=8,
        producer="pytorch 2.4",
        ops=340,
        op_types={name: 90, "Conv": 80, "Relu": 60, "Add": 50, "Exp": 40, "Mul": 15, "Softmax": 5},
        inputs=(Port(name, "float", (1, "seq", None)),),
        outputs=(Port("y", "float", None),),
        weights=2_350_000,
        macs=12_300_000,
    )


def decisions(name: str, groups: int = 9) -> DecisionSummary:
    kept = tuple(
        KeptGroup(
            rule=f"rule-{i}" if i else "exp-overflow",
            authority="built-in" if i else "evidence",
            text=f"exp(x) is beyond 65504 from x = 11.09 on; {name} reaches 14.2 on your data, rule {i}",
            count=groups - i,
            op_types={"Exp": groups - i, name: 1, "Pow": 1, "Log": 1},
            examples=tuple(f"/{name}/layer.{j}/Exp" for j in range(groups - i)),
            macs_share=0.002 if i else None,
        )
        for i in range(groups)
    )
    return DecisionSummary(
        fp16=290, fp32=45, mixed=5, verdicts={"allow": 85, "deny": 45}, casts=12, macs_share=0.9871, kept=kept
    )


def findings(name: str, count: int = 8) -> tuple[Finding, ...]:
    severities = (Severity.NOTE, Severity.WARNING)
    return tuple(
        Finding(
            severities[i % 2], f"rule-{i}", f"/{name}/{i}", f"{name} does something odd " * 4, "declare it"
        )
        for i in range(count)
    )


def validation(name: str, ok: bool) -> ValidationResult:
    outputs = (
        OutputCheck("y", "float", True, 3.1e-4, 0.002, 70.2, 0.99999, 0.999, elements=4000, limit=0.0213),
        OutputCheck(name, "float", ok, 1e-7 if ok else math.inf, math.inf, new_inf=3, elements=10,
                    limit=0.02, problems=() if ok else (f"3 elements of {name} are infinite",)),
        OutputCheck("labels", "integer", True, elements=12),
    )  # fmt: skip
    limits = ("every FP16 tensor is rounded, but sums inside one operator are kept in FP32",)
    return ValidationResult(
        rtol=0.02,
        atol=0.001,
        ok=ok,
        backends=(Backend("emulated", "ONNX Runtime 1.31.1 CPU, FP16 emulated", ok, outputs, limits),),
        accuracy=(Accuracy("y", 0.9711, 0.9713),),
        culprits=() if ok else (OperatorError(f"/{name}/Pow", "Pow", 0.4),),
        notes=("not run on CUDA: no session gets it",),
    )


PREDICTION = Prediction("a10", "NVIDIA A10", 0.00123, 0.00071)
REAL = Evidence(False, 3, ("a.npz", "b.npz", "c.npz"))
SYNTHETIC = Evidence(True, 2, seed=0)


def analyze(name: str = "encoder") -> AnalyzeReport:
    return AnalyzeReport(
        tool_version="0.0.0",
        findings=findings(name),
        next_command="fp16conv convert encoder.onnx -o encoder.fp16.onnx",
        model=model(name),
        decisions=decisions(name),
        size=Size(2_350_000, 1_180_000),
        prediction=PREDICTION,
        half=HalfOutcome(False, f"/{name}/Pow_3", "Pow"),
        evidence=SYNTHETIC,
        bounds=BoundsSummary(41, 12, 2, 5, plan_operators=44, plan_proven=36, plan_macs_share=0.87),
        alignment=AlignmentSummary(
            8, 38, 2, 1, 0.97, (UnalignedProduct(f"/{name}/Conv", "Conv", (("input channels", 3),), 0.03),)
        ),
    )


def convert(name: str = "encoder", *, ok: bool = True) -> ConvertReport:
    return ConvertReport(
        tool_version="0.0.0",
        findings=findings(name, 2),
        next_command="fp16conv validate a.onnx b.onnx",
        model=model(name),
        decisions=decisions(name, 3),
        size=Size(2_350_000, 1_180_000),
        output=OutputFile(f"{name}.fp16.onnx", 1_200_000, ("w.bin",)) if ok else None,
        prediction=PREDICTION,
        evidence=REAL,
        checks=(Check("checker", True), Check("strict shapes", None, f"{name}: custom operators")),
        validation=validation(name, ok),
        repairs=(Repair(1, (f"/{name}/Pow_3", "/head/Exp"), math.inf),),
    )


def tune(name: str = "encoder", *, ok: bool = True) -> TuneReport:
    frontier = tuple(
        FrontierPoint(
            origin="default" if i == 2 else "minimum cut",
            error=0.012 / (i + 1),
            used=4.0 / (i + 1),
            ok=i > 2 and ok,
            seconds=0.0007 + 1e-5 * i,
            speedup=1.7 - i / 100,
            casts=2 * i,
            macs_share=1.0 - i / 20,
            chosen=i == 4 and ok,
        )
        for i in range(10)
    )
    return TuneReport(
        tool_version="0.0.0",
        findings=findings(name, 1),
        model=model(name),
        decisions=decisions(name, 3),
        size=Size(2_350_000, 1_180_000),
        output=OutputFile(f"{name}.fp16.onnx", 1_200_000) if ok else None,
        prediction=PREDICTION,
        evidence=REAL,
        checks=(Check("checker", True),) if ok else (),
        validation=validation(name, ok),
        tolerance=0.003,
        met=ok,
        nearest=0.8 if ok else 1.3,
        wanted=True,
        frontier=frontier,
        effort=Effort(31, 4, 52, 220, not ok),
        moved=(
            Moved(f"/{name}/Softmax", "Softmax", "float16", "its values were observed to be safe"),
            Moved(f"/{name}/Conv_1", "Conv", "float", "its error weighs more than the time it saves"),
        ),
        roundings=(
            Rounding(f"/{name}/Conv_1", "Conv", "result", 0.6, True),
            Rounding(name, "", "constants", 0.01, False),
        ),
    )


def validate(name: str = "encoder", *, ok: bool = True) -> ValidateReport:
    return ValidateReport(
        tool_version="0.0.0",
        reference=f"{name}.onnx",
        candidate=f"{name}.fp16.onnx",
        evidence=REAL,
        validation=validation(name, ok),
    )


def plan(name: str = "encoder") -> PlanReport:
    return PlanReport(
        tool_version="0.0.0",
        model_path=f"{name}.onnx",
        plan_path="plan.json",
        decisions=decisions(name, 3),
        prediction=PREDICTION,
        next_command="fp16conv convert encoder.onnx -o OUT.onnx --plan plan.json",
    )


def train_audit(name: str = "encoder", *, ok: bool = True) -> TrainAuditReport:
    bell = (3, 40, 210, 600, 900, 610, 200, 42, 2)  # exponents -28 - i and up; below -25 they round to zero
    gradients = tuple(
        GradientNote(
            name=f"{name}.{i}.weight",
            kind="parameter" if i < 9 else "activation",
            max_abs=1.5 * 2.0 ** (-20 - i) if i else 0.0,
            share_zeroed=sum(bell[: i + 3]) / sum(bell) if i else 0.0,
            share_left=0.0,
            scales=ScaleRange(i + 4, 34 + i, 32 + i) if i else None,
            first_exponent=-28 - i if i else 0,
            counts=bell if i else (),
            share_lost=(0.9 if i else 0.0) if i < 9 else None,
        )
        for i in range(14)
    )
    if not ok:
        gradients += (
            GradientNote(name, "activation", 4096.0, 0.0, 0.0, ScaleRange(20, 2, 2), -38, (1,) * 51),
        )
    return TrainAuditReport(
        tool_version="0.0.0",
        options={"optimizer": "Adam", "learning_rate": 0.001},
        findings=() if ok else findings(name, 2),
        source=f"{name}.train:setup",
        batches=2 if ok else 1,
        losses=(2.31, 1.87) if ok else (2.31,),
        gradients=gradients,
        overflowing={} if ok else {f"{name}.{i}": 70000.0 * (i + 1) for i in range(3)},
        autocast_fp32={"layer_norm": 4, "softmax": 2} if ok else {},
        window=ScaleRange(12, 34, 32) if ok else ScaleRange(20, 2, 2),
        loss_scale=2.0**32 if ok else 4.0,
        share_zeroed=0.0812,
        share_lost=0.9,
        optimizer="Adam",
        learning_rate=0.001,
    )


def all_reports(name: str) -> dict[str, Report]:
    return {
        "analyze": analyze(name),
        "convert": convert(name),
        "convert_missed": convert(name, ok=False),
        "plan": plan(name),
        "train_audit": train_audit(name),
        "train_audit_closed": train_audit(name, ok=False),
        "tune": tune(name),
        "tune_missed": tune(name, ok=False),
        "validate": validate(name),
        "validate_missed": validate(name, ok=False),
    }
