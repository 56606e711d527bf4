"""fp16conv: decide per operator what runs in FP16, insert the casts, prove the result, say why.

The names below are loaded on first use, so that importing the package costs nothing.

Example:
    >>> import fp16conv
    >>> report = fp16conv.analyze("model.onnx", data=["batches/"])        # doctest: +SKIP
    >>> fp16conv.convert("model.onnx", "model.fp16.onnx").output.nbytes   # doctest: +SKIP
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's name, which type checkers know; loading typing takes half as long as Python
if TYPE_CHECKING:
    from fp16conv.api import analyze, convert, export, load, plan, tune, validate
    from fp16conv.errors import Fp16convError
    from fp16conv.graph import DataType, ModelGraph, RangeFact
    from fp16conv.planning.plan import Cast, Decision, PrecisionPlan
    from fp16conv.reporting.report import AnalyzeReport, ConvertReport, Finding, Report, ValidateReport
    from fp16conv.reporting.tuning import TuneReport
    from fp16conv.rulebook.types import Reason, Verdict

__version__ = "0.1.0"

__all__ = [
    "AnalyzeReport",
    "Cast",
    "ConvertReport",
    "DataType",
    "Decision",
    "Finding",
    "Fp16convError",
    "ModelGraph",
    "PrecisionPlan",
    "RangeFact",
    "Reason",
    "Report",
    "TuneReport",
    "ValidateReport",
    "Verdict",
    "__version__",
    "analyze",
    "convert",
    "export",
    "load",
    "plan",
    "tune",
    "validate",
]

_HOME = {
    "AnalyzeReport": "fp16conv.reporting.report",
    "Cast": "fp16conv.planning.plan",
    "ConvertReport": "fp16conv.reporting.report",
    "DataType": "fp16conv.graph",
    "Decision": "fp16conv.planning.plan",
    "Finding": "fp16conv.reporting.report",
    "Fp16convError": "fp16conv.errors",
    "ModelGraph": "fp16conv.graph",
    "PrecisionPlan": "fp16conv.planning.plan",
    "RangeFact": "fp16conv.graph",
    "Reason": "fp16conv.rulebook.types",
    "Report": "fp16conv.reporting.report",
    "TuneReport": "fp16conv.reporting.tuning",
    "ValidateReport": "fp16conv.reporting.report",
    "Verdict": "fp16conv.rulebook.types",
    "analyze": "fp16conv.api",
    "convert": "fp16conv.api",
    "export": "fp16conv.api",
    "load": "fp16conv.api",
    "plan": "fp16conv.api",
    "tune": "fp16conv.api",
    "validate": "fp16conv.api",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
