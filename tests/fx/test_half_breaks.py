"""Modules that plain `.half()` breaks: it raises, or gives NaN, infinities or nonsense. Ours is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fp16conv import fx
from fp16conv.inputs import read_options
from fp16conv.validation.fx.half import try_half

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about itself

ERROR = 0.01


class MaskedAttention(nn.Module):
    """-1e9 is no half."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.softmax((q @ k.transpose(-1, -2)).masked_fill(~keep, -1e9), -1) @ v


class FilledMask(nn.Module):
    """finfo.min of FP32 is no half either."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2)
        mask = torch.full_like(scores[0], torch.finfo(torch.float32).min).triu(1)
        return F.softmax(scores + mask, -1) @ v


class ScaledMask(nn.Module):
    """(1 - mask) * -1e9: infinity, and a row that is all masked becomes NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.softmax(q @ k.transpose(-1, -2) + (1.0 - mask)[:, None] * -1e9, -1) @ v


class ZeroRowNorm(nn.Module):
    """eps = 1e-12 is zero in half, and a padded row is 0/0."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centered = x - x.mean(-1, keepdim=True)
        return self.out(centered / torch.sqrt((centered * centered).mean(-1, keepdim=True) + 1e-12))


class HandSoftmax(nn.Module):
    """exp(12) is infinite in half, and inf/inf is NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.out = nn.Linear(32, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(self.scores(x) * 20.0)
        return self.out(e / e.sum(-1, keepdim=True))


class LoudResidual(nn.Module):
    """The stream passes 65504 before a norm brings it back, as in large language models."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.out = nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(x * 4e4 + self.up(x) * 3e4))


class TimeEmbedding(nn.Module):
    """Sinusoids made in FP32 meet weights in half."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        steps = torch.exp(-9.2 * torch.arange(16, dtype=torch.float32) / 16)
        angles = t[:, None].float() * steps
        return self.down(F.silu(self.up(torch.cat([angles.sin(), angles.cos()], -1))))


class Scatter(nn.Module):
    """A canvas of zeros is FP32 by default; index_put refuses mixed types."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(8, 16)

    def forward(self, points: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        canvas = torch.zeros(64, 16)
        canvas[cells] = self.features(points)
        return canvas


class LongPositions(nn.Module):
    """Positions beyond 2048 are not all halves: neighbours fall together."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), 0.01))
        self.out = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        places = start + torch.arange(64, dtype=x.dtype)
        return self.out(x * torch.sin(places * self.scale * 100.0))


def cases() -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
    torch.manual_seed(3)
    x = torch.randn(2, 16, 32)
    keep = torch.ones(16, 16).tril().bool()
    mask = torch.ones(2, 16)
    mask[1] = 0.0
    padded = x.clone()
    padded[:, 8:] = 0.0
    return {
        "masked-attention": (MaskedAttention(), (x, keep)),
        "filled-mask": (FilledMask(), (x,)),
        "scaled-mask": (ScaledMask(), (x, mask)),
        "zero-row-norm": (ZeroRowNorm(), (padded,)),
        "hand-softmax": (HandSoftmax(), (x,)),
        "loud-residual": (LoudResidual(), (x,)),
        "time-embedding": (TimeEmbedding(), (torch.tensor([3, 250, 999]),)),
        "scatter": (Scatter(), (torch.randn(10, 8), torch.arange(10) * 5)),
        "long-positions": (LongPositions(), (torch.randn(3, 64), torch.tensor([5000.0]))),
    }


KINDS = {
    "masked-attention": "raises",
    "filled-mask": "raises",
    "scaled-mask": "nan",
    "zero-row-norm": "nan",
    "hand-softmax": "nan",
    "loud-residual": "nan",
    "time-embedding": "raises",
    "scatter": "raises",
    "long-positions": "wrong",
}


@pytest.mark.parametrize("name", KINDS)
def test_half_breaks_and_ours_is_right(name: str) -> None:
    module, args = cases()[name]
    loaded = fx.load(module, args)
    half = try_half(loaded, fx.open_feeds(loaded, read_options()))
    kind = "raises" if half.error else "nan" if half.broken else "fine" if half.ok else "wrong"
    assert kind == KINDS[name], half.describe()
    conversion = fx.convert_module(loaded)
    assert conversion.result is not None
    assert conversion.result.ok
    assert (conversion.result.relative_l2 or 0.0) <= ERROR
    assert not any(m.new_nan or m.new_inf for m in conversion.result.outputs)
    assert conversion.plan.predicted["macs_fp16_share"] >= 0.98


def test_at_least_five_kinds_break_outright() -> None:
    assert sum(kind in ("raises", "nan") for kind in KINDS.values()) >= 5


def test_the_first_failing_call_is_named() -> None:
    loaded = fx.load(*cases()["hand-softmax"])
    half = try_half(loaded, fx.open_feeds(loaded, read_options()))
    assert half.where == ("exp", "aten::exp.default")
