"""The audit of many models: cache, executor, rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fp16conv.batch.cache import Cache, digest_job
from fp16conv.batch.confined import can_limit
from fp16conv.batch.executors import run_dask, run_local
from fp16conv.batch.jobs import Job, Outcome
from fp16conv.batch.rows import Row, Status, make_row
from fp16conv.errors import UsageError, unwritable
from fp16conv.rulebook.book import load_book

__all__ = ["Audited", "Settings", "audit_models"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How models are looked at.

    Args:
        arguments: flags of `fp16conv analyze` beside those of reports; paths must be absolute.
        rules: rule files of the user, part of `arguments` too; for the digest.
        timeout: seconds per model, None for none.
        memory_limit: bytes of data per process, None for none.
        jobs: models at the same time, on this machine.
        cache: folder of results, None for none.
        html: whether to make an HTML report of each model.
        scheduler: address of a Dask scheduler; None runs here.
    """

    arguments: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    timeout: float | None = None
    memory_limit: int | None = None
    jobs: int = 1
    cache: str | None = None
    html: bool = False
    scheduler: str | None = None


@dataclass(frozen=True, slots=True)
class Audited:
    """A row, and the HTML report of the model if one was made."""

    row: Row
    html: str | None = None


def audit_models(
    models: Sequence[str],
    settings: Settings | None = None,
    *,
    progress: Callable[[str, int, int | None], object] | None = None,
) -> tuple[Audited, ...]:
    """Analyze each model in a process of its own.

    Args:
        models: paths, see `find_models`.
        settings: limits, cache, where to run.
        progress: called with a step, how many models are done, and how many there are.

    Returns:
        One entry per model, in their order. No model can cost another one's row.

    Raises:
        UsageError: a limit that this platform lacks, a cache that cannot be written, no Dask, no scheduler.
        RuleError: a rule file is malformed.
    """
    settings = settings or Settings()
    if settings.memory_limit is not None and not can_limit():
        raise UsageError(
            "this platform cannot limit the memory of a process", where="--memory-limit-per-model"
        )
    rules = load_book(*map(Path, settings.rules)).digest
    report = progress or (lambda step, done, total: None)
    cache = None if settings.cache is None else _open_cache(settings.cache)
    audited: dict[int, Audited] = {}
    waiting: list[tuple[int, Job, str]] = []
    for index, path in enumerate(models):
        report("reading models", index, len(models))
        job = Job(
            os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)),
            settings.arguments,
            settings.timeout,
            settings.memory_limit,
            settings.html,
        )
        key, why = _digest(job, rules)
        if key is None:
            audited[index] = Audited(Row(path, Status.UNREADABLE, why))
            continue
        kept = cache.find(key) if cache is not None else None
        if kept is None:
            waiting.append((index, job, key))
        else:
            audited[index] = Audited(make_row(path, job, kept, digest=key, cached=True), kept.html)
    report("analyzing models", len(audited), len(models))
    for number, outcome in _run([job for _, job, _ in waiting], settings):
        index, job, key = waiting[number]
        if cache is not None:
            _keep(cache, key, outcome)
        row = make_row(models[index], job, outcome, digest=key, cached=False)
        audited[index] = Audited(row, outcome.html)
        report("analyzing models", len(audited), len(models))
    return tuple(audited[index] for index in range(len(models)))


def _open_cache(folder: str) -> Cache:
    try:
        return Cache(folder)
    except OSError as error:
        raise unwritable("the cache cannot be used", folder, error) from error


def _keep(cache: Cache, key: str, outcome: Outcome) -> None:
    try:
        cache.keep(key, outcome)
    except OSError as error:
        raise unwritable("the cache cannot be written", "", error) from error


def _digest(job: Job, rules: str) -> tuple[str | None, str]:
    """The digest, or why there is none."""
    try:
        if os.path.exists(job.path) and not os.path.isfile(job.path):
            return None, "not a regular file"
        return digest_job(job, rules), ""
    except (OSError, ValueError) as error:
        return None, getattr(error, "strerror", None) or str(error)


def _run(jobs: Sequence[Job], settings: Settings) -> Iterator[tuple[int, Outcome]]:
    if not jobs:
        return iter(())
    return (
        run_local(jobs, settings.jobs) if settings.scheduler is None else run_dask(jobs, settings.scheduler)
    )
