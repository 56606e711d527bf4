"""Applies a plan to a PyTorch program: parameters, casts, literals, dtype arguments. Nothing is decided."""

from __future__ import annotations

import copy
import dataclasses
import operator
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, cast

import numpy as np
import torch
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Interpreter, Node

from fp16conv import half
from fp16conv.conversion.assignment import Assignment, assign
from fp16conv.errors import ConversionError, first_line
from fp16conv.execution.fx import put_argument
from fp16conv.frontends.fx.importer import ASSERT_METADATA
from fp16conv.frontends.fx.program import LoadedProgram, Slot, stored_tensor
from fp16conv.frontends.fx.typing import CASTS, base_name, has_dtype
from fp16conv.graph import DataType, Op, Use
from fp16conv.planning.plan import PrecisionPlan

__all__ = ["convert_program", "save_program", "verify_types"]

_TORCH: Final[Mapping[DataType, torch.dtype]] = {
    DataType.FLOAT: torch.float32,
    DataType.FLOAT16: torch.float16,
}
_SUFFIX: Final = {DataType.FLOAT: "fp32", DataType.FLOAT16: "fp16"}
_CAST: Final = torch.ops.aten._to_copy.default
_STALE: Final = ("val", "tensor_meta", "from_node")


def convert_program(
    loaded: LoadedProgram, plan: PrecisionPlan | Assignment, *, master_weights: bool = False
) -> ExportedProgram:
    """Apply a plan; the program given stays untouched.

    Parameters and buffers that FP16 alone reads become half tensors (a second one is added where both types
    read it), a value is cast once per type, literals that act as infinity saturate to +-65504, `dtype`
    arguments cast for free, and assertions about dtypes that changed are dropped.

    Args:
        loaded: the program.
        plan: decisions for its graph, checked already if an assignment.
        master_weights: parameters and buffers stay FP32 and are cast where FP16 reads them, so that
            gradients flow into FP32 (training).

    Returns:
        A new ExportedProgram: `torch.export.save` writes it, `.module()` gives a GraphModule.

    Raises:
        PlanError: the plan does not belong to the program.
        ConversionError: torch refuses the result.
    """
    assignment = plan if isinstance(plan, Assignment) else assign(loaded.graph, plan)
    converter = _Converter(loaded, assignment, master_weights)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own copies use what torch deprecates
            return converter.run()
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise ConversionError(
            "torch refuses the converted program", where=loaded.source, why=str(error).strip()[:300]
        ) from error


def verify_types(program: ExportedProgram, source: str) -> None:
    """Run the program on shapes alone and check that every call accepts and gives the planned types.

    Raises:
        ConversionError: it does not; names the call.
    """
    vals = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"]
    mode = detect_fake_mode(vals)
    if mode is None:
        return
    with mode, torch.no_grad():
        _TypeCheck(program.graph_module, source).run(*vals)


def save_program(program: ExportedProgram, path: Path) -> None:
    """Write a .pt2 file.

    Raises:
        ConversionError: the disk is full, or writing fails in another way.
    """
    try:
        with path.open("wb") as file:
            sink = _Sink(file)
            torch.export.save(program, cast(IO[bytes], sink))
            if sink.error is not None:
                raise sink.error
            file.flush()
    except (OSError, RuntimeError) as error:  # torch's own writer raises the latter
        why = getattr(error, "strerror", None) or first_line(error)
        raise ConversionError("could not be written", where=str(path), why=why) from error


class _Sink:
    """A file for torch's writer, which aborts the process where a write fails: errors wait for the end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, content: bytes) -> int:
        if self.error is None:
            try:
                self._file.write(content)
            except OSError as error:
                self.error = error
        return len(content)

    def flush(self) -> None:
        """The file is flushed once all of it is written."""


class _TypeCheck(Interpreter):
    def __init__(self, module: GraphModule, source: str) -> None:
        super().__init__(module)
        self._source = source

    def run_node(self, n: Node) -> Any:
        if n.op != "call_function" or not isinstance(n.target, OpOverload):
            return n.meta.get("val") if n.op == "call_function" and "val" in n.meta else super().run_node(n)
        expected = n.meta.get("val")
        try:
            result = super().run_node(n)
        except torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode:
            return expected
        except (RuntimeError, NotImplementedError, TypeError) as error:
            if "unbacked" in str(error) or "data-dependent" in str(error).lower():
                return expected
            raise ConversionError(
                f"{n.target} does not take the types it gets",
                where=f"{self._source}: {n.name}",
                why=first_line(error),
            ) from error
        got, wanted = (x if isinstance(x, list | tuple) else (x,) for x in (result, expected))
        read = {user.args[1] for user in n.users if user.target is operator.getitem}
        for slot, (a, b) in enumerate(zip(got, wanted, strict=False)):
            if len(got) > 1 and slot not in read:
                continue
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dtype != b.dtype:
                raise ConversionError(
                    f"{n.target} gives {a.dtype} where {b.dtype} was planned",
                    where=f"{self._source}: {n.name}",
                    hint="please report this",
                )
        return expected


class _Converter:
    def __init__(self, loaded: LoadedProgram, assignment: Assignment, master_weights: bool) -> None:
        self.master_weights = master_weights
        self.loaded, self.assignment, self.neutral = loaded, assignment, loaded.graph
        self.program = loaded.program
        self.graph = Graph()
        self.made: dict[Node, Node] = {}
        self.typed: dict[tuple[int, DataType], Node] = {}
        self.state = dict(self.program.state_dict)
        self.constants = dict(self.program.constants)
        self.input_specs: list[InputSpec] = []
        self._halves: dict[tuple[int, tuple[int, ...], tuple[int, ...]], torch.Tensor] = {}

    def run(self) -> ExportedProgram:
        ops = {node: self.neutral.ops[i] for i, node in enumerate(self.loaded.nodes)}
        specs = iter(self.program.graph_signature.input_specs)
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._add_input(node, next(specs))
            elif node.op == "output":
                self._add_output(node)
            elif node in ops:
                self._add_call(node, ops[node])
            elif node.target is ASSERT_METADATA:
                self._add_assertion(node)
            elif node.target is operator.getitem:
                self.made[node] = self.graph.node_copy(node, self.made.__getitem__)
                self.made[node].meta = _fresh_meta(node)
                self._retype(self.made[node], node)
            else:
                self.made[node] = self._copy(node)
                self._retype(self.made[node], node)
        return self._wrap()

    # ---- inputs ----

    def _add_input(self, node: Node, spec: InputSpec) -> None:
        value = self.loaded.value_ids.get((node, 0))
        tensor = stored_tensor(self.program, spec)
        if value is None or not self.neutral.values[value].is_constant:
            made = self._copy(node)
            self.made[node] = made
            self._retype(made, node)
            self.input_specs.append(dataclasses.replace(spec, arg=_rename(spec.arg, made.name)))
            return
        uses = self.neutral.consumers(value)
        read = {self.assignment.of_use(use) for use in uses}
        is_float = self.neutral.values[value].dtype is DataType.FLOAT
        if self.master_weights or not is_float or DataType.FLOAT16 not in read:
            self._keep(node, spec)
            return
        is_shared = bool(read - {DataType.FLOAT16}) or self._is_output(value)
        if is_shared:
            self._keep(node, spec)
        name, target = (f"{node.name}_fp16", f"{spec.target}_fp16") if is_shared else (node.name, spec.target)
        assert target is not None
        narrow = self._narrow(tensor, saturating=value in self.assignment.saturated)
        store = self.state if spec.target in self.state else self.constants
        store[target] = narrow
        made = self.graph.create_node("placeholder", name, name=name)
        made.meta = _fresh_meta(node)
        made.meta["val"] = node.meta["val"].to(torch.float16)
        self.typed[value, DataType.FLOAT16] = made
        self.made.setdefault(node, made)
        self.input_specs.append(dataclasses.replace(spec, arg=TensorArgument(made.name), target=target))

    def _keep(self, node: Node, spec: InputSpec) -> None:
        made = self._copy(node)
        self.made[node] = made
        self.input_specs.append(dataclasses.replace(spec, arg=_rename(spec.arg, made.name)))

    def _is_output(self, value: int) -> bool:
        return any(use.op is None for use in self.neutral.consumers(value))

    def _narrow(self, tensor: torch.Tensor, *, saturating: bool) -> torch.Tensor:
        key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
        if key not in self._halves:  # tied parameters stay tied
            with torch.no_grad():
                narrow = tensor.detach().to(torch.float16)
                if saturating:
                    narrow = narrow.clamp(-half.MAX, half.MAX)
            if isinstance(tensor, torch.nn.Parameter):
                narrow = torch.nn.Parameter(narrow, requires_grad=tensor.requires_grad)
            self._halves[key] = narrow
        return self._halves[key]

    # ---- calls ----

    def _add_call(self, node: Node, op: Op) -> None:
        args, kwargs = list(node.args), dict(node.kwargs)
        for slot, place in enumerate(self.loaded.slots[op.id]):
            if place is None or place.position < 0 or op.inputs[slot] is None:
                continue
            use = Use(op.id, slot, op.scope)
            given = _at(args, kwargs, place)
            if isinstance(given, Node):
                put_argument(
                    args, kwargs, place, self._fetch(op.inputs[slot], given, self.assignment.of_use(use))
                )
            elif (
                self.assignment.of_use(use) is DataType.FLOAT16
                and op.inputs[slot] in self.assignment.saturated
            ):
                put_argument(args, kwargs, place, _saturate(given))
        target = node.target
        cast_behind = False
        if isinstance(target, OpOverload) and has_dtype(target):
            cast_behind = self._set_dtype(target, op, args, kwargs)
        mapped_args, mapped_kwargs = torch.fx.node.map_arg((tuple(args), kwargs), self._mapped)
        made = self.graph.create_node("call_function", target, mapped_args, mapped_kwargs, name=node.name)
        made.meta = _fresh_meta(node)
        made.meta["val"] = node.meta.get("val")
        self.made[node] = made
        if cast_behind:  # it computes in FP32 and hands on FP16
            self.made[node] = self._cast(made, node, DataType.FLOAT16)
        else:
            self._retype(made, node)

    def _mapped(self, node: Node) -> Node:
        """What was put in already stays; what no slot tells is read in its own type."""
        return self._origin(node) if node.graph is not self.graph else node

    def _fetch(self, value: int | None, node: Node, dtype: DataType) -> Node:
        """The node that holds a value in a type; a cast is made at its first reader."""
        if value is None or self.neutral.values[value].dtype is not DataType.FLOAT:
            return self.made[node]
        if (known := self.typed.get((value, dtype))) is not None:
            return known
        if self.assignment.of_value(value) is dtype:
            return self.made[node]
        self.typed[value, dtype] = self._cast(self.made[node], node, dtype)
        return self.typed[value, dtype]

    def _cast(self, source: Node, origin: Node, dtype: DataType) -> Node:
        name = f"{origin.name}_{_SUFFIX[dtype]}"
        made = self.graph.create_node("call_function", _CAST, (source,), {"dtype": _TORCH[dtype]}, name=name)
        made.meta = _fresh_meta(origin)
        made.meta["val"] = source.meta["val"].to(_TORCH[dtype])
        return made

    def _set_dtype(self, target: OpOverload, op: Op, args: list[Any], kwargs: dict[str, Any]) -> bool:
        """Rewrite the `dtype` argument; True where the call must be followed by a cast to FP16."""
        result = op.outputs[0] if op.outputs else None
        if result is None or self.neutral.values[result].dtype is not DataType.FLOAT:
            return False
        wanted = self.assignment.of_value(result)
        read = self._read_dtype(op)
        names = [a.name for a in target._schema.arguments]
        place = Slot("dtype", names.index("dtype"))
        given = _at(args, kwargs, place)
        if read is None or base_name(target) in CASTS:
            if wanted is DataType.FLOAT16 or (given is None and read is DataType.FLOAT16):
                put_argument(args, kwargs, place, _TORCH[wanted])
            return False
        if read is wanted:
            if given is not None:
                put_argument(args, kwargs, place, _TORCH[wanted])
            return False
        if wanted is DataType.FLOAT or base_name(target).startswith("new_") or "_like" in base_name(target):
            put_argument(args, kwargs, place, _TORCH[wanted])
            return False
        return True

    def _read_dtype(self, op: Op) -> DataType | None:
        """The type in which a call reads its floating tensors; None where it reads none."""
        for slot, value in enumerate(op.inputs):
            if value is not None and self.neutral.values[value].dtype is DataType.FLOAT:
                place = self.loaded.slots[op.id][slot]
                given = (
                    None
                    if place is None
                    else _at(
                        list(self.loaded.nodes[op.id].args), dict(self.loaded.nodes[op.id].kwargs), place
                    )
                )
                if isinstance(given, Node):
                    return self.assignment.of_use(Use(op.id, slot, op.scope))
        return None

    def _add_assertion(self, node: Node) -> None:
        """An assertion about a tensor whose type changed would fail: it is left out."""
        source = node.args[0]
        value = self.loaded.value_ids.get((source, 0)) if isinstance(source, Node) else None
        if value is not None and self.assignment.of_value(value) is not self.neutral.values[value].dtype:
            return
        if isinstance(source, Node) and self.made[source].meta["val"].dtype != source.meta["val"].dtype:
            return
        self.made[node] = self._copy(node)

    # ---- outputs ----

    def _add_output(self, node: Node) -> None:
        returned: list[Any] = []
        for position, value in enumerate(node.args[0]):
            if isinstance(value, Node):
                index = self.loaded.value_ids.get((value, 0))
                use = Use(None, position, 0)
                value = self._fetch(index, value, self.assignment.of_use(use))
            returned.append(value)
        made = self.graph.output(tuple(returned))
        made.meta = {k: v for k, v in node.meta.items() if k not in _STALE}
        made.meta["val"] = tuple(v.meta.get("val") if isinstance(v, Node) else v for v in returned)
        self.made[node] = made

    def _copy(self, node: Node) -> Node:
        made = self.graph.node_copy(node, self._origin)
        if node.op == "placeholder":
            made.name = node.name  # fx avoids the names of builtins; an exported input may be called `input`
        made.meta = _fresh_meta(node)
        if "val" in node.meta:
            made.meta["val"] = node.meta["val"]
        return made

    def _origin(self, node: Node) -> Node:
        """For calls that are no operators of ours: every value in its own type."""
        value = self.loaded.value_ids.get((node, 0))
        return (
            self.made[node] if value is None else self._fetch(value, node, self.neutral.values[value].dtype)
        )

    def _retype(self, made: Node, node: Node) -> None:
        """What a node holds follows the plan: the recorded fake tensors change type, not shape."""
        fake = node.meta.get("val")
        if fake is None:
            return
        if isinstance(fake, list | tuple):
            made.meta["val"] = type(fake)(self._retyped(node, i, f) for i, f in enumerate(fake))
        else:
            made.meta["val"] = self._retyped(node, 0, fake)

    def _retyped(self, node: Node, slot: int, fake: Any) -> Any:
        value = self.loaded.value_ids.get((node, slot))
        if value is None or not isinstance(fake, torch.Tensor) or self.neutral.values[value].is_constant:
            return fake
        wanted = _TORCH.get(self.assignment.of_value(value))
        return fake if wanted is None or fake.dtype == wanted else fake.to(wanted)

    def _wrap(self) -> ExportedProgram:
        output = next(n for n in self.graph.nodes if n.op == "output")
        returned = output.args[0]
        specs = [
            dataclasses.replace(spec, arg=_rename(spec.arg, value.name)) if isinstance(value, Node) else spec
            for spec, value in zip(self.program.graph_signature.output_specs, returned, strict=True)
        ]
        self.graph.lint()
        module = GraphModule(self.program.graph_module, self.graph)
        module.meta.update(self.program.graph_module.meta)
        return ExportedProgram(
            root=module,
            graph=module.graph,
            graph_signature=ExportGraphSignature(self.input_specs, specs),
            state_dict=self.state,
            range_constraints=copy.copy(self.program.range_constraints),
            module_call_graph=copy.deepcopy(self.program.module_call_graph),
            example_inputs=self.program.example_inputs,
            constants=self.constants,
            verifiers=self.program.verifiers,
        )


def _fresh_meta(node: Node) -> dict[str, Any]:
    return {key: value for key, value in node.meta.items() if key not in _STALE}


def _rename(argument: Any, name: str) -> Any:
    return dataclasses.replace(argument, name=name)


def _at(args: list[Any], kwargs: Mapping[str, Any], place: Slot) -> Any:
    given: Any = args[place.position] if place.position < len(args) else kwargs.get(place.argument)
    return given[place.item] if place.item is not None else given


def _saturate(number: float) -> float:
    return float(half.saturate(np.float32(number)))
