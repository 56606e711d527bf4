"""Architectures of transformers with random weights: converted, close to FP32, and decided as their export.

`python -m tests.fx.test_transformers` prints the table in docs/pytorch.md, for all architectures.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from functools import cache
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a configuration must never send anyone to the network
pytest.importorskip("transformers", reason="transformers is not installed (pip install -e '.[test]')")

from fp16conv import fx
from fp16conv.errors import ModelError
from fp16conv.frontends.fx.program import LoadedProgram
from tests.fx.agreement import WHOLE, compare
from tests.fx.hub import ARCHITECTURES, build
from tests.fx.requirements import require_good

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export warns about itself

QUICK = (
    "gpt2-cached",
    "llama",
    "gemma",
    "bert",
    "t5-eager",
    "whisper-encoder",
    "wav2vec2",
    "convnext",
)
COMPARED = 0.7
"""Share of operators that is compared at least; the rest are copies and what export folds into constants."""


@cache
def loaded(name: str) -> LoadedProgram:
    return fx.load(*build(name))


@pytest.mark.parametrize("name", QUICK)
def test_products_run_in_fp16_and_the_error_is_small(name: str) -> None:
    require_good(fx.convert_module(loaded(name)))


@pytest.mark.parametrize("name", QUICK)
def test_export_is_decided_the_same(name: str) -> None:
    agreement = compare(loaded(name), opset=WHOLE)
    assert agreement.verdicts == ()
    assert agreement.unexplained == ()
    assert agreement.share >= COMPARED, agreement.apart


def _row(name: str) -> str:
    program = loaded(name)
    half = fx.analyze(program).half
    conversion = fx.convert_module(program)
    assert conversion.result is not None
    predicted, outcome = conversion.plan.predicted, f"{half.rel_l2 or 0:.1e}"
    if half.error or half.finite is False:
        outcome = "raises" if half.error else "not finite"
    cells: list[Any] = [name, f"{conversion.result.relative_l2:.1e}", outcome]
    cells += [f"{predicted['macs_fp16_share']:.0%}", f"{predicted['casts']:.0f}"]
    try:
        agreement = compare(program, opset=WHOLE)
    except ModelError:
        cells.append("torch.onnx fails")
    else:
        assert not agreement.verdicts, agreement.verdicts
        assert not agreement.unexplained, agreement.unexplained
        differing = len(agreement.precisions)
        total = len(agreement.compared) + len(agreement.apart)
        cells.append(f"{len(agreement.compared) - differing} of {len(agreement.compared)} ({total})")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    for architecture in ARCHITECTURES:
        sys.stdout.write(f"{_row(architecture)}\n")
        sys.stdout.flush()
