"""Pessimistic accumulation: reductions that round their partial sums to FP16 after every few terms.

Tensor Cores accumulate in FP32 unless told otherwise; some back ends (FP16 accumulators, packed half
arithmetic on CPUs and mobile GPUs) do not, and then partial sums overflow or lose their small terms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fp16conv.execution.rounding import Rounder

__all__ = ["split_reductions"]

_MAX_PIECES = 64  # pieces a reduction is cut into at most; longer ones sum more terms between two roundings
_FLOAT = ir.DataType.FLOAT


def split_reductions(model: ir.Model, rounder: Rounder, narrow: Collection[ir.Node]) -> None:
    """Cut the reductions among `narrow` into pieces and round after each, in place.

    Handles MatMul, Gemm, Conv (one group), ReduceSum and ReduceMean whose reduced length is known; others
    keep exact accumulation.
    """
    opset = next((v for d, v in model.opset_imports.items() if d in ("", "ai.onnx")), 1)
    splitter = _Splitter(rounder, opset)
    for graph in list(model.graphs()):
        for node in list(graph):
            if node in narrow and node.domain in ("", "ai.onnx"):
                splitter.split(node, graph)


@dataclass(frozen=True, slots=True)
class _Cut:
    """Inputs to cut along an axis into `sizes`, and how to make one piece of the result."""

    operands: tuple[tuple[ir.Value, int], ...]
    sizes: tuple[int, ...]
    make: Callable[[int, list[ir.Value]], ir.Node]
    first: tuple[ir.Node, ...] = ()
    divisor: float = 1.0


class _Splitter:
    def __init__(self, rounder: Rounder, opset: int) -> None:
        self.rounder, self.opset = rounder, opset

    def split(self, node: ir.Node, graph: ir.Graph) -> None:
        cutters = {
            "MatMul": self._matmul,
            "Gemm": self._gemm,
            "Conv": self._conv,
            "ReduceSum": self._reduce,
            "ReduceMean": self._reduce,
        }
        cutter = cutters.get(node.op_type)
        cut = cutter(node) if cutter is not None else None
        if cut is None or len(cut.sizes) < 2:
            return
        output = node.outputs[0]
        made: list[ir.Node] = list(cut.first)
        columns = [self._split_operand(v, axis, cut.sizes, made) for v, axis in cut.operands]
        total: ir.Value | None = None
        for index in range(len(cut.sizes)):
            piece = cut.make(index, [column[index] for column in columns])
            self._name(piece, output, "piece")
            made.append(piece)
            partial = piece.outputs[0]
            if total is not None:
                add = self.rounder.node(
                    "Add", [total, partial], _FLOAT, self.rounder.fresh(output.name, "sum")
                )
                add.outputs[0].shape = output.shape
                made.append(add)
                partial = add.outputs[0]
            rounded = self.rounder.round(partial, self.rounder.fresh(output.name, "partial"))
            made.extend(rounded)
            total = rounded[-1].outputs[0]
        last = made[-1].outputs[0]
        if cut.divisor != 1.0:
            scale = self._constant(np.float32(cut.divisor), output)
            divide = self.rounder.node(
                "Div", [last, scale.outputs[0]], _FLOAT, self.rounder.fresh(output.name, "mean")
            )
            made += [scale, divide]
            last = divide.outputs[0]
        name = output.name
        graph.insert_after(node, made)
        output.replace_all_uses_with(last, replace_graph_outputs=True)
        output.name = self.rounder.fresh(name, "whole")
        last.name, last.shape = name, output.shape
        graph.remove(node, safe=True)

    def _matmul(self, node: ir.Node) -> _Cut | None:
        a, b = node.inputs[0], node.inputs[1]
        if a is None or b is None or not a.shape or not b.shape:
            return None
        inner = -2 if len(b.shape) > 1 else -1
        length = _known(b.shape[inner]) or _known(a.shape[-1])
        if length is None:
            return None
        operands = ((a, len(a.shape) - 1), (b, len(b.shape) + inner))
        return _Cut(operands, self._sizes(length), lambda _, parts: ir.node("MatMul", parts))

    def _gemm(self, node: ir.Node) -> _Cut | None:
        a, b = node.inputs[0], node.inputs[1]
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if a is None or b is None or a.shape is None or b.shape is None or (bias is None and self.opset < 11):
            return None
        flip_a, flip_b = _int(node, "transA", 0), _int(node, "transB", 0)
        length = _known(b.shape[1 if flip_b else 0]) or _known(a.shape[0 if flip_a else 1])
        if length is None or self.opset < 11:
            return None

        def make(index: int, parts: list[ir.Value]) -> ir.Node:
            inputs = [*parts, bias] if index == 0 and bias is not None else parts
            return ir.Node("", "Gemm", inputs, list(node.attributes.values()))

        return _Cut(((a, 0 if flip_a else 1), (b, 1 if flip_b else 0)), self._sizes(length), make)

    def _conv(self, node: ir.Node) -> _Cut | None:
        x, w = node.inputs[0], node.inputs[1]
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if x is None or w is None or w.shape is None or _int(node, "group", 1) != 1:
            return None
        dims = [_known(d) for d in w.shape]
        if any(d is None for d in dims[1:]):
            return None
        taps = int(np.prod([d for d in dims[2:] if d is not None], dtype=np.int64))

        def make(index: int, parts: list[ir.Value]) -> ir.Node:
            inputs = [*parts, bias] if index == 0 and bias is not None else parts
            return ir.Node("", "Conv", inputs, list(node.attributes.values()))

        return _Cut(((x, 1), (w, 1)), self._sizes(dims[1] or 1, taps), make)

    def _reduce(self, node: ir.Node) -> _Cut | None:
        x = node.inputs[0]
        if x is None or x.shape is None:
            return None
        axes = self._axes(node, len(x.shape))
        lengths = [_known(x.shape[a]) for a in axes] if axes else []
        if not axes or any(n is None for n in lengths):
            return None
        sizes = [n for n in lengths if n is not None]
        longest = max(range(len(sizes)), key=lambda i: sizes[i])
        total = int(np.prod(sizes, dtype=np.int64))
        attributes, inputs = list(node.attributes.values()), list(node.inputs[1:])
        first: tuple[ir.Node, ...] = ()
        if node.op_type == "ReduceMean" and self.opset >= 13 and not inputs:
            # ReduceSum takes its axes as an input from opset 13 on, ReduceMean from 18 on.
            attributes = [a for a in attributes if a.name != "axes"]
            first = (self._constant(np.asarray(axes, dtype=np.int64), x),)
            inputs = [first[0].outputs[0]]

        def make(_: int, parts: list[ir.Value]) -> ir.Node:
            return ir.Node("", "ReduceSum", [parts[0], *inputs], attributes)

        others = total // max(1, sizes[longest])
        divisor = float(total) if node.op_type == "ReduceMean" else 1.0
        return _Cut(((x, axes[longest]),), self._sizes(sizes[longest], others), make, first, divisor)

    def _axes(self, node: ir.Node, rank: int) -> list[int]:
        if "axes" in node.attributes:
            raw = list(node.attributes["axes"].as_ints())
        elif len(node.inputs) > 1 and node.inputs[1] is not None:
            tensor = ir.convenience.get_const_tensor(node.inputs[1])
            if tensor is None:
                return []
            raw = [int(a) for a in tensor.numpy().ravel()]
        else:
            raw = [] if _int(node, "noop_with_empty_axes", 0) else list(range(rank))
        return sorted(a % rank for a in raw) if rank else []

    def _sizes(self, length: int, weight: int = 1) -> tuple[int, ...]:
        """Lengths of the pieces: `block` terms each, where one index stands for `weight` terms."""
        step = max(1, self.rounder.options.block // max(1, weight))
        step = max(step, -(-length // _MAX_PIECES))
        return tuple(min(step, length - start) for start in range(0, length, step))

    def _split_operand(
        self, value: ir.Value, axis: int, sizes: tuple[int, ...], made: list[ir.Node]
    ) -> list[ir.Value]:
        if self.opset >= 13:
            lengths = self._constant(np.asarray(sizes, dtype=np.int64), value)
            made.append(lengths)
            node = ir.node(
                "Split", [value, lengths.outputs[0]], attributes={"axis": axis}, num_outputs=len(sizes)
            )
        else:
            node = ir.node(
                "Split", [value], attributes={"axis": axis, "split": list(sizes)}, num_outputs=len(sizes)
            )
        node.name = self.rounder.fresh(value.name, "Split")
        for output in node.outputs:
            output.name, output.type = self.rounder.fresh(value.name, "part"), ir.TensorType(_FLOAT)
        made.append(node)
        return list(node.outputs)

    def _constant(self, array: npt.NDArray[np.generic] | np.generic, like: ir.Value) -> ir.Node:
        return self.rounder.constant(array, self.rounder.fresh(like.name, "const"))

    def _name(self, node: ir.Node, output: ir.Value, suffix: str) -> None:
        node.outputs[0].name = self.rounder.fresh(output.name, suffix)
        node.name = self.rounder.fresh(output.name, node.op_type)
        node.outputs[0].type, node.outputs[0].shape = ir.TensorType(_FLOAT), output.shape


def _known(dim: object) -> int | None:
    return dim if isinstance(dim, int) else None


def _int(node: ir.Node, name: str, default: int) -> int:
    return node.attributes[name].as_int() if name in node.attributes else default
