"""Compare a converted model with its FP32 original on the same inputs, and give a verdict."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from fp16conv.errors import ValidationError
from fp16conv.execution.capacity import refuse_oversized
from fp16conv.execution.emulator import EmulationOptions, emulate_model, emulation_notes
from fp16conv.execution.failures import RuntimeFailure
from fp16conv.execution.feeds import FeedSource
from fp16conv.execution.lanes import Lane
from fp16conv.execution.matching import match_feeds
from fp16conv.execution.runtime import Feeds, Results, Runtime, SessionHandle
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import DataType
from fp16conv.validation.metrics import ATOL, RTOL, OutputComparison, OutputMetrics
from fp16conv.validation.reference import ReferenceRun, half_of_the_cores, source_of

__all__ = [
    "BackendResult",
    "RuntimeFinding",
    "ValidationResult",
    "check_runtime",
    "compare_models",
]

Provider = Literal["auto", "emulated", "cuda"]
Labels = Sequence[npt.NDArray[Any] | None]

_FP32_SUMS: Final = (
    "sums inside one operator are kept in FP32, as Tensor Cores do: FP16 accumulation can be worse"
)
_NO_DEVICE: Final = "it says nothing about speed or about which kernels a device has"
_ONE_DEVICE: Final = "it shows this device and this version of ONNX Runtime only"


@dataclass(frozen=True, slots=True)
class RuntimeFinding:
    """A runtime that cannot load or run the converted model: about that runtime, not about the numbers.

    Args:
        runtime: name and version.
        provider: execution provider.
        stage: `load` or `run` (`start` if the runtime itself does not come up).
        message: what it said.
        crashed: whether it took its process down.
    """

    runtime: str
    provider: str
    stage: str
    message: str
    crashed: bool


@dataclass(frozen=True, slots=True)
class BackendResult:
    """The comparison on one backend.

    Args:
        backend: `emulated` or `cuda`.
        description: what ran the models.
        limits: what this backend cannot show.
        outputs: metrics and verdict per graph output.
        fallbacks: FP16 operators that silently ran on the CPU (`cuda` only).
        ok: every output is within tolerance and nothing fell back.
    """

    backend: str
    description: str
    limits: tuple[str, ...]
    outputs: tuple[OutputMetrics, ...]
    fallbacks: tuple[str, ...]
    ok: bool


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The verdict on a converted model, and everything it rests on.

    Args:
        reference: where the FP32 model came from.
        candidate: where the converted model came from.
        inputs: `real` (the user's data) or `synthetic` (made up).
        batches: number of batches compared.
        rtol: allowed relative L2 error.
        atol: allowed root mean square error on top.
        backends: one result per backend, the deciding one first.
        findings: runtimes that cannot load or run the converted model.
        notes: what was skipped and why.
        ok: the verdict: every backend says yes.
    """

    reference: str
    candidate: str
    inputs: str
    batches: int
    rtol: float
    atol: float
    backends: tuple[BackendResult, ...]
    findings: tuple[RuntimeFinding, ...]
    notes: tuple[str, ...]
    ok: bool

    @property
    def outputs(self) -> tuple[OutputMetrics, ...]:
        """Metrics of the deciding backend."""
        return self.backends[0].outputs

    @property
    def relative_l2(self) -> float | None:
        """Largest relative L2 error of any floating output; None where none is defined."""
        errors = [m.relative_l2 for m in self.outputs if m.relative_l2 is not None and m.kind == "float"]
        return max(errors, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "inputs": self.inputs,
            "batches": self.batches,
            "rtol": self.rtol,
            "atol": self.atol,
            "ok": self.ok,
            "backends": [
                {
                    "backend": b.backend,
                    "description": b.description,
                    "limits": list(b.limits),
                    "outputs": [m.to_dict() for m in b.outputs],
                    "fallbacks": list(b.fallbacks),
                    "ok": b.ok,
                }
                for b in self.backends
            ],
            "findings": [asdict(f) for f in self.findings],
            "notes": list(self.notes),
        }


def compare_models(
    reference: LoadedModel,
    candidate: LoadedModel | Callable[[], LoadedModel],
    feeds: FeedSource,
    *,
    provider: Provider = "auto",
    rtol: float = RTOL,
    atol: float = ATOL,
    labels: Labels | None = None,
    allow_integer_changes: bool = False,
    runtime: Runtime | None = None,
    check: bool = True,
    emulation: EmulationOptions | None = None,
) -> ValidationResult:
    """Compare a converted model with its FP32 original on the same inputs.

    The reference runs in FP32 on ONNX Runtime's CPU provider. The candidate is emulated: the CPU
    provider computes chains of FP16 operators in FP32, so its own run of the candidate proves nothing
    and is only tried to see whether it loads and runs.

    Args:
        reference: the FP32 model.
        candidate: the converted model, with the same output names; or what loads it, while the reference
            already runs.
        feeds: batches of inputs for the reference; FP16 inputs of the candidate are cast from them.
        provider: `emulated`, `cuda` (an error where CUDA does not really work), or `auto`: emulated,
            and CUDA too where a session really gets it.
        rtol: allowed relative L2 error per output.
        atol: allowed root mean square error per output, on top.
        labels: per batch the right classes (int), for the task accuracy of outputs that fit.
        allow_integer_changes: integer, bool and string outputs may change.
        runtime: CPU runtime to use; one is started and ended where none is given.
        check: whether to try the candidate on the CPU provider.
        emulation: pessimistic switches of the emulator.

    Returns:
        The verdict with metrics per output and backend.

    Raises:
        ValidationError: the FP32 model does not run on these inputs, the outputs have other names,
            there is no batch, the model is too large for this machine, or CUDA was asked for and is not
            there.
    """
    if provider not in ("auto", "emulated", "cuda"):
        raise ValidationError(f"unknown provider '{provider}'", hint="one of auto, emulated, cuda")
    refuse_oversized(reference.graph)
    options = _Options(rtol, atol, allow_integer_changes, labels, emulation or EmulationOptions())
    with contextlib.ExitStack() as stack:
        cpu = runtime if runtime is not None else stack.enter_context(Runtime())
        lane = stack.enter_context(Lane(cpu))
        run = ReferenceRun(
            lane, reference, feeds, threads=None if provider == "cuda" else half_of_the_cores()
        )
        run.advance()
        if not isinstance(candidate, LoadedModel):
            candidate = candidate()
        checked = lane.submit(check_runtime, candidate, feeds, cpu) if check else None
        emulated = None
        if provider != "cuda":
            emulated = _Emulation(stack.enter_context(Lane(cpu.companion)), candidate, options.emulation)
        _check_names(run.session, candidate)
        backends: list[BackendResult] = []
        findings: list[RuntimeFinding] = []
        notes: list[str] = []
        batches = 0
        if emulated is not None:
            result, batches = _compare_emulated(run, emulated, options)
            backends.append(result)
        if provider != "emulated":
            cuda, why = _find_cuda(stack, lane, reference)
            if cuda is None and provider == "cuda":
                raise ValidationError(
                    "CUDA was asked for, but no session gets it",
                    why=why,
                    hint="leave --provider out to emulate",
                )
            if cuda is None:
                notes.append(f"not run on CUDA: {why}")
            else:
                try:
                    result, batches = _compare_cuda(cuda, run, candidate, options)
                    backends.append(result)
                except RuntimeFailure as failure:
                    findings.append(_finding(failure, "CUDA"))
        if checked is not None:
            findings += checked.result()
        lane.submit(cpu.unload, run.session).result()
    if not backends:
        raise ValidationError("the converted model does not run on CUDA", why=findings[0].message)
    return ValidationResult(
        reference=reference.graph.source,
        candidate=candidate.graph.source,
        inputs=str(feeds.origin),
        batches=batches,
        rtol=rtol,
        atol=atol,
        backends=tuple(backends),
        findings=tuple(findings),
        notes=tuple(notes),
        ok=all(b.ok for b in backends),
    )


def check_runtime(
    candidate: LoadedModel, feeds: FeedSource, runtime: Runtime | None = None
) -> list[RuntimeFinding]:
    """Load the converted model with ONNX Runtime's CPU provider and run the first batch.

    Only whether it loads and runs: the numbers prove nothing about FP16.

    Args:
        candidate: the converted model.
        feeds: its inputs.
        runtime: child process to use, one of its own if None; it survives a crash.

    Returns:
        At most one finding; empty where it loads and runs.
    """
    with contextlib.ExitStack() as stack:
        runtime = runtime if runtime is not None else stack.enter_context(Runtime())
        try:
            session = runtime.load(source_of(candidate), threads=half_of_the_cores())
            stack.callback(runtime.unload, session)
            for batch in feeds:
                runtime.run(session, match_feeds(session, batch))
                break
        except RuntimeFailure as failure:
            return [_finding(failure, "CPU")]
    return []


@dataclass(frozen=True)
class _Options:
    rtol: float
    atol: float
    allow_integer_changes: bool
    labels: Labels | None
    emulation: EmulationOptions

    def label(self, batch: int) -> npt.NDArray[Any] | None:
        if self.labels is None or batch >= len(self.labels):
            return None
        label = self.labels[batch]
        return None if label is None else np.asarray(label)


def _pairs(
    reference: ReferenceRun, beside: Lane, candidate: SessionHandle
) -> Iterator[tuple[Results, Results]]:
    """What both models give for each batch; both run at the same time, and the next batch meanwhile."""
    running: tuple[Feeds, Future[Results | None], Future[Results]] | None = None
    for batch, expected in reference:
        found = beside.submit(beside.runtime.run, candidate, match_feeds(candidate, batch))
        if running is not None:
            yield reference.take(*running[:2]), running[2].result()
        running = batch, expected, found
    if running is not None:
        yield reference.take(*running[:2]), running[2].result()


def _compare(
    session: SessionHandle, pairs: Iterator[tuple[Results, Results]], options: _Options
) -> tuple[tuple[OutputMetrics, ...], int]:
    comparisons = {info.name: OutputComparison(info.name) for info in session.outputs}
    batches = 0
    for batch, (ref, cand) in enumerate(pairs):
        batches += 1
        for name, comparison in comparisons.items():
            comparison.update(ref[name], cand[name], options.label(batch))
    if not batches:
        raise ValidationError("there is no batch to compare on", hint="give data, or let inputs be made up")
    return tuple(
        c.metrics(rtol=options.rtol, atol=options.atol, allow_integer_changes=options.allow_integer_changes)
        for c in comparisons.values()
    ), batches


class _Emulation:
    """The candidate as it is emulated, on its way into a runtime."""

    def __init__(self, lane: Lane, candidate: LoadedModel, options: EmulationOptions) -> None:
        self.lane, self.source, self.options = lane, candidate.graph.source, options
        lane.runtime.start()
        model = emulate_model(candidate.model, options=options)
        self.notes = emulation_notes(model)
        self.coming = lane.submit(lane.runtime.load, model)


def _compare_emulated(
    reference: ReferenceRun, emulation: _Emulation, options: _Options
) -> tuple[BackendResult, int]:
    runtime = emulation.lane.runtime
    try:
        emulated = emulation.coming.result()
        pairs = _pairs(reference, emulation.lane, emulated)
        outputs, batches = _compare(reference.session, pairs, options)
        runtime.unload(emulated)
    except RuntimeFailure as failure:
        raise ValidationError(
            "the converted model could not be emulated", where=emulation.source, why=str(failure)
        ) from failure
    switches = [
        text
        for text, on in (
            ("FP16 accumulation", emulation.options.fp16_accumulation),
            ("subnormals flushed", emulation.options.flush_subnormals),
        )
        if on
    ]
    description = ", ".join([f"FP16 rounding emulated on {runtime.name} {runtime.version}, CPU", *switches])
    sums = () if emulation.options.fp16_accumulation else (_FP32_SUMS,)
    limits = (*sums, _NO_DEVICE, *emulation.notes)
    ok = all(m.ok for m in outputs)
    return BackendResult("emulated", description, limits, outputs, (), ok), batches


def _find_cuda(stack: contextlib.ExitStack, lane: Lane, reference: LoadedModel) -> tuple[Runtime | None, str]:
    """A CUDA runtime that really works, proven with the FP32 model; else why not.

    The build lists the provider even where there is no driver, so only a session can tell.
    """
    if why := lane.submit(lane.runtime.why_no_cuda).result():  # the same build: no second child for that
        return None, why
    runtime = stack.enter_context(Runtime("cuda", profile=True))
    try:
        runtime.unload(runtime.load(source_of(reference)))
    except RuntimeFailure as failure:
        return None, str(failure)
    return runtime, ""


def _compare_cuda(
    cuda: Runtime, reference: ReferenceRun, candidate: LoadedModel, options: _Options
) -> tuple[BackendResult, int]:
    handle = cuda.load(source_of(candidate))
    with Lane(cuda) as beside:
        outputs, batches = _compare(reference.session, _pairs(reference, beside, handle), options)
    fp16_ops = {
        op.name
        for op in candidate.graph.ops
        if op.op_type != "Cast"
        and any(v is not None and candidate.graph.values[v].dtype is DataType.FLOAT16 for v in op.outputs)
    }
    fallbacks = tuple(
        f"{p.name} ({p.op_type})"
        for p in cuda.placements(handle)
        if p.provider == "CPUExecutionProvider" and p.name in fp16_ops
    )
    description = f"{cuda.name} {cuda.version}, CUDA"
    ok = all(m.ok for m in outputs) and not fallbacks
    return BackendResult("cuda", description, (_ONE_DEVICE,), outputs, fallbacks, ok), batches


def _check_names(session: SessionHandle, candidate: LoadedModel) -> None:
    graph = candidate.graph
    names = [graph.values[v].name for v in graph.main.outputs if v is not None]
    wanted = [info.name for info in session.outputs]
    if missing := [name for name in wanted if name not in names]:
        raise ValidationError(
            f"the converted model lacks output {', '.join(repr(n) for n in missing)}",
            where=candidate.graph.source,
            why=f"it has {', '.join(repr(n) for n in names)}",
        )


def _finding(failure: RuntimeFailure, provider: str) -> RuntimeFinding:
    runtime = f"{failure.runtime} {failure.version}".strip()
    message = failure.message or str(failure)
    return RuntimeFinding(runtime, provider, failure.stage, message, failure.crashed)
