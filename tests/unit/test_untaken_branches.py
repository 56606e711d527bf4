"""The report says where ranges come from a branch that no batch takes."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import fp16conv

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (bool c, float[2] x) => (float[2] y) {
    y = If (c) <
        then_branch = t () => (float[2] u) { u = Exp(x) },
        else_branch = e () => (float[2] v) { v = Neg(x) }
    >
}"""


@pytest.mark.parametrize(("conditions", "noted"), [((True,), True), ((True, False), False)])
def test_branches_without_data_are_noted(conditions: tuple[bool, ...], noted: bool, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    data = tmp_path / "data"
    data.mkdir()
    for i, condition in enumerate(conditions):
        np.savez(data / f"{i}.npz", c=np.array(condition), x=np.ones(2, np.float32))
    report = fp16conv.analyze(tmp_path / "m.onnx", data=[data])
    found = [f.message for f in report.findings if f.rule == "branch-not-taken"]
    assert found == (["1 values lie in branches that no batch takes"] if noted else [])
