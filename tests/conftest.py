"""Fixtures and options that all tests share."""

from __future__ import annotations

import functools
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]

# The same examples in every run: a red build must be the change's fault.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # begun in the background of a shell: children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@functools.cache
def cuda_works() -> bool:
    """Whether ONNX Runtime's CUDA provider really works here (it lists itself even without a driver)."""
    from fp16conv.errors import Fp16convError
    from fp16conv.execution.runtime import Runtime

    if not Path("/dev/nvidiactl").exists():
        return False
    import onnx.parser

    text = '<ir_version: 8, opset_import: ["": 17]> probe (float[2] x) => (float[2] y) { y = Relu(x) }'
    try:
        with Runtime("cuda") as runtime:
            runtime.load(onnx.parser.parse_model(text).SerializeToString())
    except Fp16convError:
        return False
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gpu" in item.keywords and not cuda_works():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device and ONNX Runtime's CUDA provider"))


@pytest.fixture(scope="session")
def samples() -> Path:
    """The bundled trained models and their data."""
    return ROOT / "samples"


@pytest.fixture
def small_files() -> Iterator[int]:
    """A file may have 10,000 bytes: writing beyond is an error, like a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    yield 10_000
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
