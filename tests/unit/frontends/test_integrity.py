"""Files that are no models: refused by name and reason, before anything is built from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest
from onnx import AttributeProto, TensorProto, helper

from fp16conv.errors import ModelError
from fp16conv.frontends.integrity import MAX_CALLS, check_integrity
from fp16conv.frontends.onnx import load_onnx
from tests.unit.frontends.sound_model import make_model, weight


def branch(model: onnx.ModelProto, index: int = 0) -> onnx.GraphProto:
    return model.graph.node[1].attribute[index].g


def typed(field: str, count: int, data_type: int) -> Callable[[onnx.ModelProto], None]:
    def edit(model: onnx.ModelProto) -> None:
        tensor = weight(model)
        tensor.ClearField("raw_data")
        tensor.data_type = data_type
        getattr(tensor, field).extend([0] * count)

    edit.__name__ = f"{field}_{count}_{data_type}"
    return edit


def strange_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 2**62


def no_type(model: onnx.ModelProto) -> None:
    weight(model).data_type = 0


def strange_type(model: onnx.ModelProto) -> None:
    weight(model).data_type = 99


def negative(model: onnx.ModelProto) -> None:
    weight(model).dims[:] = [-4]


def gigantic_and_empty(model: onnx.ModelProto) -> None:
    weight = model.graph.initializer[0]
    weight.CopyFrom(TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[0, 2**60, 2**60], raw_data=b""))


def gigantic(model: onnx.ModelProto) -> None:
    weight(model).dims[:] = [2**62, 2**62, 0 + 1]


def short(model: onnx.ModelProto) -> None:
    weight(model).raw_data = bytes(12)


def long(model: onnx.ModelProto) -> None:
    weight(model).raw_data = bytes(20)


def no_data(model: onnx.ModelProto) -> None:
    weight(model).ClearField("raw_data")


def undefined(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[1] = "nowhere"


def undefined_inside(model: onnx.ModelProto) -> None:
    branch(model).node[0].input[0] = "q"  # exists, but in the other branch


def undefined_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "nowhere"


def undefined_branch_output(model: onnx.ModelProto) -> None:
    branch(model, 1).output[0].name = "a"  # of the graph around


def unnamed_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].name = ""


def twin_inputs(model: onnx.ModelProto) -> None:
    model.graph.input.add().CopyFrom(model.graph.input[0])


def no_branch(model: onnx.ModelProto) -> None:
    del model.graph.node[1].attribute[1]


def empty_branch(model: onnx.ModelProto) -> None:
    model.graph.node[1].attribute[1].ClearField("g")


def two_outputs(model: onnx.ModelProto) -> None:
    branch(model).output.add().CopyFrom(branch(model).output[0])


def one_input(model: onnx.ModelProto) -> None:
    del model.graph.node[0].input[1]


def empty_input(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = ""


def three_inputs(model: onnx.ModelProto) -> None:
    model.graph.node[0].input.append("x")


def no_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[2].op_type = "Concat"


def wrong_attribute(model: onnx.ModelProto) -> None:
    node = model.graph.node[2]
    node.op_type = "Concat"
    node.attribute.append(helper.make_attribute("axis", "zero"))


def twin_attributes(model: onnx.ModelProto) -> None:
    wrong_attribute(model)
    attributes = model.graph.node[2].attribute
    attributes[0].CopyFrom(helper.make_attribute("axis", 0))
    attributes.append(helper.make_attribute("axis", 0))


def untyped_attribute(model: onnx.ModelProto) -> None:
    wrong_attribute(model)
    model.graph.node[2].attribute[0].type = AttributeProto.UNDEFINED


def two_fields(model: onnx.ModelProto) -> None:
    weight(model).int32_data.append(1)


def stray_bits(model: onnx.ModelProto) -> None:
    weight = model.graph.initializer[0]
    weight.CopyFrom(TensorProto(name="w", data_type=TensorProto.FLOAT6E2M3, dims=[3], raw_data=b"\0\0\4"))


def refer(model: onnx.ModelProto, name: str, kind: int, inside: bool = True) -> None:
    """Give an operator an attribute by reference, in the graph or in a function that declares `known`."""
    node = onnx.NodeProto(name="shape", op_type="Shape", input=["x"], output=["s"])
    node.attribute.append(AttributeProto(name=name, type=kind, ref_attr_name=name))
    if inside:
        imports = [helper.make_opsetid("", 17)]
        model.functions.append(helper.make_function("local", "F", ["x"], ["s"], [node], imports, ["known"]))
        model.functions[0].attribute.append("bodies")
    else:
        model.graph.node.append(node)


def referred_subgraphs(model: onnx.ModelProto) -> None:
    refer(model, "bodies", AttributeProto.GRAPHS)


def referred_by_nobody(model: onnx.ModelProto) -> None:
    refer(model, "start", AttributeProto.INT)


def referred_outside(model: onnx.ModelProto) -> None:
    refer(model, "start", AttributeProto.INT, inside=False)


def referred_scan(model: onnx.ModelProto) -> None:
    refer(model, "known", AttributeProto.INT)
    model.functions[0].node[0].attribute[0].name = "num_scan_inputs"


def no_body(model: onnx.ModelProto) -> None:
    model.graph.node[2].op_type = "SequenceMap"
    model.opset_import[0].version = 16  # which has no such operator


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (strange_opset, f"imports version {2**62} of ''"),
        (no_type, "tensor 'w': has the unknown data type 0"),
        (strange_type, "tensor 'w': has the unknown data type 99"),
        (negative, "tensor 'w': has the shape [-4]"),
        (gigantic, "sizes whose product overflows"),
        (gigantic_and_empty, "sizes whose product overflows"),
        (short, "needs 16 bytes, but there are 12"),
        (long, "needs 16 bytes, but there are 20"),
        (no_data, "needs 4 numbers, but there are 0"),
        (typed("float_data", 5, TensorProto.FLOAT), "needs 4 numbers, but there are 5"),
        (typed("float_data", 4, TensorProto.DOUBLE), "needs 4 numbers, but there are 0"),
        (typed("int32_data", 3, TensorProto.FLOAT16), "needs 4 numbers, but there are 3"),
        (two_fields, "tensor 'w': has numbers in raw_data and in int32_data"),
        (typed("int32_data", 4, TensorProto.INT4), "needs 2 numbers, but there are 4"),
        (undefined, "operator 'mul' (Mul): reads 'nowhere', which nothing defines"),
        (undefined_inside, "reads 'q', which nothing defines"),
        (undefined_output, "output 'nowhere' is not computed"),
        (undefined_branch_output, "operator 'if' (If): output 'a' is not computed"),
        (unnamed_input, "an input has no name"),
        (twin_inputs, "two inputs have one name"),
        (no_branch, "operator 'if' (If): lacks the attribute 'else_branch'"),
        (empty_branch, "attribute 'else_branch' is empty"),
        (two_outputs, "its then_branch has 0 inputs and 2 outputs, it should have 0 and 1"),
        (one_input, "operator 'mul' (Mul): has 1 inputs, the operator takes at least 2"),
        (empty_input, "operator 'mul' (Mul): lacks its input 'A'"),
        (three_inputs, "operator 'mul' (Mul): has 3 inputs, the operator takes at most 2"),
        (no_attribute, "operator 'add' (Concat): lacks the attribute 'axis'"),
        (wrong_attribute, "attribute 'axis' is STRING, the operator takes INT"),
        (twin_attributes, "has two attributes 'axis'"),
        (untyped_attribute, "attribute 'axis' has no type"),
        (stray_bits, "tensor 'w': has bits behind its last number"),
        (referred_subgraphs, "attribute 'bodies' refers to 'bodies', which only the function's caller knows"),
        (referred_scan, "'num_scan_inputs' refers to 'known', which only the function's caller knows"),
        (referred_by_nobody, "attribute 'start' refers to 'start', which its function does not declare"),
        (referred_outside, "attribute 'start' refers to 'start', but is in no function"),
        (no_body, "operator 'add' (SequenceMap): lacks the attribute 'body'"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_is_refused(edit: Callable[[onnx.ModelProto], None], message: str) -> None:
    model = make_model()
    edit(model)
    with pytest.raises(ModelError) as caught:
        check_integrity(model, Path("m.onnx"))
    assert str(caught.value).startswith("m.onnx")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "edit",
    [
        typed("float_data", 4, TensorProto.FLOAT),
        typed("int32_data", 4, TensorProto.BFLOAT16),
        typed("int32_data", 2, TensorProto.INT4),
        typed("uint64_data", 4, TensorProto.UINT32),
        typed("float_data", 8, TensorProto.COMPLEX64),
        lambda model: None,
    ],
)
def test_what_is_accepted(edit: Callable[[onnx.ModelProto], None]) -> None:
    model = make_model()
    edit(model)
    check_integrity(model, Path("m.onnx"))


# ---- files ----


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    for name in (tmp_path / "m.onnx", "/dev/zero", tmp_path / "a\0b"):
        with pytest.raises(ModelError, match="cannot be read"):
            load_onnx(name)


# ---- depth ----


def _nested(depth: int) -> bytes:
    """Subgraphs inside subgraphs, written by hand: the library refuses to build as many."""

    def field(number: int, content: bytes) -> bytes:
        size, head = len(content), bytearray()
        while size > 127:
            head.append(size & 127 | 128)
            size >>= 7
        return bytes([number << 3 | 2, *head, size]) + content

    graph = b""
    for _ in range(depth):
        attribute = field(1, b"body") + field(6, graph) + b"\xa0\x01\x05"
        graph = field(1, field(4, b"Custom") + field(7, b"d") + field(5, attribute))
    return b"\x08\x08" + field(7, graph) + field(8, b"\x10\x11")


@pytest.mark.parametrize("depth", [1000, 100])
def test_deep_subgraphs(tmp_path: Path, depth: int) -> None:
    (tmp_path / "m.onnx").write_bytes(_nested(depth))
    with pytest.raises(ModelError, match="nested"):
        load_onnx(tmp_path / "m.onnx")


def test_subgraphs_that_are_deep_but_not_too_deep(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(_nested(20))
    assert len(load_onnx(tmp_path / "m.onnx").graph.scopes) == 21


def _functions(bodies: dict[str, list[str]]) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = []
    for name, calls in bodies.items():
        nodes, last = [], "x"
        for i, call in enumerate(calls):
            nodes.append(helper.make_node(call, [last], [f"t{i}"], domain="" if call == "Relu" else "f"))
            last = f"t{i}"
        functions.append(helper.make_function("f", name, ["x"], [last], nodes, imports))
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    graph = helper.make_graph(
        [helper.make_node(next(iter(bodies)), ["x"], ["y"], domain="f")], "g", info[:1], info[1:]
    )
    return helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=9)


def test_functions_that_call_themselves() -> None:
    for bodies in ({"a": ["a"]}, {"a": ["b"], "b": ["Relu", "c"], "c": ["a"]}):
        with pytest.raises(ModelError, match="function 'a' calls itself: a"):
            check_integrity(_functions(bodies), Path("m.onnx"))


@pytest.mark.parametrize(("side", "count"), [("input", 1), ("output", 1)])
def test_calls_with_more_than_the_function_has(side: str, count: int) -> None:
    model = _functions({"a": ["Relu"]})
    check_integrity(model, Path("m.onnx"))
    getattr(model.graph.node[0], side).append("x" if side == "input" else "more")
    with pytest.raises(ModelError, match=rf"has {count + 1} {side}s, the function has {count}"):
        check_integrity(model, Path("m.onnx"))


def _add_sparse(model: onnx.ModelProto) -> onnx.SparseTensorProto:
    sparse = model.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0]))
    sparse.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [1], [0]))
    return sparse


def test_a_sparse_initializer_in_a_file(tmp_path: Path) -> None:
    model = make_model()
    indices = _add_sparse(model).indices
    (tmp_path / "data.bin").write_bytes(bytes(8))
    indices.ClearField("int64_data")
    indices.data_location = TensorProto.EXTERNAL
    indices.external_data.add(key="location", value="data.bin")
    with pytest.raises(ModelError, match="sparse initializer 's' is external data"):
        check_integrity(model, tmp_path / "m.onnx")


def test_a_sparse_initializer_that_is_an_output() -> None:
    model = make_model()
    _add_sparse(model)
    check_integrity(model, Path("m.onnx"))
    model.graph.output.add(name="s")
    with pytest.raises(ModelError, match="output 's' is a sparse initializer itself"):
        check_integrity(model, Path("m.onnx"))


def test_functions_of_one_name() -> None:
    model = _functions({"a": ["Relu"]})
    model.functions.append(model.functions[0])
    with pytest.raises(ModelError, match="two functions have one name"):
        check_integrity(model, Path("m.onnx"))


def test_a_scan_that_scans_more_than_it_has_left(tmp_path: Path) -> None:
    """Below opset 9 the first input of a Scan is no value that it carries or scans."""
    text = """<ir_version: 8, opset_import: ["": 7]>
    g (float[1, 4] x) => (float[1, 4] y) {
        y = Scan <num_scan_inputs = 1, body = b (float[1, 4] a) => (float[1, 4] c) { c = Relu(a) }> (x)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    assert len(load_onnx(tmp_path / "m.onnx").graph.ops) == 2


def test_chains_of_functions() -> None:
    def chain(length: int, width: int) -> onnx.ModelProto:
        calls = {f"f{i}": [f"f{i + 1}"] * width for i in range(length)}
        return _functions({**calls, f"f{length}": ["Relu"]})

    check_integrity(chain(MAX_CALLS - 1, 1), Path("m.onnx"))
    check_integrity(chain(10, 2), Path("m.onnx"))
    with pytest.raises(ModelError, match="deep"):
        check_integrity(chain(1000, 1), Path("m.onnx"))
    with pytest.raises(ModelError, match="functions expand to"):
        check_integrity(chain(40, 2), Path("m.onnx"))


def _with_binary(edit: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    """The model in whose file the marker that was put somewhere is no UTF-8."""
    model = make_model()
    edit(model)
    content = model.SerializeToString()
    assert content.count(b"MARK") == 1
    return onnx.ModelProto.FromString(content.replace(b"MARK", b"M\xffRK"))


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: setattr(m, "producer_name", "MARK"),
        lambda m: setattr(m.graph, "doc_string", "MARK" * 1 + "x" * 5000),
        lambda m: m.metadata_props.add(key="k", value="MARK"),
        lambda m: setattr(m.graph.node[0], "op_type", "MARK"),
        lambda m: setattr(m.graph.node[0].attribute.add(), "name", "MARK"),
        lambda m: m.graph.node[1].attribute[0].g.node[0].output.append("MARK"),
        lambda m: m.graph.input[0].type.tensor_type.shape.dim.add(dim_param="MARK"),
        lambda m: setattr(weight(m), "doc_string", "MARK"),
        lambda m: weight(m).external_data.add(key="k", value="MARK"),
        lambda m: m.functions.add(name="f").input.append("MARK"),
        lambda m: m.opset_import.add(domain="MARK", version=1),
    ],
)
def test_texts_that_are_no_text(edit: Callable[[onnx.ModelProto], object]) -> None:
    with pytest.raises(ModelError, match=r"holds a text that is not UTF-8: b'M\\xffRK"):
        check_integrity(_with_binary(edit), Path("m.onnx"))


def test_bytes_and_backslashes_are_fine() -> None:
    model = make_model()
    model.graph.node[0].doc_string = "\\377 \\\\200 ü"
    model.graph.node[0].attribute.append(helper.make_attribute("s", b"\xff\xfe"))
    model.graph.node[0].attribute.append(helper.make_attribute("t", weight(model)))
    model.graph.node[0].domain = "own"
    check_integrity(model, Path("m.onnx"))


def test_long_lists_are_read(tmp_path: Path) -> None:
    """Inference would follow each of their numbers as a size."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[10000000] sound, int64[10000000] ids) => (float[n] y, int64[n] z) <float[1] half = {0.5}> {
        y = Mul(sound, half)
        z = Add(ids, ids)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    loaded = load_onnx(tmp_path / "m.onnx")
    assert loaded.graph.ops[0].op_type == "Mul"
    assert [v.shape for v in loaded.model.graph.inputs] == [[10**7], [10**7]]
