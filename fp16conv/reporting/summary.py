"""Condense a model and its plan into report data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fp16conv.graph import DataType, ModelGraph, Value
from fp16conv.planning.alignment import Product
from fp16conv.planning.devices import Device
from fp16conv.planning.plan import Decision, PrecisionPlan
from fp16conv.planning.planner import PLANNER
from fp16conv.reporting.alignment import AlignmentSummary, UnalignedProduct
from fp16conv.reporting.report import (
    DecisionSummary,
    KeptGroup,
    ModelFacts,
    Port,
    Prediction,
    Size,
)
from fp16conv.rulebook.types import Reason, Verdict

__all__ = ["describe_model", "read_prediction", "read_size", "summarize_alignment", "summarize_decisions"]

_EXAMPLES = 8  # labels kept per group


def describe_model(
    graph: ModelGraph,
    *,
    path: str | None = None,
    ir_version: int | None = None,
    producer: str = "",
    macs: int | None = None,
) -> ModelFacts:
    """List what a model holds.

    Args:
        graph: the model.
        path: how to call the model, `graph.source` if None.
        ir_version: of the file.
        producer: name and version of the tool that wrote the file.
        macs: multiply-accumulates of one run, None where unknown.

    Returns:
        The facts; operators of subgraphs and function bodies are counted once each.
    """
    types = Counter(op.key for op in graph.ops)
    return ModelFacts(
        path=graph.source if path is None else path,
        digest=graph.digest,
        opsets=dict(sorted(graph.opsets.items())),
        ir_version=ir_version,
        producer=producer,
        ops=len(graph.ops),
        op_types=dict(sorted(types.items(), key=lambda item: (-item[1], item[0]))),
        inputs=tuple(_port(graph.values[i]) for i in graph.main.inputs if not graph.values[i].is_constant),
        outputs=tuple(_port(graph.values[i]) for i in graph.main.outputs if i is not None),
        weights=sum(graph.constants[i].nbytes for i in sorted(graph.constants)),
        macs=macs,
    )


def _port(value: Value) -> Port:
    return Port(value.name, value.dtype.value, value.shape)


def summarize_decisions(plan: PrecisionPlan, macs: Mapping[int, int] | None = None) -> DecisionSummary:
    """Count decisions and group what stays FP32 by the rule that says so.

    Args:
        plan: decisions, casts and saturated constants.
        macs: multiply-accumulates per operator id, for each group's share; None where unknown.

    Returns:
        Groups ordered by number of operators, then by rule id. The interface (graph inputs and outputs) is
        not an operator and appears in no group.
    """
    by_op: dict[int, list[Decision]] = {}
    for decision in plan.decisions:
        if decision.op is not None:
            by_op.setdefault(decision.op, []).append(decision)
    halves = {op: sum(d.dtype is DataType.FLOAT16 for d in found) for op, found in by_op.items()}
    fp16 = [op for op, found in by_op.items() if halves[op] == len(found)]
    fp32 = [op for op in by_op if halves[op] == 0]
    total = sum(macs.values()) if macs else 0
    share = plan.predicted.get("macs_fp16_share") if plan.predicted.get("macs") else None
    return DecisionSummary(
        fp16=len(fp16),
        fp32=len(fp32),
        mixed=len(by_op) - len(fp16) - len(fp32),
        verdicts=dict(sorted(Counter(d.verdict.value for d in plan.decisions).items())),
        casts=len(plan.casts),
        macs_share=share,
        kept=_group(
            (_kept_decision(by_op[op]) for op in sorted(by_op) if halves[op] < len(by_op[op])), macs, total
        ),
        saturated=len(plan.saturated),
        folded=len(plan.folded),
    )


def _kept_decision(decisions: Iterable[Decision]) -> Decision:
    """The FP32 decision that speaks for the operator: the first, in the order of the schema."""
    return next(d for d in decisions if d.dtype is not DataType.FLOAT16)


def _decisive(decision: Decision) -> Reason | None:
    """What keeps an operator in FP32: its verdict, or the planner where the verdict would let it go."""
    reasons = decision.reasons
    if decision.verdict not in (Verdict.DENY, Verdict.NEVER):
        reasons = tuple(r for r in reasons if r.rule == PLANNER) or reasons
    return reasons[0] if reasons else None


def _group(
    decisions: Iterable[Decision], macs: Mapping[int, int] | None, total: int
) -> tuple[KeptGroup, ...]:
    groups: dict[tuple[str, str], list[Decision]] = {}
    for decision in decisions:
        reason = _decisive(decision)
        key = (reason.rule, reason.authority.value) if reason else (PLANNER, "built-in")
        groups.setdefault(key, []).append(decision)
    made = []
    for (rule, authority), members in groups.items():
        types = Counter(d.op_type for d in members)
        cost = sum(macs.get(d.op, 0) for d in members if d.op is not None) if macs else 0
        reason = _decisive(members[0])
        made.append(
            KeptGroup(
                rule=rule,
                authority=authority,
                text=reason.text if reason else "cheaper in FP32",
                count=len(members),
                op_types=dict(sorted(types.items(), key=lambda item: (-item[1], item[0]))),
                examples=tuple(d.label for d in members[:_EXAMPLES]),
                macs_share=cost / total if total else None,
            )
        )
    return tuple(sorted(made, key=lambda g: (-g.count, g.rule, g.authority)))


def read_size(plan: PrecisionPlan) -> Size:
    """Bytes of the constants before and after, as the planner counted them."""
    predicted = plan.predicted
    return Size(int(predicted.get("weight_bytes_before", 0)), int(predicted.get("weight_bytes_after", 0)))


def read_prediction(plan: PrecisionPlan, device: Device) -> Prediction | None:
    """Run times the planner predicted for `device`, None where it predicted none."""
    before, after = plan.predicted.get("time_fp32_us"), plan.predicted.get("time_plan_us")
    if before is None or after is None:
        return None
    return Prediction(device.id, device.title, before * 1e-6, after * 1e-6)


def summarize_alignment(
    graph: ModelGraph, found: Sequence[Product], macs: Mapping[int, int]
) -> AlignmentSummary | None:
    """Count the products whose sizes fit Tensor Cores.

    Args:
        graph: the model.
        found: its products in FP16, with their sizes.
        macs: multiply-accumulates per operator id.

    Returns:
        None where there are none.
    """
    if not found:
        return None
    unaligned = sorted((p for p in found if p.unaligned), key=lambda p: (-p.macs, p.op))
    aligned = [p for p in found if not p.unaligned and not p.is_open]
    total = sum(macs.values())
    judged = sum(p.macs for p in (*aligned, *unaligned))
    largest = [
        UnalignedProduct(
            op=graph.ops[p.op].label,
            op_type=graph.ops[p.op].key,
            sizes=p.unaligned,
            macs_share=p.macs / total if total else None,
        )
        for p in unaligned[:_EXAMPLES]
    ]
    return AlignmentSummary(
        multiple=found[0].multiple,
        aligned=len(aligned),
        unaligned=len(unaligned),
        open=len(found) - len(aligned) - len(unaligned),
        macs_share=sum(p.macs for p in aligned) / judged if judged else None,
        largest=tuple(largest),
    )
