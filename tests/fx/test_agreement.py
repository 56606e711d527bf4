"""One module on two ways, as an FX graph and as ONNX: the same class and the same precision everywhere."""

from __future__ import annotations

from functools import cache

import pytest

from fp16conv import fx
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.graph import DataType
from fp16conv.rulebook.types import Verdict
from tests.fx.agreement import WHOLE, Agreement, compare
from tests.fx.nets import FAMILIES, build

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export and torch.onnx warn about themselves


@cache
def loaded(name: str) -> LoadedProgram:
    return fx.load(*build(name))


@cache
def agreement_of(name: str, opset: int | None = None) -> Agreement:
    return compare(loaded(name), opset=opset)


PRODUCTS = {"resnet": 8, "vit": 12, "gpt": 13, "lstm": 1, "unet": 5, "llama": 17}
"""Products that must be among what is compared, so that the comparison cannot become empty."""

SHARE = {"lstm": 0.5, "resnet": 0.65, "unet": 0.6}
"""How much is compared at least, 0.8 else: a recurrent net's states are arranged by operators of ONNX's own,
batch norms disappear in convolutions, SiLU and group norm are written out."""


@pytest.mark.parametrize("name", FAMILIES)
def test_same_operators_have_the_same_precision(name: str) -> None:
    """From this opset on export keeps norms and attention whole: the graphs differ in details only."""
    agreement = agreement_of(name, WHOLE)
    assert agreement.verdicts == ()
    assert agreement.precisions == ()
    assert agreement.share >= SHARE.get(name, 0.8), agreement.apart
    products = [d for _, _, d, _ in agreement.compared if d.verdict is Verdict.ALLOW]
    assert len(products) >= PRODUCTS[name]
    assert {d.dtype for d in products} == {DataType.FLOAT16}


@pytest.mark.parametrize("name", FAMILIES)
def test_whatever_export_takes_apart_rules_decide_the_same(name: str) -> None:
    """At the exporter's own opset: RMS norms, group norms and attention are written out."""
    agreement = agreement_of(name)
    assert agreement.verdicts == ()
    assert agreement.unexplained == ()
    assert agreement.share >= SHARE.get(name, 0.75), agreement.apart


def test_what_is_not_compared_has_a_reason() -> None:
    agreement = agreement_of("llama")
    reasons = {op.op_type: reason for op, reason in agreement.apart}
    assert reasons["rms_norm.default"] == "not in the export"
    assert reasons["silu.default"] == "becomes Sigmoid, Mul"
    assert agreement.precisions != ()  # the planner's casts around norms that only one graph has
    assert all("infer" in text or "follow" in text for text in agreement.precisions)
