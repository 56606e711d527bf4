"""What onnx_ir imports and this program does not use is loaded when somebody touches it, not before.

onnx_ir loads sympy (a third of the time of a small analysis) for arithmetic with symbolic dimensions, which
fp16conv never does: it reads their names. The loader is the standard library's `importlib.util.LazyLoader`:
the first access to an attribute loads the module, so that code that does use it (PyTorch) sees no difference.
Only the program does this, in its own process: a library has no business with its user's imports.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

__all__ = ["defer_imports"]

# The second is the one module of onnx_ir that touches sympy while it is being loaded.
_DEFERRED = frozenset({"sympy", "onnx_ir._symbolic_shapes"})


class _Finder:
    """Finds what is to be loaded later as everything on the path is found."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _DEFERRED else None
        if spec is None or spec.loader is None:
            return None
        spec.loader = LazyLoader(spec.loader)
        return spec


def defer_imports() -> None:
    """Arrange it for this process; what is loaded already stays so."""
    sys.meta_path.insert(0, _Finder())
