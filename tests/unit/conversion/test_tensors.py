"""Tensors read as FP16: written in pieces, they are the same numbers."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from fp16conv.conversion import tensors
from fp16conv.conversion.tensors import Fp16Tensor


@pytest.mark.parametrize("saturating", [False, True])
@pytest.mark.parametrize("excess", [0, 3])
def test_pieces_are_written_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saturating: bool, excess: int
) -> None:
    monkeypatch.setattr(tensors, "PIECE", 1 << 10)
    numbers = np.random.default_rng(0).standard_normal(20 * (1 << 10) + excess).astype(np.float32)
    numbers[5] = 1e6
    tensor = Fp16Tensor(ir.Tensor(numbers), saturating=saturating)
    with (tmp_path / "data").open("wb") as file:
        tensor.tofile(file)
    assert (tmp_path / "data").read_bytes() == tensor.numpy().tobytes()
