"""Where jobs run: threads that each wait for a child process, or a Dask cluster that is there already."""

from __future__ import annotations

import importlib
import threading
from asyncio import CancelledError
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from fp16conv.batch.jobs import Job, Outcome, run_job
from fp16conv.errors import UsageError

__all__ = ["run_dask", "run_local"]


def run_local(jobs: Sequence[Job], workers: int = 1) -> Iterator[tuple[int, Outcome]]:
    """Run jobs on this machine.

    Args:
        jobs: what to run.
        workers: how many at the same time.

    Yields:
        Index and outcome of each job, in the order in which they end. Closing the iterator, or an exception
        (Ctrl-C) while it waits, kills what still runs.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(workers, thread_name_prefix="audit") as pool:
        futures = {pool.submit(_run, job, stop): index for index, job in enumerate(jobs)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


def _run(job: Job, stop: threading.Event | None = None) -> Outcome:
    """A machine that cannot start a process costs this model's row only."""
    try:
        return run_job(job, stop)
    except OSError as error:
        return Outcome(70, 0.0, message=f"no process could be started: {error}")


def _collect(future: Any) -> Outcome:
    """The outcome of a future; a worker that died, or a scheduler that went away, is a crash of the job."""
    try:
        outcome: Outcome = future.result()
    except (Exception, CancelledError) as failure:
        return Outcome(70, 0.0, message=f"{type(failure).__name__}: {failure}")
    return outcome


def run_dask(jobs: Sequence[Job], scheduler: str) -> Iterator[tuple[int, Outcome]]:
    """Hand jobs to a Dask cluster. Its workers must see the models under the same paths and have fp16conv.

    Args:
        jobs: what to run; each still is a child process of its own, with its limits, on the worker.
        scheduler: address, such as `tcp://10.0.0.1:8786`.

    Yields:
        Index and outcome of each job, in the order in which they end. A job whose worker dies comes back as a
        crash.

    Raises:
        UsageError: Dask is not installed, or the scheduler does not answer.
    """
    try:
        distributed = importlib.import_module("distributed")
    except ModuleNotFoundError as error:
        raise UsageError(
            "--executor dask needs Dask, which is not installed", hint="pip install 'fp16conv[cluster]'"
        ) from error
    try:
        client = distributed.Client(scheduler, timeout="10s", set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError("the Dask scheduler does not answer", where=scheduler, why=str(error)) from error
    with client:
        futures = {client.submit(_run, job, pure=False): index for index, job in enumerate(jobs)}
        try:
            for future in distributed.as_completed(list(futures), loop=client.loop):
                yield futures[future], _collect(future)
        finally:
            client.cancel(list(futures))
