"""Made-up inputs that fit a model: shapes for open dimensions, and numbers by what the model does with them.

Defaults for open dimensions, first match wins: a size bound to the same symbolic name; the first dimension of
a batch 2, so is the middle one of a recurrent state; height and width of images 224; samples of a signal
16000 where the name says audio, else 512; any other 16.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from fp16conv.errors import ValidationError
from fp16conv.graph import Container, DataType, ModelGraph, Op, Value

__all__ = ["DEFAULT_SIZES", "Kind", "OpenSizes", "Recipe", "make_batch", "plan_inputs"]

_AUDIO_NAME = re.compile(r"audio|wav|pcm|speech|samples", re.I)
_BATCH_NAME = re.compile(r"^(n|b|bs|bsz)$|batch", re.I)
_MASK_NAME = re.compile(r"mask|valid|padding", re.I)
_STATE_NAME = re.compile(r"state|hidden|cell|^[hc]_?\d*$|^[hc]n$", re.I)
_LENGTH_NAME = re.compile(r"len(gth)?s?$|_len|seqlen|num_frames", re.I)
_POSITION_NAME = re.compile(r"position|pos_id", re.I)
_SEGMENT_NAME = re.compile(r"token_type|segment", re.I)
_RATE_NAME = re.compile(r"^sr$|sample_?rate|sampling", re.I)
_STEP_NAME = re.compile(r"time_?step|^t$|^step", re.I)

_MOVES = frozenset(
    (
        "Cast", "Clip", "Concat", "Expand", "Flatten", "Identity", "Max", "Min", "Pad", "Reshape", "Slice",
        "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where",
    )
)  # fmt: skip
_SHAPE_SLOTS = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Loop": (0,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (3,),
    "Tile": (1,),
    "TopK": (1,),
}
_SCALE_SLOTS = {"Resize": (1, 2), "Upsample": (1,)}  # opset 10 has the scales at 1, where regions are later
_RECURRENT = frozenset(("GRU", "LSTM", "RNN"))
_POSITIVE_ONLY = frozenset(("Sqrt", "Log", "Reciprocal"))


@dataclass(frozen=True, slots=True)
class OpenSizes:
    """Sizes of dimensions the model leaves open.

    Args:
        batch: first dimension.
        height: of an image, float or uint8 of rank 4.
        width: of an image.
        signal: samples of a float input of rank 2.
        audio: the same where the name says audio.
        length: anything else.
    """

    batch: int = 2
    height: int = 224
    width: int = 224
    signal: int = 512
    audio: int = 16000
    length: int = 16


DEFAULT_SIZES = OpenSizes()


class Kind(StrEnum):
    """How the numbers of an input are made."""

    NORMAL = "normal"
    POSITIVE = "positive"  # magnitudes only: feeds Sqrt or Log
    UNIFORM = "uniform"  # in a declared range
    INDEX = "index"  # whole numbers in [low, high]
    MASK = "mask"  # mostly ones
    FULL = "full"  # a constant: a length, a rate, a size
    POSITION = "position"  # 0, 1, 2 ... along the last dimension
    FLAG = "flag"  # random booleans
    TEXT = "text"
    UNKNOWN = "unknown"  # of a type that numpy lacks (float8, 4-bit integers ...): cannot be made


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make one input.

    Args:
        name: input name.
        dtype: element type.
        shape: sizes.
        kind: how the numbers are made.
        low: lowest number, or the constant of FULL.
        high: highest number.
        items: length of a sequence input, None for a tensor.
    """

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    kind: Kind
    low: float = 0.0
    high: float = 1.0
    items: int | None = None


def plan_inputs(
    graph: ModelGraph,
    shapes: Mapping[str, tuple[int, ...]],
    ranges: Mapping[str, tuple[float, float]],
    dims: Mapping[str, int],
    open_sizes: OpenSizes = DEFAULT_SIZES,
) -> tuple[Recipe, ...]:
    """Decide shape and kind of every input that must be fed."""
    values = [graph.values[i] for i in graph.main.inputs if i not in graph.defaults]
    sizes = dict(dims)
    for value in values:
        for dim, size in zip(value.shape or (), shapes.get(value.name, ()), strict=False):
            if _is_name(dim):
                sizes.setdefault(str(dim), size)
    settled = {v.name: shapes[v.name] if v.name in shapes else _settle(v, sizes, open_sizes) for v in values}
    longest = max((s[-1] for s in settled.values() if len(s) > 1), default=open_sizes.length)
    return tuple(_recipe(graph, v, settled[v.name], ranges.get(v.name), longest) for v in values)


def make_batch(recipes: Sequence[Recipe], rng: np.random.Generator, batch: int) -> dict[str, Any]:
    """Make one batch.

    Args:
        recipes: from `plan_inputs`.
        rng: source of the numbers.
        batch: index of the batch (the first one's masks are all ones).

    Raises:
        ValidationError: an input has a type that cannot be made up.
    """
    made: dict[str, Any] = {}
    for recipe in recipes:
        if recipe.kind is Kind.UNKNOWN:
            raise ValidationError(
                f"input '{recipe.name}' has a type that cannot be made up", hint="give real data with --data"
            )
        if recipe.items is None:
            made[recipe.name] = _make(recipe, rng, batch)
        else:
            made[recipe.name] = [_make(recipe, rng, batch) for _ in range(recipe.items)]
    return made


def _is_name(dim: object) -> bool:
    """Whether a dimension has a name that means something; exporters write "?" for any unknown one."""
    return isinstance(dim, str) and any(c.isalnum() for c in dim)


def _settle(value: Value, sizes: dict[str, int], open_sizes: OpenSizes) -> tuple[int, ...]:
    """Sizes for the open dimensions; symbolic names are bound on the way."""
    shape = value.shape if value.shape is not None else (None, None)
    settled = []
    for position, dim in enumerate(shape):
        if isinstance(dim, int) and dim >= 0:  # some exporters write -1 for an open dimension
            settled.append(dim)
        elif _is_name(dim):
            size = _default(value, shape, position, str(dim), open_sizes)
            settled.append(sizes.setdefault(str(dim), size))
        else:
            settled.append(_default(value, shape, position, "", open_sizes))
    return tuple(settled)


def _default(value: Value, shape: Sequence[object], position: int, name: str, open_sizes: OpenSizes) -> int:
    if _BATCH_NAME.search(name) or (position == 0 and not re.search(r"seq|len|time", name, re.I)):
        return open_sizes.batch
    if len(shape) == 3 and position == 1 and isinstance(shape[0], int) and _STATE_NAME.search(value.name):
        return open_sizes.batch  # recurrent state: [layers, batch, size]
    is_float = value.dtype in (DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16, DataType.DOUBLE)
    if len(shape) == 4 and (is_float or value.dtype is DataType.UINT8):
        channels_last = shape[3] in (1, 3, 4)
        first = 1 if channels_last else 2
        if position in (first, first + 1):
            return open_sizes.height if position == first else open_sizes.width
    if len(shape) == 2 and is_float and position == 1 and not _MASK_NAME.search(value.name):
        is_audio = _AUDIO_NAME.search(f"{value.name} {name}")
        return open_sizes.audio if is_audio else open_sizes.signal
    return open_sizes.length


def _recipe(
    graph: ModelGraph,
    value: Value,
    shape: tuple[int, ...],
    bounds: tuple[float, float] | None,
    longest: int,
) -> Recipe:
    items = 3 if value.container is Container.SEQUENCE else None
    kind, low, high = _kind(graph, value, shape, longest)
    if bounds is not None:
        kind, (low, high) = (Kind.INDEX if value.dtype.is_integer else Kind.UNIFORM), bounds
    return Recipe(value.name, value.dtype, shape, kind, low, high, items)


def _kind(graph: ModelGraph, value: Value, shape: tuple[int, ...], longest: int) -> tuple[Kind, float, float]:
    name, dtype = value.name, value.dtype
    if dtype is DataType.STRING:
        return Kind.TEXT, 0.0, 0.0
    if dtype in (DataType.OTHER, DataType.UNKNOWN) or value.container is Container.SPARSE:
        return Kind.UNKNOWN, 0.0, 0.0
    if dtype is DataType.BOOL:
        return (Kind.MASK if _MASK_NAME.search(name) else Kind.FLAG), 0.0, 1.0
    reached = list(_reached(graph, value.id))
    if not dtype.is_integer:
        if _MASK_NAME.search(name):
            return Kind.MASK, 0.0, 1.0
        if any(slot in _SCALE_SLOTS.get(op.op_type, ()) for op, slot in reached):
            return (
                Kind.FULL,
                2.0 if np.prod(shape) <= 2 else 1.0,
                0.0,
            )  # not batch and channels
        if any(op.op_type in _POSITIVE_ONLY for op, _ in reached):
            return Kind.POSITIVE, 0.0, 1.0
        return Kind.NORMAL, 0.0, 1.0
    if steps := [_steps(graph, op) for op, slot in reached if op.op_type in _RECURRENT and slot == 4]:
        return Kind.FULL, float(min(steps)), 0.0
    tables = [size for op, slot in reached if (size := _table_size(graph, op, slot)) is not None]
    if _MASK_NAME.search(name):
        return Kind.MASK, 0.0, 1.0
    if _POSITION_NAME.search(name):
        return Kind.POSITION, 0.0, float(min(tables, default=2**15) - 1)
    if tables:
        return Kind.INDEX, 0.0, float(max(0, min(tables) - 1))
    return _integer_kind(name, dtype, shape, longest, reached)


def _steps(graph: ModelGraph, op: Op) -> int:
    """Time steps that a recurrent operator surely has; its lengths must not be above."""
    shape = None if op.inputs[0] is None else graph.values[op.inputs[0]].shape
    axis = 1 if op.attrs.get("layout") else 0
    size = shape[axis] if shape and axis < len(shape) else None
    return size if isinstance(size, int) and size > 0 else 1


def _integer_kind(
    name: str, dtype: DataType, shape: tuple[int, ...], longest: int, reached: Sequence[tuple[Op, int]]
) -> tuple[Kind, float, float]:
    """An integer input that indexes nothing: by its name, then by what reads it."""
    if _RATE_NAME.search(name):
        return Kind.FULL, 16000.0, 0.0
    if _LENGTH_NAME.search(name):
        return Kind.FULL, float(longest), 0.0
    if _SEGMENT_NAME.search(name):
        return Kind.INDEX, 0.0, 1.0
    if _STEP_NAME.search(name):
        return Kind.INDEX, 0.0, 999.0
    if any(slot in _SHAPE_SLOTS.get(op.op_type, ()) for op, slot in reached):
        return Kind.FULL, 2.0 if not shape else 1.0, 0.0
    if dtype is DataType.UINT8:
        return Kind.INDEX, 0.0, 255.0
    if dtype is DataType.INT8:
        return Kind.INDEX, -128.0, 127.0
    if any(op.op_type == "Cast" for op, _ in reached) and len(shape) > 1:
        return Kind.MASK, 0.0, 1.0
    return Kind.INDEX, 0.0, 9.0


def _reached(graph: ModelGraph, value: int) -> Iterator[tuple[Op, int]]:
    """Operators that read the value as it is: through casts and moves, into subgraphs too; with the slot."""
    pending, seen = [value], {value}
    while pending:
        for use in graph.consumers(pending.pop()):
            if use.op is None:
                continue
            op = graph.ops[use.op]
            yield op, use.slot
            is_data = use.slot == 0 or op.op_type in ("Concat", "Where", "Max", "Min")
            if not op.domain and is_data and (op.op_type in _MOVES or op.op_type == "Gather"):
                for output in op.outputs:
                    if output is not None and output not in seen:
                        seen.add(output)
                        pending.append(output)


def _table_size(graph: ModelGraph, op: Op, slot: int) -> int | None:
    """Rows of the table an index selects from, None where the operator does not look it up."""
    if op.op_type in ("Gather", "GatherElements") and slot == 1:
        return _rows(graph, op.inputs[0], op.attrs.get("axis", 0))
    if op.domain == "com.microsoft" and op.op_type == "EmbedLayerNormalization" and slot < 2:
        table = 2 + 2 * slot  # word embedding for slot 0, segment embedding for slot 1
        return _rows(graph, op.inputs[table]) if table < len(op.inputs) else None
    if op.key == "aten::embedding.default" and slot == 1:
        return _rows(graph, op.inputs[0])
    if op.op_type == "OneHot" and slot == 0 and (depth := graph.array(op.inputs[1])) is not None:
        return int(np.asarray(depth).ravel()[0]) if np.size(depth) else None
    return None


def _rows(graph: ModelGraph, table: int | None, axis: object = 0) -> int | None:
    """The size of a table along an axis, where it has that axis and a known size."""
    shape = None if table is None else graph.values[table].shape
    if not shape or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        return None
    rows = shape[axis]
    return rows if isinstance(rows, int) else None


def _make(recipe: Recipe, rng: np.random.Generator, batch: int) -> npt.NDArray[Any]:
    shape = recipe.shape
    numbers: npt.NDArray[Any]
    if recipe.kind is Kind.TEXT:
        return np.asarray(rng.choice(["alpha", "beta", "gamma"], size=shape), dtype=object)
    if recipe.kind is Kind.UNIFORM:
        numbers = rng.uniform(recipe.low, recipe.high, shape)
    elif recipe.kind in (Kind.NORMAL, Kind.POSITIVE):
        numbers = np.asarray(rng.standard_normal(shape))
        numbers.reshape(-1)[::16] *= 4.0
        if recipe.kind is Kind.POSITIVE:
            numbers = np.abs(numbers)
    elif recipe.kind is Kind.INDEX:
        numbers = rng.integers(int(recipe.low), int(recipe.high), shape, endpoint=True)
    elif recipe.kind is Kind.FULL:
        numbers = np.full(shape, recipe.low)
    elif recipe.kind is Kind.POSITION:
        last = shape[-1] if shape else 1
        numbers = np.broadcast_to(np.minimum(np.arange(last), recipe.high), shape)
    elif recipe.kind is Kind.FLAG:
        numbers = rng.integers(0, 1, shape, endpoint=True)
    else:
        numbers = _mask(shape, batch)
    dtype = "float32" if recipe.dtype is DataType.BFLOAT16 else _numpy_name(recipe.dtype)
    return np.ascontiguousarray(numbers, dtype=dtype).reshape(shape)


def _mask(shape: tuple[int, ...], batch: int) -> npt.NDArray[Any]:
    """Ones; from the second batch on, the last quarter of every second row is off."""
    mask = np.ones(shape)
    if batch and shape and shape[-1] > 3:
        rows = mask.reshape(-1, shape[-1])
        rows[1::2, -(shape[-1] // 4) :] = 0
    return mask


def _numpy_name(dtype: DataType) -> str:
    return {DataType.FLOAT: "float32", DataType.DOUBLE: "float64"}.get(dtype, dtype.value)
