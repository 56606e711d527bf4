"""ModelGraph: what both front ends fill and everything later reads. Frozen once built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fp16conv.graph.types import Op, Scope, ScopeKind, Tensor, TypeVar, Use, Value

__all__ = ["ModelGraph"]


@dataclass(frozen=True)
class ModelGraph:
    """Operators, values, scopes and type variables of a model, ids dense in file order.

    Args:
        source: where the model came from (a path), for messages.
        digest: sha256 of the model, binds plans to it.
        opsets: version per imported domain.
        constants: value id -> tensor, for every value of kind CONSTANT whose numbers are in the file.
        defaults: main graph inputs that need not be fed.
    """

    source: str
    digest: str
    opsets: Mapping[str, int]
    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    scopes: tuple[Scope, ...]
    typevars: tuple[TypeVar, ...]
    constants: Mapping[int, Tensor]
    defaults: frozenset[int]
    _of_use: Mapping[Use, int] = field(repr=False)
    _of_value: Mapping[int, int] = field(repr=False)
    _consumers: tuple[tuple[Use, ...], ...] = field(repr=False)

    @property
    def main(self) -> Scope:
        return self.scopes[0]

    def consumers(self, value: int) -> tuple[Use, ...]:
        """Every place where the value is read, scope outputs included, in file order."""
        return self._consumers[value]

    def typevar_of_use(self, use: Use) -> TypeVar | None:
        """The type variable a value enters at `use`; None if it is not bound to FLOAT there."""
        index = self._of_use.get(use)
        return None if index is None else self.typevars[index]

    def typevar_of_value(self, value: int) -> TypeVar | None:
        """The type variable that gives the value its dtype; None for constants and non-FLOAT values."""
        index = self._of_value.get(value)
        return None if index is None else self.typevars[index]

    def value_at(self, use: Use) -> Value | None:
        """The value read at `use`."""
        slots = self.scopes[use.scope].outputs if use.op is None else self.ops[use.op].inputs
        index = slots[use.slot]
        return None if index is None else self.values[index]

    def array(self, value: int | None) -> npt.NDArray[np.generic] | None:
        """The numbers of a constant value, None when it is absent or not constant."""
        tensor = None if value is None else self.constants.get(value)
        return None if tensor is None else np.asarray(tensor.numpy())

    def producer(self, value: int | None) -> Op | None:
        """The operator that makes the value."""
        if value is None:
            return None
        index = self.values[value].producer
        return None if index is None else self.ops[index]

    def users(self, value: int) -> Iterator[Op]:
        """The operators that read the value (scope outputs left out), in file order."""
        for use in self._consumers[value]:
            if use.op is not None:
                yield self.ops[use.op]

    def typevars_of(self, op: int) -> tuple[TypeVar, ...]:
        """The FLOAT-bound type variables of an operator."""
        return tuple(self.typevars[i] for i in self.ops[op].typevars)

    def is_main_input(self, value: int) -> bool:
        return value in self._main_inputs

    def scope_path(self, scope: int) -> str:
        """A readable path, e.g. `main/if_1.then_branch`.

        Main graph first; a function body is `function:domain::name`.
        """
        s = self.scopes[scope]
        if s.kind is ScopeKind.MAIN:
            return "main"
        if s.kind is ScopeKind.FUNCTION or s.parent is None:
            return f"function:{s.name}"
        owner = f"{self.ops[s.owner].label}." if s.owner is not None else ""
        return f"{self.scope_path(s.parent)}/{owner}{s.name}"

    @cached_property
    def _main_inputs(self) -> frozenset[int]:
        return frozenset(self.main.inputs)
