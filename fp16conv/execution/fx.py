"""Runs PyTorch programs call by call, in FP32 and in honest FP16: every half result is a half tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx import Interpreter, Node
from torch.fx.node import map_aggregate, map_arg

from fp16conv import half
from fp16conv.errors import DataError, ValidationError
from fp16conv.execution.switches import Slot as Rounding
from fp16conv.execution.switches import group_readers
from fp16conv.execution.traits import is_exact_operator
from fp16conv.frontends.fx.program import LoadedProgram, Slot, stored_tensor
from fp16conv.frontends.fx.typing import base_name
from fp16conv.graph import DataType, ModelGraph, Use

__all__ = [
    "ProgramRun",
    "ProgramRunner",
    "Roundings",
    "find_roundings",
    "put_argument",
    "run_program",
    "to_array",
]

_MISSING_KERNEL = "not implemented for 'Half'"
_UNINITIALIZED = frozenset(
    {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
)


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


@dataclass(frozen=True)
class Roundings:
    """Which numbers of an FP32 program are rounded to FP16 on the way to which of their readers.

    Args:
        tensors: pairs of the node that reads and the value id that it reads rounded.
        numbers: per node, the places of literals with the rounded number.
        values: value id of (node, output index).
        saturated: value ids that become +-65504 instead of infinite.
    """

    tensors: frozenset[tuple[Node, int]]
    numbers: Mapping[Node, tuple[tuple[Slot, float], ...]]
    values: Mapping[tuple[Node, int], int]
    saturated: frozenset[int]

    @classmethod
    def of(
        cls, loaded: LoadedProgram, uses: Mapping[int, tuple[Use, ...]], saturated: frozenset[int]
    ) -> Roundings:
        """Collect roundings.

        Args:
            loaded: the program.
            uses: per value id, the uses that read it rounded.
            saturated: value ids that become +-65504 instead of infinite.
        """
        output = next(n for n in loaded.program.graph.nodes if n.op == "output")
        tensors: set[tuple[Node, int]] = set()
        numbers: dict[Node, list[tuple[Slot, float]]] = {}
        held = set(loaded.value_ids.values())
        for value, readers in uses.items():
            literal = None if value in held else loaded.graph.array(value)
            for use in readers:
                if use.op is None:
                    tensors.add((output, value))
                elif literal is None:
                    tensors.add((loaded.nodes[use.op], value))
                elif (place := loaded.slots[use.op][use.slot]) is not None:
                    rounded = half.saturate(literal) if value in saturated else literal
                    number = float(half.round_to_fp16(np.asarray(rounded, np.float32)))
                    numbers.setdefault(loaded.nodes[use.op], []).append((place, number))
        places = {node: tuple(found) for node, found in numbers.items()}
        return cls(frozenset(tensors), places, loaded.value_ids, saturated)


def find_roundings(graph: ModelGraph) -> tuple[tuple[Rounding, tuple[Use, ...]], ...]:
    """The roundings that plans can switch on, each with the uses that see it, in order of value ids."""
    found = []
    for value in graph.values:
        if value.dtype is not DataType.FLOAT:
            continue
        source = graph.typevar_of_value(value.id)
        producer = graph.producer(value.id)
        is_moved = producer is not None and is_exact_operator(producer.domain, producer.op_type)
        for reader, uses in group_readers(graph, value.id, is_moved):
            found.append((Rounding(value.id, None if source is None else source.id, reader), uses))
    return tuple(found)


class ProgramRunner:
    """Runs one program on one device; what the program stores is moved there once.

    Args:
        program: functional program.
        device: where it runs; `device` arguments of its calls are replaced.
        half: round parameters, buffers and floating inputs to FP16 first, as `module.half()` does.
        where: name for messages.
    """

    def __init__(
        self,
        program: ExportedProgram,
        *,
        device: torch.device | str = "cpu",
        half: bool = False,
        where: str = "",
    ) -> None:
        self._program, self._half, self._where = program, half, where
        self._device = torch.device(device)
        nodes = (n for n in program.graph.nodes if n.op == "placeholder")
        self._inputs = [
            (node, spec, self._place(stored_tensor(program, spec)))
            for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True)
        ]

    def run(
        self,
        batch: Mapping[str, Any],
        observe: Callable[[Node, object], None] | None = None,
        rounded: Roundings | None = None,
    ) -> ProgramRun:
        """Run the program, one call after the other.

        Args:
            batch: arrays by input name; floating ones are cast to the type the program wants.
            observe: told each call and what it gave.
            rounded: what is rounded to FP16 on the way.

        Raises:
            ValidationError: an input is missing.
            DataError: the program was not exported for the size of an input.
            Exception: whatever a call raises.
        """
        run = ProgramRun()
        values = [
            self._place(self._read(node, batch)) if _is_fed(spec) else stored
            for node, spec, stored in self._inputs
        ]
        with torch.no_grad():
            results = _Calls(self._program, self._device, run, observe, rounded).run(*values)
        for position, result in enumerate(results):
            if isinstance(result, torch.Tensor):
                run.outputs[position] = to_array(result)
        return run

    def _place(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        placed = value.to(self._device)
        return placed.half() if self._half and placed.dtype is torch.float32 else placed

    def _read(self, node: Node, batch: Mapping[str, Any]) -> Any:
        if node.name not in batch:
            raise ValidationError(f"no number is given for input '{node.name}'", where=self._where)
        fake = node.meta.get("val")
        array = np.array(batch[node.name])
        if not isinstance(fake, torch.Tensor):
            return array.item()
        self._check_sizes(node.name, array, fake)
        tensor = torch.from_numpy(array)
        return tensor.to(fake.dtype) if tensor.dtype != fake.dtype else tensor

    def _check_sizes(self, name: str, array: npt.NDArray[Any], fake: torch.Tensor) -> None:
        """Sizes that the program was not exported for may give wrong numbers without an error."""
        for axis, (size, dim) in enumerate(zip(array.shape, fake.shape, strict=False)):
            if isinstance(dim, int):
                continue
            bounds = self._program.range_constraints.get(dim.node.expr)
            if bounds is not None and not bounds.lower <= size <= bounds.upper:
                raise DataError(
                    f"input '{name}' has size {size} on axis {axis}",
                    where=self._where,
                    why=f"the program was exported for {bounds.lower} to {bounds.upper}",
                    hint="give other data or --shape, or export it for these sizes",
                )


def run_program(
    program: ExportedProgram,
    batch: Mapping[str, Any],
    observe: Callable[[Node, object], None] | None = None,
    *,
    half: bool = False,
    where: str = "",
) -> ProgramRun:
    """Run a program once on the CPU; see `ProgramRunner`."""
    return ProgramRunner(program, half=half, where=where).run(batch, observe)


def to_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor as numpy array (bfloat16 as float32)."""
    plain = tensor.detach().cpu()
    plain = plain.resolve_conj().resolve_neg()
    array: npt.NDArray[Any] = (plain.float() if plain.dtype is torch.bfloat16 else plain).numpy()
    return array


class _Calls(Interpreter):
    def __init__(
        self,
        program: ExportedProgram,
        device: torch.device,
        run: ProgramRun,
        observe: Callable[[Node, object], None] | None,
        rounded: Roundings | None,
    ) -> None:
        super().__init__(program.graph_module)
        self._device, self._run, self._observe, self._rounded = device, run, observe, rounded

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What a call gets: rounded where that is asked for, on the device that was chosen."""
        read: tuple[Any, Any] = (n.args, n.kwargs)
        rounded = self._rounded
        if rounded is not None and n in rounded.numbers:
            args, kwargs = list(n.args), dict(n.kwargs)
            for place, number in rounded.numbers[n]:
                put_argument(args, kwargs, place, number)
            read = (tuple(args), kwargs)
        args, kwargs = map_aggregate(map_arg(read, lambda m: self._value(n, m)), self._moved)
        return tuple(args), dict(kwargs)

    def _moved(self, value: Any) -> Any:
        return self._device if isinstance(value, torch.device) else value

    def _value(self, reader: Node, node: Node) -> Any:
        value = self.env[node]
        if self._rounded is None or not isinstance(value, torch.Tensor):
            return value
        index = self._rounded.values.get((node, 0))
        if index is None or (reader, index) not in self._rounded.tensors:
            return value
        narrow = value.clamp(-half.MAX, half.MAX) if index in self._rounded.saturated else value
        return narrow.half().float()

    def run_node(self, n: Node) -> Any:
        try:
            result = super().run_node(n)
        except (RuntimeError, NotImplementedError) as error:
            if _MISSING_KERNEL not in str(error) or n.op != "call_function":
                raise
            result = self._run_widened(n)
        if isinstance(n.target, OpOverload) and base_name(n.target) in _UNINITIALIZED:
            result.zero_()  # what happened to be in memory is no number of the program
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


def put_argument(args: list[Any], kwargs: dict[str, Any], place: Slot, value: Any) -> None:
    """Replace one argument of a call, or one item of an argument that is a list."""
    is_positional = place.position < len(args)
    if place.item is not None:
        items = list(args[place.position] if is_positional else kwargs[place.argument])
        items[place.item] = value
        value = items
    if is_positional:
        args[place.position] = value
    else:
        kwargs[place.argument] = value


def _is_fed(spec: Any) -> bool:
    return spec.kind is InputKind.USER_INPUT and not isinstance(spec.arg, ConstantArgument)
