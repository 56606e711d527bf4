"""ONNX front end: bytes -> onnx_ir model -> ModelGraph, plus the map back."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx import TypeProto

from fp16conv.collector import collection_paused
from fp16conv.errors import ModelError, first_line
from fp16conv.files import read_regular
from fp16conv.frontends.boundaries import add_boundary_typevars
from fp16conv.frontends.external import changed_meanwhile, read_from_files
from fp16conv.frontends.headers import weights_left_out
from fp16conv.frontends.inference import TypeTable, infer_types, opset_of
from fp16conv.frontends.integrity import check_integrity
from fp16conv.frontends.order import is_sorted, sort
from fp16conv.frontends.schemas import ONNX_DOMAINS
from fp16conv.frontends.sources import hint_at_source
from fp16conv.frontends.sparse import attach_dense, expecting_strays
from fp16conv.frontends.specialization import specialize
from fp16conv.frontends.typevars import add_typevars
from fp16conv.frontends.wire import serialize_in_pieces
from fp16conv.graph import (
    Container,
    DataType,
    Dim,
    GraphBuilder,
    ModelGraph,
    Reference,
    ScopeKind,
    Tensor,
    ValueKind,
)
from fp16conv.isolation import IsolationError, start_helper

__all__ = ["LoadedModel", "external_files", "from_model", "load_onnx", "read_proto"]

Stamp = tuple[int, ...]

MAX_FILE = 2**31  # bytes; protobuf reads no more, larger models have external data


@dataclass(frozen=True)
class LoadedModel:
    """A model in both forms and the map between them.

    Args:
        path: file it came from; external tensors are relative to its folder.
        proto: the parsed file (external data not loaded).
        model: mutable onnx_ir model over the same tensors.
        graph: the neutral graph.
        nodes: onnx_ir node by op id.
        values: onnx_ir value by value id.
        stamps: what the external data files looked like when they were opened.
    """

    path: Path
    proto: onnx.ModelProto
    model: ir.Model
    graph: ModelGraph
    nodes: tuple[ir.Node, ...]
    values: tuple[ir.Value, ...]
    stamps: Mapping[Path, Stamp] = field(default_factory=dict)

    def require_unchanged(self) -> None:
        """Raise if external data, which is read late, is no longer what it was when the model was loaded.

        Raises:
            ModelError: a file was deleted, replaced or written to.
        """
        for file, stamp in self.stamps.items():
            if _stamp(file) != stamp:
                raise changed_meanwhile(file)


def load_onnx(path: str | os.PathLike[str]) -> LoadedModel:
    """Read an .onnx file.

    Args:
        path: the file; external data must lie in its folder.

    Returns:
        the model, its graph and the map between them.

    Raises:
        ModelError: the file is missing, not ONNX or truncated, or its external data is missing or outside
            its folder.
    """
    start_helper()
    path = Path(path)
    proto = read_proto(path)
    stamps = {file: _stamp(file) for file in external_files(proto, path)}
    return replace(from_proto(proto, path), stamps=stamps)


def external_files(proto: onnx.ModelProto, path: Path) -> set[Path]:
    """The files that hold a model's external data."""
    folder = path.resolve().parent
    return {
        folder / entry.value
        for tensor in onnx.external_data_helper._get_all_tensors(proto)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }


def _stamp(file: Path) -> Stamp:
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_proto(path: Path) -> onnx.ModelProto:
    """Parse the file without loading external data, and check that it is a model we can keep whole."""
    where = str(path)
    try:
        content = read_regular(path, MAX_FILE)
    except FileNotFoundError:
        raise ModelError(
            "no such file", where=where, hint=hint_at_source(where) or "check the path"
        ) from None
    except IsADirectoryError:
        raise ModelError("is a folder, not an .onnx file", where=where, hint="name the .onnx file") from None
    except OSError as e:
        raise ModelError("cannot be read", where=where, why=str(e.strerror or e)) from None
    proto = onnx.ModelProto()
    hint = hint_at_source(where)
    hint = hint or "export it again, or check that it was downloaded completely (git-lfs pointers are text)"
    try:
        proto.ParseFromString(content)
    except DecodeError as e:
        if "MaxDepth" in str(e):
            raise ModelError(
                "is nested too deeply to be read", where=where, why=first_line(e.__cause__ or e)
            ) from None
        raise ModelError("is not an ONNX model or is truncated", where=where, hint=hint) from None
    if not proto.HasField("graph") or not (proto.opset_import or proto.ir_version):
        raise ModelError("is not an ONNX model", where=where, why="it holds no graph", hint=hint)
    check_integrity(proto, path)
    return proto


@collection_paused()
def from_proto(proto: onnx.ModelProto, path: Path) -> LoadedModel:
    """Build both forms from a parsed model; `path` names it and roots its external data."""
    try:
        with _without_map_types(proto), expecting_strays(proto):
            model = ir.serde.deserialize_model(proto)
    except (ValueError, TypeError, KeyError, NotImplementedError, ir.serde.SerdeError) as e:
        raise ModelError(
            "is not a valid ONNX model", where=str(path), why=first_line(e.__cause__ or e)
        ) from e
    base_dir = path.resolve().parent
    read_from_files(model, base_dir)
    attach_dense(model, proto)
    return _import(model, proto, path, _digest(proto, base_dir))


@collection_paused()
def from_model(model: ir.Model, path: Path) -> LoadedModel:
    """Take over a model that was made in memory; its weights are neither copied nor serialized.

    Args:
        model: it is kept and may be reordered. Weights of any size, also beyond protobuf's 2 GB.
        path: name in messages.

    Returns:
        As `from_proto`; `proto` holds the headers of large weights without their numbers.
    """
    with weights_left_out(model) as tensors:
        proto = ir.serde.serialize_model(model)
    digest = hashlib.sha256(proto.SerializeToString(deterministic=True))
    for tensor in tensors:
        digest.update(np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data)
    return _import(model, proto, path, digest.hexdigest())


def _import(model: ir.Model, proto: onnx.ModelProto, path: Path, digest: str) -> LoadedModel:
    current = proto
    if not is_sorted(model):
        sort(model, path)
        current = _serialize_structure(model)
    try:
        types, polymorphic = infer_types(model, current)
        while polymorphic and specialize(model, types, polymorphic):
            types, polymorphic = infer_types(model, _serialize_structure(model))
    except IsolationError as e:
        raise ModelError("onnx's shape inference does not survive it", where=str(path), why=str(e)) from None
    importer = _Importer(model, types, polymorphic, str(path), digest)
    graph = importer.run()
    return LoadedModel(path, proto, model, graph, tuple(importer.nodes), tuple(importer.values))


def _serialize_structure(model: ir.Model) -> onnx.ModelProto:
    with weights_left_out(model):
        return ir.serde.serialize_model(model)


@contextlib.contextmanager
def _without_map_types(proto: onnx.ModelProto) -> Iterator[None]:
    """Take types onnx_ir has no class for (maps, as ZipMap makes them) out of the main graph for a while."""
    graph = proto.graph
    hidden = [
        (info, onnx.TypeProto.FromString(info.type.SerializeToString()))
        for info in (*graph.input, *graph.output, *graph.value_info)
        if _holds_map(info.type)
    ]
    for info, _ in hidden:
        info.ClearField("type")
    try:
        yield
    finally:
        for info, type_ in hidden:
            info.type.CopyFrom(type_)


def _holds_map(type_: TypeProto) -> bool:
    kind = type_.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        inner: TypeProto = getattr(type_, kind).elem_type
        return _holds_map(inner)
    return bool(kind == "map_type")


def _digest(proto: onnx.ModelProto, base_dir: Path) -> str:
    """Sha256 over the model; external data enters by name, extent and file size."""
    digest = hashlib.sha256()
    for piece in serialize_in_pieces(proto):
        digest.update(piece)
    for tensor in onnx.external_data_helper._get_all_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            location = next((e.value for e in tensor.external_data if e.key == "location"), "")
            digest.update(f"{location}:{(base_dir / location).stat().st_size}".encode())
    return digest.hexdigest()


class _Importer:
    """Walks the onnx_ir model in file order and fills a GraphBuilder."""

    def __init__(
        self,
        model: ir.Model,
        types: TypeTable,
        polymorphic: frozenset[ir.OperatorIdentifier],
        source: str,
        digest: str,
    ) -> None:
        self.model, self.types, self.polymorphic = model, types, polymorphic
        opsets = {("" if d == "ai.onnx" else d): v for d, v in model.opset_imports.items()}
        self.builder = GraphBuilder(source, digest, opsets)
        self.nodes: list[ir.Node] = []
        self.values: list[ir.Value] = []
        self._ids: dict[ir.Value, int] = {}
        self._neutral_types: dict[bytes | None, tuple[DataType, tuple[Dim, ...] | None, Container]] = {}
        self._functions: dict[ir.OperatorIdentifier, int] = {}
        self._frozen_scopes: set[int] = set()

    def run(self) -> ModelGraph:
        main = self.builder.add_scope(ScopeKind.MAIN, self.model.graph.name or "")
        for key in self.model.functions:
            name = f"{key[0]}::{key[1]}" + (f":{key[2]}" if key[2] else "")
            self._functions[key] = self.builder.add_scope(ScopeKind.FUNCTION, name)
            if key in self.polymorphic:
                self._frozen_scopes.add(self._functions[key])
        self._fill(self.model.graph, main, self.model.opset_imports)
        for key, function in self.model.functions.items():
            self._fill(function, self._functions[key], function.opset_imports)
        draft = self.builder.draft()
        add_typevars(self.builder, draft, self._frozen_scopes)
        add_boundary_typevars(self.builder, draft, self._frozen_scopes)
        return self.builder.freeze()

    def _fill(self, graph: ir.Graph | ir.Function, scope: int, opsets: Mapping[str, int]) -> None:
        is_weight_input = self.model.ir_version < 4
        initializers = graph.initializers if isinstance(graph, ir.Graph) else {}
        inputs = []
        for slot, value in enumerate(graph.inputs):
            if is_weight_input and value.is_initializer():
                continue
            inputs.append(self._add(value, scope, ValueKind.INPUT, slot=slot))
            if value.is_initializer():
                self.builder.mark_default(inputs[-1])
        for value in initializers.values():
            if value not in self._ids:
                self._add(value, scope, ValueKind.CONSTANT, tensor=value.const_value)
        for node in graph:
            self._add_node(node, scope, opsets)
        self.builder.close_scope(scope, inputs, [self._id(v, scope) for v in graph.outputs])

    def _id(self, value: ir.Value | None, scope: int) -> int | None:
        if value is None or (not value.name and value.producer() is None):
            return None
        if value not in self._ids:  # read but defined nowhere: a sparse initializer, or an invalid model
            self._add(value, scope, ValueKind.INPUT, container=Container.SPARSE)
        return self._ids[value]

    def _add(
        self,
        value: ir.Value,
        scope: int,
        kind: ValueKind,
        *,
        producer: int | None = None,
        slot: int = 0,
        tensor: Tensor | None = None,
        container: Container | None = None,
    ) -> int:
        dtype, shape, inferred = self._neutral(self.types.get(value))
        self._ids[value] = self.builder.add_value(
            value.name or "",
            dtype,
            shape,
            scope,
            kind,
            producer=producer,
            slot=slot,
            container=container or inferred,
            tensor=tensor,
        )
        self.values.append(value)
        return self._ids[value]

    def _neutral(self, proto: TypeProto | None) -> tuple[DataType, tuple[Dim, ...] | None, Container]:
        """A type in our words; a model has many values of few types."""
        key = None if proto is None else proto.SerializeToString()
        known = self._neutral_types.get(key)
        if known is None:
            known = self._neutral_types[key] = _neutral(proto)
        return known

    def _add_node(self, node: ir.Node, scope: int, opsets: Mapping[str, int]) -> None:
        domain = "" if node.domain in ONNX_DOMAINS else node.domain
        op = self.builder.add_op(
            node.name or "",
            domain,
            node.op_type,
            opset_of(node, opsets),
            scope,
            [self._id(v, scope) for v in node.inputs],
            attrs=_attributes(node),
            metadata=node.metadata_props,
        )
        self.nodes.append(node)
        subscopes: dict[str, int] = {}
        for attr in node.attributes.values():
            if attr.is_ref():
                continue
            if attr.type is ir.AttributeType.GRAPH:
                subscopes[attr.name] = self._add_body(attr.as_graph(), attr.name, scope, op, opsets)
            elif attr.type is ir.AttributeType.GRAPHS:
                for i, body in enumerate(attr.as_graphs()):
                    name = f"{attr.name}[{i}]"
                    subscopes[name] = self._add_body(body, name, scope, op, opsets)
        constant = _constant_tensor(node)
        outputs: list[int | None] = []
        for slot, value in enumerate(node.outputs):
            if not value.name:
                outputs.append(None)
                continue
            kind = ValueKind.CONSTANT if constant is not None else ValueKind.RESULT
            outputs.append(self._add(value, scope, kind, producer=op, slot=slot, tensor=constant))
        self.builder.close_op(
            op, outputs, subscopes=subscopes, callee=self._functions.get(node.op_identifier())
        )

    def _add_body(self, body: ir.Graph, name: str, parent: int, owner: int, opsets: Mapping[str, int]) -> int:
        scope = self.builder.add_scope(ScopeKind.SUBGRAPH, name, parent, owner)
        if parent in self._frozen_scopes:
            self._frozen_scopes.add(scope)
        self._fill(body, scope, opsets)
        return scope


def _neutral(proto: TypeProto | None) -> tuple[DataType, tuple[Dim, ...] | None, Container]:
    if proto is None:
        return DataType.UNKNOWN, None, Container.TENSOR
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        tensor = proto.tensor_type
        shape = tuple(map(_dim, tensor.shape.dim)) if tensor.HasField("shape") else None
        return _data_type(tensor.elem_type), shape, Container.TENSOR
    if kind == "sequence_type":
        return _neutral(proto.sequence_type.elem_type)[0], None, Container.SEQUENCE
    if kind == "optional_type":
        return _neutral(proto.optional_type.elem_type)[0], None, Container.OPTIONAL
    if kind == "sparse_tensor_type":
        return _data_type(proto.sparse_tensor_type.elem_type), None, Container.SPARSE
    return DataType.OTHER if kind else DataType.UNKNOWN, None, Container.TENSOR


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    kind = dim.WhichOneof("value")
    if kind == "dim_value":
        return dim.dim_value
    return dim.dim_param or None if kind == "dim_param" else None


@functools.cache
def _data_type(elem_type: int) -> DataType:
    if elem_type == 0:
        return DataType.UNKNOWN
    name = onnx.TensorProto.DataType.Name(onnx.TensorProto.DataType.ValueType(elem_type)).lower()
    return DataType(name) if name in DataType._value2member_map_ else DataType.OTHER


def _attributes(node: ir.Node) -> dict[str, object]:
    """Attribute values as plain Python, tensors as they are."""
    plain: dict[str, object] = {}
    for attr in node.attributes.values():
        if attr.is_ref():
            plain[attr.name] = Reference(attr.ref_attr_name or "")
        elif attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            continue
        else:
            plain[attr.name] = tuple(attr.value) if isinstance(attr.value, (list, tuple)) else attr.value
    return plain


@dataclass(frozen=True, slots=True)
class _Literal:
    """Numbers written directly into a Constant node's attribute."""

    data: npt.NDArray[np.generic]

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    @property
    def size(self) -> int:
        return int(self.data.size)

    def numpy(self) -> npt.NDArray[np.generic]:
        return self.data


def _constant_tensor(node: ir.Node) -> Tensor | None:
    """The numbers of a Constant node; None for other operators and for strings and sparse values."""
    if node.op_type != "Constant" or node.domain not in ONNX_DOMAINS:
        return None
    for attr in node.attributes.values():
        if attr.is_ref():
            return None
        if attr.name == "value":
            is_tensor = attr.type is ir.AttributeType.TENSOR
            tensor: Tensor = attr.value if is_tensor else attr.as_tensor()  # which is slow, and raises
            return tensor
        if attr.name in ("value_float", "value_floats"):
            return _Literal(np.asarray(attr.value, dtype=np.float32))
        if attr.name in ("value_int", "value_ints"):
            return _Literal(np.asarray(attr.value, dtype=np.int64))
    return None
