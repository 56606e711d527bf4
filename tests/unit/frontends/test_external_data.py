"""External data that is not what it should be: refused before it is opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from onnx import TensorProto

from fp16conv.errors import ModelError
from fp16conv.frontends.integrity import check_integrity
from fp16conv.frontends.onnx import load_onnx
from tests.unit.frontends.sound_model import make_model, weight


def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "w.bin")


def _device(folder: Path) -> None:
    (folder / "w.bin").symlink_to("/dev/zero")


def _circle(folder: Path) -> None:
    (folder / "w.bin").symlink_to(folder / "v.bin")
    (folder / "v.bin").symlink_to(folder / "w.bin")


def _folder(folder: Path) -> None:
    (folder / "w.bin").mkdir()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_fifo, "is no regular file"),
        (_device, "outside the model's folder"),
        (_circle, "w.bin"),
        (_folder, "is no regular file"),
        (lambda folder: None, "is missing"),
    ],
)
def test_external_data_that_is_no_file(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    model = make_model()
    tensor = weight(model)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    spoil(tmp_path)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=message):
        load_onnx(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    "location", ["a\0b", "x" * 300, "/etc/passwd", "../m.onnx", "", ".", "s/../../m.onnx"]
)
def test_names_of_external_data(tmp_path: Path, location: str) -> None:
    model = make_model()
    tensor = weight(model)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    with pytest.raises(ModelError, match="external data"):
        check_integrity(model, tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("key", "text"),
    [("offset", "-1"), ("length", "1e3"), ("length", "٣"), ("offset", str(2**70)), ("offset", "32")],
)
def test_extents_of_external_data(tmp_path: Path, key: str, text: str) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(32))
    model = make_model()
    tensor = weight(model)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    tensor.external_data.add(key=key, value=text)
    with pytest.raises(ModelError, match=r"offset or length|bytes"):
        check_integrity(model, tmp_path / "m.onnx")
