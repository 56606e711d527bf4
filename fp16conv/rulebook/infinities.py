"""Which constants act as infinity, which guard a division, and which values carry a mask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fp16conv.graph import ModelGraph, Op, Use
from fp16conv.half import MAX, SMALLEST_NORMAL
from fp16conv.rulebook.families import family, operands
from fp16conv.rulebook.numbers import ConstantFigures, ConstantReader
from fp16conv.rulebook.schema import Role

__all__ = ["SELECTIONS", "MaskFlow", "classify_constant", "trace_masks"]

HUGE: Final = 1e30
"""No activation or weight is this large: a constant from here on stands for infinity.

The largest FP32 number is 3.4e38; exporters write finfo.min, 1e30, 1e32 or infinity itself."""

MOVES: Final = frozenset(
    {
        "Cast",
        "Concat",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Pad",
        "Reshape",
    }
    | {"Slice", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze", "ConstantOfShape"}
)
SINKS: Final = frozenset(
    {"Softmax", "LogSoftmax", "Exp", "ReduceMax", "ReduceMin", "ReduceLogSumExp", "Max", "Min", "MaxPool"}
    | {"ArgMax", "ArgMin", "TopK", "Clip", "Sigmoid", "Tanh", "Hardmax", "Greater", "Less", "GreaterOrEqual"}
    | {"LessOrEqual", "com.microsoft::BiasSoftmax"}
)
PASSES: Final = MOVES | frozenset({"Where", "Add", "Sub", "Mul", "Div", "ScatterElements", "ScatterND"})
SELECTIONS: Final = frozenset({"Where", "Clip", "Max", "Min", "Pad"})
GUARDED: Final = frozenset({"Div", "Sqrt", "Log", "Pow", "Reciprocal", "Rsqrt"})
LIGHT: Final = MOVES | frozenset({"Sqrt", "Mul", "Max", "Clip", "Abs", "ReduceSum", "ReduceMean"})
NEARLY: Final = MAX / 2
"""A fill from here on that acts as infinity (-65504 is FP16's own) is taken out of ranges: it never grows."""
DEPTH: Final = 6
"""How many operators a constant is followed for: exporters put at most a few reshapes in between."""

_ATTENTION_BIAS: Final = frozenset(
    {
        "Attention",
        "com.microsoft::Attention",
        "com.microsoft::MultiHeadAttention",
        "com.microsoft::PackedAttention",
    }
    | {"com.microsoft::DecoderMaskedMultiHeadAttention", "com.microsoft::PackedMultiHeadAttention"}
)
_BOUND_SLOTS: Final = {"Clip": (1, 2), "Pad": (2,), "Max": None, "Min": None}


def classify_constant(graph: ModelGraph, reader: ConstantReader, value: int, use: Use) -> Role:
    """Tell what a constant does at one use.

    Args:
        graph: the model.
        reader: figures of constants.
        value: a constant whose numbers are known.
        use: where it is read.

    Returns:
        INFINITY and the mask roles only for constants beyond 65504; EPSILON only below 2^-14.
    """
    figures = reader.figures(value)
    if figures is None or use.op is None:
        return Role.NUMBER
    op = graph.ops[use.op]
    if figures.max_finite_abs > MAX or figures.has_infinity:
        return _large_role(graph, reader, figures, op, use)
    if figures.min_abs < SMALLEST_NORMAL and figures.share_tiny == 1.0 and _is_guard(graph, op, use):
        return Role.EPSILON
    return Role.NUMBER


def _large_role(
    graph: ModelGraph, reader: ConstantReader, figures: ConstantFigures, op: Op, use: Use, depth: int = DEPTH
) -> Role:
    key = family(op)
    if key in _BOUND_SLOTS:
        slots = _BOUND_SLOTS[key]
        if slots is None or use.slot in slots:
            return Role.INFINITY
    if key in _ATTENTION_BIAS:
        return Role.INFINITY
    if key in ("Where", "ScatterElements", "ScatterND"):
        fills = figures.max_finite_abs >= HUGE or figures.has_infinity
        return Role.INFINITY if fills or _reaches(graph, op, SINKS) else Role.NUMBER
    if key in ("Add", "Sub", "Sum"):
        return Role.ADDITIVE_MASK if _is_mask(figures) and _reaches(graph, op, SINKS) else Role.NUMBER
    if key in ("Mul", "Div"):
        other = [v for slot, v in enumerate(op.inputs) if slot != use.slot]
        return Role.MASK_SCALE if figures.size == 1 and _is_binary(graph, other[0]) else Role.NUMBER
    if key in MOVES and depth:
        roles = {
            _large_role(graph, reader, figures, graph.ops[u.op], u, depth - 1)
            for out in op.outputs
            if out is not None
            for u in graph.consumers(out)
            if u.op is not None
        }
        return roles.pop() if len(roles) == 1 else Role.NUMBER
    if figures.has_infinity and figures.max_finite_abs <= MAX:
        return Role.INFINITY
    return Role.NUMBER


def _is_mask(figures: ConstantFigures) -> bool:
    """An additive mask lies on one side of zero and touches it, or is one number."""
    one_sided = figures.hi <= 0 or figures.lo >= 0
    return one_sided and (figures.size == 1 or 0.0 in (figures.lo, figures.hi))


def _is_binary(graph: ModelGraph, value: int | None, depth: int = DEPTH) -> bool:
    """Whether a value is made of zeros and ones: from booleans or comparisons, or 1 minus that."""
    producer = graph.producer(value)
    if producer is None or not depth:
        return False
    inputs = operands(producer)
    key, first = family(producer), inputs[0] if inputs else None
    if key == "Cast" and first is not None:
        return str(graph.values[first].dtype) == "bool" or graph.values[first].dtype.is_integer
    if key == "Sub" and first is not None:
        array = graph.array(first)
        is_one = array is not None and array.size == 1 and float(array.reshape(-1)[0]) == 1.0
        second = inputs[1]
        is_input = (
            second is not None and graph.producer(second) is None and not graph.values[second].is_constant
        )
        return is_one and (is_input or _is_binary(graph, second, depth - 1))
    return key in MOVES and _is_binary(graph, first, depth - 1)


def _is_guard(graph: ModelGraph, op: Op, use: Use) -> bool:
    """Whether a tiny constant keeps a denominator, root or logarithm away from zero."""
    key = family(op)
    if key == "Clip":
        return use.slot == 1 and _reaches(graph, op, GUARDED, LIGHT)
    if key in ("Add", "Max", "Sum", "Where"):
        return _reaches(graph, op, GUARDED, LIGHT)
    return False


def _reaches(
    graph: ModelGraph, op: Op, goals: frozenset[str], through: frozenset[str] = PASSES, depth: int = DEPTH
) -> bool:
    """Whether some path of at most `depth` operators leads from the operator's results to a goal."""
    front, seen = [op], {op.id}
    for _ in range(depth):
        following = []
        for current in front:
            for output in current.outputs:
                for user in graph.users(output) if output is not None else ():
                    if family(user) in goals:
                        return True
                    if family(user) in through and user.id not in seen:
                        seen.add(user.id)
                        following.append(user)
        front = following
    return False


@dataclass(frozen=True, slots=True)
class MaskFlow:
    """Values that carry a constant which acts as infinity: their extreme on that side is the mask's.

    Args:
        low, high: ids of values whose lower / upper extreme says nothing about the real numbers.
    """

    low: frozenset[int]
    high: frozenset[int]

    def magnitude(self, value: int, lo: float, hi: float) -> float:
        """Largest magnitude of the numbers that are not the mask."""
        if (value in self.low and hi < -MAX) or (value in self.high and lo > MAX):
            return 0.0  # nothing but mask
        sides = [abs(lo)] * (value not in self.low) + [abs(hi)] * (value not in self.high)
        return max(sides, default=0.0)


def trace_masks(graph: ModelGraph, roles: Mapping[tuple[int, Use], Role], reader: ConstantReader) -> MaskFlow:
    """Follow constants in the role of infinity through selections, moves and damping factors.

    Args:
        graph: the model.
        roles: role per constant and use.
        reader: figures of constants.
    """
    sides: dict[str, set[int]] = {"low": set(), "high": set()}
    for (value, use), role in roles.items():
        if role is Role.INFINITY and use.op is not None:
            figures = reader.figures(value)
            assert figures is not None
            bound = family(graph.ops[use.op]) in ("Clip", "Max", "Min")
            for side, large in (
                ("low", figures.lo < -MAX or figures.hi <= -NEARLY),
                ("high", figures.hi > MAX or figures.lo >= NEARLY),
            ):
                if large or (figures.has_infinity and not bound):
                    sides[side].add(value)
                    if not bound:
                        _spread(graph, graph.ops[use.op], sides[side])
    return MaskFlow(frozenset(sides["low"]), frozenset(sides["high"]))


def _spread(graph: ModelGraph, op: Op, found: set[int]) -> None:
    front = [op]
    while front:
        current = front.pop()
        for output in current.outputs:
            if output is None or output in found:
                continue
            found.add(output)
            front += [
                u
                for u in graph.users(output)
                if family(u) in MOVES or family(u) == "Where" or _damps(graph, u, output)
            ]


def _damps(graph: ModelGraph, op: Op, value: int) -> bool:
    """Whether an operator scales the value by a constant factor of at most one (and above zero)."""
    key = family(op)
    if key not in ("Mul", "Div") or len(op.inputs) != 2 or (key == "Div" and op.inputs[0] != value):
        return False
    other = op.inputs[1] if op.inputs[0] == value else op.inputs[0]
    array = graph.array(other)
    if array is None or array.size != 1:
        return False
    factor = float(array.reshape(-1)[0])
    return 0 < factor <= 1 if key == "Mul" else factor >= 1
