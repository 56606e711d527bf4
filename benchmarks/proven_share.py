"""Print how much of each real model's FP16 plan is proven to stay in range without any data.

    python -m benchmarks.proven_share [--only KEY]

The plan is the default one, made with the models' calibration data; the proofs use the file alone, first
without and then with the ranges that the inputs have by their nature (pixels, samples, masks).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.zoo.registry import CALIBRATION_SEED, MODELS, Entry, write_feeds
from fp16conv.evidence.bounds import prove_bounds
from fp16conv.execution.runtime import Runtime
from fp16conv.inputs import read_options
from fp16conv.reporting.bounds import BoundsSummary
from fp16conv.reporting.safety import summarize_bounds
from fp16conv.study import start_study

__all__ = ["NATURAL_RANGES", "measure"]

NATURAL_RANGES: Final[Mapping[str, Mapping[str, tuple[float, float]]]] = {
    "silero_vad": {"input": (-1, 1)},
    "silero_vad_16k_op15": {"input": (-1, 1)},
    "PP-OCRv4_det": {"x": (-1, 1)},
    "PP-OCRv4_rec": {"x": (-1, 1)},
    "ppocr_cls": {"x": (-1, 1)},
    "nudenet_320n": {"images": (0, 1)},
    "oww_melspectrogram": {"input": (-32768, 32767)},
    "MiniLM-L3": {"attention_mask": (0, 1)},
    "open_nsfw": {"input:0": (-123, 151)},
    "mtcnn_onet": {"input_3": (-1, 1)},
    "dnsmos_sig_bak_ovr": {"input_1": (-1, 1)},
}
"""Ranges that follow from what the inputs are: scaled pixels, samples of audio, masks."""


def measure(entry: Entry, runtime: Runtime) -> tuple[BoundsSummary, BoundsSummary, float]:
    """Summaries without and with declared ranges, and the seconds that one proof took."""
    with tempfile.TemporaryDirectory() as folder:
        data = write_feeds(Path(folder), entry.feeds(CALIBRATION_SEED, 1))
        study = start_study(entry.path(), read_options(data=[data]), runtime)
    plan, found = study.plan(), []
    start = time.perf_counter()
    for ranges in ({}, NATURAL_RANGES.get(entry.key, {})):
        proven = prove_bounds(study.graph, ranges)
        found.append(summarize_bounds(study.graph, plan, proven, study.observed, study.costs.macs))
    return found[0], found[1], (time.perf_counter() - start) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", choices=[e.key for e in MODELS], help="this model")
    arguments = parser.parse_args()
    print(
        "| model | operators in FP16 | proven, nothing declared | proven, ranges declared | of the MACs | s |"
    )
    print("|---|---|---|---|---|---|")
    with Runtime() as runtime:
        for entry in MODELS:
            if arguments.only and entry.key not in arguments.only:
                continue
            bare, declared, seconds = measure(entry, runtime)
            shares = [f"{s.plan_proven} ({s.plan_share or 0.0:.0%})" for s in (bare, declared)]
            macs = "-" if declared.plan_macs_share is None else f"{declared.plan_macs_share:.0%}"
            print(
                f"| {entry.key} | {bare.plan_operators} | {' | '.join(shares)} | {macs} | {seconds:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
