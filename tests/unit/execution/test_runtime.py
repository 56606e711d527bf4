from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from fp16conv.errors import ValidationError
from fp16conv.execution.failures import RuntimeFailure
from fp16conv.execution.runtime import Runtime

RELU = '<ir_version: 9, opset_import: ["": 18]> g (float[n, 3] x) => (float[n, 3] y) { y = Relu(x) }'
X = np.array([[-1.0, 0.0, 2.0]], np.float32)


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


def test_bytes_path_and_ir_model_run_alike(runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(parse(RELU), path)
    for source in (path.read_bytes(), path, str(path), ir.from_proto(parse(RELU))):
        session = runtime.load(source)
        assert [i.name for i in session.inputs] == ["x"]
        assert session.outputs[0].type == "tensor(float)"
        assert session.providers == ("CPUExecutionProvider",)
        np.testing.assert_array_equal(runtime.run(session, {"x": X})["y"], np.maximum(X, 0))


def test_only_the_outputs_asked_for(runtime: Runtime) -> None:
    text = (
        '<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (float[2] y, float[2] z) '
        "{ y = Neg(x) z = Abs(x) }"
    )
    session = runtime.load(parse(text).SerializeToString())
    assert list(runtime.run(session, {"x": np.ones(2, np.float32)}, ["z"])) == ["z"]


def test_a_refused_model_is_a_finding_about_the_runtime(runtime: Runtime) -> None:
    with pytest.raises(RuntimeFailure) as caught:
        runtime.load(b"not a model")
    failure = caught.value
    assert (failure.stage, failure.runtime, failure.signal) == ("load", "ONNX Runtime", None)
    assert failure.version == runtime.version
    assert failure.version[0].isdigit()
    assert "INVALID_PROTOBUF" in failure.message
    assert isinstance(failure, ValidationError)


def test_a_failing_run_leaves_the_runtime_usable(runtime: Runtime) -> None:
    session = runtime.load(parse(RELU).SerializeToString())
    with pytest.raises(RuntimeFailure, match="failed while running") as caught:
        runtime.run(session, {"x": X.astype(np.float64)})
    assert caught.value.stage == "run"
    assert not caught.value.crashed
    np.testing.assert_array_equal(runtime.run(session, {"x": X})["y"], np.maximum(X, 0))


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_crash_names_the_signal_and_the_next_call_restarts(runtime: Runtime) -> None:
    session = runtime.load(parse(RELU).SerializeToString())
    assert runtime._process is not None
    os.kill(runtime._process.pid, signal.SIGSEGV)
    with pytest.raises(RuntimeFailure, match="SIGSEGV") as caught:
        runtime.run(session, {"x": X})
    assert caught.value.crashed
    np.testing.assert_array_equal(runtime.run(session, {"x": X})["y"], np.maximum(X, 0))


def test_too_long_is_not_a_crash(runtime: Runtime) -> None:
    body = "it = Constant<value_int = 1000000000000>() c = Constant<value = bool {1}>()"
    loop = "y = Loop(it, c, x) <body = b (int64 i, bool k, float[1] v) => (bool kk, float[1] w)"
    text = (
        f'<ir_version: 9, opset_import: ["": 18]> g (float[1] x) => (float[1] y) '
        f"{{ {body} {loop} {{ kk = Identity(k) w = Add(v, v) }}> }}"
    )
    session = runtime.load(parse(text).SerializeToString())
    runtime.timeout = 0.5
    with pytest.raises(RuntimeFailure, match="too long") as caught:
        runtime.run(session, {"x": np.ones(1, np.float32)})
    assert caught.value.timed_out
    assert not caught.value.crashed


def test_prints_of_native_code_do_not_reach_stdout_or_the_protocol(capfd: pytest.CaptureFixture[str]) -> None:
    with Runtime(threads=1) as runtime:
        for _ in range(3):
            with pytest.raises(RuntimeFailure):
                runtime.load(b"garbage")
        session = runtime.load(parse(RELU).SerializeToString())
        runtime.run(session, {"x": X})
    out, err = capfd.readouterr()
    assert out == ""
    assert err == ""


def test_external_weights_of_bytes_and_of_ir_models(runtime: Runtime, tmp_path: Path) -> None:
    weights = np.arange(3000, dtype=np.float32)
    text = '<ir_version: 9, opset_import: ["": 18]> g (float[3000] x) => (float[3000] y) { y = Add(x, w) }'
    proto = parse(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    feeds = {"x": np.ones(3000, np.float32)}
    session = runtime.load(path.read_bytes(), base_dir=tmp_path)
    np.testing.assert_array_equal(runtime.run(session, feeds)["y"], weights + 1)
    session = runtime.load(ir.load(path))
    np.testing.assert_array_equal(runtime.run(session, feeds)["y"], weights + 1)
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before


def test_cuda_that_does_not_work_is_an_error_not_a_fallback() -> None:
    """Where a device exists the session must really use it."""
    said = ""
    with Runtime("cuda") as runtime:
        try:
            said = runtime.load(parse(RELU).SerializeToString()).providers[0]
        except RuntimeFailure as failure:
            said = str(failure)
    assert "CUDAExecutionProvider" in said


@pytest.mark.parametrize(
    ("providers", "driver", "why"),
    [
        (["CPUExecutionProvider"], True, "has no CUDA provider"),
        (["CUDAExecutionProvider", "CPUExecutionProvider"], False, "no NVIDIA driver"),
        (["CUDAExecutionProvider", "CPUExecutionProvider"], True, ""),
    ],
)
def test_what_rules_cuda_out_without_a_session(
    monkeypatch: pytest.MonkeyPatch, providers: list[str], driver: bool, why: str
) -> None:
    runtime = Runtime()
    monkeypatch.setattr(runtime, "describe", lambda: {"providers": providers, "cuda_driver": driver})
    assert why in runtime.why_no_cuda()
    assert bool(why) == bool(runtime.why_no_cuda())


def test_a_session_without_a_driver_gets_no_cuda() -> None:
    """The quick answer agrees with the slow one."""
    with Runtime("cuda") as runtime:
        if runtime.why_no_cuda():
            with pytest.raises(RuntimeFailure):
                runtime.load(parse(RELU).SerializeToString())


def test_placements_name_the_provider_of_each_node() -> None:
    with Runtime(threads=1, profile=True, optimization="disabled") as runtime:
        session = runtime.load(parse(RELU).SerializeToString())
        runtime.run(session, {"x": X})
        (placement,) = runtime.placements(session)
    assert (placement.op_type, placement.provider) == ("Relu", "CPUExecutionProvider")


def test_bfloat16_travels_as_float32(runtime: Runtime) -> None:
    text = '<ir_version: 9, opset_import: ["": 18]> g (bfloat16[2] x) => (bfloat16[2] y) { y = Identity(x) }'
    session = runtime.load(parse(text).SerializeToString())
    found = runtime.run(session, {"x": np.array([1.1, -3.3], np.float32)})["y"]
    np.testing.assert_array_equal(found, np.array([1.1015625, -3.296875], np.float32))


def test_sequences_come_back_as_lists(runtime: Runtime) -> None:
    text = (
        '<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (seq(float[2]) y) '
        "{ y = SequenceConstruct(x, x) }"
    )
    session = runtime.load(parse(text).SerializeToString())
    found = runtime.run(session, {"x": np.ones(2, np.float32)})["y"]
    assert [a.tolist() for a in found] == [[1.0, 1.0], [1.0, 1.0]]


def test_close_ends_the_child_and_removes_the_folder() -> None:
    runtime = Runtime(threads=1)
    runtime.load(parse(RELU).SerializeToString())
    folder, process = runtime.folder, runtime._process
    assert process is not None
    runtime.close()
    assert process.poll() is not None
    assert not folder.exists()


def test_a_package_in_the_current_folder_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    with Runtime(threads=1) as runtime:
        assert runtime.load(parse(RELU).SerializeToString()).providers
