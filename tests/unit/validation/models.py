"""Small models with one numerical fault each, written in ONNX's text form."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx.parser

from fp16conv.execution.feeds import Batch, FeedSource
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from fp16conv.graph import DataType

Array = np.ndarray[Any, Any]

HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'


def batches(*items: Batch, origin: Literal["real", "synthetic"] = "real") -> FeedSource:
    """Inputs given in the test."""
    return FeedSource(origin, "given in the test", tuple(partial(dict, item) for item in items))


def write(
    folder: Path, text: str, weights: Mapping[str, Array] | None = None, name: str = "model"
) -> LoadedModel:
    """Parse a model, add its weights, write it and read it with the front end."""
    model = onnx.parser.parse_model(HEAD + text)
    for key, array in (weights or {}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, key))
    onnx.checker.check_model(model)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return load_onnx(path)


def everything(loaded: LoadedModel) -> list[DataType]:
    """Every legal type variable in FP16."""
    return [DataType.FLOAT16 if t.admits_fp16 else DataType.FLOAT for t in loaded.graph.typevars]


def deep_cnn(folder: Path, depth: int = 12, bad: int = 7) -> LoadedModel:
    """Convolutions with batch normalization, one of which has a running variance of 9.8e7."""
    rng = np.random.default_rng(0)
    lines, weights, last = [], {}, "x"
    for i in range(depth):
        # The weights before the bad normalization make its input as large as its statistics say.
        gain = (3000.0 if i == bad else 1.0) / 4  # about sqrt(2 / fan in): the signal keeps its size
        weights[f"w{i}"] = (rng.normal(size=(4, 4, 3, 3)) * gain).astype(np.float32)
        weights[f"s{i}"] = np.full(4, 3.3 if i == bad else 1.0, np.float32)
        weights[f"b{i}"] = rng.normal(size=4).astype(np.float32) * 0.1
        weights[f"m{i}"] = np.zeros(4, np.float32)
        weights[f"v{i}"] = np.full(4, 9.8e7 if i == bad else 1.0, np.float32)
        lines.append(f"c{i} = Conv<pads=[1,1,1,1]>({last}, w{i})")
        lines.append(f"n{i} = BatchNormalization(c{i}, s{i}, b{i}, m{i}, v{i})")
        lines.append(f"r{i} = Relu(n{i})")
        last = f"r{i}"
    lines.append(f"y = Identity({last})")
    body = "\n".join(lines)
    return write(folder, f"g (float[1,4,8,8] x) => (float[1,4,8,8] y) {{\n{body}\n}}", weights)


def residual_overflow(folder: Path) -> LoadedModel:
    """A residual stream that passes 65504 in its third block and is normalized at the end."""
    rng = np.random.default_rng(1)
    lines, weights, last = [], {}, "x"
    for i in range(5):
        weights[f"w{i}"] = (rng.normal(size=(16, 16)) / 4).astype(np.float32)
        weights[f"k{i}"] = np.array(60000.0 if i == 2 else 1.0, np.float32)
        lines += [f"h{i} = MatMul({last}, w{i})", f"t{i} = Tanh(h{i})", f"g{i} = Mul(t{i}, k{i})"]
        lines += [f"a{i} = Add({last}, g{i})" if i != 2 else f"d{i} = Add(g{i}, g{i})"]
        if i == 2:
            lines.append(f"a{i} = Add({last}, d{i})")
        last = f"a{i}"
    weights["scale"], weights["bias"] = np.ones(16, np.float32), np.zeros(16, np.float32)
    lines.append(f"y = LayerNormalization<axis=-1>({last}, scale, bias)")
    body = "\n".join(lines)
    return write(folder, f"g (float[4,16] x) => (float[4,16] y) {{\n{body}\n}}", weights)


def cancellation(folder: Path) -> LoadedModel:
    """Numbers near 1000 made by `shifted`, minus 1000, squared: FP16 steps there are 0.5."""
    weights = {"k": np.array(1000.0, np.float32), "w": np.eye(8, dtype=np.float32)}
    text = """g (float[4,8] x) => (float[4,8] y) {
        p = MatMul(x, w)
        q = Tanh(p)
        shifted = Add(q, k)
        centred = Sub(shifted, k)
        s = Mul(centred, centred)
        r = Relu(s)
        y = Sigmoid(r)
    }"""
    return write(folder, text, weights)
