"""PyTorch to ONNX in memory, with the module and source line of every node."""

from __future__ import annotations

import ast
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import onnx_ir as ir
import torch

from fp16conv.errors import ModelError, UsageError, first_line
from fp16conv.frontends.fx.importer import locate_frame
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.frontends.onnx import LoadedModel, from_model

__all__ = ["export_program"]

_CALL: Final = re.compile(r"%(?P<name>\w+) .*?call_function\[target=torch\.ops\.(?P<target>[\w.]+)\]")
_TRANSLATING: Final = re.compile(r"translating node %(?P<node>\w+)")


def export_program(loaded: LoadedProgram, path: Path, *, opset: int | None = None) -> LoadedModel:
    """Translate a program to ONNX; dynamic shapes stay dynamic, outputs keep the names they have here.

    Nodes are named after their module (`layers.0.attn/linear_3`) and carry `module`, `line`, `code` and
    `call` (`aten.linear.default linear_3`: what it is a translation of) as metadata, so that whatever is said
    about a node can be found in the PyTorch source.

    Args:
        loaded: the program.
        path: name of the model in messages; nothing is written.
        opset: ONNX opset, the exporter's default if None.

    Returns:
        The FP32 ONNX model with its graph.

    Raises:
        ModelError: a call has no translation.
        UsageError: onnxscript is not installed.
    """
    names = list(loaded.output_names.values())
    try:
        with _quiet():
            exported = torch.onnx.export(
                loaded.program, dynamo=True, verbose=False, opset_version=opset, output_names=names
            )
    except ModuleNotFoundError as error:
        hint = "pip install 'fp16conv[torch]'"
        raise UsageError("export to ONNX needs onnxscript", why=str(error), hint=hint) from error
    except Exception as error:  # the exporter raises whatever it meets
        call, why = _find_reason(loaded, error)
        where = f"{loaded.source}: {call}" if call else loaded.source
        raise ModelError("torch.onnx cannot export the program", where=where, why=why) from error
    model: ir.Model = exported.model
    _name_nodes(model)
    return from_model(model, path)


def _find_reason(loaded: LoadedProgram, error: BaseException) -> tuple[str, str]:
    """The call that was being translated, if any, and the first line of the error that started it all."""
    call = ""
    while True:
        if (found := _TRANSLATING.search(str(error))) is not None:
            labels = (op.label for op in loaded.graph.ops if loaded.nodes[op.id].name == found["node"])
            call = next(labels, found["node"])
        if error.__cause__ is None:
            break
        error = error.__cause__
    return call, first_line(error)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns about packages that nobody asked for."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _name_nodes(model: ir.Model) -> None:
    taken: Counter[str] = Counter()
    for node in model.graph.all_nodes():
        scopes = _words(node.metadata_props.get("pkg.torch.onnx.name_scopes"))
        kinds = _words(node.metadata_props.get("pkg.torch.onnx.class_hierarchy"))
        trace = node.metadata_props.get("pkg.torch.onnx.stack_trace", "")
        call = _CALL.match(node.metadata_props.get("pkg.torch.onnx.fx_node", ""))
        for key in [k for k in node.metadata_props if k.startswith("pkg.torch.onnx.")] + ["namespace"]:
            node.metadata_props.pop(key, None)
        path = scopes[-2] if len(scopes) > 1 else ""
        name = (node.name or node.op_type).removeprefix("node_")
        name = f"{path}/{name}" if path else name
        taken[name] += 1
        node.name = name if taken[name] == 1 else f"{name}_{taken[name]}"
        found = {"module": path, "module_type": kinds[-2] if len(kinds) > 1 else "", **locate_frame(trace)}
        found["call"] = f"{call['target']} {call['name']}" if call else ""
        node.metadata_props.update({key: text for key, text in found.items() if text})


def _words(text: str | None) -> list[str]:
    """A list of words that was written with `repr`."""
    if not text:
        return []
    try:
        words: Any = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return []
    return [str(word) for word in words] if isinstance(words, list | tuple) else []
