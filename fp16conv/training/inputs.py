"""A captured program runs on what it was captured for: other inputs are refused, never computed wrongly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from fp16conv.errors import UsageError
from fp16conv.frontends.fx.sources import order_keywords

__all__ = ["InputCheck", "batch_shapes"]


def batch_shapes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """For torch.export: the first dimension of every tensor may vary where the module lets it.

    Returns:
        What `torch.export.export` takes as `dynamic_shapes`; None where there is no such tensor.
    """
    tensors = [t for t in pytree.tree_leaves((tuple(args), dict(kwargs))) if isinstance(t, torch.Tensor)]
    shapes = torch.export.ShapesCollection()
    for tensor in tensors:
        if tensor.dim() and tensor.shape[0] > 1:  # torch.export takes a size of 1 as fixed
            shapes[tensor] = {0: torch.export.Dim.AUTO}
    return shapes if len(shapes) else None


@dataclass(frozen=True)
class _Layout:
    """Of a tensor; a size is a number, or the expression of one that varies."""

    dtype: torch.dtype
    shape: tuple[Any, ...]


class InputCheck:
    """Flattens the inputs of a call and compares them with those that a program was captured for.

    Sizes and plain numbers are part of a captured program: `x.sum() / x.shape[0]` of another batch would
    be divided by the number of the example.

    Args:
        program: whose placeholders say which sizes are fixed and which vary within which bounds.
    """

    def __init__(self, program: ExportedProgram) -> None:
        nodes = [n for n in program.graph.nodes if n.op == "placeholder"]
        specs = program.graph_signature.input_specs
        self._wanted = [
            (spec.arg.name, spec.arg if isinstance(spec.arg, ConstantArgument) else _layout(node))
            for node, spec in zip(nodes, specs, strict=True)
            if spec.kind is InputKind.USER_INPUT
        ]
        self._bounds = {s: (max(1, r.lower), r.upper) for s, r in program.range_constraints.items()}

    def flatten(
        self, program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """The leaves of a call's arguments in the order of a program's inputs, that one or a copy of it.

        Raises:
            UsageError: they are not built like the example inputs, or have another size, type or value.
        """
        flat, given = pytree.tree_flatten((args, order_keywords(program, kwargs)))
        spec = program.call_spec.in_spec
        if spec is not None and given != spec:
            raise UsageError(
                "the inputs are not built like the example inputs",
                why=f"{given} instead of {spec}",
                hint="call the prepared module with the same positional and keyword arguments",
            )
        sizes: dict[Any, int] = {}
        for (name, wanted), value in zip(self._wanted, flat, strict=True):
            if isinstance(wanted, ConstantArgument):
                if isinstance(value, torch.Tensor) or value != wanted.value:
                    what = "a tensor" if isinstance(value, torch.Tensor) else repr(value)
                    raise UsageError(
                        f"'{name}' is {what}",
                        why=f"the program was captured with {wanted.value!r}",
                        hint="what is no tensor is part of the program: prepare again",
                    )
            elif wanted is not None:
                if not isinstance(value, torch.Tensor) or value.dtype is not wanted.dtype:
                    kind = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
                    raise UsageError(f"'{name}' is {kind}", why=f"the example input is {wanted.dtype}")
                self._check_shape(name, wanted.shape, value, sizes)
        return flat

    def _check_shape(
        self, name: str, shape: tuple[Any, ...], value: torch.Tensor, sizes: dict[Any, int]
    ) -> None:
        fits = len(shape) == value.dim() and all(
            self._fits(size, got, sizes) for size, got in zip(shape, value.shape, strict=True)
        )
        if not fits:
            free = {symbol for size in shape if not isinstance(size, int) for symbol in size.free_symbols}
            bounds = [f"{s} from {self._bounds[s][0]}" for s in free & set(self._bounds)]
            raise UsageError(
                f"'{name}' has shape {tuple(value.shape)}",
                why=f"the program was captured for {', '.join([str(shape), *sorted(bounds)])}",
                hint="let more dimensions vary (prepare(..., dynamic_shapes=...)), or leave an odd batch out "
                "(drop_last=True)",
            )

    def _fits(self, size: Any, got: int, sizes: dict[Any, int]) -> bool:
        if isinstance(size, int):
            return size == got
        if size.is_Symbol:
            low, high = self._bounds.get(size, (0, got))
            return bool(sizes.setdefault(size, got) == got and low <= got <= high)
        return bool(size.subs(sizes) == got)


def _layout(node: torch.fx.Node) -> _Layout | None:
    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor):
        return None
    return _Layout(fake.dtype, tuple(n.node.expr if isinstance(n, torch.SymInt) else n for n in fake.shape))
