"""LoadedProgram: a PyTorch program as its exporter gives it and as the neutral graph, and the map between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec
from torch.fx import Node

from fp16conv.graph import DataType, ModelGraph

__all__ = ["DTYPES", "LoadedProgram", "Slot", "TorchTensor", "stored_tensor"]

DTYPES: Mapping[torch.dtype, DataType] = {
    torch.float32: DataType.FLOAT,
    torch.float16: DataType.FLOAT16,
    torch.bfloat16: DataType.BFLOAT16,
    torch.float64: DataType.DOUBLE,
    torch.int8: DataType.INT8,
    torch.int16: DataType.INT16,
    torch.int32: DataType.INT32,
    torch.int64: DataType.INT64,
    torch.uint8: DataType.UINT8,
    torch.uint16: DataType.UINT16,
    torch.uint32: DataType.UINT32,
    torch.uint64: DataType.UINT64,
    torch.bool: DataType.BOOL,
}
"""Neutral name of a torch dtype; complex, quantized and 8-bit floats are `other`."""


@dataclass(frozen=True, slots=True)
class TorchTensor:
    """A tensor's numbers for the neutral graph; nothing is copied before they are read."""

    tensor: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    @property
    def size(self) -> int:
        return self.tensor.numel()

    def numpy(self) -> npt.NDArray[np.generic]:
        tensor = self.tensor.detach().cpu()
        array: npt.NDArray[np.generic] = (
            tensor.float() if tensor.dtype is torch.bfloat16 else tensor
        ).numpy()
        return array


@dataclass(frozen=True, slots=True)
class Slot:
    """Where an operator's input sits in the call: schema argument, and position if it is a list.

    Args:
        argument: name in the operator schema.
        position: index among the schema's arguments.
        item: index in the list, None where the argument is no list.
    """

    argument: str
    position: int
    item: int | None = None


@dataclass(frozen=True)
class LoadedProgram:
    """A program and its graph.

    Args:
        source: what the user named.
        program: functional program of ATen calls; composites (`linear`, `rms_norm`, SDPA) are whole.
        graph: the neutral graph.
        nodes: FX node by op id.
        slots: per op id, for each input slot where it sits in the call; None for what is no tensor.
        value_ids: (node, output index) -> value id.
        output_names: names of the user's outputs that are tensors, by position among the node's arguments.
        module: the module it was exported from, where there is one: what `.half()` is tried on.
        example: the user's example inputs by name, None where the program carries none.
    """

    source: str
    program: ExportedProgram
    graph: ModelGraph
    nodes: tuple[Node, ...]
    slots: tuple[tuple[Slot | None, ...], ...]
    value_ids: Mapping[tuple[Node, int], int]
    output_names: Mapping[int, str]
    module: torch.nn.Module | None = None
    example: Mapping[str, npt.NDArray[np.generic]] | None = None
    call: tuple[tuple[Any, ...], Mapping[str, Any]] | None = field(default=None, repr=False)


def stored_tensor(program: ExportedProgram, spec: InputSpec) -> Any:
    """What a program feeds to an input that the user does not: a parameter, buffer or constant.

    Returns:
        A tensor; a plain number for a constant argument; None for what the user feeds.
    """
    if spec.kind is InputKind.USER_INPUT:
        return spec.arg.value if isinstance(spec.arg, ConstantArgument) else None
    name = spec.target
    if name in program.state_dict:
        return program.state_dict[name]
    return program.constants.get(name) if name is not None else None
