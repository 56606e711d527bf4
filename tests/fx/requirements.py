"""What every converted net must meet, built here or by a package."""

from __future__ import annotations

from fp16conv import fx

ERROR = 0.01
"""Largest relative L2 error on PyTorch's half kernels."""
SHARE = 0.98
"""Least share of the multiply-accumulates in FP16."""


def require_good(conversion: fx.Conversion) -> None:
    """The error is small and not by luck zero; the products run in FP16."""
    assert conversion.result is not None
    assert conversion.result.ok
    assert conversion.result.relative_l2 is not None
    assert 0 < conversion.result.relative_l2 <= ERROR
    assert conversion.plan.predicted["macs"] > 0
    assert conversion.plan.predicted["macs_fp16_share"] >= SHARE
