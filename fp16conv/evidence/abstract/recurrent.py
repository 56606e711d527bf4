"""Recurrent cells and attention: states behind tanh, and weighted means of the values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from fp16conv.evidence.abstract.call import Call, Transfer
from fp16conv.evidence.abstract.domain import Bounds, hull, interval
from fp16conv.evidence.abstract.linear import weigh

__all__ = ["RECURRENT"]

UNIT: Final = interval(-1 - 2.0**-16, 1 + 2.0**-16)
ZERO: Final = interval(0.0, 0.0)
_GATES: Final = frozenset(("sigmoid", "hardsigmoid"))
_BOUNDED: Final = frozenset(("sigmoid", "tanh", "hardsigmoid", "softsign"))


def _functions(call: Call, defaults: tuple[str, ...]) -> tuple[str, ...]:
    listed = call.attr("activations", ())
    return tuple(str(f).lower() for f in listed) or defaults


def _initial(call: Call, slot: int) -> Bounds:
    return call.get(slot).flat() if call.has(slot) else ZERO


def _bare(b: Bounds) -> Bounds:
    """Nothing but the interval, around zero: padded steps are 0."""
    return interval(min(b.low, 0.0), max(b.high, 0.0), nan=b.nan)


def _steps(call: Call) -> int | None:
    return call.dim(0, 1 if call.attr("layout", 0) else 0)


def _nan(call: Call) -> bool:
    return any(b.nan or not b.finite for b in call.given())


def _lstm(call: Call) -> list[Bounds | None]:
    """H = o tanh(c) stays within +-1; c grows by at most 1 a step: |f c + i g| <= |c| + 1."""
    if not set(_functions(call, ("tanh",))) <= _BOUNDED:
        return [None] * 3
    h = interval(UNIT.lo, UNIT.hi, nan=_nan(call))
    steps = _steps(call)
    reach = math.inf if steps is None else (_initial(call, 6).magnitude + steps * 1.001) * 1.001
    final = hull((_bare(h), _bare(_initial(call, 5))))
    return [_bare(h), final, interval(-reach, reach, nan=h.nan)]


def _gru(call: Call) -> list[Bounds | None]:
    """H = (1 - z) n + z h: a mean of tanh and the state before.

    Its roundings add up over the steps. With an open number of steps they stay below three times the
    bound: where z comes within 2^-24 of 1 it is 1, so that the state is passed on exactly.
    """
    names = _functions(call, ("sigmoid", "tanh"))
    if not (set(names[::2]) <= _GATES and set(names[1::2]) <= _BOUNDED):
        return [None] * 2
    steps = _steps(call)
    grow = 4.0 if steps is None else min(4.0, 1 + steps * 2.0**-16)
    reach = max(1.0, _initial(call, 5).magnitude) * grow * 1.001
    h = interval(-reach, reach, nan=_nan(call))
    return [h, h]


def _rnn(call: Call) -> list[Bounds | None]:
    names = set(_functions(call, ("tanh",)))
    if names <= _BOUNDED:
        h = interval(UNIT.lo, UNIT.hi, nan=_nan(call))
        return [_bare(h), hull((_bare(h), _bare(_initial(call, 5))))]
    return [None, None]


def _mean_of(*values: Bounds, slack: float) -> Bounds:
    """A mean with weights that add up to 1, or 0 where everything is masked."""
    v = hull(values).flat()
    lo, hi = min(v.low, 0.0) * (1 + slack), max(v.high, 0.0) * (1 + slack)
    return interval(lo, hi, nan=True)


def _attention(call: Call) -> list[Bounds | None]:
    """Attention (opset 23): softmax over the keys, applied to the values and the past ones."""
    values = [call.get(2)] + ([call.get(5)] if call.has(5) else [])
    y = _mean_of(*values, slack=2 * call.sum_slack(None))
    keys = hull([call.get(1).flat()] + ([call.get(4).flat()] if call.has(4) else []))
    return [y, _plain(keys), _plain(hull(v.flat() for v in values)), None][: len(call.op.outputs)]


def _plain(b: Bounds) -> Bounds:
    return interval(b.low, b.high, nan=b.nan)


def _multi_head(call: Call) -> list[Bounds | None]:
    """com.microsoft::MultiHeadAttention with separate query, key and value."""
    nothing: list[Bounds | None] = [None] * len(call.op.outputs)
    if not call.has(2):
        return nothing
    value = call.get(2).flat()
    if call.has(3):
        bias = call.get(3).flat()
        value = interval(value.low + bias.low, value.high + bias.high)
    values = [value] + ([call.get(7).flat()] if call.has(7) else [])
    return [_mean_of(*values, slack=2 * call.sum_slack(None)), *nothing[1:]]


def _packed_attention(call: Call) -> list[Bounds | None]:
    """com.microsoft::Attention: values are the last columns of one projection."""
    nothing: list[Bounds | None] = [None] * len(call.op.outputs)
    weights = call.array(1)
    if weights is None or weights.ndim != 2 or call.has(4) or weights.dtype.kind != "f":
        return nothing
    sizes = call.attr("qkv_hidden_sizes", ())
    first = sum(sizes[:2]) if len(sizes) == 3 else weights.shape[1] * 2 // 3
    found = weigh(weights[:, first:].T, call.get(0), call.sum_slack(weights.shape[0]), -1)
    if found is None:
        return nothing
    lo, hi = found
    bias = call.array(2)
    if call.has(2):
        if bias is None:
            return nothing
        part = np.asarray(bias, np.float64)[first:]
        lo, hi = lo + part - np.abs(part) * call.slack, hi + part + np.abs(part) * call.slack
    value = interval(lo.min(), hi.max())
    return [_mean_of(value, slack=2 * call.sum_slack(None)), *nothing[1:]]


RECURRENT: Final[Mapping[str, Transfer]] = {
    "Attention": _attention,
    "GRU": _gru,
    "LSTM": _lstm,
    "RNN": _rnn,
    "com.microsoft::Attention": _packed_attention,
    "com.microsoft::MultiHeadAttention": _multi_head,
}
