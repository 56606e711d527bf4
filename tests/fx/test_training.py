"""Mixed-precision training: what runs in FP16 and what stays FP32."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fp16conv import training
from fp16conv.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about itself

POPULATION = 2.0**20
"""The loss is divided by it and the learning rate multiplied: FP32 trains as without."""


def net() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(48, 16, generator=generator)
    return x, (x[:, :4] * 2.0).argmax(-1)


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.float(), target) / POPULATION


def train(runner: nn.Module, scale: float | None, steps: int = 40) -> float:
    x, y = data()
    runner.train()
    optimizer = torch.optim.SGD(runner.parameters(), lr=0.5 * POPULATION)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    for _ in range(steps):
        optimizer.zero_grad()
        scaler.scale(loss_of(runner(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
    with torch.no_grad():
        return float(loss_of(runner(x), y)) * POPULATION


def test_the_scale_of_the_audit_reaches_fp32_and_no_scale_stalls() -> None:
    x, y = data()
    found = training.audit(net(), loss_of, [(x, y)], learning_rate=0.5 * POPULATION)
    assert found.window.is_open
    assert found.share_zeroed > 0.5
    start = float(loss_of(net()(x), y)) * POPULATION
    reference = train(net(), None)
    scaled = train(training.prepare(net(), args=(x,)), found.loss_scale)
    unscaled = train(training.prepare(net(), args=(x,)), None)
    assert reference < 0.5 * start
    assert scaled == pytest.approx(reference, rel=0.05, abs=0.005)
    assert unscaled > 0.9 * start


def test_without_master_weights_small_updates_are_lost() -> None:
    """Weights of 1 that should become 1.03, by steps of less than 2^-12 each."""

    def fit(dtype: torch.dtype) -> float:
        weight = torch.ones(8, dtype=dtype, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=2e-3)
        for _ in range(400):
            optimizer.zero_grad()
            ((weight - 1.03) ** 2).sum().backward()
            optimizer.step()
        return float(weight.detach().float().mean())

    assert fit(torch.float16) == 1.0
    assert fit(torch.float32) > 1.02
    module = nn.Linear(8, 1, bias=False)
    with torch.no_grad():
        module.weight.fill_(1.0)
    x = torch.eye(8)
    prepared = training.prepare(module, args=(x,)).train()
    optimizer = torch.optim.SGD(prepared.parameters(), lr=2e-3)
    for _ in range(400):
        optimizer.zero_grad()
        ((prepared(x).float() - 1.03) ** 2).sum().backward()
        optimizer.step()
    assert float(module.weight.mean()) > 1.02
    audited = training.audit(
        module,
        lambda out, want: ((out - want) ** 2).sum(),
        [(x, torch.full((8, 1), 1.1))],
        learning_rate=2e-3,
    )
    assert audited.share_lost == 1.0


def test_parameters_are_the_modules_own_and_stay_fp32() -> None:
    module = net()
    prepared = training.prepare(module, args=(data()[0],))
    assert [id(p) for p in prepared.parameters()] == [id(p) for p in module.parameters()]
    assert {p.dtype for p in prepared.parameters()} == {torch.float32}
    prepared(data()[0]).sum().backward()
    assert {p.grad.dtype for p in module.parameters() if p.grad is not None} == {torch.float32}
    assert all(p.grad is not None for p in module.parameters())
    assert prepared.plans[True].predicted["macs_fp16_share"] == 1.0


def test_gradients_are_close_to_fp32() -> None:
    x, y = data()
    plain, mixed = net(), net()
    F.cross_entropy(plain(x), y).backward()
    F.cross_entropy(training.prepare(mixed, args=(x,))(x).float(), y).backward()
    for a, b in zip(plain.parameters(), mixed.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert float((a.grad - b.grad).norm()) <= 0.01 * float(a.grad.norm()) + 1e-4


def test_modes_run_their_own_program() -> None:
    module = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5))
    x = data()[0]
    prepared = training.prepare(module, args=(x,))
    prepared.train()
    assert float((prepared(x) == 0).float().mean()) > 0.3
    prepared.eval()
    torch.testing.assert_close(prepared(x), module.eval()(x), rtol=5e-3, atol=5e-3)


def test_batch_statistics_are_updated_in_place() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    x = torch.randn(8, 1, 4, 4, generator=torch.Generator().manual_seed(0)) + 1.0
    prepared = training.prepare(module, args=(x,)).train()
    before = module[1].running_mean.clone()
    prepared(x).sum().backward()
    assert float((module[1].running_mean - before).abs().sum()) > 0
    assert int(module[1].num_batches_tracked) == 1
    assert module[1].running_mean.dtype is torch.float32


def test_another_batch_size_needs_dynamic_shapes() -> None:
    x = data()[0]
    shapes = ({0: torch.export.Dim("batch", min=2)},)
    prepared = training.prepare(nn.Sequential(nn.Linear(16, 3)), args=(x,), dynamic_shapes=shapes)
    assert prepared(x[:7]).shape == (7, 3)


def test_bad_calls_are_explained() -> None:
    with pytest.raises(UsageError, match="example inputs"):
        training.prepare(net())
    with pytest.raises(UsageError, match="FP16 already"):
        training.prepare(net().half(), args=(data()[0].half(),))
    prepared = training.prepare(net(), args=(data()[0],))
    with pytest.raises(UsageError, match="not built like"):
        prepared(data()[0], data()[0])
