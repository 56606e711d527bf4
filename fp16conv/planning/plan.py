"""PrecisionPlan: the decision about a model as data a user can read, diff, edit and replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fp16conv.graph import DataType, Use
from fp16conv.rulebook.types import Reason, Verdict

__all__ = ["Cast", "Decision", "PrecisionPlan"]


@dataclass(frozen=True, slots=True)
class Decision:
    """Precision of one type variable.

    Args:
        typevar: id of the type variable in the model's graph.
        op: id of the operator, None for a graph input or output.
        label: operator name (or stable stand-in) / input or output name, for people.
        op_type: `domain::type`, empty for the interface.
        scope: path of the scope, e.g. `main`.
        symbol: the type variable's name.
        dtype: FLOAT or FLOAT16.
    """

    typevar: int
    op: int | None
    label: str
    op_type: str
    scope: str
    symbol: str
    dtype: DataType
    verdict: Verdict
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """A cast the converter inserts: `value` is turned into `to` once and read by all of `uses`."""

    value: int
    value_name: str
    to: DataType
    uses: tuple[Use, ...]


@dataclass(frozen=True)
class PrecisionPlan:
    """Decisions, casts and constants to saturate, bound to a model and a rule book by digest.

    Constants need no cast entry: one that is read in FP16 is converted, in two copies only where
    both precisions read it. `saturated` lists constant value ids that become +-65504 in FP16, `lowered`
    operator ids that are written as other operators because the target lacks their FP16 kernel, `folded`
    ids of BatchNormalizations that become a Mul and an Add (see `rulebook.folding`), `rescaled` ids of
    products that are computed at a power of two of their size (see `rulebook.rescaling`).
    """

    model_digest: str
    rules_digest: str
    options: Mapping[str, object]
    decisions: tuple[Decision, ...]
    casts: tuple[Cast, ...]
    saturated: Mapping[int, Reason] = field(default_factory=dict)
    lowered: Mapping[int, Reason] = field(default_factory=dict)
    folded: Mapping[int, Reason] = field(default_factory=dict)
    rescaled: Mapping[int, Reason] = field(default_factory=dict)
    predicted: Mapping[str, float] = field(default_factory=dict)

    @property
    def dtypes(self) -> dict[int, DataType]:
        """Precision per type variable id."""
        return {decision.typevar: decision.dtype for decision in self.decisions}

    def dtype_list(self, typevars: int) -> list[DataType]:
        """FLOAT or FLOAT16 per type variable id; FLOAT where nothing is decided.

        Args:
            typevars: number of type variables of the graph.
        """
        chosen = self.dtypes
        return [chosen.get(index, DataType.FLOAT) for index in range(typevars)]
