"""What FP16 does to a training run: gradients that vanish, the loss scale that rescues them, lost updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from fp16conv.errors import UsageError, ValidationError
from fp16conv.evidence.summary import HIGHEST_EXPONENT, LOWEST_EXPONENT
from fp16conv.execution.fx import to_array
from fp16conv.half import MAX

__all__ = ["AUTOCAST_FP32", "GradientFact", "ScaleWindow", "TrainAudit", "audit"]

ZEROED: Final = 2.0**-25
"""Magnitudes up to here round to zero in FP16 (half of the smallest subnormal number, ties to even)."""

LOST: Final = 2.0**-11
"""An update below this part of its weight is lost: FP16 has 11 significant bits.

Micikevicius et al., Mixed Precision Training, arXiv:1710.03740, section 3.1."""

TOLERATED: Final = 1e-3
"""Share of non-zero gradients that may still vanish at the lowest safe scale."""

HEADROOM: Final = 2.0
"""Factor that gradients may grow beyond those seen before the scaled ones overflow: one binade."""

AUTOCAST_FP32: Final = frozenset(
    {"acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt"}
    | {"sinh", "tan", "pow", "softplus", "layer_norm", "native_layer_norm", "rms_norm", "group_norm"}
    | {"frobenius_norm", "nuclear_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss"}
    | {"nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss"}
    | {"mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss"}
    | {"multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm"}
    | {"logsumexp", "prod", "softmax", "log_softmax", "cumprod", "cumsum", "linalg_vector_norm"}
    | {"linalg_matrix_norm", "sum", "norm"}
)
"""Operators that CUDA autocast runs in FP32 (ATen/autocast_mode.h, torch 2.13)."""

Histogram = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ScaleWindow:
    """Loss scales, as powers of two, with which gradients neither vanish nor overflow.

    Args:
        lowest: smallest exponent at which at most 0.1 % of the non-zero gradients vanish.
        highest: largest exponent at which the largest gradient stays below 65504, a binade spared.
    """

    lowest: int
    highest: int

    @property
    def is_open(self) -> bool:
        """Whether one scale does both."""
        return self.lowest <= self.highest

    @property
    def recommended(self) -> int:
        """Exponent to use: as high as is safe with two binades to spare, never below the lowest."""
        return max(min(self.lowest, self.highest), self.highest - 2) if self.is_open else self.highest


@dataclass(frozen=True)
class GradientFact:
    """Gradients of one parameter, or of one module's output.

    Args:
        name: of the parameter or module.
        kind: `parameter` or `activation`.
        max_abs: largest magnitude over all batches.
        share_zeroed: share of the non-zero gradients that FP16 rounds to zero at scale 1.
        window: loss scales that fit it; None where all gradients are zero.
        histogram: int64 [81] counts of base-2 exponents -40 to 40.
        share_lost: share of updates below 2^-11 of their weight; None for activations.
    """

    name: str
    kind: str
    max_abs: float
    share_zeroed: float
    window: ScaleWindow | None
    histogram: Histogram
    share_lost: float | None = None


@dataclass(frozen=True)
class TrainAudit:
    """What a training run would meet in FP16.

    Args:
        batches: number of batches run forward and backward.
        losses: loss per batch.
        gradients: parameters in order of the module, then activations in order of execution.
        overflowing: modules whose output passes 65504, with the largest magnitude.
        autocast_fp32: operators of the forward pass that CUDA autocast keeps in FP32, by number of calls.
        window: loss scales that fit all gradients.
        learning_rate: the one updates were judged with.
    """

    batches: int
    losses: tuple[float, ...]
    gradients: tuple[GradientFact, ...]
    overflowing: Mapping[str, float]
    autocast_fp32: Mapping[str, int]
    window: ScaleWindow
    learning_rate: float

    @property
    def loss_scale(self) -> float:
        """Recommended scale, a power of two."""
        return 2.0**self.window.recommended

    @property
    def share_zeroed(self) -> float:
        """Share of all non-zero parameter gradients that vanish at scale 1."""
        facts = [f for f in self.gradients if f.kind == "parameter"]
        counts = [int(f.histogram.sum()) for f in facts]
        gone = sum(f.share_zeroed * n for f, n in zip(facts, counts, strict=True))
        return gone / sum(counts) if sum(counts) else 0.0

    @property
    def share_lost(self) -> float:
        """Share of all updates that FP16 weights would lose: why master weights are FP32."""
        facts = [f for f in self.gradients if f.share_lost is not None]
        counts = [int(f.histogram.sum()) for f in facts]
        lost = sum((f.share_lost or 0.0) * n for f, n in zip(facts, counts, strict=True))
        return lost / sum(counts) if sum(counts) else 0.0

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
        lines.append(
            f"updates: {self.share_lost:.1%} are below 2^-11 of their weight: keep FP32 master weights"
        )
        worst = sorted(self.gradients, key=lambda f: -f.share_zeroed)[:5]
        lines += [f"  {f.share_zeroed:7.1%} vanish in {f.name} ({f.kind})" for f in worst if f.share_zeroed]
        lines += [f"  {name} reaches {value:.4g}: beyond 65504" for name, value in self.overflowing.items()]
        if self.autocast_fp32:
            calls = ", ".join(f"{name} {count}" for name, count in self.autocast_fp32.items())
            lines.append(f"autocast keeps in FP32: {calls}")
        return "\n".join(lines)


class _Gradients:
    """Exponents and extremes of one stream of gradients, added up over batches."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.histogram = np.zeros(HIGHEST_EXPONENT - LOWEST_EXPONENT + 1, np.int64)
        self.max_abs = 0.0
        self.zeroed = 0
        self.count = 0
        self.updates = self.lost = 0
        self.thresholds = np.zeros(256, np.int64)  # non-zero gradients by exponent, without clipping

    def add(self, gradient: torch.Tensor) -> None:
        magnitude = np.abs(to_array(gradient)).astype(np.float64).reshape(-1)
        magnitude = magnitude[np.isfinite(magnitude) & (magnitude > 0)]
        self.count += magnitude.size
        if not magnitude.size:
            return
        self.max_abs = max(self.max_abs, float(magnitude.max()))
        self.zeroed += int((magnitude <= ZEROED).sum())
        exponents = np.floor(np.log2(magnitude)).astype(np.int64)
        clipped = np.clip(exponents, LOWEST_EXPONENT, HIGHEST_EXPONENT) - LOWEST_EXPONENT
        self.histogram += np.bincount(clipped, minlength=self.histogram.size)
        self.thresholds += np.bincount(np.clip(exponents + 160, 0, 255), minlength=256)

    def add_updates(self, weight: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        w, step = to_array(weight).astype(np.float64), rate * to_array(gradient).astype(np.float64)
        moved = step != 0
        self.updates += int(moved.sum())
        self.lost += int((np.abs(step) < LOST * np.abs(w))[moved].sum())

    def window(self) -> ScaleWindow | None:
        if not self.count:
            return None
        highest = math.floor(math.log2(MAX / HEADROOM / self.max_abs))
        below = np.cumsum(self.thresholds) / self.count
        # At scale 2^k all gradients with an exponent of at least -24 - k survive.
        first = int(np.searchsorted(below, TOLERATED, side="right"))
        return ScaleWindow(lowest=-24 - (first - 160), highest=highest)

    def fact(self, name: str) -> GradientFact:
        return GradientFact(
            name=name,
            kind=self.kind,
            max_abs=self.max_abs,
            share_zeroed=self.zeroed / self.count if self.count else 0.0,
            window=self.window(),
            histogram=self.histogram,
            share_lost=self.lost / self.updates
            if self.updates
            else (0.0 if self.kind == "parameter" else None),
        )


def audit(
    module: torch.nn.Module,
    loss: Callable[[Any, Any], torch.Tensor],
    batches: Iterable[tuple[Any, Any]],
    *,
    learning_rate: float = 1e-3,
) -> TrainAudit:
    """Run a module forward and backward in FP32 and look at every gradient with FP16's eyes.

    No weight is changed: an update is judged as `learning_rate * gradient / weight`, which is SGD; adaptive
    optimizers make larger ones.

    Args:
        module: FP32 module, run in training mode.
        loss: (output of the module, target) -> scalar.
        batches: (inputs, target) pairs; a tuple of inputs is spread over the arguments.
        learning_rate: for the share of lost updates.

    Returns:
        Ranges, loss scales and lost updates per parameter and per module output.

    Raises:
        UsageError: there is no batch.
        ValidationError: the module or the loss does not run, or the loss is not finite.
    """
    parameters = {n: _Gradients("parameter") for n, p in module.named_parameters() if p.requires_grad}
    activations: dict[str, _Gradients] = {}
    largest: dict[str, float] = {}
    calls: dict[str, int] = {}
    losses: list[float] = []
    hooks = [
        m.register_forward_hook(_watch(name, activations, largest))
        for name, m in module.named_modules()
        if name and not any(True for _ in m.children())
    ]
    was_training = module.training
    module.train()
    kept = {n: b.detach().clone() for n, b in module.named_buffers()}
    try:
        for inputs, target in batches:
            module.zero_grad(set_to_none=True)
            with _Calls() as seen:
                value = _forward(module, loss, inputs, target)
            calls = calls or seen.counts
            value.backward()
            losses.append(float(value.detach()))
            for name, parameter in module.named_parameters():
                if parameter.grad is not None:
                    parameters[name].add(parameter.grad)
                    parameters[name].add_updates(parameter, parameter.grad, learning_rate)
    finally:
        for hook in hooks:
            hook.remove()
        module.zero_grad(set_to_none=True)
        module.train(was_training)
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(kept[name])
    if not losses:
        raise UsageError("there is no batch to audit")
    streams = [*parameters.items(), *activations.items()]
    facts = tuple(stream.fact(name) for name, stream in streams)
    windows = [f.window for f in facts if f.window is not None]
    return TrainAudit(
        batches=len(losses),
        losses=tuple(losses),
        gradients=facts,
        overflowing={name: value for name, value in largest.items() if value > MAX},
        autocast_fp32=dict(sorted(calls.items())),
        window=_joint(streams, windows),
        learning_rate=learning_rate,
    )


def _joint(streams: list[tuple[str, _Gradients]], windows: list[ScaleWindow]) -> ScaleWindow:
    """All gradients together: the share that may vanish is one of the whole, the largest is that of any."""
    if not windows:
        return ScaleWindow(0, 0)
    whole = _Gradients("parameter")
    for _, stream in streams:
        whole.count += stream.count
        whole.max_abs = max(whole.max_abs, stream.max_abs)
        whole.thresholds += stream.thresholds
    window = whole.window()
    assert window is not None
    return window


class _Calls(torch.overrides.TorchFunctionMode):
    """Counts the operators of autocast's FP32 list."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "").strip("_")
        if name in AUTOCAST_FP32:
            self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def _forward(module: torch.nn.Module, loss: Any, inputs: Any, target: Any) -> torch.Tensor:
    try:
        output = module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)
        value: torch.Tensor = loss(output, target)
    except Exception as error:  # the user's code
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ValidationError("the module or its loss does not run", why=lines[0][:300]) from error
    if value.numel() != 1 or not bool(torch.isfinite(value)):
        raise ValidationError("the loss is no finite number in FP32", why=str(value.detach())[:200])
    return value


def _watch(name: str, activations: dict[str, _Gradients], largest: dict[str, float]) -> Any:
    def hook(_module: Any, _inputs: Any, output: Any) -> None:
        for tensor in torch.utils._pytree.tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.numel():
                largest[name] = max(largest.get(name, 0.0), float(tensor.detach().abs().max()))
                if tensor.requires_grad:
                    tensor.register_hook(activations.setdefault(name, _Gradients("activation")).add)

    return hook
