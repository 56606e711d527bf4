"""Values that programs stumble over, and damage to bytes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

__all__ = ["BINARY", "INTS", "TEXTS", "Rng", "pick", "spoil"]

Rng = np.random.Generator

BINARY: Final = "BINARY\u2400x"
"""A text in whose place the file gets one that is no UTF-8."""

INTS: Final = (0, 1, -1, 2, 3, 7, 255, 65536, 10**6, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
TEXTS: Final = (
    "",
    "x",
    "../x",
    "/etc/passwd",
    "a/b",
    "a\0b",
    "\n",
    "ü\u202e",
    "x" * 5000,
    "ai.onnx",
    "%s{0}",
    "..",
    BINARY,
)


def pick(items: Any, rng: Rng) -> Any:
    """One of the items."""
    return items[int(rng.integers(len(items)))]


def spoil(content: bytes, rng: Rng) -> bytes:
    """Cut the bytes short, flip bits, overwrite a part, or repeat one."""
    data = bytearray(content)
    kind = int(rng.integers(4))
    if not data or kind == 0:
        return bytes(data[: int(rng.integers(len(data) + 1))])
    if kind == 1:
        for _ in range(int(rng.integers(1, 9))):
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    elif kind == 2:
        at, size = int(rng.integers(len(data))), int(rng.integers(1, 64))
        data[at : at + size] = rng.bytes(int(rng.integers(64)))
    else:
        start, end = sorted(int(rng.integers(len(data) + 1)) for _ in range(2))
        data[end:end] = data[start : min(end, start + 4096)]
    return bytes(data)
