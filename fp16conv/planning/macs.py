"""Multiply-accumulates per operator, from concrete shapes, and which operators multiply at all.

Counted are the operators that run on Tensor Cores: matrix products, convolutions, recurrent nets,
attention, Einsum. Integer and QLinear products are left out: precision plans do not touch them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final, TypeVar

from fp16conv.graph import ModelGraph, Op, ScopeKind
from fp16conv.planning.aten import ATEN_PRODUCTS

__all__ = [
    "DEFAULT_DIM",
    "PRODUCTS",
    "Shape",
    "ShapeTable",
    "executions",
    "integer",
    "macs",
    "transpose_last",
]

Shape = tuple[int, ...]
_T = TypeVar("_T")

DEFAULT_DIM = 128
"""Stand-in for an unknown dimension other than the first: a typical sequence length or image side."""


@dataclass(frozen=True, slots=True)
class ShapeTable:
    """Concrete shapes: observed ones first, else the declared shape with defaults filled in.

    An unknown first dimension counts as 1 (a batch), any other one as `DEFAULT_DIM`.
    """

    graph: ModelGraph
    observed: Mapping[int, Shape]
    _sizes: dict[int, int] = field(default_factory=dict, repr=False)

    def known(self, value: int | None) -> Shape | None:
        """Shape of a value, None where not even its rank is known."""
        if value is None:
            return None
        shape = self.observed.get(value)
        if shape is not None:
            return tuple(int(dim) for dim in shape)
        declared = self.graph.values[value].shape
        if declared is None:
            tensor = self.graph.constants.get(value)
            return None if tensor is None else (tensor.size,)
        return tuple(
            dim if isinstance(dim, int) and dim >= 0 else (1 if axis == 0 else DEFAULT_DIM)
            for axis, dim in enumerate(declared)
        )

    def size(self, value: int | None) -> int:
        """Number of elements up to `MOST`; `DEFAULT_DIM` for an unknown rank, 0 for an absent value."""
        if value is None:
            return 0
        size = self._sizes.get(value)
        if size is None:
            shape = self.known(value)
            size = self._sizes[value] = DEFAULT_DIM if shape is None else min(prod(shape), MOST)
        return size

    def input(self, op: Op, slot: int) -> Shape | None:
        return self.known(op.inputs[slot]) if slot < len(op.inputs) else None

    def output(self, op: Op, slot: int = 0) -> Shape | None:
        return self.known(op.outputs[slot]) if slot < len(op.outputs) else None


def executions(graph: ModelGraph) -> tuple[int, ...]:
    """How often each scope runs per model run: a function body once per call.

    Bodies of Loop and Scan count once (their trip count is not known), both branches of an If too.

    Returns:
        One count per scope id.
    """
    counts: dict[int, int] = {}
    calls: dict[int, list[int]] = {}
    for op in graph.ops:
        if op.callee is not None:
            calls.setdefault(op.callee, []).append(op.scope)

    def sources(scope: int) -> list[int]:
        entry = graph.scopes[scope]
        if entry.kind is ScopeKind.FUNCTION:
            return calls.get(scope, [])
        return [] if entry.parent is None else [entry.parent]

    for start in range(len(graph.scopes)):
        stack, open_scopes = [start], {start}
        while stack:  # iterative: nesting is as deep as the model says
            scope = stack[-1]
            missing = [s for s in sources(scope) if s not in counts and s not in open_scopes]
            if missing:
                stack.append(missing[0])
                open_scopes.add(missing[0])
                continue
            if scope not in counts:
                if graph.scopes[scope].kind is ScopeKind.MAIN:
                    counts[scope] = 1
                else:
                    counts[scope] = sum(counts.get(s, 0) for s in sources(scope))
            open_scopes.discard(scope)
            stack.pop()
    return tuple(counts[scope] for scope in range(len(graph.scopes)))


MOST = 10**18
"""Where counts end: sizes in a file can be any number, and times are floats."""


def macs(graph: ModelGraph, shapes: Mapping[int, Shape]) -> dict[int, int]:
    """Count multiply-accumulates per run of the model.

    Args:
        graph: the model.
        shapes: value id -> concrete shape, as far as known (see `ShapeTable` for the rest).

    Returns:
        Operator id -> MACs, for operators with FLOAT type variables that multiply and accumulate.
    """
    table, runs = ShapeTable(graph, shapes), executions(graph)
    counts: dict[int, int] = {}
    for op in graph.ops:
        kind = PRODUCTS.get((op.domain, op.op_type))
        if kind is None or not op.typevars or not op.inputs or not op.outputs:
            continue
        try:
            count = _COUNTS[kind](op, table)
        except (IndexError, ValueError):  # shapes that fit no run
            continue
        if count > 0:
            counts[op.id] = min(count * max(runs[op.scope], 1), MOST)
    return counts


def integer(op: Op, name: str, default: int) -> int:
    """An attribute as an integer, `default` where it is none."""
    value = op.attrs.get(name, default)
    return int(value) if isinstance(value, int | float) else default


def transpose_last(shape: tuple[_T, ...]) -> tuple[_T, ...]:
    """Swap the last two dimensions; a vector stays as it is.

    Example:
        >>> transpose_last((2, 3, 4)), transpose_last((5,))
        ((2, 4, 3), (5,))
    """
    return (*shape[:-2], shape[-1], shape[-2]) if len(shape) > 1 else shape


def _matmul(op: Op, table: ShapeTable) -> int:
    a, b, out = table.input(op, 0), table.input(op, 1), table.output(op)
    if a is not None and integer(op, "transA", 0):
        a = transpose_last(a)
    if b is not None and integer(op, "transB", 0):
        b = transpose_last(b)
    inner = a[-1] if a else (b[-2] if b and len(b) > 1 else (b[0] if b else None))
    if inner is None:
        return 0
    if a is not None and b is not None:
        rows = a[-2] if len(a) > 1 else 1
        columns = b[-1] if len(b) > 1 else 1
        left, right = a[:-2], b[:-2]
        rank = max(len(left), len(right))
        left, right = (1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right
        batch = prod(y if x == 1 else x for x, y in zip(left, right, strict=True))
        return batch * rows * inner * columns
    return inner * prod(out) if out is not None else 0


def _weight_only(op: Op, table: ShapeTable) -> int:
    return table.size(op.inputs[0]) * integer(op, "N", 0)


def _conv(op: Op, table: ShapeTable) -> int:
    w, out = table.input(op, 1), table.output(op)
    if w is None or len(w) < 3:
        return 0
    if out is None:
        x = table.input(op, 0)
        if x is None:
            return 0
        strides = op.attrs.get("strides")
        steps = tuple(strides) if isinstance(strides, tuple | list) else (1,) * (len(x) - 2)
        out = (x[0], w[0], *(-(-dim // max(int(s), 1)) for dim, s in zip(x[2:], steps, strict=False)))
    return prod(out) * prod(w[1:])


def _conv_transpose(op: Op, table: ShapeTable) -> int:
    x, w = table.input(op, 0), table.input(op, 1)
    return 0 if x is None or w is None else prod(x) * prod(w[1:])


def _recurrent(op: Op, table: ShapeTable) -> int:
    x, w, r = table.input(op, 0), table.input(op, 1), table.input(op, 2)
    if x is None or w is None or r is None or len(x) < 2:
        return 0
    return x[0] * x[1] * (prod(w) + prod(r))


def _attend(op: Op, table: ShapeTable) -> int:
    """Two products: query x key and weights x value, over all heads."""
    q, k, v = (table.input(op, slot) for slot in range(3))
    if q is None or len(q) < 3:
        return 0
    batch = q[0]
    rows = q[-2]
    width = q[-1] * (q[1] if len(q) == 4 else 1)
    columns = rows if k is None or len(k) < 3 else k[-2]
    present = table.output(op, 1)
    if present is not None and len(present) == 4:  # the keys kept from earlier steps
        columns = max(columns, present[-2])
    out = table.output(op)
    value_width = width
    if out is not None and len(out) >= 3:
        value_width = out[-1] * (out[1] if len(out) == 4 else 1)
    elif v is not None and len(v) == 3:
        value_width = v[-1]
    return batch * rows * columns * (width + value_width)


def _packed_attention(op: Op, table: ShapeTable) -> int:
    """The contrib operator that also projects its input."""
    x, w = table.input(op, 0), table.input(op, 1)
    if x is None or w is None or len(x) != 3 or len(w) != 2:
        return 0
    return x[0] * x[1] * prod(w) + 2 * x[0] * x[1] * x[1] * (w[1] // 3)


def _einsum(op: Op, table: ShapeTable) -> int:
    """Product over every index: exact for two operands, an upper bound for more."""
    equation = op.attrs.get("equation")
    if not isinstance(equation, str) or len(op.inputs) < 2:
        return 0
    terms = equation.replace(" ", "").split("->")[0].split(",")
    sizes: dict[str, int] = {}
    broadcast: Shape = ()
    for slot, term in enumerate(terms):
        shape = table.input(op, slot)
        if shape is None:
            return 0
        head, dots, tail = term.partition("...")
        for label, dim in zip(head, shape, strict=False):
            sizes[label] = max(sizes.get(label, 1), dim)
        if dots:
            for label, dim in zip(reversed(tail), reversed(shape), strict=False):
                sizes[label] = max(sizes.get(label, 1), dim)
            middle = shape[len(head) : len(shape) - len(tail)]
            broadcast = middle if prod(middle) > prod(broadcast) else broadcast
    return prod(sizes.values()) * prod(broadcast)


def _linear(op: Op, table: ShapeTable) -> int:
    w, out = table.input(op, 1), table.output(op)
    return prod(out) * w[-1] if w and out is not None else 0


def _added(op: Op, table: ShapeTable) -> int:
    """A product that is added to the first input."""
    a, b, out = table.input(op, 1), table.input(op, 2), table.output(op)
    if not a or not b:
        return 0
    batches = a[0] if len(a) == 3 and (out is None or len(out) == 2) else 1  # addbmm sums over the batch
    return batches * prod(out) * a[-1] if out is not None else 0


def _aten_conv(op: Op, table: ShapeTable) -> int:
    return _conv_transpose(op, table) if op.attrs.get("transposed") else _conv(op, table)


def _aten_recurrent(op: Op, table: ShapeTable) -> int:
    """Every step multiplies each weight matrix once; states have three dimensions, biases one."""
    x = table.input(op, 0)
    weights = [table.input(op, slot) for slot in range(1, len(op.inputs)) if op.inputs[slot] is not None]
    return prod(x[:-1]) * sum(prod(w) for w in weights if w is not None and len(w) == 2) if x else 0


def _aten_cell(op: Op, table: ShapeTable) -> int:
    x = table.input(op, 0)
    known = [table.input(op, slot) for slot in range(1, len(op.inputs))]
    weights = [w for w in known if w is not None and len(w) == 2][-2:]
    return x[0] * sum(prod(w) for w in weights) if x else 0


def _aten_einsum(op: Op, table: ShapeTable) -> int:
    return _einsum(replace(op, inputs=tuple(v for v in op.inputs if v is not None)), table)


_MS = "com.microsoft"
PRODUCTS: Final[Mapping[tuple[str, str], str]] = {
    **{("", name): "matmul" for name in ("MatMul", "Gemm")},
    **{
        (_MS, name): "matmul"
        for name in ("FusedMatMul", "FusedGemm", "FusedMatMulActivation", "GemmFastGelu", "TransposeMatMul")
    },
    **{(_MS, name): "weight_only" for name in ("MatMulNBits", "MatMulBnb4", "MatMulFpQ4")},
    **{("", name): "conv" for name in ("Conv", "DeformConv")},
    **{(_MS, name): "conv" for name in ("FusedConv", "NhwcConv", "NhwcFusedConv")},
    ("com.microsoft.nchwc", "Conv"): "conv",
    ("", "ConvTranspose"): "conv_transpose",
    (_MS, "ConvTransposeWithDynamicPads"): "conv_transpose",
    **{("", name): "recurrent" for name in ("LSTM", "GRU", "RNN")},
    ("", "Attention"): "attend",
    **{
        (_MS, name): "attend"
        for name in (
            "DecoderMaskedMultiHeadAttention",
            "GroupQueryAttention",
            "MultiHeadAttention",
            "SparseAttention",
        )
    },
    (_MS, "Attention"): "packed_attention",
    ("", "Einsum"): "einsum",
    **{("aten", name): f"aten_{kind}" for name, kind in ATEN_PRODUCTS.items()},
}
"""Domain and type of operators that multiply and accumulate -> kind: where the operands stand."""

_COUNTS: Final[Mapping[str, Callable[[Op, ShapeTable], int]]] = {
    "matmul": _matmul,
    "weight_only": _weight_only,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "recurrent": _recurrent,
    "attend": _attend,
    "packed_attention": _packed_attention,
    "einsum": _einsum,
    "aten_linear": _linear,
    "aten_matmul": _matmul,
    "aten_added": _added,
    "aten_conv": _aten_conv,
    "aten_conv_transpose": _conv_transpose,
    "aten_recurrent": _aten_recurrent,
    "aten_cell": _aten_cell,
    "aten_attend": _attend,
    "aten_einsum": _aten_einsum,
}
