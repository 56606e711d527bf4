"""Values inside functions and branches, against what numpy computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from fp16conv.execution import taps
from fp16conv.execution.bodies import has_bodies, open_bodies
from fp16conv.execution.failures import RuntimeFailure
from fp16conv.execution.runtime import Runtime
from fp16conv.execution.taps import Reading, tap_inside
from fp16conv.frontends.onnx import LoadedModel, from_proto

Feed = dict[str, np.ndarray]

NESTED = """<ir_version: 9, opset_import: ["": 18]>
g (float[n] x, bool c, bool d) => (float[n] y, float[n] z) {
  a = Mul(x, x)
  y = If(c) <
    then_branch = t () => (float[n] p) {
      k = Constant<value = float {3.0}>()
      b = Add(a, k)
      p = If(d) <
        then_branch = tt () => (float[n] q) { q = Mul(b, b) },
        else_branch = te () => (float[n] q) { q = Sub(b, a) }
      >
    },
    else_branch = e () => (float[n] a2) { a2 = Neg(a) }
  >
  z = Neg(y)
}"""

FUNCTION = """<ir_version: 9, opset_import: ["": 18, "f": 1]>
g (float[n] x, bool c) => (float[n] y) {
  a = f.outer (x, c)
  y = f.outer (a, c)
}
<opset_import: ["": 18, "f": 1], domain: "f">
outer (u, c) => (w) {
  h = f.inner (u)
  r = If (c) < then_branch = t () => (float[n] p) { q = Abs(h) p = Neg(q) },
               else_branch = e () => (float[n] s) { s = Exp(h) } >
  w = Add(r, u)
}
<opset_import: ["": 18], domain: "f">
inner (v, unused) => (o) { o = Mul(v, v) }"""


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


def load(text: str) -> LoadedModel:
    return from_proto(onnx.parser.parse_model(text), Path("m.onnx"))


def read(loaded: LoadedModel, runtime: Runtime, *feeds: Feed, limit: int = 2**20) -> list[Reading]:
    return list(tap_inside(loaded, runtime, feeds, range(len(loaded.graph.values)), limit))


def of(loaded: LoadedModel, readings: list[Reading], name: str, scope: str = "") -> list[Reading]:
    graph = loaded.graph
    return [
        r
        for r in readings
        if graph.values[r.value].name == name
        and graph.scope_path(graph.values[r.value].scope).endswith(scope)
    ]


@pytest.mark.parametrize("limit", [1, 2**20])
@pytest.mark.parametrize(("c", "d"), [(True, True), (True, False), (False, True)])
def test_all_branches_are_read_and_the_taken_ones_marked(
    c: bool, d: bool, limit: int, runtime: Runtime
) -> None:
    loaded = load(NESTED)
    x = np.array([1.0, 2.0, -3.0], np.float32)
    readings = read(loaded, runtime, {"x": x, "c": np.array(c), "d": np.array(d)}, limit=limit)
    a, b = x * x, x * x + 3
    expected = [
        ("a", "main", a, True),
        ("b", "then_branch", b, c),
        ("p", "then_branch", b * b if d else b - a, c),
        ("q", "then_branch", b * b, c and d),
        ("q", "else_branch", b - a, c and not d),
        ("a2", "else_branch", -a, not c),
    ]
    for name, scope, array, taken in expected:
        (reading,) = of(loaded, readings, name, scope)
        np.testing.assert_array_equal(reading.array, array)
        assert reading.taken is taken, name
    (y,), (z,) = of(loaded, readings, "y"), of(loaded, readings, "z")
    np.testing.assert_array_equal(y.array, (b * b if d else b - a) if c else -a)
    np.testing.assert_array_equal(z.array, -y.array)


def test_names_do_not_depend_on_what_is_skipped() -> None:
    loaded = load(NESTED)
    whole = open_bodies(loaded)
    assert len(whole.hoisted) == 4
    for scope in whole.hoisted:
        part = open_bodies(loaded, {scope})
        assert scope not in part.hoisted
        assert part.places.items() <= whole.places.items()


def test_an_initializer_that_a_branch_returns(runtime: Runtime) -> None:
    loaded = load("""<ir_version: 9, opset_import: ["": 18]>
    g (float[2] x, bool c) => (float[2] y, float[2] z) {
      y, z = If(c) <
        then_branch = t () => (float[2] p, float[2] w) <float[2] w = {2.0, 3.0}> { p = Mul(x, w) },
        else_branch = e () => (float[2] q, float[2] r) { q = Neg(x) r = Abs(x) }
      >
    }""")
    feed = {"x": np.array([1, 2], np.float32), "c": np.array(True)}
    np.testing.assert_array_equal(of(loaded, read(loaded, runtime, feed), "p")[0].array, [2, 6])


def test_the_loaded_model_stays_as_it_was() -> None:
    loaded = load(FUNCTION)
    before = onnx.ModelProto()
    before.CopyFrom(loaded.proto)
    open_bodies(loaded)
    assert loaded.proto == before
    assert not any(v.metadata_props for n in loaded.model.graph.all_nodes() for v in n.outputs)


def test_functions_are_read_once_per_call(runtime: Runtime) -> None:
    loaded = load(FUNCTION)
    x = np.array([0.5, -1.0], np.float32)
    readings = read(loaded, runtime, {"x": x, "c": np.array(False)})
    first = np.exp(x * x) + x
    for name, values in {
        "u": (x, first),
        "v": (x, first),
        "o": (x * x, first * first),
        "h": (x * x, first * first),
        "s": (np.exp(x * x), np.exp(first * first)),
        "q": (x * x, first * first),
        "a": (first,),
    }.items():
        found = of(loaded, readings, name)
        assert len(found) == len(values), name
        for reading, value in zip(found, values, strict=True):
            np.testing.assert_allclose(reading.array, value, rtol=1e-6)
            assert reading.taken is (name != "q")


def test_functions_of_another_opset_are_opened(runtime: Runtime) -> None:
    """They may import another version where it has the same operators."""
    loaded = load(FUNCTION.replace('["": 18], domain', '["": 17], domain'))
    x = np.array([0.5, -1.0], np.float32)
    readings = read(loaded, runtime, {"x": x, "c": np.array(True)})
    first = of(loaded, readings, "o")[0]
    np.testing.assert_allclose(first.array, x * x, rtol=1e-6)


FAILING = """<ir_version: 9, opset_import: ["": 18]>
g (float[n] x, bool c) => (float[m] y) {
  shape = Constant<value_ints = [7, 1]>()
  y = If(c) <
    then_branch = t () => (float[k] p) { b = Add(x, x) r = Reshape(b, shape) p = Abs(r) },
    else_branch = e () => (float[k] a) { a = Neg(x) }
  >
}"""


def test_a_branch_that_fails_on_the_data_stays_unread(runtime: Runtime) -> None:
    loaded = load(FAILING)
    bad, good = np.ones(3, np.float32), np.ones(7, np.float32)
    readings = read(
        loaded, runtime, {"x": good, "c": np.array(True)}, {"x": bad, "c": np.array(False)}, limit=1
    )
    assert [(r.batch, r.taken) for r in of(loaded, readings, "a")] == [(0, False), (1, True)]
    assert 1 not in {r.batch for r in of(loaded, readings, "r")}
    keys = [(r.batch, r.value) for r in readings]
    assert len(keys) == len(set(keys))  # trying again reads nothing twice


def test_failing_branches_are_found_without_the_runtimes_word(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash names no operator."""
    monkeypatch.setattr(taps.OpenedModel, "find_branch", lambda self, message: None)
    loaded = load(FAILING)
    readings = read(loaded, runtime, {"x": np.ones(3, np.float32), "c": np.array(False)})
    assert len(of(loaded, readings, "a")) == 1
    assert of(loaded, readings, "b") == []


def test_a_model_that_fails_itself_is_the_runtimes_finding(runtime: Runtime) -> None:
    with pytest.raises(RuntimeFailure):
        read(load(FAILING), runtime, {"x": np.ones(3, np.float32), "c": np.array(True)})


def test_only_functions_and_branches_that_compute_are_bodies() -> None:
    assert has_bodies(load(FUNCTION).graph)
    assert has_bodies(load(NESTED).graph)
    moves = FAILING.replace("b = Add(x, x)", "b = Identity(x)").replace("Abs", "Identity")
    assert not has_bodies(load(moves.replace("Neg", "Identity")).graph)
