"""Types of every value in an ONNX model, without touching the model.

`onnx.shape_inference` first (on a copy without the weights). Where it gives up - behind a contrib operator,
inside a function body - operators are inferred one by one, and last the type variables of the schema bind
what is left, in both directions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

import onnx
import onnx_ir as ir
from onnx import TypeProto

from fp16conv.frontends.onnx_library import infer_model, infer_node, knows_operator
from fp16conv.frontends.schemas import ONNX_DOMAINS, Schema, find_schema
from fp16conv.isolation import IsolationError

__all__ = ["TypeTable", "element_type", "infer_types", "opset_of", "without_weights"]

TypeTable = dict[ir.Value, TypeProto]
Inferred = Mapping[str, TypeProto]

MAX_INLINE_FOR_INFERENCE = 1024  # bytes; larger initializers never feed a shape


def opset_of(node: ir.Node, opsets: Mapping[str, int]) -> int:
    """Imported version of the node's domain (1 where the model does not say)."""
    if node.domain in ONNX_DOMAINS:
        return opsets.get("", opsets.get("ai.onnx", 1))
    return opsets.get(node.domain, 1)


def infer_types(
    model: ir.Model, proto: onnx.ModelProto
) -> tuple[TypeTable, frozenset[ir.OperatorIdentifier]]:
    """Infer the type of every value.

    Args:
        model: the onnx_ir model; not changed.
        proto: the same model (same node order) as protobuf; not changed.

    Returns:
        type per value (values nobody can type are missing), and the functions whose calls disagree
        about their input types.
    """
    inference = _Inference(model)
    skeleton = without_weights(proto)
    with _less_is_known():
        skeleton = infer_model(skeleton, is_strict=False)
    inference.visit_graph(model.graph, skeleton.graph, model.opset_imports)
    inference.visit_uncalled_functions()
    return inference.types, frozenset(inference.polymorphic)


@contextlib.contextmanager
def _less_is_known() -> Iterator[None]:
    """Errors of inference only mean that less is known; that it does not survive the model means more."""
    try:
        yield
    except IsolationError:
        raise
    except Exception:
        return


def without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model for inference: initializers that cannot feed a shape keep only type and dims."""
    skeleton = onnx.ModelProto()
    for descriptor, content in proto.ListFields():
        if descriptor.name == "graph":
            for part, items in content.ListFields():
                if part.name == "initializer":
                    for tensor in items:
                        skeleton.graph.initializer.append(_header(tensor))
                elif isinstance(items, str):
                    setattr(skeleton.graph, part.name, items)
                elif part.name not in ("metadata_props", "quantization_annotation"):
                    getattr(skeleton.graph, part.name).MergeFrom(items)
        elif descriptor.name in ("opset_import", "functions"):
            getattr(skeleton, descriptor.name).MergeFrom(content)
        elif descriptor.name == "ir_version":
            skeleton.ir_version = content
    return skeleton


def _header(tensor: onnx.TensorProto) -> onnx.TensorProto:
    if tensor.ByteSize() <= MAX_INLINE_FOR_INFERENCE and tensor.data_location != onnx.TensorProto.EXTERNAL:
        return tensor
    return onnx.TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)


class _Inference:
    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.types: TypeTable = {}
        self.polymorphic: set[ir.OperatorIdentifier] = set()
        self._signatures: dict[ir.OperatorIdentifier, list[bytes]] = {}
        self._other_calls: dict[tuple[object, ...], list[TypeProto | None]] = {}

    def visit_graph(self, graph: ir.Graph, proto: onnx.GraphProto | None, opsets: Mapping[str, int]) -> None:
        known: dict[str, TypeProto] = {}
        if proto is not None:
            for info in (*proto.value_info, *proto.output, *proto.input):
                if element_type(info.type):
                    known[info.name] = info.type
        for value in graph.inputs:
            self._declare(value, known)
        for value in graph.initializers.values():
            if value.const_value is not None:
                self.types[value] = _tensor_type(value.const_value.dtype, value.const_value.shape)
        proto_nodes: Iterable[onnx.NodeProto | None] = (
            proto.node if proto is not None else [None] * len(graph)
        )
        for node, node_proto in zip(graph, proto_nodes, strict=True):
            self._visit_node(node, node_proto, known, opsets, {})
        for value in graph.outputs:
            if value not in self.types:
                self._declare(value, known)
        self._unify(graph, opsets)

    def visit_uncalled_functions(self) -> None:
        for key, function in self.model.functions.items():
            if key not in self._signatures:
                self._visit_function(function, [None] * len(function.inputs), {})

    def _declare(self, value: ir.Value, known: Inferred) -> None:
        if value.name is not None and value.name in known:
            self.types[value] = known[value.name]
        elif value.type is not None:
            self.types[value] = _from_ir(value)

    def _visit_node(
        self,
        node: ir.Node,
        proto: onnx.NodeProto | None,
        known: Inferred,
        opsets: Mapping[str, int],
        arguments: Mapping[str, ir.Attr],
    ) -> None:
        for output in node.outputs:
            if output.name:
                self._declare(output, known)
        function = self.model.functions.get(node.op_identifier())
        if function is not None:
            results = self._call(node, function)
            for output, result in zip(node.outputs, results, strict=False):
                if result is not None:
                    self.types.setdefault(output, result)
            return
        self._bind_body_inputs(node)
        graphs = {a.name: a.g for a in proto.attribute if a.HasField("g")} if proto is not None else {}
        for attr in node.attributes.values():
            if attr.is_ref():
                continue
            if attr.type is ir.AttributeType.GRAPH:
                self.visit_graph(attr.as_graph(), graphs.get(attr.name), opsets)
            elif attr.type is ir.AttributeType.GRAPHS:
                for graph in attr.as_graphs():
                    self.visit_graph(graph, None, opsets)
        if any(o.name and o not in self.types for o in node.outputs):
            self._infer_node(node, opsets, arguments)

    def _bind_body_inputs(self, node: ir.Node) -> None:
        """Give the inputs of Loop and Scan bodies the dtypes of what flows in."""
        if node.op_type not in ("Loop", "Scan") or node.domain not in ONNX_DOMAINS:
            return
        body = node.attributes["body"].as_graph()
        outer = node.inputs[2:] if node.op_type == "Loop" else node.inputs
        inner = body.inputs[2:] if node.op_type == "Loop" else body.inputs
        for source, target in zip(outer, inner, strict=False):
            if (
                source is not None
                and source in self.types
                and target.type is None
                and target not in self.types
            ):
                self.types[target] = _without_shape(self.types[source])

    def _infer_node(self, node: ir.Node, opsets: Mapping[str, int], arguments: Mapping[str, ir.Attr]) -> None:
        inferred: dict[str, TypeProto] = {}
        version = opset_of(node, opsets)
        known = all(v is None or v in self.types for v in node.inputs)
        if known and knows_operator(node.domain, node.op_type, version):
            with _less_is_known():
                inferred = self._infer_with_onnx(node, opsets, arguments)
        for output in node.outputs:
            found = inferred.get(output.name or "")
            if found is not None and element_type(found) and output not in self.types:
                self.types[output] = found
        schema = find_schema(node.domain, node.op_type, version)
        if schema is not None:
            self._bind(node, schema)
        if node.op_type == "If" and node.domain in ONNX_DOMAINS:
            for branch in ("then_branch", "else_branch"):
                for output, inner in zip(
                    node.outputs, node.attributes[branch].as_graph().outputs, strict=False
                ):
                    if inner in self.types:
                        self.types.setdefault(output, _without_shape(self.types[inner]))
        elif node.op_type in ("Loop", "Scan") and node.domain in ONNX_DOMAINS:
            inner_outputs = node.attributes["body"].as_graph().outputs
            for output, inner in zip(
                node.outputs, inner_outputs[int(node.op_type == "Loop") :], strict=False
            ):
                if inner in self.types:
                    self.types.setdefault(output, _without_shape(self.types[inner]))

    def _infer_with_onnx(
        self, node: ir.Node, opsets: Mapping[str, int], arguments: Mapping[str, ir.Attr]
    ) -> dict[str, TypeProto]:
        version = opset_of(node, opsets)
        proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
        data: dict[str, onnx.TensorProto] = {}
        types: dict[str, TypeProto] = {}
        for value in node.inputs:
            name = "" if value is None else (value.name or "")
            proto.input.append(name)
            if value is not None:
                types[name] = self.types[value]
                if value.const_value is not None and value.const_value.nbytes <= MAX_INLINE_FOR_INFERENCE:
                    data[name] = ir.to_proto(value.const_value)
        proto.output.extend(o.name or "" for o in node.outputs)
        for attr in node.attributes.values():
            resolved = arguments.get(attr.ref_attr_name or "") if attr.is_ref() else attr
            if resolved is None or resolved.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                continue
            attr_proto = ir.to_proto(resolved)
            attr_proto.name = attr.name
            proto.attribute.append(attr_proto)
        imports = [onnx.helper.make_opsetid("" if d == "ai.onnx" else d, v) for d, v in opsets.items()]
        return infer_node(version, proto, types, data, imports)

    def _bind(self, node: ir.Node, schema: Schema) -> None:
        """Let the schema's type variables carry dtypes from known slots to unknown ones."""
        bound: dict[str, int] = {}
        slots = [(v, schema.input(i)) for i, v in enumerate(node.inputs)]
        slots += [(v, schema.output(i)) for i, v in enumerate(node.outputs) if v.name]
        for value, parameter in slots:
            if value is None or parameter is None or not parameter.is_homogeneous:
                continue
            if value in self.types and not _is_container(self.types[value]):
                bound.setdefault(parameter.type_str, element_type(self.types[value]))
        for value, parameter in slots:
            if value is None or parameter is None or value in self.types or not parameter.is_homogeneous:
                continue
            dtype = bound.get(parameter.type_str) or _concrete(schema, parameter.type_str)
            if dtype:
                self.types[value] = onnx.helper.make_tensor_type_proto(dtype, None)

    def _unify(self, graph: ir.Graph | ir.Function, opsets: Mapping[str, int]) -> None:
        if all(o in self.types for node in graph for o in node.outputs if o.name):
            return
        for nodes in (list(graph), list(reversed(list(graph)))):
            for node in nodes:
                schema = find_schema(node.domain, node.op_type, opset_of(node, opsets))
                if schema is not None and node.op_identifier() not in self.model.functions:
                    self._bind(node, schema)

    def _call(self, node: ir.Node, function: ir.Function) -> list[TypeProto | None]:
        inputs = [self.types.get(v) if v is not None else None for v in node.inputs]
        inputs += [None] * (len(function.inputs) - len(inputs))
        arguments = {a.name: a for a in function.attributes.values()}
        arguments.update(node.attributes)
        return self._visit_function(function, inputs, arguments)

    def _visit_function(
        self, function: ir.Function, inputs: list[TypeProto | None], arguments: Mapping[str, ir.Attr]
    ) -> list[TypeProto | None]:
        """Type a function body for one call; a later call with other dtypes makes it polymorphic."""
        key = function.identifier()
        signature = [element_type(t).to_bytes(2, "big") if t is not None else b"" for t in inputs]
        first = key not in self._signatures
        saved: TypeTable | None = None
        if not first:
            if self._signatures[key] == signature:
                return [self.types.get(o) for o in function.outputs]
            self.polymorphic.add(key)
            # Without this, calls inside calls would be visited once per path to them.
            call = (key, *signature, *(_content(arguments[name]) for name in sorted(arguments)))
            if call in self._other_calls:
                return self._other_calls[call]
            saved = dict(self.types)
        self._signatures.setdefault(key, signature)
        for value, known in zip(function.inputs, inputs, strict=False):
            if known is not None:
                self.types[value] = known
            elif value.type is not None:
                self.types[value] = _from_ir(value)
        if saved is not None:
            for inner in function.all_nodes():
                for output in inner.outputs:
                    self.types.pop(output, None)
        for node in function:
            self._visit_node(node, None, {}, function.opset_imports, arguments)
        self._unify(function, function.opset_imports)
        results = [self.types.get(o) for o in function.outputs]
        if saved is not None:
            self.types = saved
            self._other_calls[call] = results
        return results


def _content(attr: ir.Attr) -> bytes:
    """An attribute's value, to compare calls by."""
    if attr.is_ref() or attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return str(id(attr)).encode()
    return bytes(ir.to_proto(attr).SerializeToString(deterministic=True))


def element_type(proto: TypeProto) -> int:
    """Innermost element type, 0 when unknown."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        return proto.tensor_type.elem_type
    if kind == "sparse_tensor_type":
        return proto.sparse_tensor_type.elem_type
    if kind == "sequence_type":
        return element_type(proto.sequence_type.elem_type)
    if kind == "optional_type":
        return element_type(proto.optional_type.elem_type)
    return 0


def _is_container(proto: TypeProto) -> bool:
    return proto.WhichOneof("value") in ("sequence_type", "optional_type", "map_type")


def _tensor_type(dtype: ir.DataType, shape: ir.ShapeProtocol | None) -> TypeProto:
    dims = None if shape is None else [d if isinstance(d, int) else d.value for d in shape.dims]
    return onnx.helper.make_tensor_type_proto(int(dtype), dims)


def _from_ir(value: ir.Value) -> TypeProto:
    return ir.to_proto(value).type


def _without_shape(proto: TypeProto) -> TypeProto:
    if proto.WhichOneof("value") != "tensor_type":
        return proto
    return onnx.helper.make_tensor_type_proto(proto.tensor_type.elem_type, None)


def _concrete(schema: Schema, type_str: str) -> int:
    """ONNX element type when a parameter admits exactly one tensor type, else 0."""
    allowed = schema.types.get(type_str, frozenset((type_str,)))
    if len(allowed) != 1:
        return 0
    name = next(iter(allowed))
    if not name.startswith("tensor(") or not name.endswith(")"):
        return 0
    return int(onnx.TensorProto.DataType.Value(name[7:-1].upper()))
