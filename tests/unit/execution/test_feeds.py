from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from fp16conv.errors import DataError, UsageError
from fp16conv.execution.feeds import load_feeds, parse_range, parse_shape, synthesize
from fp16conv.frontends.onnx import from_proto
from fp16conv.graph import ModelGraph


def graph(text: str) -> ModelGraph:
    return from_proto(
        onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {text}'), Path("m.onnx")
    ).graph


SIMPLE = graph(
    "g (float[n, 3] image, int64[n] label) => (float[n, 3] y) { y = Relu(image) z = Cast<to=1>(label) }"
)
GOOD = {"image": np.ones((2, 3), np.float32), "label": np.zeros(2, np.int64)}


def save(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def test_a_folder_gives_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for i in (2, 0, 1):
        save(tmp_path / f"b{i}.npz", {**GOOD, "label": np.full(2, i, np.int64)})
    feeds = load_feeds([tmp_path], SIMPLE)
    assert (feeds.origin, len(feeds)) == ("real", 3)
    for _ in range(2):  # a source can be read again
        assert [int(batch["label"][0]) for batch in feeds] == [0, 1, 2]
    assert "3 batches" in feeds.describe()


BAD = {
    "misspelt": ({**GOOD, "imgae": GOOD["image"]}, "did you mean"),
    "extra": ({**GOOD, "zzz": GOOD["image"]}, "not an input"),
    "missing": ({"image": GOOD["image"]}, "'label' is missing"),
    "dtype": ({**GOOD, "image": np.ones((2, 3))}, r"float64, the model wants float32.*astype"),
    "integer": ({**GOOD, "label": np.zeros(2, np.int32)}, "int32, the model wants int64"),
    "rank": ({**GOOD, "image": np.ones(3, np.float32)}, "rank 1 .* rank 2"),
    "shape": ({**GOOD, "image": np.ones((2, 4), np.float32)}, "2x4, the model wants nx3"),
    "pickled": ({**GOOD, "label": np.array([{}], object)}, "not a readable .npz"),
}


@pytest.mark.parametrize("name", BAD)
def test_data_that_does_not_fit_is_an_error(name: str, tmp_path: Path) -> None:
    arrays, message = BAD[name]
    if name == "misspelt":
        arrays = {k: v for k, v in arrays.items() if k != "image"}
    path = save(tmp_path / "d.npz", arrays)
    with pytest.raises(DataError, match=message) as caught:
        load_feeds([path], SIMPLE)
    assert str(path) in str(caught.value)


def test_files_that_are_no_data(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "one.npy", np.ones(2))
    (tmp_path / "empty").mkdir()
    for name in ("text.npz", "one.npy", "empty", "absent.npz"):
        with pytest.raises(DataError, match=name.split(".")[0]):
            load_feeds([tmp_path / name], SIMPLE)


def test_synthetic_inputs_are_deterministic_and_differ_between_batches() -> None:
    first, again = (list(synthesize(SIMPLE, seed=5)) for _ in range(2))
    other = list(synthesize(SIMPLE, seed=6))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a["image"], b["image"])
    assert not np.array_equal(first[0]["image"], first[1]["image"])
    assert not np.array_equal(first[0]["image"], other[0]["image"])
    assert first[0]["image"].shape[0] == first[0]["label"].shape[0] > 1
    assert synthesize(SIMPLE).origin == "synthetic"
    assert "synthetic" in synthesize(SIMPLE).describe()


def test_declared_shapes_and_ranges_are_kept() -> None:
    feeds = synthesize(
        SIMPLE, shapes={"image": (7, 3)}, ranges={"image": (0.25, 0.5), "label": (3, 4)}, batches=3
    )
    assert len(feeds) == 3
    for batch in feeds:
        assert batch["image"].shape == (7, 3)
        assert batch["label"].shape == (7,)  # the symbol n is bound by image
        assert batch["image"].dtype == np.float32
        assert batch["image"].min() >= 0.25
        assert batch["image"].max() <= 0.5
        assert set(batch["label"].tolist()) <= {3, 4}


def test_integers_stay_inside_the_table_they_index() -> None:
    g = graph(
        "g (int32[b, s] ids, float[50, 4] big, float[6, 4] table) => (float[b, s, 4] y) "
        "{ w = Cast<to = 7>(ids) u = Gather(big, w) y = Gather(table, w) }"
    )
    ids = np.concatenate([b["ids"].ravel() for b in synthesize(g, batches=4)])
    assert ids.dtype == np.int32
    assert ids.min() == 0
    assert ids.max() == 5


@pytest.mark.parametrize(
    "text",
    [
        "g (float[5] t, int64[3] i) => (float[m] y) { y = GatherElements<axis=1>(t, i) }",
        "g (float[5] t, int64[3] i) => (float[m] y) { y = Gather<axis=-2>(t, i) }",
        "g (float t, int64[3] i) => (float[m] y) { y = Gather(t, i) }",
        "g (float[5] t, int64[3] i) => (float[m] y) <int64[0] d = {}> { y = OneHot(i, d, t) }",
        "g (float[5] t, float[1,8,5] w, int32[3] i) => (float[m] y) { y = RNN<hidden_size=8>(t, w, w, , i) }",
    ],
)
def test_axes_that_a_table_lacks_say_nothing(text: str) -> None:
    batch = next(iter(synthesize(graph(text))))
    assert batch["i"].shape == (3,)


def test_masks_are_mostly_ones_and_lengths_fit() -> None:
    g = graph(
        "g (int64[b, s] attention_mask, int64[b, s] input_ids, int64[b] lengths, bool[b, s] pad_mask) "
        "=> (float[b] y) { y = Cast<to = 1>(lengths) m = Cast<to = 1>(attention_mask) "
        "t = Cast<to = 1>(pad_mask) i = Cast<to = 1>(input_ids) }"
    )
    first, second = synthesize(g)
    assert (first["attention_mask"] == 1).all()
    assert 0.5 < second["attention_mask"].mean() < 1.0
    assert (first["lengths"] == first["input_ids"].shape[1]).all()
    assert first["pad_mask"].dtype == np.bool_


def test_lengths_of_a_recurrent_net_and_scales_of_a_resize_are_valid() -> None:
    lstm = graph("""g (float[5,2,3] x, int32[2] valid) => (float[5,1,2,1] y)
        <float[1,4,3] w = {0}, float[1,4,1] r = {0}> { y = LSTM <hidden_size = 1> (x, w, r, , valid) }""")
    assert next(b["valid"].tolist() for b in synthesize(lstm)) == [5, 5]
    resize = graph("""g (float[1,1,4,4] x, float zoom) => (float[1,1,h,w] y)
        <float[2] ones = {1, 1}, int64[1] one = {1}> {
        z = Reshape(zoom, one)
        s = Concat <axis = 0> (ones, z, z)
        y = Resize (x, , s) }""")
    assert next(float(b["zoom"]) for b in synthesize(resize)) == 2.0


def test_unknown_names_and_wrong_shapes_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="did you mean 'image'"):
        synthesize(SIMPLE, shapes={"imag": (1, 3)})
    with pytest.raises(UsageError, match="did you mean 'label'"):
        synthesize(SIMPLE, ranges={"labels": (0, 1)})
    with pytest.raises(UsageError, match="2x4, the model wants nx3"):
        synthesize(SIMPLE, shapes={"image": (2, 4)})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("x=1x3x224x224", (1, 3, 224, 224)), ("a=b=4", (4,)), ("x=", ()), ("x=2,3", (2, 3))],
)
def test_parse_shape(text: str, expected: tuple[int, ...]) -> None:
    assert parse_shape(text) == (text.rpartition("=")[0], expected)


@pytest.mark.parametrize("text", ["x", "x=1xq", "=3", "x=-1", "x=1x"])
def test_parse_shape_rejects(text: str) -> None:
    with pytest.raises(UsageError, match="NAME=1x3x224x224"):
        parse_shape(text)


def test_parse_range() -> None:
    assert parse_range("x=-1:2.5") == ("x", (-1.0, 2.5))
    for text in ("x", "x=1", "x=a:b", "=0:1", "x=0:inf"):
        with pytest.raises(UsageError, match="NAME=LO:HI"):
            parse_range(text)
    with pytest.raises(UsageError, match=r"did you mean x=0:1\?"):
        parse_range("x=1:0")
