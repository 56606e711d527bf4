"""Proven bounds against the extremes that inputs really reach, and against what must stay unproven."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from fp16conv.errors import UsageError
from fp16conv.evidence.bounds import prove_bounds
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from fp16conv.graph import Origin, RangeFact

SLACK = 1e-4  # relative allowance for roundings in the bounds of small graphs
Ranges = Mapping[str, tuple[float, float]]


@pytest.fixture
def load(tmp_path: Path):
    def load(text: str, weights: Mapping[str, np.ndarray] | None = None, opset: int = 18) -> LoadedModel:
        head = f'<ir_version: 9, opset_import: ["" : {opset}, "com.microsoft" : 1, "own" : 1]>'
        model = onnx.parser.parse_model(head + text)
        model.graph.initializer.extend(
            numpy_helper.from_array(np.asarray(a), name) for name, a in (weights or {}).items()
        )
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        return load_onnx(path)

    return load


@pytest.fixture
def prove(load):
    def prove(
        text: str,
        ranges: Ranges | None = None,
        weights: Mapping[str, np.ndarray] | None = None,
        opset: int = 18,
    ) -> dict[str, RangeFact]:
        graph = load(text, weights, opset).graph
        return {graph.values[v].name: fact for v, fact in prove_bounds(graph, ranges or {}).items()}

    return prove


def close(fact: RangeFact, lo: float, hi: float, slack: float = SLACK) -> None:
    """The bounds hold, and are no wider than roundings ask for."""
    width = max(abs(lo), abs(hi), 1e-3)
    assert fact.origin is Origin.PROVEN
    assert lo - slack * width <= fact.lo <= lo
    assert hi <= fact.hi <= hi + slack * width


@pytest.mark.parametrize(
    ("expression", "range_", "lo", "hi"),
    [
        ("Relu(x)", (-3, 5), 0, 5),
        ("LeakyRelu <alpha = 0.5> (x)", (-4, 2), -2, 2),
        ("Neg(x)", (-3, 5), -5, 3),
        ("Abs(x)", (-3, 2), 0, 3),
        ("Exp(x)", (-1, 2), math.exp(-1), math.exp(2)),
        ("Log(x)", (1, 4), 0, math.log(4)),
        ("Sqrt(x)", (4, 9), 2, 3),
        ("Reciprocal(x)", (2, 4), 0.25, 0.5),
        ("Reciprocal(x)", (-4, -2), -0.5, -0.25),
        ("Tanh(x)", (-1e30, 1e30), -1, 1),
        ("Sigmoid(x)", (-2, 0), 1 / (1 + math.exp(2)), 0.5),
        ("Sin(x)", (-1e6, 1e6), -1, 1),
        ("HardSigmoid <alpha = 0.25, beta = 0.5> (x)", (-1, 9), 0.25, 1),
        ("Mul(x, x)", (-3, 2), 0, 9),
        ("Add(x, x)", (-3, 2), -6, 4),
        ("Floor(x)", (-1.5, 2.5), -2, 3),
        ("Softmax <axis = -1> (x)", (-1e30, 1e30), 0, 1),
        ("ReduceSum(x)", (-1, 2), -8, 16),
        ("ReduceMean <keepdims = 0> (x)", (-1, 2), -1, 2),
        ("ReduceL2(x)", (-1, 0.5), 0, math.sqrt(8)),
        ("Transpose(x)", (-1, 2), -1, 2),
        ("Erf(x)", (-1e3, 0), -1, 0),
        ("Softplus(x)", (0, 3), math.log(2), math.log1p(math.exp(3))),
    ],
)
def test_ranges_of_functions(
    prove, expression: str, range_: tuple[float, float], lo: float, hi: float
) -> None:
    facts = prove(f"g (float[2,4] x) => (float y) {{ y = {expression} }}", {"x": range_})
    close(facts["y"], lo, hi)


def test_undeclared_inputs_are_unknown_but_bounded_functions_are_not(prove) -> None:
    facts = prove("g (float[2] x) => (float[2] y) { s = Sigmoid(x) t = Add(x, x) y = Mul(s, t) }")
    assert set(facts) == {"s"}
    assert facts["s"].has_nan, "an undeclared input may hold NaN"


def test_row_sums_split_by_sign(prove) -> None:
    w = np.array([[3.0, -1.0], [-2.0, 4.0]], np.float32)
    text = "g (float[5,2] x) => (float[5,2] y) { y = MatMul(x, w) }"
    facts = prove(text, {"x": (-1, 10)}, {"w": w})
    # columns: 3a - 2b in [-23, 32], -a + 4b in [-14, 41]
    close(facts["y"], -23, 41)


@pytest.mark.parametrize("sign", [1, -1])
def test_convolution_bounds_are_attained(prove, sign: int) -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(3, 2, 3, 3)).astype(np.float32)
    bias = rng.normal(size=3).astype(np.float32)
    text = "g (float[1,2,9,9] x) => (float[1,3,7,7] y) { y = Conv(x, w, b) }"
    facts = prove(text, {"x": (-2, 2)}, {"w": w, "b": bias})
    reach = (sign * bias + 2 * np.abs(w).sum(axis=(1, 2, 3))).max()
    bound = facts["y"].hi if sign > 0 else -facts["y"].lo
    assert reach <= bound <= reach * (1 + SLACK)


def test_channels_keep_their_own_bounds_through_batch_norm_relu_and_depthwise_convolutions(prove) -> None:
    text = """g (float[1,2,4,4] x) => (float[1,2,4,4] y) {
        n = BatchNormalization <epsilon = 0.0> (x, s, z, z, v)
        r = Relu(n)
        c = Conv <group = 2> (r, k)
        y = Mul(c, back)
    }"""
    s, v = np.array([1.0, 1000.0], np.float32), np.ones(2, np.float32)
    weights = {
        "s": s, "v": v, "z": np.zeros(2, np.float32), "k": np.ones((2, 1, 1, 1), np.float32),
        "back": np.array([1.0, 0.001], np.float32).reshape(2, 1, 1),
    }  # fmt: skip
    close(prove(text, {"x": (-1, 1)}, weights)["y"], 0, 1, slack=1e-3)


@pytest.mark.parametrize("form", ["operator", "divide", "multiply"])
def test_normalized_rows_and_the_product_behind_them(prove, form: str) -> None:
    n, rng = 64, np.random.default_rng(1)
    weights = {
        "g": np.full(n, 2.0, np.float32), "b": np.full(n, 0.5, np.float32), "ax": np.array([-1]),
        "w": rng.normal(size=(n, 4)).astype(np.float32), "eps": np.float32(1e-5), "two": np.float32(2.0),
    }  # fmt: skip
    written = """m = ReduceMean(x, ax) d = Sub(x, m) q = Pow(d, two) v = ReduceMean(q, ax)
        e = Add(v, eps) r = Sqrt(e) """
    body = {
        "operator": "l = LayerNormalization(x, g, b)",
        "divide": written + "z = Div(d, r) s = Mul(z, g) l = Add(s, b)",
        "multiply": written + "i = Reciprocal(r) z = Mul(d, i) s = Mul(z, g) l = Add(b, s)",
    }[form]
    facts = prove(
        f"g (float[3,{n}] x) => (float[3,4] y) {{ {body} y = MatMul(l, w) }}", {"x": (-9, 9)}, weights
    )
    # |y| <= sqrt(n) |g| + |b|, whatever x is
    close(facts["l"], 0.5 - 2 * math.sqrt(n), 0.5 + 2 * math.sqrt(n), slack=0.04)
    # Cauchy-Schwarz instead of the sum of |w|
    shift, reach = 0.5 * weights["w"].sum(axis=0), 2 * math.sqrt(n) * np.linalg.norm(weights["w"], axis=0)
    close(facts["y"], float((shift - reach).min()), float((shift + reach).max()), slack=0.04)


def test_norms_bound_unknown_inputs_too(prove) -> None:
    n = 16
    weights = {
        "g": np.ones(n, np.float32),
        "eps": np.float32(1e-6),
        "two": np.float32(2),
        "ax": np.array([-1]),
    }
    facts = prove(
        f"""g (float[3,{n}] x) => (float[3,{n}] y) {{
            q = Pow(x, two) v = ReduceMean(q, ax) e = Add(v, eps) r = Sqrt(e) z = Div(x, r) y = Mul(z, g)
        }}""",
        {},
        weights,
    )
    close(facts["y"], -4, 4, slack=0.04)


def test_a_variance_that_cancels_proves_nothing(prove) -> None:
    facts = prove(
        """g (float[3,16] x) => (float[3,16] y) {
            m = ReduceMean <axes = [-1]> (x) q = Mul(x, x) s = ReduceMean <axes = [-1]> (q) p = Mul(m, m)
            v = Sub(s, p) e = Add(v, eps) r = Sqrt(e) d = Sub(x, m) y = Div(d, r)
        }""",
        {"x": (-9, 9)},
        {"eps": np.float32(1e-5)},
        opset=13,
    )
    assert "y" not in facts


def test_softmax_written_out(prove) -> None:
    facts = prove(
        """g (float[2,6] x) => (float[2,6] y) {
            m = ReduceMax <axes = [-1]> (x) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, ax) y = Div(e, s)
        }""",
        {"x": (-1e4, 1e4)},
        {"ax": np.array([-1])},
        opset=13,
    )
    close(facts["e"], 0, 1)
    close(facts["y"], 0, 1, slack=0.02)


def test_attention_is_a_mean_of_its_values(prove) -> None:
    text = """g (float[N,5,5] scores, float[N,5,3] v) => (float[N,5,3] y) {
        p = Softmax(scores) y = MatMul(p, v)
    }"""
    facts = prove(text, {"scores": (-50, 50), "v": (-3, 7)})
    close(facts["y"], -3, 7, slack=1e-3)


def test_small_numbers_and_integers(prove) -> None:
    text = """g (int64[2] i, float[2] x) => (float[2] y, float[2] z) {
        t = Gather(table, i) a = Add(t, one) y = Identity(a)
        low = Max(x, small) z = Mul(low, t)
    }"""
    weights = {
        "table": np.array([4.0, -8.0, 0.0, 16.0], np.float32), "one": np.float32(1), "small": np.float32(0.25)
    }  # fmt: skip
    facts = prove(text, {"x": (-1, 1)}, weights)
    close(facts["t"], -8, 16)
    assert facts["t"].is_integral
    assert facts["t"].min_abs_nonzero == 4.0
    assert facts["a"].is_integral
    close(facts["y"], -7, 17)
    assert facts["low"].min_abs_nonzero == 0.25
    assert not facts["low"].is_integral
    assert facts["z"].min_abs_nonzero == pytest.approx(1.0, rel=1e-5)


def test_quantized_numbers_have_the_range_of_their_type(prove) -> None:
    text = "g (float[2] x) => (float[2] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
    weights = {"s": np.float32(0.5), "z": np.uint8(10)}
    close(prove(text, {}, weights)["y"], -5, 122.5)


def test_recurrent_outputs(prove) -> None:
    text = """g (float[10,1,2] x) => (float y, float c) {
        y, h, c = LSTM <hidden_size = 3> (x, w, r)
    }"""
    weights = {"w": np.ones((1, 12, 2), np.float32), "r": np.ones((1, 12, 3), np.float32)}
    facts = prove(text, {"x": (-5, 5)}, weights)
    close(facts["y"], -1, 1)
    close(facts["c"], -10, 10, slack=0.01)


def test_both_branches_count(prove) -> None:
    text = """g (bool c, float[2] x) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] a) { a = Neg(x) },
                    else_branch = e () => (float[2] b) { b = Mul(x, x) }>
    }"""
    facts = prove(text, {"x": (0, 3)})
    close(facts["y"], -3, 9)
    close(facts["a"], -3, 0)


LOOP = """g (float[2] x, int64 n) => (float[2] y) {{
    yes = Constant <value_int = 1> () c = Cast <to = 9> (yes)
    y = Loop (n, c, x) <body = b (int64 i, bool d, float[2] s) => (bool e, float[2] t) {{
        e = Identity(d) {body}
    }}>
}}"""


def test_loops_reach_a_fixpoint(prove) -> None:
    shrinking = LOOP.format(body="u = Tanh(s) t = Neg(u)")
    close(prove(shrinking, {"x": (-2, 0.5)})["y"], -2, math.tanh(2))
    growing = LOOP.format(body="t = Add(s, s)")
    assert "y" not in prove(growing, {"x": (-2, 0.5)})
    one_sided = LOOP.format(body="u = Abs(s) v = Add(u, u) t = Clip(v, low, high)")
    ends = {"low": np.float32(-1), "high": np.float32(100)}
    close(prove(one_sided, {"x": (-2, 0.5)}, ends)["y"], -2, 100)


def test_functions_are_evaluated_per_call_and_joined(tmp_path: Path) -> None:
    inner = helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 18)],
    )
    nodes = [
        helper.make_node("Twice", ["x"], ["y"], domain="own"),
        helper.make_node("Twice", ["y"], ["z"], domain="own"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "z")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:]), functions=[inner], ir_version=9,
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("own", 1)],
    )  # fmt: skip
    onnx.save(model, tmp_path / "f.onnx")
    graph = load_onnx(tmp_path / "f.onnx").graph
    facts = {graph.values[v].name: f for v, f in prove_bounds(graph, {"x": (-1, 2)}).items()}
    close(facts["y"], -2, 4)
    close(facts["z"], -4, 8)
    close(facts["b"], -4, 8)


def test_unknown_operators_end_what_is_known(prove) -> None:
    facts = prove("g (float[2] x) => (float[2] y) { u = own.Mystery(x) y = Tanh(u) }", {"x": (0, 1)})
    assert "u" not in facts
    close(facts["y"], -1, 1)


def test_overflow_of_fp32_is_no_bound(prove) -> None:
    facts = prove("g (float[2] x) => (float[2] y) { a = Mul(x, x) y = Exp(x) }", {"x": (0, 1e20)})
    assert not {"a", "y"} & set(facts)


def test_shapes_make_open_sums_bounded(load) -> None:
    graph = load("g (float[N] x) => (float[1] y) { y = ReduceSum(x) }").graph
    output = graph.main.outputs[0]
    assert output not in prove_bounds(graph, {"x": (0, 1)})
    close(prove_bounds(graph, {"x": (0, 1)}, shapes={graph.main.inputs[0]: (100,)})[output], 0, 100)


def test_ranges_are_checked(load) -> None:
    graph = load("g (float[2] x) => (float[2] y) { y = Neg(x) }").graph
    with pytest.raises(UsageError, match="no input 'z'"):
        prove_bounds(graph, {"z": (0, 1)})
    with pytest.raises(UsageError, match="empty"):
        prove_bounds(graph, {"x": (1, 0)})


def test_work_is_linear_in_the_operators(load) -> None:
    from fp16conv.evidence.bounds import _Interpreter

    for depth in (50, 500):
        body = " ".join(f"v{i + 1} = Tanh(v{i})" for i in range(depth))
        graph = load(f"g (float[2] v0) => (float[2] v{depth}) {{ {body} }}").graph
        interpreter = _Interpreter(graph, {})
        interpreter.bind_inputs({})
        interpreter.run_scope(graph.main, {})
        assert interpreter.work == depth


@pytest.mark.parametrize("source", ["Log(x)", "Pow(x, low)"])
def test_a_clip_that_swallows_nan_ends_the_proof(prove, source: str) -> None:
    """inf / max(NaN, eps) is infinite: the norm of such a row bounds nothing behind a Clip."""
    text = f"""g (float[2,4] x) => (float[2,4] y) {{
        a = {source} n = ReduceL2(a, ax) c = Clip(n, eps) y = Div(a, c)
    }}"""
    weights = {"ax": np.array([-1]), "eps": np.float32(1e-12), "low": np.float32(-0.5)}
    assert "y" not in prove(text, {"x": (-1, 1)}, weights)
    assert prove(text, {"x": (1, 2)}, weights)["y"].hi <= 1.02


def test_results_below_the_normal_numbers_may_be_flushed(prove) -> None:
    fact = prove("g (float[2] x) => (float[2] y) { a = Mul(x, x) y = Mul(a, a) }", {"x": (1e-10, 1e-9)})["y"]
    assert fact.lo == 0.0
    assert fact.min_abs_nonzero is None


def test_places_are_counted_before_they_are_made(prove) -> None:
    """Forty Concats of a value with itself have 2^40 elements, each of which could have its own bounds."""
    doubled = "".join(f"d{i + 1} = Concat <axis = 0> (d{i}, d{i})\n" for i in range(40))
    facts = prove(
        f"g () => (float[n] y) {{ d0 = Identity(w)\n {doubled} y = Relu(d40) }}",
        weights={"w": np.array([-2.0, 1.0, 3.0], np.float32)},
    )
    close(facts["d40"], -2.0, 3.0)
    close(facts["y"], 0.0, 3.0)
