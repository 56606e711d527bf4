"""Measures plans and sets of roundings within a budget, and remembers what it measured."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from fp16conv.evidence.sensitivity import Site
from fp16conv.files import write_whole
from fp16conv.graph import DataType
from fp16conv.validation.probe import NONFINITE, Measurement, ProbeBase

__all__ = ["DESTROYED", "Journal", "Meter", "Reading"]

DESTROYED: Final = NONFINITE**2
"""Squared error from which outputs have new NaN or infinities."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one emulated run over all batches showed.

    Args:
        error: root of the summed squares of (error / allowed error) over the outputs.
        worst: largest error / allowed error of any output in any batch; 1 or less is within tolerance.
        ok: every output is within tolerance.
        relative_l2: largest relative L2 error of a floating output, None where none is defined.
    """

    error: float
    worst: float
    ok: bool
    relative_l2: float | None


class Journal:
    """Readings on disk, so that a search that was interrupted starts where it ended.

    Args:
        folder: where the file lies; None keeps the readings in memory only.
        parts: what the readings depend on: digests of the model and the data, options, versions.
    """

    def __init__(self, folder: Path | None, parts: Iterable[str]) -> None:
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        self.path = None if folder is None else folder / f"{digest[:32]}.json"
        self._readings: dict[str, Reading] = {}
        if self.path is not None and self.path.is_file():
            try:
                stored = json.loads(self.path.read_text())
                self._readings = {key: Reading(**value) for key, value in stored.items()}
            except (OSError, ValueError, TypeError):
                self._readings = {}  # half-written or of another version: measure again

    def __len__(self) -> int:
        return len(self._readings)

    def get(self, key: str) -> Reading | None:
        """The reading under a key."""
        return self._readings.get(key)

    def add(self, key: str, reading: Reading) -> None:
        """Keep a reading; the file is replaced as a whole."""
        self._readings[key] = reading
        if self.path is None:
            return
        text = json.dumps({k: asdict(r) for k, r in self._readings.items()})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, text.encode())
        except OSError:
            self.path = None  # the search, maybe of hours, is worth more than what a later one would save


class Meter:
    """Counts and limits emulated runs.

    Args:
        probe: measures.
        journal: readings of before.
        max_runs: emulated runs allowed, those read from the journal included.
        seconds: time allowed, None for no limit.
        tell: told after each run how many there were.
        clock: seconds; tests hand in their own.
    """

    def __init__(
        self,
        probe: ProbeBase,
        journal: Journal,
        *,
        max_runs: int,
        seconds: float | None = None,
        tell: Callable[[str, int, int | None], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probe, self._journal, self._tell, self._clock = probe, journal, tell, clock
        self._deadline = None if seconds is None else clock() + seconds
        self.max_runs, self.runs, self.reused, self.step = max_runs, 0, 0, "tuning"
        self.out_of_time = False
        self._seen: dict[str, Reading] = {}

    @property
    def left(self) -> int:
        """Runs left."""
        return max(self.max_runs - self.runs, 0)

    def measure_plan(self, dtypes: Sequence[DataType]) -> Reading | None:
        """Measure the precision of every type variable; None where the budget is used up."""
        switches = self._probe.switched.switches(dtypes)
        hidden = [t for t in sorted(self._probe.switched.fixed) if dtypes[t] is DataType.FLOAT16]
        return self._measure(_key(switches, hidden), lambda: self._probe.measure(dtypes))

    def measure_sites(self, sites: Sequence[Site]) -> Reading | None:
        """Measure the model with just these roundings; None where the budget is used up."""
        switches = np.zeros(len(self._probe.switched.slots), np.bool_)
        for site in sites:
            switches[list(site.slots)] = True
        return self._measure(_key(switches, []), lambda: self._probe.measure_switches(switches))

    def _measure(self, key: str, run: Callable[[], Measurement]) -> Reading | None:
        if key in self._seen:
            return self._seen[key]
        if not self.left:
            return None
        reading = self._journal.get(key)
        if reading is None:
            if self._deadline is not None and self._clock() >= self._deadline:
                self.out_of_time = True
                return None
            found = run()
            reading = Reading(found.error, found.peak, found.ok, found.relative_l2)
            self._journal.add(key, reading)
        else:
            self.reused += 1
        self.runs += 1
        self._seen[key] = reading
        if self._tell is not None:
            self._tell(self.step, self.runs, self.max_runs)
        return reading


def _key(switches: npt.NDArray[np.bool_], hidden: Sequence[int]) -> str:
    return hashlib.sha256(np.packbits(switches).tobytes() + repr(list(hidden)).encode()).hexdigest()[:32]
