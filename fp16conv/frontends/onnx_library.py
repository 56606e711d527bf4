"""onnx's checker and inference: C++ that reads untrusted models, so it runs in the helper process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

import onnx
import onnx.checker
import onnx.defs
import onnx.shape_inference
from onnx import TypeProto
from onnx.onnx_cpp2py_export import shape_inference as native

from fp16conv.frontends.schemas import ONNX_DOMAINS
from fp16conv.isolation import IsolationError, isolated, start_helper

__all__ = ["check_file", "infer_model", "infer_node", "knows_operator"]


MAX_LIST = 2**20  # numbers in a list; inference that follows lists takes memory for each, several times over


def check_file(path: str) -> None:
    """The full ONNX checker.

    Raises:
        onnx.checker.ValidationError: it finds something.
        IsolationError: it did not survive the model.
    """
    path = os.path.abspath(path)  # the helper stays in the folder it was started in
    isolated(onnx.checker.check_model, os.path.getsize(path), path)


def infer_model(proto: onnx.ModelProto, *, is_strict: bool) -> onnx.ModelProto:
    """Infer types and shapes.

    Sizes that the model computes are followed through it, unless that takes too long: onnx follows every
    list (rank 1) as if it were a shape, a recording of an hour too.

    Args:
        proto: the model; initializers may be bare headers.
        is_strict: raise on the first contradiction instead of leaving out what depends on it.

    Raises:
        onnx.shape_inference.InferenceError: the model contradicts itself.
        IsolationError: inference did not survive the model.
    """
    start_helper(_own_schemas(proto))
    content = proto.SerializeToString()
    inferred = onnx.ModelProto()
    if not _declares_long_list(proto.graph):
        with contextlib.suppress(IsolationError):  # a long list that is computed
            inferred.ParseFromString(isolated(_infer_model, len(content), content, is_strict, True))
            return inferred
    inferred.ParseFromString(isolated(_infer_model, len(content), content, is_strict, False))
    return inferred


def knows_operator(domain: str, op_type: str, version: int) -> bool:
    """Whether onnx has a schema, without which it infers nothing and a call to the helper is wasted.

    Example:
        >>> knows_operator("", "Relu", 14), knows_operator("com.microsoft", "FusedMatMul", 1)
        (True, False)
    """
    return onnx.defs.has(op_type, version, _domain(domain))


def infer_node(
    version: int,
    node: onnx.NodeProto,
    types: Mapping[str, TypeProto],
    data: Mapping[str, onnx.TensorProto],
    imports: Sequence[onnx.OperatorSetIdProto],
) -> dict[str, TypeProto]:
    """Infer the outputs of one operator.

    Args:
        version: of the operator's domain.
        node: the operator, without subgraphs.
        types: of its inputs, by name.
        data: its constant inputs that may say shapes.
        imports: versions of all domains.

    Raises:
        onnx.shape_inference.InferenceError: the operator contradicts its inputs.
        IsolationError: inference did not survive the operator.
    """
    return isolated(_infer_node, node.ByteSize(), version, node, types, data, imports)


def _domain(name: str) -> str:
    return "" if name in ONNX_DOMAINS else name


def _own_schemas(proto: onnx.ModelProto) -> frozenset[tuple[str, str, int]] | None:
    """What the program registered with `onnx.defs.register_schema`, maybe after the helper was started.

    Returns:
        Domain, operator and version of each schema; None where the model has ONNX's own domains only.
    """
    if all(_is_own_of_onnx(entry.domain) for entry in proto.opset_import):
        return None
    schemas = onnx.defs.get_all_schemas_with_history()
    return frozenset((s.domain, s.name, s.since_version) for s in schemas if not _is_own_of_onnx(s.domain))


def _is_own_of_onnx(domain: str) -> bool:
    return domain in ONNX_DOMAINS or domain.startswith("ai.onnx.")


def _declares_long_list(graph: onnx.GraphProto) -> bool:
    for info in (*graph.input, *graph.value_info, *graph.output):
        dims = info.type.tensor_type.shape.dim
        if len(dims) == 1 and dims[0].dim_value > MAX_LIST:
            return True
    return any(len(t.dims) == 1 and t.dims[0] > MAX_LIST for t in graph.initializer)


def _infer_model(content: bytes, is_strict: bool, follow_lists: bool) -> bytes:
    """What `onnx.shape_inference.infer_shapes` does, without parsing the result."""
    return native.infer_shapes(content, is_strict, is_strict, follow_lists)


def _infer_node(
    version: int,
    node: onnx.NodeProto,
    types: Mapping[str, TypeProto],
    data: Mapping[str, onnx.TensorProto],
    imports: Sequence[onnx.OperatorSetIdProto],
) -> dict[str, TypeProto]:
    schema = onnx.defs.get_schema(node.op_type, version, _domain(node.domain))
    return onnx.shape_inference.infer_node_outputs(schema, node, dict(types), dict(data), None, list(imports))
