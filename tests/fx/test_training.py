"""Mixed-precision training: what runs in FP16, what stays FP32, and what the audit says about it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fp16conv import training
from fp16conv.errors import UsageError, ValidationError

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


class Scaled(nn.Module):
    """y = w * x * factor: the gradient of w is known."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x * self.factor).sum()


@pytest.mark.parametrize(
    ("exponent", "lowest", "highest"),
    [(-10, -14, 24), (-24, 0, 38), (-30, 6, 44), (10, -34, 4)],
)
def test_the_window_follows_from_the_gradients(exponent: int, lowest: int, highest: int) -> None:
    """Gradients of 2^e: 2^(e+k) is an FP16 number from e+k = -24 on, and 2 * 2^(e+k) below 65504 up to 14."""
    found = training.audit(Scaled(2.0**exponent), lambda out, _: out, [(torch.ones(4), None)])
    (fact,) = (f for f in found.gradients if f.kind == "parameter")
    assert fact.max_abs == 2.0**exponent
    assert fact.window == training.ScaleWindow(lowest, highest)
    assert fact.share_zeroed == float(exponent < -24)
    assert lowest <= found.window.recommended <= highest
    scaled = torch.tensor(2.0**exponent * found.loss_scale).half()
    assert torch.isfinite(scaled)
    assert scaled > 0


def test_gradients_that_no_scale_fits() -> None:
    x = torch.tensor([2.0**20, 2.0**-30, 2.0**-31, 2.0**-29])
    found = training.audit(Scaled(1.0), lambda out, _: out, [(x, None)])
    assert not found.window.is_open
    assert "none rescues all" in found.describe()


def test_the_audit_leaves_the_module_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(16, 4), nn.BatchNorm1d(4)).eval()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    training.audit(module, lambda out, y: F.cross_entropy(out, y), [data(), data()])
    assert not module.training
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key])
    assert all(p.grad is None for p in module.parameters())


def test_overflowing_activations_and_autocast_are_named() -> None:
    module = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Softmax(-1))
    with torch.no_grad():
        module[0].weight.mul_(1e6)
    found = training.audit(module, lambda out, y: (out**2).sum(), [data()])
    assert list(found.overflowing) == ["0"]
    assert found.autocast_fp32["layer_norm"] == 1
    assert found.autocast_fp32["softmax"] == 1
    assert "beyond 65504" in found.describe()
    assert found.to_dict()["loss_scale"] == found.loss_scale


def test_what_the_audit_refuses() -> None:
    with pytest.raises(UsageError, match="no batch"):
        training.audit(net(), loss_of, [])
    with pytest.raises(ValidationError, match="no finite number"):
        training.audit(net(), lambda out, y: out.sum() * float("nan"), [data()])
