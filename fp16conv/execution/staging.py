"""Bring an onnx_ir model into a form a runtime can load, without touching the folder its weights come from."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

__all__ = ["INLINE_LIMIT", "stage_model"]

INLINE_LIMIT = 64 * 2**20  # bytes of weights up to which a model travels in memory (protobuf's limit is 2 GiB)
_SMALL = 1024  # bytes: smaller tensors stay inline, ONNX Runtime reads some of them while it loads


def stage_model(model: ir.Model, folder: Path, *, inline_limit: int = INLINE_LIMIT) -> bytes | Path:
    """Serialize a model that a runtime can load.

    Weights stream one tensor at a time into `folder`; the model itself stays as it was.

    Args:
        model: any model; its tensors may be memory mapped or lazy.
        folder: made if needed; must be ours alone.
        inline_limit: bytes of weights up to which the result is one string of bytes.

    Returns:
        The serialized model, or the path of one whose weights lie beside it.
    """
    tensors = [
        value.const_value
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
    ]
    external = any(isinstance(tensor, ir.ExternalTensor) for tensor in tensors)
    if not external and sum(tensor.nbytes for tensor in tensors) <= inline_limit:
        return ir.to_proto(model).SerializeToString()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    ir.save(model, path, external_data="weights.bin", size_threshold_bytes=_SMALL)
    return path
