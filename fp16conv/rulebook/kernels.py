"""What the target can run: kernels that exist in FP32, FP16 or both, and the combinations they allow."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from fp16conv.graph import ModelGraph, Op, TypeVar
from fp16conv.rulebook.numbers import symbols_of
from fp16conv.rulebook.schema import Kernel, Target
from fp16conv.rulebook.types import Group, Reason, Verdict

__all__ = ["Coverage", "check_kernels"]


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the target says: verdict per type variable id, and variables that must be equal."""

    verdicts: Mapping[int, tuple[Verdict, Reason]]
    groups: tuple[Group, ...]
    lowered: Mapping[int, Reason] = field(default_factory=dict)


def check_kernels(graph: ModelGraph, target: Target) -> Coverage:
    """Compare every operator's FLOAT type variables with the target's kernels.

    Args:
        graph: the model.
        target: its coverage may be unknown, then nothing is said.

    Returns:
        DENY where an FP32 kernel exists but no FP16 one, or none at all; ALLOW where only FP16 exists;
        groups where mixed combinations have no kernel.
    """
    verdicts: dict[int, tuple[Verdict, Reason]] = {}
    groups: list[Group] = []
    lowered: dict[int, Reason] = {}
    if target.kernels is None:
        return Coverage({}, ())
    findings: dict[Hashable, _Finding] = {}  # a model has few kinds of operators
    for op in graph.ops:
        typevars = graph.typevars_of(op.id)
        if not typevars or op.callee is not None or op.subscopes or op.key in target.inlined:
            continue
        kind = op.key, op.opset, *((tv.symbol, tv.admits_fp16) for tv in typevars)
        finding = findings.get(kind)
        if finding is None:
            finding = findings[kind] = _judge_kind(op, typevars, target)
        if finding.lowered is not None:
            lowered[op.id] = finding.lowered
        verdicts.update({typevars[i].id: verdict for i, verdict in finding.verdicts.items()})
        groups += [Group((typevars[a].id, typevars[b].id), reason) for a, b, reason in finding.pairs]
    return Coverage(verdicts, tuple(groups), lowered)


@dataclass(frozen=True, slots=True)
class _Finding:
    """What the kernels say of a kind of operator; numbers count its type variables."""

    verdicts: Mapping[int, tuple[Verdict, Reason]]
    pairs: Sequence[tuple[int, int, Reason]] = ()
    lowered: Reason | None = None


def _judge_kind(op: Op, typevars: Sequence[TypeVar], target: Target) -> _Finding:
    assert target.kernels is not None
    rows = _valid_rows(target.kernels.get(op.key, ()), op.opset)
    lowered = None
    substitute = _lowering(target, op, rows)
    if substitute is not None:
        rows, lowered = substitute
    if not rows:
        text = f"{target.name} has no kernel for {op.key}: it runs elsewhere, in FP32"
        denied = Verdict.DENY, Reason("no-kernel", text)
        return _Finding(dict.fromkeys(range(len(typevars)), denied), lowered=lowered)
    verdicts, pairs = _compare_kernels(op, typevars, rows, target)
    return _Finding(verdicts, pairs, lowered)


def _lowering(target: Target, op: Op, rows: Sequence[Kernel]) -> tuple[list[Kernel], Reason] | None:
    """The kernels that stand in for a missing FP16 one, and why; None where nothing is missing."""
    if target.kernels is None or any("h" in letters for row in rows for letters in row.types.values()):
        return None
    for lowering in target.lowerings:
        if lowering.op != op.key or not lowering.since <= op.opset <= lowering.until:
            continue
        stand_ins = [_valid_rows(target.kernels.get(key, ()), op.opset) for key in lowering.by]
        if all(stand_ins):
            text = (
                f"{target.name} has no FP16 kernel of {op.key} before opset {lowering.until + 1}: "
                f"{' and '.join(lowering.by)} compute the same"
            )
            return [*rows, *stand_ins[0]], Reason("no-fp16-kernel", text)
    return None


def _valid_rows(kernels: Sequence[Kernel], opset: int) -> list[Kernel]:
    return [k for k in kernels if k.since <= opset and (k.until is None or opset <= k.until)]


def _compare_kernels(
    op: Op, typevars: Sequence[TypeVar], rows: Sequence[Kernel], target: Target
) -> tuple[dict[int, tuple[Verdict, Reason]], list[tuple[int, int, Reason]]]:
    verdicts: dict[int, tuple[Verdict, Reason]] = {}
    choices = ["fh" if tv.admits_fp16 else "f" for tv in typevars]
    feasible = [c for c in itertools.product(*choices) if any(_runs(row, typevars, c) for row in rows)]
    if not feasible:
        reason = Reason(
            "no-fp16-kernel",
            f"{target.name} has no kernel of {op.key} for these types, neither FP32 nor FP16",
        )
        return dict.fromkeys(range(len(typevars)), (Verdict.DENY, reason)), []
    free = []
    for i, tv in enumerate(typevars):
        letters = {c[i] for c in feasible}
        if letters == {"f"} and tv.admits_fp16:
            text = f"{target.name} runs {op.key} in FP32 only (type variable {tv.symbol})"
            verdicts[i] = Verdict.DENY, Reason("no-fp16-kernel", text)
        elif letters == {"h"}:
            text = f"{target.name} runs {op.key} in FP16 only (type variable {tv.symbol})"
            verdicts[i] = Verdict.ALLOW, Reason("only-fp16-kernel", text)
        else:
            free.append(i)
    pairs = []
    for a, b in itertools.combinations(free, 2):
        if all(c[a] == c[b] for c in feasible):
            names = f"{typevars[a].symbol} and {typevars[b].symbol}"
            text = f"{target.name} has kernels of {op.key} only for equal {names}"
            pairs.append((a, b, Reason("kernel-combination", text)))
    return verdicts, pairs


def _runs(row: Kernel, typevars: Sequence[TypeVar], letters: Sequence[str]) -> bool:
    return all(
        letter in row.types.get(symbol, "fh")
        for tv, letter in zip(typevars, letters, strict=True)
        for symbol in symbols_of(tv)
    )
