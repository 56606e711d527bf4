"""Models on their way to a runtime: where their weights go, and what is said where there is no room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from fp16conv.errors import ConversionError
from fp16conv.execution.staging import share_weights, stage_model


@pytest.fixture
def model() -> ir.Model:
    """One weight of 64 KiB, which nothing reads."""
    tensor = ir.tensor(np.zeros(1 << 14, np.float32), name="w")
    weight = ir.Value(name="w", shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph = ir.Graph([], [], nodes=[], initializers=[weight], opset_imports={"": 17}, name="g")
    return ir.Model(graph, ir_version=8)


@pytest.mark.parametrize("write", [stage_model, share_weights])
def test_no_room_names_the_folder_and_what_sets_it(
    model: ir.Model, tmp_path: Path, small_files: int, write: Callable[..., object]
) -> None:
    with pytest.raises(ConversionError, match=r"no room for the weights.*TMPDIR") as caught:
        write(model, tmp_path, inline_limit=0)
    assert str(tmp_path) in str(caught.value)


def test_small_weights_travel_with_the_model(model: ir.Model, tmp_path: Path) -> None:
    assert isinstance(stage_model(model, tmp_path), bytes)
    assert isinstance(share_weights(model, tmp_path).write(model), bytes)
    assert list(tmp_path.iterdir()) == []


def test_variants_share_the_weights(model: ir.Model, tmp_path: Path) -> None:
    shared = share_weights(model, tmp_path, inline_limit=0)
    first, second = shared.write(model), shared.write(model)
    assert isinstance(first, Path)
    assert isinstance(second, Path)
    assert sorted(p.name for p in first.parent.iterdir()) == ["model0.onnx", "model1.onnx", "weights.bin"]
    shared.close()
    assert list(tmp_path.iterdir()) == []
