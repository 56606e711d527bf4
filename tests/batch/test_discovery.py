from __future__ import annotations

from pathlib import Path

import pytest

from fp16conv.batch import find_models
from fp16conv.errors import UsageError


def _touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def test_folders_are_searched_in_order_without_hidden_ones_and_links(tmp_path: Path) -> None:
    _touch(
        tmp_path / "b.onnx", tmp_path / "a" / "z.pt2", tmp_path / "a" / "x.txt", tmp_path / ".git" / "c.onnx"
    )
    (tmp_path / "loop").symlink_to(tmp_path)
    assert find_models([tmp_path]) == [str(tmp_path / "b.onnx"), str(tmp_path / "a" / "z.pt2")]


def test_lists_are_relative_to_themselves_and_may_name_what_is_gone(tmp_path: Path) -> None:
    _touch(tmp_path / "here.onnx")
    models = tmp_path / "models.txt"
    models.write_text("# nightly\nhere.onnx\n\ngone.onnx\n", encoding="utf-8")
    assert find_models([models]) == [str(tmp_path / "here.onnx"), str(tmp_path / "gone.onnx")]


def test_a_model_counts_once_and_any_ending_will_do_when_it_is_named(tmp_path: Path) -> None:
    _touch(tmp_path / "a.onnx", tmp_path / "b.model")
    (tmp_path / "again.onnx").symlink_to(tmp_path / "a.onnx")
    found = find_models([tmp_path / "a.onnx", tmp_path, tmp_path / "b.model"])
    assert found == [str(tmp_path / "a.onnx"), str(tmp_path / "b.model")]


def test_nothing_to_look_at_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no models"):
        find_models([tmp_path])
    with pytest.raises(UsageError, match="no such file"):
        find_models([tmp_path / "typo"])
