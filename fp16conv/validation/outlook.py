"""What plain `model.half()` would do to a model: everything legal in FP16, measured by emulation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fp16conv.execution.feeds import FeedSource
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import DataType, RangeFact
from fp16conv.validation.attribution import Blame, attribute, find_overflows
from fp16conv.validation.metrics import ATOL, RTOL, OutputMetrics
from fp16conv.validation.probe import Probe

__all__ = ["HalfOutlook", "what_half_does"]


@dataclass(frozen=True, slots=True)
class HalfOutlook:
    """The outcome of running everything in FP16 that FP16 is legal for.

    Args:
        ok: every output is within tolerance.
        outputs: metrics per output.
        overflowing: operators that make or read finite numbers FP16 cannot hold, in execution order
            (from the ranges given; empty where none were).
        culprits: operators that cause most of the error, worst first; empty if ok.
        inputs: `real` or `synthetic`.
    """

    ok: bool
    outputs: tuple[OutputMetrics, ...]
    overflowing: tuple[Blame, ...]
    culprits: tuple[Blame, ...]
    inputs: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "ok": self.ok,
            "inputs": self.inputs,
            "outputs": [m.to_dict() for m in self.outputs],
            "overflowing": [b.label for b in self.overflowing],
            "culprits": [{"label": b.label, "op_type": b.op_type, "share": b.share} for b in self.culprits],
        }

    def describe(self) -> str:
        """One sentence for people.

        Example:
            >>> HalfOutlook(True, (), (), (), "real").describe()
            'model.half() would be within tolerance'
        """
        if self.ok:
            return "model.half() would be within tolerance"
        broken = [m for m in self.outputs if m.new_nan or m.new_inf]
        cause = self.culprits or self.overflowing
        because = f", first at {cause[0].label} ({cause[0].op_type})" if cause and broken else ""
        if broken:
            kinds = "NaN" if any(m.new_nan for m in broken) else "infinities"
            return f"model.half() would give {kinds} in output {broken[0].name}{because}"
        worst = max(self.outputs, key=lambda m: m.badness)
        if worst.relative_l2 is not None and worst.kind == "float":
            because = f", mostly from {cause[0].label} ({cause[0].op_type})" if cause else ""
            return f"model.half() would put {worst.relative_l2:.1%} error on output {worst.name}{because}"
        return f"model.half() would change output {worst.name}: {'; '.join(worst.problems)}"


def what_half_does(
    loaded: LoadedModel,
    feeds: FeedSource,
    runtime: Runtime,
    *,
    facts: Mapping[int, RangeFact] | None = None,
    outputs: Collection[str] | None = None,
    rtol: float = RTOL,
    atol: float = ATOL,
    budget_runs: int = 12,
) -> HalfOutlook:
    """Emulate the model with every legal type variable in FP16 and no constant saturated.

    Args:
        loaded: the FP32 model.
        feeds: inputs; the first batch is used.
        runtime: CPU runtime.
        facts: ranges of values in FP32; with them every overflow is named, not only the first.
        outputs: names of the outputs to look at, None for all.
        rtol: allowed relative L2 error per output.
        atol: allowed root mean square error per output, on top.
        budget_runs: how many emulated models may be run to find the culprits.

    Raises:
        ValidationError: the FP32 model does not run.
    """
    dtypes = [DataType.FLOAT16 if t.admits_fp16 else DataType.FLOAT for t in loaded.graph.typevars]
    with Probe(loaded, feeds, runtime, outputs=outputs, rtol=rtol, atol=atol) as probe:
        measured = probe.measure(dtypes)
        culprits: tuple[Blame, ...] = ()
        if not measured.ok and budget_runs > 0:
            culprits = attribute(probe, dtypes, budget_runs=budget_runs)
    overflowing = find_overflows(loaded.graph, dtypes, facts) if facts is not None else ()
    return HalfOutlook(measured.ok, measured.outputs, overflowing, culprits, str(feeds.origin))
