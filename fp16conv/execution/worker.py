"""The child process that loads and runs models with ONNX Runtime, and the protocol it speaks.

Started by `fp16conv.execution.runtime` as a script. It imports nothing of fp16conv: it is up quickly, and
only the runtime it hosts can take it down. A message is a header of two little-endian uint64 (bytes of the
pickle, number of buffers), the pickle, then each buffer with its length: arrays travel without a copy.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

__all__ = ["read_message", "serve", "write_message"]

_HEAD = struct.Struct("<QQ")
_LENGTH = struct.Struct("<Q")
_BFLOAT16 = "tensor(bfloat16)"  # numpy lacks it: it travels as FP32 or as uint16 bits
_BFLOAT16_CODE = 16  # onnx.TensorProto.BFLOAT16


def write_message(stream: BinaryIO, message: object) -> None:
    """Write one message and flush."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    stream.write(_HEAD.pack(len(body), len(buffers)))
    stream.write(body)
    for buffer in buffers:
        with buffer.raw() as raw:
            stream.write(_LENGTH.pack(raw.nbytes))
            stream.write(raw)
    stream.flush()


def read_message(stream: BinaryIO) -> Any:
    """Read one message.

    Raises:
        EOFError: the other side is gone.
    """
    size, count = _HEAD.unpack(_read_exactly(stream, _HEAD.size))
    body = _read_exactly(stream, size)
    buffers = [
        _read_exactly(stream, _LENGTH.unpack(_read_exactly(stream, _LENGTH.size))[0]) for _ in range(count)
    ]
    return pickle.loads(body, buffers=buffers)


def _read_exactly(stream: BinaryIO, size: int) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        got = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            raise EOFError("the pipe was closed")
        done += got
    return data


class _Host:
    """Sessions by number, and the commands on them."""

    def __init__(self) -> None:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy only holds arrays here
        import onnxruntime

        self._ort = onnxruntime
        onnxruntime.set_default_logger_severity(3)
        self._sessions: dict[int, Any] = {}

    def describe(self) -> dict[str, object]:
        """Name, version, providers the build lists (not: that work here), and whether CUDA has a driver."""
        return {
            "name": "ONNX Runtime",
            "version": self._ort.__version__,
            "providers": list(self._ort.get_available_providers()),
            "cuda_driver": _has_cuda_driver(),
        }

    def load(
        self,
        number: int,
        model: str | bytes | bytearray,
        providers: Sequence[str],
        threads: int,
        optimization: str,
        custom_ops: Sequence[str],
        folder: str,
        profile: str,
    ) -> dict[str, object]:
        """Create a session; report its interface and the providers it really uses."""
        ort = self._ort
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        # Threads of the session that does not run would wait in a loop, on the cores of the one that does.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.graph_optimization_level = {
            "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
            "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
            "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
            "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
        }[optimization]
        for library in custom_ops:
            options.register_custom_ops_library(library)
        if folder:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = os.path.join(profile, f"profile-{number}")
        source = bytes(model) if isinstance(model, bytearray) else model
        session = ort.InferenceSession(source, options, providers=list(providers))
        self._sessions[number] = session
        return {
            "inputs": [(i.name, i.type, i.shape) for i in _all_inputs(session)],
            "outputs": [(o.name, o.type, o.shape) for o in session.get_outputs()],
            "providers": list(session.get_providers()),
        }

    def run(self, number: int, feeds: Mapping[str, Any], outputs: Sequence[str] | None) -> dict[str, object]:
        """Run a session once."""
        session = self._sessions[number]
        infos = {o.name: o.type for o in session.get_outputs()}
        names = list(infos) if outputs is None else list(outputs)
        types = {i.name: i.type for i in _all_inputs(session)}
        involved = [types.get(name) for name in feeds] + [infos.get(name) for name in names]
        if _BFLOAT16 not in involved:
            return dict(zip(names, (_plain(v) for v in session.run(names, dict(feeds))), strict=True))
        make = self._ort.OrtValue
        values = {
            name: make.ortvalue_from_numpy_with_onnx_type(_to_bfloat16(array), _BFLOAT16_CODE)
            if types.get(name) == _BFLOAT16
            else make.ortvalue_from_numpy(array)
            for name, array in feeds.items()
        }
        results = session.run_with_ort_values(names, values)
        return {
            name: _from_bfloat16(value) if infos.get(name) == _BFLOAT16 else _plain(value.numpy())
            for name, value in zip(names, results, strict=True)
        }

    def profile(self, number: int) -> list[tuple[str, str, str]]:
        """End profiling: (node name, operator, provider) of every node that ran, in order of first run."""
        path = self._sessions[number].end_profiling()
        try:
            with open(path, encoding="utf-8") as file:
                events = json.load(file)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
        seen: dict[tuple[str, str, str], None] = {}
        for event in events:
            args = event.get("args", {})
            if event.get("cat") == "Node" and event.get("name", "").endswith("_kernel_time"):
                name = event["name"].removesuffix("_kernel_time")
                seen.setdefault((name, args.get("op_name", ""), args.get("provider", "")))
        return list(seen)

    def unload(self, number: int) -> None:
        """Free a session."""
        self._sessions.pop(number, None)


def _has_cuda_driver() -> bool:
    import ctypes

    try:
        ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return False
    return True


def _all_inputs(session: Any) -> list[Any]:
    """What must be fed, and what may be: inputs with a default."""
    return [*session.get_inputs(), *session.get_overridable_initializers()]


def _to_bfloat16(array: Any) -> Any:
    """Bits of an array as uint16; FP32 is rounded to nearest even."""
    import numpy as np

    if array.dtype.itemsize == 2:
        return array.view(np.uint16)
    bits = array.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _from_bfloat16(value: Any) -> Any:
    """A BFLOAT16 value, which numpy cannot hold, as FP32 (exact), read from its CPU memory."""
    import ctypes

    import numpy as np

    shape = value.shape()
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.zeros(shape, np.float32)
    raw = np.ctypeslib.as_array((ctypes.c_uint16 * count).from_address(value.data_ptr()))
    return (raw.astype(np.uint32) << 16).view(np.float32).reshape(shape)


def _plain(value: Any) -> object:
    """Only what numpy and pickle know leaves this process."""
    if type(value).__name__ == "SparseTensor":
        return _plain(value.to_dense().numpy()) if hasattr(value, "to_dense") else str(value)
    return value


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer commands until the parent closes the pipe."""
    host = _load_host()  # before the first command: the parent does other work meanwhile
    while True:
        try:
            command, arguments = read_message(source)
        except EOFError:
            return
        write_message(sink, _answer(host, command, arguments))


def _load_host() -> _Host | str:
    """The host, or why there is none."""
    try:
        return _Host()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _answer(host: _Host | str, command: str, arguments: Mapping[str, Any]) -> tuple[str, object]:
    if isinstance(host, str):
        return "error", host
    try:
        action: Callable[..., object] = getattr(host, command)
        return "ok", action(**arguments)
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"


def main() -> None:
    """Claim the pipes, then serve: whatever native code prints goes to stderr."""
    if hasattr(signal, "SIGINT"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    serve(sys.stdin.buffer, sink)
    sys.stderr.flush()
    os._exit(0)  # at once: the parent waits, and taking down interpreter and runtime saves nothing


if __name__ == "__main__":
    main()
