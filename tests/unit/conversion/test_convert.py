from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from fp16conv.conversion.onnx import convert
from fp16conv.conversion.save import serialize
from fp16conv.errors import PlanError
from fp16conv.frontends.onnx import LoadedModel
from fp16conv.graph import DataType, TypeVar
from fp16conv.rulebook.types import Reason
from tests.roundtrip.plans import all_fp16, all_fp32, make_plan
from tests.unit.conversion.models import load_proto, load_text, parse

HALF, FLOAT = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT


def converted(loaded: LoadedModel, *labels: str, full_check: bool = True) -> onnx.ModelProto:
    """FP16 for the operators named (all legal ones if none is); checked."""
    graph = loaded.graph

    def choose(tv: TypeVar) -> bool:
        return not labels or (tv.op is not None and graph.ops[tv.op].label in labels)

    proto = serialize(convert(loaded, make_plan(graph, choose)), loaded)
    onnx.checker.check_model(proto, full_check=full_check)
    return proto


def nodes(graph: onnx.GraphProto, op_type: str) -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type == op_type]


def casts(graph: onnx.GraphProto) -> list[tuple[str, str, int]]:
    return [(n.input[0], n.output[0], n.attribute[0].i) for n in nodes(graph, "Cast")]


def initializer(proto: onnx.ModelProto, name: str) -> np.ndarray:
    return next(numpy_helper.to_array(t) for t in proto.graph.initializer if t.name == name)


def attribute(node: onnx.NodeProto, name: str) -> object:
    return next(helper.get_attribute_value(a) for a in node.attribute if a.name == name)


CHAIN = """<ir_version: 10, opset_import: ["": 21]>
g (float[2] x) => (float[2] y, float[2] z) {
   [a] t = Relu(x)
   [b] u = Abs(t)
   [c] v = Neg(t)
   [d] y = Add(u, v)
   [e] z = Exp(t)
}"""


def test_one_cast_serves_all_readers_and_sits_behind_the_producer(tmp_path: Path) -> None:
    proto = converted(load_text(tmp_path, CHAIN), "b", "c")
    assert casts(proto.graph) == [("t", "t__fp16", HALF), ("u", "u__fp32", FLOAT), ("v", "v__fp32", FLOAT)]
    assert [n.name for n in proto.graph.node] == ["a", "t__fp16", "b", "u__fp32", "c", "v__fp32", "d", "e"]


def test_input_cast_is_on_top_and_outputs_keep_their_names(tmp_path: Path) -> None:
    proto = converted(load_text(tmp_path, CHAIN))
    assert proto.graph.node[0].op_type == "Cast"
    assert [o.name for o in proto.graph.output] == ["y", "z"]
    assert ("y__fp16", "y", FLOAT) in casts(proto.graph)
    assert all(o.type.tensor_type.elem_type == FLOAT for o in proto.graph.output)


def test_an_output_that_is_read_inside_hands_its_fp16_value_on(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2] x) => (float[2] y, float[2] z) { [a] y = Relu(x) [b] z = Abs(y) }"""
    proto = converted(load_text(tmp_path, text))
    assert list(nodes(proto.graph, "Abs")[0].input) == ["y__fp16"]
    assert ("y__fp16", "y", FLOAT) in casts(proto.graph)
    assert not [v for v in proto.graph.value_info if v.name == "y"]


def test_the_loaded_model_stays_as_it_was(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, CHAIN)
    before = serialize(loaded.model, loaded).SerializeToString(deterministic=True)
    converted(loaded)
    assert serialize(loaded.model, loaded).SerializeToString(deterministic=True) == before


def test_generated_names_avoid_every_name_in_the_model(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2] x, bool c) => (float[2] y) {
       [x__fp16] t = Relu(x)
       [i] u = If(c) <
          then_branch = g1 () => (float[2] p) { [m] x__fp16_1 = Abs(t) [n] p = Neg(x__fp16_1) },
          else_branch = g2 () => (float[2] q) { [o] q = Abs(t) }>
       [k] y = Abs(u)
    }"""
    proto = converted(load_text(tmp_path, text), "x__fp16")
    assert casts(proto.graph)[0] == ("x", "x__fp16_2", HALF)


WEIGHTS = """<ir_version: {ir}, opset_import: ["": 13]>
g (float[2] x{inputs}) => (float[2] y) <float[2] w = {{1.5, 100000}}> {{
   [a] t = Mul(x, w)
   [b] y = Add(t, w)
}}"""


def test_a_weight_is_copied_only_where_both_precisions_read_it(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, WEIGHTS.format(ir=10, inputs=""))
    only = converted(loaded, "a", "b")
    assert [t.name for t in only.graph.initializer] == ["w"]
    assert initializer(only, "w").dtype == np.float16
    both = converted(loaded, "a")
    assert [t.name for t in both.graph.initializer] == ["w", "w__fp16"]
    assert initializer(both, "w").dtype == np.float32


def test_weights_are_rounded_never_clipped_unless_the_plan_says_so(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, WEIGHTS.format(ir=10, inputs=""))
    assert initializer(converted(loaded), "w").tolist() == [1.5, np.inf]
    weight = next(v.id for v in loaded.graph.values if v.name == "w")
    plan = dataclasses.replace(all_fp16(loaded.graph), saturated={weight: Reason("mask", "acts as infinity")})
    assert initializer(serialize(convert(loaded, plan), loaded), "w").tolist() == [1.5, 65504.0]


def test_ir3_weights_stay_inputs_and_get_no_new_ones(tmp_path: Path) -> None:
    proto = parse(WEIGHTS.format(ir=3, inputs=""))
    proto.graph.input.append(helper.make_tensor_value_info("w", FLOAT, [2]))
    loaded = load_proto(tmp_path, proto)
    both = converted(loaded, "a")
    assert [i.name for i in both.graph.input] == ["x", "w"]
    assert [t.name for t in both.graph.initializer] == ["w"]
    assert [n.output[0] for n in nodes(both.graph, "Constant")] == ["w__fp16"]
    only = converted(loaded)
    assert only.graph.input[1].type.tensor_type.elem_type == HALF


@pytest.mark.parametrize(
    ("literal", "shape"),
    [("value_float = 2.5", ()), ("value_floats = [1.0, 2.0]", (2,)), ("value = float[2] {1.0, 2.0}", (2,))],
)
def test_constant_nodes_of_every_form_convert_in_place(
    tmp_path: Path, literal: str, shape: tuple[int, ...]
) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21]>
    g (float[2] x) => (float[2] y) {{ [k] c = Constant <{literal}> () [a] y = Mul(x, c) }}"""
    proto = converted(load_text(tmp_path, text))
    (constant,) = nodes(proto.graph, "Constant")
    value = numpy_helper.to_array(constant.attribute[0].t)
    assert (len(constant.attribute), value.dtype, value.shape) == (1, np.float16, shape)
    assert [c[0] for c in casts(proto.graph)] == ["x", "y__fp16"]


def test_a_constant_node_read_in_both_precisions_is_doubled(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2] x) => (float[2] y) { [k] c = Constant <value_float = 3.0> ()
       [a] t = Mul(x, c) [b] y = Add(t, c) }"""
    proto = converted(load_text(tmp_path, text), "a")
    assert [n.output[0] for n in nodes(proto.graph, "Constant")] == ["c", "c__fp16"]
    assert list(nodes(proto.graph, "Add")[0].input) == ["t__fp32", "c"]


def test_a_shared_weight_is_copied_once_for_all_scopes(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
       [a] t = Mul(x, w)
       [i] y = If(c) <
          then_branch = g1 () => (float[2] p) { [m] p = Mul(t, w) },
          else_branch = g2 () => (float[2] q) { [n] q = Add(t, w) }>
    }"""
    proto = converted(load_text(tmp_path, text), "m", "n")
    assert [t.name for t in proto.graph.initializer] == ["w", "w__fp16"]
    then, other = (a.g for a in nodes(proto.graph, "If")[0].attribute)
    assert list(then.node[0].input) == list(other.node[0].input) == ["t__fp16", "w__fp16"]
    assert casts(then) == [("p", "p__fp32", FLOAT)]
    assert then.output[0].name == "p__fp32"


def test_loop_carried_values_are_cast_where_they_enter(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2] x, int64 n, bool c) => (float[2] y) {
       [l] y = Loop(n, c, x) <body = b (int64 i, bool k, float[2] s) => (bool k2, float[2] s2) {
          k2 = Identity(k) [r] s2 = Relu(s) }>
    }"""
    proto = converted(load_text(tmp_path, text), "l")
    body = nodes(proto.graph, "Loop")[0].attribute[0].g
    assert body.input[2].type.tensor_type.elem_type == HALF
    assert casts(body) == [("s", "s__fp32", FLOAT), ("s2", "s2__fp16", HALF)]
    assert casts(proto.graph) == [("x", "x__fp16", HALF), ("y__fp16", "y", FLOAT)]


def test_function_bodies_are_converted_and_import_what_a_cast_needs(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "f": 1, "com.microsoft": 1]>
    g (float[2] x) => (float[2] y) { [c] y = f.gelu(x) }
    <domain: "f", opset_import: ["com.microsoft": 1]>
    gelu (p) => (q) { [h] q = com.microsoft.Gelu(p) }"""
    proto = converted(load_text(tmp_path, text), "h")
    function = proto.functions[0]
    assert [n.op_type for n in function.node] == ["Cast", "Gelu", "Cast"]
    assert {o.domain: o.version for o in function.opset_import} == {"com.microsoft": 1, "": 21}
    assert not casts(proto.graph)


@pytest.mark.parametrize(
    ("node", "name", "value"),
    [
        ("ConstantOfShape(s)", "value", None),
        ("ConstantOfShape <value = float[1] {3.0}> (s)", "value", None),
        ("RandomNormal <shape = [2]> ()", "dtype", HALF),
        ("RandomUniform <shape = [2], dtype = 1> ()", "dtype", HALF),
        ("HannWindow(n)", "output_datatype", HALF),
        ("Cast <to = 1> (s)", "to", HALF),
    ],
)
def test_attributes_that_type_an_output_follow_the_plan(
    tmp_path: Path, node: str, name: str, value: int | None
) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21]>
    g (int64[1] s, int64 n) => (float[k] y) {{ [a] t = {node} [b] y = Relu(t) }}"""
    proto = converted(load_text(tmp_path, text))
    found = attribute(proto.graph.node[0], name)
    if value is None:
        assert isinstance(found, onnx.TensorProto)
        assert found.data_type == HALF
    else:
        assert found == value
    assert casts(proto.graph)[-1] == ("y__fp16", "y", FLOAT)


@pytest.mark.parametrize(("decided", "dtype"), [("like", HALF), ("before", FLOAT)])
def test_like_operators_say_their_dtype_where_it_is_no_longer_the_inputs(
    tmp_path: Path, decided: str, dtype: int
) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2, 2] x) => (float[2, 2] y) { [before] t = Relu(x) [like] u = EyeLike(t) [after] y = Abs(u) }"""
    loaded = load_text(tmp_path, text)
    graph = loaded.graph

    def choose(tv: TypeVar) -> bool:
        if tv.op is None or graph.ops[tv.op].label != "like":
            return False
        return bool(tv.defs) == (decided == "like")

    proto = serialize(convert(loaded, make_plan(graph, choose)), loaded)
    onnx.checker.check_model(proto, full_check=True)
    assert attribute(nodes(proto.graph, "EyeLike")[0], "dtype") == dtype


def test_retargeted_casts_of_fp16_weights_vanish_and_narrowing_ones_stay(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2] x) => (float[2] y) <float16[2] w = {1, 2}> {
       [wide] v = Cast <to = 1> (w)
       [a] t = Mul(x, v)
       [narrow] h = Cast <to = 10> (t)
       [back] u = Cast <to = 1> (h)
       [b] y = Relu(u)
    }"""
    proto = converted(load_text(tmp_path, text))
    assert list(nodes(proto.graph, "Mul")[0].input) == ["x__fp16", "w"]
    assert [n.name for n in nodes(proto.graph, "Cast")] == ["x__fp16", "narrow", "y__fp32"]


def test_nothing_but_metadata_changes_where_the_plan_is_fp32(tmp_path: Path) -> None:
    proto = parse(CHAIN)
    proto.producer_name, proto.doc_string, proto.model_version, proto.domain = "maker", "about", 7, "org"
    helper.set_model_props(proto, {"author": "someone"})
    proto.graph.doc_string = "graph"
    for node in proto.graph.node:
        node.ClearField("domain")  # the text parser writes the empty domain out
    loaded = load_proto(tmp_path, proto)
    result = serialize(convert(loaded, all_fp32(loaded.graph)), loaded)
    for node in result.graph.node:
        assert {p.key for p in node.metadata_props} == {
            "pkg.fp16conv.precision",
            "pkg.fp16conv.rule",
            "pkg.fp16conv.reason",
        }
        del node.metadata_props[:]
    assert result == loaded.proto


def test_value_info_is_retyped_and_none_is_added(tmp_path: Path) -> None:
    proto = parse(CHAIN)
    proto.graph.value_info.append(helper.make_tensor_value_info("t", FLOAT, [2]))
    result = converted(load_proto(tmp_path, proto))
    assert [(v.name, v.type.tensor_type.elem_type) for v in result.graph.value_info] == [("t", HALF)]


def test_converting_twice_changes_nothing(tmp_path: Path) -> None:
    once = converted(load_text(tmp_path, CHAIN), "b", "c")
    again = load_proto(tmp_path, once, "once.onnx")
    twice = serialize(convert(again, all_fp32(again.graph)), again)
    assert twice.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)


def test_a_constant_output_may_become_fp16_with_the_interface(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2] x) => (float[2] w, float[2] y) <float[2] w = {1, 2}> { [a] y = Add(x, w) }"""
    loaded = load_text(tmp_path, text)
    plan = make_plan(loaded.graph, lambda tv: False)
    decisions = tuple(
        dataclasses.replace(d, dtype=DataType.FLOAT16) if d.symbol == "output:w" else d
        for d in plan.decisions
    )
    proto = serialize(convert(loaded, dataclasses.replace(plan, decisions=decisions)), loaded)
    onnx.checker.check_model(proto, full_check=True)
    assert initializer(proto, "w").dtype == np.float16
    assert initializer(proto, "w__fp32").tolist() == [1.0, 2.0]
    assert list(proto.graph.node[0].input) == ["x", "w__fp32"]


@pytest.mark.parametrize(("labels", "names"), [((), ["w"]), (("a",), ["w", "w__fp16"]), (("c",), ["w"])])
def test_sparse_initializers_survive_and_convert_like_dense_ones(
    tmp_path: Path, labels: tuple[str, ...], names: list[str]
) -> None:
    proto = parse("""<ir_version: 8, opset_import: ["": 17]>
    g (float[4, 2] x) => (float[4, 3] z) { [a] y = MatMul(x, w) [b] t = MatMul(x, w) [c] z = Add(y, t) }""")
    values = numpy_helper.from_array(np.array([1.0, 0.1], np.float32), "w")
    indices = numpy_helper.from_array(np.array([0, 5], np.int64), "w_indices")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    result = converted(
        load_proto(tmp_path, proto), *labels, full_check=False
    )  # inference knows no sparse MatMul
    assert [s.values.name for s in result.graph.sparse_initializer] == names
    half = result.graph.sparse_initializer[-1]
    dtype = np.float32 if labels == ("c",) else np.float16
    assert numpy_helper.to_array(half.values).tolist() == [dtype(1.0), dtype(0.1)]
    assert (half.indices, list(half.dims)) == (indices, [2, 3])
    onnxruntime.InferenceSession(result.SerializeToString(), providers=["CPUExecutionProvider"])


def test_an_unsorted_graph_comes_out_sorted(tmp_path: Path) -> None:
    proto = parse(CHAIN)
    reverse = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(reverse)
    result = converted(load_proto(tmp_path, proto))
    produced = {i.name for i in result.graph.input} | {t.name for t in result.graph.initializer}
    for node in result.graph.node:
        assert produced.issuperset(n for n in node.input if n), f"'{node.name}' reads what is made later"
        produced.update(node.output)


def _foreign(loaded: LoadedModel) -> object:
    return dataclasses.replace(all_fp16(loaded.graph), model_digest="f" * 64)


def _incomplete(loaded: LoadedModel) -> object:
    plan = all_fp16(loaded.graph)
    return dataclasses.replace(plan, decisions=plan.decisions[1:])


def _doubled(loaded: LoadedModel) -> object:
    plan = all_fp16(loaded.graph)
    return dataclasses.replace(plan, decisions=plan.decisions + plan.decisions[:1])


def _illegal(loaded: LoadedModel) -> object:
    plan = all_fp32(loaded.graph)
    first = dataclasses.replace(plan.decisions[0], dtype=DataType.DOUBLE)
    return dataclasses.replace(plan, decisions=(first, *plan.decisions[1:]))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_foreign, "another model"),
        (_incomplete, "not decided"),
        (_doubled, "decided twice"),
        (_illegal, "neither float nor float16"),
    ],
)
def test_plans_that_do_not_fit_are_refused(
    tmp_path: Path, spoil: Callable[[LoadedModel], object], message: str
) -> None:
    loaded = load_text(tmp_path, CHAIN)
    with pytest.raises(PlanError, match=message):
        convert(loaded, spoil(loaded))  # type: ignore[arg-type]


def test_a_sequence_is_never_cast(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2] x, int64 i) => (float[2] y) { [a] s = SequenceConstruct(x, x) [b] y = SequenceAt(s, i) }"""
    loaded = load_text(tmp_path, text)
    plan = all_fp16(loaded.graph)
    decisions = tuple(
        dataclasses.replace(d, dtype=DataType.FLOAT) if d.label == "b" else d for d in plan.decisions
    )
    with pytest.raises(PlanError, match="sequence"):
        convert(loaded, dataclasses.replace(plan, decisions=decisions))


def test_before_opset_6_a_cast_names_its_type_in_words(tmp_path: Path) -> None:
    text = """<ir_version: 3, opset_import: ["": 5]>
    g (float[2] x) => (float[2] y) { [a] t = Abs(x) [b] y = Neg(t) }"""
    proto = converted(load_text(tmp_path, text), "a")
    assert [attribute(n, "to") for n in nodes(proto.graph, "Cast")] == [b"FLOAT16", b"FLOAT"]
    assert {v.name: v.type.tensor_type.elem_type for v in proto.graph.value_info} == {
        "x__fp16": HALF,
        "t__fp32": FLOAT,
    }


@pytest.mark.parametrize("chosen", [("a",), ("a", "up")])
def test_operators_read_what_a_cast_has_widened_and_the_cast_stays_for_the_others(
    tmp_path: Path, chosen: tuple[str, ...]
) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float16[2] h) => (float[2] y, float[2] z) {
       [up] x = Cast <to = 1> (h)
       [a] y = Neg(x)
       [b] z = Exp(x)
    }"""
    proto = converted(load_text(tmp_path, text), *chosen)
    assert casts(proto.graph) == [("h", "x", FLOAT), ("y__fp16", "y", FLOAT)]
    assert nodes(proto.graph, "Neg")[0].input[0] == "h"
    assert nodes(proto.graph, "Exp")[0].input[0] == "x"
