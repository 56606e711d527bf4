"""Tensors read as FP16: read in pieces, they are the same numbers."""

import numpy as np
import onnx_ir as ir
import pytest

from fp16conv.conversion.tensors import Fp16Tensor
from fp16conv.graph import pieces


@pytest.mark.parametrize("saturating", [False, True])
@pytest.mark.parametrize("excess", [0, 3])
def test_chunks_are_the_numbers_in_order(
    monkeypatch: pytest.MonkeyPatch, saturating: bool, excess: int
) -> None:
    monkeypatch.setattr(pieces, "PIECE", 1 << 10)
    numbers = np.random.default_rng(0).standard_normal(20 * (1 << 10) + excess).astype(np.float32)
    numbers[5] = 1e6
    tensor = Fp16Tensor(ir.Tensor(numbers), saturating=saturating)
    assert b"".join(tensor.chunks()) == tensor.numpy().tobytes()
