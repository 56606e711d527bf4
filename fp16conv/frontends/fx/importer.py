"""Walks a functional ExportedProgram and fills a GraphBuilder: one operator per ATen call."""

from __future__ import annotations

import hashlib
import operator
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.fx import Node
from torch.utils import _pytree as pytree

from fp16conv.errors import ModelError
from fp16conv.frontends.fx.program import DTYPES, LoadedProgram, Slot, TorchTensor, stored_tensor
from fp16conv.frontends.fx.typing import type_variables
from fp16conv.graph import DataType, Dim, GraphBuilder, ScopeKind, Use, ValueKind

__all__ = ["ASSERT_METADATA", "digest_of", "import_program", "locate_frame"]

ASSERT_METADATA: Final = torch.ops.aten._assert_tensor_metadata.default
"""Pins the dtype a tensor had while it was traced; no operator, and rewritten by the converter."""

_TENSOR_TYPES: Final = ("Tensor", "Optional[Tensor]")
_LIST_TYPES: Final = ("List[Tensor]", "List[Optional[Tensor]]", "Optional[List[Tensor]]")
_NUMBER_TYPES: Final = ("number", "Optional[number]")
_FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)')
_TORCH: Final = str(Path(torch.__file__).parent)


def import_program(program: ExportedProgram, source: str, **fields: Any) -> LoadedProgram:
    """Build the neutral graph of a program.

    Args:
        program: functional (`run_decompositions({})`), composites whole.
        source: name for messages.
        **fields: further fields of the result (`module`, `example`, `call`).

    Raises:
        ModelError: the program holds a node that no graph of tensors can have.
    """
    importer = _Importer(program, source)
    return importer.run(fields)


def digest_of(program: ExportedProgram) -> str:
    """Sha256 over the calls, their arguments and the numbers of all parameters, buffers and constants."""
    digest = hashlib.sha256()
    for node in program.graph.nodes:
        digest.update(f"{node.op} {node.name} {node.target} {node.args} {node.kwargs}\n".encode())
    for spec in program.graph_signature.input_specs:
        tensor = stored_tensor(program, spec)
        digest.update(f"{spec.kind.name} {spec.target}\n".encode())
        if isinstance(tensor, torch.Tensor):
            flat = tensor.detach().cpu().contiguous()
            digest.update(f"{flat.dtype} {tuple(flat.shape)}\n".encode())
            digest.update(flat.reshape(-1).view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return digest.hexdigest()


class _Importer:
    def __init__(self, program: ExportedProgram, source: str) -> None:
        self.program, self.source = program, source
        self.builder = GraphBuilder(source, digest_of(program), {"aten": 1})
        self.scope = self.builder.add_scope(ScopeKind.MAIN, "main")
        self.nodes: list[Node] = []
        self.slots: list[tuple[Slot | None, ...]] = []
        self.ids: dict[tuple[Node, int], int] = {}
        self.scalars: set[int] = set()
        self.inputs: list[int] = []
        self.outputs: list[int | None] = []
        self.output_names: dict[int, str] = {}

    def run(self, fields: Mapping[str, Any]) -> LoadedProgram:
        placeholders = [n for n in self.program.graph.nodes if n.op == "placeholder"]
        mutated = self._mutated_buffers()
        for node, spec in zip(placeholders, self.program.graph_signature.input_specs, strict=True):
            self._add_input(node, spec, mutated)
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                self._add_call(node)
            elif node.op == "output":
                self._close(node)
        self._add_typevars(mutated)
        return LoadedProgram(
            self.source,
            self.program,
            self.builder.freeze(),
            tuple(self.nodes),
            tuple(self.slots),
            self.ids,
            self.output_names,
            **fields,
        )

    def _mutated_buffers(self) -> set[str]:
        kinds = (OutputKind.BUFFER_MUTATION,)
        return {s.target for s in self.program.graph_signature.output_specs if s.kind in kinds and s.target}

    def _add_input(self, node: Node, spec: Any, mutated: set[str]) -> None:
        fake = node.meta.get("val")
        if not isinstance(fake, torch.Tensor):
            return  # a number: it is fed as it is
        dtype, shape = _describe(fake)
        tensor = stored_tensor(self.program, spec)
        is_constant = isinstance(tensor, torch.Tensor) and spec.target not in mutated
        if is_constant:
            index = self.builder.add_value(
                spec.target, dtype, shape, self.scope, ValueKind.CONSTANT, tensor=TorchTensor(tensor)
            )
        else:
            name = node.name if spec.kind is InputKind.USER_INPUT else spec.target
            index = self.builder.add_value(
                name, dtype, shape, self.scope, ValueKind.INPUT, slot=len(self.inputs)
            )
            self.inputs.append(index)
            if spec.kind is not InputKind.USER_INPUT:
                self.builder.mark_default(index)
        self.ids[node, 0] = index

    def _add_call(self, node: Node) -> None:
        target = node.target
        if target is operator.getitem:
            self._add_getitem(node)
            return
        if target is ASSERT_METADATA:
            return
        slots, inputs = self._read(node)
        fakes = _results(node.meta.get("val"))
        if not any(isinstance(f, torch.Tensor) for f in fakes) and all(v is None for v in inputs):
            return  # arithmetic on sizes
        path, metadata = _locate(node)
        domain, op_type = _name_of(target)
        op = self.builder.add_op(
            f"{path}/{node.name}" if path else node.name,
            domain,
            op_type,
            1,
            self.scope,
            inputs,
            attrs=_attributes(node),
            metadata=metadata,
        )
        self.nodes.append(node)
        self.slots.append(tuple(slots))
        outputs: list[int | None] = []
        read = {user.args[1] for user in node.users if user.target is operator.getitem}
        for slot, fake in enumerate(fakes):
            if not isinstance(fake, torch.Tensor) or (
                isinstance(node.meta["val"], list | tuple) and slot not in read
            ):
                outputs.append(None)
                continue
            dtype, shape = _describe(fake)
            name = node.name if fakes is not node.meta["val"] else f"{node.name}:{slot}"
            index = self.builder.add_value(
                name, dtype, shape, self.scope, ValueKind.RESULT, producer=op, slot=slot
            )
            self.ids[node, slot] = index
            outputs.append(index)
        self.builder.close_op(op, outputs)

    def _add_getitem(self, node: Node) -> None:
        source, item = node.args
        if isinstance(source, Node) and isinstance(item, int) and (source, item) in self.ids:
            self.ids[node, 0] = self.ids[source, item]

    def _read(self, node: Node) -> tuple[list[Slot | None], list[int | None]]:
        """Input slots of a call: one per schema argument, lists of tensors spread out."""
        if not isinstance(node.target, OpOverload):
            tensors = [n for n in node.all_input_nodes if (n, 0) in self.ids]
            return [Slot("", -1, i) for i in range(len(tensors))], [self.ids[n, 0] for n in tensors]
        slots: list[Slot | None] = []
        inputs: list[int | None] = []
        for position, argument in enumerate(node.target._schema.arguments):
            given = _argument(node, position, argument.name)
            kind = str(argument.type)
            if kind in _LIST_TYPES and isinstance(given, Sequence):
                for item, value in enumerate(given):
                    slots.append(Slot(argument.name, position, item))
                    inputs.append(self._id(value))
            elif isinstance(given, Node) and kind in _TENSOR_TYPES:
                slots.append(Slot(argument.name, position))
                inputs.append(self._id(given))
            elif _is_number(given) and kind in (*_NUMBER_TYPES, *_TENSOR_TYPES):
                slots.append(Slot(argument.name, position))
                inputs.append(self._add_scalar(node, argument.name, given))
            else:
                slots.append(None)
                inputs.append(None)
        return slots, inputs

    def _id(self, value: object) -> int | None:
        return self.ids.get((value, 0)) if isinstance(value, Node) else None

    def _add_scalar(self, node: Node, argument: str, number: float) -> int:
        """A literal number is a constant like any other: rules about numbers look at it."""
        index = self.builder.add_value(
            f"{node.name}.{argument}",
            DataType.FLOAT if _touches_float(node) else DataType.INT64,
            (),
            self.scope,
            ValueKind.CONSTANT,
            tensor=TorchTensor(torch.tensor(float(number), dtype=torch.float32)),
        )
        self.scalars.add(index)
        return index

    def _close(self, node: Node) -> None:
        specs = self.program.graph_signature.output_specs
        returned = node.args[0]
        assert isinstance(returned, Sequence)
        names = iter(_output_names(self.program, sum(s.kind is OutputKind.USER_OUTPUT for s in specs)))
        for position, (spec, value) in enumerate(zip(specs, returned, strict=True)):
            self.outputs.append(self._id(value))
            if spec.kind is OutputKind.USER_OUTPUT:
                name = next(names)
                if isinstance(spec.arg, TensorArgument):
                    self.output_names[position] = name
        self.builder.close_scope(self.scope, self.inputs, self.outputs)

    def _add_typevars(self, mutated: set[str]) -> None:
        draft = self.builder.draft()
        specs = self.program.graph_signature.output_specs
        for index in self.inputs:
            value = draft.values[index]
            if value.dtype is DataType.FLOAT:
                admits = value.name not in mutated
                self.builder.add_typevar(None, self.scope, f"input:{value.name}", (), (index,), admits)
        for op in draft.ops:
            inputs = [None if i is None else draft.values[i] for i in op.inputs]
            outputs = [None if i is None else draft.values[i] for i in op.outputs]
            literal = [i in self.scalars for i in op.inputs]
            found = type_variables(self.nodes[op.id].target, self.slots[op.id], inputs, literal, outputs)
            for variable in found:
                uses = [Use(op.id, slot, self.scope) for slot in variable.uses]
                defs = [i for slot in variable.defs if (i := op.outputs[slot]) is not None]
                if uses or defs:
                    self.builder.add_typevar(
                        op.id, self.scope, variable.symbol, uses, defs, variable.admits_fp16
                    )
        for position, result in enumerate(self.outputs):
            if result is None or draft.values[result].dtype is not DataType.FLOAT:
                continue
            name = self.output_names.get(position) or specs[position].target or str(position)
            admits = position in self.output_names
            use = Use(None, position, self.scope)
            self.builder.add_typevar(None, self.scope, f"output:{name}", (use,), (), admits)


def _argument(node: Node, position: int, name: str) -> Any:
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _touches_float(node: Node) -> bool:
    read = [n.meta.get("val") for n in node.all_input_nodes]
    fakes = [*read, *_results(node.meta.get("val"))]
    return any(isinstance(f, torch.Tensor) and f.dtype is torch.float32 for f in fakes)


def _results(fake: object) -> Sequence[object]:
    return fake if isinstance(fake, list | tuple) else (fake,)


def _describe(fake: torch.Tensor) -> tuple[DataType, tuple[Dim, ...]]:
    shape = tuple(int(d) if isinstance(d, int) else str(d) for d in fake.shape)
    return DTYPES.get(fake.dtype, DataType.OTHER), shape


def _name_of(target: object) -> tuple[str, str]:
    if isinstance(target, OpOverload):
        domain, _, name = target._schema.name.partition("::")
        return domain, f"{name}.{target._overloadname}"
    namespace = getattr(target, "namespace", None) or getattr(target, "__module__", None) or "python"
    return str(namespace), str(getattr(target, "__name__", target))


def _attributes(node: Node) -> dict[str, object]:
    """Arguments that are no tensors: numbers, words, tuples; dtypes by their name."""
    if not isinstance(node.target, OpOverload):
        return {}
    found: dict[str, object] = {}
    for position, argument in enumerate(node.target._schema.arguments):
        given = _argument(node, position, argument.name)
        if isinstance(given, torch.dtype):
            found[argument.name] = str(given).removeprefix("torch.")
        elif isinstance(given, bool | int | float | str):
            found[argument.name] = given
        elif isinstance(given, list | tuple) and all(isinstance(x, bool | int | float | str) for x in given):
            found[argument.name] = tuple(given)
    return found


def _locate(node: Node) -> tuple[str, dict[str, str]]:
    """Module path, and where the call stands in the source."""
    stack = node.meta.get("nn_module_stack") or {}
    path, kind = list(stack.values())[-1] if stack else ("", "")
    path = re.sub(r"\['([^']+)'\]", r".\1", str(path).removeprefix("L['self']").removeprefix("L__self__"))
    path = path.lstrip(".")
    metadata = {"module": path, "module_type": kind if isinstance(kind, str) else kind.__name__}
    metadata |= locate_frame(node.meta.get("stack_trace") or "")
    return path, {key: text for key, text in metadata.items() if text}


def locate_frame(trace: str) -> dict[str, str]:
    r"""The innermost line of a stack trace that is the user's own code.

    Args:
        trace: as Python prints it, innermost call last.

    Returns:
        `line` (file:number; the file as seen from here where it lies below) and `code`; empty where there
        is no frame.

    Example:
        >>> locate_frame('File "net.py", line 7, in forward\n    y = self.fc(x)')
        {'line': 'net.py:7', 'code': 'y = self.fc(x)'}
    """
    found: dict[str, str] = {}
    lines = trace.splitlines()
    for number, text in enumerate(lines):
        frame = _FRAME.search(text)
        if frame is None or frame["file"].startswith("<"):  # made while it was traced
            continue
        if not frame["file"].startswith(_TORCH) or not found:
            found["line"] = f"{_shorten(frame['file'])}:{frame['line']}"
            found["code"] = lines[number + 1].strip() if number + 1 < len(lines) else ""
    return found


def _shorten(file: str) -> str:
    here = os.getcwd() + os.sep
    return file.removeprefix(here)


def _output_names(program: ExportedProgram, count: int) -> list[str]:
    """Names from the structure the model returns: `logits` of a dict, `output_1` of a tuple."""
    spec = program.call_spec.out_spec
    if spec is None:
        return [f"output_{i}" for i in range(count)]
    tree = pytree.tree_unflatten(list(range(count)), spec)
    names: dict[int, str] = {}
    for keys, leaf in pytree.tree_flatten_with_path(tree)[0]:
        parts = re.findall(r"\w+", pytree.keystr(keys))
        if not parts or parts[0].isdigit():
            parts.insert(0, "output")
        names[leaf] = "_".join(parts)
    if len(names) != count:
        raise ModelError(
            "the outputs do not fit the structure the model returns", where=program.__class__.__name__
        )
    return [names[i] for i in range(count)]
