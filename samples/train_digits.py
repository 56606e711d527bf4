"""Train one net on digits four ways and see what mixed precision needs.

    python samples/train_digits.py

The loss is an average over a large population (divided by 2^20; the learning rate is 2^20 times larger, so
that FP32 trains as without): its gradients are small, as in deep nets and long sums.

    fp32           the reference
    half           weights, gradients and updates in FP16, with a loss scale: no master weights
    mixed-unscaled FP16 compute, FP32 master weights, no loss scale
    mixed          FP16 compute, FP32 master weights, torch.amp.GradScaler

A second table repeats it with a hundredth of the learning rate: updates are then below 2^-11 of the weights,
and `half`, which has no master weights, loses them.

Needs torch (pip install 'fp16conv[torch]'). The digits are scikit-learn's, in samples/digits_test.npz.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fp16conv import training

HERE = Path(__file__).resolve().parent
POPULATION = 2.0**20
RATE = 0.05
BATCH = 60
STEPS = 400
TRAIN_ROWS = 360


@dataclass(frozen=True)
class Outcome:
    """What came of one training."""

    first_loss: float
    last_loss: float
    accuracy: float
    zeroed: float
    skipped: int


def build() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 10))


def load() -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(HERE / "digits_test.npz") as arrays:
        images, labels = torch.from_numpy(arrays["image"]), torch.from_numpy(arrays["labels"])
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order], labels[order]


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.float(), target) / POPULATION


def audit() -> training.TrainAudit:
    """Look at the first batches before anything is trained."""
    images, labels = load()
    batches = [(images[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, 2 * BATCH, BATCH)]
    return training.audit(build(), loss_of, batches, learning_rate=RATE * POPULATION)


def train(way: str, steps: int = STEPS, scale: float | None = None, rate: float = RATE) -> Outcome:
    """Train one way; `scale` is the loss scale to start from, the audit's by default."""
    images, labels = load()
    net = build()
    scale = scale or audit().loss_scale
    if way == "half":
        net = net.half()
    runner = training.prepare(net, args=(images[:BATCH],)) if way.startswith("mixed") else net
    runner.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate * POPULATION)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=way == "mixed")
    rows = torch.Generator().manual_seed(1)
    losses: list[float] = []
    zeroed = counted = skipped = 0
    for _ in range(steps):
        pick = torch.randint(0, TRAIN_ROWS, (BATCH,), generator=rows)
        inputs = images[pick].half() if way == "half" else images[pick]
        optimizer.zero_grad()
        loss = loss_of(runner(inputs), labels[pick])
        losses.append(float(loss.detach()) * POPULATION)
        if way == "half":
            (loss * scale).backward()
        else:
            scaler.scale(loss).backward()
        for parameter in net.parameters():
            assert parameter.grad is not None
            zeroed += int((parameter.grad == 0).sum())
            counted += parameter.grad.numel()
        if way == "half":  # GradScaler refuses FP16 gradients; this is all it would do
            with torch.no_grad():
                for parameter in net.parameters():
                    assert parameter.grad is not None
                    step = parameter.grad.float() * (rate * POPULATION / scale)
                    parameter.sub_(step.half())
            continue
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += way == "mixed" and scaler.get_scale() < before
    runner.eval()
    with torch.no_grad():
        held_out = images[TRAIN_ROWS:].half() if way == "half" else images[TRAIN_ROWS:]
        right = net(held_out).argmax(-1) == labels[TRAIN_ROWS:]
    return Outcome(
        losses[0], float(np.mean(losses[-20:])), float(right.float().mean()), zeroed / counted, skipped
    )


WAYS = ("fp32", "half", "mixed-unscaled", "mixed")


SLOW_RATE = RATE / 100
SLOW_STEPS = 2500


def show(rate: float, steps: int, scale: float, ways: tuple[str, ...]) -> None:
    print(f"\nlearning rate {rate:g}, {steps} steps")
    print(f"{'way':<16}{'first loss':>12}{'last loss':>12}{'zeroed':>9}{'skipped':>9}{'accuracy':>10}")
    for way in ways:
        o = train(way, steps, scale, rate)
        row = f"{o.first_loss:>12.3f}{o.last_loss:>12.3f}{o.zeroed:>9.1%}{o.skipped:>9}{o.accuracy:>10.1%}"
        print(f"{way:<16}{row}", flush=True)


def main() -> None:
    torch.set_num_threads(1)  # the net is small: threads would only wait for each other
    report = audit()
    print(report.describe())
    show(RATE, STEPS, report.loss_scale, WAYS)
    show(SLOW_RATE, SLOW_STEPS, report.loss_scale, ("fp32", "half", "mixed"))


if __name__ == "__main__":
    main()
