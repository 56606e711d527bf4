"""Random well-typed ONNX graphs over the operators that proven bounds know, and random inputs for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["make_feed", "make_graph"]

OPSET: Final = 18
Shape = tuple[int, ...]
Rng = np.random.Generator

_UNARY: Final = (
    "Abs",
    "Acos",
    "Asinh",
    "Atan",
    "Ceil",
    "Celu",
    "Cos",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Log",
    "LogSoftmax",
    "Mish",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Tanh",
    "ThresholdedRelu",
)
_REDUCE: Final = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceSum",
    "ReduceSumSquare",
)


@dataclass
class _Graph:
    rng: Rng
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    values: list[tuple[str, Shape]] = field(default_factory=list)
    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def constant(self, array: npt.ArrayLike, dtype: Any = np.float32) -> str:
        name = self.name()
        self.weights.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def add(self, op: str, inputs: list[str], shape: Shape, **attrs: Any) -> str:
        name = self.name()
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"n_{name}", **attrs))
        self.values.append((name, shape))
        return name

    def hidden(self, op: str, inputs: list[str], **attrs: Any) -> str:
        """A node whose value no later step picks."""
        name = self.add(op, inputs, (), **attrs)
        self.values.pop()
        return name

    def pick(self, rank: int | None = None) -> tuple[str, Shape]:
        found = [v for v in self.values if rank is None or len(v[1]) == rank] or self.values
        return found[int(self.rng.integers(max(0, len(found) - 6), len(found)))]

    def numbers(self, shape: Shape) -> npt.NDArray[np.float32]:
        """Weights of some size, some of them zero, on either or both sides."""
        scale = float(10.0 ** self.rng.uniform(-2, 1.5))
        array = self.rng.normal(size=shape) * scale
        if self.rng.random() < 0.3:
            array = np.abs(array)
        return np.asarray(np.where(self.rng.random(shape) < 0.1, 0, array), np.float32)

    def weight(self, shape: Shape) -> str:
        return self.constant(self.numbers(shape))


def _unary(g: _Graph) -> None:
    x, shape = g.pick()
    g.add(str(g.rng.choice(_UNARY)), [x], shape)


def _binary(g: _Graph) -> None:
    x, shape = g.pick()
    same = [name for name, other in g.values if other == shape]
    kind = g.rng.integers(4)
    if kind == 0:
        y = g.weight(())
    elif kind == 1:
        y = g.weight(shape[-1:])
    elif kind == 2 and len(shape) > 2:
        y = g.weight((shape[1], *(1,) * (len(shape) - 2)))
    else:
        y = str(g.rng.choice(same))
    pair = [x, y] if g.rng.random() < 0.7 else [y, x]
    g.add(str(g.rng.choice(["Add", "Sub", "Mul", "Div", "Max", "Min", "Mul", "Add"])), pair, shape)


def _power(g: _Graph) -> None:
    x, shape = g.pick()
    g.add("Pow", [x, g.constant(g.rng.choice([2.0, 3.0, 0.5, -0.5, -1.0, 4.0]))], shape)


def _reduce(g: _Graph) -> None:
    x, shape = g.pick()
    op = str(g.rng.choice(_REDUCE))
    if not shape:
        return
    axis = int(g.rng.integers(len(shape)))
    reduced = (*shape[:axis], 1, *shape[axis + 1 :])
    if op == "ReduceSum":
        g.add(op, [x, g.constant([axis], np.int64)], reduced, keepdims=1)
    else:
        axes = g.constant([axis - len(shape)], np.int64)
        g.add(op, [x, axes], reduced, keepdims=1)


def _matmul(g: _Graph) -> None:
    x, shape = g.pick()
    if not shape:
        return
    n = int(g.rng.integers(2, 9))
    y = g.add("MatMul", [x, g.weight((shape[-1], n))], (*shape[:-1], n))
    if g.rng.random() < 0.5:
        g.add("Add", [y, g.weight((n,))], (*shape[:-1], n))


def _left_matmul(g: _Graph) -> None:
    x, shape = g.pick()
    if len(shape) < 2:
        return
    n = int(g.rng.integers(2, 9))
    g.add("MatMul", [g.weight((n, shape[-2])), x], (*shape[:-2], n, shape[-1]))


def _attention(g: _Graph) -> None:
    x, shape = g.pick(3)
    if len(shape) != 3:
        return
    heads = 2 if shape[2] % 2 == 0 else 1
    parts = []
    for turn in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
        y = g.hidden("MatMul", [x, g.weight((shape[2], shape[2]))])
        y = g.hidden("Add", [y, g.weight(shape[2:])])
        y = g.hidden("Reshape", [y, g.constant([*shape[:2], heads, shape[2] // heads], np.int64)])
        parts.append(g.hidden("Transpose", [y], perm=turn))
    scores = g.hidden("MatMul", parts[:2])
    weights = g.hidden("Softmax", [g.hidden("Div", [scores, g.constant(2.0)])], axis=-1)
    y = g.hidden("Transpose", [g.hidden("MatMul", [weights, parts[2]])], perm=(0, 2, 1, 3))
    y = g.add("Reshape", [y, g.constant(shape, np.int64)], shape)
    g.add("Add", [y, x], shape)


def _layer_norm(g: _Graph) -> None:
    x, shape = g.pick()
    if not shape or shape[-1] < 2:
        return
    scale, bias = g.weight(shape[-1:]), g.weight(shape[-1:])
    g.add("LayerNormalization", [x, scale, bias], shape, epsilon=float(g.rng.choice([1e-5, 1e-3, 1e-12])))


def _written_norm(g: _Graph) -> None:
    """LayerNorm, RMSNorm or an L2 norm, written out."""
    x, shape = g.pick()
    if not shape or shape[-1] < 2:
        return
    kind, axis = int(g.rng.integers(4)), g.constant([-1], np.int64)
    d = x
    if kind == 0:
        d = g.hidden("Sub", [x, g.hidden("ReduceMean", [x, axis])])
    if kind == 3:
        norm = g.hidden("Clip", [g.hidden("ReduceL2", [x, axis]), g.constant(1e-12)])
        g.add("Div", [x, norm], shape)
        return
    square = g.hidden("Mul", [d, d]) if kind == 1 else g.hidden("Pow", [d, g.constant(2.0)])
    mean = g.hidden("ReduceSum" if kind == 2 else "ReduceMean", [square, axis])
    root = g.hidden("Sqrt", [g.hidden("Add", [mean, g.constant(1e-6)])])
    if g.rng.random() < 0.5:
        y = g.add("Div", [d, root], shape)
    else:
        y = g.add("Mul", [d, g.hidden("Reciprocal", [root])], shape)
    g.add("Mul", [y, g.weight(shape[-1:])], shape)


def _written_softmax(g: _Graph) -> None:
    x, shape = g.pick()
    if not shape:
        return
    axis = g.constant([-1], np.int64)
    e = g.hidden("Exp", [g.hidden("Sub", [x, g.hidden("ReduceMax", [x, axis])])])
    g.add("Div", [e, g.hidden("ReduceSum", [e, axis])], shape)


def _conv(g: _Graph) -> None:
    x, shape = g.pick(4)
    if len(shape) != 4:
        return
    channels, out = shape[1], int(g.rng.integers(1, 6))
    groups = channels if g.rng.random() < 0.3 else 1
    out = out if groups == 1 else channels
    inputs = [x, g.weight((out, channels // groups, 3, 3))]
    if g.rng.random() < 0.6:
        inputs.append(g.weight((out,)))
    shape = (shape[0], out, *shape[2:])
    y = g.add("Conv", inputs, shape, pads=[1, 1, 1, 1], group=groups)
    if g.rng.random() < 0.5:
        stats = [g.weight((out,)), g.weight((out,)), g.weight((out,))]
        stats.append(g.constant(np.abs(g.numbers((out,))) + 1e-3))
        g.add("BatchNormalization", [y, *stats], shape)


def _conv_transpose(g: _Graph) -> None:
    x, shape = g.pick(4)
    if len(shape) != 4 or shape[2] > 8:
        return
    y = g.weight((shape[1], 3, 2, 2))
    g.add("ConvTranspose", [x, y], (shape[0], 3, shape[2] * 2, shape[3] * 2), strides=[2, 2])


def _pool(g: _Graph) -> None:
    x, shape = g.pick(4)
    if len(shape) != 4:
        return
    op = str(g.rng.choice(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool"]))
    if op.startswith("Global"):
        g.add(op, [x], (*shape[:2], 1, 1))
    else:
        g.add(op, [x], shape, kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def _instance_norm(g: _Graph) -> None:
    x, shape = g.pick(4)
    if len(shape) == 4:
        g.add("InstanceNormalization", [x, g.weight(shape[1:2]), g.weight(shape[1:2])], shape)


def _resize(g: _Graph) -> None:
    x, shape = g.pick(4)
    if len(shape) != 4 or shape[2] > 8:
        return
    scales = g.constant([1, 1, 2, 2])
    mode = str(g.rng.choice(["nearest", "linear", "cubic"]))
    g.add("Resize", [x, "", scales], (*shape[:2], shape[2] * 2, shape[3] * 2), mode=mode)


def _move(g: _Graph) -> None:
    x, shape = g.pick()
    if len(shape) < 2:
        return
    kind = int(g.rng.integers(6))
    if kind == 0:
        perm = [int(p) for p in g.rng.permutation(len(shape))]
        g.add("Transpose", [x], tuple(shape[p] for p in perm), perm=perm)
    elif kind == 1:
        new = (shape[0], int(np.prod(shape[1:])))
        g.add("Reshape", [x, g.constant(new, np.int64)], new)
    elif kind == 2 and shape[-1] > 1:
        ends = [g.constant([v], np.int64) for v in (1, shape[-1], -1)]
        g.add("Slice", [x, *ends], (*shape[:-1], shape[-1] - 1))
    elif kind == 3:
        same = [name for name, other in g.values if other == shape]
        g.add("Concat", [x, str(g.rng.choice(same))], (shape[0], shape[1] * 2, *shape[2:]), axis=1)
    elif kind == 4:
        pads = [0] * (2 * len(shape))
        pads[-1] = 2
        fill = g.constant(g.rng.choice([0.0, 3.5]))
        g.add("Pad", [x, g.constant(pads, np.int64), fill], (*shape[:-1], shape[-1] + 2))
    else:
        g.add("Unsqueeze", [x, g.constant([0], np.int64)], (1, *shape))


def _select(g: _Graph) -> None:
    x, shape = g.pick()
    kind = int(g.rng.integers(5))
    if kind == 0:
        mask = g.hidden("Greater", [x, g.constant(0.1)])
        g.add("Where", [mask, x, g.constant(g.rng.choice([0.0, -1e4, 2.0]))], shape)
    elif kind == 1:
        low, high = sorted(float(v) for v in g.rng.normal(size=2))
        g.add("Clip", [x, g.constant(low), g.constant(high)], shape)
    elif kind == 2:
        g.add("Cast", [g.hidden("Cast", [x], to=TensorProto.INT32)], shape, to=TensorProto.FLOAT)
    elif kind == 3:
        scale, zero = g.constant(0.05), g.constant(3, np.int8)
        g.add("DequantizeLinear", [g.hidden("QuantizeLinear", [x, scale, zero]), scale, zero], shape)
    elif shape:
        g.add("PRelu", [x, g.weight(shape[-1:])], shape)


def _recurrent(g: _Graph) -> None:
    x, shape = g.pick(3)
    if len(shape) != 3:
        return
    size = 4
    op, gates = [("LSTM", 4), ("GRU", 3), ("RNN", 1)][int(g.rng.integers(3))]
    inputs = [x, g.weight((1, gates * size, shape[2])), g.weight((1, gates * size, size))]
    y = g.hidden(op, inputs, hidden_size=size)
    g.add("Squeeze", [y, g.constant([1], np.int64)], (shape[0], shape[1], size))


def _table(g: _Graph) -> None:
    x, shape = g.pick()
    rows = 7
    number = g.hidden("Where", [g.hidden("IsNaN", [x]), g.constant(0.0), g.hidden("Sigmoid", [x])])
    index = g.hidden("Cast", [number], to=TensorProto.INT64)
    g.add("Gather", [g.weight((rows, 5)), index], (*shape, 5))


_STEPS: Final[tuple[Callable[[_Graph], None], ...]] = (
    _unary,
    _unary,
    _unary,
    _binary,
    _binary,
    _binary,
    _power,
    _reduce,
    _matmul,
    _left_matmul,
    _attention,
    _layer_norm,
    _written_norm,
    _written_softmax,
    _conv,
    _conv_transpose,
    _pool,
    _instance_norm,
    _resize,
    _move,
    _select,
    _recurrent,
    _table,
)


def make_graph(rng: Rng, steps: int = 7) -> tuple[onnx.ModelProto, dict[str, tuple[float, float]]]:
    """A random model, and a range for each of its inputs.

    Args:
        rng: source of randomness.
        steps: number of steps, each of which adds up to a dozen operators.

    Returns:
        The model (every value of the last steps is an output) and (low, high) per input name.
    """
    g = _Graph(rng)
    kinds: list[Shape] = [(2, 3, 4, 4), (2, 3, 6), (4, 8)]
    inputs, ranges = [], {}
    for i in range(int(rng.integers(1, 3))):
        shape = kinds[int(rng.integers(len(kinds)))]
        name, middle, width = f"x{i}", rng.normal() * 10 ** rng.uniform(-2, 2), 10 ** rng.uniform(-3, 2.5)
        low, high = (0.0, width) if rng.random() < 0.4 else (middle - width, middle + width)
        inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        ranges[name] = (float(np.float32(low)), float(np.float32(high)))
        g.values.append((name, shape))
    for _ in range(steps):
        size = max(int(np.prod(shape)) for _, shape in g.values)
        if size < 5000:
            _STEPS[int(rng.integers(len(_STEPS)))](g)
    if not g.nodes:
        _unary(g)
    last = g.nodes[-1].output[0]
    graph = helper.make_graph(
        g.nodes, "random", inputs, [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)], g.weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    return model, ranges


def make_feed(
    model: onnx.ModelProto, ranges: Mapping[str, tuple[float, float]], rng: Rng
) -> dict[str, npt.NDArray[np.float32]]:
    """Inputs inside their ranges: spread out, at the ends, all alike, or all alike but for one."""
    feed = {}
    for info in model.graph.input:
        shape = tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
        low, high = ranges[info.name]
        kind = int(rng.integers(5))
        if kind == 0:
            array = np.where(rng.random(shape) < 0.5, low, high)
        elif kind == 1:
            array = np.full(shape, rng.uniform(low, high))
        elif kind == 2:
            array = np.full(shape, rng.choice([low, high]))
            array.flat[int(rng.integers(array.size))] = rng.uniform(low, high)
        elif kind == 3:
            array = low + (high - low) * rng.random(shape) ** 8
        else:
            array = rng.uniform(low, high, shape)
        feed[info.name] = np.clip(array.astype(np.float32), np.float32(low), np.float32(high))
    return feed
