"""Details of made-up models: of any size, and with names that attack a browser."""

from __future__ import annotations

import dataclasses
import math
import random

from fp16conv.reporting.details import Details, OperatorDetail, ReasonNote, RuleNote, ValueDetail
from fp16conv.reporting.report import AnalyzeReport
from tests.unit.reporting import sample_reports

IMG = "<img src=x onerror=alert(1)>"
DROP = "'; DROP TABLE operators; --"
CLOSE = "</script><script>alert(2)</script>"
ATTRIBUTE = '" onmouseover="alert(3)'
CONTROL = "a\x1b[31m\r\n\x00\u202e"
HOSTILE = (IMG, DROP, CLOSE, ATTRIBUTE, CONTROL, "&lt;b&gt;", "@@data@@", "javascript:alert(4)")

RULES = (
    RuleNote(
        "exp-overflow",
        "exp overflows from 11.09 on",
        "deny",
        "ln(65504) is 11.09.",
        ("IEEE 754",),
        "rules/ops/a.toml",
    ),
    RuleNote("matrix-product", "Matrix product", "allow", "Tensor Cores.", (), "rules/ops/b.toml"),
)
_TYPES = ("MatMul", "Add", "Exp", "Softmax", "Relu", "LayerNormalization", "Mul", "Reshape")


def details(count: int, *, names: tuple[str, ...] = (), seed: int = 0) -> Details:
    """Operators in blocks of a transformer; the first ones have the given names."""
    dice = random.Random(seed)
    operators = []
    error = 0.0
    for i in range(count):
        kind = _TYPES[i % len(_TYPES)]
        label = names[i] if i < len(names) else f"/model/layers.{i // 100}/block.{i // 10 % 10}/{kind}_{i}"
        precision = "other" if kind == "Reshape" else "fp32" if kind in ("Exp", "Softmax") else "fp16"
        reason = ReasonNote(
            "exp-overflow" if precision == "fp32" else "matrix-product",
            f"the range reaches {dice.uniform(1, 90000):.1f} at {label}",
            "evidence",
        )
        before, error = error, error + dice.random() * 1e-5
        peak = 10 ** dice.uniform(-2, 5.2)
        value = ValueDetail(
            name=f"{label}_output_0",
            dtype="float16" if precision == "fp16" else "float",
            shape=(8, "seq", 768, None),
            origin="observed",
            lo=-peak,
            hi=peak,
            min_abs=1e-9,
            rms=peak / 3,
            overflow=0.01 if peak > 65504 else 0.0,
            subnormal=0.002,
            zeroed=0.0005,
            first_exponent=-28,
            counts=tuple(int(1e6 * math.exp(-(((k - 30) / 9) ** 2))) for k in range(46)),
            error=error,
        )
        operators.append(
            OperatorDetail(
                label=label,
                op_type=kind,
                scope="main",
                precision=precision,
                verdict="deny" if precision == "fp32" else "allow",
                reasons=() if precision == "other" else (reason,),
                outputs=() if precision == "other" else (value,),
                macs=i,
                error=math.inf if i == count // 2 else error,
                error_in=before,
                block=tuple(label.split("/")[1:-1]) if i >= len(names) else (label,),
            )
        )
    return Details(tuple(operators), (), RULES, "the first batch, emulated")


def report(count: int, *, names: tuple[str, ...] = (), name: str = "encoder") -> AnalyzeReport:
    return dataclasses.replace(sample_reports.analyze(name), details=details(count, names=names))
