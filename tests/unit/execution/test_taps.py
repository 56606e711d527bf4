from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from fp16conv.execution.failures import RuntimeFailure
from fp16conv.execution.runtime import Feeds, Results, Runtime, SessionHandle
from fp16conv.execution.staging import share_weights
from fp16conv.execution.taps import observable, tap
from fp16conv.frontends.onnx import LoadedModel, from_proto, load_onnx

TEXT = """<ir_version: 9, opset_import: ["": 18]>
g (float[n, 4] x, bool c) => (float[n, 4] y, float[n] s) {
  a = Mul(x, x)
  axes = Constant<value_ints = [1]>()
  s = ReduceSum<keepdims = 0>(a, axes)
  b = If(c) <
    then_branch = t () => (float[n, 4] p) { p = Neg(a) },
    else_branch = e () => (float[n, 4] q) { q = Abs(a) }
  >
  y = Add(a, b)
}"""


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return from_proto(onnx.parser.parse_model(TEXT), Path("m.onnx"))


def feeds(n: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(4 * n, dtype=np.float32).reshape(n, 4), "c": np.array(True)}


@pytest.mark.parametrize("limit", [1, 200, 2**20])
def test_every_value_once_per_batch_whatever_the_limit(
    limit: int, loaded: LoadedModel, runtime: Runtime
) -> None:
    ids = {v.name: v.id for v in loaded.graph.values}
    found = {}
    for batch, value, array in tap(loaded, runtime, [feeds(2), feeds(3)], list(ids.values()), limit):
        assert (batch, value) not in found
        found[batch, value] = array
    for batch, n in enumerate((2, 3)):
        x = feeds(n)["x"]
        np.testing.assert_array_equal(found[batch, ids["x"]], x)
        np.testing.assert_array_equal(found[batch, ids["a"]], x * x)
        np.testing.assert_array_equal(found[batch, ids["b"]], -x * x)
        np.testing.assert_array_equal(found[batch, ids["y"]], x * x - x * x)
        np.testing.assert_array_equal(found[batch, ids["s"]], (x * x).sum(1))


def test_outputs_declared_without_an_element_type(runtime: Runtime) -> None:
    model = onnx.parser.parse_model(TEXT)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.UNDEFINED
    loaded = from_proto(model, Path("m.onnx"))
    (y,) = (v.id for v in loaded.graph.values if v.name == "y")
    with pytest.raises(RuntimeFailure):  # ONNX Runtime wants a type; planning what to read must not
        list(tap(loaded, runtime, [feeds(2)], [y]))


def test_values_inside_subgraphs_and_constants_are_not_observable(loaded: LoadedModel) -> None:
    names = {loaded.graph.values[v].name for v in observable(loaded.graph, range(len(loaded.graph.values)))}
    assert names == {"x", "c", "a", "s", "b", "y"}


def test_the_model_stays_as_it_was(loaded: LoadedModel, runtime: Runtime) -> None:
    before = [v.name for v in loaded.model.graph.outputs]
    list(tap(loaded, runtime, [feeds(2)], [v.id for v in loaded.graph.values]))
    assert [v.name for v in loaded.model.graph.outputs] == before


def test_weights_are_written_once_for_all_chunks(tmp_path: Path, runtime: Runtime) -> None:
    """External weights: one copy in our folder, none in the model's, small files per chunk."""
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[4096] x) => (float[4096] y) '
        "{ a = Add(x, w) y = Neg(a) }"
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4096, np.float32), "w"))
    folder = tmp_path / "model"
    folder.mkdir()
    onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    loaded = load_onnx(folder / "m.onnx")
    ids = [v.id for v in loaded.graph.values if v.name in ("a", "y")]
    found = {v: a for _, v, a in tap(loaded, runtime, [{"x": np.zeros(4096, np.float32)}], ids, 1)}
    assert [float(found[i][0]) for i in ids] == [1.0, -1.0]
    assert sorted(p.name for p in folder.iterdir()) == ["m.onnx", "w.bin"]

    shared = share_weights(loaded.model.clone(), tmp_path)
    clone = loaded.model.clone()
    with_weights = share_weights(clone, tmp_path)
    first, second = with_weights.write(clone), with_weights.write(clone)
    assert isinstance(first, Path)
    assert isinstance(second, Path)
    assert first.parent == second.parent
    assert first.stat().st_size < 4096
    assert [p.name for p in first.parent.glob("*.bin")] == ["weights.bin"]
    for folder_ in (shared, with_weights):
        folder_.close()
    assert not first.parent.exists()


@pytest.mark.parametrize("dim", ["n", ""])
def test_inputs_show_how_large_values_are_before_any_is_read(
    dim: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A size that only the data shows, by its name or by the input's own size alone."""
    lines = "".join(f"v{i + 1} = Relu(v{i})\n" for i in range(8))
    text = f'<ir_version: 9, opset_import: ["": 18]> g (float[n] v0) => (float[n] v8) {{ {lines} }}'
    proto = onnx.parser.parse_model(text)
    if not dim:
        for info in (*proto.graph.input, *proto.graph.output):
            info.type.tensor_type.shape.dim[0].ClearField("value")
    model = from_proto(proto, Path("m.onnx"))
    chunks = []
    run = Runtime.run

    def record(self: Runtime, session: SessionHandle, feeds: Feeds, outputs: Sequence[str]) -> Results:
        chunks.append(len(outputs))
        return run(self, session, feeds, outputs)

    monkeypatch.setattr(Runtime, "run", record)
    size = 2**20  # numbers; an input of 4 MiB
    batch = {"v0": np.ones(size, np.float32)}
    found = list(tap(model, runtime, [batch], range(len(model.graph.values)), 2 * 4 * size))
    assert len(found) == 9
    assert max(chunks) <= 2
    assert sum(chunks) == 8
