from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fp16conv.conversion import save as save_module
from fp16conv.conversion.onnx import convert
from fp16conv.conversion.save import save
from fp16conv.errors import ConversionError, UsageError
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from tests.roundtrip.plans import all_fp16, make_plan
from tests.unit.conversion.models import load_proto, parse

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[400] x) => (float[400] y) {
   [k] c = Constant <value = float[1] {2.0}> ()
   [a] t = Mul(x, w) [b] u = Add(t, w) [d] v = Mul(u, c) [e] y = Add(v, v2)
}"""


def _proto() -> onnx.ModelProto:
    proto = parse(TEXT)
    for name in ("w", "v2"):
        proto.graph.initializer.append(numpy_helper.from_array(np.arange(400, dtype=np.float32), name))
    return proto


@pytest.fixture
def inline(tmp_path: Path) -> LoadedModel:
    return load_proto(tmp_path / "in", _proto())


@pytest.fixture
def external(tmp_path: Path) -> LoadedModel:
    folder = tmp_path / "in"
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(_proto(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return load_onnx(path)


def _convert_and_save(loaded: LoadedModel, path: Path) -> tuple[Path, ...]:
    return save(convert(loaded, all_fp16(loaded.graph)), path, loaded)


def _mixed(loaded: LoadedModel, path: Path) -> tuple[Path, ...]:
    """Weight `w` is needed in both precisions, `v2` stays FP32."""
    plan = make_plan(loaded.graph, lambda tv: tv.op is not None and loaded.graph.ops[tv.op].label == "a")
    return save(convert(loaded, plan), path, loaded)


def _weights(path: Path) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def test_inline_stays_inline(inline: LoadedModel, tmp_path: Path) -> None:
    written = _convert_and_save(inline, tmp_path / "out.onnx")
    assert written == (tmp_path / "out.onnx",)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out.onnx"]
    assert _weights(written[0])["w"].dtype == np.float16


def test_external_stays_external_with_the_same_numbers(external: LoadedModel, tmp_path: Path) -> None:
    written = _mixed(external, tmp_path / "out.onnx")
    assert written == (tmp_path / "out.onnx", tmp_path / "out.data")
    headers = onnx.load(written[0], load_external_data=False).graph.initializer
    assert all(t.data_location == onnx.TensorProto.EXTERNAL for t in headers)
    weights = _weights(written[0])
    numbers = np.arange(400, dtype=np.float32)
    assert {name: w.dtype.name for name, w in weights.items()} == {
        "w": "float32",
        "v2": "float32",
        "w__fp16": "float16",
    }
    assert all(np.array_equal(w, numbers) for w in weights.values())
    onnx.checker.check_model(str(written[0]), full_check=True)


def test_the_bytes_are_the_same_each_time(external: LoadedModel, tmp_path: Path) -> None:
    first = [p.read_bytes() for p in _convert_and_save(external, tmp_path / "out.onnx")]
    second = [p.read_bytes() for p in _convert_and_save(load_onnx(external.path), tmp_path / "out.onnx")]
    assert first == second


def test_too_much_for_one_protobuf_goes_out_by_itself(
    inline: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_module, "MAX_INLINE", 1000)
    monkeypatch.setattr(save_module, "MIN_EXTERNAL", 100)
    written = _convert_and_save(inline, tmp_path / "out.onnx")
    assert written[1].stat().st_size == 2 * 400 * 2
    assert _weights(written[0])["w"].tolist() == list(range(400))


def test_large_tensors_start_on_a_page(
    tmp_path: Path, external: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_module, "ALIGNED_FROM", 100)
    written = _convert_and_save(external, tmp_path / "out.onnx")
    headers = onnx.load(written[0], load_external_data=False).graph.initializer
    offsets = [int(e.value) for t in headers for e in t.external_data if e.key == "offset"]
    assert [offset % 4096 for offset in offsets] == [0, 0]
    assert _weights(written[0])["v2"].tolist() == list(range(400))


def _link(kind: Callable[[Path, Path], None]) -> Callable[[LoadedModel, Path], Path]:
    def make(loaded: LoadedModel, folder: Path) -> Path:
        kind(loaded.path, folder / "link.onnx")
        return folder / "link.onnx"

    return make


@pytest.mark.parametrize(
    "target",
    [
        lambda loaded, folder: loaded.path,
        _link(os.symlink),
        _link(os.link),
        lambda loaded, folder: loaded.path.parent / "weights.bin",
        lambda loaded, folder: folder / "missing" / "out.onnx",
        lambda loaded, folder: folder,
    ],
    ids=["itself", "symlink", "hardlink", "its-weights", "missing-folder", "a-folder"],
)
def test_targets_that_are_refused(
    external: LoadedModel, tmp_path: Path, target: Callable[[LoadedModel, Path], Path]
) -> None:
    folder = external.path.parent
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(UsageError):
        _convert_and_save(external, target(external, tmp_path))
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_weights_of_another_model_are_not_replaced(external: LoadedModel, tmp_path: Path) -> None:
    data = tmp_path / "out.data"
    data.write_bytes(b"theirs")
    with pytest.raises(UsageError, match="belongs to another model"):
        _convert_and_save(external, tmp_path / "out.onnx")
    assert data.read_bytes() == b"theirs"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out.data"]


def test_the_input_weights_are_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(_proto(), path, save_as_external_data=True, location="out.data", size_threshold=0)
    loaded = load_onnx(path)
    with pytest.raises(UsageError, match="the input's weight file"):
        _convert_and_save(loaded, tmp_path / "out.onnx")


def test_a_failed_check_leaves_nothing_and_keeps_what_was_there(inline: LoadedModel, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    target.write_bytes(b"old")
    seen: list[bool] = []

    def check(staged: Path) -> None:
        seen.append(staged.parent.parent == tmp_path and load_onnx(staged).graph.ops[0].op_type == "Cast")
        raise ConversionError("not good enough")

    with pytest.raises(ConversionError, match="not good enough"):
        save(convert(inline, all_fp16(inline.graph)), target, inline, check=check)
    assert seen == [True]
    assert target.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out.onnx"]


@pytest.mark.parametrize("failing", [1, 2])
def test_a_full_disk_leaves_nothing(
    external: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    calls: list[int] = []

    def sync(number: int) -> None:
        calls.append(number)
        if len(calls) == failing:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(ConversionError, match="No space left on device"):
        _convert_and_save(external, tmp_path / "out.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


def test_saving_leaves_the_converted_model_usable(external: LoadedModel, tmp_path: Path) -> None:
    model = convert(external, all_fp16(external.graph))
    first = save(model, tmp_path / "a.onnx", external)
    second = save(model, tmp_path / "b.onnx", external)
    assert first[1].read_bytes() == second[1].read_bytes()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_or_device_is_never_replaced_by_the_model(inline: LoadedModel, tmp_path: Path) -> None:
    pipe = tmp_path / "out.onnx"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="no regular file"):
        _convert_and_save(inline, pipe)
    assert pipe.is_fifo()


def test_a_model_gets_no_name_of_a_weight_file(external: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the name that a weight file gets"):
        _convert_and_save(external, tmp_path / "out.data")
    assert not (tmp_path / "out.data").exists()
