"""Mixed-precision training of PyTorch modules: FP16 compute, FP32 master weights, and an audit of gradients.

Needs torch (`pip install 'fp16conv[torch]'`).
"""

from __future__ import annotations

from fp16conv.training.audit import TrainAudit, audit
from fp16conv.training.gradients import GradientFact, ScaleWindow
from fp16conv.training.prepare import PreparedModule, plan_training, prepare

__all__ = [
    "GradientFact",
    "PreparedModule",
    "ScaleWindow",
    "TrainAudit",
    "audit",
    "plan_training",
    "prepare",
]
