"""From verdicts and costs to a PrecisionPlan."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fp16conv.errors import PlanError
from fp16conv.graph import DataType, ModelGraph, TypeVar
from fp16conv.planning.casts import assignment_cost, replan_casts
from fp16conv.planning.costs import CostModel, main_typevar
from fp16conv.planning.cut import Cause, Charge, CutProblem, build_problem, solve
from fp16conv.planning.plan import Cast, Decision, PrecisionPlan
from fp16conv.rulebook.types import Reason, Verdict, Verdicts

__all__ = ["PLANNER", "label_of", "make_plan", "predict"]

PLANNER = "planner"
"""Rule id of the reasons that the planner adds."""


def make_plan(
    graph: ModelGraph,
    verdicts: Verdicts,
    costs: CostModel,
    *,
    rules_digest: str,
    model_digest: str | None = None,
    options: Mapping[str, object] | None = None,
    errors: Mapping[int, float] | None = None,
    charges: Sequence[Charge] = (),
    lam: float = 0.0,
    soft_allow: bool = False,
) -> PrecisionPlan:
    """Decide the precision of every type variable: the cheapest assignment the verdicts permit.

    Args:
        graph: the model.
        verdicts: judgement per type variable, equality groups, saturating constants.
        costs: prices in picoseconds.
        rules_digest: digest of the rule book, kept in the plan.
        model_digest: sha256 of the model, `graph.digest` by default.
        options: what the user asked for, JSON data; kept in the plan.
        errors: type variable id -> error it adds in FP16, >= 0.
        charges: errors of roundings that several type variables cause together.
        lam: picoseconds per unit of error.
        soft_allow: let error outweigh `allow` verdicts.

    Returns:
        Decisions by type variable id, casts by value id, predicted figures (see `predict`).

    Raises:
        PlanError: options that JSON cannot hold.
        UsageError: a negative lambda or error.
    """
    if len(verdicts.judgements) != len(graph.typevars):
        raise PlanError(
            f"{len(verdicts.judgements)} judgements for {len(graph.typevars)} type variables",
            where=graph.source,
        )
    problem = build_problem(
        graph, verdicts, costs, errors=errors, charges=charges, lam=lam, soft_allow=soft_allow
    )
    labels = solve(problem)
    dtypes = {variable.id: labels[problem.class_of[variable.id]] for variable in graph.typevars}
    explain = _Explainer(graph, verdicts, problem, labels)
    decisions = tuple(
        _decision(graph, variable, dtypes[variable.id], verdicts, explain) for variable in graph.typevars
    )
    casts = replan_casts(graph, dtypes)
    read16 = {value for value in verdicts.saturated if _is_read_in_fp16(graph, value, dtypes)}
    return PrecisionPlan(
        model_digest=graph.digest if model_digest is None else model_digest,
        rules_digest=rules_digest,
        options=_plain(options or {}),
        decisions=decisions,
        casts=casts,
        saturated={value: verdicts.saturated[value] for value in sorted(read16)},
        lowered=_in_fp16(graph, verdicts.lowered, dtypes),
        folded=_in_fp16(graph, verdicts.folded, dtypes),
        rescaled=_in_fp16(graph, verdicts.rescaled, dtypes),
        predicted=predict(graph, costs, dtypes, casts),
    )


def predict(
    graph: ModelGraph,
    costs: CostModel,
    dtypes: Mapping[int, DataType],
    casts: tuple[Cast, ...] | None = None,
) -> dict[str, float]:
    """Predicted figures of an assignment, by name.

    Returns:
        `time_fp32_us` and `time_plan_us` (roofline estimates, microseconds), `speedup` (their ratio),
        `casts` (count), `macs` and `macs_fp16` (per run), `macs_fp16_share` (0 where there are none),
        `weight_bytes_before` and `weight_bytes_after` (constants of every dtype, bytes).
    """
    casts = replan_casts(graph, dtypes) if casts is None else casts
    before = costs.launches + sum(costs.fp32)
    after = assignment_cost(graph, costs, dtypes, casts)
    total = in_fp16 = 0
    for op, count in sorted(costs.macs.items()):
        main = main_typevar(graph, graph.ops[op])
        total += count
        if main is not None and dtypes[main.id] is DataType.FLOAT16:
            in_fp16 += count
    weights_before, weights_after = _weight_bytes(graph, dtypes)
    return {
        "time_fp32_us": before / 1e6,
        "time_plan_us": after / 1e6,
        "speedup": before / after if after else 1.0,
        "casts": float(len(casts)),
        "macs": float(total),
        "macs_fp16": float(in_fp16),
        "macs_fp16_share": in_fp16 / total if total else 0.0,
        "weight_bytes_before": float(weights_before),
        "weight_bytes_after": float(weights_after),
    }


def label_of(graph: ModelGraph, variable: TypeVar) -> str:
    """Operator label, or the name of the graph input or output."""
    if variable.op is not None:
        return graph.ops[variable.op].label
    return variable.symbol.partition(":")[2] or variable.symbol


def _decision(
    graph: ModelGraph, variable: TypeVar, dtype: DataType, verdicts: Verdicts, explain: _Explainer
) -> Decision:
    judgement = verdicts.judgements[variable.id]
    reason, overrides = explain(variable.id)
    reasons = judgement.reasons
    if reason is not None:
        reasons = (reason, *reasons) if overrides else (*reasons, reason)
    return Decision(
        typevar=variable.id,
        op=variable.op,
        label=label_of(graph, variable),
        op_type="" if variable.op is None else graph.ops[variable.op].key,
        scope=graph.scope_path(variable.scope),
        symbol=variable.symbol,
        dtype=dtype,
        verdict=judgement.verdict,
        reasons=reasons,
    )


def _in_fp16(
    graph: ModelGraph, reasons: Mapping[int, Reason], dtypes: Mapping[int, DataType]
) -> dict[int, Reason]:
    """Those of the operators that have an FP16 type variable, by ascending id."""
    return {
        op: reason
        for op, reason in sorted(reasons.items())
        if any(dtypes[t] is DataType.FLOAT16 for t in graph.ops[op].typevars)
    }


def _is_read_in_fp16(graph: ModelGraph, value: int, dtypes: Mapping[int, DataType]) -> bool:
    """Whether some reader takes the constant, or what its producer makes of it, in FP16."""
    source = graph.typevar_of_value(value)
    if source is not None:  # e.g. ConstantOfShape: the attribute follows the output
        return dtypes[source.id] is DataType.FLOAT16
    readers = (graph.typevar_of_use(use) for use in graph.consumers(value))
    return any(reader is not None and dtypes[reader.id] is DataType.FLOAT16 for reader in readers)


def _weight_bytes(graph: ModelGraph, dtypes: Mapping[int, DataType]) -> tuple[int, int]:
    before = after = 0
    for value, tensor in graph.constants.items():
        before += tensor.nbytes
        if graph.values[value].dtype is not DataType.FLOAT:
            after += tensor.nbytes
            continue
        read: set[DataType] = set()
        for use in graph.consumers(value):
            reader = graph.typevar_of_use(use)
            read.add(DataType.FLOAT if reader is None else dtypes[reader.id])
        after += tensor.size * sum(dtype.itemsize for dtype in (read or {DataType.FLOAT}))
    return before, after


def _plain(options: Mapping[str, object]) -> dict[str, object]:
    """Options as JSON gives them back, so that a plan equals its own dump."""
    try:
        plain: dict[str, object] = json.loads(json.dumps(dict(options), sort_keys=True, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise PlanError("the options cannot be written as JSON", why=str(error)) from error
    return plain


@dataclass(frozen=True, slots=True)
class _Flip:
    """What changing one class alone would change."""

    casts: int
    time: int


class _Explainer:
    """Finds the planner's reason for a type variable, and whether it overrides its verdict."""

    def __init__(
        self, graph: ModelGraph, verdicts: Verdicts, problem: CutProblem, labels: tuple[DataType, ...]
    ) -> None:
        self._graph, self._verdicts, self._problem, self._labels = graph, verdicts, problem, labels
        self._group_reason: dict[int, Reason] = {}
        for group in verdicts.groups:
            for variable in group.typevars:
                self._group_reason.setdefault(variable, group.reason)
        self._links: dict[int, list[int]] = defaultdict(list)
        self._readers16: list[int] = []
        for number, link in enumerate(problem.links):
            self._readers16.append(sum(labels[r] is DataType.FLOAT16 for r in link.readers))
            for index in (link.source, *link.readers):
                self._links[index].append(number)
        self._charges: dict[int, list[int]] = defaultdict(list)
        self._payers: list[int] = []
        for number, (members, _) in enumerate(problem.charges):
            self._payers.append(sum(labels[m] is DataType.FLOAT16 for m in members))
            for index in members:
                self._charges[index].append(number)
        self._flips: dict[int, _Flip] = {}

    def __call__(self, variable: int) -> tuple[Reason | None, bool]:
        index = self._problem.class_of[variable]
        dtype, cause = self._labels[index], self._problem.causes[index]
        verdict = self._verdicts.judgements[variable].verdict
        if cause is Cause.VERDICT:
            return self._tied(variable, dtype, verdict)
        if cause is Cause.NO_GAIN:
            return Reason(PLANNER, "FP32: no operator that gains from FP16 exchanges values with it"), False
        if dtype is DataType.FLOAT16:
            return (None if verdict is Verdict.ALLOW else self._fp16(index)), False
        return self._fp32(index, verdict), verdict is Verdict.ALLOW

    def _tied(self, variable: int, dtype: DataType, verdict: Verdict) -> tuple[Reason | None, bool]:
        leader = self._problem.leaders[self._problem.class_of[variable]]
        if leader is None or verdict in (Verdict.DENY, Verdict.NEVER):
            return None, False
        if verdict is Verdict.ALLOW and dtype is DataType.FLOAT16:
            return None, False
        if leader == variable:
            if self._graph.typevars[variable].admits_fp16:
                text = "FP32: in FP16 its error has no bound"
            else:
                text = "FP32: its schema admits no tensor(float16) at this opset"
            return Reason(PLANNER, text), True
        tie = self._graph.typevars[leader]
        precision = "FP16" if dtype is DataType.FLOAT16 else "FP32"
        text = f"{precision}, as '{label_of(self._graph, tie)}' ({tie.symbol}) that it must agree with"
        group = self._group_reason.get(variable)
        if group is not None:
            text += f": {group.text}"
        # Where a verdict is overruled, what overruled it is the strongest reason.
        return Reason(PLANNER, text), verdict is Verdict.ALLOW or dtype is DataType.FLOAT

    def _fp16(self, index: int) -> Reason:
        flip = self._flip(index)
        numbers = {"casts_saved": float(flip.casts), "time_saved_us": flip.time / 1e6}
        if flip.casts > 0:
            text = f"FP16 like its neighbours: saves {_count(flip.casts)}"
        elif flip.time > 0:
            text = f"FP16 like its neighbours: moves half the bytes (about {flip.time / 1e6:.3g} us)"
        else:
            text = "FP16: part of a region that is faster in FP16 as a whole"
        return Reason(PLANNER, text, numbers=numbers)

    def _fp32(self, index: int, verdict: Verdict) -> Reason:
        flip = self._flip(index)
        numbers = {"casts_added": float(flip.casts), "time_added_us": flip.time / 1e6}
        if verdict is Verdict.ALLOW:
            text = "FP32: its error in FP16 weighs more than the time it saves"
        elif flip.casts > 0:
            text = f"FP32: FP16 here would add {_count(flip.casts)}, more than it saves"
        elif flip.time > 0:
            text = "FP32: FP16 here would cost more than it saves"
        else:
            text = "FP32: FP16 here would save nothing"
        return Reason(PLANNER, text, numbers=numbers)

    def _flip(self, index: int) -> _Flip:
        """Change in casts and picoseconds if this class alone took the other precision."""
        cached = self._flips.get(index)
        if cached is not None:
            return cached
        problem, labels = self._problem, self._labels
        is16 = labels[index] is DataType.FLOAT16
        casts, time = 0, problem.gains[index] if is16 else -problem.gains[index]
        for number in self._links[index]:
            link = problem.links[number]
            source16 = labels[link.source] is DataType.FLOAT16
            readers16, readers = self._readers16[number], len(link.readers)
            now = readers16 < readers if source16 else readers16 > 0
            if index == link.source:
                source16 = not source16
            else:
                readers16 += -1 if is16 else 1
            then = readers16 < readers if source16 else readers16 > 0
            casts += then - now
            time += (then - now) * link.price
        for number in self._charges[index]:
            if self._payers[number] == int(is16):  # nobody else pays it
                time += -problem.charges[number][1] if is16 else problem.charges[number][1]
        self._flips[index] = _Flip(casts, time)
        return self._flips[index]


def _count(casts: int) -> str:
    return f"{casts} cast" if casts == 1 else f"{casts} casts"
