"""Error along the depth of a PyTorch program: how far every value is from its FP32 twin."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fp16conv.execution.fx import ProgramRunner, to_array
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.graph import DataType
from fp16conv.validation.depth import chunk_values, relative_error

__all__ = ["errors_of_program"]

Batch = Mapping[str, Any]


def errors_of_program(
    loaded: LoadedProgram,
    program: ExportedProgram,
    batch: Batch,
    shapes: Mapping[int, tuple[int, ...]],
    memory_limit: int,
) -> dict[int, float]:
    """Compare every FLOAT value of a converted program with the FP32 run.

    Args:
        loaded: the FP32 program.
        program: what the converter made of it.
        batch: inputs, array per name.
        shapes: observed shape per value id.
        memory_limit: bytes of values held at a time.

    Returns:
        Relative L2 error per value id.
    """
    wanted = [v.id for v in loaded.graph.values if v.dtype is DataType.FLOAT and v.producer is not None]
    runners = ProgramRunner(loaded.program), ProgramRunner(program)
    errors: dict[int, float] = {}
    for chunk in chunk_values(wanted, shapes, memory_limit):
        exact, rounded = (_read(loaded, runner, batch, frozenset(chunk)) for runner in runners)
        errors |= {v: relative_error(exact[v], rounded[v]) for v in chunk if v in exact and v in rounded}
    return errors


def _read(
    loaded: LoadedProgram, runner: ProgramRunner, batch: Batch, wanted: frozenset[int]
) -> dict[int, npt.NDArray[Any]]:
    """Values by id; the converter keeps the names of the nodes that make them."""
    places = {(node.name, slot): value for (node, slot), value in loaded.value_ids.items()}
    found: dict[int, npt.NDArray[Any]] = {}

    def look(node: Node, result: object) -> None:
        if node.target is not operator.getitem:
            found.update(pick(node, result))

    def pick(node: Node, result: object) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        for slot, tensor in enumerate(result if isinstance(result, list | tuple) else (result,)):
            value = places.get((node.name, slot))
            if value is not None and value in wanted and isinstance(tensor, torch.Tensor):
                yield value, to_array(tensor)

    runner.run(batch, look)
    return found
