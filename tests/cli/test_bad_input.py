"""Bad input against the real pipeline: one paragraph on stderr, the documented code, nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

OUTPUT = "out.onnx"


def make_model(weights: str | None = None, *, inputs: str = "x") -> onnx.ModelProto:
    """y = Relu(x @ w) with a weight of 4x4, external in the file `weights` if given."""
    weight = helper.make_tensor(
        "w", TensorProto.FLOAT, [4, 4], np.eye(4, dtype=np.float32).tobytes(), raw=True
    )
    if weights is not None:
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=weights)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", [inputs, "w"], ["h"], name="/layer/MatMul"),
            helper.make_node("Relu", ["h"], ["y"], name="/layer/Relu"),
        ],
        "net",
        [helper.make_tensor_value_info(inputs, TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(make_model(), tmp_path / "m.onnx")
    np.savez(tmp_path / "good.npz", x=np.ones((2, 4), np.float32))
    return tmp_path


def refuses(done: Any, code: int, *expected: str) -> None:
    assert (done.code, done.out) == (code, ""), done.err
    lines = [row for row in done.err.splitlines() if not row.startswith("fp16conv: ")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    for text in expected:
        assert text in lines[0]


# ---- models ----


def _text(folder: Path) -> None:
    (folder / "bad.onnx").write_text("this is not a model\n" * 50, encoding="utf-8")


def _empty(folder: Path) -> None:
    (folder / "bad.onnx").write_bytes(b"")


def _truncated(folder: Path) -> None:
    data = (folder / "m.onnx").read_bytes()
    (folder / "bad.onnx").write_bytes(data[: len(data) * 2 // 3])


def _absent(folder: Path) -> None:
    (folder / "bad.onnx").unlink(missing_ok=True)


def _directory(folder: Path) -> None:
    (folder / "bad.onnx").mkdir()


def _missing_data(folder: Path) -> None:
    (folder / "bad.onnx").write_bytes(make_model("weights.bin").SerializeToString())


def _outside(folder: Path) -> None:
    (folder.parent / "secret.bin").write_bytes(np.eye(4, dtype=np.float32).tobytes())
    (folder / "bad.onnx").write_bytes(make_model("../secret.bin").SerializeToString())


def _outside_by_link(folder: Path) -> None:
    (folder.parent / "secret.bin").write_bytes(np.eye(4, dtype=np.float32).tobytes())
    (folder / "weights.bin").symlink_to(folder.parent / "secret.bin")
    (folder / "bad.onnx").write_bytes(make_model("weights.bin").SerializeToString())


def _absolute(folder: Path) -> None:
    (folder.parent / "secret.bin").write_bytes(np.eye(4, dtype=np.float32).tobytes())
    location = str(folder.parent / "secret.bin")
    (folder / "bad.onnx").write_bytes(make_model(location).SerializeToString())


def _short_data(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"\0" * 10)
    (folder / "bad.onnx").write_bytes(make_model("weights.bin").SerializeToString())


def _short_extent(folder: Path) -> None:
    model = make_model("weights.bin")
    model.graph.initializer[0].external_data.add(key="length", value="10")
    (folder / "weights.bin").write_bytes(b"\0" * 64)
    (folder / "bad.onnx").write_bytes(model.SerializeToString())


def _short_inline(folder: Path) -> None:
    model = make_model()
    model.graph.initializer[0].raw_data = b"\0" * 10
    (folder / "bad.onnx").write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (_text, "ONNX"),
        (_empty, "ONNX"),
        (_truncated, "truncated"),
        (_absent, "no such file"),
        (_directory, "folder"),
        (_missing_data, "weights.bin"),
        (_outside, "secret.bin"),
        (_outside_by_link, "weights.bin"),
        (_absolute, "secret.bin"),
        (_short_data, "64 bytes, but there are 10"),
        (_short_extent, "64 bytes, but there are 10"),
        (_short_inline, "64 bytes, but there are 10"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
@pytest.mark.parametrize("verb", ["analyze", "convert", "validate"])
def test_unreadable_models(
    cli: Any, folder: Path, verb: str, spoil: Callable[[Path], None], expected: str
) -> None:
    spoil(folder)
    args = {"analyze": [], "convert": ["-o", folder / OUTPUT], "validate": [folder / "m.onnx"]}[verb]
    refuses(cli(verb, folder / "bad.onnx", *args), 3, "bad.onnx", expected)
    assert not (folder / OUTPUT).exists()


# ---- outputs ----


def test_output_is_the_input(cli: Any, folder: Path) -> None:
    before = (folder / "m.onnx").read_bytes()
    refuses(cli("convert", folder / "m.onnx", "-o", folder / "m.onnx"), 2, "m.onnx", "input")
    assert (folder / "m.onnx").read_bytes() == before


def test_output_is_the_input_s_weights(cli: Any, folder: Path) -> None:
    data = np.eye(4, dtype=np.float32).tobytes()
    (folder / "weights.bin").write_bytes(data)
    (folder / "e.onnx").write_bytes(make_model("weights.bin").SerializeToString())
    done = cli("convert", folder / "e.onnx", "-o", folder / "weights.bin")
    assert (done.code, done.out) == (2, ""), done.err
    assert (folder / "weights.bin").read_bytes() == data


@pytest.mark.parametrize("verb", ["convert", "plan"])
def test_unwritable_outputs(cli: Any, folder: Path, verb: str) -> None:
    (folder / "file").write_bytes(b"")
    for target in (folder / "none" / OUTPUT, folder / "file" / OUTPUT, folder):
        done = cli(verb, folder / "m.onnx", "-o", target)
        refuses(done, done.code)
        assert done.code in (2, 4)
    assert sorted(p.name for p in folder.iterdir()) == ["file", "good.npz", "m.onnx"]


# ---- data ----


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"z": np.ones((2, 4), np.float32)}, "x"),
        ({"x": np.ones((2, 4), np.float32), "extra": np.ones(1)}, "extra"),
        ({"x": np.ones((2, 5), np.float32)}, "x"),
        ({"x": np.ones(4, np.float32)}, "x"),
        ({"x": np.ones((2, 4), np.int64)}, "x"),
        ({"x": np.array([["a"] * 4])}, "x"),
        ({}, "x"),
    ],
    ids=["name", "extra", "dimension", "rank", "dtype", "string", "empty"],
)
def test_feeds_that_do_not_fit(cli: Any, folder: Path, arrays: dict[str, np.ndarray], expected: str) -> None:
    np.savez(folder / "bad.npz", **arrays)
    refuses(cli("analyze", folder / "m.onnx", "--data", folder / "bad.npz"), 2, "bad.npz", expected)


def test_data_that_breaks_the_fp32_model(cli: Any, folder: Path) -> None:
    np.savez(folder / "nan.npz", x=np.full((2, 4), np.nan, np.float32))
    result = cli("analyze", folder / "m.onnx", "--data", folder / "nan.npz")
    assert (result.code, "fp32-not-finite" in result.out) == (1, True), result


def test_a_second_batch_that_does_not_fit(cli: Any, folder: Path) -> None:
    np.savez(folder / "later.npz", x=np.ones((2, 5), np.float32))
    done = cli("analyze", folder / "m.onnx", "--data", folder / "good.npz", "--data", folder / "later.npz")
    refuses(done, 2, "later.npz")


def test_data_that_cannot_be_read(cli: Any, folder: Path) -> None:
    (folder / "text.npz").write_text("no", encoding="utf-8")
    (folder / "none").mkdir()
    np.savez(folder / "pickle.npz", x=np.array([{"a": 1}], dtype=object))
    for name in ("text.npz", "none", "pickle.npz", "absent.npz"):
        refuses(cli("analyze", folder / "m.onnx", "--data", folder / name), 2, name)


def test_labels_that_are_not_there(cli: Any, folder: Path) -> None:
    done = cli(
        "validate", folder / "m.onnx", folder / "m.onnx", "--data", folder / "good.npz", "--labels", "truth"
    )
    refuses(done, 2, "truth")


# ---- names ----


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--keep-fp32", "/layr/*"], "/layr/*"),
        (["--force-fp16", "/layer/Relo"], "/layer/Relu"),
        (["--keep-fp32", "type:Rellu"], "did you mean 'type:Relu'?"),
        (["--keep-fp32", "type:Softmax"], "patterns are globs"),
        (["--shape", "X=1x4"], "x"),
        (["--shape", "x=1x5"], "x"),
        (["--input-range", "q=0:1"], "x"),
        (["--rules", "none.toml"], "none.toml"),
        (["--device", "none.toml"], "none.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_misspelt_names(cli: Any, folder: Path, args: list[str], expected: str) -> None:
    refuses(cli("analyze", folder / "m.onnx", *args), 2, expected)


# ---- plans ----


def test_plans_that_do_not_fit(cli: Any, folder: Path) -> None:
    onnx.save(make_model(inputs="other"), folder / "other.onnx")
    assert cli("plan", folder / "other.onnx", "-o", folder / "other.json").code == 0
    done = cli("convert", folder / "m.onnx", "-o", folder / OUTPUT, "--plan", folder / "other.json")
    refuses(done, 2, "other.json")
    (folder / "broken.json").write_text("{", encoding="utf-8")
    (folder / "list.json").write_text(json.dumps([1]), encoding="utf-8")
    for name in ("broken.json", "list.json", "absent.json"):
        done = cli("convert", folder / "m.onnx", "-o", folder / OUTPUT, "--plan", folder / name)
        refuses(done, 2, name)
    assert not (folder / OUTPUT).exists()


# ---- validation that cannot run ----


def test_models_with_different_outputs_cannot_be_compared(cli: Any, folder: Path) -> None:
    model = make_model()
    model.graph.node[1].output[0] = model.graph.output[0].name = "renamed"
    onnx.save(model, folder / "other.onnx")
    refuses(cli("validate", folder / "m.onnx", folder / "other.onnx"), 5, "renamed")


# ---- and the good way ----


def test_a_model_goes_all_the_way(cli: Any, folder: Path) -> None:
    model, output, data = folder / "m.onnx", folder / OUTPUT, folder / "good.npz"
    audit = cli("analyze", model, "--data", data, "--format", "json")
    assert audit.code == 0, audit.err
    assert json.loads(audit.out)["decisions"]["fp16"] == 2
    planned = cli("plan", model, "--data", data, "-o", folder / "plan.json")
    assert planned.code == 0, planned.err
    done = cli("convert", model, "-o", output, "--plan", folder / "plan.json", "--format", "json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["validation"]["ok"] is True
    checked = cli("validate", model, output, "--data", data, "--format", "json", "--provider", "emulated")
    assert checked.code == 0, checked.err
    weight = onnx.load(output).graph.initializer[0]
    assert weight.data_type == TensorProto.FLOAT16


def test_a_plan_on_stdout_is_the_plan(cli: Any, folder: Path) -> None:
    done = cli("plan", folder / "m.onnx")
    assert json.loads(done.out)["schema"].startswith("fp16conv.plan/")
