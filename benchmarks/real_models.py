"""Print the table of real models: honest error, MACs in FP16, casts added, validity.

    python -m benchmarks.real_models [--only KEY] [--converter NAME ...] [--batches 2]

Converters other than fp16conv run in environments of their own under .cache/peers (see
benchmarks/README.md); those that are not there are left out.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import tempfile
from pathlib import Path

from benchmarks.zoo.measure import Measurement, measure
from benchmarks.zoo.packages import cache_dir
from benchmarks.zoo.registry import CALIBRATION_SEED, EVALUATION_SEED, MODELS, Entry, write_feeds

PEERS = ("onnxconverter-common", "onnxruntime", "autocast")


def peer_python(name: str) -> Path:
    return cache_dir().parent / "peers" / name / "bin" / "python"


def convert(name: str, entry: Entry, target: Path, data: Path) -> str:
    """Convert one model; returns what went wrong, "" if nothing."""
    if name == "fp16conv":
        import fp16conv

        try:
            report = fp16conv.convert(entry.path(), target, data=[data], allow_out_of_tolerance=True)
        except fp16conv.Fp16convError as problem:
            return str(problem)[:200]
        return "" if report.output else "nothing written"
    command = [str(peer_python(name)), str(Path(__file__).with_name("peers.py")), name]
    done = subprocess.run(
        [*command, str(entry.path()), str(target), str(data)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode or not target.is_file():
        return (done.stderr.strip().splitlines() or ["no output"])[-1][:160]
    return ""


def row(name: str, entry: Entry, batches: int) -> tuple[Measurement | None, str]:
    with tempfile.TemporaryDirectory() as scratch:
        data = write_feeds(Path(scratch) / "data", entry.feeds(CALIBRATION_SEED, batches))
        target = Path(scratch) / "out.onnx"
        problem = convert(name, entry, target, data)
        if problem:
            return None, problem
        result = measure(entry.path(), target, entry.feeds(EVALUATION_SEED, batches))
        return result, result.note


def meets(entry: Entry, result: Measurement) -> bool:
    """Whether a measurement meets the bounds of the table."""
    return (
        result.valid
        and result.loads
        and result.within_tolerance
        and (entry.max_error is None or result.error <= entry.max_error)
        and (entry.min_fp16_macs is None or result.fp16_macs >= entry.min_fp16_macs)
        and result.casts <= entry.max_casts
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", choices=[e.key for e in MODELS], help="this model")
    parser.add_argument("--converter", action="append", choices=["fp16conv", *PEERS], help="this converter")
    parser.add_argument("--batches", type=int, default=2, help="for calibration and again for evaluation")
    arguments = parser.parse_args()
    for name in arguments.converter or ("fp16conv", *PEERS):
        if name != "fp16conv" and not peer_python(name).is_file():
            print(f"\n{name}: not installed beside fp16conv, left out (see benchmarks/README.md)")
            continue
        print(f"\n**{name}**\n")
        print("| model | relative L2 error | MACs in FP16 | casts added | checker | loads | within bounds |")
        print("|---|---|---|---|---|---|---|")
        met, entries = 0, [e for e in MODELS if not arguments.only or e.key in arguments.only]
        for entry in entries:
            result, note = row(name, entry, arguments.batches)
            if result is None:
                print(f"| {entry.key} | - | - | - | - | - | no: {note} |", flush=True)
                continue
            ok = meets(entry, result)
            met += ok
            error = "-" if math.isnan(result.error) else f"{result.error:.2e}"
            verdict = "yes" if ok else f"no {note}".strip()
            print(
                f"| {entry.key} | {error} | {result.fp16_macs:.4f} | {result.casts} | "
                f"{'ok' if result.valid else 'fails'} | {'ok' if result.loads else 'fails'} | {verdict} |",
                flush=True,
            )
        print(f"\n{met} of {len(entries)} within the bounds of benchmarks/zoo/registry.py")


if __name__ == "__main__":
    main()
