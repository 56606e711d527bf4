from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.parser
import pytest
from onnx import TensorProto

from fp16conv.errors import ModelError
from fp16conv.frontends import inference
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from fp16conv.graph import Container, DataType, ScopeKind, ValueKind


def load_text(tmp_path: Path, text: str) -> LoadedModel:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return load_onnx(path)


def typevar_table(loaded: LoadedModel) -> dict[str, tuple[int, int, bool]]:
    """owner.symbol -> (number of uses, number of defs, admits FP16)."""
    g = loaded.graph
    return {
        f"{g.ops[t.op].label if t.op is not None else g.scope_path(t.scope)}.{t.symbol}": (
            len(t.uses),
            len(t.defs),
            t.admits_fp16,
        )
        for t in g.typevars
    }


def test_type_variables_follow_the_schema(tmp_path: Path) -> None:
    loaded = load_text(
        tmp_path,
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,4] x, float[4] s) => (float[2,4] y, float[2,1] mean) {
          [ln] y, mean = LayerNormalization(x, s)
        }""",
    )
    table = typevar_table(loaded)
    assert table["ln.T"] == (2, 1, True)
    assert table["ln.U"] == (0, 1, False)  # Mean is tensor(float) only
    assert table["main.input:x"] == (0, 1, True)
    assert table["main.output:y"] == (1, 0, True)


def test_fp16_legality_depends_on_the_opset(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : {opset}]>
        g (float[4] x) => (float[4] y) {{ [c] y = Celu(x) }}"""
    assert typevar_table(load_text(tmp_path, text.format(opset=13)))["c.T"][2] is False
    newest = onnx.defs.get_schema("Celu").since_version
    assert typevar_table(load_text(tmp_path, text.format(opset=newest)))["c.T"][2] is (newest >= 28)


def test_contrib_schema_types_values_without_shape_inference(tmp_path: Path) -> None:
    loaded = load_text(
        tmp_path,
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[2,3,4] x, float[2,3,4] skip, float[4] gamma) => (float[2,3,4] z) {
          [sln] y = com.microsoft.SkipLayerNormalization(x, skip, gamma)
          [r] z = Relu(y)
        }""",
    )
    values = {v.name: v for v in loaded.graph.values}
    assert values["y"].dtype is DataType.FLOAT
    assert typevar_table(loaded)["sln.T"] == (3, 1, True)


def test_only_what_onnx_knows_is_asked_of_the_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = inference.infer_node

    def infer_node(version: int, node: onnx.NodeProto, *rest: object) -> object:
        asked.append(node.op_type)
        return real(version, node, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(inference, "infer_node", infer_node)
    loaded = load_text(
        tmp_path,
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[2,4] x) => (float[2,4] y) {
          a = com.microsoft.FusedMatMul(x, x)
          b = com.microsoft.Gelu(a)
          c = Relu(b)
          y = com.microsoft.Gelu(c)
        }""",
    )
    assert asked == ["Relu"]
    assert {v.name: v.dtype for v in loaded.graph.values if v.name in "abc"} == dict.fromkeys(
        "abc", DataType.FLOAT
    )


def test_unknown_domain_cannot_change(tmp_path: Path) -> None:
    loaded = load_text(
        tmp_path,
        """<ir_version: 8, opset_import: ["" : 17, "my.domain" : 1]>
        g (float[4] x) => (float[4] z) <float[4] y> {
          [c] y = my.domain.Custom(x)
          [r] z = Relu(y)
        }""",
    )
    assert typevar_table(loaded)["c.?"] == (1, 1, False)


def test_if_outputs_tie_branches_and_result(tmp_path: Path) -> None:
    loaded = load_text(
        tmp_path,
        """<ir_version: 8, opset_import: ["" : 17]>
        g (bool c, float[4] x) => (float[4] y) {
          [if] y = If (c) <
            then_branch = t () => (float[4] a) { a = Relu(x) },
            else_branch = e () => (float[4] b) { b = Neg(x) }
          >
        }""",
    )
    g = loaded.graph
    assert [s.kind for s in g.scopes] == [ScopeKind.MAIN, ScopeKind.SUBGRAPH, ScopeKind.SUBGRAPH]
    assert typevar_table(loaded)["if.V:0"] == (2, 1, True)
    x = next(v for v in g.values if v.name == "x")
    assert {u.scope for u in g.consumers(x.id)} == {1, 2}  # a capture is an ordinary use


def test_loop_carried_value_is_one_variable(tmp_path: Path) -> None:
    loaded = load_text(
        tmp_path,
        """<ir_version: 8, opset_import: ["" : 17]>
        g (int64 n, bool c, float[4] x) => (float[4] y, float[k,4] seen) {
          [loop] y, seen = Loop (n, c, x) <
            body = b (int64 i, bool cin, float[4] s) => (bool cout, float[4] t, float[4] out)
              { cout = Identity(cin) t = Add(s, s) out = Relu(t) }
          >
        }""",
    )
    table = typevar_table(loaded)
    assert table["loop.carried:0"] == (2, 2, True)
    assert table["loop.collected:0"] == (1, 1, True)


def test_function_parameters_are_boundaries(tmp_path: Path) -> None:
    loaded = load_text(
        tmp_path,
        """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[4] x) => (float[4] z) {
          [f1] y = local.f(x)
          [f2] z = local.f(y)
        }
        <domain: "local", opset_import: ["" : 17]>
        f (a) => (b) { c = Relu(a) b = Neg(c) }""",
    )
    table = typevar_table(loaded)
    assert table["function:local::f.input:a"] == (2, 1, True)
    assert table["function:local::f.output:b"] == (1, 2, True)
    assert all(v.dtype is DataType.FLOAT for v in loaded.graph.values)


def test_function_called_with_two_dtypes_becomes_two(tmp_path: Path) -> None:
    loaded = load_text(
        tmp_path,
        """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[4] x, double[4] d) => (float[4] y, double[4] e) {
          [f1] y = local.f(x)
          [f2] e = local.f(d)
        }
        <domain: "local", opset_import: ["" : 17]>
        f (a) => (b) { b = Relu(a) }""",
    )
    g = loaded.graph
    assert [s.name for s in g.scopes[1:]] == ["local::f", "local::f__double"]
    assert [op.op_type for op in g.ops if op.scope == 0] == ["f", "f__double"]
    assert all(t.admits_fp16 for t in g.typevars if t.scope == 1)
    assert {v.name: v.dtype for v in g.values if v.scope == 0}["e"] is DataType.DOUBLE


def test_constants_in_every_form(tmp_path: Path) -> None:
    loaded = load_text(
        tmp_path,
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
          a = Constant <value = float[1] {3}> ()
          b = Constant <value_float = 4.0> ()
          c = Constant <value_floats = [5.0, 6.0]> ()
          p = Add(x, a) q = Add(p, b) r = Add(q, c) y = Add(r, w)
        }""",
    )
    g = loaded.graph
    numbers = {g.values[i].name: g.array(i).tolist() for i in g.constants}  # type: ignore[union-attr]
    assert numbers == {"w": [1, 2], "a": [3], "b": 4, "c": [5, 6]}
    assert all(g.typevar_of_value(i) is None for i in g.constants)


@pytest.mark.parametrize(("ir_version", "kind"), [(3, ValueKind.CONSTANT), (8, ValueKind.INPUT)])
def test_initializer_listed_as_input_is_a_weight_only_before_ir_4(
    tmp_path: Path, ir_version: int, kind: ValueKind
) -> None:
    w = onnx.numpy_helper.from_array(np.ones((2,), np.float32), "w")
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [info("x", TensorProto.FLOAT, [2]), info("w", TensorProto.FLOAT, [2])],
        [info("y", TensorProto.FLOAT, [2])],
        [w],
    )
    model = onnx.helper.make_model(
        graph, ir_version=ir_version, opset_imports=[onnx.helper.make_opsetid("", 8)]
    )
    onnx.save(model, tmp_path / "m.onnx")
    values = {v.name: v for v in load_onnx(tmp_path / "m.onnx").graph.values}
    assert values["w"].kind is kind


def test_unsorted_graph_is_sorted(tmp_path: Path) -> None:
    info = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("Relu", ["a"], ["y"]), onnx.helper.make_node("Neg", ["x"], ["a"])]
    graph = onnx.helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, [2])], [info("y", TensorProto.FLOAT, [2])]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "m.onnx")
    assert [op.op_type for op in load_onnx(tmp_path / "m.onnx").graph.ops] == ["Neg", "Relu"]


def test_sequences_tie_tensor_and_container(tmp_path: Path) -> None:
    loaded = load_text(
        tmp_path,
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x, int64 i) => (float[n] y) {
          [make] s = SequenceConstruct(x, x)
          [at] y = SequenceAt(s, i)
        }""",
    )
    g = loaded.graph
    assert next(v for v in g.values if v.name == "s").container is Container.SEQUENCE
    assert len(g.ops[0].typevars) == 1
    assert g.typevars[g.ops[1].typevars[0]].defs


def rejected(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_onnx(path)
    assert caught.value.exit_code == 3
    return str(caught.value)


def test_bad_files_are_named(tmp_path: Path) -> None:
    assert "no such file" in rejected(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "not an ONNX model" in rejected(tmp_path / "text.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    assert "not an ONNX model" in rejected(tmp_path / "empty.onnx")
    assert "folder" in rejected(tmp_path)


def save_external(tmp_path: Path, location: str) -> Path:
    w = onnx.numpy_helper.from_array(np.ones((64,), np.float32), "w")
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [info("x", TensorProto.FLOAT, [64])],
        [info("y", TensorProto.FLOAT, [64])],
        [w],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    path = tmp_path / "ext.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].external_data[0].value = location
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_is_checked_on_load(tmp_path: Path) -> None:
    load_onnx(save_external(tmp_path, "w.bin"))
    assert "outside the model's folder" in rejected(save_external(tmp_path, "../w.bin"))
    assert "outside the model's folder" in rejected(save_external(tmp_path, "/etc/hostname"))
    assert "missing" in rejected(save_external(tmp_path, "other.bin"))
    path = save_external(tmp_path, "w.bin")
    (tmp_path / "w.bin").write_bytes(b"1234")
    assert "has 4 bytes" in rejected(path)


def test_truncated_file_is_rejected(tmp_path: Path) -> None:
    path = save_external(tmp_path, "w.bin")
    path.write_bytes(path.read_bytes()[:-7])
    assert "is not an ONNX model or is truncated" in rejected(path)
