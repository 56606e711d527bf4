"""Compares PyTorch programs in FP32 and in honest FP16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy.typing as npt
import torch

from fp16conv.errors import ValidationError
from fp16conv.execution.feeds import FeedSource
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.validation.compare import BackendResult, Provider, ValidationResult
from fp16conv.validation.fx.outputs import ProgramOutputs
from fp16conv.validation.metrics import ATOL, RTOL, OutputComparison, OutputMetrics

__all__ = ["compare_programs", "missing_cuda", "require_cuda"]

_CPU_LIMITS: Final = (
    "PyTorch's half kernels on the CPU round every FP16 result; sums inside one call are kept in FP32",
    "it says nothing about speed or about which kernels a device has",
)
_CUDA_LIMITS: Final = ("one device and its libraries: others may sum in another order",)
Labels = Sequence[npt.NDArray[Any] | None]


def compare_programs(
    reference: LoadedProgram,
    candidate: LoadedProgram,
    feeds: FeedSource,
    *,
    provider: Provider = "auto",
    rtol: float = RTOL,
    atol: float = ATOL,
    labels: Labels | None = None,
    allow_integer_changes: bool = False,
) -> ValidationResult:
    """Compare a converted program with its FP32 original, which runs on the CPU.

    Args:
        reference: the FP32 program.
        candidate: the converted program, with the same outputs.
        feeds: batches of inputs for the reference.
        provider: `emulated`: PyTorch's half kernels on the CPU; `cuda`: those of the CUDA device (an error
            where there is none); `auto`: the CPU's, and the device's too where there is one.
        rtol: allowed relative L2 error per output.
        atol: allowed root mean square error per output, on top.
        labels: per batch the right classes (int).
        allow_integer_changes: integer and bool outputs may change.

    Raises:
        ValidationError: a program does not run, the outputs have other names, or CUDA was asked for and is
            not there.
    """
    if provider not in ("auto", "emulated", "cuda"):
        raise ValidationError(f"unknown provider '{provider}'", hint="one of auto, emulated, cuda")
    names = list(reference.output_names.values())
    if names != list(candidate.output_names.values()):
        raise ValidationError(
            "the programs have other outputs",
            where=candidate.source,
            why=f"{', '.join(candidate.output_names.values())} instead of {', '.join(names)}",
        )
    missing = missing_cuda()
    if provider == "cuda":
        require_cuda()
    wanted = {"emulated": ("cpu",), "cuda": ("cuda",), "auto": ("cpu",) if missing else ("cpu", "cuda")}
    exact = ProgramOutputs(reference, "cpu")
    backends: list[BackendResult] = []
    notes = [f"not run on CUDA: {missing}"] if provider == "auto" and missing else []
    batches = 0
    for device in wanted[provider]:
        halved = ProgramOutputs(candidate, device)
        try:
            comparisons, count = _compare_outputs(names, exact, halved, feeds, labels)
        except ValidationError as error:
            if not backends:
                raise
            notes.append(f"not compared on CUDA: {error}")
            continue
        metrics = tuple(
            c.metrics(rtol=rtol, atol=atol, allow_integer_changes=allow_integer_changes) for c in comparisons
        )
        backends.append(_backend(device, metrics, halved.without_kernel))
        batches = count
    return ValidationResult(
        reference=reference.source,
        candidate=candidate.source,
        inputs=str(feeds.origin),
        batches=batches,
        rtol=rtol,
        atol=atol,
        backends=tuple(backends),
        findings=(),
        notes=tuple(notes),
        ok=all(backend.ok for backend in backends),
    )


def _compare_outputs(
    names: Sequence[str],
    exact: ProgramOutputs,
    halved: ProgramOutputs,
    feeds: FeedSource,
    labels: Labels | None,
) -> tuple[list[OutputComparison], int]:
    comparisons = {name: OutputComparison(name) for name in names}
    batches = 0
    for batch in feeds:
        expected, given = exact.run(batch), halved.run(batch)
        label = labels[batches] if labels is not None and batches < len(labels) else None
        for name, comparison in comparisons.items():
            comparison.update(expected[name], given[name], label)
        batches += 1
    if not batches:
        raise ValidationError("there is no batch to compare on", hint="give data or example inputs")
    return list(comparisons.values()), batches


def missing_cuda() -> str:
    """Why no CUDA device can be used here; "" where one can."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"PyTorch {torch.__version__} is built without CUDA"
    return "" if torch.cuda.is_available() else "PyTorch finds no CUDA device"


def require_cuda() -> None:
    """Raise where no CUDA device can be used.

    Raises:
        ValidationError: there is none; says why.
    """
    if missing := missing_cuda():
        raise ValidationError(
            "CUDA was asked for, but no program runs on it",
            why=missing,
            hint="leave --provider out to compare with the half kernels of the CPU",
        )


def _backend(
    device: str, metrics: tuple[OutputMetrics, ...], without_kernel: Mapping[str, None]
) -> BackendResult:
    limits: tuple[str, ...] = _CPU_LIMITS
    where = "the CPU"
    if device == "cuda":
        limits, where = _CUDA_LIMITS, torch.cuda.get_device_name()
    if without_kernel:
        listed = ", ".join(without_kernel)
        limits += (f"no half kernel on {where}, computed in FP32 and rounded: {listed}",)
    description = f"PyTorch {torch.__version__}, half kernels on {where}; FP32 on the CPU"
    ok = all(m.ok for m in metrics)
    return BackendResult("pytorch" if device == "cpu" else "cuda", description, limits, metrics, (), ok)
