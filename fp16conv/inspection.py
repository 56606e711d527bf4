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
from fp16conv.frontends.onnx import load_onnx
from fp16conv.graph import DataType, ModelGraph
from fp16conv.planning.plan import Decision, PrecisionPlan
from fp16conv.planning.serialize import load_plan
from fp16conv.reporting.details import OperatorDetail, ReasonNote
from fp16conv.reporting.inspection import Change, DiffReport, ExplainReport, Outcome, VariableNote
from fp16conv.reporting.inventory import list_converted
from fp16conv.reporting.progress import Progress
from fp16conv.rulebook.selection import select_ops
from fp16conv.study import OptionWords, Study, list_details, read_options, start_study

__all__ = ["diff", "explain"]

PathLike = str | os.PathLike[str]
_PROFILES = ("balanced", "fast", "safe", "half")
_NAMES = {"fp16": "FP16", "fp32": "FP32", "mixed": "mixed", "other": "not floating"}


def explain(
    model: PathLike, operator: str, *, progress: Progress | None = None, **options: Unpack[OptionWords]
) -> ExplainReport:
    """Say why an operator has its precision, and make the plans that would change it.

    Args:
        model: path of an .onnx file.
        operator: its name, or a pattern that fits only one.
        progress: told about each step.
        **options: see `OptionWords`.

    Returns:
        The report: every reason, the numbers, and what other options would give.

    Raises:
        UsageError: no operator has the name, or several fit; suggests names.
        ModelError, DataError: as in `analyze`.
    """
    chosen = read_options(**options)
    with Runtime() as runtime:
        # A misspelt name is found before the model is run.
        loaded = load_onnx(model)
        op = _only(loaded.graph, operator)
        study = start_study(loaded, chosen, runtime, progress)
        plan = study.plan()
        details = list_details(study, plan, runtime)
    shown = details.operators[op]
    rules = {reason.rule for reason in shown.reasons}
    return ExplainReport(
        tool_version=fp16conv.__version__,
        options=chosen.recorded(),
        model_path=str(model),
        operator=shown,
        variables=tuple(
            VariableNote(d.symbol, d.dtype.value, d.verdict.value, _notes(d))
            for d in plan.decisions
            if d.op == op
        ),
        outcomes=tuple(_outcomes(study, plan, op)) if loaded.graph.ops[op].typevars else (),
        details=replace(details, operators=(shown,), rules=tuple(r for r in details.rules if r.id in rules)),
    )


def _only(graph: ModelGraph, pattern: str) -> int:
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


def _outcomes(study: Study, plan: PrecisionPlan, op: int) -> Iterator[Outcome]:
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
        other = replace(study, options=replace(options, **words))  # type: ignore[arg-type]
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
    """Compare two plans, or two models: what changed in precision and casts.

    Args:
        first: a plan (.json) or a model (.onnx).
        second: another one of the same kind.

    Returns:
        The report; `report.differs` says whether there is any difference. Operators are matched by scope and
        name.

    Raises:
        UsageError: one is a plan and the other a model.
        PlanError, ModelError: one cannot be read.
    """
    kinds = [Path(path).suffix.lower() == ".json" for path in (first, second)]
    if kinds[0] != kinds[1]:
        raise UsageError(
            "a plan and a model cannot be compared",
            where=f"{first}, {second}",
            hint="give two plans (.json) or two models (.onnx)",
        )
    return _diff_plans(first, second) if kinds[0] else _diff_models(first, second)


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


def _diff_models(first: PathLike, second: PathLike) -> DiffReport:
    one, two = load_onnx(first).graph, load_onnx(second).graph
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
        first=str(first),
        second=str(second),
        kind="models",
        operators=len({*before, *after}),
        changes=tuple(changes),
        casts=(len(casts[0]), len(casts[1])),
        casts_added=tuple(sorted(casts[1] - casts[0])),
        casts_removed=tuple(sorted(casts[0] - casts[1])),
        notes=tuple(_model_notes(one, two)),
    )


def _operators(graph: ModelGraph) -> Mapping[tuple[str, str], OperatorDetail]:
    """Operators by scope and name; casts are compared on their own."""
    listed = list_converted(graph).operators
    return {(op.scope, op.label): op for op in listed if op.op_type != "Cast"}


def _casts(graph: ModelGraph) -> set[str]:
    """Casts between floating types, as `value to dtype`."""
    kinds = (DataType.FLOAT, DataType.FLOAT16)
    found = set()
    for op in graph.ops:
        if op.key != "Cast" or not op.inputs or op.inputs[0] is None or op.outputs[0] is None:
            continue
        source, result = graph.values[op.inputs[0]], graph.values[op.outputs[0]]
        if source.dtype in kinds and result.dtype in kinds:
            found.add(f"{source.name} to {result.dtype.value}")
    return found


def _model_notes(one: ModelGraph, two: ModelGraph) -> Iterator[str]:
    sizes = [sum(graph.constants[v].nbytes for v in graph.constants) for graph in (one, two)]
    if sizes[0] != sizes[1]:
        yield f"bytes of weights: {sizes[0]} -> {sizes[1]}"
    for name, ports in (("input", "inputs"), ("output", "outputs")):
        before, after = _ports(one, ports), _ports(two, ports)
        for port in [*before, *(p for p in after if p not in before)]:
            if before.get(port) != after.get(port):
                yield f"{name} {port}: {before.get(port, 'absent')} -> {after.get(port, 'absent')}"
    for domain in sorted({*one.opsets, *two.opsets}):
        if one.opsets.get(domain) != two.opsets.get(domain):
            yield f"opset of {domain or 'ai.onnx'}: {one.opsets.get(domain)} -> {two.opsets.get(domain)}"


def _ports(graph: ModelGraph, which: str) -> dict[str, str]:
    ids = graph.main.inputs if which == "inputs" else graph.main.outputs
    return {graph.values[i].name: graph.values[i].dtype.value for i in ids if i is not None}
