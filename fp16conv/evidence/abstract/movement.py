"""Operators that move, select, repeat or make up numbers, and casts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from fp16conv.evidence.abstract.call import Call, Shape, Transfer
from fp16conv.evidence.abstract.domain import (
    TOP,
    UNIT_ROUNDOFF,
    Ball,
    Bounds,
    Dominance,
    hull,
    interval,
    of_array,
    scalar,
    smallest,
    top_of,
    widen,
)
from fp16conv.evidence.abstract.elementwise import round_ball
from fp16conv.graph import DataType

__all__ = ["MOVEMENT"]

MAX_PLACES: Final = (
    2**20
)  # along an axis with bounds of their own; forty Concats of a value with itself have 2^40
ZERO: Final = interval(0.0, 0.0, integral=True)
_FLOATING: Final = (DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16, DataType.DOUBLE)


def _plain(x: Bounds) -> Bounds:
    """The numbers without their place: any rearrangement keeps this."""
    return Bounds(scalar(x.low), scalar(x.high), 0, smallest(x), x.integral, x.nan)


def _same(call: Call) -> Bounds:
    return call.get(0)


def _first(call: Call) -> list[Bounds | None]:
    return [call.get(0), None]


def _rearranged(call: Call) -> Bounds:
    return _plain(call.get(0))


def _cast(call: Call) -> Bounds:
    x, source, target = call.get(0), call.dtypes[0], call.out_dtypes[0]
    if target is DataType.BOOL:
        return top_of(target)
    if target.is_integer:
        if x.nan or not x.finite:
            return top_of(target)
        return Bounds(np.trunc(x.lo), np.trunc(x.hi), x.axis, 1.0, True)
    if target not in _FLOATING:
        return TOP
    unit = UNIT_ROUNDOFF.get(target, 2.0**-24)
    if source is target:
        return x
    lo, hi = widen(x.lo, x.hi, 2 * unit)
    ball = x.ball and replace(x.ball, fuzz=x.ball.fuzz + 2 * unit * x.ball.norm)
    tiny = smallest(x) * (1 - 2 * unit)
    least = 2.0**-14 if target is DataType.FLOAT16 else 1e-37
    return Bounds(lo, hi, x.axis, tiny if tiny > least else 0.0, x.integral, x.nan, ball, x.simplex)


def _reshape(call: Call) -> Bounds:
    return _reshaped(call, call.get(0), call.shape(0), call.out_shape())


def _reshaped(call: Call, x: Bounds, before: Shape | None, after: Shape | None) -> Bounds:
    """Keep what lies along axes whose trailing sizes do not change; split or join the last one of a ball."""
    result = _plain(x)
    if before is None or after is None or not before or not after:
        return result
    if x.axis and _tail(before, x.axis) is not None and _tail(before, x.axis) == _tail(after, x.axis):
        result = replace(result, lo=x.lo, hi=x.hi, axis=x.axis)
    last, new = before[-1], after[-1]
    if x.simplex == -1 and last is not None and last == new:
        result = replace(result, simplex=-1)
    ball = x.ball
    if ball is not None and ball.axis == -1 and new is not None:
        if new == ball.size:
            result = replace(result, ball=ball)
        elif ball.size % new == 0:
            result = replace(result, ball=round_ball(-1, new, ball.norm))
        elif new % ball.size == 0:
            result = replace(result, ball=round_ball(-1, new, ball.norm * math.sqrt(new // ball.size)))
    return result


def _tail(shape: Shape, axis: int) -> Shape | None:
    """The sizes from an axis on, None where one is open."""
    if -axis > len(shape):
        return None
    tail = shape[axis:]
    return None if any(d is None for d in tail) else tail


def _flatten(call: Call) -> Bounds:
    return _reshaped(call, call.get(0), call.shape(0), call.out_shape())


def _transpose(call: Call) -> Bounds:
    x = call.get(0)
    perm, rank = call.attr("perm", None), call.rank(0)
    if perm is None:
        if rank is None:
            return _plain(x)
        perm = tuple(range(rank))[::-1]
    rank = len(perm)
    moved = {old - rank: new - rank for new, old in enumerate(perm)}
    if any(p < 0 for p in perm) or any(-a > rank for a in (x.axis, x.simplex)):
        return _plain(x)
    ball = x.ball and (replace(x.ball, axis=moved[x.ball.axis]) if -x.ball.axis <= rank else None)
    axis, simplex = (moved[a] if a else 0 for a in (x.axis, x.simplex))
    return Bounds(x.lo, x.hi, axis, smallest(x), x.integral, x.nan, ball, simplex)


def _unsqueeze(call: Call) -> Bounds:
    """Axes of length 1 come in; relations whose reduced axes come back are usable again."""
    x, axes, rank = call.get(0), call.ints(1, "axes"), call.rank(0)
    if axes is None or rank is None:
        return _plain(x)
    total = rank + len(axes)
    new = {a - total if a >= 0 else a for a in axes}
    free = [i - total for i in range(total) if i - total not in new]
    moved = {old - rank: free[old] for old in range(rank)}
    tags: list[Dominance] = [
        replace(t, dropped=()) for t in x.tags if t.dropped and set(t.dropped) == new and t.axis
    ]
    return replace(_moved(x, moved), tags=tuple(tags))


def _squeeze(call: Call) -> Bounds:
    x, axes, rank = call.get(0), call.ints(1, "axes"), call.rank(0)
    if rank is None:
        return _plain(x)
    if axes is None:
        shape = call.shape(0)
        assert shape is not None
        if call.has(1) or any(d is None for d in shape):
            return _plain(x)
        axes = tuple(i for i, d in enumerate(shape) if d == 1)
    gone = {a if a >= 0 else a + rank for a in axes}
    kept = [i for i in range(rank) if i not in gone]
    return _moved(x, {old - rank: new - len(kept) for new, old in enumerate(kept)})


def _moved(x: Bounds, axes: Mapping[int, int]) -> Bounds:
    result = _plain(x)
    if x.axis in axes:
        result = replace(result, lo=x.lo, hi=x.hi, axis=axes[x.axis])
    if x.simplex in axes:
        result = replace(result, simplex=axes[x.simplex])
    if x.ball is not None and x.ball.axis in axes:
        result = replace(result, ball=replace(x.ball, axis=axes[x.ball.axis]))
    return result


def _part(x: Bounds, axis: int, indices: slice | None, size: int | None) -> Bounds:
    """Some of the numbers along one axis (negative)."""
    result = replace(x, tiny=smallest(x), tags=(), ceilings=())
    if x.axis == axis:
        if indices is None:
            result = replace(result, lo=scalar(x.low), hi=scalar(x.high), axis=0)
        else:
            lo, hi = x.lo[indices], x.hi[indices]
            if not lo.size:
                return _plain(x)
            result = replace(interval(lo, hi, axis, integral=x.integral, nan=x.nan), tiny=smallest(x),
                             ball=x.ball, simplex=x.simplex)  # fmt: skip
    if x.ball is not None and x.ball.axis == axis:
        ball = None if size is None else round_ball(axis, size, x.ball.norm)
        if ball is not None and indices is not None and size is not None:
            center, scale = (
                v[indices] if np.ndim(v) else np.asarray(v) for v in (x.ball.center, x.ball.scale)
            )
            if np.size(center) in (1, size) and np.size(scale) in (1, size):
                ball = Ball(axis, size, x.ball.radius, center, scale, x.ball.fuzz)
        result = replace(result, ball=ball)
    return result


def _slice(call: Call) -> Bounds:
    x, rank = call.get(0), call.rank(0)
    starts, ends = call.ints(1, "starts"), call.ints(2, "ends")
    axes = call.ints(3, "axes")
    steps = call.ints(4) if call.has(4) else None
    if rank is None or starts is None or ends is None or (axes is None and call.has(3)):
        return _plain(x)
    if call.has(4) and steps is None:
        return _plain(x)
    for i, axis in enumerate(axes if axes is not None else range(len(starts))):
        axis = axis - rank if axis >= 0 else axis
        step = steps[i] if steps else 1
        size = call.dim(0, axis)
        indices = slice(starts[i], ends[i], step) if step > 0 and size is not None else None
        length = None if indices is None or size is None else len(range(*indices.indices(size)))
        x = _part(x, axis, indices, length)
    return x


def _split(call: Call) -> list[Bounds | None]:
    x, rank = call.get(0), call.rank(0)
    axis = int(call.attr("axis", 0))
    number = len(call.op.outputs)
    if rank is None and axis >= 0:
        return [_plain(x)] * number
    axis = axis - (rank or 0) if axis >= 0 else axis
    size = call.dim(0, axis)
    sizes = call.ints(1, "split")
    if sizes is None and not call.has(1) and size is not None:
        chunk = -(-size // int(call.attr("num_outputs", number)))
        sizes = tuple(min(chunk, size - chunk * i) for i in range(number))
    if sizes is None or len(sizes) != number:
        return [_part(x, axis, None, None)] * number
    starts = np.cumsum([0, *sizes])
    return [_part(x, axis, slice(int(s), int(s) + n), n) for s, n in zip(starts[:-1], sizes, strict=True)]


def _gather(call: Call) -> Bounds:
    x, rank = call.get(0), call.rank(0)
    axis = int(call.attr("axis", 0))
    indices_rank = call.rank(1)
    table = call.array(0)
    if table is not None and table.ndim == 2 and axis % 2 == 0 and table.dtype.kind == "f":
        return of_array(table, axis=-1)
    if rank is None or indices_rank is None:
        return _plain(x)
    axis = axis if axis >= 0 else axis + rank
    # Axes behind the gathered one stay; it and those before it move by what the indices add.
    kept = {old - rank: old - rank for old in range(axis + 1, rank)}
    return _moved(replace(x, tags=()), kept)


def _concat(call: Call) -> Bounds:
    items = call.given()
    rank = next((len(s) for s in call.shapes if s is not None), None)
    axis = int(call.attr("axis", 1 if call.op.opset < 4 else 0))
    if rank is None and axis >= 0:
        return _plain(hull(_plain(b) for b in items))
    axis = axis - (rank or 0) if axis >= 0 else axis
    result = replace(hull(replace(b, ball=None) for b in items), simplex=0)
    sizes = [call.dim(i, axis) for i in range(len(call.ins))]
    length = sum(n or 0 for n in sizes)
    if None not in sizes and length <= MAX_PLACES and any(b.axis == axis for b in items):
        lo, hi = (
            np.concatenate(
                [
                    np.broadcast_to(getattr(b if b.axis in (0, axis) else b.flat(), end), (n or 0,))
                    for b, n in zip(items, sizes, strict=True)
                ]
            )
            for end in ("lo", "hi")
        )
        return interval(lo, hi, axis, tiny=result.tiny, integral=result.integral, nan=result.nan)
    if result.axis == axis:
        result = result.flat()
    return result


def _expand(call: Call) -> Bounds:
    """Repeats: a bound along an axis stays, for it had more than one element."""
    return replace(call.get(0), simplex=0, tags=(), ceilings=())


def _tile(call: Call) -> Bounds:
    return _plain(call.get(0))


def _pad(call: Call) -> Bounds:
    x = call.get(0)
    if str(call.attr("mode", "constant")) not in ("constant", "b'constant'"):
        return _plain(x)
    value = call.attr("value", 0.0)
    fill = call.get(2).flat() if call.has(2) else interval(value, value, integral=value == int(value))
    pads = call.ints(1, "pads")
    spatial = False
    if pads is not None and x.axis and call.rank(0) == len(pads) // 2 and not call.has(3):
        rank = len(pads) // 2
        spatial = not pads[x.axis + rank] and not pads[x.axis + 2 * rank]
    return hull((_plain(x) if not spatial else replace(x, ball=None, simplex=0), fill))


def _resize(call: Call) -> Bounds:
    x, mode = call.get(0), str(call.attr("mode", "nearest"))
    channel = 1 - (call.rank(0) or 0)
    y = x if x.axis == channel and call.rank(0) else x.flat()
    y = Bounds(y.lo, y.hi, y.axis, nan=y.nan)
    if str(call.attr("coordinate_transformation_mode", "")) == "tf_crop_and_resize":
        value = call.attr("extrapolation_value", 0.0)
        y = hull((y, interval(value, value)))
    if mode == "nearest":
        return replace(y, tiny=smallest(x) if x.low <= 0 <= x.high else 0.0, integral=x.integral)
    if mode == "cubic":
        # Keys' weights: at most 1 + 4 |a| per axis in absolute sum (a = -0.75, worst case over the phase),
        # and they add up to one; two axes multiply.
        a = abs(float(call.attr("cubic_coeff_a", -0.75)))
        grow = (1 + 4 * a) ** 3
        reach = np.maximum(np.abs(y.lo), np.abs(y.hi)) * grow
        return interval(-reach, reach, y.axis, nan=y.nan or not y.finite)
    slack = call.sum_slack(64)
    lo, hi = widen(y.lo, y.hi, slack)
    return interval(np.minimum(lo, 0.0), np.maximum(hi, 0.0), y.axis, nan=y.nan or not y.finite)


def _grid_sample(call: Call) -> Bounds:
    x, mode = call.get(0), str(call.attr("mode", "linear"))
    reach = x.magnitude * (16.0 if "cubic" in mode else 1 + call.sum_slack(16))
    return interval(-reach, reach, nan=True)


def _shape_of(call: Call) -> Bounds:
    """Sizes; below 2^31, for nothing larger is held in memory here."""
    return interval(0.0, 2.0**31, integral=True, tiny=1.0)


def _constant_fill(call: Call) -> Bounds:
    tensor = call.attr("value", None)
    return ZERO if tensor is None else of_array(np.asarray(tensor.numpy())).flat()


def _range(call: Call) -> Bounds:
    start, stop, step = (call.get(i).flat() for i in range(3))
    if not (start.finite and stop.finite):
        return TOP
    widest = step.magnitude if step.finite else 0.0
    lo, hi = min(start.low, stop.low - widest), max(start.high, stop.high + widest)
    if step.low > 0:
        lo, hi = start.low, max(start.high, stop.high)
    integral = all(b.integral for b in (start, stop, step))
    slack = 0.0 if integral and max(abs(lo), abs(hi)) < 2**24 else 2.0**-20
    lo, hi = widen(lo, hi, slack)
    return interval(lo, hi, integral=integral)


def _one_hot(call: Call) -> Bounds:
    return _plain(call.get(2))


def _random_uniform(call: Call) -> Bounds:
    return interval(min(call.attr("low", 0.0), call.attr("high", 1.0)), call.attr("high", 1.0))


def _top_k(call: Call) -> list[Bounds | None]:
    return [_plain(call.get(0)), interval(0.0, 2.0**31, integral=True)]


def _hull_of(slots: Sequence[int]) -> Transfer:
    return lambda call: _plain(hull(_plain(call.get(i)) for i in slots))


def _any_of(call: Call) -> Bounds:
    return hull(_plain(b) for b in call.given())


def _scatter(call: Call) -> Bounds:
    data, updates = _plain(call.get(0)), _plain(call.get(2))
    kind = str(call.attr("reduction", "none"))
    if kind == "none":
        return hull((data, updates))
    if kind in ("max", "min") and not (data.nan or updates.nan):
        return hull((data, updates))
    if data.low == data.high == 0 and updates.magnitude == 0:
        return data
    return TOP


def _trilu(call: Call) -> Bounds:
    return hull((_plain(call.get(0)), ZERO))


def _eye(call: Call) -> Bounds:
    return interval(0.0, 1.0, integral=True)


def _positions(call: Call) -> Bounds:
    return interval(0.0, 2.0**31, integral=True)


MOVEMENT: Final[Mapping[str, Transfer]] = {
    "Bernoulli": _eye,
    "Cast": _cast,
    "CastLike": _cast,
    "CenterCropPad": _trilu,
    "Compress": _rearranged,
    "Concat": _concat,
    "ConcatFromSequence": _rearranged,
    "ConstantOfShape": _constant_fill,
    "DepthToSpace": _rearranged,
    "Dropout": _first,
    "Expand": _expand,
    "EyeLike": _eye,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _rearranged,
    "GatherND": _rearranged,
    "GridSample": _grid_sample,
    "Identity": _same,
    "NonZero": _positions,
    "OneHot": _one_hot,
    "Optional": _rearranged,
    "OptionalGetElement": _rearranged,
    "Pad": _pad,
    "RandomUniform": _random_uniform,
    "RandomUniformLike": _random_uniform,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "ReverseSequence": _rearranged,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    "SequenceAt": _rearranged,
    "SequenceConstruct": _any_of,
    "SequenceErase": _rearranged,
    "SequenceInsert": _hull_of((0, 1)),
    "Shape": _shape_of,
    "Size": _shape_of,
    "Slice": _slice,
    "SpaceToDepth": _rearranged,
    "Split": _split,
    "SplitToSequence": _rearranged,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "TopK": _top_k,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
    "Upsample": _resize,
}
