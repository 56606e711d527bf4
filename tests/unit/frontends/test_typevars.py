"""Type variables where the schema alone says too much."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.defs
import onnx.parser
import pytest

from fp16conv.frontends.onnx import LoadedModel, from_proto
from fp16conv.frontends.schemas import find_schema

STATE = (
    "(float[1,4,8] q, float[1,4,8] k, float[1,4,8] v{past}) => (float[1,4,8] y, float[1,2,4,4] t)"
    ' {{ y, t = LinearAttention <q_num_heads = 2, kv_num_heads = 2, update_rule = "linear"> (q, k, v{arg}) }}'
)


def load(text: str, opset: int = 28) -> LoadedModel:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g {text}')
    return from_proto(model, Path("model.onnx"))


def symbols(loaded: LoadedModel) -> dict[str, int]:
    return {t.symbol: len(t.defs) for t in loaded.graph.typevars if t.op is not None}


def test_state_without_a_past_takes_the_type_of_the_query() -> None:
    assert symbols(load(STATE.format(past="", arg=""))) == {"T": 2}


def test_state_with_a_past_takes_the_type_of_the_past() -> None:
    loaded = load(STATE.format(past=", float[1,2,4,4] s", arg=", s"))
    assert symbols(loaded) == {"T": 1, "S": 1}


def test_following_variables_are_all_known() -> None:
    """What only optional inputs can bind needs another variable to follow."""
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    found = set()
    for schema in onnx.defs.get_all_schemas_with_history():
        types = {t.type_param_str: t.allowed_type_strs for t in schema.type_constraints}
        for output in schema.outputs:
            binding = [p for p in schema.inputs if p.type_str == output.type_str]
            if "tensor(float16)" not in types.get(output.type_str, ()) or not binding:
                continue
            if all(p.option == optional for p in binding):
                found.add((schema.name, output.type_str))
    assert found
    for op, symbol in found:
        known = find_schema("", op, 28)
        assert known is not None
        assert symbol in known.follows


@pytest.mark.parametrize(("opset", "body"), [(9, 9), (17, 13), (18, 18), (28, 18)])
def test_operator_whose_body_does_not_type_check_in_fp16_stays_fp32(opset: int, body: int) -> None:
    schema = find_schema("", "MeanVarianceNormalization", opset)
    assert schema is not None
    assert not schema.admits_fp16("T")
    assert "tensor(float)" in schema.types["T"]
    assert body in onnx.defs.get_schema("MeanVarianceNormalization", opset, "").function_opset_versions


@pytest.mark.parametrize("op", ["Celu", "Shrink", "Softplus", "Mish", "GroupNormalization", "Swish"])
def test_operator_whose_body_type_checks_in_fp16_admits_it(op: str) -> None:
    schema = find_schema("", op, 28)
    assert schema is not None
    assert schema.admits_fp16("T")
