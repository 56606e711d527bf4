"""Every transfer function by operator; what is not here is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fp16conv.evidence.abstract.call import Transfer
from fp16conv.evidence.abstract.elementwise import ELEMENTWISE
from fp16conv.evidence.abstract.functions import FUNCTIONS
from fp16conv.evidence.abstract.linear import LINEAR
from fp16conv.evidence.abstract.movement import MOVEMENT
from fp16conv.evidence.abstract.norm import NORMS
from fp16conv.evidence.abstract.quantization import QUANTIZATION
from fp16conv.evidence.abstract.recurrent import RECURRENT
from fp16conv.evidence.abstract.reduction import REDUCTIONS

__all__ = ["TRANSFERS"]

TRANSFERS: Final[Mapping[str, Transfer]] = {
    **ELEMENTWISE,
    **FUNCTIONS,
    **LINEAR,
    **MOVEMENT,
    **NORMS,
    **QUANTIZATION,
    **RECURRENT,
    **REDUCTIONS,
}
