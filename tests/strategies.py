"""Random well-typed graphs with branches, loops, scans, functions, sequences, user casts and shared weights.

Every value lies in [-1, 1], so that `error_bound` can follow rounding errors through a graph.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

T = TypeVar("T")

OPSETS = (13, 17, 21, 23)
SIZE = 3
TRIPS = 2  # iterations of every loop and scan
UNARY = ("Tanh", "Neg", "Abs", "Identity", "Softmax", "shared.halve", "shared.branch", "shared.twice")
BINARY = ("Mul", "Max", "Min", "shared.mix")
KINDS = ("unary", "binary", "weight", "matmul", "constant", "sequence", "island", "if", "loop", "scan")
WITH_BODY = ("if", "loop", "scan")
FP16_ROUNDING = 2.0**-11  # of a magnitude up to 1, with room for errors that push it above


class Chooser(Protocol):
    """The part of `random.Random` that the writer uses."""

    def randint(self, low: int, high: int) -> int: ...

    def choice(self, options: Sequence[T]) -> T: ...


@dataclass(frozen=True)
class Drawn:
    """Lets hypothesis choose, so that graphs shrink."""

    draw: st.DrawFn

    def randint(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choice(self, options: Sequence[T]) -> T:
        return options[self.randint(0, len(options) - 1)]


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """Random models that shrink."""
    return build(Drawn(draw))


def build(rng: Chooser) -> onnx.ModelProto:
    """A random model with inputs x, y (float[3]) and flag (bool), and one or two outputs."""
    writer = _Writer(rng)
    nodes, own = writer.graph(["x", "y"], rng.randint(2, 6), depth=2)
    outputs = list(dict.fromkeys((rng.choice(own), rng.choice(own))))
    trips = numpy_helper.from_array(np.array(TRIPS, np.int64), "trips")
    zero = numpy_helper.from_array(np.array(0, np.int64), "zero")
    inputs = [_info("x"), _info("y"), helper.make_tensor_value_info("flag", TensorProto.BOOL, [])]
    graph = helper.make_graph(
        nodes, "main", inputs, [_info(o) for o in outputs], initializer=[trips, zero, *writer.weights]
    )
    imports = [helper.make_opsetid("", rng.choice(OPSETS)), helper.make_opsetid("shared", 1)]
    functions = _functions(imports)
    return helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=10)


def example(seed: int) -> onnx.ModelProto:
    """The model of a seed."""
    return build(random.Random(seed))


def feeds() -> Iterable[dict[str, np.ndarray]]:
    """Inputs for every random model, both ways of its branches."""
    numbers = np.array([0.3, -0.7, 0.9], np.float32)
    for flag in (False, True):
        yield {"x": numbers, "y": numbers[::-1].copy(), "flag": np.array(flag)}


def _info(name: str, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, [SIZE])


def _functions(imports: Sequence[onnx.OperatorSetIdProto]) -> list[onnx.FunctionProto]:
    """A constant inside; a branch inside that captures the argument; a call of another one; two arguments."""
    node = helper.make_node
    branches = {
        "then_branch": helper.make_graph([node("Neg", ["a"], ["p"], "p")], "then", [], [_info("p")]),
        "else_branch": helper.make_graph([node("Tanh", ["a"], ["q"], "q")], "else", [], [_info("q")]),
    }
    bodies = {
        "halve": (
            ["a"],
            [
                node("Constant", [], ["half"], "half", value_float=0.5),
                node("Mul", ["a", "half"], ["b"], "product"),
            ],
        ),
        "branch": (
            ["a"],
            [
                node("Constant", [], ["yes"], "yes", value=numpy_helper.from_array(np.array(True), "yes")),
                node("If", ["yes"], ["b"], "choice", **branches),
            ],
        ),
        "twice": (
            ["a"],
            [
                node("halve", ["a"], ["h"], "inner", domain="shared"),
                node("Softmax", ["h"], ["b"], "softmax"),
            ],
        ),
        "mix": (["a", "c"], [node("Mul", ["a", "c"], ["m"], "mul"), node("Max", ["m", "a"], ["b"], "max")]),
    }
    return [
        helper.make_function("shared", name, inputs, ["b"], nodes, imports)
        for name, (inputs, nodes) in bodies.items()
    ]


@dataclass
class _Writer:
    rng: Chooser
    count: int = 0
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def name(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def graph(self, visible: list[str], size: int, depth: int) -> tuple[list[onnx.NodeProto], list[str]]:
        """Nodes reading `visible`, and the names of vectors they define."""
        nodes: list[onnx.NodeProto] = []
        own: list[str] = []
        for _ in range(size):
            new, output = self.step(visible + own, depth)
            nodes += new
            own.append(output)
        return nodes, own

    def step(self, visible: list[str], depth: int) -> tuple[list[onnx.NodeProto], str]:
        kind = self.rng.choice(KINDS if depth else KINDS[: -len(WITH_BODY)])
        output, source = self.name(), self.rng.choice(visible)
        if kind in ("unary", "binary"):
            domain, _, op = self.rng.choice(UNARY if kind == "unary" else BINARY).rpartition(".")
            inputs = [source] if kind == "unary" else [source, self.rng.choice(visible)]
            return [helper.make_node(op, inputs, [output], output, domain=domain)], output
        if kind in ("weight", "matmul"):
            op, shape = ("Mul", (SIZE,)) if kind == "weight" else ("MatMul", (SIZE, SIZE))
            return [helper.make_node(op, [source, self.weight(shape)], [output], output)], output
        if kind == "constant":
            value = self.name("c")
            constant = helper.make_node("Constant", [], [value], value, value_floats=[0.5, 0.25, -1.0])
            return [constant, helper.make_node("Mul", [source, value], [output], output)], output
        if kind == "sequence":
            items = self.name("s")
            made = helper.make_node("SequenceConstruct", [source, self.rng.choice(visible)], [items], items)
            return [made, helper.make_node("SequenceAt", [items, "zero"], [output], output)], output
        if kind == "island":
            return self.island(source, output), output
        body = {"if": self.branch, "loop": self.loop, "scan": self.scan}[kind]
        return [body(visible, output, depth)], output

    def island(self, source: str, output: str) -> list[onnx.NodeProto]:
        """The user's own casts to another type and back, with operators between them or without."""
        dtype = self.rng.choice((TensorProto.FLOAT16, TensorProto.DOUBLE))
        # ONNX Runtime drops FLOAT -> DOUBLE -> FLOAT, and forgets readers in bodies: something is in between.
        least = 2 if dtype == TensorProto.DOUBLE else 1
        names = [self.name("h") for _ in range(self.rng.randint(least, 3))]
        down = helper.make_node("Cast", [source], names[:1], names[0], to=dtype)
        inside = [helper.make_node("Neg", [a], [b], b) for a, b in itertools.pairwise(names)]
        up = helper.make_node("Cast", names[-1:], [output], output, to=TensorProto.FLOAT)
        return [down, *inside, up]

    def weight(self, shape: tuple[int, ...]) -> str:
        """A weight, new or shared; rows of a matrix sum to less than 1."""
        fitting = [w for w in self.weights if tuple(w.dims) == shape]
        if not fitting or self.rng.randint(0, 1):
            scale = 1.0 if len(shape) == 1 else 1.0 / SIZE
            numbers = [scale * self.rng.randint(-999, 999) / 1000 for _ in range(int(np.prod(shape)))]
            tensor = numpy_helper.from_array(np.array(numbers, np.float32).reshape(shape), self.name("w"))
            self.weights.append(tensor)
            return tensor.name
        return self.rng.choice(fitting).name

    def body(self, visible: list[str], depth: int) -> tuple[list[onnx.NodeProto], str]:
        nodes, own = self.graph(visible, self.rng.randint(1, 3), depth - 1)
        output = self.name("o")
        return [*nodes, helper.make_node("Tanh", [own[-1]], [output], output)], output

    def branch(self, visible: list[str], output: str, depth: int) -> onnx.NodeProto:
        bodies = {}
        for attr in ("then_branch", "else_branch"):
            nodes, result = self.body(visible, depth)
            bodies[attr] = helper.make_graph(nodes, attr, [], [_info(result)])
        return helper.make_node("If", ["flag"], [output], output, **bodies)

    def loop(self, visible: list[str], output: str, depth: int) -> onnx.NodeProto:
        state, going, step = self.name("s"), self.name("k"), self.name("i")
        nodes, result = self.body([*visible, state], depth)
        kept = self.name("k")
        nodes.append(helper.make_node("Identity", [going], [kept], kept))
        inputs = [
            helper.make_tensor_value_info(step, TensorProto.INT64, []),
            helper.make_tensor_value_info(going, TensorProto.BOOL, []),
            _info(state),
        ]
        outputs = [helper.make_tensor_value_info(kept, TensorProto.BOOL, []), _info(result)]
        graph = helper.make_graph(nodes, "body", inputs, outputs)
        source = self.rng.choice(visible)
        return helper.make_node("Loop", ["trips", "", source], [output], output, body=graph)

    def scan(self, visible: list[str], output: str, depth: int) -> onnx.NodeProto:
        state, item, copy = self.name("s"), self.name("t"), self.name("t")
        nodes, result = self.body([*visible, state, item], depth)
        nodes.append(helper.make_node("Neg", [result], [copy], copy))
        graph = helper.make_graph(nodes, "body", [_info(state), _info(item)], [_info(result), _info(copy)])
        inputs = [self.rng.choice(visible), self.weight((TRIPS, SIZE))]
        outputs = [output, self.name("u")]
        return helper.make_node("Scan", inputs, outputs, output, body=graph, num_scan_inputs=1)


def error_bound(proto: onnx.ModelProto) -> dict[str, float]:
    """Largest error per output when every value and every weight may be rounded to FP16 once per reader."""
    functions = {(f.domain, f.name): f for f in proto.functions}
    known = dict.fromkeys((i.name for i in proto.graph.input), 0.0)
    known |= dict.fromkeys((t.name for t in proto.graph.initializer), 0.0)
    _follow(proto.graph.node, known, functions)
    return {o.name: known[o.name] for o in proto.graph.output}


def _follow(
    nodes: Iterable[onnx.NodeProto],
    known: dict[str, float],
    functions: Mapping[tuple[str, str], onnx.FunctionProto],
) -> None:
    for node in nodes:
        reads = [known.get(name, 0.0) + FP16_ROUNDING for name in node.input if name]
        function = functions.get((node.domain, node.op_type))
        bodies = [a.g for a in node.attribute if a.HasField("g")]
        if function is not None:
            inner = dict(zip(function.input, reads, strict=True))
            _follow(function.node, inner, functions)
            error = inner[function.output[0]]
        elif node.op_type == "If":
            error = 0.0
            for body in bodies:
                inner = dict(known)
                _follow(body.node, inner, functions)
                error = max(error, inner[body.output[0].name])
        elif node.op_type in ("Loop", "Scan"):
            (body,) = bodies
            number = 1 if node.op_type == "Loop" else 0
            error = reads[-1] if node.op_type == "Loop" else reads[0]
            for _ in range(TRIPS):
                inner = dict(known) | {i.name: FP16_ROUNDING for i in body.input}
                inner[body.input[2 * number].name] = error + FP16_ROUNDING
                _follow(body.node, inner, functions)
                error = inner[body.output[number].name] + FP16_ROUNDING
        elif node.op_type == "Mul":
            error = (1 + reads[0]) * (1 + reads[1]) - 1
        elif node.op_type == "MatMul":
            error = reads[0] + SIZE * reads[1] * (1 + reads[0])
        else:  # at most as far apart as what it reads
            error = max(reads, default=0.0)
        for output in node.output:
            known[output] = error + FP16_ROUNDING


def shuffle(proto: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """The same model with the nodes of every graph in another order that defines before it reads."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    _reorder(copy.graph.node, rng)
    for function in copy.functions:
        _reorder(function.node, rng)
    return copy


def _reorder(nodes: Any, rng: random.Random) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _reorder(attribute.g.node, rng)
    waiting = list(nodes)
    local = {name for node in waiting for name in node.output}
    done: set[str] = set()
    ordered: list[onnx.NodeProto] = []
    while waiting:
        ready = [node for node in waiting if not _reads(node) & local - done]
        chosen = rng.choice(ready)
        waiting.remove(chosen)
        ordered.append(chosen)
        done.update(chosen.output)
    del nodes[:]
    nodes.extend(ordered)


def _reads(node: onnx.NodeProto) -> set[str]:
    """What a node reads, captures of its bodies included (names are unique in these models)."""
    names = set(node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            names.update(*(_reads(inner) for inner in attribute.g.node))
    return names
