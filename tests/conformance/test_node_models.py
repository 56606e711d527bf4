"""Every model of onnx's backend tests converts, is valid, loses nothing and stays right.

What ONNX Runtime itself cannot do is in runtime_gaps.toml, by name and with its message. The list is exact
for the versions it names; with others only our own part is tested.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from typing import Any

import onnx
import pytest

from fp16conv.execution.runtime import Runtime
from tests.conformance.node_models import Sweep, all_node_models, examine
from tests.conformance.record_gaps import GAPS

CHUNKS = 16


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return tomllib.loads(GAPS.read_text())


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    with pytest.MonkeyPatch.context() as patch:
        # Opsets that ONNX Runtime knows but does not guarantee count too.
        patch.setitem(os.environ, "ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
        with Runtime(threads=1, timeout=120) as runtime:
            yield Sweep(runtime, tmp_path_factory.mktemp("models"))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_node_models(chunk: int, sweep: Sweep, recorded: dict[str, Any]) -> None:
    models = all_node_models()
    mine = models[len(models) * chunk // CHUNKS : len(models) * (chunk + 1) // CHUNKS]
    findings = {model.name: examine(sweep, model) for model in mine}
    assert not [problem for found in findings.values() for problem in found.problems]

    versions = {"onnx": onnx.__version__, "onnxruntime": sweep.runtime.version}
    if versions != recorded["versions"]:
        return
    seen = {
        "fp32": {name: found.failure for name, found in findings.items() if found.failure},
        "half": {name: found.gap for name, found in findings.items() if found.gap},
        "integers": {name: found.integers for name, found in findings.items() if found.integers},
    }
    for kind, entries in seen.items():
        assert entries == {name: entry for name, entry in recorded[kind].items() if name in findings}, kind


def test_gaps_name_models_that_exist(recorded: dict[str, Any]) -> None:
    if recorded["versions"]["onnx"] != onnx.__version__:
        pytest.skip("recorded with another version of onnx")
    names = {model.name for model in all_node_models()}
    assert {name for kind in ("fp32", "half", "integers") for name in recorded[kind]} <= names
