"""Sparse initializers as the dense tensors that they stand for: runtimes compute with those."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

__all__ = ["attach_dense", "expecting_strays", "stray_weights"]

MAX_ELEMENTS = 2**29  # of a dense tensor, whatever a small file says; as of inputs that are made up
_SERDE = logging.getLogger("onnx_ir.serde")


@contextlib.contextmanager
def expecting_strays(proto: onnx.ModelProto) -> Iterator[None]:
    """While this lasts, onnx_ir does not warn of sparse initializers, which it takes for undefined."""
    known = tuple(f"Input '{sparse.values.name}' of node" for sparse in proto.graph.sparse_initializer)

    def is_news(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(known)

    if known:
        _SERDE.addFilter(is_news)
    try:
        yield
    finally:
        _SERDE.removeFilter(is_news)


def attach_dense(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Give the values that read sparse initializers their numbers, dense and lazily.

    onnx_ir has no class for sparse initializers: what reads one reads a value that is defined nowhere. It
    stays that, so that nothing writes the dense tensor; `stray_weights` finds it. Where a sparse tensor is
    not sound, or too large to be dense, its value gets no numbers.

    Args:
        model: made from `proto`.
        proto: holds the sparse initializers.
    """
    known = {sparse.values.name: sparse for sparse in proto.graph.sparse_initializer}
    if not known:
        return
    for node in model.graph.all_nodes():
        for value in node.inputs:
            if value is not None and value.name in known and value.const_value is None and _is_stray(value):
                value.const_value = _dense(known[value.name])


def stray_weights(model: ir.Model) -> dict[str, ir.Value]:
    """The values to which `attach_dense` gave numbers, by name; of several with one name, the last."""
    found = {}
    for node in model.graph.all_nodes():
        for value in node.inputs:
            if value is not None and value.name and value.const_value is not None and _is_stray(value):
                found[value.name] = value
    return found


def _is_stray(value: ir.Value) -> bool:
    return value.producer() is None and not value.is_graph_input() and not value.is_initializer()


def _dense(sparse: onnx.SparseTensorProto) -> ir.LazyTensor | None:
    """Indices are places in memory order [n] or coordinates [n, rank] (onnx.proto)."""
    name, shape = sparse.values.name, tuple(sparse.dims)
    tensors = sparse.values, sparse.indices
    if math.prod(shape) > MAX_ELEMENTS:
        return None
    try:
        numbers, indices = (onnx.numpy_helper.to_array(tensor) for tensor in tensors)
        coordinates = np.unravel_index(indices, shape) if indices.ndim == 1 else tuple(indices.T)
        np.ravel_multi_index(coordinates, shape)  # raises where one lies outside
    except (ValueError, TypeError):
        return None
    if numbers.shape != indices.shape[:1]:
        return None

    def densify() -> ir.TensorProtocol:
        dense: npt.NDArray[np.generic] = np.zeros(shape, numbers.dtype)
        dense[coordinates] = numbers
        return ir.tensor(dense, dtype=ir.DataType(sparse.values.data_type), name=name)

    return ir.LazyTensor(densify, ir.DataType(sparse.values.data_type), ir.Shape(shape), name=name)
