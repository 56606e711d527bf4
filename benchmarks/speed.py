"""Speed and memory as ratios, measured side by side: other converters, `cp`, plain FP32 runs, imports.

    python -m benchmarks.speed [--only operators weights start-up validation large] [--rounds 5] [--peers P]

Writes benchmarks/results/speed.json and the table in docs/benchmarks.md. `large` (100,000 operators, 6 GB of
weights, about 6 minutes and 16 GB of disk) runs only where it is asked for.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.processes import Usage, describe_machine, interleave, median

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".cache" / "peers"
MODELS = ROOT / ".cache" / "models"
RESULTS = ROOT / "benchmarks" / "results" / "speed.json"
TABLE = ROOT / "docs" / "benchmarks.md"

BATCHES = (24, 200)  # a short comparison shows the start-up, a long one the rate

Rows = list[dict[str, object]]

GROWTH = "growth from 1,000 to 16,000 operators, less the start-up (a conversion of 4 operators)"

ABOUT = """\
# Speed and memory

Whole processes, measured from outside, the commands of a case in turns; medians. Times are those of the
process and the children that it waited for. Peak memory is that of the main process alone: children that
run models or onnx's checker are not in it ([whole process trees](concepts/memory.md)). Ratios are to the
line of the case that has 1.00. `make bench` repeats it; all of it: benchmarks/results/speed.json.

Machine: {cpu}, {cores} cores, Python {python}, {date}.
Load average {load_average}: above zero other work was running beside, and the CPU
ratio says more than the wall ratio.

fp16conv runs with {own}; others in environments of their own:
"""

COMMANDS = """
What the names stand for:

* `fp16conv` is `fp16conv convert IN.onnx -o OUT.onnx --no-validate --quiet`.
* The chain of operators repeats MatMul, Add, Softmax, Relu. Half blocked: the other converters keep Softmax
  and Relu in FP32 by their block lists; fp16conv has no list and decides by its rules.
* `onnxruntime` is `onnxruntime.transformers.float16`. It leaves its casts at the end of the graph, which is
  no valid ONNX (unsorted); sorted calls its `topological_sort` afterwards.
* `autocast` is `python -m modelopt.onnx.autocast`, of NVIDIA's Model Optimizer. It runs the model, on one
  batch.
* `320n` is nudenet's YOLOv8n detector (12 MB, inputs 1x3x320x320), `ch_PP-OCRv4_rec_infer` the text
  recognizer of rapidocr_onnxruntime (11 MB, 1x3x48x320), FP32 models as their PyPI packages bring them;
  `fp16conv validate` compares them with what `convert --no-validate` makes of them. A plain FP32 run is
  ONNX Runtime over the same batches: its threads wait asleep, as fp16conv's do (same settings), or spin.
* A converter that takes longer than 20 s is run once.
* The imports that `analyze` is compared with are what it cannot do without: numpy, onnx, onnx_ir,
  click, and onnxruntime, which it loads in a process of its own. networkx is loaded only where the
  minimum cut of a plan is large, sympy (which onnx_ir imports) not at all.

| case | command | runs | wall, s | CPU, s | peak memory, main process, MiB | wall ratio | CPU ratio |
|---|---|---|---|---|---|---|---|"""

PLAIN = """
import sys, numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.add_session_config_entry("session.intra_op.allow_spinning", sys.argv[2])
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
for file in sys.argv[3:]:
    with np.load(file) as arrays:
        session.run(None, dict(arrays))
"""
ORT_BLOCKED = """
import sys, onnx
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxruntime.transformers.onnx_model import OnnxModel
model = convert_float_to_float16(
    onnx.load(sys.argv[1]), keep_io_types=True, op_block_list=["Softmax", "Relu"])
if sys.argv[3] == "sorted":
    model = OnnxModel(model)
    model.topological_sort()
    model = model.model
onnx.save(model, sys.argv[2])
"""
COMMON_BLOCKED = """
import sys, onnx
from onnxconverter_common import float16
model = float16.convert_float_to_float16(
    onnx.load(sys.argv[1]), keep_io_types=True, op_block_list=["Softmax", "Relu"])
onnx.save(model, sys.argv[2])
"""


def make_chain(operators: int, path: Path) -> None:
    """MatMul, Add, Softmax, Relu in turns: every second operator is one that converters keep in FP32."""
    weight = (np.random.default_rng(0).standard_normal((16, 16)) / 4).astype(np.float32)
    nodes, last = [], "x"
    for i in range(operators):
        kind = ("MatMul", "Add", "Softmax", "Relu")[i % 4]
        reads = [last, "w"] if kind == "MatMul" else [last, last] if kind == "Add" else [last]
        output = f"t{i}" if i < operators - 1 else "y"
        nodes.append(helper.make_node(kind, reads, [output], name=f"n{i}"))
        last = output
    _save(nodes, [numpy_helper.from_array(weight, "w")], [4, 16], "y", path)


def make_weights(gigabytes: float, path: Path) -> None:
    """A chain of 4096 x 4096 products with Relu between them, weights in one external file."""
    side = 4096
    layer = (np.random.default_rng(0).standard_normal((side, side)) / 64).astype(np.float32)
    nodes, tensors = [], []
    last = "x"
    with path.with_suffix(".data").open("wb") as file:
        for i in range(math.ceil(gigabytes * 2**30 / layer.nbytes)):
            entries = {"location": f"{path.stem}.data", "offset": file.tell(), "length": layer.nbytes}
            tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[side, side])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
            file.write(np.roll(layer, i).tobytes())
            tensors.append(tensor)
            nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"p{i}"], name=f"p{i}"))
            nodes.append(helper.make_node("Relu", [f"p{i}"], [f"r{i}"], name=f"r{i}"))
            last = f"r{i}"
    _save(nodes, tensors, [1, side], last, path)


def _save(
    nodes: Sequence[onnx.NodeProto], tensors: Sequence[TensorProto], shape: list[int], output: str, path: Path
) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", output))
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def bench_operators(folder: Path, rounds: int, peers: Sequence[str]) -> Rows:
    """Convert half-blocked chains of growing length."""
    rows: Rows = []
    times: dict[int, float] = {}
    for count in (1_000, 4_000, 16_000):
        source, target = folder / f"chain{count}.onnx", folder / "out.onnx"
        make_chain(count, source)
        names = [str(source), str(target)]
        commands = {"fp16conv": _convert(source, target)}
        if count <= 4_000:
            commands |= _peer_commands(names, peers, folder)
        found = interleave(commands, rounds)
        rows += _rows(f"{count} operators, half blocked", found, "fp16conv")
        times[count] = median(found["fp16conv"]).cpu
    empty = folder / "chain4.onnx"
    make_chain(4, empty)
    base = median(interleave({"start": _convert(empty, folder / "out.onnx")}, rounds)["start"]).cpu
    exponent = math.log((times[16_000] - base) / (times[1_000] - base)) / math.log(16)
    return [*rows, {"case": GROWTH, "exponent": exponent}]


def _convert(source: Path, target: Path) -> list[str]:
    flags = ["--no-validate", "--quiet"]
    return [sys.executable, "-m", "fp16conv", "convert", str(source), "-o", str(target), *flags]


def _peer_commands(names: list[str], peers: Sequence[str], folder: Path) -> dict[str, list[str]]:
    data = folder / "calibration"
    data.mkdir(exist_ok=True)
    np.savez(data / "batch.npz", x=np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32))
    pythons = {peer: str(PEERS / peer / "bin" / "python") for peer in peers if (PEERS / peer).is_dir()}
    commands: dict[str, list[str]] = {}
    for peer, python in pythons.items():
        if peer == "onnxruntime":
            for order in ("unsorted", "sorted"):
                commands[f"{peer}, {order}"] = [python, "-c", ORT_BLOCKED, *names, order]
        elif peer == "onnxconverter-common":
            commands[peer] = [python, "-c", COMMON_BLOCKED, *names]
        else:
            blocked = ["--op_types_to_exclude", "Softmax", "Relu", "--calibration_data", str(data)]
            flags = ["--onnx_path", names[0], "--output_path", names[1], "--keep_io_types"]
            commands[peer] = [python, "-m", "modelopt.onnx.autocast", *flags, *blocked]
    return commands


def bench_weights(folder: Path, rounds: int, peers: Sequence[str], gigabytes: float = 1.0) -> Rows:
    """Convert a model of large external weights, beside a copy of its data file to the same disk."""
    source, data = folder / "large.onnx", folder / "large.data"
    make_weights(gigabytes, source)
    commands = {
        "cp": ["sh", "-c", f"cp '{data}' '{folder}/copy' && sync '{folder}/copy'"],
        "fp16conv": _convert(source, folder / "large16.onnx"),
    }
    rows = _rows(f"{gigabytes:g} GB of external weights", interleave(commands, rounds, math.inf), "cp")
    for file in folder.iterdir():
        if file.is_file():
            file.unlink()
    return rows


def bench_large(folder: Path, rounds: int, peers: Sequence[str]) -> Rows:
    """The largest sizes that something is said about."""
    source = folder / "chain100000.onnx"
    make_chain(100_000, source)
    runs = interleave({"fp16conv": _convert(source, folder / "out.onnx")}, rounds, math.inf)
    rows = _rows("100,000 operators, half blocked", runs, "fp16conv")
    return rows + bench_weights(folder, rounds, peers, gigabytes=6.0)


def bench_start(folder: Path, rounds: int, peers: Sequence[str]) -> Rows:
    """`--help` beside a bare interpreter; `analyze` of 100 operators beside the imports that it needs."""
    source = folder / "chain100.onnx"
    make_chain(100, source)
    program = [sys.executable, "-m", "fp16conv"]
    help_ = {"python -c pass": [sys.executable, "-c", "pass"], "fp16conv --help": [*program, "--help"]}
    imports = "import click, numpy, onnx, onnx.checker, onnx_ir, onnxruntime"
    analyze = {
        "imports": [sys.executable, "-c", imports],
        "fp16conv analyze": [*program, "analyze", str(source), "--format", "json"],
    }
    rows = _rows("start-up", interleave(help_, rounds), "python -c pass")
    return rows + _rows("analyze 100 operators", interleave(analyze, rounds), "imports")


def bench_validation(folder: Path, rounds: int, peers: Sequence[str]) -> Rows:
    """Honest validation of a trained model beside its plain FP32 run over the same batches."""
    rows: Rows = []
    shapes = {
        "nudenet/320n.onnx": (1, 3, 320, 320),
        "rapidocr_onnxruntime/ch_PP-OCRv4_rec_infer.onnx": (1, 3, 48, 320),
    }
    for pattern, shape in shapes.items():
        package, name = pattern.split("/")
        source = next((MODELS / package).rglob(name), None)
        if source is None:
            print(f"{name}: not downloaded, see `make table`", file=sys.stderr)
            continue
        (given,) = onnx.load(source, load_external_data=False).graph.input
        batches, rng = [folder / f"{i:03}.npz" for i in range(max(BATCHES))], np.random.default_rng(0)
        for batch in batches:
            np.savez(batch, **{given.name: rng.random(shape, np.float32)})
        converted = folder / "converted.onnx"
        interleave({"convert": _convert(source, converted)}, 1)
        for count in BATCHES:
            files = [str(b) for b in batches[:count]]
            flags = [argument for file in files for argument in ("--data", file)]
            verify = [sys.executable, "-m", "fp16conv", "validate", str(source), str(converted), *flags]
            plain = [sys.executable, "-c", PLAIN, str(source)]
            commands = {
                "plain FP32 run, same settings": [*plain, "0", *files],
                "plain FP32 run, threads spin": [*plain, "1", *files],
                "fp16conv validate": [*verify, "--rtol", "1"],
            }
            case = f"validation of {source.stem}, {count} batches"
            rows += _rows(case, interleave(commands, rounds), "plain FP32 run, same settings")
    return rows


def _rows(case: str, found: Mapping[str, Sequence[Usage]], reference: str) -> Rows:
    base = median(found[reference])
    rows: Rows = []
    for name, runs in found.items():
        usage = median(runs)
        ratios = {"wall_ratio": usage.wall / base.wall, "cpu_ratio": usage.cpu / max(base.cpu, 1e-3)}
        rows.append({"case": case, "name": name, "runs": len(runs), **asdict(usage), **ratios})
        print(f"{case}: {name}: {usage.wall:.2f} s, CPU {usage.cpu:.2f} s, {usage.rss / 2**20:.0f} MiB, "
              f"{ratios['wall_ratio']:.2f} x {reference}", file=sys.stderr)  # fmt: skip
    return rows


BENCHES: Mapping[str, Callable[[Path, int, Sequence[str]], Rows]] = {
    "operators": bench_operators,
    "weights": bench_weights,
    "start-up": bench_start,
    "validation": bench_validation,
    "large": bench_large,
}
ON_REQUEST = ("large",)


def write_table(results: Mapping[str, object], path: Path) -> None:
    """The results as a page of the documentation."""
    machine = results["machine"]
    assert isinstance(machine, dict)
    benches = results["benches"]
    assert isinstance(benches, dict)
    packages = {
        name: ", ".join(f"{package} {version}" for package, version in versions.items())
        for name, versions in machine["packages"].items()
    }
    lines = [
        ABOUT.format(**machine, own=packages.pop("fp16conv")),
        *(f"* {name}: {versions}" for name, versions in packages.items()),
        COMMANDS,
    ]
    growth = []
    for name in BENCHES:
        for row in benches.get(name, []):
            if "exponent" in row:
                growth.append(f"CPU time's {row['case']}: exponent {row['exponent']:.2f}.")
                continue
            rss = row["rss"] and row["rss"] / 2**20
            figures = [row["wall"], row["cpu"], rss, row["wall_ratio"], row["cpu_ratio"]]
            shown = ["" if figure is None else f"{figure:.2f}" for figure in figures]
            lines.append("| " + " | ".join(map(str, [row["case"], row["name"], row["runs"], *shown])) + " |")
    lines += ["", *growth, ""]
    path.write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    """Measure and write down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=BENCHES, default=[b for b in BENCHES if b not in ON_REQUEST]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="*", default=["onnxruntime", "onnxconverter-common", "autocast"])
    chosen = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"benches": {}}
    results["machine"] = describe_machine({peer: PEERS / peer for peer in chosen.peers})
    for name in chosen.only:
        folder = Path(tempfile.mkdtemp(prefix="fp16conv-bench-"))
        try:
            results["benches"][name] = BENCHES[name](folder, chosen.rounds, chosen.peers)
        finally:
            shutil.rmtree(folder)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write_table(results, TABLE)


if __name__ == "__main__":
    main()
