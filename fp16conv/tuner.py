"""One tuning: relax what the evidence allows, search, and keep what was measured."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np

import fp16conv
from fp16conv.errors import ValidationError
from fp16conv.execution.feeds import FeedSource
from fp16conv.execution.runtime import Runtime
from fp16conv.planning.cut import Charge
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.planning.planner import make_plan
from fp16conv.reporting.progress import Progress
from fp16conv.study import Study
from fp16conv.tuning.meter import Journal, Meter
from fp16conv.tuning.relaxation import relax
from fp16conv.tuning.search import Search, TuneResult, max_runs
from fp16conv.validation.probe import Probe

__all__ = ["ATOL_SHARE", "default_cache", "tune_study"]

ATOL_SHARE = 1e-3
"""Absolute error that is always fine, as a part of the tolerance: outputs are mostly of the order of 1."""


def default_cache() -> Path:
    """The user's cache folder: $XDG_CACHE_HOME/fp16conv, or ~/.cache/fp16conv."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "fp16conv"


def tune_study(
    study: Study,
    runtime: Runtime,
    *,
    rtol: float,
    atol: float,
    allow_integer_changes: bool = False,
    cache: Path | None = None,
    budget_seconds: float | None = None,
    progress: Progress | None = None,
) -> TuneResult:
    """Find the fastest plan whose error over all batches is within tolerance.

    Args:
        study: the model and what is known about it.
        runtime: CPU runtime.
        rtol: allowed relative L2 error per output.
        atol: allowed root mean square error per output, on top.
        allow_integer_changes: integer outputs may change.
        cache: folder for readings, None to keep none.
        budget_seconds: when to stop with the best plan so far.
        progress: told about each run.

    Raises:
        ValidationError: the FP32 model does not run.
    """
    graph = study.loaded.graph
    if study.calibration is None:
        raise ValidationError(
            "the FP32 model does not run, so there is nothing to tune by",
            where=graph.source,
            why=study.unobserved,
        )
    relaxed, _ = relax(graph, study.verdicts, study.facts)
    options = study.options.recorded() | {"tolerance": rtol, "atol": atol}

    def planner(*, charges: Sequence[Charge], lam: float, kept: Collection[int] = ()) -> PrecisionPlan:
        return make_plan(
            graph,
            relaxed,
            study.costs,
            rules_digest=study.book.digest,
            options=options,
            errors=dict.fromkeys(kept, float("inf")),
            charges=charges,
            lam=lam,
            soft_allow=True,
        )

    parts = [
        fp16conv.__version__,
        runtime.version,
        graph.digest,
        study.book.digest,
        _digest(study.feeds),
        repr((rtol, atol, allow_integer_changes, sorted(study.verdicts.saturated))),
    ]
    with Probe(
        study.loaded,
        study.feeds,
        runtime,
        saturated=tuple(study.verdicts.saturated),
        rtol=rtol,
        atol=atol,
        allow_integer_changes=allow_integer_changes,
        batches=len(study.feeds),
    ) as probe:
        operators = sum(bool(op.typevars) for op in graph.ops)
        meter = Meter(
            probe,
            Journal(cache, parts),
            max_runs=max_runs(operators),
            seconds=budget_seconds,
            tell=progress,
        )
        search = Search(
            graph,
            relaxed,
            study.costs,
            study.facts,
            probe.switched.slots,
            study.plan(),
            planner,
            meter,
        )
        return search.run()


def _digest(feeds: FeedSource) -> str:
    """Digest of all inputs."""
    digest = hashlib.sha256()
    for batch in feeds:
        for name in sorted(batch):
            digest.update(name.encode())
            for array in _arrays(batch[name]):
                digest.update(f"{array.dtype}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _arrays(item: object) -> Iterable[np.ndarray]:
    if isinstance(item, list | tuple):
        for part in item:
            yield from _arrays(part)
    elif item is not None:
        array = np.asarray(item)
        yield array.astype(np.str_) if array.dtype == object else array
