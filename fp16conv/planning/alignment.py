"""Sizes of products that Tensor Cores care about: are they multiples of what the device loads at once?

Judged are sizes that the model itself fixes. Left out is what has no such sizes, or nothing to pad:
Einsum (its layout is the runtime's choice), products with a vector, depthwise convolutions (one channel
per group), and the sequence inside fused attention, which kernels mask by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fp16conv.graph import DataType, ModelGraph, Op
from fp16conv.planning.costs import CostModel, main_typevar
from fp16conv.planning.macs import PRODUCTS, integer, transpose_last

__all__ = ["Product", "products"]

Size = tuple[str, int | None]  # name, None where the model leaves it open
_Shape = tuple[int | None, ...]
_HALF_BYTES = 2


@dataclass(frozen=True, slots=True)
class Product:
    """An operator that multiplies in FP16.

    Args:
        op: operator id.
        sizes: name and size of each dimension judged, None where the model leaves it open.
        macs: multiply-accumulates per run of the model.
        multiple: what sizes should be multiples of, in elements.
    """

    op: int
    sizes: tuple[Size, ...]
    macs: int
    multiple: int

    @property
    def unaligned(self) -> tuple[tuple[str, int], ...]:
        """The sizes that are no multiples."""
        return tuple((name, size) for name, size in self.sizes if size is not None and size % self.multiple)

    @property
    def is_open(self) -> bool:
        """Whether nothing is known against it, but not all of its sizes are known."""
        return not self.unaligned and any(size is None for _, size in self.sizes)


def products(graph: ModelGraph, dtypes: Mapping[int, DataType], costs: CostModel) -> tuple[Product, ...]:
    """List the operators that multiply in FP16, with the sizes of their matrices.

    Args:
        graph: the model.
        dtypes: FLOAT or FLOAT16 per type variable id, as a plan has them.
        costs: whose device says what sizes should be multiples of; nothing is listed where it does not.

    Returns:
        One entry per operator that has such sizes (see the module), in file order.
    """
    if costs.device.alignment_bytes is None:
        return ()
    multiple = max(costs.device.alignment_bytes // _HALF_BYTES, 1)
    found = []
    for op in graph.ops:
        rule = _SIZES.get(PRODUCTS.get((op.domain, op.op_type), ""))
        main = None if rule is None else main_typevar(graph, op)
        if rule is None or main is None or dtypes.get(main.id) is not DataType.FLOAT16:
            continue
        try:
            sizes = rule(op, _Operands(graph, op))
        except IndexError:  # shapes that fit no run
            continue
        if sizes:
            found.append(Product(op.id, tuple(dict.fromkeys(sizes)), costs.macs.get(op.id, 0), multiple))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Operands:
    """Shapes of an operator's inputs as the model declares them."""

    graph: ModelGraph
    op: Op

    def shape(self, slot: int) -> _Shape | None:
        """Sizes, None for open ones; None where not even the rank is known."""
        value = self.op.inputs[slot] if slot < len(self.op.inputs) else None
        declared = None if value is None else self.graph.values[value].shape
        if declared is None:
            return None
        return tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in declared)


def _gemm(a: _Shape | None, b: _Shape | None) -> list[Size]:
    if (a is not None and len(a) < 2) or (b is not None and len(b) < 2) or (a is None and b is None):
        return []
    inner = None if a is None else a[-1]
    if inner is None and b is not None:
        inner = b[-2]
    columns = None if b is None else b[-1]
    return [] if 1 in (inner, columns) else [("K", inner), ("N", columns)]


def _matmul(op: Op, operands: _Operands) -> list[Size]:
    a, b = operands.shape(0), operands.shape(1)
    if a is not None and integer(op, "transA", 0):
        a = transpose_last(a)
    if b is not None and integer(op, "transB", 0):
        b = transpose_last(b)
    return _gemm(a, b)


def _linear(op: Op, operands: _Operands) -> list[Size]:
    weight = operands.shape(1)
    return [] if weight is None else _gemm(None, transpose_last(weight))


def _added(op: Op, operands: _Operands) -> list[Size]:
    return _gemm(operands.shape(1), operands.shape(2))


def _weight_only(op: Op, operands: _Operands) -> list[Size]:
    return [(name, integer(op, name, 0) or None) for name in ("K", "N")]


def _channels(op: Op, inputs: int | None, outputs: int | None) -> list[Size]:
    """Channels per group; one input channel per group is a depthwise convolution."""
    grouped = integer(op, "group", integer(op, "groups", 1)) > 1
    if grouped and 1 in (inputs, outputs):
        return []
    return [("input channels", inputs), ("output channels", outputs)]


def _conv(op: Op, operands: _Operands) -> list[Size]:
    weight = operands.shape(1)
    if op.attrs.get("transposed"):
        return _conv_transpose(op, operands)
    return [] if weight is None else _channels(op, weight[1], _per_group(op, weight[0]))


def _conv_transpose(op: Op, operands: _Operands) -> list[Size]:
    weight = operands.shape(1)
    return [] if weight is None else _channels(op, _per_group(op, weight[0]), weight[1])


def _per_group(op: Op, channels: int | None) -> int | None:
    groups = integer(op, "group", integer(op, "groups", 1))
    return None if channels is None else channels // max(groups, 1)


def _recurrent(op: Op, operands: _Operands) -> list[Size]:
    """Columns of the weights of the input and of the state; their rows are gates of the same states."""
    x, state = operands.shape(1), operands.shape(2)
    return [
        ("input size", None if x is None else x[-1]),
        ("hidden size", None if state is None else state[-1]),
    ]


def _aten_recurrent(op: Op, operands: _Operands) -> list[Size]:
    """Weights are the matrices behind the states: of the input first, then of states."""
    states = 2 if op.op_type.startswith("lstm") else 1
    shapes = [operands.shape(slot) for slot in range(1 + states, len(op.inputs))]
    weights = [w for w in shapes if w is not None and len(w) == 2]
    return [("hidden size" if at else "input size", w[-1]) for at, w in enumerate(weights)]


def _attend(op: Op, operands: _Operands) -> list[Size]:
    """The size of a head: what query and key are multiplied along, and the columns of the values."""
    heads = integer(op, "num_heads", integer(op, "q_num_heads", 0))
    shared = integer(op, "kv_num_heads", heads)
    sizes: list[Size] = []
    for slot, count, name in ((0, heads, "head size"), (2, shared, "value head size")):
        shape = operands.shape(slot)
        if shape is None or len(shape) < 3:
            continue
        width = shape[-1]
        if len(shape) == 3 and count:
            width = None if width is None else width // count
        if not sizes or width != sizes[0][1]:
            sizes.append((name, width))
    return sizes


def _packed_attention(op: Op, operands: _Operands) -> list[Size]:
    weight = operands.shape(1)
    sizes = _gemm(None, weight)
    heads = integer(op, "num_heads", 0)
    if (
        sizes
        and heads
        and weight is not None
        and weight[1] is not None
        and "qkv_hidden_sizes" not in op.attrs
    ):
        sizes.append(("head size", weight[1] // (3 * heads)))
    return sizes


_SIZES: Final[Mapping[str, Callable[[Op, _Operands], list[Size]]]] = {
    "matmul": _matmul,
    "weight_only": _weight_only,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "recurrent": _recurrent,
    "attend": _attend,
    "packed_attention": _packed_attention,
    "aten_linear": _linear,
    "aten_matmul": _matmul,
    "aten_added": _added,
    "aten_conv": _conv,
    "aten_conv_transpose": _conv_transpose,
    "aten_recurrent": _aten_recurrent,
    "aten_cell": _aten_recurrent,
    "aten_attend": _attend,
}
