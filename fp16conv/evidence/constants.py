"""Facts about constants: what the model file itself says about its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fp16conv.evidence.summary import RangeSummary
from fp16conv.graph import Container, DataType, ModelGraph, Op, Origin, RangeFact, Reference, read_pieces

__all__ = ["MOVES", "attribute_facts", "constant_facts", "fold_constants", "summarize_constants"]

Array = npt.NDArray[np.generic]

FOLD_LIMIT: Final = 1 << 16  # elements of the largest value that is folded

# Operators that only move numbers: the summary of the input is the summary of the output.
MOVES: Final = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten", "Dropout"})

_NUMPY_DTYPE: Final = {
    DataType.FLOAT: np.float32,
    DataType.FLOAT16: np.float16,
    DataType.DOUBLE: np.float64,
    DataType.INT8: np.int8,
    DataType.INT16: np.int16,
    DataType.INT32: np.int32,
    DataType.INT64: np.int64,
    DataType.UINT8: np.uint8,
    DataType.UINT16: np.uint16,
    DataType.UINT32: np.uint32,
    DataType.UINT64: np.uint64,
    DataType.BOOL: np.bool_,
}


def constant_facts(graph: ModelGraph) -> dict[int, RangeFact]:
    """Facts about every FLOAT value whose numbers follow from the model file alone.

    Initializers and Constant nodes, fill values (ConstantOfShape), and results of operators that read
    only constants (small ones are computed with numpy, larger ones followed through operators that
    only move numbers).

    Args:
        graph: the model; constants are read in pieces, one tensor at a time.

    Returns:
        Value id -> fact with origin `constant`, ids ascending. Empty tensors have no fact.
    """
    facts = {value: s.fact(Origin.CONSTANT) for value, s in summarize_constants(graph).items()}
    return {value: fact for value, fact in facts.items() if fact is not None}


def summarize_constants(graph: ModelGraph) -> dict[int, RangeSummary]:
    """Like `constant_facts`, with the finite extremes apart from infinities.

    Returns:
        Value id -> summary, ids ascending; FLOAT tensors only.
    """
    summaries: dict[int, RangeSummary] = {}
    for value, tensor in graph.constants.items():
        if graph.values[value].dtype is DataType.FLOAT:
            summary = summaries[value] = RangeSummary(exponents=False)
            for _, numbers in read_pieces(tensor):
                summary.update(numbers)
    folded = fold_constants(graph)
    for op in graph.ops:
        source = op.inputs[0] if op.inputs else None
        target = op.outputs[0] if op.outputs else None
        if target is None or graph.values[target].dtype is not DataType.FLOAT:
            continue
        if graph.values[target].container is not Container.TENSOR or target in summaries:
            continue
        if target in folded:
            summaries[target] = _summarize(folded[target])
        elif op.domain == "" and op.op_type in MOVES and source in summaries:
            summaries[target] = summaries[source]
        elif op.key == "ConstantOfShape" and not isinstance(op.attrs.get("value"), Reference):
            summaries[target] = _summarize(_fill_value(op).astype(np.float32))
    return dict(sorted(summaries.items()))


def attribute_facts(graph: ModelGraph) -> dict[tuple[int, str], RangeFact]:
    """Facts about the floating numbers in operator attributes (`alpha`, `epsilon`, `min` ...).

    Those of Constant nodes are left out: they are the numbers of the node's value.

    Returns:
        (op id, attribute name) -> fact with origin `constant`.
    """
    facts: dict[tuple[int, str], RangeFact] = {}
    for op in graph.ops:
        for name in sorted(op.attrs) if op.op_type != "Constant" else ():
            array = _floats_of(op.attrs[name])
            if array is not None and (fact := _summarize(array).fact(Origin.CONSTANT)) is not None:
                facts[op.id, name] = fact
    return facts


def fold_constants(graph: ModelGraph, limit: int = FOLD_LIMIT) -> dict[int, Array]:
    """Compute the small values that depend on constants only.

    Args:
        graph: the model.
        limit: largest number of elements of any value read or made.

    Returns:
        Value id -> numbers, for results of operators (not the constants themselves).
    """
    known: dict[int, Array] = {}

    def read(value: int | None) -> Array | None:
        if value is None:
            return None
        if value in known:
            return known[value]
        tensor = graph.constants.get(value)
        if tensor is None or tensor.size > limit or graph.values[value].dtype not in _NUMPY_DTYPE:
            return None
        return np.asarray(tensor.numpy())

    for op in graph.ops:  # one pass: ids are in file order, which is an execution order
        if op.domain != "" or len(op.outputs) != 1 or op.outputs[0] is None or op.subscopes:
            continue
        fold = _FOLDERS.get(op.op_type)
        if fold is None or not op.inputs or any(isinstance(a, Reference) for a in op.attrs.values()):
            continue
        inputs = [read(value) for value in op.inputs]
        if any(a is None and v is not None for a, v in zip(inputs, op.inputs, strict=True)):
            continue
        dtype = _NUMPY_DTYPE.get(graph.values[op.outputs[0]].dtype)
        if dtype is None or _is_large(op, inputs, limit):
            continue
        try:
            with np.errstate(all="ignore"):
                result = np.asarray(fold(op, inputs))
        except (ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError):
            continue  # a malformed operator is the runtime's to report: here it is only unknown
        if result.size <= limit:
            known[op.outputs[0]] = result.astype(dtype, copy=False)
    return known


def _summarize(array: Array) -> RangeSummary:
    summary = RangeSummary(exponents=False)
    summary.update(array)
    return summary


def _fill_value(op: Op) -> Array:
    tensor: Any = op.attrs.get("value")
    return np.zeros(1, np.float32) if tensor is None else np.asarray(tensor.numpy())


def _floats_of(attribute: object) -> Array | None:
    if isinstance(attribute, float):
        return np.array([attribute], np.float32)
    if isinstance(attribute, tuple) and attribute and all(isinstance(x, float) for x in attribute):
        return np.array(attribute, np.float32)
    if hasattr(attribute, "numpy"):
        array = np.asarray(attribute.numpy())
        return array if array.dtype == np.float32 else None
    return None


def _is_large(op: Op, inputs: Sequence[Array | None], limit: int) -> bool:
    """Whether a broadcast or a fill would make a value beyond the limit (asked before it is made)."""
    if op.op_type in {"ConstantOfShape", "Expand"}:
        shape = inputs[-1]
        return shape is None or float(np.prod(shape.astype(np.float64))) > limit
    if op.op_type == "Range":
        start, stop, step = (float(np.asarray(x).reshape(-1)[0]) for x in inputs if x is not None)
        return step == 0 or (stop - start) / step > limit
    if op.op_type in _BINARY or op.op_type == "Where":
        try:
            shape_ = np.broadcast_shapes(*(x.shape for x in inputs if x is not None))
        except ValueError:
            return True
        return float(np.prod(shape_, dtype=np.float64)) > limit
    return False


def _axes(op: Op, inputs: Sequence[Array | None]) -> tuple[int, ...] | None:
    if len(inputs) > 1 and inputs[1] is not None:
        return tuple(int(i) for i in inputs[1].reshape(-1))
    axes: Any = op.attrs.get("axes")
    return None if axes is None else tuple(int(i) for i in axes)


def _reshape(op: Op, inputs: Sequence[Any]) -> Array:
    shape = [int(i) for i in inputs[1]]
    if not op.attrs.get("allowzero", 0):
        shape = [inputs[0].shape[i] if n == 0 else n for i, n in enumerate(shape)]
    result: Array = inputs[0].reshape(shape)
    return result


def _squeeze(op: Op, inputs: Sequence[Any]) -> Array:
    return np.asarray(np.squeeze(inputs[0], _axes(op, inputs)))


def _unsqueeze(op: Op, inputs: Sequence[Any]) -> Array:
    axes = _axes(op, inputs)
    if axes is None:
        raise ValueError("Unsqueeze without axes")
    return np.expand_dims(inputs[0], axes)


def _transpose(op: Op, inputs: Sequence[Any]) -> Array:
    perm: Any = op.attrs.get("perm")
    return np.transpose(inputs[0], perm)


def _concat(op: Op, inputs: Sequence[Any]) -> Array:
    axis: Any = op.attrs["axis"]
    result: Array = np.concatenate(list(inputs), axis)
    return result


def _gather(op: Op, inputs: Sequence[Any]) -> Array:
    axis: Any = op.attrs.get("axis", 0)
    return np.asarray(np.take(inputs[0], inputs[1], axis))


def _divide(op: Op, inputs: Sequence[Any]) -> Array:
    a, b = inputs
    if np.issubdtype(a.dtype, np.integer):
        quotient = np.trunc(a / b)  # ONNX integer division truncates
        if not np.isfinite(quotient).all():
            raise ValueError("integer division by zero")
        return np.asarray(quotient.astype(a.dtype))
    return np.asarray(a / b)


def _fill(op: Op, inputs: Sequence[Any]) -> Array:
    return np.full([int(n) for n in inputs[0]], _fill_value(op).reshape(-1)[0])


def _clip(op: Op, inputs: Sequence[Any]) -> Array:
    bounds = [*inputs[1:], None, None][:2]
    low: Any = bounds[0] if bounds[0] is not None else op.attrs.get("min")
    high: Any = bounds[1] if bounds[1] is not None else op.attrs.get("max")
    return np.asarray(inputs[0] if low is None and high is None else np.clip(inputs[0], low, high))


def _range(op: Op, inputs: Sequence[Any]) -> Array:
    start, stop, step = (x.reshape(-1)[0] for x in inputs)
    count = max(int(np.ceil((float(stop) - float(start)) / float(step))), 0)
    return np.asarray(start + np.arange(count) * step)


def _shape(op: Op, inputs: Sequence[Any]) -> Array:
    start: Any = op.attrs.get("start", 0)
    end: Any = op.attrs.get("end")
    return np.array(inputs[0].shape, np.int64)[start:end]


def _expand(op: Op, inputs: Sequence[Any]) -> Array:
    shape = tuple(int(n) for n in inputs[1])
    return np.broadcast_to(inputs[0], np.broadcast_shapes(inputs[0].shape, shape))


def _dequantize(op: Op, inputs: Sequence[Any]) -> Array:
    x, scale = inputs[0], inputs[1]
    zero = inputs[2] if len(inputs) > 2 and inputs[2] is not None else np.zeros_like(scale, x.dtype)
    if scale.size > 1:
        if scale.ndim != 1 or op.attrs.get("block_size"):
            raise ValueError("blocked quantization is not folded")
        axis: Any = op.attrs.get("axis", 1)
        shape = [1] * x.ndim
        shape[axis] = scale.size
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    return np.asarray((x.astype(np.float32) - zero.astype(np.float32)) * scale)


_Folder = Callable[[Op, Sequence[Any]], Any]

_BINARY: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Pow": np.power,
    "Equal": np.equal,
    "Less": np.less,
    "Greater": np.greater,
    "Div": np.divide,
}

_UNARY: Final[Mapping[str, Callable[[Any], Any]]] = {
    "Identity": np.asarray,
    "Cast": np.asarray,  # the result takes the dtype of the output value
    "Neg": np.negative,
    "Abs": np.abs,
    "Exp": np.exp,
    "Log": np.log,
    "Sqrt": np.sqrt,
    "Sin": np.sin,
    "Cos": np.cos,
    "Reciprocal": np.reciprocal,
    "Not": np.logical_not,
}


def _unary(function: Callable[[Any], Any]) -> _Folder:
    return lambda _, inputs: function(inputs[0])


def _binary(function: Callable[[Any, Any], Any]) -> _Folder:
    return lambda _, inputs: function(inputs[0], inputs[1])


_FOLDERS: Final[Mapping[str, _Folder]] = {
    **{name: _unary(function) for name, function in _UNARY.items()},
    **{name: _binary(function) for name, function in _BINARY.items()},
    "Clip": _clip,
    "Concat": _concat,
    "ConstantOfShape": _fill,
    "DequantizeLinear": _dequantize,
    "Div": _divide,
    "Expand": _expand,
    "Gather": _gather,
    "Max": lambda _, x: np.max(np.broadcast_arrays(*x), axis=0),
    "Min": lambda _, x: np.min(np.broadcast_arrays(*x), axis=0),
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": lambda _, x: np.where(x[0], x[1], x[2]),
}
