"""Plans, rules, devices and models that are not what they should be: one message, the code, no wait."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import onnx.parser
import pytest

from fp16conv.cli import run

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[4] x) => (float[4] y) { h = Relu(x) y = Relu(h) }"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(MODEL)
    model.graph.node[0].name, model.graph.node[1].name = "../../n", "/etc/n"
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "../h/0\n\x1b[2J"
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path


def _refused(args: list[object], code: int, capsys: pytest.CaptureFixture[str]) -> str:
    found = run([str(a) for a in args])
    err = capsys.readouterr().err
    assert (found, err.count("error:")) == (code, 1), err
    return err


@pytest.mark.parametrize("flag", ["--plan", "--rules", "--device", "--data"])
@pytest.mark.parametrize("kind", ["fifo", "device", "deep", "binary", "empty"])
def test_files_that_are_handed_in(
    folder: Path, flag: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "file.toml"
    deep = "[" * 100_000 if flag == "--plan" else "a = " + "[" * 100_000
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes({"deep": deep.encode(), "binary": b"\xff\x00" * 99, "empty": b""}[kind])
    if (flag, kind) == ("--rules", "empty"):
        pytest.skip("no rules are no error")
    args = ["convert", folder / "m.onnx", "-o", folder / "o.onnx", "--no-validate", flag, path]
    assert "file.toml" in _refused(args, 2, capsys)
    assert not (folder / "o.onnx").exists()


def test_names_are_not_paths(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {p.name for p in folder.iterdir()}
    args = ["convert", folder / "m.onnx", "-o", folder / "o.onnx", "--no-validate", "--verbose"]
    assert run([str(a) for a in args]) == 0
    shown = capsys.readouterr()
    assert "\x1b[2J" not in shown.out + shown.err
    assert {p.name for p in folder.iterdir()} == before | {"o.onnx"}


def test_a_hundred_megabytes_of_metadata(folder: Path) -> None:
    model = onnx.load(folder / "m.onnx")
    model.metadata_props.add(key="k", value="x" * 100_000_000)
    onnx.save(model, folder / "big.onnx")
    args = ["convert", folder / "big.onnx", "-o", folder / "o.onnx", "--no-validate", "--quiet"]
    assert run([str(a) for a in args]) == 0
    assert len(onnx.load(folder / "o.onnx").metadata_props[0].value) == 100_000_000


def test_sparse_initializers_that_are_astronomic_are_converted_but_not_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = MODEL.replace("h = Relu(x) y = Relu(h)", "h = Mul(x, w) y = Relu(h)")
    model = onnx.parser.parse_model(text)
    sparse = model.graph.sparse_initializer.add(dims=[2**50])
    sparse.values.CopyFrom(onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [1.0, 2.0]))
    sparse.indices.CopyFrom(onnx.helper.make_tensor("", onnx.TensorProto.INT64, [2], [0, 3]))
    onnx.save(model, folder / "sparse.onnx")
    assert run(["analyze", str(folder / "sparse.onnx"), "--quiet"]) == 0
    args = ["convert", folder / "sparse.onnx", "-o", folder / "o.onnx"]
    assert "reads sparse initializers" in _refused(args, 5, capsys)
    assert run([str(a) for a in [*args, "--no-validate", "--quiet"]]) == 0
