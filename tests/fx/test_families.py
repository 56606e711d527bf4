"""Nets of the usual families: converted, run on torch's half kernels, and close to FP32."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from fp16conv import fx
from fp16conv.execution.fx import run_program
from fp16conv.frontends.fx.importer import digest_of
from fp16conv.frontends.fx.program import LoadedProgram
from tests.fx.nets import FAMILIES, build
from tests.fx.requirements import ERROR, require_good

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about itself


@cache
def loaded(name: str) -> LoadedProgram:
    return fx.load(*build(name))


@cache
def converted(name: str) -> fx.Conversion:
    return fx.convert_module(loaded(name))


@pytest.mark.parametrize("name", FAMILIES)
def test_products_run_in_fp16_and_the_error_is_small(name: str) -> None:
    require_good(converted(name))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_products_really_hold_halves(name: str) -> None:
    """Not by our own book-keeping: by what the calls are given when they run."""
    program, plain = converted(name).program, loaded(name)
    assert plain.example is not None
    seen = []

    def look(node: torch.fx.Node, result: object) -> None:
        names = ("linear", "conv", "matmul", "lstm", "scaled_dot_product")
        if str(node.target).removeprefix("aten.").startswith(names):
            first = result[0] if isinstance(result, tuple | list) else result
            seen.append(first.dtype)

    run_program(program, plain.example, look)
    assert seen
    assert set(seen) == {torch.float16}


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_the_result_is_a_module_that_runs(name: str) -> None:
    module, args = build(name)
    expected = torch.utils._pytree.tree_leaves(module(*args))
    given = torch.utils._pytree.tree_leaves(converted(name).module(*args))
    assert len(expected) == len(given)
    for a, b in zip(expected, given, strict=True):
        assert b.dtype is a.dtype
        assert float((a - b).norm() / a.norm()) <= ERROR


@pytest.mark.parametrize("name", ["vit", "gpt"])
def test_save_and_load_keep_every_bit(name: str, tmp_path: Path) -> None:
    program = converted(name).program
    torch.export.save(program, tmp_path / "half.pt2")
    again = fx.load(tmp_path / "half.pt2")
    assert loaded(name).example is not None
    first = run_program(program, loaded(name).example)
    second = run_program(again.program, loaded(name).example)
    for position, array in first.outputs.items():
        np.testing.assert_array_equal(array, second.outputs[position])


@pytest.mark.parametrize("name", ["gpt", "unet"])
def test_the_source_is_untouched_and_the_same_plan_comes_again(name: str) -> None:
    program = loaded(name)
    before = digest_of(program.program)
    first, second = converted(name), fx.convert_module(program)
    assert digest_of(program.program) == before == program.graph.digest
    assert first.plan == second.plan
    assert digest_of(first.program) == digest_of(second.program)


@pytest.mark.parametrize("name", ["vit", "llama"])
def test_converting_the_result_again_changes_nothing(name: str) -> None:
    first = converted(name).program
    again = fx.convert_module(first)
    assert again.plan.predicted["casts"] == 0
    halves = [k for k, t in first.state_dict.items() if t.dtype is torch.float16]
    assert halves == [k for k, t in again.program.state_dict.items() if t.dtype is torch.float16]


def test_weights_shrink() -> None:
    predicted = converted("vit").plan.predicted
    assert predicted["weight_bytes_after"] < 0.55 * predicted["weight_bytes_before"]


def test_tied_weights_stay_one_tensor() -> None:
    stored = [t for t in converted("gpt").program.state_dict.values() if t.shape == (100, 64)]
    assert len({(t.data_ptr(), t.dtype) for t in stored}) == len({t.dtype for t in stored})
