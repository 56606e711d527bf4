"""What schemas leave out: rules/schemas/corrections.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

import onnx.parser
import pytest

from fp16conv._data import rules_dir
from fp16conv.frontends.onnx import load_onnx
from fp16conv.frontends.schemas import find_schema

ENTRIES = tomllib.loads((rules_dir() / "schemas" / "corrections.toml").read_text("utf-8"))["correction"]


def _variables(tmp_path: Path, text: str, opset: int) -> dict[str, bool]:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g {text}')
    onnx.save(model, tmp_path / "model.onnx")
    graph = load_onnx(tmp_path / "model.onnx").graph
    return {tv.symbol: tv.admits_fp16 for tv in graph.typevars if tv.op is not None}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e["op"])
def test_entries_name_variables_that_exist_and_say_why(entry: dict[str, object]) -> None:
    domain, _, op = str(entry["op"]).rpartition("::")
    schema = find_schema(domain, op, 1 if domain else 28)
    assert schema is not None
    named = [*entry.get("equal", ()), *entry.get("fixed", ()), *entry.get("follows", {})]  # type: ignore[misc]
    assert named
    assert set(named) <= schema.types.keys()
    assert entry["reason"]
    assert entry["source"]
    assert not entry.keys() - {"op", "opset", "equal", "fixed", "follows", "reason", "source"}


def test_equal_variables_are_one(tmp_path: Path) -> None:
    text = "(float[2,4] x, float[4] s) => (float[2,4] y) { y = RMSNormalization(x, s) }"
    assert _variables(tmp_path, text, 23) == {"T+V": True}


def test_variables_that_are_not_named_stay_free(tmp_path: Path) -> None:
    text = (
        "(float[1,2,4,4] q, float[1,2,4,4] k, float[1,2,4,4] v, float[4,4] m) => (float[1,2,4,4] y)"
        " { y = Attention(q, k, v, m) }"
    )
    assert _variables(tmp_path, text, 23) == {"T1+T2": True, "U": True}


def test_bits_are_never_retyped(tmp_path: Path) -> None:
    text = "(float[2] x) => (float[2] y) { b = BitCast <to = 6> (x) y = BitCast <to = 1> (b) }"
    assert _variables(tmp_path, text, 26) == {"T1": False, "T2": False}
