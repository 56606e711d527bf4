"""Bring an onnx_ir model into a form a runtime can load; the folder its weights come from stays untouched."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from fp16conv.errors import ConversionError

__all__ = ["INLINE_LIMIT", "SharedWeights", "share_weights", "stage_model"]

INLINE_LIMIT = 64 * 2**20  # bytes of weights up to which a model travels in memory
_SMALL = 1024  # bytes: smaller tensors stay inline, ONNX Runtime reads some of them while it loads
_WEIGHTS = "weights.bin"


def stage_model(model: ir.Model, folder: Path, *, inline_limit: int = INLINE_LIMIT) -> bytes | Path:
    """Serialize a model that a runtime can load.

    Weights stream one tensor at a time into `folder`; the model itself stays as it was.

    Args:
        model: any model; its tensors may be memory mapped or lazy.
        folder: made if needed; must be ours alone.
        inline_limit: bytes of weights up to which the result is one string of bytes.

    Returns:
        The serialized model, or the path of one whose weights lie beside it.

    Raises:
        ConversionError: the folder cannot take the weights.
    """
    if _fits(model, inline_limit):
        serialized: bytes = ir.to_proto(model).SerializeToString()
        return serialized
    path = folder / "model.onnx"
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        ir.save(model, path, external_data=_WEIGHTS, size_threshold_bytes=_SMALL)
    return path


class SharedWeights:
    """A folder with the weights of a model, from which many variants of it can be loaded.

    Args:
        folder: the folder; None where the weights are small enough to travel with each variant.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._count = itertools.count()

    def write(self, model: ir.Model) -> bytes | Path:
        """Serialize a variant: the model given to `share_weights`, edited."""
        proto = ir.to_proto(model)
        if self._folder is None:
            serialized: bytes = proto.SerializeToString()
            return serialized
        path = self._folder / f"model{next(self._count)}.onnx"
        with _writing(self._folder):
            path.write_bytes(proto.SerializeToString())
        return path

    def close(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def share_weights(model: ir.Model, parent: Path, *, inline_limit: int = INLINE_LIMIT) -> SharedWeights:
    """Write a model's weights once, so that its variants share them; the model then refers to the new file.

    Args:
        model: changed: its large tensors become references to the file.
        parent: folder in which a new folder is made, if the weights are large or external.
        inline_limit: bytes of weights up to which nothing is written.

    Raises:
        ConversionError: the folder cannot take them.
    """
    if _fits(model, inline_limit):
        return SharedWeights(None)
    with _writing(parent):
        folder = Path(tempfile.mkdtemp(prefix="shared-", dir=parent))
        ir.external_data.unload_from_model(model, folder, _WEIGHTS, size_threshold_bytes=_SMALL)
    return SharedWeights(folder)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Say what a full disk is in the way of, and what helps."""
    try:
        yield
    except OSError as error:
        raise ConversionError(
            "no room for the weights of the model that is to be run",
            where=str(folder),
            why=error.strerror or f"{error}: the disk is full or a limit is reached",  # numpy only counts
            hint="TMPDIR names the folder for temporary files: it needs up to twice the size of the weights",
        ) from error


def _fits(model: ir.Model, limit: int) -> bool:
    tensors = list(_tensors(model))
    return (
        not any(isinstance(t, ir.ExternalTensor) for t in tensors) and sum(t.nbytes for t in tensors) <= limit
    )


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
