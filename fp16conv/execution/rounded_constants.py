"""Constants as FP16 operators read them: rounded once, when the emulated model is built.

Shared by both plan emulators, so that they cannot disagree.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fp16conv.execution.rounding import Rounder
from fp16conv.execution.twins import Twins
from fp16conv.graph import Use
from fp16conv.rulebook.folding import stand_ins

__all__ = ["replace_folded", "replace_rounded"]


def replace_folded(twins: Twins, rounder: Rounder, use: Use, twin: ir.Value) -> ir.Value:
    """Put what a folded BatchNormalization reads at `use` beside the constant it stands for."""
    assert use.op is not None
    arrays = stand_ins(twins.graph, twins.graph.ops[use.op], rounder.numbers)
    return twins.replace_constant(twin, rounder.fresh(twin.name, "folded"), lambda: arrays[use.slot])


def replace_rounded(
    twins: Twins, rounder: Rounder, index: int, twin: ir.Value, *, saturated: bool, exponent: int
) -> ir.Value:
    """Put the FP16 numbers of constant `index`, scaled by 2^-exponent, beside it."""
    tensor = twins.graph.constants[index]
    return twins.replace_constant(
        twin,
        rounder.fresh(twin.name, "rounded"),
        lambda: rounder.numbers(np.asarray(tensor.numpy()), saturated=saturated, exponent=exponent),
    )
