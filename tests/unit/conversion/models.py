"""Small models as text, loaded from a temporary file."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser

from fp16conv.frontends.onnx import LoadedModel, load_onnx


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def load_text(folder: Path, text: str, name: str = "model.onnx") -> LoadedModel:
    return load_proto(folder, parse(text), name)


def load_proto(folder: Path, proto: onnx.ModelProto, name: str = "model.onnx") -> LoadedModel:
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(proto, folder / name)
    return load_onnx(folder / name)
