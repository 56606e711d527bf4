"""One-operator models, built from the operators' schemas: every operator, opset and FP16-capable variable."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import onnx.defs
from onnx import TensorProto, TypeProto, helper, numpy_helper
from onnxruntime.capi import _pybind_state

CONTRIB = "com.microsoft"
NEWEST = onnx.defs.onnx_opset_version()
CONTRIB_OPSET = 21  # of ai.onnx beside contrib operators
RESHAPE_OPSET = 5  # from here on a model can hold a tensor of unknown rank
LEFT_OUT = ("If", "Loop", "Scan", "SequenceMap", "BeamSearch", "WhisperBeamSearch", "Gradient", "Constant")
"""Operators with a body, which the random graphs hold, and constants, which have no type variable."""

ELEMENTS = dict(TensorProto.DataType.items())
PREFERRED = ("float", "int64", "int32", "uint8", "int8", "bool", "string", "float16", "double")

ATTRIBUTES: Mapping[str, Mapping[str, object]] = {
    "Cast": {"to": TensorProto.FLOAT},
    "Cast-1": {"to": "FLOAT"},
    "BitCast": {"to": TensorProto.FLOAT},
    "MeanVarianceNormalization-13": {"axes": [0]},  # inference wants it written down
    "Einsum": {"equation": "i,i->i"},
    "DequantizeBFP": {"dtype": TensorProto.FLOAT, "bfp_type": 1},
    "DequantizeWithOrder": {"to": TensorProto.FLOAT, "order_input": 1, "order_output": 1},
    "SparseAttentionIndexer": {"policy_mode": "qsa"},
    "PackedSparseAttentionIndexer": {"policy_mode": "qsa"},
    "TreeEnsemble": {
        "nodes_splits": numpy_helper.from_array(np.ones(1, np.float32)),
        "nodes_featureids": [0],
        "nodes_modes": numpy_helper.from_array(np.zeros(1, np.uint8)),
        "nodes_truenodeids": [0],
        "nodes_falsenodeids": [1],
        "nodes_trueleafs": [1],
        "nodes_falseleafs": [1],
        "tree_roots": [0],
        "leaf_targetids": [0, 0],
        "leaf_weights": numpy_helper.from_array(np.ones(2, np.float32)),
        "n_targets": 1,
    },
}
"""Attributes that need a meaning; every other required one gets a plain number."""

_PLAIN: Mapping[str, object] = {
    "INT": 1,
    "INTS": [1, 1],
    "FLOAT": 1.0,
    "FLOATS": [1.0],
    "STRING": "",
    "STRINGS": ["a"],
    "TENSOR": numpy_helper.from_array(np.ones(1, np.float32)),
}


@dataclass(frozen=True, slots=True)
class Slot:
    """A formal parameter."""

    name: str
    type_str: str
    is_variadic: bool
    is_optional: bool


@dataclass(frozen=True, eq=False)
class Signature:
    """An operator at an opset at which its schema changed."""

    domain: str
    name: str
    since: int
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    types: Mapping[str, frozenset[str]]
    required: Mapping[str, str]
    is_deprecated: bool

    @property
    def label(self) -> str:
        return f"{self.domain + '::' if self.domain else ''}{self.name}-{self.since}"

    def symbols(self) -> tuple[str, ...]:
        """The type variables that can be FP32 and FP16."""
        return tuple(
            s for s, names in self.types.items() if _admits(names, "float") and _admits(names, "float16")
        )


@dataclass(frozen=True)
class OneOpModel:
    """A valid FP32 model whose operator `op` has `symbols` bound to FLOAT; `bare`: required slots only."""

    signature: Signature
    symbols: tuple[str, ...]
    proto: onnx.ModelProto = field(repr=False)
    variant: str = ""

    @property
    def name(self) -> str:
        return "-".join((self.signature.label, *self.symbols, *filter(None, (self.variant,))))


def _admits(names: frozenset[str], element: str) -> bool:
    return any(f"tensor({element})" in n and "map" not in n for n in names)


@functools.cache
def all_signatures() -> tuple[Signature, ...]:
    """Every version of every operator with a type variable that can be FP32 and FP16."""
    return tuple(s for s in all_versions() if s.symbols() and not s.is_deprecated and s.name not in LEFT_OUT)


@functools.cache
def all_versions() -> tuple[Signature, ...]:
    """Every version of every operator of onnx and of ONNX Runtime's own domain."""
    found = [_signature(s) for s in onnx.defs.get_all_schemas_with_history()]
    found += [_signature(s) for s in _pybind_state.get_all_operator_schema() if s.domain == CONTRIB]
    return tuple(sorted(found, key=lambda s: (s.domain, s.name, s.since)))


def _signature(schema: Any) -> Signature:
    return Signature(
        schema.domain,
        schema.name,
        schema.since_version,
        tuple(map(_slot, schema.inputs)),
        tuple(map(_slot, schema.outputs)),
        {t.type_param_str: frozenset(t.allowed_type_strs) for t in schema.type_constraints},
        {n: a.type.name.rpartition(".")[2] for n, a in schema.attributes.items() if a.required},
        schema.deprecated,
    )


def _slot(formal: Any) -> Slot:
    type_str = formal.type_str if hasattr(formal, "type_str") else formal.typeStr
    return Slot(formal.name, type_str, formal.option.name == "Variadic", formal.option.name == "Optional")


@functools.cache
def build(signature: Signature) -> tuple[OneOpModel, ...]:
    """Valid models that together bind all of `symbols()` to FLOAT, and one with the required slots only."""
    models: list[OneOpModel] = []
    missing = list(signature.symbols())
    while missing:
        found = next(_candidates(signature, missing[0]), None)
        if found is None:
            missing.pop(0)
            continue
        models.append(found)
        missing = [s for s in missing if s not in found.symbols]
    least = (next(_candidates(signature, s, [frozenset()]), None) for s in signature.symbols())
    bare = next((model for model in least if model is not None), None)
    if bare is not None and all(bare.proto != model.proto for model in models):
        models.append(replace(bare, variant="bare"))
    return tuple(models)


def _candidates(
    signature: Signature, wanted: str, choices: Sequence[frozenset[str]] = ()
) -> Iterator[OneOpModel]:
    for opset, bound, rank, given in itertools.product(
        _opsets(signature),
        _bindings(signature, wanted),
        (None, 4, 3, 2, 1, 0),
        choices or _choices(signature),
    ):
        if rank is None and opset < RESHAPE_OPSET:
            continue
        proto = _model(signature, opset, bound, rank, given)
        if proto is not None and _is_valid(proto):
            used = _used_types(signature, proto)
            floats = tuple(s for s, t in bound.items() if "tensor(float)" in t and s in used)
            if wanted in floats:
                yield OneOpModel(signature, floats, proto)


def _opsets(signature: Signature) -> list[int]:
    """Versions of ai.onnx to import: where the schema is new, and the last one where it is still valid."""
    if signature.domain:
        return [CONTRIB_OPSET if signature.domain == CONTRIB else NEWEST]
    later = [s.since for s in all_versions() if s.name == signature.name and s.since > signature.since]
    return list(dict.fromkeys((signature.since, min(later, default=NEWEST + 1) - 1)))


def _choices(signature: Signature) -> list[frozenset[str]]:
    """Which optional inputs and outputs are given: all, none, or one of them."""
    optional = [s.name for s in (*signature.inputs, *signature.outputs) if s.is_optional]
    choices = [frozenset(optional), frozenset[str](), *(frozenset((name,)) for name in optional)]
    return list(dict.fromkeys(choices))


def _bindings(signature: Signature, wanted: str) -> Iterator[dict[str, str]]:
    """Type per variable: floating wherever that is possible, else one variable after the other not."""
    choices = {s: _preferred(names) for s, names in signature.types.items()}
    choices[wanted] = [t for t in choices[wanted] if "tensor(float)" in t]
    first = {s: names[0] for s, names in choices.items()}
    yield first
    for symbol, names in choices.items():
        for name in names[1:]:
            yield first | {symbol: name}


def _preferred(names: frozenset[str]) -> list[str]:
    def rank(name: str) -> tuple[int, int, str]:
        element = name.rpartition("(")[2].rstrip(")")
        order = PREFERRED.index(element) if element in PREFERRED else len(PREFERRED)
        return order, len(name), name

    return sorted((n for n in names if "map(" not in n), key=rank)[:6] or sorted(names)


def _used_types(signature: Signature, proto: onnx.ModelProto) -> set[str]:
    node = next(n for n in proto.graph.node if n.name == "op")
    used = set()
    for names, slots in ((node.input, signature.inputs), (node.output, signature.outputs)):
        for i, name in enumerate(names):
            if name:
                used.add(slots[min(i, len(slots) - 1)].type_str)
    return used


def _is_valid(proto: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(proto)
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return False
    return True


def _model(
    signature: Signature, opset: int, bound: Mapping[str, str], rank: int | None, given: frozenset[str]
) -> onnx.ModelProto | None:
    """A model of the operator; None where a type or an attribute cannot be written down."""
    attributes = _attributes(signature)
    if attributes is None:
        return None
    graph = _Graph()
    reads = [
        graph.source(bound.get(s.type_str, s.type_str), rank) if s is not None else ""
        for s in _actual(signature.inputs, given)
    ]
    if None in reads:
        return None
    while reads and not reads[-1]:
        reads.pop()
    results = []
    for i, slot in enumerate(_actual(signature.outputs, given)):
        results.append("" if slot is None else f"y{i}")
    while results and not results[-1]:
        results.pop()
    graph.nodes.append(
        helper.make_node(signature.name, reads, results, name="op", domain=signature.domain, **attributes)
    )
    slots = _actual(signature.outputs, given)
    types = {n: bound.get(s.type_str, s.type_str) for n, s in zip(results, slots, strict=False) if s and n}
    return graph.close(signature, opset, types, rank)


def _actual(slots: Sequence[Slot], given: frozenset[str]) -> list[Slot | None]:
    """The slots in use: the required ones and those given; a variadic one twice."""
    actual: list[Slot | None] = []
    for slot in slots:
        if slot.is_variadic:
            actual += [slot, slot]
        else:
            actual.append(slot if not slot.is_optional or slot.name in given else None)
    return actual


def _attributes(signature: Signature) -> dict[str, object] | None:
    known = ATTRIBUTES.get(f"{signature.name}-{signature.since}", ATTRIBUTES.get(signature.name, {}))
    plain = {n: _PLAIN[kind] for n, kind in signature.required.items() if n not in known and kind in _PLAIN}
    if signature.required.keys() - known.keys() - plain.keys():
        return None
    return plain | dict(known)


class _Graph:
    """Collects the parts of a model around one operator."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.count = 0

    def source(self, type_str: str, rank: int | None) -> str | None:
        """A value of a type, behind Reshape if its rank is to stay open."""
        type_proto = parse_type(type_str)
        if type_proto is None:
            return None
        name = f"x{self.count}"
        self.count += 1
        if not type_proto.HasField("tensor_type"):
            self.inputs.append(helper.make_value_info(name, type_proto))
            return name
        element = type_proto.tensor_type.elem_type
        if rank is not None:
            dims = [f"{name}_{d}" for d in range(rank)]
            self.inputs.append(helper.make_tensor_value_info(name, element, dims))
            return name
        self.inputs += [
            helper.make_tensor_value_info(f"{name}_flat", element, [f"{name}_size"]),
            helper.make_tensor_value_info(f"{name}_shape", TensorProto.INT64, [f"{name}_rank"]),
        ]
        self.nodes.append(
            helper.make_node("Reshape", [f"{name}_flat", f"{name}_shape"], [name], name=f"{name}_open")
        )
        return name

    def close(
        self, signature: Signature, opset: int, types: Mapping[str, str], rank: int | None
    ) -> onnx.ModelProto | None:
        """The model; results become outputs with the rank inference finds, flattened where it finds none."""
        imports = [helper.make_opsetid("", opset)]
        if signature.domain:
            imports.append(helper.make_opsetid(signature.domain, signature.since))
        values = []
        for name, type_str in types.items():
            type_proto = parse_type(type_str)
            if type_proto is None:
                return None
            values.append(helper.make_value_info(name, type_proto))
        graph = helper.make_graph(self.nodes, "one_op", self.inputs, values)
        ir_version = 3 if opset < 9 else 8 if opset < 21 else 10
        proto = helper.make_model(graph, opset_imports=imports, ir_version=ir_version)
        try:
            ranks = _ranks(proto)
        except Exception:  # whatever inference throws: these inputs do not fit
            return None
        del proto.graph.output[:]
        for value in values:
            element = value.type.tensor_type.elem_type
            if not value.type.HasField("tensor_type"):
                proto.graph.output.append(value)
            elif value.name in ranks:
                dims = [f"{value.name}_{d}" for d in range(ranks[value.name])]
                proto.graph.output.append(helper.make_tensor_value_info(value.name, element, dims))
            elif opset >= RESHAPE_OPSET:
                flat = f"{value.name}_flat"
                if not any(i.name == "whole" for i in proto.graph.input):
                    proto.graph.input.append(helper.make_tensor_value_info("whole", TensorProto.INT64, [1]))
                proto.graph.value_info.append(value)
                proto.graph.node.append(helper.make_node("Reshape", [value.name, "whole"], [flat], name=flat))
                proto.graph.output.append(helper.make_tensor_value_info(flat, element, [f"{flat}_size"]))
            elif rank is not None:  # the oldest schemas infer nothing
                dims = [f"{value.name}_{d}" for d in range(rank)]
                proto.graph.output.append(helper.make_tensor_value_info(value.name, element, dims))
            else:
                return None
        return proto


def _ranks(proto: onnx.ModelProto) -> dict[str, int]:
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    return {
        v.name: len(v.type.tensor_type.shape.dim)
        for v in (*inferred.graph.output, *inferred.graph.value_info)
        if v.type.tensor_type.HasField("shape")
    }


def parse_type(type_str: str) -> TypeProto | None:
    """`seq(tensor(float))` and the like as a TypeProto; None for maps and types onnx has no name for."""
    kind, _, inner = type_str.partition("(")
    inner = inner[:-1]
    if kind in ("tensor", "sparse_tensor"):
        if inner.upper() not in ELEMENTS:
            return None
        element = ELEMENTS[inner.upper()]
        if kind == "tensor":
            return helper.make_tensor_type_proto(element, None)
        return helper.make_sparse_tensor_type_proto(element, None)
    content = parse_type(inner) if kind in ("seq", "optional") else None
    if content is None:
        return None
    if kind == "seq":
        return helper.make_sequence_type_proto(content)
    return helper.make_optional_type_proto(content)
