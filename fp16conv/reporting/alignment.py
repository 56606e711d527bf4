"""Sizes that Tensor Cores multiply, as report data. Imports the standard library only."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AlignmentSummary", "UnalignedProduct"]


@dataclass(frozen=True, slots=True)
class UnalignedProduct:
    """A product with sizes that are no multiples.

    Args:
        op: label of the operator.
        sizes: name and size of those dimensions.
        macs_share: share of the model's MACs, None where unknown.
    """

    op: str
    op_type: str
    sizes: tuple[tuple[str, int], ...]
    macs_share: float | None


@dataclass(frozen=True, slots=True)
class AlignmentSummary:
    """Products in FP16, by whether their sizes fit Tensor Cores.

    Args:
        multiple: what sizes should be multiples of on the device.
        aligned: products all of whose sizes are; unaligned: with one that is not.
        open: products with a size that the model leaves open, the rest of them fitting.
        macs_share: share of the MACs of aligned and unaligned products that is in aligned ones, None where
            unknown.
        largest: unaligned products with the most MACs, in this order.
    """

    multiple: int
    aligned: int
    unaligned: int
    open: int
    macs_share: float | None
    largest: tuple[UnalignedProduct, ...] = ()
