"""Mutations of what JSON and TOML files hold: dictionaries, lists and scalars."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from typing import Any, Final

from benchmarks.mutations.values import INTS, TEXTS, Rng, pick

__all__ = ["edit_tree", "write_toml"]

_SCALARS: Final = (None, True, False, 1.5, 1e308, math.nan, math.inf, -0.0, *INTS, 10**40, *TEXTS)
DEEP: Final = 100  # levels
LONG: Final = 20_000  # entries of a list

Place = tuple[Any, Any]
"""A container and the key or index of an entry."""


def edit_tree(tree: Any, rng: Rng) -> Any:
    """Return a copy with one to four edits.

    Args:
        tree: dictionaries, lists and scalars; not changed.
        rng: same state, same copy.
    """
    root = [copy.deepcopy(tree)]
    for _ in range(int(pick((1, 1, 1, 2, 4), rng))):
        places = list(_places(root))
        _edit(*pick(places, rng), [owner[key] for owner, key in places], rng)
    return root[0]


def _places(tree: Any) -> Iterator[Place]:
    stack = [tree]
    while stack:
        owner = stack.pop()
        keys = list(owner) if isinstance(owner, dict) else range(len(owner))
        for key in keys:
            yield owner, key
            if isinstance(owner[key], dict | list):
                stack.append(owner[key])


def _edit(owner: Any, key: Any, others: list[Any], rng: Rng) -> None:
    kind = int(rng.integers(8))
    if kind <= 1:
        owner[key] = pick(_SCALARS, rng)
    elif kind == 2:
        owner[key] = copy.deepcopy(pick(others, rng))
    elif kind == 3 and len(owner) > 1:
        del owner[key]
    elif kind == 4 and isinstance(owner, dict):
        owner[str(pick(TEXTS, rng))] = owner.pop(key)
    elif kind == 5:
        value = owner[key]
        if isinstance(value, str):
            at = int(rng.integers(len(value) + 1))
            owner[key] = value[:at] + str(pick(TEXTS, rng)) + value[at:]
        elif isinstance(value, int | float):
            owner[key] = pick(INTS, rng)
        else:
            owner[key] = type(value)()
    elif kind == 6:
        for _ in range(int(pick((1, 5, DEEP), rng))):
            owner[key] = [owner[key]] if rng.random() < 0.5 else {"a": owner[key]}
    elif isinstance(owner[key], list) and owner[key]:
        owner[key] = owner[key] * min(int(pick((2, 2, LONG), rng)), LONG // len(owner[key]) + 1)


def write_toml(tree: Any) -> str:
    """A tree as TOML; what TOML cannot say becomes a string."""
    if not isinstance(tree, dict):
        tree = {"x": tree}
    return "".join(f"{json.dumps(str(key))} = {_inline(value)}\n" for key, value in tree.items())


def _inline(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=True)
