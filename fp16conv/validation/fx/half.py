"""Tries what plain `.half()` does to a PyTorch program."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from fp16conv.errors import first_line
from fp16conv.execution.feeds import FeedSource
from fp16conv.execution.fx import run_program, to_array
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.frontends.fx.sources import switch_to_eval
from fp16conv.validation.fx.outputs import ProgramOutputs
from fp16conv.validation.metrics import ATOL, RTOL, OutputComparison, OutputMetrics

__all__ = ["ProgramHalf", "try_half"]


@dataclass(frozen=True, slots=True)
class ProgramHalf:
    """What plain `.half()` does.

    Args:
        outputs: metrics per output, empty where it raises.
        error: what it raises, "" where it runs.
        where: label and type of the call that raises or first gives what is not finite, "" where none does.
        way: how it was tried.
    """

    outputs: tuple[OutputMetrics, ...]
    error: str
    where: tuple[str, str]
    way: str

    @property
    def ok(self) -> bool:
        return not self.error and all(m.ok for m in self.outputs)

    @property
    def broken(self) -> bool:
        """Whether it gives NaN or infinities that FP32 does not."""
        return any(m.new_nan or m.new_inf for m in self.outputs)

    def describe(self) -> str:
        """One sentence for people."""
        at = f" at {self.where[0]} ({self.where[1]})" if self.where[0] else ""
        if self.error:
            return f"{self.way} raises{at}: {self.error}"
        if self.broken:
            return f"{self.way} gives NaN or infinities, first{at}"
        worst = max((m.relative_l2 or 0.0 for m in self.outputs if m.kind == "float"), default=0.0)
        return f"{self.way} is within tolerance" if self.ok else f"{self.way} is off by {worst:.1%}"


def try_half(
    loaded: LoadedProgram, feeds: FeedSource, *, rtol: float = RTOL, atol: float = ATOL
) -> ProgramHalf:
    """Do what `.half()` does and look: does it run, is it finite, how far off is it?

    A module is copied and `.half()` called on the copy, with its example inputs in half; a program without
    a module runs with halved parameters and inputs, everything else as it was exported. The first batch
    tells which call fails first.

    Args:
        loaded: the program; its module stays untouched.
        feeds: inputs; the first batch is used.
        rtol: allowed relative L2 error per output.
        atol: allowed root mean square error per output, on top.
    """
    where, error, results = _halve_program(loaded, feeds)
    way = "the program with halved parameters"
    if loaded.module is not None and loaded.call is not None:
        way = "model.half()"
        error, results = _halve_module(loaded)
        if not error:
            where = where if results else ("", "")
    if error or not results:
        return ProgramHalf((), error or "no output", where, way)
    metrics = []
    for name, (expected, given) in results.items():
        comparison = OutputComparison(name)
        comparison.update(expected, given)
        metrics.append(comparison.metrics(rtol=rtol, atol=atol))
    half = ProgramHalf(tuple(metrics), "", where, way)
    return half if half.broken else ProgramHalf(half.outputs, "", ("", ""), way)


_Pairs = dict[str, tuple[Any, Any]]


def _halve_program(loaded: LoadedProgram, feeds: FeedSource) -> tuple[tuple[str, str], str, _Pairs]:
    """Where the halved program fails first, what it raises, and its outputs beside FP32's."""
    first: list[Node] = []
    current: list[Node] = []

    def observe(node: Node, result: object) -> None:
        current[:] = [node]
        tensors = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        if not first and any(_is_broken(t) for t in tensors if t.dtype is torch.float16):
            first.append(node)

    batch = next(iter(feeds))
    expected = ProgramOutputs(loaded, "cpu").run(batch)
    try:
        run = run_program(loaded.program, batch, observe, half=True, where=loaded.source)
    except Exception as error:  # what the user would see
        nodes = list(loaded.program.graph.nodes)
        after = nodes.index(current[0]) + 1 if current else 0
        failed = next((n for n in nodes[after:] if n.op == "call_function"), None)
        return _label(loaded, failed), first_line(error), {}
    given = {name: run.outputs[position] for position, name in loaded.output_names.items()}
    where = _label(loaded, first[0] if first else None)
    return where, "", {name: (expected[name], given[name]) for name in expected}


def _halve_module(loaded: LoadedProgram) -> tuple[str, _Pairs]:
    assert loaded.module is not None
    assert loaded.call is not None
    module = switch_to_eval(copy.deepcopy(loaded.module))
    args, kwargs = loaded.call
    with torch.no_grad():
        expected = _tensors(module(*_clone(args), **_clone(kwargs)))
        halved = switch_to_eval(copy.deepcopy(loaded.module)).half()
        try:
            given = _tensors(halved(*_halve(args), **_halve(kwargs)))
        except Exception as error:  # what the user would see
            return first_line(error), {}
    names = list(loaded.output_names.values())
    if not len(names) == len(expected) == len(given):
        names = [f"output_{i}" for i in range(min(len(expected), len(given)))]
    return "", dict(zip(names, zip(expected, given, strict=False), strict=False))


def _tensors(result: Any) -> list[npt.NDArray[Any]]:
    return [to_array(t) for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]


def _halve(values: Any) -> Any:
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.half() if t.dtype is torch.float32 else t.clone(), values
    )


def _clone(values: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.clone(), values)


def _is_broken(tensor: torch.Tensor) -> bool:
    return not bool(torch.isfinite(tensor).all())


def _label(loaded: LoadedProgram, node: Node | None) -> tuple[str, str]:
    if node is None:
        return "", ""
    for op, known in zip(loaded.graph.ops, loaded.nodes, strict=True):
        if known is node:
            return op.label, op.key
    return node.name, str(node.target)
