"""Condense the audit of a training into a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fp16conv.evidence.summary import LOWEST_EXPONENT
from fp16conv.half import MAX
from fp16conv.reporting.report import Finding, Severity
from fp16conv.reporting.training import GradientNote, ScaleRange, TrainAuditReport
from fp16conv.reporting.units import format_share, plural

if TYPE_CHECKING:
    from fp16conv.training.audit import TrainAudit
    from fp16conv.training.gradients import ScaleWindow

__all__ = ["summarize_training"]


def summarize_training(audit: TrainAudit, source: str, tool_version: str) -> TrainAuditReport:
    """Turn an audit into a report.

    Args:
        audit: what `fp16conv.training.audit` returns.
        source: what was audited, as the user named it.
        tool_version: of fp16conv.

    Returns:
        The report. Overflowing activations, and gradients that no loss scale rescues, are warnings; notes
        name what the recommended scale leaves behind, and parameters without a gradient.
    """
    return TrainAuditReport(
        tool_version=tool_version,
        options={"optimizer": audit.optimizer, "learning_rate": audit.learning_rate},
        findings=tuple(_findings(audit)),
        source=source,
        batches=audit.batches,
        losses=audit.losses,
        gradients=tuple(
            GradientNote(
                name=fact.name,
                kind=fact.kind,
                max_abs=fact.max_abs,
                share_zeroed=fact.share_zeroed,
                share_left=fact.share_left,
                scales=None if fact.window is None else _range(fact.window),
                first_exponent=first,
                counts=counts,
                share_lost=fact.share_lost,
            )
            for fact in audit.gradients
            for first, counts in [_trim([int(n) for n in fact.histogram])]
        ),
        overflowing=dict(audit.overflowing),
        autocast_fp32=dict(audit.autocast_fp32),
        window=_range(audit.window),
        loss_scale=audit.loss_scale,
        share_zeroed=audit.share_zeroed,
        share_lost=audit.share_lost,
        optimizer=audit.optimizer,
        learning_rate=audit.learning_rate,
    )


def _range(window: ScaleWindow) -> ScaleRange:
    return ScaleRange(window.lowest, window.highest, window.recommended)


def _trim(histogram: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """Exponent of the first count, and the counts without empty ends."""
    used = [place for place, count in enumerate(histogram) if count]
    if not used:
        return 0, ()
    return LOWEST_EXPONENT + used[0], tuple(histogram[used[0] : used[-1] + 1])


def _findings(audit: TrainAudit) -> Iterator[Finding]:
    for name, largest in audit.overflowing.items():
        yield Finding(
            Severity.WARNING,
            "activation-overflow",
            name,
            f"its output reaches {largest:.4g}, FP16 ends at {MAX:g}",
            "run it in FP32",
        )
    window = audit.window
    if not window.is_open:
        yield Finding(
            Severity.WARNING,
            "no-loss-scale",
            "",
            f"no loss scale rescues all gradients: they need 2^{window.lowest}, and the largest overflows "
            f"beyond 2^{window.highest}",
            "run the modules whose range of safe scales lies apart from the others' in FP32",
        )
    for fact in audit.gradients:
        if fact.window is None and fact.kind == "parameter":
            yield Finding(
                Severity.NOTE,
                "no-gradient",
                fact.name,
                f"no gradient reaches it in {plural(audit.batches, 'batch')}",
                "freeze it (requires_grad=False), or look at more batches",
            )
        elif window.is_open and fact.window is not None and fact.window.lowest > window.recommended:
            yield Finding(
                Severity.NOTE,
                "gradients-left",
                fact.name,
                f"{format_share(fact.share_left)} of its gradients vanish even at 2^{window.recommended}: it "
                f"needs 2^{fact.window.lowest}",
                "run it in FP32 if it matters",
            )
