"""What a verb is given: options, a model, its inputs. Light: not every verb needs a study."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypedDict, Unpack

from fp16conv.conversion.loss_guard import refuse_losses
from fp16conv.errors import DataError, UsageError, ValidationError
from fp16conv.execution.feeds import FeedSource, load_feeds, synthesize
from fp16conv.execution.fitting import fit_synthetic
from fp16conv.execution.runtime import Runtime, RuntimeFailure
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from fp16conv.frontends.sources import is_torch_source, name_source
from fp16conv.reporting.report import Evidence

__all__ = [
    "DEFAULT_TARGET",
    "InputWords",
    "OptionWords",
    "Options",
    "describe_evidence",
    "load_model",
    "open_feeds",
    "read_options",
]

Words = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

DEFAULT_TARGET = "onnxruntime-cuda"
MEMORY_LIMIT = 512 * 2**20  # bytes of intermediate values held while observing


class InputWords(TypedDict, total=False):
    """Keyword arguments about the inputs, shared by all verbs; the same words as the flags.

    Args:
        data: .npz files or folders of them, one file per batch; inputs are made up where there is none.
        shapes: shape per input name, for made-up inputs and estimates.
        input_ranges: (low, high) per input name, for made-up inputs.
        seed: of made-up inputs, default 0.
        labels: array in the data files that holds class labels, to report accuracy.
        memory_limit: bytes of intermediate values held while observing, default 512 MiB.
        details: list every operator in the report, with reasons, ranges and errors; default False.
    """

    data: Words
    shapes: Mapping[str, tuple[int, ...]]
    input_ranges: Mapping[str, tuple[float, float]]
    seed: int
    labels: str
    memory_limit: int
    details: bool


class OptionWords(InputWords, total=False):
    """Keyword arguments that shape decisions; the same words as the flags.

    Args:
        profile: balanced (default), fast, safe or half.
        target: what will run the model, default onnxruntime-cuda.
        device: whose roofline the speed estimate uses, default a10.
        keep_fp32: globs on operator names, or `type:Softmax`: stay FP32.
        force_fp16: the same: run in FP16 whatever the rules say.
        rules: rules files of the user's own.
        keep_io_types: graph inputs and outputs keep their types, default True.
        repairs: ways to keep FP16 that are off by default: `fold-batchnorm`, `rescale`, `saturate`
            (ONNX only).
    """

    profile: str
    target: str
    device: str
    keep_fp32: Words
    force_fp16: Words
    rules: Words
    keep_io_types: bool
    repairs: Words


@dataclass(frozen=True, slots=True)
class Options:
    """`OptionWords` with defaults filled in."""

    data: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    input_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    profile: str = "balanced"
    target: str = DEFAULT_TARGET
    device: str = "a10"
    keep_fp32: tuple[str, ...] = ()
    force_fp16: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    keep_io_types: bool = True
    repairs: tuple[str, ...] = ()
    seed: int = 0
    labels: str = ""
    memory_limit: int = MEMORY_LIMIT
    details: bool = False

    def recorded(self) -> dict[str, object]:
        """The options that shape a plan, as JSON data; files enter by name only."""
        options = asdict(self)
        del options["memory_limit"], options["labels"], options["details"]
        options["data"] = [Path(p).name for p in self.data]
        options["rules"] = [Path(p).name for p in self.rules]
        return options


def read_options(**words: Unpack[OptionWords]) -> Options:
    """Fill in defaults; one path or pattern is accepted where several are allowed.

    Example:
        >>> read_options(keep_fp32="type:Softmax").keep_fp32
        ('type:Softmax',)
    """
    plain: dict[str, object] = dict(words)
    for key in ("data", "keep_fp32", "force_fp16", "rules", "repairs"):
        items = plain.get(key, ())
        if isinstance(items, str | os.PathLike):
            items = (items,)
        plain[key] = tuple(os.fspath(i) for i in items)  # type: ignore[attr-defined]
    return Options(**plain)  # type: ignore[arg-type]


def load_model(model: str | os.PathLike[str] | LoadedModel) -> LoadedModel:
    """Read an .onnx file; see `fp16conv.load`. A loaded model is returned as it is."""
    if isinstance(model, LoadedModel):
        return model
    if is_torch_source(model):
        raise UsageError(
            f"'{name_source(model)}' is a PyTorch program, and this takes ONNX models",
            hint="'fp16conv export' writes it as .onnx",
        )
    loaded = load_onnx(model)
    refuse_losses(loaded.proto, str(model))
    return loaded


def describe_evidence(feeds: FeedSource, options: Options, batches: int) -> Evidence:
    """What the report says about the inputs.

    Args:
        feeds: the inputs.
        options: what the user asked for.
        batches: how many of them were run.
    """
    synthetic = feeds.origin == "synthetic"
    seed = options.seed if synthetic and not feeds.is_example else None
    return Evidence(synthetic, batches, options.data, seed, feeds.describe())


def open_feeds(loaded: LoadedModel, options: Options, runtime: Runtime | None = None) -> FeedSource:
    """The user's data, or made-up inputs where there is none.

    With a runtime, other sizes for open dimensions are tried where made-up inputs do not run; without one,
    and where nothing runs, the first guess is returned.

    Raises:
        DataError: the data does not fit the model's inputs.
        UsageError: a shape or range names an input the model does not have.
    """
    if options.data:
        return load_feeds([Path(p) for p in options.data], loaded.graph, labels=options.labels)
    shapes, ranges, seed = options.shapes, options.input_ranges, options.seed
    if runtime is not None:
        with contextlib.suppress(RuntimeFailure, DataError, ValidationError):
            return fit_synthetic(loaded, runtime, shapes=shapes, ranges=ranges, seed=seed)
    return synthesize(loaded.graph, shapes=shapes, ranges=ranges, seed=seed)
