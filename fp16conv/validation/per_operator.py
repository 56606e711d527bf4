"""Which operators of a converted model cause its error, and where it first shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fp16conv.errors import ValidationError
from fp16conv.execution.feeds import FeedSource
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import DataType, ModelGraph, Op
from fp16conv.half import MAX, round_to_fp16
from fp16conv.rulebook.families import family
from fp16conv.rulebook.rescaling import RESTORED, find_region
from fp16conv.validation.attribution import Blame, attribute
from fp16conv.validation.depth import errors_of_model
from fp16conv.validation.metrics import ATOL, RTOL
from fp16conv.validation.probe import Probe, ProbeBase

__all__ = ["OperatorErrors", "rank_by", "rank_operators", "read_precisions", "read_saturated"]


@dataclass(frozen=True)
class OperatorErrors:
    """The error of a converted model by operator.

    Args:
        blames: operators with their share of the squared error, worst first.
        errors: relative L2 error of each value on the first batch, by value id of the reference.
        first: id of the first operator, in execution order, whose result errs more than the tolerance;
            None where none does.
    """

    blames: tuple[Blame, ...]
    errors: dict[int, float]
    first: int | None


def read_precisions(reference: ModelGraph, candidate: ModelGraph) -> list[DataType]:
    """Read off a converted model which type variables of its original are FP16.

    Operators are paired in file order, casts and constants left out: converters add these, and keep the order
    of the rest. What this one writes in another way (Mul and Add for BatchNormalization, Max, Min for Clip)
    is paired with its original.

    Args:
        reference: the FP32 model.
        candidate: what a converter made of it.

    Returns:
        FLOAT or FLOAT16 per type variable id of the reference.

    Raises:
        ValidationError: the operators of the two models do not correspond.
    """
    dtypes = [DataType.FLOAT] * len(reference.typevars)
    for pair in _pairs(reference, candidate):
        op, first, last = pair.original, pair.first, pair.last
        for variable in reference.typevars_of(op.id):
            slots = [use.slot for use in variable.uses if use.op == op.id and not pair.is_rewritten]
            reads = [first.inputs[slot] for slot in slots if slot < len(first.inputs)]
            makes = [last.outputs[op.outputs.index(v)] for v in variable.defs if v in op.outputs]
            if pair.is_rewritten:  # only FP16 is, and all of it
                makes = list(last.outputs)
            found = {candidate.values[v].dtype for v in (*reads, *makes) if v is not None}
            if DataType.FLOAT16 in found:
                dtypes[variable.id] = DataType.FLOAT16
    for variable in reference.typevars:
        if variable.op is None and variable.scope == 0:
            dtypes[variable.id] = _interface(reference, candidate, variable.symbol)
    return dtypes


def rank_operators(
    reference: LoadedModel,
    candidate: LoadedModel,
    feeds: FeedSource,
    runtime: Runtime,
    *,
    rtol: float = RTOL,
    atol: float = ATOL,
    allow_integer_changes: bool = False,
) -> OperatorErrors:
    """Put the error of a converted model down to its operators.

    Args:
        reference: the FP32 model.
        candidate: what a converter made of it.
        feeds: batches of inputs for the reference.
        runtime: CPU runtime.
        rtol: allowed relative L2 error: outputs are weighed by what they are allowed.
        atol: allowed root mean square error on top.
        allow_integer_changes: integer outputs may change.

    Raises:
        ValidationError: the operators do not correspond, or the FP32 model does not run.
    """
    dtypes = read_precisions(reference.graph, candidate.graph)
    with Probe(
        reference,
        feeds,
        runtime,
        saturated=read_saturated(reference.graph, candidate.graph),
        folded=_folded(reference.graph, candidate.graph),
        rescaled=_rescaled(reference.graph, candidate.graph),
        rtol=rtol,
        atol=atol,
        allow_integer_changes=allow_integer_changes,
        batches=len(feeds),
    ) as probe:
        errors = errors_of_model(reference, candidate, next(iter(feeds)), runtime)
        return rank_by(probe, dtypes, errors, rtol)


def rank_by(
    probe: ProbeBase, dtypes: Sequence[DataType], errors: Mapping[int, float], rtol: float
) -> OperatorErrors:
    """Put the error of an assignment down to its operators.

    Args:
        probe: measures.
        dtypes: FLOAT or FLOAT16 per type variable id.
        errors: relative L2 error per value id.
        rtol: error from which a result is beyond the tolerance.
    """
    blames = attribute(probe, dtypes)
    beyond = (
        op for op in probe.graph.ops if any(v is not None and errors.get(v, 0.0) > rtol for v in op.outputs)
    )
    first = next(beyond, None)
    return OperatorErrors(blames, dict(errors), None if first is None else first.id)


@dataclass(frozen=True, slots=True)
class _Pair:
    """An operator and the one or two that a converter made of it."""

    original: Op
    first: Op
    last: Op

    @property
    def is_rewritten(self) -> bool:
        return self.original.key != self.last.key


_REWRITTEN: Final = {
    "BatchNormalization": (("Mul", "Add"),),
    "Clip": (("Max", "Min"), ("Max",), ("Min",), ("Identity",)),
}
"""What the converter writes for an operator; the last one keeps its name."""


def _pairs(reference: ModelGraph, candidate: ModelGraph) -> list[_Pair]:
    mine, theirs = _computing(reference), _computing(candidate)
    pairs: list[_Pair] = []
    start = 0
    for op in mine:
        length = _length(op, theirs[start : start + 2])
        if not length:
            break
        pairs.append(_Pair(op, theirs[start], theirs[start + length - 1]))
        start += length
    if len(pairs) < len(mine) or start < len(theirs):
        raise ValidationError(
            "the operators of the two models do not correspond, so no error can be put down to one of them",
            where=candidate.source,
            why=f"{len(mine)} and {len(theirs)} operators that are no casts, or in another order",
            hint="compare with the model that was converted, not with an optimised copy",
        )
    return pairs


def _length(op: Op, following: Sequence[Op]) -> int:
    """How many of the operators that follow were made of this one; 0 where they were not."""
    keys = tuple(other.key for other in following)
    if keys[:1] == (op.key,):
        return 1
    for rewritten in _REWRITTEN.get(op.key, ()):
        length = len(rewritten)
        if keys[:length] == rewritten and following[length - 1].name == op.name:
            return length
    return 0


def _computing(graph: ModelGraph) -> list[Op]:
    return [op for op in graph.ops if family(op) not in ("Cast", "Constant") and not _restores(graph, op)]


def _restores(graph: ModelGraph, op: Op) -> bool:
    """Whether the operator only undoes the scale of a rescaled region."""
    made = op.outputs[0] if op.outputs else None
    return op.key == "Mul" and made is not None and op.name.startswith(f"{graph.values[made].name}{RESTORED}")


def _folded(reference: ModelGraph, candidate: ModelGraph) -> tuple[int, ...]:
    """BatchNormalizations that are a Mul and an Add in the candidate."""
    pairs = _pairs(reference, candidate)
    return tuple(p.original.id for p in pairs if p.is_rewritten and p.original.key == "BatchNormalization")


def _rescaled(reference: ModelGraph, candidate: ModelGraph) -> dict[int, int]:
    """Products whose weights in the candidate are those of the reference times 2^-k: k by operator id."""
    found: dict[int, int] = {}
    for pair in _pairs(reference, candidate):
        region = find_region(reference, pair.original)
        if region is None or pair.is_rewritten:
            continue
        slot = region.constants[0][0].slot
        old, new = reference.array(pair.original.inputs[slot]), candidate.array(pair.first.inputs[slot])
        if old is None or new is None or new.dtype != np.float16:
            continue
        before, after = np.abs(old).max(initial=0.0), np.abs(new).max(initial=0)
        if not (0 < after < np.inf and 0 < before < np.inf):
            continue
        exponent = round(math.log2(before / after))
        if exponent > 0 and np.array_equal(round_to_fp16(np.ldexp(old.astype(np.float32), -exponent)), new):
            found[pair.original.id] = exponent
    return found


def read_saturated(reference: ModelGraph, candidate: ModelGraph) -> tuple[int, ...]:
    """Constants beyond FP16's range that are finite FP16 numbers in the candidate (literals of any type)."""
    found: set[int] = set()
    for pair in _pairs(reference, candidate):
        if pair.is_rewritten:
            continue
        for before, after in zip(pair.original.inputs, pair.first.inputs, strict=False):
            old, new = reference.array(before), candidate.array(after)
            if before is None or old is None or new is None or old.dtype != np.float32:
                continue
            if np.abs(old).max(initial=0.0) > MAX >= np.abs(new).max(initial=0.0):
                found.add(before)
    return tuple(sorted(found))


def _interface(reference: ModelGraph, candidate: ModelGraph, symbol: str) -> DataType:
    """The type that the candidate's input or output of this name has."""
    kind, _, name = symbol.partition(":")
    ids = candidate.main.inputs if kind == "input" else candidate.main.outputs
    for value in ids:
        if value is not None and candidate.values[value].name == name:
            return candidate.values[value].dtype
    return DataType.FLOAT
