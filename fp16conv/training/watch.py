"""Watches a forward pass: every value it computes, its gradient, and calls that autocast keeps in FP32."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final, Self

import torch
from torch.utils import _pytree as pytree

__all__ = ["AUTOCAST_FP32", "ForwardWatch"]

AUTOCAST_FP32: Final = frozenset(
    {"acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt"}
    | {"sinh", "tan", "pow", "rpow", "rdiv", "rtruediv", "softplus", "layer_norm", "native_layer_norm"}
    | {"rms_norm", "group_norm", "frobenius_norm", "nuclear_norm", "cosine_similarity", "poisson_nll_loss"}
    | {"cosine_embedding_loss", "cross_entropy", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div"}
    | {"l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss"}
    | {"soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits"}
    | {"dist", "pdist", "cdist", "renorm", "logsumexp", "prod", "softmax", "softmin", "log_softmax"}
    | {"cumprod", "cumsum", "linalg_vector_norm", "linalg_matrix_norm", "sum", "norm", "normalize"}
)
"""Calls that CUDA autocast runs in FP32.

Sources: ATen/autocast_mode.h of torch 2.13, and for functions that are made of such operators the list of
docs.pytorch.org/docs/stable/amp.html."""

_ATTENTION: Final = "multi_head_attention_forward"  # one call; softmax is inside where weights are wanted


class _Value:
    """A value of the forward pass; its tensor is held while its storage must stay its own."""

    __slots__ = ("largest", "name", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        self.tensor: torch.Tensor | None = tensor
        self.name, self.version, self.largest = name, tensor._version, _largest(tensor)


class ForwardWatch(torch.overrides.TorchFunctionMode):
    """Sees every call inside a module's forward; entered around the forward pass and the loss.

    A value is named after the module whose output it is, else `module:call`, with a number from the second
    such call on. Views of other values are not looked at again.

    Args:
        module: whose values are watched.
        add: told the name of a value and its gradient, in the backward pass.

    Attributes:
        largest: largest finite magnitude per value, in order of execution.
        autocast_fp32: calls of the first pass that autocast runs in FP32, with how often.
    """

    def __init__(self, module: torch.nn.Module, add: Callable[[str, torch.Tensor], None]) -> None:
        super().__init__()
        self.largest: dict[str, float] = {}
        self.autocast_fp32: Counter[str] = Counter()
        self._add = add
        self._passes = 0
        self._is_forward = False
        self._values: list[_Value] = []
        self._latest: dict[int, _Value] = {}
        self._inside: list[tuple[str, Counter[str]]] = []
        self._hooks = ExitStack()
        for name, m in module.named_modules():
            if isinstance(m, torch.jit.ScriptModule):  # takes no hooks
                continue
            self._hooks.callback(m.register_forward_pre_hook(self._enter(name), prepend=True).remove)
            self._hooks.callback(m.register_forward_hook(self._leave(name), always_call=True).remove)

    def close(self) -> None:
        """Take the hooks off the module."""
        self._hooks.close()

    def __enter__(self) -> Self:
        """A forward pass begins."""
        self._is_forward = True
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """It is over: names are final, and tensors are not held any more."""
        super().__exit__(*error)
        self._is_forward = False
        self._passes += 1
        for value in self._values:
            self.largest[value.name] = max(self.largest.get(value.name, 0.0), value.largest)
            value.tensor = None
        self._values.clear()
        self._latest.clear()
        self._inside.clear()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a call and look at it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "").strip("_")
        if not self._passes and name in AUTOCAST_FP32:
            self.autocast_fp32[name] += 1
        if not self._passes and name == _ATTENTION and kwargs.get("need_weights", True):
            self.autocast_fp32["softmax"] += 1
        if self._inside:
            path, calls = self._inside[-1]
            made = [t for t in _fresh(result, (args, kwargs)) if not self._is_known(t)]
            calls[name] += bool(made)
            label = f"{path}:{name}" if path else name
            for tensor in made:
                self._watch(tensor, label if calls[name] == 1 else f"{label}.{calls[name]}")
        return result

    def _enter(self, path: str) -> Any:
        def hook(_module: Any, _args: Any) -> None:
            if self._is_forward:
                self._inside.append((path, Counter()))

        return hook

    def _leave(self, path: str) -> Any:
        def hook(_module: Any, args: Any, output: Any) -> None:
            if not self._is_forward:  # recomputed in the backward pass (checkpointing)
                return
            self._inside.pop()
            for number, tensor in enumerate(_fresh(output, args) if path else ()):
                name = f"{path}.{number}" if number else path
                known = self._latest.get(_storage(tensor))  # the value itself, or what it is a view of
                if known is None:
                    self._watch(tensor, name)
                elif known.name.startswith(f"{path}:"):
                    known.name = name

        return hook

    def _is_known(self, tensor: torch.Tensor) -> bool:
        known = self._latest.get(_storage(tensor))
        return known is not None and known.version == tensor._version and known.tensor is tensor

    def _watch(self, tensor: torch.Tensor, name: str) -> None:
        value = self._latest[_storage(tensor)] = _Value(tensor, name)
        self._values.append(value)
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: self._add(value.name, gradient))


def _fresh(result: Any, given: Any) -> Iterator[torch.Tensor]:
    """Floating tensors of a result that are no views of what was given: new numbers, or changed in place."""
    made = [t for t in pytree.tree_leaves(result) if _holds_numbers(t)]
    if not made:
        return
    inputs = [t for t in pytree.tree_leaves(given) if isinstance(t, torch.Tensor)]
    stored = {_storage(t) for t in inputs}
    same = {id(t) for t in inputs}
    for tensor in made:
        if _storage(tensor) not in stored or id(tensor) in same:
            yield tensor


def _holds_numbers(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 0


def _storage(tensor: torch.Tensor) -> int:
    return id(tensor) if tensor.is_sparse else tensor.untyped_storage().data_ptr()


def _largest(tensor: torch.Tensor) -> float:
    size = tensor.detach().abs()
    largest = float(size.max())
    if not math.isfinite(largest):  # a mask is infinite on purpose, and in FP16 as well
        size = size[size.isfinite()]
        largest = float(size.max()) if size.numel() else 0.0
    return largest
