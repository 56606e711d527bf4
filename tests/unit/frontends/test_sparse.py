"""Sparse initializers: dense where models run, sparse in files, refused to run where they are not sound."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import fp16conv
from fp16conv.errors import ValidationError
from fp16conv.frontends import sparse
from fp16conv.frontends.onnx import LoadedModel, from_proto
from fp16conv.frontends.sparse import stray_weights

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[4, 2] x, bool c) => (float[4, 3] z) {
    [product] y = MatMul(x, w)
    t = If(c) <then_branch = a () => (float[4, 3] p) { p = Exp(y) }, else_branch = b () => (float[4, 3] q) { q = Neg(y) }>
    z = Mul(t, y)
}"""  # noqa: E501
PLACES = np.array([0, 5], np.int64)
COORDINATES = np.array([[0, 0], [1, 2]], np.int64)
NUMBERS = np.array([1.0, 0.1], np.float32)
DENSE = np.array([[1.0, 0, 0], [0, 0, 0.1]], np.float32)


def make(indices: np.ndarray = PLACES, dims: tuple[int, ...] = (2, 3), text: str = TEXT) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(text)
    values = numpy_helper.from_array(NUMBERS, "w")
    made = helper.make_sparse_tensor(values, numpy_helper.from_array(indices, "i"), dims)
    proto.graph.sparse_initializer.append(made)
    return proto


def load(proto: onnx.ModelProto) -> LoadedModel:
    return from_proto(proto, Path("m.onnx"))


@pytest.mark.parametrize("indices", [PLACES, COORDINATES], ids=["places", "coordinates"])
def test_both_forms_of_indices(indices: np.ndarray, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        weights = stray_weights(load(make(indices)).model)
    assert not caplog.records
    (weight,) = weights.values()
    assert weight.const_value is not None
    np.testing.assert_array_equal(weight.const_value.numpy(), DENSE)


@pytest.mark.parametrize(
    ("indices", "dims"),
    [
        (np.array([0, 6], np.int64), (2, 3)),
        (np.array([-1, 5], np.int64), (2, 3)),
        (np.array([[0, 0], [2, 0]], np.int64), (2, 3)),
        (np.array([[0, 0, 0], [1, 2, 0]], np.int64), (2, 3)),
        (np.array([0], np.int64), (2, 3)),
        (PLACES, (2**40, 2**20)),
    ],
)
def test_what_is_not_sound_has_no_dense_form(indices: np.ndarray, dims: tuple[int, ...]) -> None:
    assert stray_weights(load(make(indices, dims)).model) == {}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    onnx.save(make(), tmp_path / "m.onnx")
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
    np.savez(tmp_path / "x.npz", x=x, c=np.array(True))
    return tmp_path


def test_it_is_observed_compared_and_stays_sparse(files: Path) -> None:
    data = [files / "x.npz"]
    report = fp16conv.convert(files / "m.onnx", files / "h.onnx", data=data, force_fp16=["type:Mul"])
    assert report.validation is not None
    assert report.validation.ok
    assert 0 < report.validation.backends[0].outputs[0].rel_l2 < 1e-2  # FP16 was rounded
    assert [f.rule for f in report.findings if "state" in f.rule] == []
    (note,) = [f for f in report.findings if f.rule == "sparse-stays-fp32"]
    assert note.message.startswith("w: ")
    result = onnx.load(files / "h.onnx")
    assert [s.values.name for s in result.graph.sparse_initializer] == ["w"]
    assert not result.graph.initializer
    assert fp16conv.validate(files / "m.onnx", files / "h.onnx", data=data).validation.ok
    audit = fp16conv.analyze(files / "m.onnx", data=data)
    assert audit.half is not None
    assert audit.half.rel_l2 is not None


def test_a_wrong_candidate_is_found(files: Path) -> None:
    """The dense form is really what is compared: other numbers in it fail."""
    other = make()
    other.graph.sparse_initializer[0].values.CopyFrom(numpy_helper.from_array(2 * NUMBERS, "w"))
    onnx.save(other, files / "other.onnx")
    assert not fp16conv.validate(files / "m.onnx", files / "other.onnx", data=[files / "x.npz"]).validation.ok


def test_the_runtime_reads_the_same_numbers(files: Path) -> None:
    dense = make()
    del dense.graph.sparse_initializer[:]
    dense.graph.initializer.append(numpy_helper.from_array(DENSE, "w"))
    with np.load(files / "x.npz") as arrays:
        feed = dict(arrays)
    results = [
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, feed
        )
        for m in (make(), dense)
    ]
    np.testing.assert_array_equal(*results)


def test_too_large_to_be_run(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "MAX_ELEMENTS", 5)
    with pytest.raises(ValidationError, match="too large as dense tensors"):
        fp16conv.convert(files / "m.onnx", files / "h.onnx", data=[files / "x.npz"])
    assert not (files / "h.onnx").exists()
