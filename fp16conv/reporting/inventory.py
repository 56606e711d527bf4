"""Collect the details of a report: every operator of a model with what was decided and seen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fp16conv.evidence.summary import LOWEST_EXPONENT
from fp16conv.graph import Container, DataType, ModelGraph, Op, RangeFact, Value
from fp16conv.planning.plan import Decision, PrecisionPlan
from fp16conv.reporting.details import Details, OperatorDetail, ReasonNote, RuleNote, ValueDetail
from fp16conv.reporting.source_lines import LINE
from fp16conv.rulebook.book import RuleBook
from fp16conv.rulebook.patterns import PatternRule
from fp16conv.rulebook.schema import Rule
from fp16conv.rulebook.types import Authority, Reason

__all__ = ["find_block", "list_converted", "list_operators", "node_notes", "note_rules"]

_RULE = "pkg.fp16conv.rule"
_REASON = "pkg.fp16conv.reason"


def list_operators(
    graph: ModelGraph,
    plan: PrecisionPlan,
    book: RuleBook,
    *,
    facts: Mapping[int, RangeFact] | None = None,
    histograms: Mapping[int, npt.NDArray[np.int64]] | None = None,
    shapes: Mapping[int, tuple[int, ...]] | None = None,
    macs: Mapping[int, int] | None = None,
    errors: Mapping[int, float] | None = None,
    error_note: str = "",
    proven: Mapping[int, RangeFact] | None = None,
) -> Details:
    """List every operator of a model under a plan.

    Args:
        graph: the model.
        plan: decisions.
        book: where the rules that the reasons name are.
        facts: range per value id.
        histograms: int64 [81] counts of base-2 exponents from -40 to 40, per value id.
        shapes: observed shape per value id.
        macs: multiply-accumulates per operator id.
        errors: relative L2 error per value id, under the plan.
        error_note: what the errors rest on.
        proven: bounds per value id that hold for all inputs.
    """
    dtypes = plan.dtypes
    by_op: dict[int, list[Decision]] = {}
    for decision in plan.decisions:
        if decision.op is not None:
            by_op.setdefault(decision.op, []).append(decision)

    def detail(value: Value) -> ValueDetail:
        variable = graph.typevar_of_value(value.id)
        dtype = dtypes.get(variable.id, value.dtype) if variable is not None else value.dtype
        seen = (shapes or {}).get(value.id)
        found = _value(
            value,
            dtype,
            seen if seen is not None else value.shape,
            (facts or {}).get(value.id),
            (histograms or {}).get(value.id),
            (errors or {}).get(value.id),
        )
        bound = (proven or {}).get(value.id)
        if bound is None or (math.isinf(bound.lo) and math.isinf(bound.hi)):
            return found
        return replace(found, bounds=(bound.lo, bound.hi))

    operators = []
    for op in graph.ops:
        decisions = by_op.get(op.id, [])
        outputs = tuple(detail(value) for value in _floats(graph, op.outputs))
        speaker = next((d for d in decisions if d.dtype is not DataType.FLOAT16), None)
        speaker = speaker or (decisions[0] if decisions else None)
        operators.append(
            OperatorDetail(
                label=op.label,
                op_type=op.key,
                scope=graph.scope_path(op.scope),
                precision=_precision([d.dtype for d in decisions]),
                verdict=speaker.verdict.value if speaker else "",
                reasons=_reasons(decisions),
                outputs=outputs,
                macs=(macs or {}).get(op.id),
                error=max((v.error for v in outputs if v.error is not None), default=None),
                error_in=_largest(errors, op.inputs),
                block=find_block(op, graph.scope_path(op.scope)),
                line=op.metadata.get(LINE, ""),
            )
        )
    return Details(
        tuple(operators),
        tuple(detail(value) for value in _floats(graph, graph.main.inputs)),
        note_rules(book, {reason.rule for op in operators for reason in op.reasons}),
        error_note if errors else "",
    )


def list_converted(
    graph: ModelGraph, *, errors: Mapping[str, float] | None = None, error_note: str = ""
) -> Details:
    """List every operator of a converted model, with the notes that the conversion left on its nodes.

    Args:
        graph: the converted model.
        errors: relative L2 error per value name.
        error_note: what the errors rest on.
    """
    known = errors or {}

    def detail(value: Value) -> ValueDetail:
        return _value(value, value.dtype, value.shape, None, None, known.get(value.name))

    operators = []
    for op in graph.ops:
        reads = [v for v in _floats(graph, op.inputs) if not v.is_constant]
        outputs = tuple(detail(value) for value in _floats(graph, op.outputs))
        before = [known[v.name] for v in reads if v.name in known]
        rule = op.metadata.get(_RULE, "")
        text = op.metadata.get(_REASON, "")
        operators.append(
            OperatorDetail(
                label=op.label,
                op_type=op.key,
                scope=graph.scope_path(op.scope),
                precision=_precision([v.dtype for v in [*reads, *_floats(graph, op.outputs)]]),
                verdict="",
                reasons=(ReasonNote(rule, text, "plan"),) if rule else (),
                outputs=outputs,
                error=max((v.error for v in outputs if v.error is not None), default=None),
                error_in=max(before, default=None),
                block=find_block(op, graph.scope_path(op.scope)),
                line=op.metadata.get(LINE, ""),
            )
        )
    inputs = tuple(detail(value) for value in _floats(graph, graph.main.inputs))
    return Details(tuple(operators), inputs, (), error_note if errors else "")


def find_block(op: Op, scope: str) -> tuple[str, ...]:
    """Names of the blocks around an operator, outermost first.

    From the exporter's note on the node (`pkg.torch.onnx.namespace`), else from a name that is a path
    (`/model/layer.0/attn/MatMul`, `model.layer.0.MatMul`). Subgraphs and functions are blocks of their own.
    """
    outer = () if scope == "main" else tuple(scope.removeprefix("main/").split("/"))
    space = op.metadata.get("pkg.torch.onnx.namespace") or op.metadata.get("namespace") or ""
    parts = [part.partition(":")[0].strip() for part in space.split("/")[:-1]]
    if not any(parts):
        separator = "/" if "/" in op.name else "." if op.name.count(".") > 1 else None
        parts = op.name.split(separator)[:-1] if separator else []
    return outer + tuple(part for part in parts if part)


def node_notes(op: OperatorDetail) -> dict[str, str]:
    """What a viewer should show at a node: precision, rule, reason, ranges, error; texts by key."""
    if op.precision == "other":
        return {}
    names = {"fp16": "FP16", "fp32": "FP32", "mixed": "FP16 and FP32"}
    reason = op.reasons[0] if op.reasons else None
    ranges = [
        f"{v.name}: {v.lo:.4g} to {v.hi:.4g} ({v.origin})"
        for v in op.outputs
        if v.lo is not None and v.hi is not None
    ]
    return {
        "precision": names[op.precision],
        "rule": reason.rule if reason else "",
        "reason": reason.text if reason else "",
        "range": "; ".join(ranges),
        "error": "" if op.error is None else f"{op.error:.3g}",
        "error_before": "" if op.error_in is None else f"{op.error_in:.3g}",
    }


def note_rules(book: RuleBook, identifiers: Iterable[str]) -> tuple[RuleNote, ...]:
    """The rules with these ids, sorted; ids that are no rule (`planner`, `keep-fp32`) are left out."""
    wanted = set(identifiers)
    items: list[Rule | PatternRule] = [*book.rules, *book.patterns]
    found = {item.id: item for item in items if item.id in wanted}
    return tuple(
        RuleNote(
            identifier,
            item.name,
            item.verdict.value,
            " ".join(item.rationale.split()),
            tuple(item.evidence),
            getattr(item, "file", ""),
        )
        for identifier, item in sorted(found.items())
    )


def _floats(graph: ModelGraph, values: Sequence[int | None]) -> list[Value]:
    found = [graph.values[v] for v in values if v is not None]
    kinds = (DataType.FLOAT, DataType.FLOAT16)
    return [v for v in found if v.dtype in kinds and v.container is Container.TENSOR]


def _precision(dtypes: Sequence[DataType]) -> str:
    if not dtypes:
        return "other"
    halves = sum(dtype is DataType.FLOAT16 for dtype in dtypes)
    return "fp16" if halves == len(dtypes) else "mixed" if halves else "fp32"


def _reasons(decisions: Sequence[Decision]) -> tuple[ReasonNote, ...]:
    """FP32 decisions speak first: a reader asks why something was kept."""
    ordered = sorted(decisions, key=lambda d: d.dtype is DataType.FLOAT16)
    reasons: dict[tuple[str, str], Reason] = {}
    for decision in ordered:
        for reason in decision.reasons:
            reasons.setdefault((reason.rule, reason.text), reason)
    return tuple(ReasonNote(r.rule, r.text, Authority(r.authority).value) for r in reasons.values())


def _largest(errors: Mapping[int, float] | None, values: Sequence[int | None]) -> float | None:
    known = [errors[v] for v in values if v is not None and v in errors] if errors else []
    return max(known, default=None)


def _value(
    value: Value,
    dtype: DataType,
    shape: tuple[int | str | None, ...] | None,
    fact: RangeFact | None,
    histogram: npt.NDArray[np.int64] | None,
    error: float | None,
) -> ValueDetail:
    first, counts = 0, tuple[int, ...]()
    if histogram is not None and histogram.any():
        filled = np.flatnonzero(histogram)
        first = int(filled[0]) + LOWEST_EXPONENT
        counts = tuple(int(n) for n in histogram[filled[0] : filled[-1] + 1])
    if fact is None:
        return ValueDetail(value.name, dtype.value, shape, first_exponent=first, counts=counts, error=error)
    return ValueDetail(
        name=value.name,
        dtype=dtype.value,
        shape=shape,
        origin=fact.origin.value,
        lo=fact.lo,
        hi=fact.hi,
        min_abs=fact.min_abs_nonzero,
        rms=fact.rms,
        overflow=fact.share_overflow,
        subnormal=fact.share_subnormal,
        zeroed=fact.share_zeroed,
        first_exponent=first,
        counts=counts,
        error=error,
    )
