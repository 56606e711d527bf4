"""What FP16 does to a training run: gradients that vanish, the loss scale that rescues them, lost updates."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import torch

from fp16conv.errors import UsageError, ValidationError, first_line
from fp16conv.execution.fx import to_array
from fp16conv.half import MAX
from fp16conv.training.gradients import LARGEST_SCALE, GradientFact, Gradients, ScaleWindow
from fp16conv.training.modes import modes_kept, require_fp32
from fp16conv.training.watch import ForwardWatch

__all__ = ["TrainAudit", "audit"]


@dataclass(frozen=True)
class TrainAudit:
    """What a training run would meet in FP16.

    Args:
        batches: number of batches run forward and backward.
        losses: loss per batch.
        gradients: parameters in order of the module, then values of the forward pass in order of execution.
        overflowing: values of the forward pass beyond 65504, with the largest magnitude.
        autocast_fp32: calls of a forward pass and its loss that CUDA autocast keeps in FP32, by number.
        window: loss scales that fit all gradients.
        optimizer: whose updates were judged, by the name of its class.
        learning_rate: of its first group of parameters.
    """

    batches: int
    losses: tuple[float, ...]
    gradients: tuple[GradientFact, ...]
    overflowing: Mapping[str, float]
    autocast_fp32: Mapping[str, int]
    window: ScaleWindow
    optimizer: str
    learning_rate: float

    @property
    def loss_scale(self) -> float:
        """Recommended scale, a power of two."""
        return 2.0**self.window.recommended

    @property
    def share_zeroed(self) -> float:
        """Share of all non-zero parameter gradients that vanish at scale 1."""
        return _mean((f.share_zeroed, f.count) for f in self.gradients if f.kind == "parameter")

    @property
    def share_lost(self) -> float:
        """Share of all updates that FP16 weights would lose: why master weights are FP32."""
        return _mean((f.share_lost, f.count) for f in self.gradients if f.share_lost is not None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = asdict(self)
        for fact in plain["gradients"]:
            fact["histogram"] = [int(n) for n in fact["histogram"]]
        plain["loss_scale"], plain["share_zeroed"] = self.loss_scale, self.share_zeroed
        plain["share_lost"] = self.share_lost
        return plain

    def describe(self) -> str:
        """A few lines for people."""
        low, high = self.window.lowest, self.window.highest
        lines = [
            f"{self.batches} batches, loss {self.losses[0]:.4g} -> {self.losses[-1]:.4g}",
            f"gradients: {self.share_zeroed:.1%} vanish in FP16 without a loss scale",
        ]
        if self.window.is_open:
            lines.append(f"loss scale: 2^{self.window.recommended} (safe from 2^{low} to 2^{high})")
        else:
            lines.append(f"loss scale: none rescues all; 2^{high} overflows nothing, 2^{low} would be needed")
        lost = f"updates: {self.share_lost:.1%} are below 2^-11 of their weight"
        lines.append(lost + (": keep FP32 master weights" if self.share_lost else ""))
        worst = sorted(self.gradients, key=lambda f: -f.share_zeroed)[:5]
        lines += [f"  {f.share_zeroed:7.1%} vanish in {f.name} ({f.kind})" for f in worst if f.share_zeroed]
        lines += [f"  {name} reaches {value:.4g}: beyond 65504" for name, value in self.overflowing.items()]
        if self.autocast_fp32:
            calls = ", ".join(f"{name} {count}" for name, count in self.autocast_fp32.items())
            lines.append(f"autocast keeps in FP32: {calls}")
        return "\n".join(lines)


def audit(
    module: torch.nn.Module,
    loss: Callable[[Any, Any], torch.Tensor],
    batches: Iterable[tuple[Any, Any]],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    learning_rate: float = 1e-3,
    limit: int | None = None,
) -> TrainAudit:
    """Run a module forward and backward in FP32 and look at every gradient with FP16's eyes.

    All batches see the weights given. An update is what the optimizer makes of a batch's gradients, its own
    state going on from batch to batch; afterwards weights, buffers, gradients, modes, random numbers and
    the optimizer are as they were. What happens to gradients outside of the optimizer (clipping,
    accumulation over batches) is not seen.

    Args:
        module: FP32 module, run in training mode.
        loss: (output of the module, target) -> scalar.
        batches: (inputs, target) pairs; a tuple or list of inputs is spread over the arguments, a dict over
            the keyword arguments.
        optimizer: whose updates are judged, of this module's parameters; SGD by default.
        learning_rate: of SGD, where there is no optimizer.
        limit: look at so many batches only.

    Returns:
        Ranges, loss scales and lost updates per parameter, and ranges and loss scales per value of the
        forward pass.

    Raises:
        UsageError: there is no batch, or it is no pair; a parameter is not FP32.
        ValidationError: the module, the loss, the backward pass or the optimizer does not run; the loss or
            the gradient of a parameter is not finite.
    """
    require_fp32(module)
    trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
    if not trained:
        raise UsageError("no parameter of the module requires a gradient")
    optimizer = optimizer or torch.optim.SGD(trained.values(), lr=learning_rate)
    parameters = {name: Gradients("parameter") for name in trained}
    activations: dict[str, Gradients] = {}

    def add(name: str, gradient: torch.Tensor) -> None:
        activations.setdefault(name, Gradients("activation")).add(to_array(gradient))

    losses: list[float] = []
    with _as_it_was(module, optimizer):
        module.train()
        watch = ForwardWatch(module, add)
        try:
            for batch in islice(batches, limit):
                for parameter in trained.values():
                    parameter.grad = None
                losses.append(_run(module, loss, batch, watch))
                _judge(parameters, trained, optimizer)
        finally:
            watch.close()
    if not losses:
        raise UsageError("there is no batch to audit")
    in_order = [(name, activations[name]) for name in watch.largest if name in activations]
    streams = [*parameters.items(), *in_order]
    window = _joint([stream for _, stream in streams], losses)
    return TrainAudit(
        batches=len(losses),
        losses=tuple(losses),
        gradients=tuple(stream.fact(name, window.recommended) for name, stream in streams),
        overflowing={name: value for name, value in watch.largest.items() if value > MAX},
        autocast_fp32=dict(sorted(watch.autocast_fp32.items())),
        window=window,
        optimizer=type(optimizer).__name__,
        learning_rate=float(optimizer.param_groups[0]["lr"]),
    )


@contextmanager
def _as_it_was(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Everything that a training step changes is put back; random numbers begin at a fixed seed."""
    parameters = list(module.parameters())
    # A forward may put other tensors where buffers were; compiled ones keep theirs elsewhere.
    held = [(m, dict(m._buffers)) for m in module.modules() if isinstance(m._buffers, dict)]
    gradients = [p.grad for p in parameters]
    values = [(t, t.detach().clone()) for t in (*parameters, *module.buffers())]
    state = copy.deepcopy(optimizer.state_dict())
    devices = sorted({p.device.index or 0 for p in parameters if p.device.type == "cuda"})
    with modes_kept(module), torch.random.fork_rng(devices):
        torch.manual_seed(0)
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, value in values:
                    tensor.copy_(value)
            for m, buffers in held:
                m._buffers.clear()
                m._buffers.update(buffers)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.load_state_dict(state)


def _run(module: torch.nn.Module, loss: Any, batch: Any, watch: ForwardWatch) -> float:
    """Forward and backward; gives the loss."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise UsageError(
            f"a batch is a {type(batch).__name__}{size}",
            hint="batches are pairs (inputs, target); several inputs are a tuple, or a dict by argument",
        )
    inputs, target = batch
    try:
        # What torch.compile made runs as it is written: compiled code has no calls to look at.
        with torch.enable_grad(), torch.compiler.set_stance("force_eager"), watch:
            output = (
                module(**inputs)
                if isinstance(inputs, Mapping)
                else module(*inputs)
                if isinstance(inputs, tuple | list)
                else module(inputs)
            )
            value = loss(output, target)
    except Exception as error:  # the user's code
        raise _failure("the module or its loss does not run", error) from error
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        what = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise ValidationError("the loss is no scalar tensor", why=what, hint="reduce it to one number")
    if not bool(torch.isfinite(value)):
        raise ValidationError("the loss is no finite number in FP32", why=str(value.detach())[:200])
    try:
        value.backward()
    except Exception as error:  # nothing requires a gradient, or the user's own backward
        raise _failure("the backward pass does not run", error) from error
    return float(value.detach())


def _judge(
    facts: Mapping[str, Gradients],
    trained: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Count gradients and the updates that the optimizer makes of them; weights stay."""
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    before = {name: parameter.detach().clone() for name, parameter in trained.items()}
    gradients = {n: to_array(p.grad.to_dense()) for n, p in trained.items() if p.grad is not None}
    for name, gradient in gradients.items():
        if not math.isfinite(float(abs(gradient).max(initial=0.0))):
            raise ValidationError("a gradient is not finite in FP32", where=name)
        facts[name].add(gradient)
    try:
        optimizer.step()
    except Exception as error:  # one that wants a closure, or no sparse gradients
        raise _failure(f"{type(optimizer).__name__} makes no step", error) from error
    with torch.no_grad():
        for name, parameter in trained.items():
            if name in gradients and id(parameter) in owned:
                weight = to_array(before[name])
                facts[name].add_updates(weight, gradients[name], to_array(parameter) - weight)
            parameter.copy_(before[name])


def _failure(what: str, error: Exception) -> ValidationError:
    return ValidationError(what, why=first_line(error))


def _joint(streams: Iterable[Gradients], losses: Iterable[float]) -> ScaleWindow:
    """All gradients together: the share that may vanish is one of the whole, the largest is that of any.

    The scaled loss itself is an FP32 number and must stay one.
    """
    whole = Gradients("parameter")
    for stream in streams:
        whole.merge(stream)
    window = whole.window() or ScaleWindow(0, 0)
    limit = LARGEST_SCALE - math.ceil(math.log2(max(1.0, *map(abs, losses))))
    return ScaleWindow(window.lowest, min(window.highest, limit))


def _mean(weighted: Iterable[tuple[float, int]]) -> float:
    pairs = list(weighted)
    total = sum(count for _, count in pairs)
    return sum(share * count for share, count in pairs) / total if total else 0.0
