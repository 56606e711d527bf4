"""What is fuzzed: for each kind of file, how a mutated one is made and which commands read it."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx

from benchmarks.mutations import graphs
from benchmarks.mutations.archives import edit_archive, edit_npz
from benchmarks.mutations.trees import edit_tree, write_toml
from benchmarks.mutations.values import Rng, pick, spoil

__all__ = ["SUBJECTS", "Subject", "make_case"]

ROOT: Final = Path(__file__).resolve().parents[1]
MAX_SEED_BYTES: Final = 300_000  # larger seeds say nothing more and take longer
REFUSED: Final = frozenset({0, 2, 3, 4})
"""Exit codes of `convert` that are no bug; 2 says that no inputs can be made up."""


@dataclass(frozen=True)
class Subject:
    """A kind of file.

    Args:
        file: name of the mutated file.
        make: its bytes.
        commands: arguments by verb; FILE is the mutated file, MODEL a sound model, OUT the output.
        codes: exit codes that are no bug, by verb.
        output: name of the output, whose weights may lie beside it.
    """

    file: str
    make: Callable[[Rng], bytes]
    commands: Mapping[str, Sequence[str]]
    codes: Mapping[str, frozenset[int]]
    output: str = "out.onnx"


def make_case(subject: str, seed: int, index: int) -> bytes:
    """The bytes of run `index`; they depend on nothing else."""
    return SUBJECTS[subject].make(np.random.default_rng((seed, index)))


# ---- models ----


@functools.cache
def model_files() -> tuple[Path, ...]:
    """The models of the tests and samples that are mutated, in a fixed order."""
    files = [*(ROOT / "tests" / "cases").glob("*.onnx"), *(ROOT / "samples").glob("*.onnx")]
    return tuple(sorted(f for f in files if f.stat().st_size <= MAX_SEED_BYTES))


@functools.cache
def _read(file: Path) -> onnx.ModelProto:
    return onnx.load(file, load_external_data=False)


@functools.cache
def _node_models() -> tuple[onnx.ModelProto, ...]:
    """The models of onnx.backend.test, one for each feature of each operator."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the reference numbers overflow and divide by zero on purpose
        cases = {case.name: case.model for case in collect_testcases(None)}
    found = [cases[name] for name in sorted(cases)]
    return tuple(m for m in found if m is not None and m.ByteSize() <= MAX_SEED_BYTES)


def _make_model(rng: Rng) -> bytes:
    return graphs.mutate(_read(pick(model_files(), rng)), rng)


def _make_node_model(rng: Rng) -> bytes:
    return graphs.mutate(pick(_node_models(), rng), rng)


# ---- what is handed in beside a model ----


def _make_plan(rng: Rng) -> bytes:
    return _as_json(edit_tree(_plan(), rng), rng)


@functools.cache
def _plan() -> Any:
    from fp16conv.cli import run

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        file = Path(folder) / "plan.json"
        run(["plan", os.fspath(model()), "-o", os.fspath(file), "--quiet"])
        return json.loads(file.read_bytes())


def _as_json(tree: Any, rng: Rng) -> bytes:
    content = json.dumps(tree).encode("utf-8", "replace")
    return spoil(content, rng) if rng.random() < 0.1 else content


def _make_rules(rng: Rng) -> bytes:
    file = pick(sorted((ROOT / "rules" / "ops").glob("*.toml")), rng)
    rules = [r for r in tomllib.loads(file.read_text(encoding="utf-8"))["rule"] if "kind" not in r]
    chosen = [pick(rules, rng), pick(rules, rng)]
    return _as_toml({"rule": [{**r, "id": f"own-{i}"} for i, r in enumerate(chosen)]}, rng)


def _make_device(rng: Rng) -> bytes:
    file = pick(sorted((ROOT / "rules" / "devices").glob("*.toml")), rng)
    return _as_toml(tomllib.loads(file.read_text(encoding="utf-8")), rng)


def _as_toml(tree: Any, rng: Rng) -> bytes:
    content = write_toml(edit_tree(tree, rng)).encode("utf-8", "replace")
    return spoil(content, rng) if rng.random() < 0.1 else content


def _make_data(rng: Rng) -> bytes:
    packed = io.BytesIO()
    np.savez(packed, x=np.ones((2, 8), np.float32))
    return edit_npz(packed.getvalue(), rng)


@functools.cache
def model() -> Path:
    """A sound model with one input `x` of 2 by 8 numbers, for files that are read beside one."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2, 8] x) => (float[2, 8] y) {
        [wide] a = MatMul(x, w)
        [exp] b = Exp(a)
        [soft] c = Softmax(b)
        [narrow] y = MatMul(c, v)
    }"""
    made = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (8, 64)), ("v", (64, 8))):
        weight = rng.normal(size=shape).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    file = Path(tempfile.mkdtemp(prefix="fuzz-model-")) / "sound.onnx"
    onnx.save(made, file)
    return file


# ---- PyTorch ----


@functools.cache
def _programs() -> tuple[bytes, ...]:
    """Exported programs: layers with weights and a buffer, and one with open sizes and control of them."""
    import torch

    class Open(torch.nn.Module):
        def forward(self, x: Any, n: int) -> Any:
            return torch.softmax(x.reshape(x.shape[0] * 2, -1) * n, -1).sum(dim=0)

    layers = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4), torch.nn.GELU())
    size = torch.export.Dim("size", min=2, max=64)
    found = []
    for module, args, shapes in (
        (layers, (torch.ones(2, 8),), None),
        (Open(), (torch.ones(4, 6), 3), {"x": {0: size}, "n": None}),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module.eval(), args, dynamic_shapes=shapes)
            packed = io.BytesIO()
            torch.export.save(program, packed)
        found.append(packed.getvalue())
    return tuple(found)


def _make_program(rng: Rng) -> bytes:
    return edit_archive(pick(_programs(), rng), rng)


_CONVERT: Final = ("convert", "FILE", "-o", "OUT", "--no-validate")
_BESIDE: Final = ("convert", "MODEL", "-o", "OUT", "--no-validate")

SUBJECTS: Final[Mapping[str, Subject]] = {
    "model": Subject(
        "model.onnx",
        _make_model,
        {"convert": _CONVERT, "analyze": ("analyze", "FILE")},
        {"convert": REFUSED, "analyze": frozenset({0, 1, 2, 3, 5})},
    ),
    "node": Subject(
        "model.onnx",
        _make_node_model,
        {"convert": _CONVERT, "analyze": ("analyze", "FILE")},
        {"convert": REFUSED, "analyze": frozenset({0, 1, 2, 3, 5})},
    ),
    "program": Subject("model.pt2", _make_program, {"convert": _CONVERT}, {"convert": REFUSED}, "out.pt2"),
    "plan": Subject("plan.json", _make_plan, {"convert": (*_BESIDE, "--plan", "FILE")}, {"convert": REFUSED}),
    "rules": Subject(
        "rules.toml",
        _make_rules,
        {"convert": (*_BESIDE, "--rules", "FILE")},
        {"convert": REFUSED},
    ),
    "device": Subject(
        "device.toml",
        _make_device,
        {"convert": (*_BESIDE, "--device", "FILE")},
        {"convert": REFUSED},
    ),
    "data": Subject(
        "data.npz",
        _make_data,
        {"convert": (*_BESIDE, "--data", "FILE"), "analyze": ("analyze", "MODEL", "--data", "FILE")},
        {"convert": REFUSED, "analyze": frozenset({0, 1, 2, 3, 5})},
    ),
}
