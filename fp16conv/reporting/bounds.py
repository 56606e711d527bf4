"""What an analysis knows of value ranges, condensed into report data. Imports the standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = ["BoundsSummary"]


@dataclass(frozen=True, slots=True)
class BoundsSummary:
    """How far operators are known to stay in the range of FP16, if all of them ran in it.

    Args:
        proven_safe: operators whose values stay in range for all inputs in the declared ranges.
        observed_safe: stay in range on the data; observed_unsafe: leave it, or hold a constant that does.
        unknown: neither proven nor observed.
        plan_operators: operators with FP16 in the plan; plan_proven: those of them that are proven safe.
        plan_macs_share: share of the plan's FP16 MACs in proven operators, None where unknown.
    """

    derived: ClassVar[tuple[str, ...]] = ("plan_share",)

    proven_safe: int
    observed_safe: int
    observed_unsafe: int
    unknown: int
    plan_operators: int
    plan_proven: int
    plan_macs_share: float | None = None

    @property
    def plan_share(self) -> float | None:
        """Share of the FP16 operators of the plan that are proven safe without data."""
        return self.plan_proven / self.plan_operators if self.plan_operators else None
