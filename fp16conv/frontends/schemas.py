"""Operator schemas: which slots belong to which type variable, and what each variable admits.

From `onnx.defs` at the model's opset; for com.microsoft from rules/schemas (generated from ONNX Runtime's own
schemas). What both leave out (variables that must be equal, or must never change) is in
rules/schemas/corrections.toml.
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import onnx
import onnx.defs
import onnx.helper
import onnx.shape_inference

from fp16conv._data import rules_dir
from fp16conv.files import is_regular

__all__ = ["Parameter", "Schema", "find_schema"]

ONNX_DOMAINS = ("", "ai.onnx")
_FLOAT, _FP16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


@dataclass(frozen=True, slots=True)
class Parameter:
    """A formal parameter; `type_str` is a type variable's name or a concrete type."""

    name: str
    type_str: str
    is_variadic: bool
    is_homogeneous: bool


@dataclass(frozen=True, slots=True)
class Schema:
    """Formal inputs and outputs of an operator and the types its variables admit.

    Args:
        types: type strings by type variable.
        equal: variables that must have one dtype though the schema lets them differ.
        fixed: variables that are never retyped.
        follows: output variable -> the variable whose dtype it takes where no input binds it.
    """

    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    types: dict[str, frozenset[str]]
    equal: tuple[str, ...] = ()
    fixed: frozenset[str] = frozenset()
    follows: Mapping[str, str] = field(default_factory=dict)

    def input(self, slot: int) -> Parameter | None:
        """The formal parameter of an input slot (the last variadic one repeats)."""
        return _at(self.inputs, slot)

    def output(self, slot: int) -> Parameter | None:
        """The formal parameter of an output slot."""
        return _at(self.outputs, slot)

    def admits_fp16(self, type_str: str) -> bool:
        """Whether the variable (or concrete type) may become a float16 tensor, sequence or optional."""
        if type_str in self.fixed:
            return False
        allowed = self.types.get(type_str, frozenset((type_str,)))
        return any("tensor(float16)" in t for t in allowed)


def _at(parameters: tuple[Parameter, ...], slot: int) -> Parameter | None:
    if slot < len(parameters):
        return parameters[slot]
    return parameters[-1] if parameters and parameters[-1].is_variadic else None


def find_schema(domain: str, op_type: str, opset: int) -> Schema | None:
    """Return the schema of an operator at an opset, None when nobody knows it.

    Args:
        domain: "" or "ai.onnx" for the standard domain.
        op_type: e.g. "Conv".
        opset: imported version of the domain.

    Example:
        >>> find_schema("", "Celu", 21).admits_fp16("T"), find_schema("", "Celu", 28).admits_fp16("T")
        (False, True)
    """
    domain = "" if domain in ONNX_DOMAINS else domain
    # Asked each time: programs register schemas of their own, also after a model was read.
    return _find_schema(domain, op_type, opset, onnx.defs.has(op_type, opset, domain))


@functools.cache
def _find_schema(domain: str, op_type: str, opset: int, known: bool) -> Schema | None:
    schema = _declared_schema(domain, op_type, opset) if known else _contrib_schemas(domain).get(op_type)
    if schema is None:
        return None
    for correction in _corrections().get(f"{domain}::{op_type}" if domain else op_type, ()):
        if correction.first <= opset and (correction.last is None or opset <= correction.last):
            schema = replace(
                schema,
                equal=schema.equal + correction.equal,
                fixed=schema.fixed | correction.fixed,
                follows={**schema.follows, **correction.follows},
            )
    return schema


@dataclass(frozen=True, slots=True)
class _Correction:
    first: int
    last: int | None
    equal: tuple[str, ...]
    fixed: frozenset[str]
    follows: Mapping[str, str]


@functools.cache
def _corrections() -> dict[str, list[_Correction]]:
    content = (rules_dir() / "schemas" / "corrections.toml").read_text(encoding="utf-8")
    found: dict[str, list[_Correction]] = {}
    for entry in tomllib.loads(content)["correction"]:
        first, last = entry.get("opset", (1, None))
        found.setdefault(entry["op"], []).append(
            _Correction(
                first,
                last,
                tuple(entry.get("equal", ())),
                frozenset(entry.get("fixed", ())),
                entry.get("follows", {}),
            )
        )
    return found


def _declared_schema(domain: str, op_type: str, opset: int) -> Schema:
    s = onnx.defs.get_schema(op_type, opset, domain)
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic

    def parameters(formal: object) -> tuple[Parameter, ...]:
        return tuple(
            Parameter(p.name, p.type_str, p.option == variadic, p.is_homogeneous)
            for p in formal  # type: ignore[attr-defined]
        )

    types = {t.type_param_str: frozenset(t.allowed_type_strs) for t in s.type_constraints}
    schema = Schema(parameters(s.inputs), parameters(s.outputs), types)
    if _is_body_typed(s, opset, schema, _FP16) or not _is_body_typed(s, opset, schema, _FLOAT):
        return schema
    return Schema(schema.inputs, schema.outputs, {k: v - {"tensor(float16)"} for k, v in types.items()})


def _is_body_typed(s: onnx.defs.OpSchema, opset: int, schema: Schema, dtype: int) -> bool:
    """Whether the function that defines an operator type-checks with inputs of a dtype.

    MeanVarianceNormalization admits FP16 by its schema, but its body adds an FP32 constant: strict inference
    refuses the node, and so does a runtime that has no kernel of its own and inlines the body.
    """
    versions = [v for v in s.function_opset_versions if v <= opset]  # type: ignore[attr-defined]
    if not versions or not any(schema.admits_fp16(p.type_str) for p in schema.inputs):
        return True
    body = s.get_function_with_opset_version(max(versions))  # type: ignore[attr-defined]
    function = onnx.FunctionProto.FromString(body)
    inputs = [
        onnx.helper.make_tensor_type_proto(
            dtype if schema.admits_fp16(p.type_str) else _first_type(schema, p.type_str), None
        )
        for p in schema.inputs
    ]
    defaults = [a.default_value for a in s.attributes.values() if a.default_value.name]
    try:
        onnx.shape_inference.infer_function_output_types(function, inputs, defaults)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return False
    return True


def _first_type(schema: Schema, type_str: str) -> int:
    """The element type of some tensor that a variable admits."""
    names = (t.removeprefix("tensor(").removesuffix(")") for t in schema.types.get(type_str, (type_str,)))
    codes = (dict(onnx.TensorProto.DataType.items()).get(name.upper()) for name in sorted(names))
    return next((code for code in codes if code is not None), _FLOAT)


@functools.cache
def _contrib_schemas(domain: str) -> dict[str, Schema]:
    path = rules_dir() / "schemas" / f"{domain}.json"
    if not domain or "/" in domain or "\\" in domain or not is_regular(path):
        return {}
    operators = json.loads(path.read_text(encoding="utf-8"))["operators"]

    def parameters(formal: list[tuple[str, str, str, bool]]) -> tuple[Parameter, ...]:
        return tuple(Parameter(n, t, option == "Variadic", same) for n, t, option, same in formal)

    return {
        name: Schema(
            parameters(s["inputs"]),
            parameters(s["outputs"]),
            {k: frozenset(v) for k, v in s["types"].items()},
        )
        for name, s in operators.items()
    }
