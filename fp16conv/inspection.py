"""A closer look: why one operator has its precision, and what differs between two plans or models."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import fp16conv
from fp16conv.errors import UsageError
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from fp16conv.graph import DataType, ModelGraph
from fp16conv.inputs import OptionWords, load_model, read_options
from fp16conv.planning.plan import Decision, PrecisionPlan
from fp16conv.planning.serialize import load_plan
from fp16conv.reporting.details import OperatorDetail, ReasonNote
from fp16conv.reporting.inspection import Change, DiffReport, ExplainReport, Outcome, VariableNote
from fp16conv.reporting.inventory import list_converted
from fp16conv.reporting.progress import Progress
from fp16conv.rulebook.families import FAMILIES, family
from fp16conv.rulebook.selection import select_ops
from fp16conv.study import StudyBase, start_study

__all__ = ["diff", "diff_graphs", "explain", "explain_operator", "find_operator"]

PathLike = str | os.PathLike[str]
_PROFILES = ("balanced", "fast", "safe", "half")
_NAMES = {"fp16": "FP16", "fp32": "FP32", "mixed": "mixed", "other": "not floating"}


def explain(
    model: PathLike | LoadedModel,
    operator: str,
    *,
    progress: Progress | None = None,
    **options: Unpack[OptionWords],
) -> ExplainReport:
    """Say why an operator of an ONNX model has its precision; see `fp16conv.explain`."""
    with Runtime() as runtime:
        # A misspelt name is found before the model is run.
        loaded = load_model(model)
        op = find_operator(loaded.graph, operator)
        return explain_operator(start_study(loaded, read_options(**options), runtime, progress), op)


def explain_operator(study: StudyBase, op: int) -> ExplainReport:
    """Say why an operator has its precision; see `explain`.

    Args:
        study: the model and what is known about it.
        op: operator id.
    """
    graph, plan = study.graph, study.plan()
    details = study.list_details(plan)
    shown = details.operators[op]
    rules = {reason.rule for reason in shown.reasons}
    return ExplainReport(
        tool_version=fp16conv.__version__,
        options=study.options.recorded(),
        model_path=graph.source,
        operator=shown,
        variables=tuple(
            VariableNote(d.symbol, d.dtype.value, d.verdict.value, _notes(d))
            for d in plan.decisions
            if d.op == op
        ),
        outcomes=tuple(_outcomes(study, plan, op)) if graph.ops[op].typevars else (),
        details=replace(details, operators=(shown,), rules=tuple(r for r in details.rules if r.id in rules)),
    )


def find_operator(graph: ModelGraph, pattern: str) -> int:
    """The id of the one operator that a name or pattern fits.

    Raises:
        UsageError: none fits, or several do; suggests names.
    """
    found = select_ops(graph, pattern, "OPERATOR")
    exact = [op for op in found if pattern in (graph.ops[op].name, graph.ops[op].label)]
    if len(exact) == 1:
        return exact[0]
    if len(found) > 1:
        names = ", ".join(f"'{graph.ops[op].label}'" for op in found[:4]) + (
            ", ..." if len(found) > 4 else ""
        )
        raise UsageError(
            f"'{pattern}' fits {len(found)} operators: {names}", where="OPERATOR", hint="name one"
        )
    return found[0]


def _notes(decision: Decision) -> tuple[ReasonNote, ...]:
    return tuple(ReasonNote(r.rule, r.text, r.authority.value) for r in decision.reasons)


def _outcomes(study: StudyBase, plan: PrecisionPlan, op: int) -> Iterator[Outcome]:
    """The plan as it is, and under the options that could change this operator."""
    options = study.options
    label = study.graph.ops[op].label
    yield _outcome(f"--profile {options.profile} (now)", plan, op, current=True)
    trials: list[tuple[str, dict[str, object]]] = [
        (f"--profile {name}", {"profile": name}) for name in _PROFILES if name != options.profile
    ]
    if _precision(plan, op) != "fp16":
        trials.append((f"--force-fp16 {shlex.quote(label)}", {"force_fp16": (*options.force_fp16, label)}))
    if _precision(plan, op) != "fp32":
        trials.append((f"--keep-fp32 {shlex.quote(label)}", {"keep_fp32": (*options.keep_fp32, label)}))
    for change, words in trials:
        other = study.under(replace(options, **words))  # type: ignore[arg-type]
        yield _outcome(change, other.plan(), op)


def _outcome(change: str, plan: PrecisionPlan, op: int, *, current: bool = False) -> Outcome:
    time = plan.predicted.get("time_plan_us")
    decisions = [d for d in plan.decisions if d.op == op]
    speaker = next((d for d in decisions if d.dtype is not DataType.FLOAT16), decisions[0])
    reason = speaker.reasons[0].text if speaker.reasons else ""
    seconds = None if time is None else time * 1e-6
    return Outcome(change, _precision(plan, op), len(plan.casts), seconds, reason, current)


def _precision(plan: PrecisionPlan, op: int) -> str:
    halves = [d.dtype is DataType.FLOAT16 for d in plan.decisions if d.op == op]
    return "fp16" if all(halves) else "mixed" if any(halves) else "fp32"


def diff(first: PathLike, second: PathLike) -> DiffReport:
    """Compare two plans or two ONNX models; see `fp16conv.diff`."""
    kinds = [Path(path).suffix.lower() == ".json" for path in (first, second)]
    if kinds[0] != kinds[1]:
        raise UsageError(
            "a plan and a model cannot be compared",
            where=f"{first}, {second}",
            hint="give two plans (.json) or two models (.onnx)",
        )
    if kinds[0]:
        return _diff_plans(first, second)
    return diff_graphs(str(first), load_onnx(first).graph, str(second), load_onnx(second).graph)


def _diff_plans(first: PathLike, second: PathLike) -> DiffReport:
    one, two = load_plan(Path(first)), load_plan(Path(second))
    before, after = _by_operator(one), _by_operator(two)
    changes = []
    for key in [*before, *(k for k in after if k not in before)]:
        a, b = before.get(key), after.get(key)
        words = ("absent" if a is None else _summary(a), "absent" if b is None else _summary(b))
        if words[0] != words[1]:
            shown = b or a or []
            changed = next((d for d in shown if not _same(d, a if shown is b else b)), shown[0])
            reason = changed.reasons[0].text if b and changed.reasons else ""
            changes.append(Change(shown[0].label, shown[0].op_type, *words, reason))
    casts = [{f"{cast.value_name} to {cast.to.value}" for cast in plan.casts} for plan in (one, two)]
    notes = []
    if one.model_digest != two.model_digest:
        notes.append("the plans are for different models")
    if one.rules_digest != two.rules_digest:
        notes.append("the plans were made by different rules")
    notes += [
        f"option {key}: {one.options.get(key)} -> {two.options.get(key)}"
        for key in sorted({*one.options, *two.options})
        if one.options.get(key) != two.options.get(key)
    ]
    return DiffReport(
        tool_version=fp16conv.__version__,
        first=str(first),
        second=str(second),
        kind="plans",
        operators=sum(not symbol for _, _, symbol in {*before, *after}),
        changes=tuple(changes),
        casts=(len(one.casts), len(two.casts)),
        casts_added=tuple(sorted(casts[1] - casts[0])),
        casts_removed=tuple(sorted(casts[0] - casts[1])),
        notes=tuple(notes),
    )


def _by_operator(plan: PrecisionPlan) -> dict[tuple[str, str, str], list[Decision]]:
    """Decisions per operator (or graph input or output), keyed by what a plan of another model shares."""
    found: dict[tuple[str, str, str], list[Decision]] = {}
    for decision in plan.decisions:
        symbol = "" if decision.op is not None else decision.symbol
        found.setdefault((decision.scope, decision.label, symbol), []).append(decision)
    return found


def _summary(decisions: Sequence[Decision]) -> str:
    """`FP16`, or per type variable where they differ.

    The letters are the schema's: an operator with one of them in FP16 and one in FP32 is told apart from
    one with the two the other way round.
    """
    kinds = {d.dtype for d in decisions}
    if len(kinds) == 1:
        return "FP16" if DataType.FLOAT16 in kinds else "FP32"
    return " ".join(f"{d.symbol}={'FP16' if d.dtype is DataType.FLOAT16 else 'FP32'}" for d in decisions)


def _same(decision: Decision, others: Sequence[Decision] | None) -> bool:
    return any(o.symbol == decision.symbol and o.dtype is decision.dtype for o in others or ())


def diff_graphs(
    first: str,
    one: ModelGraph,
    second: str,
    two: ModelGraph,
    outputs: tuple[Mapping[int, str], Mapping[int, str]] = ({}, {}),
) -> DiffReport:
    """What changed in precision and casts between two models; see `diff`.

    Args:
        first: name of the first model.
        one: its graph.
        second: name of the second model.
        two: its graph.
        outputs: per model, names of outputs by position, where they are not those of the values.
    """
    before, after = _operators(one), _operators(two)
    changes = []
    for key in [*before, *(k for k in after if k not in before)]:
        a, b = before.get(key), after.get(key)
        shown = b or a
        assert shown is not None
        words = (_NAMES[a.precision] if a else "absent", _NAMES[b.precision] if b else "absent")
        if a is not None and b is not None and a.op_type != b.op_type:
            words = (f"{words[0]} {a.op_type}", f"{words[1]} {b.op_type}")
        if words[0] != words[1]:
            reason = b.reasons[0].text if b is not None and b.reasons else ""
            changes.append(Change(shown.label, shown.op_type, *words, reason))
    casts = [_casts(graph) for graph in (one, two)]
    return DiffReport(
        tool_version=fp16conv.__version__,
        first=first,
        second=second,
        kind="models",
        operators=len({*before, *after}),
        changes=tuple(changes),
        casts=(len(casts[0]), len(casts[1])),
        casts_added=tuple(sorted(casts[1] - casts[0])),
        casts_removed=tuple(sorted(casts[0] - casts[1])),
        notes=tuple(_model_notes(one, two, outputs)),
    )


def _operators(graph: ModelGraph) -> Mapping[tuple[str, str], OperatorDetail]:
    """Operators by scope and name; casts are compared on their own."""
    listed = list_converted(graph).operators
    return {(op.scope, op.label): op for op in listed if FAMILIES.get(op.op_type, op.op_type) != "Cast"}


def _casts(graph: ModelGraph) -> set[str]:
    """Casts between floating types, as `value to dtype`."""
    kinds = (DataType.FLOAT, DataType.FLOAT16)
    found = set()
    for op in graph.ops:
        if family(op) != "Cast" or not op.inputs or op.inputs[0] is None or op.outputs[0] is None:
            continue
        source, result = graph.values[op.inputs[0]], graph.values[op.outputs[0]]
        if source.dtype in kinds and result.dtype in kinds:
            found.add(f"{source.name} to {result.dtype.value}")
    return found


def _model_notes(
    one: ModelGraph, two: ModelGraph, outputs: tuple[Mapping[int, str], Mapping[int, str]]
) -> Iterator[str]:
    sizes = [sum(graph.constants[v].nbytes for v in graph.constants) for graph in (one, two)]
    if sizes[0] != sizes[1]:
        yield f"bytes of weights: {sizes[0]} -> {sizes[1]}"
    inputs = (_ports(graph, graph.main.inputs, {}) for graph in (one, two))
    results = (
        _ports(graph, graph.main.outputs, names) for graph, names in zip((one, two), outputs, strict=True)
    )
    for name, (before, after) in (("input", inputs), ("output", results)):
        for port in [*before, *(p for p in after if p not in before)]:
            if before.get(port) != after.get(port):
                yield f"{name} {port}: {before.get(port, 'absent')} -> {after.get(port, 'absent')}"
    for domain in sorted({*one.opsets, *two.opsets}):
        if one.opsets.get(domain) != two.opsets.get(domain):
            yield f"opset of {domain or 'ai.onnx'}: {one.opsets.get(domain)} -> {two.opsets.get(domain)}"


def _ports(graph: ModelGraph, ids: Sequence[int | None], names: Mapping[int, str]) -> dict[str, str]:
    values = ((names.get(at), graph.values[i]) for at, i in enumerate(ids) if i is not None)
    return {name or value.name: value.dtype.value for name, value in values}
