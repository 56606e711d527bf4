"""Find made-up inputs that a model accepts: shapes it leaves open are often not as free as it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fp16conv.errors import DataError
from fp16conv.execution.capacity import refuse_oversized
from fp16conv.execution.failures import RuntimeFailure
from fp16conv.execution.feeds import FeedSource, synthesize
from fp16conv.execution.runtime import Runtime
from fp16conv.execution.synthesis import OpenSizes
from fp16conv.frontends.onnx import LoadedModel

__all__ = ["fit_synthetic"]

_ONE = OpenSizes(batch=1)
_ATTEMPTS = (
    OpenSizes(),
    _ONE,
    replace(_ONE, height=48, width=320, length=64, signal=16000),  # text lines; one second of sound
    replace(_ONE, height=256, width=256, length=128, signal=1024, audio=512),
    replace(_ONE, height=320, width=320, length=256, signal=4096, audio=1024),
    replace(_ONE, height=640, width=640, length=32, signal=576, audio=1536),
    replace(_ONE, height=512, width=512, length=8, signal=256, audio=48000),
    replace(_ONE, height=32, width=320, length=80, signal=1280, audio=160000),
    replace(_ONE, height=64, width=64, length=100, signal=48000, audio=4096),
    replace(_ONE, height=32, width=32, length=4, signal=64),
    replace(_ONE, height=28, width=28, length=1, signal=16),
)
"""Sizes of open dimensions, in the order they are tried."""


def fit_synthetic(
    loaded: LoadedModel,
    runtime: Runtime,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    batches: int = 2,
    seed: int = 0,
) -> FeedSource:
    """Like `synthesize`, and tries the first batch; other sizes for open dimensions where it does not run.

    Args:
        loaded: the FP32 model.
        runtime: runs it.
        shapes: input name -> shape, kept in every attempt.
        ranges: input name -> (lowest, highest).
        batches: how many batches.
        seed: same seed, same numbers.

    Returns:
        A source of origin `synthetic` whose first batch the model accepts.

    Raises:
        RuntimeFailure: the model does not load.
        DataError: no attempt runs; the message holds what the runtime said to the first one.
        ValidationError: an input has a type that cannot be made up, or the model is too large to run here.
        UsageError: a name is not an input of the model, or a shape contradicts the model.
    """
    refuse_oversized(loaded.graph)
    session = runtime.load(loaded.path if loaded.path.is_file() else loaded.model)
    tried: set[str] = set()
    first: RuntimeFailure | None = None
    try:
        for open_sizes in _ATTEMPTS:
            source = synthesize(
                loaded.graph,
                shapes=shapes,
                ranges=ranges,
                batches=batches,
                seed=seed,
                open_sizes=open_sizes,
            )
            if source.description in tried:
                continue
            tried.add(source.description)
            try:
                for batch in source:
                    runtime.run(session, batch)
                    break
            except RuntimeFailure as failure:
                first = first or failure
                continue
            return source
    finally:
        runtime.unload(session)
    raise DataError(
        "made-up inputs do not run",
        where=str(loaded.path),
        why=first.message if first is not None else "",
        hint="give real data with --data, or sizes with --shape NAME=1x3x224x224",
    )
