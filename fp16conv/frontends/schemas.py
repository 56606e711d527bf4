"""Operator schemas: which slots belong to which type variable, and what each variable admits.

From `onnx.defs` at the model's opset; for com.microsoft from rules/schemas (generated from ONNX Runtime's own schemas).
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass

import onnx.defs

from fp16conv._data import rules_dir

__all__ = ["Parameter", "Schema", "find_schema"]

ONNX_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A formal parameter; `type_str` is a type variable's name or a concrete type."""

    name: str
    type_str: str
    is_variadic: bool
    is_homogeneous: bool


@dataclass(frozen=True, slots=True)
class Schema:
    """Formal inputs and outputs of an operator and the types its variables admit."""

    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    types: dict[str, frozenset[str]]

    def input(self, slot: int) -> Parameter | None:
        """The formal parameter of an input slot (the last variadic one repeats)."""
        return _at(self.inputs, slot)

    def output(self, slot: int) -> Parameter | None:
        """The formal parameter of an output slot."""
        return _at(self.outputs, slot)

    def admits_fp16(self, type_str: str) -> bool:
        """Whether the type variable (or concrete type) includes a float16 tensor, sequence or optional."""
        allowed = self.types.get(type_str, frozenset((type_str,)))
        return any("tensor(float16)" in t for t in allowed)


def _at(parameters: tuple[Parameter, ...], slot: int) -> Parameter | None:
    if slot < len(parameters):
        return parameters[slot]
    return parameters[-1] if parameters and parameters[-1].is_variadic else None


@functools.cache
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
    try:
        s = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return _contrib_schemas(domain).get(op_type)
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic

    def parameters(formal: object) -> tuple[Parameter, ...]:
        return tuple(
            Parameter(p.name, p.type_str, p.option == variadic, p.is_homogeneous)
            for p in formal  # type: ignore[attr-defined]
        )

    types = {t.type_param_str: frozenset(t.allowed_type_strs) for t in s.type_constraints}
    return Schema(parameters(s.inputs), parameters(s.outputs), types)


@functools.cache
def _contrib_schemas(domain: str) -> dict[str, Schema]:
    path = rules_dir() / "schemas" / f"{domain}.json"
    if not domain or "/" in domain or "\\" in domain or not path.is_file():
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
