"""Error along the depth of a model: how far every value is from its FP32 twin, not only the outputs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fp16conv.execution.emulator import emulate_model, emulate_plan
from fp16conv.execution.runtime import Runtime
from fp16conv.execution.taps import MEMORY_LIMIT, observable, tap_model
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import DataType

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["chunk_values", "errors_of_model", "errors_of_plan", "relative_error"]

Batch = Mapping[str, Any]
Shape = tuple[int, ...]
_UNKNOWN_BYTES = 1 << 20  # assumed for a value whose shape nobody has seen


def errors_of_plan(
    loaded: LoadedModel,
    dtypes: Sequence[DataType],
    batch: Batch,
    runtime: Runtime,
    *,
    saturated: Collection[int] = (),
    folded: Collection[int] = (),
    rescaled: Mapping[int, int] | None = None,
    shapes: Mapping[int, Shape] | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> dict[int, float]:
    """Emulate a plan and compare every floating value of the main graph with the FP32 run.

    Args:
        loaded: the FP32 model.
        dtypes: FLOAT or FLOAT16 per type variable id.
        batch: inputs, array per name.
        runtime: CPU runtime.
        saturated: constants that become +-65504 instead of infinite.
        folded: BatchNormalizations that become a Mul and an Add.
        rescaled: exponents k by id of the products that are computed times 2^-k.
        shapes: observed shape per value id.
        memory_limit: bytes of values held at a time.

    Returns:
        Relative L2 error per value id; infinite where the plan makes NaN or infinities that FP32 does not.

    Raises:
        RuntimeFailure: a model does not run.
    """
    emulated = emulate_plan(loaded, dtypes, saturated=saturated, folded=folded, rescaled=rescaled)
    return _compare(loaded, emulated, batch, runtime, shapes or {}, memory_limit, None)


def errors_of_model(
    reference: LoadedModel,
    candidate: LoadedModel,
    batch: Batch,
    runtime: Runtime,
    *,
    memory_limit: int = MEMORY_LIMIT,
) -> dict[int, float]:
    """Like `errors_of_plan`, for a converted model: values are matched by name.

    Returns:
        Relative L2 error per value id of the reference.
    """
    known = {
        candidate.graph.values[v].name
        for v in observable(candidate.graph, range(len(candidate.graph.values)))
    }
    emulated = emulate_model(candidate.model)
    return _compare(reference, emulated, batch, runtime, {}, memory_limit, known)


def relative_error(reference: npt.NDArray[Any], candidate: npt.NDArray[Any]) -> float:
    """||candidate - reference||2 / ||reference||2 over the elements that are finite in the reference.

    Example:
        >>> relative_error(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
        0.1
        >>> relative_error(np.ones(1), np.array([np.inf]))
        inf
    """
    if reference.shape != candidate.shape:
        return math.inf
    a, b = reference.astype(np.float64).ravel(), candidate.astype(np.float64).ravel()
    finite = np.isfinite(a)
    if not finite.all():
        a, b = a[finite], b[finite]
    if not np.isfinite(b).all():
        return math.inf
    error, norm = float(np.linalg.norm(b - a)), float(np.linalg.norm(a))
    if error == 0.0:
        return 0.0
    return error / norm if norm > 0.0 else math.inf


def _compare(
    loaded: LoadedModel,
    emulated: ir.Model,
    batch: Batch,
    runtime: Runtime,
    shapes: Mapping[int, Shape],
    memory_limit: int,
    known: Collection[str] | None,
) -> dict[int, float]:
    graph = loaded.graph
    wanted = [
        v
        for v in observable(graph, range(len(graph.values)))
        if graph.values[v].dtype is DataType.FLOAT
        and not graph.is_main_input(v)
        and (known is None or graph.values[v].name in known)
    ]
    errors: dict[int, float] = {}
    for chunk in chunk_values(wanted, shapes, memory_limit):
        names = {graph.values[v].name: v for v in chunk}
        exact = {
            name: array
            for _, name, array in tap_model(loaded.model, runtime, [batch], list(names), memory_limit)
        }
        for _, name, array in tap_model(emulated, runtime, [batch], list(exact), memory_limit):
            errors[names[name]] = relative_error(exact.pop(name), array)
    return dict(sorted(errors.items()))


def chunk_values(
    values: Iterable[int], shapes: Mapping[int, Shape], memory_limit: int
) -> Iterator[list[int]]:
    """As many values at a time as fit twice (FP32 and emulated)."""
    chunk: list[int] = []
    total = 0
    for value in values:
        size = 8 * math.prod(shapes[value]) if value in shapes else _UNKNOWN_BYTES
        if chunk and total + size > memory_limit:
            yield chunk
            chunk, total = [], 0
        chunk.append(value)
        total += size
    if chunk:
        yield chunk
