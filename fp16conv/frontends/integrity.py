"""Is a parsed file a model at all? Checked on the protobuf, before anything is built from it.

Everything behind the front end may rely on it: every name that is read is defined, operators have the slots
and attributes without which they mean nothing, tensors have as many bytes as they say, functions do not call
themselves, and external data stays in the model's folder. Whether shapes fit is not checked here.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.defs
import onnx_ir as ir

from fp16conv.errors import ModelError
from fp16conv.files import is_regular
from fp16conv.frontends.encoding import find_undecodable
from fp16conv.frontends.schemas import ONNX_DOMAINS

__all__ = ["MAX_CALLS", "MAX_EXPANDED", "MAX_NESTING", "check_integrity"]

MAX_NESTING = 64  # subgraphs inside subgraphs; what walks them later is recursive
MAX_CALLS = 64  # functions that call functions
MAX_EXPANDED = 10**6  # operators after all functions are inlined
MAX_ELEMENTS = 2**58  # of one tensor, empty sizes aside: beyond, its bytes overflow in the libraries

_Attr = onnx.AttributeProto
_FIELDS: Mapping[int, str] = {
    _Attr.TENSOR: "t",
    _Attr.GRAPH: "g",
    _Attr.SPARSE_TENSOR: "sparse_tensor",
    _Attr.TYPE_PROTO: "tp",
}
_T = onnx.TensorProto
_TYPED: Mapping[int, tuple[str, int]] = {
    _T.FLOAT: ("float_data", 1),
    _T.COMPLEX64: ("float_data", 2),
    _T.DOUBLE: ("double_data", 1),
    _T.COMPLEX128: ("double_data", 2),
    _T.INT64: ("int64_data", 1),
    _T.UINT32: ("uint64_data", 1),
    _T.UINT64: ("uint64_data", 1),
    _T.STRING: ("string_data", 1),
}
"""Field that holds the numbers of a type, and entries per number; int32_data for all others."""
_TYPED_FIELDS = ("int32_data", *sorted({field for field, _ in _TYPED.values()}))

_REEXPORT = "export the model again"
_TRUNCATED = "the model or its data file is truncated or belongs to another model"
_WITH_BODIES = frozenset(("If", "Loop", "Scan", "SequenceMap"))
_Key = tuple[str, str, str]


def check_integrity(proto: onnx.ModelProto, path: Path) -> None:
    """Refuse what is no model.

    Args:
        proto: the parsed file.
        path: its name; external data is looked for in its folder.

    Raises:
        ModelError: it is broken; names the operator or tensor and says why.
    """
    _Checker(proto, path).run()


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a schema says of an operator's form; `needed` names inputs, "" where one may be left out."""

    inputs: tuple[int, int]
    needed: tuple[str, ...]
    outputs: tuple[int, int]
    required: tuple[str, ...]
    attributes: Mapping[str, int]


@functools.lru_cache(maxsize=4096)
def _form_of(op_type: str, opset: int) -> _Shape | None:
    try:
        s = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    return _Shape(
        (s.min_input, s.max_input),
        tuple("" if p.option == optional else p.name for p in s.inputs[: s.min_input]),
        (s.min_output, s.max_output),
        tuple(sorted(name for name, a in s.attributes.items() if a.required)),
        {name: int(a.type.value) for name, a in s.attributes.items()},  # type: ignore[attr-defined]
    )


class _Checker:
    def __init__(self, proto: onnx.ModelProto, path: Path) -> None:
        self.proto, self.path, self.where = proto, path, str(path)
        self.folder = path.resolve().parent
        self.sound: set[tuple[object, ...]] = set()  # forms of operators that were checked
        self.arguments: frozenset[str] | None = None  # attributes of the function around, None outside
        self.functions = {(f.domain, f.name, f.overload): f for f in proto.functions}

    def run(self) -> None:
        proto = self.proto
        binary = find_undecodable(proto)
        if binary is not None:
            self._fail("holds a text that is not UTF-8", why=repr(binary[:100]))
        if len(self.functions) < len(proto.functions):
            self._fail("two functions have one name")
        opsets = self._read_imports(proto.opset_import, "")
        self._check_graph(proto.graph, opsets)
        for function in proto.functions:
            where = f"function '{function.name}'"
            own = self._read_imports(function.opset_import, where)
            self._refuse_unnamed(where, "input", function.input)
            names = {*function.input, *(n for node in function.node for n in node.output)}
            self._check_outputs(where, function.output, names)
            self.arguments = frozenset((*function.attribute, *(a.name for a in function.attribute_proto)))
            self._check_bodies(function.node, names, own)
        self._check_calls()

    def _fail(self, what: str, where: str = "", why: str = "", hint: str = _REEXPORT) -> None:
        raise ModelError(what, where=f"{self.where}: {where}" if where else self.where, why=why, hint=hint)

    def _read_imports(self, imports: Iterable[onnx.OperatorSetIdProto], where: str) -> dict[str, int]:
        opsets: dict[str, int] = {}
        for entry in imports:
            if not 0 < entry.version < 2**31:
                self._fail(f"imports version {entry.version} of '{entry.domain[:100]}'", where)
            opsets["" if entry.domain in ONNX_DOMAINS else entry.domain] = entry.version
        return opsets

    def _check_graph(self, graph: onnx.GraphProto, opsets: Mapping[str, int]) -> None:
        names = self._open(graph, "graph")
        self._check_outputs("graph", (o.name for o in graph.output), names)
        self._check_bodies(graph.node, names, opsets)

    def _open(self, graph: onnx.GraphProto, where: str) -> set[str]:
        """Check what a graph declares; return the names it defines."""
        inputs = [info.name for info in graph.input]
        self._refuse_unnamed(where, "input", inputs)
        names = set(inputs)
        if len(names) < len(inputs):
            self._fail("two inputs have one name", where)
        for tensor in graph.initializer:
            self._check_tensor(tensor)
            names.add(tensor.name)
        for sparse in graph.sparse_initializer:
            self._check_tensor(sparse.values)
            self._check_tensor(sparse.indices)
            if any(tensor.data_location == _T.EXTERNAL for tensor in (sparse.values, sparse.indices)):
                self._fail(
                    f"sparse initializer '{sparse.values.name}' is external data, which onnx does not read",
                    where,
                    hint="store it in the model, or as a dense tensor",
                )
            names.add(sparse.values.name)
            if any(output.name == sparse.values.name for output in graph.output):
                self._fail(
                    f"output '{sparse.values.name}' is a sparse initializer itself",
                    where,
                    hint="put an Identity between them, or store it as a dense tensor",
                )
        for node in graph.node:
            names.update(node.output)
        return names

    def _check_bodies(
        self, nodes: Sequence[onnx.NodeProto], names: set[str], opsets: Mapping[str, int]
    ) -> None:
        """Check nodes and everything inside them; the depth is bounded, so an own stack keeps it simple."""
        waiting: list[tuple[Sequence[onnx.NodeProto], tuple[set[str], ...]]] = [(nodes, (names,))]
        while waiting:
            nodes, scopes = waiting.pop()
            for node in nodes:
                inputs = list(node.input)
                for name in inputs:
                    if name and name not in scopes[0] and not any(name in scope for scope in scopes):
                        self._fail(f"reads '{name}', which nothing defines", _label(node))
                for body in self._check_node(node, inputs, opsets):
                    if len(scopes) > MAX_NESTING:
                        self._fail(f"subgraphs are nested more than {MAX_NESTING} deep", _label(node))
                    inner = self._open(body, _label(node))
                    self._check_outputs(_label(node), (o.name for o in body.output), inner)
                    waiting.append((body.node, (inner, *scopes)))

    def _check_outputs(self, where: str, outputs: Iterable[str], names: set[str]) -> None:
        for name in outputs:
            if not name or name not in names:
                self._fail(f"output '{name}' is not computed", where)

    def _refuse_unnamed(self, where: str, kind: str, names: Iterable[str]) -> None:
        if not all(names):
            self._fail(f"an {kind} has no name", where)

    def _check_node(
        self, node: onnx.NodeProto, inputs: Sequence[str], opsets: Mapping[str, int]
    ) -> list[onnx.GraphProto]:
        """Check an operator by itself; returns its subgraphs."""
        attributes = list(node.attribute)
        bodies, graphs = self._check_attributes(node, attributes) if attributes else ({}, [])
        domain, op_type = node.domain, node.op_type
        callee = self.functions.get((domain, op_type, node.overload)) if self.functions else None
        if callee is not None:
            for side, given_names, taken in (
                ("input", inputs, callee.input),
                ("output", node.output, callee.output),
            ):
                if len(given_names) > len(taken):
                    what = f"has {len(given_names)} {side}s, the function has {len(taken)}"
                    self._fail(what, _label(node))
        elif domain in ONNX_DOMAINS:
            opset = opsets.get("", 1)
            given = [(attr.name, attr.type, attr.ref_attr_name != "") for attr in attributes]
            kind = op_type, opset, *map(bool, inputs), len(node.output), *given
            if kind not in self.sound:
                self._check_form(node, opset)
                self.sound.add(kind)
            if op_type in _WITH_BODIES:
                self._check_arity(node, bodies, opset)
        return graphs

    def _check_attributes(
        self, node: onnx.NodeProto, attributes: Sequence[onnx.AttributeProto]
    ) -> tuple[dict[str, onnx.GraphProto], list[onnx.GraphProto]]:
        """Check attributes by themselves; returns the subgraph of each that holds one, and all subgraphs."""
        bodies: dict[str, onnx.GraphProto] = {}
        graphs: list[onnx.GraphProto] = []
        for attr in attributes:
            if attr.ref_attr_name:
                self._check_reference(node, attr)
                continue
            if attr.type == _Attr.UNDEFINED:
                self._fail(f"attribute '{attr.name}' has no type", _label(node))
            field = _FIELDS.get(attr.type)
            if field is not None and not attr.HasField(field):
                self._fail(f"attribute '{attr.name}' is empty", _label(node))
            if attr.HasField("sparse_tensor") or attr.sparse_tensors:
                self._fail(
                    f"attribute '{attr.name}' holds a sparse tensor, which a conversion could not keep",
                    f"operator '{node.name or node.op_type}' ({node.op_type})",
                    hint="store it as a sparse initializer or as a dense tensor",
                )
            if attr.HasField("t"):
                self._check_tensor(attr.t)
            for tensor in attr.tensors:
                self._check_tensor(tensor)
            if attr.HasField("g"):
                bodies[attr.name] = attr.g
                graphs.append(attr.g)
            graphs += attr.graphs
        return bodies, graphs

    def _check_reference(self, node: onnx.NodeProto, attr: onnx.AttributeProto) -> None:
        """An attribute that is an argument of the function around it."""
        refers = f"attribute '{attr.name}' refers to '{attr.ref_attr_name[:100]}'"
        if self.arguments is None:
            self._fail(f"{refers}, but is in no function", _label(node))
        elif attr.ref_attr_name not in self.arguments:
            self._fail(f"{refers}, which its function does not declare", _label(node))
        if attr.type in (_Attr.GRAPH, _Attr.GRAPHS) or attr.name == "num_scan_inputs":
            what = "which only the function's caller knows"
            self._fail(f"{refers}, {what}", _label(node), hint="inline the function")

    def _check_form(self, node: onnx.NodeProto, opset: int) -> None:
        form = _form_of(node.op_type, opset)
        if form is None:
            return
        sides = (("input", form.inputs, len(node.input)), ("output", form.outputs, len(node.output)))
        for side, (least, most), count in sides:
            if not least <= count <= most:
                wanted = f"at least {least}" if count < least else f"at most {most}"
                self._fail(f"has {count} {side}s, the operator takes {wanted}", _label(node))
        for name, formal in zip(node.input, form.needed, strict=False):
            if formal and not name:
                self._fail(f"lacks its input '{formal}'", _label(node))
        given: set[str] = set()
        for attr in node.attribute:
            if attr.name in given:
                self._fail(f"has two attributes '{attr.name}'", _label(node))
            given.add(attr.name)
            wanted_type = form.attributes.get(attr.name)
            if wanted_type is not None and not attr.ref_attr_name and attr.type != wanted_type:
                self._fail(
                    f"attribute '{attr.name}' is {_type_name(attr.type)}, "
                    f"the operator takes {_type_name(wanted_type)}",
                    _label(node),
                )
        for name in form.required:
            if name not in given:
                self._fail(f"lacks the attribute '{name}'", _label(node))

    def _check_arity(self, node: onnx.NodeProto, bodies: Mapping[str, onnx.GraphProto], opset: int) -> None:
        """What flows into and out of the bodies of control flow."""
        expected: list[tuple[str, int, int]] = []
        if node.op_type == "If":
            expected = [(name, 0, len(node.output)) for name in ("then_branch", "else_branch")]
        elif node.op_type == "Loop":
            expected = [("body", max(len(node.input), 2), len(node.output) + 1)]
        elif node.op_type == "SequenceMap":
            expected = [("body", len(node.input), len(node.output))]
        elif node.op_type == "Scan" and opset >= 9:
            expected = [("body", len(node.input), len(node.output))]
            count = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 1)
            if not 0 < count <= len(node.input):
                self._fail(f"has {len(node.input)} inputs, but num_scan_inputs is {count}", _label(node))
        for name, inputs, outputs in expected:
            body = bodies.get(name)
            if body is None:
                self._fail(f"lacks the attribute '{name}'", _label(node))
            elif (len(body.input), len(body.output)) != (inputs, outputs):
                self._fail(
                    f"its {name} has {len(body.input)} inputs and {len(body.output)} outputs, "
                    f"it should have {inputs} and {outputs}",
                    _label(node),
                )

    # ---- functions ----

    def _check_calls(self) -> None:
        """No function may call itself, by whatever way; chains and what they expand to are bounded."""
        calls = {key: self._calls_of(function) for key, function in self.functions.items()}
        depth: dict[_Key, int] = {}
        size: dict[_Key, int] = {}
        for start in calls:
            stack, path = [start], dict[_Key, None]()
            while stack:
                key = stack[-1]
                if key in depth:
                    stack.pop()
                    path.pop(key, None)
                    continue
                path[key] = None
                pending = [callee for callee in calls[key] if callee not in depth]
                for callee in pending:
                    if callee in path:
                        self._fail(
                            f"function '{callee[1]}' calls itself", why=" -> ".join(k[1] for k in path)
                        )
                if pending:
                    stack.append(pending[0])
                    continue
                depth[key] = 1 + max((depth[c] for c in calls[key]), default=0)
                size[key] = sum(count * size[c] for c, count in calls[key].items())
                size[key] += len(self.functions[key].node)
                self._check_expansion(depth[key], size[key])
        main = _count_calls([self.proto.graph.node], self.functions)
        self._check_expansion(0, sum(size[key] * count for key, count in main.items()))

    def _check_expansion(self, depth: int, size: int) -> None:
        if depth > MAX_CALLS:
            self._fail(f"functions call each other more than {MAX_CALLS} deep")
        if size > MAX_EXPANDED:
            self._fail(f"functions expand to {size} operators, more than {MAX_EXPANDED}")

    def _calls_of(self, function: onnx.FunctionProto) -> dict[_Key, int]:
        return _count_calls([function.node], self.functions)

    # ---- tensors ----

    def _check_tensor(self, tensor: onnx.TensorProto) -> None:
        where = f"tensor '{tensor.name}'"
        if any(dim < 0 for dim in tensor.dims):
            self._fail(f"has the shape {_short(tensor.dims)}", where, hint=_TRUNCATED)
        if math.prod(dim or 1 for dim in tensor.dims) > MAX_ELEMENTS:  # numpy leaves out zeros too
            self._fail(f"has sizes whose product overflows: {_short(tensor.dims)}", where, hint=_TRUNCATED)
        count = math.prod(tensor.dims)
        filled = ["raw_data"] * tensor.HasField("raw_data")  # to read it would copy it
        filled += [field for field in _TYPED_FIELDS if getattr(tensor, field)]
        if len(filled) > 1:
            self._fail(f"has numbers in {' and in '.join(filled)}", where)
        bits = _bits_of(tensor.data_type)
        if bits is None:
            self._fail(f"has the unknown data type {tensor.data_type}", where, hint=_TRUNCATED)
            return
        if tensor.data_location == _T.EXTERNAL:
            if bits == 0:
                self._fail("strings cannot be external data", where)
            available = self._external_size(tensor, where)
            self._compare(tensor, -(-count * bits // 8), available, where, exact=False)
        elif tensor.HasField("raw_data"):
            if bits == 0:
                self._fail("strings cannot be raw data", where)
            self._compare(tensor, -(-count * bits // 8), len(tensor.raw_data), where, exact=True)
            if bits == 6 and tensor.raw_data and tensor.raw_data[-1] >> (count * bits % 8 or 8):
                self._fail("has bits behind its last number", where)
        else:
            field, per_number = _TYPED.get(tensor.data_type, ("int32_data", 1))
            needed = -(-count * bits // 8) if bits < 8 and bits else count * per_number
            found = len(getattr(tensor, field))
            if found != needed:
                self._fail(
                    f"the shape {_short(tensor.dims)} needs {needed} numbers, but there are {found}",
                    where,
                    hint=_TRUNCATED,
                )

    def _compare(self, tensor: onnx.TensorProto, needed: int, found: int, where: str, *, exact: bool) -> None:
        if needed > found or (exact and needed != found):
            self._fail(
                f"the shape {_short(tensor.dims)} needs {needed} bytes, but there are {found}",
                where,
                hint=_TRUNCATED,
            )

    def _external_size(self, tensor: onnx.TensorProto, where: str) -> int:
        """Check where external data lies; return how many bytes it has."""
        entries = {e.key: e.value for e in tensor.external_data}
        location = entries.get("location", "")
        try:
            file = (self.folder / location).resolve()
            is_inside = bool(location) and not os.path.isabs(location) and file.is_relative_to(self.folder)
        except (OSError, ValueError, RuntimeError) as error:  # NUL, too long, links in a circle
            raise ModelError(
                "external data has a name that no file can have",
                where=f"{self.where}: {where}",
                why=str(error),
            ) from None
        shown = location[:200]
        if not is_inside:
            self._fail(
                f"external data '{shown}' lies outside the model's folder",
                where,
                hint="move the data file beside the model and save the model again",
            )
        if not is_regular(file):
            exists = os.path.lexists(file) if len(location) < 256 else False
            what = "is no regular file" if exists else "is missing"
            self._fail(f"external data file '{shown}' {what}", where, hint=f"put it into {self.folder}")
        try:
            offset, length = (_number(entries.get(key, "0")) for key in ("offset", "length"))
        except ValueError:
            raise ModelError(
                "external data has a malformed offset or length", where=f"{self.where}: {where}"
            ) from None
        size = file.stat().st_size
        if offset + length > size:
            self._fail(
                f"external data ends at byte {offset + length}, but '{file.name}' has {size} bytes",
                where,
                hint="the data file is truncated or belongs to another model",
            )
        return length or size - offset


def _count_calls(
    bodies: Iterable[Sequence[onnx.NodeProto]], functions: Mapping[_Key, onnx.FunctionProto]
) -> dict[_Key, int]:
    """How often each function is called in nodes and their subgraphs."""
    found: dict[_Key, int] = {}
    waiting = list(bodies) if functions else []
    while waiting:
        for node in waiting.pop():
            key = (node.domain, node.op_type, node.overload)
            if key in functions:
                found[key] = found.get(key, 0) + 1
            for attr in node.attribute:
                waiting += [g.node for g in (*([attr.g] if attr.HasField("g") else ()), *attr.graphs)]
    return found


def _number(text: str) -> int:
    """A decimal number of the ASCII digits, as the libraries that read the file later take it."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(text)
    return int(text)


def _label(node: onnx.NodeProto) -> str:
    name = node.name or next((o for o in node.output if o), "")
    return f"operator '{name[:200]}' ({node.op_type[:100]})"


def _short(dims: Sequence[int]) -> str:
    return str(list(dims[:16])) + (" ..." if len(dims) > 16 else "")


def _type_name(code: int) -> str:
    names: dict[int, str] = {number: name for name, number in _Attr.AttributeType.items()}
    return names.get(code, str(code))


@functools.cache
def _bits_of(data_type: int) -> int | None:
    """Bits per element, 0 for strings, None for types that nobody knows."""
    if data_type == _T.STRING:
        return 0
    try:
        return int(ir.DataType(data_type).bitwidth)
    except (ValueError, TypeError):
        return None
