"""The dtype of every value and every use, read off a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fp16conv.errors import PlanError
from fp16conv.graph import DataType, ModelGraph, Use
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.rulebook.folding import STATISTICS
from fp16conv.rulebook.rescaling import exponents_of
from fp16conv.rulebook.types import Reason

__all__ = ["Assignment", "assign"]


@dataclass(frozen=True)
class Assignment:
    """A checked plan as a lookup.

    Args:
        graph: the graph of the model the plan is for.
        dtypes: FLOAT or FLOAT16 by type variable id.
        reasons: the strongest reason by type variable id, None where the plan gives none.
        saturated: ids of the constants that become +-65504 where FP16 cannot hold them.
        lowered: ids of the operators that are written as others in FP16.
        folded: ids of the BatchNormalizations in FP16 that become a Mul and an Add.
        rescaled: exponents k by id of the products that are computed times 2^-k in FP16.
    """

    graph: ModelGraph
    dtypes: tuple[DataType, ...]
    reasons: tuple[Reason | None, ...]
    saturated: frozenset[int]
    lowered: frozenset[int] = frozenset()
    folded: frozenset[int] = frozenset()
    rescaled: Mapping[int, int] = field(default_factory=dict)
    _of_value: dict[int, DataType] = field(default_factory=dict, repr=False, compare=False)

    def of_value(self, value: int) -> DataType:
        """The dtype a value gets; constants and values that are not FLOAT keep their own.

        A cast from FLOAT16 stays what it is as long as anything reads FLOAT from it, whatever the plan says
        of its result: its other readers can have what it reads.
        """
        dtype = self._of_value.get(value)
        if dtype is None:
            dtype = self._of_value[value] = self._find(value)
        return dtype

    def _find(self, value: int) -> DataType:
        typevar = self.graph.typevar_of_value(value)
        if typevar is None:
            return self.graph.values[value].dtype
        dtype = self.dtypes[typevar.id]
        if dtype is DataType.FLOAT16 and self.widened(value) is not None:
            uses = self.graph.consumers(value)
            if not uses or any(self.of_use(use) is DataType.FLOAT for use in uses):
                return DataType.FLOAT
        return dtype

    def of_typevar(self, typevar: int) -> DataType:
        """The dtype of a type variable, that of its value where it has one (see `of_value`)."""
        defs = self.graph.typevars[typevar].defs
        return self.of_value(defs[0]) if defs else self.dtypes[typevar]

    def widened(self, value: int) -> int | None:
        """The FLOAT16 value that a cast widens to this one; None for results of anything else."""
        op = self.graph.producer(value)
        if op is None or op.key != "Cast" or not op.inputs or op.inputs[0] is None:
            return None
        is_widening = (
            self.graph.values[op.inputs[0]].dtype is DataType.FLOAT16
            and self.graph.values[value].dtype is DataType.FLOAT
        )
        return op.inputs[0] if is_widening else None

    def of_use(self, use: Use) -> DataType:
        """The dtype that is read at `use`; a slot without a type variable keeps its own."""
        typevar = self.graph.typevar_of_use(use)
        if typevar is not None:
            return self.dtypes[typevar.id]
        value = self.graph.value_at(use)
        return DataType.UNKNOWN if value is None else value.dtype

    def is_folded(self, use: Use) -> bool:
        """Whether the value read here is a statistic that folding replaces."""
        return use.op in self.folded and use.slot in STATISTICS

    def misfits(self, value: int) -> tuple[Use, ...]:
        """The uses that read the value in another dtype than it has."""
        if self.graph.values[value].dtype is not DataType.FLOAT:
            return ()
        own = self.of_value(value)
        return tuple(use for use in self.graph.consumers(value) if self.of_use(use) is not own)


def assign(graph: ModelGraph, plan: PrecisionPlan) -> Assignment:
    """Check a plan against the graph and return it as a lookup.

    Raises:
        PlanError: the plan belongs to another model, leaves a type variable out, or asks for a dtype
            that the operator does not admit.
    """
    if plan.model_digest != graph.digest:
        raise PlanError(
            "the plan was made for another model",
            where=graph.source,
            why=f"the plan's digest is {plan.model_digest[:12]}, the model's is {graph.digest[:12]}",
            hint="make a new plan with `fp16conv plan`",
        )
    dtypes: list[DataType | None] = [None] * len(graph.typevars)
    reasons: list[Reason | None] = [None] * len(graph.typevars)
    for decision in plan.decisions:
        where = f"decision for '{decision.label}', type variable {decision.symbol}"
        if not 0 <= decision.typevar < len(dtypes) or dtypes[decision.typevar] is not None:
            raise PlanError(f"type variable {decision.typevar} is unknown or decided twice", where=where)
        if decision.dtype not in (DataType.FLOAT, DataType.FLOAT16):
            raise PlanError(f"dtype '{decision.dtype}' is neither float nor float16", where=where)
        if decision.dtype is DataType.FLOAT16 and not graph.typevars[decision.typevar].admits_fp16:
            raise PlanError("asks for float16, which the operator does not admit here", where=where)
        dtypes[decision.typevar] = decision.dtype
        reasons[decision.typevar] = decision.reasons[0] if decision.reasons else None
    decided = tuple(dtype for dtype in dtypes if dtype is not None)
    if len(decided) != len(dtypes):
        missing = graph.typevars[dtypes.index(None)]
        raise PlanError(
            f"{len(dtypes) - len(decided)} type variables are not decided",
            where=graph.source,
            why=f"the first one is {missing.symbol} (id {missing.id})",
            hint="make a new plan with `fp16conv plan`",
        )
    folded = frozenset(op for op in plan.folded if _writes_fp16(graph, op, decided))
    saturated, lowered = frozenset(plan.saturated), frozenset(plan.lowered)
    rescaled = exponents_of(plan.rescaled)
    return Assignment(graph, decided, tuple(reasons), saturated, lowered, folded, rescaled)


def _writes_fp16(graph: ModelGraph, op: int, dtypes: Sequence[DataType]) -> bool:
    """Whether the operator's first output is FP16: an edited plan may have moved it to FP32."""
    output = graph.ops[op].outputs[0]
    typevar = None if output is None else graph.typevar_of_value(output)
    return typevar is not None and dtypes[typevar.id] is DataType.FLOAT16
