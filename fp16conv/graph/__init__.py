"""The neutral model graph: operators, values, scopes, type variables."""

from fp16conv.graph.builder import GraphBuilder
from fp16conv.graph.model import ModelGraph
from fp16conv.graph.parameters import find_optional_parameters
from fp16conv.graph.pieces import Piece, read_pieces
from fp16conv.graph.types import (
    Container,
    DataType,
    Dim,
    Op,
    Origin,
    RangeFact,
    Reference,
    Scope,
    ScopeKind,
    Tensor,
    TypeVar,
    Use,
    Value,
    ValueKind,
)

__all__ = [
    "Container",
    "DataType",
    "Dim",
    "GraphBuilder",
    "ModelGraph",
    "Op",
    "Origin",
    "Piece",
    "RangeFact",
    "Reference",
    "Scope",
    "ScopeKind",
    "Tensor",
    "TypeVar",
    "Use",
    "Value",
    "ValueKind",
    "find_optional_parameters",
    "read_pieces",
]
