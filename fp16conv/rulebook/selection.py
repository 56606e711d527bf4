"""Operators a user names on the command line: globs on names, or `type:Softmax`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from fp16conv.errors import UsageError
from fp16conv.graph import ModelGraph, Op

__all__ = ["select_ops", "select_typevars"]


def select_ops(graph: ModelGraph, pattern: str, flag: str) -> tuple[int, ...]:
    """Find the operators a pattern names.

    Args:
        graph: the model.
        pattern: glob on operator names (or their stand-ins), or `type:` and a glob on
            `domain::type` (`type:Softmax`, `type:com.microsoft::*`).
        flag: the flag it was given to, for messages.

    Returns:
        Operator ids in file order.

    Raises:
        UsageError: nothing matches; suggests a similar name.
    """
    if pattern.startswith("type:"):
        wanted = pattern.removeprefix("type:").removeprefix("ai.onnx::")
        found = tuple(op.id for op in graph.ops if fnmatchcase(op.key, wanted))
        names = sorted({f"type:{op.key}" for op in graph.ops})
    else:
        found = tuple(op.id for op in graph.ops if pattern and _is_named(op, pattern))
        names = sorted({op.name or op.label for op in graph.ops})
    if found:
        return found
    types = sorted({f"type:{op.key}" for op in graph.ops})
    close = [t for t in types if t == f"type:{pattern}"]
    # Types share their prefix: with it, Softmax and Sqrt would look alike.
    prefix = "type:" if pattern.startswith("type:") else ""
    bare = [name.removeprefix(prefix) for name in names]
    alike = difflib.get_close_matches(pattern.removeprefix(prefix), bare, n=1, cutoff=0.5)
    close = close or [prefix + name for name in alike]
    close = close or difflib.get_close_matches(f"type:{pattern}", types, n=1, cutoff=0.8)
    hint = f"did you mean '{close[0]}'?" if close else "patterns are globs on operator names, or type:Softmax"
    raise UsageError(f"pattern '{pattern}' matches no operator of the model", where=flag, hint=hint)


def select_typevars(graph: ModelGraph, patterns: Sequence[str], flag: str) -> dict[int, str]:
    """Type variables of the named operators and of everything inside their bodies.

    Args:
        graph: the model.
        patterns: see `select_ops`.
        flag: the flag they were given to, for messages.

    Returns:
        Type variable id -> the pattern that named it.

    Raises:
        UsageError: a pattern matches nothing.
    """
    chosen: dict[int, str] = {}
    for pattern in patterns:
        ops = set(select_ops(graph, pattern, flag))
        scopes = _inner_scopes(graph, ops)
        for tv in graph.typevars:
            if tv.op in ops or tv.scope in scopes:
                chosen.setdefault(tv.id, pattern)
    return chosen


def _is_named(op: Op, pattern: str) -> bool:
    names = (op.name, op.label)
    return pattern in names or any(fnmatchcase(name, pattern) for name in names if name)


def _inner_scopes(graph: ModelGraph, ops: set[int]) -> set[int]:
    """Bodies and called functions of the operators, nested ones included."""
    found: set[int] = set()
    front = [graph.ops[op] for op in sorted(ops)]
    while front:
        op = front.pop()
        scopes = [*op.subscopes.values(), *([] if op.callee is None else [op.callee])]
        for scope in scopes:
            if scope not in found:
                found.add(scope)
                front += [graph.ops[inner] for inner in graph.scopes[scope].ops]
    return found
