"""The core types, in the field's words. All are immutable; ids are dense ints in file order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

__all__ = [
    "Container",
    "DataType",
    "Dim",
    "Op",
    "Origin",
    "RangeFact",
    "Reference",
    "Scope",
    "ScopeKind",
    "Tensor",
    "TypeVar",
    "Use",
    "Value",
    "ValueKind",
]

Dim = int | str | None
"""A dimension: known size, symbolic name, or unknown."""


class DataType(StrEnum):
    """Element type of a value; the members' values are the lower-case ONNX names."""

    FLOAT = "float"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    DOUBLE = "double"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    BOOL = "bool"
    STRING = "string"
    OTHER = "other"  # complex, float8, int4 ...: never touched
    UNKNOWN = "unknown"  # nothing could infer it

    __hash__ = str.__hash__  # that of Enum is written in Python

    @property
    def is_integer(self) -> bool:
        return self.startswith(("int", "uint"))

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes (1 where unknown)."""
        return _ITEMSIZE.get(self, 1)


_ITEMSIZE = {
    DataType.FLOAT: 4,
    DataType.FLOAT16: 2,
    DataType.BFLOAT16: 2,
    DataType.DOUBLE: 8,
    DataType.INT16: 2,
    DataType.UINT16: 2,
    DataType.INT32: 4,
    DataType.UINT32: 4,
    DataType.INT64: 8,
    DataType.UINT64: 8,
}


class Container(StrEnum):
    """What holds the elements. Only tensors can be cast."""

    TENSOR = "tensor"
    SEQUENCE = "sequence"
    OPTIONAL = "optional"
    SPARSE = "sparse"


class ValueKind(StrEnum):
    INPUT = "input"  # formal input of a scope
    CONSTANT = "constant"  # initializer or output of a Constant node: its numbers are known
    RESULT = "result"  # output of an operator


class ScopeKind(StrEnum):
    MAIN = "main"
    SUBGRAPH = "subgraph"
    FUNCTION = "function"


class Tensor(Protocol):
    """A constant's numbers, read lazily. Large ones are better read by `read_pieces`."""

    @property
    def nbytes(self) -> int: ...

    @property
    def size(self) -> int: ...

    def numpy(self) -> npt.NDArray[np.generic]: ...


class Use(NamedTuple):
    """A place where a value is read: input `slot` of `op`, or output `slot` of `scope` if op is None.

    A tuple, because type variables are looked up by it all the time.
    """

    op: int | None
    slot: int
    scope: int


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA value.

    `slot` is the output slot of `producer`, or the position among the inputs of `scope`.
    """

    id: int
    name: str
    dtype: DataType
    shape: tuple[Dim, ...] | None
    scope: int
    kind: ValueKind
    producer: int | None = None
    slot: int = 0
    container: Container = Container.TENSOR

    @property
    def is_constant(self) -> bool:
        return self.kind is ValueKind.CONSTANT

    @property
    def size(self) -> int | None:
        """Number of elements, None where a dimension is unknown."""
        if self.shape is None:
            return None
        total = 1
        for dim in self.shape:
            if not isinstance(dim, int):
                return None
            total *= dim
        return total


@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute of an operator inside a function whose value is an argument of the function's call."""

    name: str


@dataclass(frozen=True, slots=True)
class Op:
    """An operator call: an ONNX node or an FX call.

    `attrs` holds Python scalars, strings, tuples, `Tensor` for tensor attributes, and `Reference`.
    `subscopes` maps attribute names (then_branch, body ...) to scope ids; `callee` is the scope of
    the called model-local function. `label` is the node name, or a stable stand-in when it has none.
    """

    id: int
    name: str
    label: str
    domain: str
    op_type: str
    opset: int
    scope: int
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    attrs: Mapping[str, object] = field(default_factory=dict)
    subscopes: Mapping[str, int] = field(default_factory=dict)
    callee: int | None = None
    typevars: tuple[int, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """`domain::op_type`, the domain left out for ai.onnx."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type


@dataclass(frozen=True, slots=True)
class Scope:
    """Main graph, subgraph or function body. `outputs` are value ids, `ops` in execution order."""

    id: int
    kind: ScopeKind
    name: str
    parent: int | None
    owner: int | None
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    ops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TypeVar:
    """The unit of decision: everything that must share one dtype at one operator or boundary.

    `uses` are the places where values enter (a cast can sit there), `defs` the values it types.
    Only variables bound to FLOAT exist. Boundaries have type variables too, so that nothing about
    control flow is special later: a main graph input (`input:NAME`, defs only), a main graph output
    (`output:NAME`, one use), an If output (uses: the branches' outputs), a loop-carried value (uses:
    initial value and body output; defs: body input and final value), a function's input and output.

    Args:
        op: the owning operator, None for the interface of `scope`.
        symbol: type variable name from the operator schema, or `input:NAME` / `output:NAME`.
        admits_fp16: whether the schema at this opset allows tensor(float16) here.
    """

    id: int
    op: int | None
    scope: int
    symbol: str
    uses: tuple[Use, ...]
    defs: tuple[int, ...]
    admits_fp16: bool


class Origin(StrEnum):
    """How a fact is known."""

    PROVEN = "proven"
    OBSERVED = "observed"  # FP32 run over the user's data
    SYNTHETIC = "synthetic"  # FP32 run over made-up inputs
    CONSTANT = "constant"  # read off the model file


@dataclass(frozen=True, slots=True)
class RangeFact:
    """What is known of a value's numbers (NaN left out).

    Args:
        lo: smallest value; hi: largest value (infinities count).
        min_abs_nonzero: smallest non-zero magnitude, None when all are zero or unknown.
        is_integral: every number is an integer.
        has_nan: a NaN was seen (always False for proven facts about finite inputs).
        share_overflow: share of elements with magnitude >= 65520.
        share_subnormal: share of elements with 0 < magnitude < 2^-14.
        share_zeroed: share of elements that FP16 rounds to zero.
        rms: root mean square, None when unknown.
        proven_max_abs: magnitude that is proven never to be exceeded, None where nothing is proven.
        finite_max_abs: largest finite magnitude, told only where infinities were seen beside it.
    """

    lo: float
    hi: float
    origin: Origin
    min_abs_nonzero: float | None = None
    is_integral: bool = False
    has_nan: bool = False
    share_overflow: float = 0.0
    share_subnormal: float = 0.0
    share_zeroed: float = 0.0
    rms: float | None = None
    proven_max_abs: float | None = None
    finite_max_abs: float | None = None

    @property
    def max_abs(self) -> float:
        return max(abs(self.lo), abs(self.hi))
