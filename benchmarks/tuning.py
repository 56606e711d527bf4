"""Print the table of tuned plans: tolerance on data the search has not seen, predicted time, runs.

    python -m benchmarks.tuning [--only KEY] [--tolerance 0.01 --tolerance 0.003] [--batches 2]

The search sees batches of the calibration seed; the error is measured on the written file with batches of the
evaluation seed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import fp16conv
from benchmarks.zoo.measure import honest_errors
from benchmarks.zoo.registry import CALIBRATION_SEED, EVALUATION_SEED, MODELS, Feed, write_feeds
from fp16conv.reporting.tuning import FrontierPoint, TuneReport
from fp16conv.tuner import ATOL_SHARE

SAMPLES = Path(__file__).parents[1] / "samples"


def row(path: Path, data: Path, unseen: list[Feed], tolerance: float) -> str:
    """Tune one model and measure the file."""
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "out.onnx"
        report = fp16conv.tune(path, target, tolerance=tolerance, data=[data], provider="emulated")
        if report.output is None:
            return f"cannot: {report.nearest:.3g} times the tolerance | | | | | | {_runs(report)}"
        error, _ = honest_errors(path, target, unseen)
        fresh = write_feeds(Path(scratch) / "unseen", unseen)
        atol = tolerance * ATOL_SHARE
        verdict = fp16conv.validate(
            path, target, rtol=tolerance, atol=atol, data=[fresh], provider="emulated"
        )
    chosen = next(point for point in report.frontier if point.chosen)
    default = next((point for point in report.frontier if point.origin == "default"), None)
    return (
        f"{chosen.error or 0.0:.2e} | {error:.2e} | {'yes' if verdict.ok else 'no'} | "
        f"{_share(chosen)} | {chosen.casts} | {_time(chosen)} | {_against(default)} | {_runs(report)}"
    )


def _share(point: FrontierPoint) -> str:
    return "-" if point.macs_share is None else f"{point.macs_share:.3f}"


def _time(point: FrontierPoint) -> str:
    return f"{point.seconds * 1e6:.0f} us ({point.speedup:.2f}x)"


def _against(default: FrontierPoint | None) -> str:
    if default is None:
        return "-"
    met = "met" if default.ok else "missed"
    return f"{_time(default)}, {default.casts} casts, {met}"


def _runs(report: TuneReport) -> str:
    effort = report.effort
    return f"{effort.runs} of {effort.max_runs} ({effort.exhaustive_runs})"


def main() -> None:
    """Print one line per model and tolerance."""
    keys = [entry.key for entry in MODELS]
    samples = ["digits_cnn", "digits_transformer"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", choices=[*keys, *samples], help="this model")
    parser.add_argument("--tolerance", action="append", type=float, help="default 0.01 and 0.003")
    parser.add_argument("--batches", type=int, default=2, help="for the search and again for evaluation")
    arguments = parser.parse_args()
    print(
        "| model | tolerance | error | error on unseen data | met there | MACs in FP16 | casts | "
        "predicted time | default plan | emulated runs (operators) |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    wanted = arguments.only or [*keys, *samples]
    for key in wanted:
        with tempfile.TemporaryDirectory() as scratch:
            if key in samples:
                path, data = SAMPLES / f"{key}.onnx", SAMPLES / "digits_calibration.npz"
                with np.load(SAMPLES / "digits_test.npz") as arrays:
                    unseen = [{name: arrays[name] for name in arrays.files if name != "labels"}]
            else:
                entry = next(e for e in MODELS if e.key == key)
                path = entry.path()
                data = write_feeds(Path(scratch), entry.feeds(CALIBRATION_SEED, arguments.batches))
                unseen = entry.feeds(EVALUATION_SEED, arguments.batches)
            for tolerance in arguments.tolerance or [0.01, 0.003]:
                print(f"| {key} | {tolerance:g} | {row(path, data, unseen, tolerance)} |", flush=True)


if __name__ == "__main__":
    main()
