"""Mixed-precision training: what runs in FP16 and what stays FP32."""

from __future__ import annotations

import copy
import pickle
import sys
import types
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fp16conv import training
from fp16conv.errors import UsageError
from tests.fx.nets import classifier as net
from tests.fx.nets import classifier_data as data

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about itself

POPULATION = 2.0**20
"""The loss is divided by it and the learning rate multiplied: FP32 trains as without."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The nets are small: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


class PerRow(nn.Module):
    """Divides by the number of rows: captured with one batch size it would be wrong for another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
        rows = self.linear(x) * scale
        return (rows if mask is None else rows * mask).sum(0, keepdim=True) / x.shape[0]


def test_a_smaller_last_batch_runs() -> None:
    module, x = PerRow(), data()[0]
    prepared = training.prepare(module, args=(x,))
    for rows in (7, 1, 60):
        batch = torch.cat([x, x])[:rows]
        torch.testing.assert_close(prepared(batch), module(batch), rtol=2e-3, atol=2e-3)
    fixed = training.prepare(module, args=(x,), dynamic_shapes={})
    torch.testing.assert_close(fixed(x), module(x), rtol=2e-3, atol=2e-3)
    with pytest.raises(UsageError, match=r"'x' has shape \(7, 16\): the program was captured for \(48, 16\)"):
        fixed(x[:7])


def test_a_recurrent_net_takes_other_batches() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.cell, self.out = nn.LSTM(16, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.cell(x)[0][:, -1])  # type: ignore[no-any-return]

    module, x = Last(), data()[0].reshape(6, 8, 16)
    prepared = training.prepare(module, args=(x,))
    for rows in (6, 3, 1):
        torch.testing.assert_close(prepared(x[:rows]), module(x[:rows]), rtol=5e-3, atol=5e-3)


class Without:
    """A torch whose configuration of sizes has another name."""


@pytest.mark.parametrize("config", [None, Without()])
def test_a_torch_without_the_private_option_takes_batches_from_two_on(
    config: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch reads its configuration under its own name: only we see it gone.
    monkeypatch.setattr(
        sys.modules["fp16conv.training.prepare"], "experimental", types.SimpleNamespace(_config=config)
    )
    module, x = PerRow(), data()[0]
    prepared = training.prepare(module, args=(x,))
    for rows in (48, 7, 2):
        torch.testing.assert_close(prepared(x[:rows]), module(x[:rows]), rtol=2e-3, atol=2e-3)
    with pytest.raises(UsageError, match=r"'x' has shape \(1, 16\): .* from 2: let more dimensions vary"):
        prepared(x[:1])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((torch.zeros(3, 15), torch.zeros(3, 1)), r"'x' has shape \(3, 15\)"),
        ((torch.zeros(3, 16), torch.zeros(4, 1)), r"'mask' has shape \(4, 1\)"),
        ((torch.zeros(0, 16), torch.zeros(0, 1)), "from 1"),
        ((torch.zeros(3, 16).double(), torch.zeros(3, 1)), "'x' is torch.float64"),
        ((torch.zeros(3, 16), torch.zeros(3, 1), 2.0), "'scale' is 2.0: the program was captured with 0.5"),
        ((torch.zeros(3, 16), torch.zeros(3, 1), torch.ones(())), "'scale' is a tensor"),
        ((torch.zeros(3, 16), None, 0.5), "'mask' is NoneType|not built like"),
    ],
)
def test_what_a_program_was_not_captured_for_is_refused(args: tuple[object, ...], words: str) -> None:
    prepared = training.prepare(PerRow(), args=(data()[0], torch.ones(48, 1), 0.5))
    if len(args) == 2:
        args = (*args, 0.5)
    with pytest.raises(UsageError, match=words):
        prepared(*args)


def test_names_and_checkpoints_are_those_of_the_module() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    prepared = training.prepare(module, args=(torch.randn(8, 1, 4, 4),))
    assert list(prepared.state_dict()) == list(module.state_dict())
    assert [n for n, _ in prepared.named_parameters()] == [n for n, _ in module.named_parameters()]
    assert [n for n, _ in prepared.named_buffers()] == [n for n, _ in module.named_buffers()]
    changed = {k: v + 1 for k, v in module.state_dict().items()}
    prepared.load_state_dict(changed)
    assert all(torch.equal(v, changed[k]) for k, v in module.state_dict().items())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_independent(copied: Callable[[nn.Module], nn.Module]) -> None:
    x = data()[0]
    prepared = training.prepare(net(), args=(x,))
    other = copied(prepared)
    assert torch.equal(other(x), prepared(x))
    before = prepared(x)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    assert torch.equal(prepared(x), before)
    assert not torch.equal(other(x), before)
    averaged = torch.optim.swa_utils.AveragedModel(prepared)
    averaged.update_parameters(prepared)
    assert torch.equal(averaged(x), before)


def test_tied_weights_get_the_gradient_of_both_uses() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embedding, self.out = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
            self.out.weight = self.embedding.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.out(self.embedding(ids))  # type: ignore[no-any-return]

    module, ids = Tied(), torch.arange(10)
    F.cross_entropy(module(ids), ids).backward()
    wanted = module.out.weight.grad.clone()
    module.zero_grad()
    prepared = training.prepare(module, args=(ids,))
    assert len(list(prepared.parameters())) == 1
    F.cross_entropy(prepared(ids), ids).backward()
    torch.testing.assert_close(module.out.weight.grad, wanted, rtol=5e-3, atol=1e-3)


def test_frozen_parts_stay_frozen_and_can_thaw() -> None:
    module = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).train()
    module[0].requires_grad_(False)
    module[1].eval()
    x = data()[0] + 3.0
    prepared = training.prepare(module, args=(x,))
    assert [m.training for m in module] == [True, False, True]
    prepared(x).sum().backward()
    assert module[0].weight.grad is None
    assert float(module[1].running_mean.abs().sum()) == 0.0
    module[0].requires_grad_(True)
    prepared(x).sum().backward()
    assert module[0].weight.grad is not None


def test_batch_statistics_follow_fp32() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)).train()
    module = copy.deepcopy(plain)
    batches = torch.randn(5, 8, 1, 4, 4, generator=torch.Generator().manual_seed(0)) * 3 + 2
    prepared = training.prepare(module, args=(batches[0],)).train()
    for batch in batches:
        plain(batch)
        prepared(batch)
    for wanted, got in zip(plain[1].buffers(), module[1].buffers(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-3, atol=2e-3)
    prepared.eval()
    assert not module[1].training
    torch.testing.assert_close(prepared(batches[0]), plain.eval()(batches[0]), rtol=5e-3, atol=5e-3)


def test_the_scaler_skips_a_step_that_overflows() -> None:
    x, y = data()
    module = net()
    prepared = training.prepare(module, args=(x,))
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    before = module[0].weight.detach().clone()
    scaler.scale(F.cross_entropy(prepared(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(module[0].weight, before)
    assert scaler.get_scale() == 2.0**39


def test_training_goes_as_with_autocast() -> None:
    """Fifty steps, two batches added up each, the last one smaller: as close to FP32 as autocast is."""
    x, y = data()

    def losses(way: str) -> list[float]:
        module = net().train()
        runner = training.prepare(module, args=(x,)) if way == "prepared" else module
        optimizer = torch.optim.SGD(module.parameters(), lr=0.3, momentum=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=way != "fp32")
        found = []
        for _ in range(50):
            optimizer.zero_grad()
            total = 0.0
            for rows in (slice(0, 32), slice(32, 48)):
                with torch.autocast("cpu", torch.float16, enabled=way == "autocast"):
                    loss = F.cross_entropy(runner(x[rows]).float(), y[rows]) / 2
                scaler.scale(loss).backward()
                total += float(loss.detach())
            scaler.step(optimizer)
            scaler.update()
            found.append(total)
        return found

    reference, ours, theirs = (torch.tensor(losses(way)) for way in ("fp32", "prepared", "autocast"))
    assert reference[-1] < 0.3 * reference[0]
    off = (ours - reference).abs() / reference
    assert float(off.max()) <= max(0.02, 2 * float(((theirs - reference).abs() / reference).max()))


class Changes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1.0)
        return x * 2.0


def test_bad_calls_are_explained() -> None:
    with pytest.raises(UsageError, match="example inputs"):
        training.prepare(net())
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        with pytest.raises(UsageError, match=f"is {str(dtype)[6:]}: give the FP32 module"):
            training.prepare(net().to(dtype), args=(data()[0].to(dtype),))
    with pytest.raises(UsageError, match="changes its input"):
        training.prepare(Changes(), args=(data()[0],))
    prepared = training.prepare(net(), args=(data()[0],))
    with pytest.raises(UsageError, match="not built like"):
        prepared(data()[0], data()[0])
