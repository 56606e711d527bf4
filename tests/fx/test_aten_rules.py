"""Every rule about ATen calls does what its examples say, and every call that matters has one class."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from fp16conv import fx
from fp16conv.graph import ModelGraph
from fp16conv.rulebook.book import load_book
from fp16conv.rulebook.families import FAMILIES
from fp16conv.rulebook.judge import judge
from fp16conv.rulebook.patterns import match_patterns
from fp16conv.rulebook.schema import Example, Rule, RuleKind
from fp16conv.rulebook.types import Verdict

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about itself

BOOK = load_book()
ATEN = [r for r in BOOK.rules if r.file.startswith("aten/")]

# ATen/autocast_mode.h of torch 2.13, CUDA: what users know as autocast's lists.
LOWER_PRECISION = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
    "_convolution",
    "cudnn_convolution",
    "cudnn_convolution_transpose",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linalg_vecdot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "_scaled_dot_product_flash_attention",
    "scaled_dot_product_attention",
]
FP32 = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "frobenius_norm",
    "nuclear_norm",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "prod",
    "softmax",
    "log_softmax",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "sum",
    "norm",
]
INTERPOLATIONS = [
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
]
PROMOTE = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
]


def program(text: str) -> ModelGraph:
    """`(float[2,3] x, int[4] i) => aten.relu.default(x)` as a graph."""
    head, _, expression = text.partition("=>")
    declared = re.findall(r"(float|int)\[([\d,]*)\] (\w+)", head)
    names = [name for _, _, name in declared]
    scope: dict[str, Any] = {"aten": torch.ops.aten, "torch": torch}
    exec(f"def forward(self{''.join(', ' + n for n in names)}): return {expression.strip()}", scope)
    module = type("Call", (torch.nn.Module,), {"forward": scope["forward"]})()
    args = tuple(
        torch.rand(tuple(map(int, dims.split(",")))) + 0.5
        if kind == "float"
        else torch.zeros(tuple(map(int, dims.split(","))), dtype=torch.int64)
        for kind, dims, _ in declared
    )
    return fx.load(module, args).graph


def fired(rule: Rule, example: Example) -> bool:
    verdicts = judge(program(example.graph), BOOK, {}, target="torch-cuda")
    return any(rule.id in {r.rule for r in j.reasons} for j in verdicts.judgements)


CASES = [
    pytest.param(rule, example, id=f"{rule.id}-{i}")
    for rule in ATEN
    for i, example in enumerate(rule.examples)
]


@pytest.mark.parametrize(("rule", "example"), CASES)
def test_rule_fires_on_its_flagged_examples_only(rule: Rule, example: Example) -> None:
    assert fired(rule, example) == example.flagged


def test_every_name_is_a_real_overload() -> None:
    for key in {key for rule in ATEN for key in rule.match.op} | set(FAMILIES):
        name, _, overload = key.removeprefix("aten::").partition(".")
        assert hasattr(getattr(torch.ops.aten, name), overload), key


def test_every_core_operator_has_a_class() -> None:
    missing = []
    for name in (n for n in dir(torch.ops.aten) if not n.endswith("_")):  # functional programs only
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            key = f"aten::{name}.{overload}"
            if torch.Tag.core in getattr(packet, overload).tags and BOOK.base_rule(key) is None:
                missing.append(f"{name}.{overload}")
    assert missing == []


def classes(name: str) -> set[str]:
    packet = getattr(torch.ops.aten, name)
    rules = [BOOK.base_rule(f"aten::{name}.{overload}") for overload in packet.overloads()]
    return {str(rule.verdict) for rule in rules if rule is not None}


@pytest.mark.parametrize("name", LOWER_PRECISION)
def test_what_autocast_runs_in_fp16_may_run_in_fp16(name: str) -> None:
    assert classes(name) == ({"infer"} if name == "prelu" else {"allow"})


@pytest.mark.parametrize("name", FP32)
def test_what_autocast_keeps_in_fp32_stays_fp32(name: str) -> None:
    assert classes(name) == {"deny"}


@pytest.mark.parametrize("name", [*INTERPOLATIONS, *PROMOTE])
def test_the_rest_of_autocasts_lists_has_a_class(name: str) -> None:
    expected = "deny" if name == "grid_sampler" else "follow" if "nearest" in name else "infer"
    assert classes(name) == {expected}


def test_binary_cross_entropy_is_banned() -> None:
    assert classes("binary_cross_entropy") == {"never"}


def test_composites_are_judged_whole() -> None:
    graph = program("(float[2,8] x) => aten.rms_norm.default(aten.softplus.default(x), [8])")
    assert [op.op_type for op in graph.ops] == ["softplus.default", "rms_norm.default"]


def test_relaxed_classes_name_one_kernel() -> None:
    relaxed = {r.id for r in ATEN if r.relaxed is not None}
    assert relaxed == {
        "aten-softmax-overflow",
        "aten-softplus-underflow",
        "aten-long-mean",
        "aten-layer-norm-statistics",
    }
    assert all(r.kind is RuleKind.BASE for r in ATEN if r.relaxed is not None)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("(float[2] x, float[2] v) => aten.div.Tensor(x, aten.add.Tensor(v, 1e-12))", "eps-underflow"),
        ("(float[2] x) => aten.mul.Tensor(x, 1e6)", "constant-overflow"),
        ("(float[2] x) => aten.add.Tensor(x, 7681.0)", "inexact-integer-constant"),
    ],
)
def test_rules_about_numbers_hold_for_literals_of_calls(text: str, rule: str) -> None:
    graph = program(text)
    verdicts = judge(graph, BOOK, {}, target="torch-cuda")
    hit = [j for j in verdicts.judgements if rule in {r.rule for r in j.reasons}]
    assert hit
    assert all(j.verdict is Verdict.DENY for j in hit)


@pytest.mark.parametrize(
    ("text", "pattern", "count"),
    [
        (
            "(float[2,8] x) => x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)",
            "decomposed-rms-norm",
            5,
        ),
        (
            "(float[2,8] x) => x / torch.sqrt(aten.square.default(x).mean(-1, True) + 1e-6)",
            "decomposed-rms-norm",
            5,
        ),
        (
            "(float[2,8] x) => (x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()",
            "decomposed-layer-norm",
            6,
        ),
        ("(float[2,8] x) => (lambda e: e / e.sum(-1, True))(x.exp())", "decomposed-softmax", 3),
        ("(float[2,8] x) => torch.log(x.exp().sum(-1))", "log-sum-exp", 3),
        ("(float[2,8] x) => x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)", "decomposed-l2-norm", 3),
        (
            "(float[2,8] s, int[2,1] m) => torch.softmax(s + (1 - m.float()) * -1e9, -1)",
            "additive-attention-mask",
            2,
        ),
        ("(float[2,8] s, int[2,1] m) => torch.softmax(s.masked_fill(m == 0, -1e9), -1)", None, 0),
        ("(int[8] p) => torch.sin(p.float()[:, None] * 0.5)", "angle-path", 4),
        ("(float[2,8] x, float[2] v) => x[:, :2] / (v + 1e-12)", "epsilon-guard", 2),
    ],
)
def test_patterns_match_calls_whatever_their_names_and_operands(
    text: str, pattern: str | None, count: int
) -> None:
    """Idioms are written once, with ONNX's names: rsub, masked_fill and pow are what they are there."""
    graph = program(text)
    hits = [h for h in match_patterns(graph, BOOK.patterns, {}) if h.verdict is Verdict.DENY]
    if pattern is None:
        assert [h.rule for h in hits] == []
        return
    marked = {graph.typevars[tv].op for h in hits if h.rule == pattern for tv in h.typevars}
    assert len(marked) == count, hits


@pytest.mark.parametrize(
    "text",
    [
        "(float[2,4] x) => aten.softmax.int(aten.masked_fill.Scalar(x, aten.gt.Scalar(x, 1.0), -1e9), -1)",
        "(float[2] x) => aten.clamp.default(x, -3.4e38, 1.0)",
        (
            "(float[2,4] x) => aten.softmax.int(aten.where.self(aten.gt.Scalar(x, 1.0), x, "
            "aten.full.default([], -3.4e38)), -1)"
        ),
    ],
)
def test_literals_that_act_as_infinity_saturate(text: str) -> None:
    graph = program(text)
    saturated = judge(graph, BOOK, {}, target="torch-cuda").saturated
    assert [float(graph.array(v)) for v in saturated if graph.array(v) is not None] != []
