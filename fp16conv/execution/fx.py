"""Runs PyTorch programs call by call, in FP32 and in honest FP16: every half result is a half tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx import Interpreter, Node

from fp16conv.errors import ValidationError
from fp16conv.frontends.fx.program import stored_tensor

__all__ = ["ProgramRun", "run_program", "to_array"]

_MISSING_KERNEL = "not implemented for 'Half'"


@dataclass
class ProgramRun:
    """What a run gave.

    Args:
        outputs: results by position among the outputs, tensors only.
        without_kernel: calls that have no half kernel on this device: they were computed in FP32 from the
            half inputs, and their results rounded to half.
    """

    outputs: dict[int, npt.NDArray[Any]] = field(default_factory=dict)
    without_kernel: dict[str, None] = field(default_factory=dict)


def run_program(
    program: ExportedProgram,
    batch: Mapping[str, Any],
    observe: Callable[[Node, object], None] | None = None,
    *,
    half: bool = False,
    where: str = "",
) -> ProgramRun:
    """Run a program on the CPU, one call after the other.

    Args:
        program: functional program.
        batch: arrays by input name; floating ones are cast to the type the program wants.
        observe: told each call and what it gave.
        half: round parameters, buffers and floating inputs to FP16 first, as `module.half()` does.
        where: name for messages.

    Raises:
        ValidationError: an input is missing.
        Exception: whatever a call raises.
    """
    run = ProgramRun()
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    values = [
        _cast(_input(program, spec, node, batch, where), half)
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True)
    ]
    with torch.no_grad():
        results = _Runner(program, run, observe).run(*values)
    for position, result in enumerate(results):
        if isinstance(result, torch.Tensor):
            run.outputs[position] = to_array(result)
    return run


def to_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor as numpy array (bfloat16 as float32)."""
    plain = tensor.detach().cpu()
    plain = plain.resolve_conj().resolve_neg()
    array: npt.NDArray[Any] = (plain.float() if plain.dtype is torch.bfloat16 else plain).numpy()
    return array


class _Runner(Interpreter):
    def __init__(
        self, program: ExportedProgram, run: ProgramRun, observe: Callable[[Node, object], None] | None
    ) -> None:
        super().__init__(program.graph_module)
        self._run, self._observe = run, observe

    def run_node(self, n: Node) -> Any:
        try:
            result = super().run_node(n)
        except (RuntimeError, NotImplementedError) as error:
            if _MISSING_KERNEL not in str(error) or n.op != "call_function":
                raise
            result = self._run_widened(n)
        if self._observe is not None and n.op == "call_function":
            self._observe(n, result)
        return result

    def _run_widened(self, n: Node) -> Any:
        """No half kernel here: FP32 inside, rounded to half behind, as a kernel with a float accumulator."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        wide = torch.utils._pytree.tree_map_only(torch.Tensor, _widen, (args, kwargs))
        assert callable(n.target)
        result = n.target(*wide[0], **wide[1])
        self._run.without_kernel[str(n.target)] = None
        return torch.utils._pytree.tree_map_only(torch.Tensor, _narrow, result)


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype is torch.float16 else tensor


def _narrow(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.half() if tensor.dtype is torch.float32 else tensor


def _cast(value: Any, half: bool) -> Any:
    if half and isinstance(value, torch.Tensor) and value.dtype is torch.float32:
        return value.half()
    return value


def _input(program: ExportedProgram, spec: Any, node: Node, batch: Mapping[str, Any], where: str) -> Any:
    stored = stored_tensor(program, spec)
    if spec.kind is not InputKind.USER_INPUT or isinstance(spec.arg, ConstantArgument):
        return stored
    if node.name not in batch:
        raise ValidationError(f"no number is given for input '{node.name}'", where=where)
    fake = node.meta.get("val")
    array = np.array(batch[node.name])
    if not isinstance(fake, torch.Tensor):
        return array.item()
    tensor = torch.from_numpy(array)
    return tensor.to(fake.dtype) if tensor.dtype != fake.dtype else tensor
