"""The audit of a training, against brute force, and on trainings that are built in unusual ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from fp16conv import training
from fp16conv.errors import UsageError, ValidationError
from tests.fx.nets import classifier as net
from tests.fx.nets import classifier_data as data

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns about sparse tensors and hooks


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, target)


class Tied(nn.Module):
    """An embedding that is the output layer too, batch statistics, functional calls, a branch never used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, 8)
        self.hidden, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.back, self.unused = nn.Linear(16, 8), nn.Linear(3, 3)
        self.out = nn.Linear(8, 20)
        self.out.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.embedding(ids).mean(1)
        mixed = torch.relu(self.norm(self.hidden(rows))) + torch.tanh(rows @ torch.ones(8, 16))
        return self.out(self.back(mixed))  # type: ignore[no-any-return]


def tied_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 20, (3, 32, 5), generator=generator)
    return [(batch, torch.randint(0, 20, (32,), generator=generator)) for batch in ids]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e4, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4, eps=1e-20),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_number_is_that_of_brute_force(name: str) -> None:
    """Scale, cast with numpy, count: the same windows, shares, histograms and lost updates."""

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, target) * 1e-6

    audited = Tied()
    found = training.audit(audited, loss, tied_batches(), optimizer=OPTIMIZERS[name](audited.parameters()))
    gradients: dict[str, list[Any]] = {}
    lost: dict[str, list[Any]] = {}
    module = Tied()
    weights = {n: p.detach().clone() for n, p in module.named_parameters()}
    optimizer = OPTIMIZERS[name](module.parameters())
    for ids, target in tied_batches():
        optimizer.zero_grad()
        loss(module(ids), target).backward()
        optimizer.step()
        for n, p in module.named_parameters():
            if p.grad is None:
                continue
            gradients.setdefault(n, []).append(p.grad.numpy().astype(np.float64).ravel())
            step = (p.detach() - weights[n]).numpy()
            gone = (np.abs(step) < 2.0**-11 * np.abs(weights[n].numpy())) | (np.abs(step) <= 2.0**-25)
            lost.setdefault(n, []).append(gone[(p.grad.numpy() != 0) | (step != 0)])
            with torch.no_grad():
                p.copy_(weights[n])
    facts = {f.name: f for f in found.gradients if f.kind == "parameter"}
    assert set(facts) - set(gradients) == {"unused.weight", "unused.bias"}
    for n, parts in gradients.items():
        values = np.concatenate(parts)
        values = values[values != 0]
        with np.errstate(over="ignore"):
            halves = {k: (values * 2.0**k).astype(np.float16) for k in range(-60, 60)}
            finite = [k for k in halves if np.isfinite((2 * values * 2.0**k).astype(np.float16)).all()]
        rescued = [k for k, half in halves.items() if (half == 0).mean() <= 1e-3]
        fact = facts[n]
        assert fact.window == training.ScaleWindow(min(rescued), max(finite))
        assert fact.share_zeroed == pytest.approx(float((halves[0] == 0).mean()), abs=1e-12)
        left = float((halves[found.window.recommended] == 0).mean())
        assert fact.share_left == pytest.approx(left, abs=1e-12)
        assert fact.share_lost == pytest.approx(float(np.concatenate(lost[n]).mean()), abs=1e-12)
        exponents = np.clip(np.floor(np.log2(np.abs(values))).astype(int), -40, 40)
        assert np.array_equal(fact.histogram, np.bincount(exponents + 40, minlength=81))
    assert 0.0 < found.share_lost < 1.0 or name == "sgd"
    assert facts["unused.weight"].window is None
    assert facts["unused.weight"].share_lost is None


def test_every_value_of_the_forward_pass_has_a_name() -> None:
    found = training.audit(Tied(), loss_of, tied_batches())
    names = [f.name for f in found.gradients if f.kind == "activation"]
    assert names == ["embedding", "mean", "hidden", "norm", "relu", "matmul", "tanh", "add", "back", "out"]


def test_values_inside_of_modules_are_seen() -> None:
    class Attention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = (x @ x.transpose(1, 2)) * 1e4
            scores = scores.masked_fill(torch.ones(3, 3).triu(1).bool(), float("-inf"))
            y = scores.softmax(-1) @ x
            return y.reshape(2, 12).relu_()

    module = nn.Sequential(nn.Linear(4, 4), Attention(), nn.Flatten(), nn.Linear(12, 2))
    with torch.no_grad():
        module[0].weight.mul_(100.0)
    batch = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1])
    found = training.audit(module, loss_of, [batch])
    names = [f.name for f in found.gradients if f.kind == "activation"]
    assert names == ["0", "1:matmul", "1:mul", "1:masked_fill", "1:softmax", "1:matmul.2", "1", "3"]
    assert list(found.overflowing) == ["1:mul", "1:masked_fill"]
    assert all(np.isfinite(v) for v in found.overflowing.values())
    assert found.autocast_fp32 == {"cross_entropy": 1, "softmax": 1}


def test_a_repeated_module_is_one_and_checkpoints_change_nothing() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.step, self.head = nn.Sequential(nn.Linear(16, 16), nn.Tanh()), nn.Linear(16, 4)
            self.is_checkpointed = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                x = checkpoint(self.step, x, use_reentrant=False) if self.is_checkpointed else self.step(x)
            return self.head(x)  # type: ignore[no-any-return]

    module = Twice()
    plain = training.audit(module, loss_of, [data()])
    module.is_checkpointed = True
    saved = training.audit(module, loss_of, [data()])
    assert [f.name for f in plain.gradients if f.kind == "activation"] == ["step.0", "step.1", "head"]
    assert [(f.name, f.count, f.window) for f in plain.gradients] == [
        (f.name, f.count, f.window) for f in saved.gradients
    ]
    assert {f.name: f.count for f in plain.gradients}["step.1"] == 2 * 48 * 16


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x[:, None], x[:, None], x[:, None])[0].squeeze(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("first", "seen"),
    [
        (lambda: torch.compile(nn.Linear(16, 16), backend="eager"), ["0._orig_mod"]),
        (lambda: torch.jit.script(nn.Linear(16, 16)), []),  # no calls to look at, no hooks
        (Attending, ["0.attention"]),  # whose result is a view of one call's
    ],
)
def test_modules_that_are_no_plain_python(first: Callable[[], nn.Module], seen: list[str]) -> None:
    found = training.audit(nn.Sequential(first(), nn.Linear(16, 4)), loss_of, [data()])
    assert [f.name for f in found.gradients if f.kind == "activation"] == [*seen, "1"]
    assert all(f.count for f in found.gradients if f.name.endswith("weight"))


def test_sparse_gradients_are_counted_like_dense_ones() -> None:
    def embed(sparse: bool) -> training.TrainAudit:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Embedding(50, 6, sparse=sparse), nn.Flatten(), nn.Linear(12, 4))
        ids = torch.arange(16).reshape(8, 2) // 3
        return training.audit(module, loss_of, [(ids, torch.arange(8) % 4)])

    assert embed(True).describe() == embed(False).describe()


@pytest.mark.parametrize("form", ["tuple", "list", "dict", "loader", "generator"])
def test_batches_come_in_many_forms(form: str) -> None:
    class Sum(nn.Linear):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward(left + right)

    torch.manual_seed(0)
    x, y = data()
    batches: Any = {
        "tuple": [((x, x), y)],
        "list": [[[x, x], y]],
        "dict": [({"right": x, "left": x}, y)],
        "loader": DataLoader(TensorDataset(x, y), batch_size=48),
        "generator": (pair for pair in [((x, x), y)]),
    }[form]
    module = nn.Linear(16, 4) if form == "loader" else Sum(16, 4)
    assert training.audit(module, loss_of, batches).gradients[0].count == 64


def test_no_more_batches_are_taken_than_asked() -> None:
    taken = 0

    def endless() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        nonlocal taken
        while True:
            taken += 1
            yield data()

    assert training.audit(net(), loss_of, endless(), limit=3).batches == taken == 3


def test_random_numbers_are_the_same_each_time() -> None:
    module = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.5), nn.Linear(32, 4))
    state = torch.get_rng_state()
    first = training.audit(module, loss_of, [data()])
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(5)
    assert training.audit(module, loss_of, [data()]).losses == first.losses


class Changing(nn.Module):
    """Puts another tensor where a buffer was, and one where none was."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return self.linear(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("fails", [False, True])
def test_all_is_as_it_was(fails: bool) -> None:
    module = nn.Sequential(Changing(), nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    module.train()[2].eval()  # frozen
    F.cross_entropy(module(data()[0]), data()[1]).backward()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    optimizer.step()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    gradients = [p.grad for p in module.parameters()]
    steps = optimizer.state_dict()["state"][0]["step"].clone()

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return F.cross_entropy(output, target) * (float("nan") if fails and calls == 2 else 1.0)

    calls = 0
    if fails:
        with pytest.raises(ValidationError, match="no finite number"):
            training.audit(module, loss, [data(), data()], optimizer=optimizer)
    else:
        training.audit(module, loss, [data(), data()], optimizer=optimizer)
    assert [m.training for m in module.modules()] == [True, True, True, True, False]
    assert set(module.state_dict()) == set(before)
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert all(p.grad is g for p, g in zip(module.parameters(), gradients, strict=True))
    assert torch.equal(optimizer.state_dict()["state"][0]["step"], steps)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


def test_the_scaled_loss_stays_an_fp32_number() -> None:
    """Gradients of 2^-120 would bear a scale of 2^134; GradScaler's is an FP32 number, and so is the loss."""
    found = training.audit(Scaled(1.0), lambda out, _: out * 2.0**-120 + 5.0, [(torch.ones(4), None)])
    assert found.window == training.ScaleWindow(96, 124)
    assert np.isfinite(np.float32(5.0) * np.float32(found.loss_scale))


def test_layers_that_the_common_scale_leaves_behind_are_told() -> None:
    module = nn.ModuleDict({"large": Scaled(1.0), "small": Scaled(2.0**-40)})

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.parts["large"](x.repeat(4096, 1)) + self.parts["small"](x)  # type: ignore[no-any-return]

    found = training.audit(Both(), lambda out, _: out, [(torch.ones(4), None)])
    left = {f.name: f.share_left for f in found.gradients}
    assert found.window.is_open
    assert left["parts.small.weight"] == 1.0
    assert left["parts.large.weight"] == 0.0


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


X, Y = data()


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([], "there is no batch"),
        ([X], "a batch is a Tensor"),
        ([(X, Y, Y)], "a batch is a tuple of 3"),
        ([{"x": X, "labels": Y}], "a batch is a dict"),
    ],
)
def test_batches_that_are_none(batches: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        training.audit(net(), loss_of, batches)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda out, _: out.sum() * float("nan"), "no finite number"),
        (lambda out, _: out, "no scalar tensor"),
        (lambda _out, _: 1.5, "no scalar tensor"),
        (lambda out, _: out.sum().detach(), "backward pass does not run"),
        (lambda out, y: F.cross_entropy(out, y[:3]), "does not run"),
        (lambda out, _: (out * 0).sum().sqrt(), "weight: a gradient is not finite"),
    ],
)
def test_losses_that_are_none(loss: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        training.audit(net(), loss, [data()])


def test_modules_and_optimizers_that_are_refused() -> None:
    with pytest.raises(UsageError, match="is bfloat16"):
        training.audit(net().bfloat16(), loss_of, [data()])
    with pytest.raises(UsageError, match="no parameter"):
        training.audit(net().requires_grad_(False), loss_of, [data()])
    module = net()
    with pytest.raises(ValidationError, match="LBFGS makes no step"):
        training.audit(module, loss_of, [data()], optimizer=torch.optim.LBFGS(module.parameters()))
