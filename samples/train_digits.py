"""Fine-tune one net on digits four ways and see what mixed precision needs.

    python samples/train_digits.py
    python samples/train_digits.py --seeds 5

A classifier was trained on raw counts of one camera (10 bits: black is 512, white is 640) and gets another
one, whose pixels differ in black level and gain. Only these are learned, 64 numbers near 512 and 64 near 1,
with Adam at a rate of 1e-4 of their size; the net behind them is frozen. What FP16 makes hard is in it twice:

* The updates are small beside the weights: 512 + 0.05 is 512 in FP16, and 1 + 0.0001 is 1.
* The gradients are small: the loss is divided by 2^20, as a mean over the pixels of a large image would be.

The four ways differ in nothing else; all begin with the same weights and see the same batches.

    fp32            the reference
    half            weights, activations and gradients in FP16, with the loss scale: no master weights
    mixed-unscaled  FP16 compute, FP32 master weights, no loss scale
    mixed           FP16 compute, FP32 master weights, torch.amp.GradScaler with the scale of the audit

`setup` is a source for the command line: fp16conv train-audit samples.train_digits:setup

Needs torch (pip install 'fp16conv[torch]'). The digits are scikit-learn's, in samples/digits_test.npz.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fp16conv import training

HERE = Path(__file__).resolve().parent
BLACK, SPAN = 512.0, 128.0  # counts of a black pixel, and from there to white
NOISE = 0.1  # of each picture, in parts of the span
RATE = 1e-4  # of Adam, relative to the size of what it trains
PIXELS = 2.0**20
BATCH = 64
TRAIN_ROWS = 360
VIEWS = 6  # noisy pictures of each test image
STEPS = 3000
WAYS = ("fp32", "half", "mixed-unscaled", "mixed")
Batch = tuple[torch.Tensor, torch.Tensor]


class Camera(nn.Module):
    """Counts to brightness: (counts - black) * gain, both per pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.black = nn.Parameter(torch.full((8, 8), BLACK))
        self.gain = nn.Parameter(torch.ones(8, 8))

    def forward(self, counts: torch.Tensor) -> torch.Tensor:
        return (counts - self.black) * self.gain / SPAN


class Task:
    """A net trained on one camera, and pictures of another.

    Args:
        seed: of the split, the net, the cameras, the noise and the batches.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        with np.load(HERE / "digits_test.npz") as arrays:
            images, labels = torch.from_numpy(arrays["image"]), torch.from_numpy(arrays["labels"])
        random = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(images), generator=random)
        self.images, self.labels = images[order], labels[order]
        self.black = BLACK + SPAN * torch.randn(8, 8, generator=random)
        self.gain = torch.exp(0.2 * torch.randn(8, 8, generator=random))
        held_out = self.images[TRAIN_ROWS:].repeat(VIEWS, 1, 1, 1)
        self.test = self.shoot(held_out, random), self.labels[TRAIN_ROWS:].repeat(VIEWS)
        self.net = self._pretrain(random)

    def shoot(self, images: torch.Tensor, random: torch.Generator, *, new: bool = True) -> torch.Tensor:
        """Noisy pictures, as counts of the new or the old camera."""
        seen = images + NOISE * torch.randn(images.shape, generator=random)
        return self.black + SPAN * self.gain * seen if new else BLACK + SPAN * seen

    def batches(self, *, new: bool = True) -> Iterator[Batch]:
        """Batches without end, the same each time."""
        random = torch.Generator().manual_seed(self.seed + 1)
        while True:
            rows = torch.randint(0, TRAIN_ROWS, (BATCH,), generator=random)
            yield self.shoot(self.images[rows], random, new=new), self.labels[rows]

    def _pretrain(self, random: torch.Generator) -> nn.Module:
        """In FP32, on the old camera; then all but the camera is frozen."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            body = nn.Sequential(
                nn.Flatten(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10)
            )
        net = nn.Sequential(Camera(), *body)
        optimizer = torch.optim.AdamW(body.parameters(), lr=2e-3)
        for _, (counts, labels) in zip(range(600), self.batches(new=False), strict=False):
            optimizer.zero_grad()
            F.cross_entropy(net(counts), labels).backward()
            optimizer.step()
        body.requires_grad_(False)
        return net


def make_optimizer(camera: Any) -> torch.optim.Optimizer:
    """Adam with a rate relative to the size of what it trains; eps follows the division of the loss."""
    groups = [{"params": [camera.black], "lr": RATE * BLACK}, {"params": [camera.gain], "lr": RATE}]
    return torch.optim.Adam(groups, eps=1e-8 / PIXELS)


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.float(), target) / PIXELS


def setup(task: Task | None = None) -> tuple[nn.Module, Any, Iterator[Batch], torch.optim.Optimizer]:
    """Source of `fp16conv train-audit`."""
    torch.set_num_threads(1)  # the net is small: threads would only wait for each other
    task = task or Task()
    net: Any = copy.deepcopy(task.net)
    return net, loss_of, task.batches(), make_optimizer(net[0])


def audit(task: Task) -> training.TrainAudit:
    """What FP16 would do to the first batches."""
    net, loss, batches, optimizer = setup(task)
    return training.audit(net, loss, batches, optimizer=optimizer, limit=16)


def accuracy(net: nn.Module, test: Batch) -> float:
    counts, labels = test
    with torch.no_grad():
        return float((net(counts).argmax(-1) == labels).float().mean())


@dataclass(frozen=True)
class Outcome:
    """What came of one training.

    Args:
        first_loss: of the first 20 batches, on average; without the division.
        last_loss: of the last 20.
        zeroed: share of the gradients that were zero.
        unmoved: share of the updates after which the weight was what it had been.
        skipped: steps that GradScaler left out.
        before: accuracy of the net given, on the new camera.
        after: accuracy in the end.
    """

    first_loss: float
    last_loss: float
    zeroed: float
    unmoved: float
    skipped: int
    before: float
    after: float


class HalfAdam:
    """Adam on FP16 weights: it computes in FP32, and the sum of weight and update is rounded to FP16.

    Its state is FP32: in FP16 the squares of small gradients would be zero, and the first step a division by
    zero. GradScaler refuses FP16 gradients, so the scale is taken off here.
    """

    def __init__(self, camera: Camera, scale: float) -> None:
        self.weights, self.scale = [camera.black, camera.gain], scale
        self.wide = copy.deepcopy(camera).float()
        self.optimizer = make_optimizer(self.wide)

    def step(self) -> None:
        pairs = list(zip(self.weights, (self.wide.black, self.wide.gain), strict=True))
        with torch.no_grad():
            for weight, wide in pairs:
                assert weight.grad is not None
                wide.copy_(weight)
                wide.grad = weight.grad.float() / self.scale
            self.optimizer.step()
            for weight, wide in pairs:
                weight.copy_(wide)


def train(task: Task, way: str, scale: float, steps: int = STEPS) -> Outcome:
    """Fine-tune one way; `scale` is the loss scale of those that have one."""
    net: Any = copy.deepcopy(task.net)
    before = accuracy(net, task.test)
    if way == "half":
        net = net.half()
    example = next(task.batches())[0]
    runner = training.prepare(net, args=(example,)) if way.startswith("mixed") else net
    runner.train()
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=way == "mixed")
    optimizer: Any = HalfAdam(net[0], scale) if way == "half" else make_optimizer(net[0])
    weights = [net[0].black, net[0].gain]
    losses: list[float] = []
    zeroed = unmoved = counted = skipped = 0
    for _, (counts, labels) in zip(range(steps), task.batches(), strict=False):
        for weight in weights:
            weight.grad = None
        loss = loss_of(runner(counts.half() if way == "half" else counts), labels)
        losses.append(float(loss.detach()) * PIXELS)
        (loss * scale if way == "half" else scaler.scale(loss)).backward()
        zeroed += sum(int((weight.grad == 0).sum()) for weight in weights)
        old = [weight.detach().clone() for weight in weights]
        was = scaler.get_scale()
        if way == "half":
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        skipped += scaler.get_scale() < was
        unmoved += sum(int((w.detach() == o).sum()) for w, o in zip(weights, old, strict=True))
        counted += sum(weight.numel() for weight in weights)
    runner.eval()
    counts, labels = task.test
    after = accuracy(runner, (counts.half() if way == "half" else counts, labels))
    first, last = (float(np.mean(part)) for part in (losses[:20], losses[-20:]))
    return Outcome(first, last, zeroed / counted, unmoved / counted, skipped, before, after)


def show(task: Task) -> None:
    """The audit, and a table of the four ways."""
    found = audit(task)
    print(found.describe())
    print(f"\n{STEPS} steps; accuracy on {len(task.test[1])} pictures of the new camera: ", end="")
    print(f"{accuracy(task.net, task.test):.1%} before")
    names = ("first loss", "last loss", "zero grads", "unmoved", "skipped", "accuracy")
    print(f"{'way':<16}" + "".join(f"{name:>12}" for name in names))
    for way in WAYS:
        o = train(task, way, found.loss_scale)
        row = f"{o.first_loss:>12.3f}{o.last_loss:>12.3f}{o.zeroed:>12.1%}{o.unmoved:>12.1%}{o.skipped:>12}"
        print(f"{way:<16}{row}{o.after:>12.1%}", flush=True)


def compare(seeds: int) -> None:
    """Accuracy of the four ways for several seeds."""
    print(f"{'seed':<6}{'scale':>8}{'before':>12}" + "".join(f"{way:>16}" for way in WAYS))
    for seed in range(seeds):
        task = Task(seed)
        found = audit(task)
        row = f"{seed:<6}{f'2^{found.window.recommended}':>8}{accuracy(task.net, task.test):>12.1%}"
        print(row + "".join(f"{train(task, way, found.loss_scale).after:>16.1%}" for way in WAYS), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="only the accuracies, for N seeds")
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    if seeds:
        compare(seeds)
    else:
        show(Task())


if __name__ == "__main__":
    main()
