"""The building block of the emulator: a Cast pair that rounds an FP32 value to FP16."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fp16conv import half

__all__ = ["DEFAULT", "EmulationOptions", "Rounder", "shape_of", "widen_tensor", "widen_type"]


@dataclass(frozen=True, slots=True)
class EmulationOptions:
    """What the emulated hardware does beyond rounding every FP16 tensor.

    Args:
        fp16_accumulation: reductions (matrix products, convolutions, sums and means) round their partial
            sums to FP16 after every `block` terms; False accumulates in FP32, as Tensor Cores do by default.
        block: terms summed exactly between two roundings; 16 is the depth of one FP16 Tensor Core instruction
            (PTX ISA, `mma.m16n8k16`).
        flush_subnormals: magnitudes below 2^-14 become zero.
    """

    fp16_accumulation: bool = False
    block: int = 16
    flush_subnormals: bool = False


DEFAULT = EmulationOptions()


class Rounder:
    """Makes rounding nodes with names that are new in the model."""

    def __init__(self, model: ir.Model, options: EmulationOptions) -> None:
        self.options = options
        self._taken = {value.name for value in _all_values(model) if value.name}
        for graph in scopes(model):
            self._taken.update(node.name for node in graph.all_nodes() if node.name)

    def fresh(self, name: str | None, suffix: str) -> str:
        """A name nobody has, derived from `name`."""
        candidate, count = f"{name or 'value'}//{suffix}", 1
        while candidate in self._taken:
            count += 1
            candidate = f"{name or 'value'}//{suffix}{count}"
        self._taken.add(candidate)
        return candidate

    def node(
        self, op_type: str, inputs: list[ir.Value | None], dtype: ir.DataType, name: str, **attrs: int
    ) -> ir.Node:
        """An operator with one output of a known type, shaped like its first input."""
        node = ir.node(op_type, inputs, attributes=attrs or None, name=self.fresh(name, op_type))
        (output,) = node.outputs
        output.name = name
        output.type = ir.TensorType(dtype)
        if inputs and inputs[0] is not None:
            output.shape = inputs[0].shape
        return node

    def constant(self, array: npt.NDArray[np.generic] | np.generic, name: str) -> ir.Node:
        """A Constant node."""
        tensor = ir.tensor(np.asarray(array))
        node = ir.node("Constant", [], attributes={"value": tensor}, name=self.fresh(name, "Constant"))
        (output,) = node.outputs
        output.name, output.type, output.shape = name, ir.TensorType(tensor.dtype), ir.Shape(np.shape(array))
        return node

    def cast(self, value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
        """`value` in another type."""
        return self.node("Cast", [value], to, name, to=int(to))

    def round(self, value: ir.Value, name: str, exponent: int = 0) -> list[ir.Node]:
        """Nodes that round an FP32 value; the last one's output has `name`.

        Args:
            value: float32.
            name: of the rounded value.
            exponent: what is rounded is the value times 2^-exponent.
        """
        if exponent:
            small = self._scale(value, -exponent, self.fresh(name, "small"))
            rounded = self.round(small[-1].outputs[0], self.fresh(name, "scaled"))
            return [*small, *rounded, *self._scale(rounded[-1].outputs[0], exponent, name)]
        narrow = self.cast(value, ir.DataType.FLOAT16, self.fresh(name, "fp16"))
        return [narrow, *self.widen(narrow.outputs[0], name)]

    def _scale(self, value: ir.Value, exponent: int, name: str) -> list[ir.Node]:
        factor = self.constant(np.float32(2.0**exponent), self.fresh(name, "factor"))
        return [factor, self.node("Mul", [value, factor.outputs[0]], ir.DataType.FLOAT, name)]

    def widen(self, value: ir.Value, name: str) -> list[ir.Node]:
        """Nodes that bring an FP16 value back to FP32; the last one's output has `name`."""
        if not self.options.flush_subnormals:
            return [self.cast(value, ir.DataType.FLOAT, name)]
        wide = self.cast(value, ir.DataType.FLOAT, self.fresh(name, "wide"))
        limit = self.constant(np.float32(half.SMALLEST_NORMAL), self.fresh(name, "limit"))
        size = self.node("Abs", [wide.outputs[0]], ir.DataType.FLOAT, self.fresh(name, "abs"))
        small = self.node(
            "Less", [size.outputs[0], limit.outputs[0]], ir.DataType.BOOL, self.fresh(name, "small")
        )
        keep = self.node("Not", [small.outputs[0]], ir.DataType.BOOL, self.fresh(name, "normal"))
        mask = self.cast(keep.outputs[0], ir.DataType.FLOAT, self.fresh(name, "mask"))
        product = self.node("Mul", [wide.outputs[0], mask.outputs[0]], ir.DataType.FLOAT, name)
        return [wide, limit, size, small, keep, mask, product]

    def numbers(
        self, array: npt.NDArray[np.generic], *, saturated: bool = False, exponent: int = 0
    ) -> npt.NDArray[np.float32]:
        """A constant's numbers as FP16 holds them, in float32; what it holds is them times 2^-exponent."""
        floats = array.astype(np.float32)
        if exponent:
            floats = np.ldexp(floats, -exponent)
        if saturated:
            rounded = half.saturate(floats).astype(np.float32)
        else:
            rounded = floats if array.dtype == np.float16 and not exponent else half.round_to_fp16(floats)
        if self.options.flush_subnormals:
            rounded[np.abs(rounded) < half.SMALLEST_NORMAL] = 0.0
        return np.ldexp(rounded, exponent) if exponent else rounded


def scopes(model: ir.Model) -> list[ir.Graph | ir.Function]:
    """The main graph and the bodies of local functions."""
    return [model.graph, *model.functions.values()]


def _all_values(model: ir.Model) -> Iterable[ir.Value]:
    for graph in scopes(model):
        yield from graph.inputs
        if isinstance(graph, ir.Graph):
            yield from graph.initializers.values()
        for node in graph.all_nodes():
            yield from node.outputs
            for attr in node.attributes.values():
                if not attr.is_ref() and attr.type is ir.AttributeType.GRAPH:
                    yield from attr.as_graph().inputs
                    yield from attr.as_graph().initializers.values()


def widen_tensor(tensor: ir.TensorProtocol, rounder: Rounder) -> ir.TensorProtocol:
    """An FP16 tensor as FP32, made when it is read: the values are exact."""

    def read() -> ir.TensorProtocol:
        return ir.tensor(rounder.numbers(tensor.numpy()), name=tensor.name)

    return ir.LazyTensor(read, ir.DataType.FLOAT, shape_of(tensor), name=tensor.name)


def shape_of(tensor: ir.TensorProtocol) -> ir.Shape:
    """A tensor's shape as the class the rest of onnx_ir wants."""
    return tensor.shape if isinstance(tensor.shape, ir.Shape) else ir.Shape(tensor.numpy().shape)


def widen_type(type_: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    """The FP32 twin of an FP16 type (tensor, sequence, optional); None when it holds no FP16."""
    if isinstance(type_, ir.SequenceType | ir.OptionalType):
        inner = widen_type(type_.elem_type)
        return None if inner is None else type(type_)(inner)
    if isinstance(type_, ir.TensorType) and type_.dtype is ir.DataType.FLOAT16:
        return ir.TensorType(ir.DataType.FLOAT)
    return None
