"""Random graphs with branches, loops, functions and shared weights stay valid under random plans."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from fp16conv.conversion.onnx import convert
from fp16conv.conversion.save import save
from fp16conv.conversion.verify import verify
from fp16conv.execution.runtime import Runtime
from fp16conv.frontends.onnx import load_onnx
from tests.roundtrip.plans import all_fp32, random_plan

# Every value lies in [-1, 1], so one rounding costs at most 2^-12 and each operator passes errors on with a
# factor of 2 at most; the graphs are at most 5 operators deep between two Tanh.
TOLERANCE = 0.02
SHAPE = [3]
UNARY = ("Tanh", "Neg", "Abs", "Identity", "shared.halve")
BINARY = ("Mul", "Max", "Min")


@dataclass
class _Writer:
    rng: random.Random
    count: int = 0
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def name(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def graph(
        self, name: str, visible: list[str], size: int, depth: int
    ) -> tuple[list[onnx.NodeProto], list[str]]:
        """Nodes reading `visible`, and the names they define."""
        nodes: list[onnx.NodeProto] = []
        own: list[str] = []
        for _ in range(size):
            new, outputs = self.step(visible + own, depth)
            nodes += new
            own += outputs
        return nodes, own

    def step(self, visible: list[str], depth: int) -> tuple[list[onnx.NodeProto], list[str]]:
        kind = self.rng.choice(("unary", "binary", "weight", "constant", "if", "loop")[: 6 if depth else 4])
        output = self.name()
        if kind == "unary":
            domain, _, op = self.rng.choice(UNARY).rpartition(".")
            return [helper.make_node(op, [self.rng.choice(visible)], [output], domain=domain, name=output)], [
                output
            ]
        if kind == "binary":
            pair = [self.rng.choice(visible), self.rng.choice(visible)]
            return [helper.make_node(self.rng.choice(BINARY), pair, [output], name=output)], [output]
        if kind == "weight":
            return [
                helper.make_node("Mul", [self.rng.choice(visible), self.weight()], [output], name=output)
            ], [output]
        if kind == "constant":
            value = self.name("c")
            constant = helper.make_node("Constant", [], [value], value_floats=[0.5, 0.25, -1.0], name=value)
            product = helper.make_node("Mul", [self.rng.choice(visible), value], [output], name=output)
            return [constant, product], [value, output]
        return (
            [self.branch(visible, output, depth)] if kind == "if" else [self.loop(visible, output, depth)]
        ), [output]

    def weight(self) -> str:
        if not self.weights or self.rng.random() < 0.5:
            numbers = np.array([self.rng.uniform(-1, 1) for _ in range(3)], np.float32)
            self.weights.append(numpy_helper.from_array(numbers, self.name("w")))
        return self.rng.choice(self.weights).name

    def body(self, visible: list[str], depth: int) -> tuple[list[onnx.NodeProto], str]:
        nodes, own = self.graph("body", visible, self.rng.randint(1, 3), depth - 1)
        output = self.name("o")
        return [*nodes, helper.make_node("Tanh", [own[-1]], [output], name=output)], output

    def branch(self, visible: list[str], output: str, depth: int) -> onnx.NodeProto:
        bodies = {}
        for attr in ("then_branch", "else_branch"):
            nodes, result = self.body(visible, depth)
            bodies[attr] = helper.make_graph(nodes, attr, [], [_info(result)])
        return helper.make_node("If", ["flag"], [output], name=output, **bodies)

    def loop(self, visible: list[str], output: str, depth: int) -> onnx.NodeProto:
        state, going, step = self.name("s"), self.name("k"), self.name("i")
        nodes, result = self.body([*visible, state], depth)
        kept = self.name("k")
        nodes.append(helper.make_node("Identity", [going], [kept], name=kept))
        inputs = [
            helper.make_tensor_value_info(step, TensorProto.INT64, []),
            helper.make_tensor_value_info(going, TensorProto.BOOL, []),
            _info(state),
        ]
        outputs = [helper.make_tensor_value_info(kept, TensorProto.BOOL, []), _info(result)]
        graph = helper.make_graph(nodes, "body", inputs, outputs)
        return helper.make_node(
            "Loop", ["trips", "", self.rng.choice(visible)], [output], name=output, body=graph
        )


def _info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)


def build(seed: int) -> onnx.ModelProto:
    writer = _Writer(random.Random(seed))
    nodes, own = writer.graph("main", ["x", "y"], writer.rng.randint(2, 6), depth=2)
    outputs = writer.rng.sample(own, min(len(own), 2))
    trips = numpy_helper.from_array(np.array(2, np.int64), "trips")
    inputs = [_info("x"), _info("y"), helper.make_tensor_value_info("flag", TensorProto.BOOL, [])]
    graph = helper.make_graph(
        nodes, "main", inputs, [_info(o) for o in outputs], initializer=[trips, *writer.weights]
    )
    halve = helper.make_function(
        "shared",
        "halve",
        ["a"],
        ["b"],
        [
            helper.make_node("Constant", [], ["half"], value_float=0.5, name="half"),
            helper.make_node("Mul", ["a", "half"], ["b"], name="product"),
        ],
        [helper.make_opsetid("", 17)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("shared", 1)]
    return helper.make_model(graph, functions=[halve], opset_imports=imports, ir_version=8)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 10_000), plan_seed=st.integers(0, 3))
def test_random_graphs_convert(seed: int, plan_seed: int, runtime: Runtime) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        proto = build(seed)
        onnx.checker.check_model(proto, full_check=True)
        onnx.save(proto, folder / "in.onnx")
        loaded = load_onnx(folder / "in.onnx")
        plan = random_plan(loaded.graph, plan_seed, share=0.5 + 0.5 * (plan_seed == 3))
        (written,) = save(convert(loaded, plan), folder / "out.onnx", loaded)
        assert not verify(written, loaded, plan)
        numbers = np.array([0.3, -0.7, 0.9], np.float32)
        before, after = runtime.load(folder / "in.onnx"), runtime.load(written)
        for flag in (False, True):
            feeds = {"x": numbers, "y": numbers[::-1].copy(), "flag": np.array(flag)}
            expected, found = runtime.run(before, feeds), runtime.run(after, feeds)
            for key, value in expected.items():
                np.testing.assert_allclose(found[key], value, atol=TOLERANCE, rtol=0, err_msg=key)
        again = load_onnx(written)
        (twice,) = save(convert(again, all_fp32(again.graph)), folder / "twice.onnx", again)
        assert twice.read_bytes() == written.read_bytes()
