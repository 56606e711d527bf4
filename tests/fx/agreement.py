"""Compares what is decided for a PyTorch program and for its ONNX export, operator by operator.

Operators of both graphs are matched by rules, never by name:

1. A call of the program and one of the export are the same if module, source line and ATen name are, in
   order. Where the export has another number of them, it rewrote something there.
2. Of the ONNX operators that translate a call, the one of its kind is compared (`family`; a Gemm is a
   MatMul). A call that becomes operators of other kinds exists in one graph only.
3. A normalization that the export folds into the convolution before it leaves one Conv for both: that is the
   convolution's.

Two graphs that differ cannot always share every decision of the planner: see `Agreement.unexplained`.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fp16conv import api, fx
from fp16conv.frontends.fx.export import export_program
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.graph import ModelGraph, Op
from fp16conv.planning.plan import Decision, PrecisionPlan
from fp16conv.rulebook.families import family
from fp16conv.rulebook.types import Verdict

RULED = (Verdict.ALLOW, Verdict.DENY, Verdict.NEVER)
WHOLE = 24
"""The opset from which on the exporter keeps norms and attention whole, as the program has them."""

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Agreement:
    """What came out.

    Args:
        compared: (call, ONNX operator, decision in the program, decision in the export).
        apart: calls with which nothing in the export is compared, each with the reason.
        unexplained: pairs whose precision differs although both graphs have the same around them. Where the
            planner decides, it decides for a region: operators connected by values, up to those that rules
            decide. A region that ends at an operator which rules decide and which only one graph has (a norm
            that the export writes out, an exponential that it folds into a constant) has other casts to save.
    """

    compared: tuple[tuple[Op, Op, Decision, Decision], ...]
    apart: tuple[tuple[Op, str], ...]
    unexplained: tuple[str, ...]

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Pairs with another class."""
        return tuple(
            f"{a.label} {d.verdict} {b.label} {e.verdict}"
            for a, b, d, e in self.compared
            if d.verdict is not e.verdict
        )

    @property
    def precisions(self) -> tuple[str, ...]:
        """Pairs with another precision."""
        return tuple(_describe(pair) for pair in self.compared if pair[2].dtype is not pair[3].dtype)

    @property
    def share(self) -> float:
        """Share of the program's floating-point operators that were compared."""
        return len(self.compared) / (len(self.compared) + len(self.apart))


def compare(loaded: LoadedProgram, *, opset: int | None = None) -> Agreement:
    """Decide on both ways with the same observed numbers and compare.

    Args:
        loaded: the program, with example inputs.
        opset: of the export.
    """
    assert loaded.example is not None
    exported = export_program(loaded, Path("exported"), opset=opset)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "batch.npz"
        np.savez(data, **loaded.example)
        ours = _decide(loaded.graph, fx.plan(loaded, data=data))
        theirs = _decide(exported.graph, api.plan(exported, data=data))
    pairs, apart = _match(loaded.graph, exported.graph)
    compared = tuple((a, b, ours[a.id], theirs[b.id]) for a, b in pairs if a.id in ours and b.id in theirs)
    lonely = {op.id for op, _ in apart if op.id in ours and ours[op.id].verdict in RULED}
    loose = _regions_at(loaded.graph, ours, lonely)
    unexplained = tuple(
        _describe(pair)
        for pair in compared
        if pair[2].dtype is not pair[3].dtype and (pair[2].verdict in RULED or pair[0].id not in loose)
    )
    return Agreement(compared, apart, unexplained)


def _describe(pair: tuple[Op, Op, Decision, Decision]) -> str:
    a, b, d, e = pair
    return f"{a.label} {d.verdict} {d.dtype} | {b.label} {e.verdict} {e.dtype}"


def _kind(op: Op) -> str:
    return {"Gemm": "MatMul"}.get(family(op), family(op))


def _decide(graph: ModelGraph, plan: PrecisionPlan) -> dict[int, Decision]:
    """Decision per operator: that of its first FLOAT result, else of what it reads."""
    decisions = {d.typevar: d for d in plan.decisions}
    found: dict[int, Decision] = {}
    for op in graph.ops:
        made = (graph.typevar_of_value(v) for v in op.outputs if v is not None)
        variable = next((v for v in made if v is not None), None)
        if variable is not None or op.typevars:
            found[op.id] = decisions[op.typevars[0] if variable is None else variable.id]
    return found


def _match(
    program: ModelGraph, exported: ModelGraph
) -> tuple[list[tuple[Op, Op]], tuple[tuple[Op, str], ...]]:
    calls: dict[Key, list[Op]] = defaultdict(list)
    for op in program.ops:
        if op.typevars:
            calls[op.metadata.get("module", ""), op.metadata.get("line", ""), op.key].append(op)
    translations: dict[Key, dict[str, list[Op]]] = defaultdict(lambda: defaultdict(list))
    for op in exported.ops:
        target, _, name = op.metadata.get("call", "").partition(" ")
        if op.typevars and target:
            key = op.metadata.get("module", ""), op.metadata.get("line", ""), target.replace(".", "::", 1)
            translations[key][name].append(op)
    pairs: list[tuple[Op, Op]] = []
    apart: dict[int, tuple[Op, str]] = {}
    for key, ops in calls.items():
        there = list(translations[key].values())
        if len(ops) != len(there):
            reason = f"{len(ops)} here, {len(there)} in the export" if there else "not in the export"
            apart.update({op.id: (op, reason) for op in ops})
            continue
        for op, nodes in zip(ops, there, strict=True):
            before = program.producer(op.inputs[0])
            same = [node for node in nodes if _kind(node) == _kind(op)]
            if len(same) == 1:
                pairs.append((op, same[0]))
                continue
            apart[op.id] = op, f"becomes {', '.join(node.op_type for node in nodes)}"
            if before is not None and [_kind(node) for node in nodes] == [_kind(before)]:
                pairs.append((before, nodes[0]))
                apart[op.id] = op, f"folded into {before.label}"
    matched = {op.id for op, _ in pairs}
    return pairs, tuple(why for index, why in apart.items() if index not in matched)


def _regions_at(graph: ModelGraph, decisions: dict[int, Decision], ends: set[int]) -> set[int]:
    """Operators that the planner decides, in regions that exchange a value with one of `ends`."""
    found: set[int] = set()
    queue = list(ends)
    while queue:
        op = graph.ops[queue.pop()]
        near = [graph.producer(v) for v in op.inputs]
        near += [user for v in op.outputs if v is not None for user in graph.users(v)]
        for other in near:
            if other is None or other.id in found or other.id not in decisions:
                continue
            if decisions[other.id].verdict not in RULED:
                found.add(other.id)
                queue.append(other.id)
    return found
