from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from fp16conv.batch.cache import Cache, digest_job
from fp16conv.batch.jobs import Job, Outcome

LONG = "weights-" + "x" * 150 + ".bin"  # its length takes two bytes of varint


def _save(folder: Path, *, external: str | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    weight = onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, [1, 64])],
        [onnx.helper.make_tensor_value_info("y", 1, [1, 64])],
        [weight],
    )
    path = folder / "model.onnx"
    options = (
        {} if external is None else {"save_as_external_data": True, "location": external, "size_threshold": 0}
    )
    onnx.save(onnx.helper.make_model(graph), path, **options)
    return path


def test_bytes_rules_and_options_count_the_folder_and_the_timeout_do_not(tmp_path: Path) -> None:
    path = _save(tmp_path / "a")
    (tmp_path / "b").mkdir()
    moved = shutil.copy(path, tmp_path / "b")
    job = Job(str(path))
    base = digest_job(job, "rules")
    assert digest_job(Job(str(moved), timeout=3.0), "rules") == base
    others = [
        digest_job(job, "other"),
        digest_job(dataclasses.replace(job, arguments=("--profile", "fast")), "rules"),
        digest_job(dataclasses.replace(job, memory_limit=10), "rules"),
        digest_job(dataclasses.replace(job, html=True), "rules"),
    ]
    path.write_bytes(path.read_bytes() + b"\0")
    others.append(digest_job(job, "rules"))
    assert len({base, *others}) == 6


def test_files_among_the_arguments_count_by_their_bytes(tmp_path: Path) -> None:
    path = _save(tmp_path)
    device = tmp_path / "device.toml"
    device.write_text("a = 1", encoding="utf-8")
    job = Job(str(path), ("--device", str(device)))
    before = digest_job(job, "")
    device.write_text("a = 2", encoding="utf-8")
    assert digest_job(job, "") != before


def test_external_data_counts(tmp_path: Path) -> None:
    for number, name in enumerate(("w.bin", LONG)):
        path = _save(tmp_path / str(number), external=name)
        before = digest_job(Job(str(path)), "")
        weights = path.parent / name
        weights.write_bytes(b"\1" + weights.read_bytes()[1:])
        changed = digest_job(Job(str(path)), "")
        weights.unlink()
        assert len({before, changed, digest_job(Job(str(path)), "")}) == 3


def test_files_outside_of_the_folder_are_not_read(tmp_path: Path) -> None:
    path = _save(tmp_path / "m", external="secret")
    (tmp_path / "m" / "secret").unlink()
    (tmp_path / "secret").write_bytes(b"one")
    (tmp_path / "m" / "secret").symlink_to(tmp_path / "secret")
    before = digest_job(Job(str(path)), "")
    (tmp_path / "secret").write_bytes(b"two")
    assert digest_job(Job(str(path)), "") == before


def test_what_has_a_report_is_kept_and_a_damaged_entry_is_none(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new" / "cache")
    outcome = Outcome(0, 1.5, {"schema": "fp16conv.analyze/1"}, "<html>", "")
    cache.keep("a", outcome)
    cache.keep("b", Outcome(-11, 1.0))
    assert cache.find("a") == outcome
    assert cache.find("b") is None
    for damage in (
        "",
        "{}",
        '{"schema": "fp16conv.audit-cache/1", "outcome": {"report": {}, "no": 1}}',
        "[1]",
    ):
        (tmp_path / "new" / "cache" / "a.json").write_text(damage, encoding="utf-8")
        assert cache.find("a") is None
