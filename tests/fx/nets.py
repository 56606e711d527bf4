"""Small nets of the usual families, initialised as trained ones look: norms have a spread."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

Call = tuple[nn.Module, tuple[Any, ...]]


def settle(module: nn.Module, seed: int = 0) -> nn.Module:
    """Give norms the spread of trained ones: scales around 1, running statistics around those of the data."""
    generator = torch.Generator().manual_seed(seed)
    for m in module.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_(0.0, 0.2, generator=generator)
            m.running_var.uniform_(0.2, 2.0, generator=generator)
        if isinstance(m, nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm):
            with torch.no_grad():
                m.weight.normal_(1.0, 0.15, generator=generator)
    return module.eval()


def classifier() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


def classifier_data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(48, 16, generator=generator)
    return x, (x[:, :4] * 2.0).argmax(-1)


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.down = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.down(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.layers = nn.Sequential(Block(16, 32, 1), Block(32, 64, 2))
        self.fc = nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.pool(self.stem(image)))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 64, 8, 8)
        self.cls = nn.Parameter(torch.randn(1, 1, 64) * 0.02)
        self.pos = nn.Parameter(torch.randn(1, 17, 64) * 0.02)
        self.blocks = nn.Sequential(Layer(64, 4), Layer(64, 4))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


class CausalLayer(nn.Module):
    """Attention written out, with a mask of -1e9 and a cache of keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(
        self, x: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(c, -1)
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        scores = q @ k.transpose(-1, -2) / math.sqrt(c // self.heads)
        rows = torch.arange(n)[:, None] + past_k.shape[2]
        scores = scores.masked_fill(rows < torch.arange(k.shape[2])[None], -1e9)
        x = x + self.out((F.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, n, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")), k, v


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(100, 64), nn.Embedding(64, 64)
        self.layers = nn.ModuleList([CausalLayer(64, 4), CausalLayer(64, 4)])
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 100, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor, past: list[torch.Tensor]) -> dict[str, Any]:
        start = past[0].shape[2]
        x = self.tokens(ids) + self.places(torch.arange(start, start + ids.shape[1]))
        present = []
        for i, layer in enumerate(self.layers):
            x, k, v = layer(x, past[2 * i], past[2 * i + 1])
            present += [k, v]
        return {"logits": self.head(self.norm(x)), "present": present}


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.lstm = nn.LSTM(32, 48, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(96, 7)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        y, _ = self.lstm(self.embed(ids))
        return F.log_softmax(self.head(y), -1)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def pair(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(a, b, 3, 1, 1), nn.GroupNorm(4, b), nn.SiLU())

        self.down1, self.down2, self.middle = pair(3, 16), pair(16, 32), pair(32, 32)
        self.up2, self.up1 = nn.ConvTranspose2d(32, 16, 2, 2), pair(48, 16)
        self.last = nn.Conv2d(32, 1, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        a = self.down1(image)
        b = self.down2(F.max_pool2d(a, 2))
        c = F.interpolate(self.middle(F.avg_pool2d(b, 2)), scale_factor=2.0, mode="nearest")
        c = self.up1(torch.cat([b, self.up2(F.max_pool2d(c, 2))], 1)) + c[:, :16]
        c = F.interpolate(c, scale_factor=2.0, mode="bilinear", align_corners=False)
        return torch.sigmoid(self.last(torch.cat([a, c], 1)))


class LlamaLayer(nn.Module):
    """RMSNorm, rotary positions, SwiGLU; the second norm is written out as model code does."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.RMSNorm(width, eps=1e-6)
        self.scale = nn.Parameter(torch.ones(width))
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        h = self.norm1(x)
        q, k, v = (p(h).view(b, n, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = (
            t * cos + torch.cat([-t[..., t.shape[-1] // 2 :], t[..., : t.shape[-1] // 2]], -1) * sin
            for t in (q, k)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, n, c))
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, 64)
        self.layers = nn.ModuleList([LlamaLayer(64, 4), LlamaLayer(64, 4)])
        self.norm, self.head = nn.RMSNorm(64), nn.Linear(64, 100, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        steps = 1.0 / (10000 ** (torch.arange(0, 16, 2, dtype=torch.float32) / 16))
        angles = torch.outer(torch.arange(ids.shape[1], dtype=torch.float32), steps)
        angles = torch.cat([angles, angles], -1)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.head(self.norm(x))


def build(name: str) -> Call:
    """A net of the family in eval mode and its example inputs, always the same."""
    torch.manual_seed(7)
    makers: dict[str, Any] = {
        "resnet": (ResNet, lambda: (torch.randn(2, 3, 64, 64),)),
        "vit": (ViT, lambda: (torch.randn(2, 3, 32, 32),)),
        "gpt": (GPT, lambda: (torch.randint(0, 100, (2, 6)), [torch.randn(2, 4, 5, 16) for _ in range(4)])),
        "lstm": (Tagger, lambda: (torch.randint(0, 50, (2, 12)),)),
        "unet": (UNet, lambda: (torch.randn(1, 3, 32, 32),)),
        "llama": (Llama, lambda: (torch.randint(0, 100, (2, 12)),)),
    }
    net, inputs = makers[name]
    return settle(net()), inputs()


FAMILIES = ("resnet", "vit", "gpt", "lstm", "unet", "llama")
