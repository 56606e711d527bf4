"""Where PyTorch programs come from: .pt2 files, `package.module:factory`, objects in memory."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from fp16conv.errors import ModelError, UsageError, first_line
from fp16conv.frontends.fx.archive import EXPORT_HINT, check_archive
from fp16conv.frontends.fx.importer import import_program
from fp16conv.frontends.fx.program import LoadedProgram
from fp16conv.frontends.sources import FACTORY, hint_at_source

__all__ = ["call_factory", "load_program", "order_keywords", "switch_to_eval"]

_ATEN: Final = torch.ops.aten
_BY_EXAMPLE: Final[Mapping[OpOverload, Callable[..., Any]]] = {
    _ATEN.type_as.default: lambda x, other: x.to(other.dtype),
    _ATEN.expand_as.default: lambda x, other: x.expand(other.shape),
    _ATEN.view_as.default: lambda x, other: x.view(other.shape),
    _ATEN.reshape_as.default: lambda x, other: x.reshape(other.shape),
}
"""Calls that read the type or the sizes of a tensor and no numbers: they must not tie its precision."""

TorchSource: TypeAlias = str | os.PathLike[str] | torch.nn.Module | ExportedProgram


def load_program(
    source: TorchSource,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    training: bool = False,
    data: Mapping[str, np.ndarray[Any, Any]] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> LoadedProgram:
    """Load or export a PyTorch program and build its graph.

    Args:
        source: a .pt2 file (loaded without running code from it), `package.module:factory` (a callable
            that returns a module, or a tuple of it, its example inputs, their keywords and its
            `dynamic_shapes`, as many of these as it needs), an ExportedProgram, a GraphModule or
            an nn.Module. A module is exported in eval mode; it is not changed.
        args: example inputs of a module.
        kwargs: example inputs by name.
        dynamic_shapes: as `torch.export.export` takes them.
        training: export the module in the mode it is in instead of eval mode.
        data: arrays by parameter name, where neither the factory nor the caller gives example inputs.
        shapes: shapes by parameter name, for floating example inputs where there is no array.

    Raises:
        ModelError: no torch program, it would run code from a file, or it cannot be exported.
        UsageError: a module without example inputs; a factory that cannot be imported.
    """
    module: torch.nn.Module | None = None
    call: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    name = type(source).__name__
    if isinstance(source, ExportedProgram):
        program = source
    elif isinstance(source, torch.nn.Module):
        module = source
    elif not isinstance(source, str | os.PathLike):
        raise UsageError(
            f"'{name}' is no PyTorch program",
            hint="give an nn.Module, an ExportedProgram, a .pt2 file or package.module:factory",
        )
    elif FACTORY.fullmatch(os.fspath(source)):
        name = os.fspath(source)
        module, args, kwargs, dynamic_shapes = _build(name, args, kwargs, dynamic_shapes)
    else:
        name = os.fspath(source)
        program = _load_file(Path(source))
    if module is not None:
        call = _example_inputs(module, name, args, kwargs, data or {}, shapes or {})
        program = _export(module, call, dynamic_shapes, name, training)
    functional = _functionalize(program, name)
    example = _named_inputs(functional, call or functional.example_inputs)
    return import_program(functional, name, module=module, example=example, call=call)


def _load_file(path: Path) -> ExportedProgram:
    check_archive(path)
    try:
        with warnings.catch_warnings(), _no_logs():
            warnings.simplefilter("ignore")
            program: ExportedProgram = torch.export.load(path)
    except Exception as error:  # torch raises whatever it meets in a malformed file
        raise ModelError(
            "cannot be loaded",
            where=str(path),
            why=first_line(error),
            hint="import what defines its custom operators first, or export it with this version of torch",
        ) from error
    program._guards_code = []  # source text that would be compiled; shapes are checked by what runs
    return program


@contextlib.contextmanager
def _no_logs() -> Iterator[None]:
    """Where torch raises, it logs a traceback too."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)


def call_factory(name: str) -> Any:
    """What `package.module:factory` gives: a module as it is, anything else called without arguments.

    Raises:
        UsageError: it cannot be imported.
        ModelError: calling it failed.
    """
    path, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        factory: Any = importlib.import_module(path)
        for part in attribute.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError) as error:
        hint = hint_at_source(name) or "package.module:factory, importable from here"
        raise UsageError(f"cannot import '{name}'", why=str(error), hint=hint) from error
    return factory if isinstance(factory, torch.nn.Module) else _call(factory, name)


def _build(
    name: str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> tuple[torch.nn.Module, Sequence[Any] | None, Mapping[str, Any] | None, Any]:
    """What a factory gives, filled up with what the caller gives; the caller's inputs win."""
    made = call_factory(name)
    if isinstance(made, torch.nn.Module):
        return made, args, kwargs, dynamic_shapes
    if not (
        isinstance(made, tuple) and made and isinstance(made[0], torch.nn.Module) and len(made) in (2, 3, 4)
    ):
        raise UsageError(
            f"'{name}' returns {type(made).__name__}",
            hint="return a torch.nn.Module, or (module, example_inputs), or (module, args, kwargs), or "
            "(module, args, kwargs, dynamic_shapes)",
        )
    module, given, named, shapes = [*made, None, None][:4]
    given = given if isinstance(given, tuple | list) else (given,)
    return (
        module,
        given if args is None else args,
        kwargs if named is None else named,
        shapes if dynamic_shapes is None else dynamic_shapes,
    )


def _call(factory: Callable[[], Any], name: str) -> Any:
    try:
        return factory()
    except Exception as error:
        raise ModelError("the factory failed", where=name, why=first_line(error)) from error


def _example_inputs(
    module: torch.nn.Module,
    name: str,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    data: Mapping[str, np.ndarray[Any, Any]],
    shapes: Mapping[str, Sequence[int]],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args is not None or kwargs:
        given = (args,) if isinstance(args, torch.Tensor) else tuple(args or ())
        return given, dict(kwargs or {})
    found: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(0)
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.name in data:
            found[parameter.name] = torch.from_numpy(np.array(data[parameter.name]))
        elif parameter.name in shapes:
            found[parameter.name] = torch.randn(tuple(shapes[parameter.name]), generator=generator)
        elif parameter.default is parameter.empty and parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        ):
            raise UsageError(
                f"no example for input '{parameter.name}' of {type(module).__name__}.forward",
                where=name,
                hint=f"return (module, example_inputs), give --data, or --shape {parameter.name}=1x3x224x224",
            )
    return (), found


def _export(
    module: torch.nn.Module,
    call: tuple[tuple[Any, ...], dict[str, Any]],
    dynamic_shapes: Any,
    name: str,
    training: bool,
) -> ExportedProgram:
    switched = [] if training else [m for m in module.modules() if m.training]
    if switched:
        switch_to_eval(module)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(module, *call, dynamic_shapes=dynamic_shapes)
    except Exception as error:  # the model's own code runs here
        _require_run(module, call, name)
        raise ModelError(
            "torch.export cannot capture the module",
            where=name,
            why=first_line(error),
            hint="control flow must not depend on numbers: https://docs.pytorch.org/docs/stable/export.html",
        ) from error
    finally:
        for m in switched:
            m.training = True


def switch_to_eval(module: torch.nn.Module) -> torch.nn.Module:
    """The module in eval mode; one that was exported has no modes, and stays as it was exported."""
    with contextlib.suppress(NotImplementedError):
        module.eval()
    return module


def _require_run(module: torch.nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]], name: str) -> None:
    """Raise if the module does not run on the inputs at all: then it is not the capture that fails."""
    args, kwargs = call
    try:
        with torch.no_grad():
            module(*args, **kwargs)
    except Exception as error:  # the model's own code
        raise ModelError(
            "the module does not run on the example inputs",
            where=name,
            why=first_line(error),
            hint="check their number, order, shapes and types",
        ) from error


def _functionalize(program: ExportedProgram, name: str) -> ExportedProgram:
    """No mutation left, composites kept: a decomposition table without them does exactly that."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return program.run_decompositions(dict(_BY_EXAMPLE))
    except Exception as error:
        raise ModelError(
            "the program cannot be made functional", where=name, why=first_line(error), hint=EXPORT_HINT
        ) from error


def _named_inputs(program: ExportedProgram, call: Any) -> dict[str, np.ndarray[Any, Any]] | None:
    """Example inputs by name of the program's input, None where they do not fit."""
    if call is None:
        return None
    specs = [s for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    args, kwargs = call
    flat = pytree.tree_leaves((tuple(args), order_keywords(program, kwargs)))
    if len(flat) != len(specs):
        return None
    found: dict[str, np.ndarray[Any, Any]] = {}
    for spec, value in zip(specs, flat, strict=True):
        if isinstance(spec.arg, ConstantArgument) or not isinstance(value, torch.Tensor):
            continue
        tensor = value.detach().cpu()
        found[spec.arg.name] = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return found


def order_keywords(program: ExportedProgram, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments in the order in which the program was exported."""
    spec = program.call_spec.in_spec
    if spec is None:
        return dict(kwargs)
    # torch 2.13 deprecates the attribute, older ones lack the method
    children = spec.children() if callable(getattr(spec, "children", None)) else spec.children_specs
    names = children[1].context if len(children) == 2 else None
    if isinstance(names, list) and set(names) == set(kwargs):
        return {name: kwargs[name] for name in names}
    return dict(kwargs)
