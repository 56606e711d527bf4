"""Feeds in the element types that a session declares."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from fp16conv.execution.runtime import Feeds, SessionHandle

__all__ = ["match_feeds"]

_NUMPY_OF_TYPE: Final[Mapping[str, Any]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(bfloat16)": np.float32,  # the runtime takes bfloat16 as FP32
}
_ELEMENT: Final = re.compile(r".*tensor\((\w+)\)+$")  # the innermost type of a sequence or an optional


def match_feeds(session: SessionHandle, batch: Feeds) -> dict[str, Any]:
    """Give each floating input (a sequence's items too) the element type the session declares.

    What the session does not have is left out.

    Example:
        >>> from fp16conv.execution.runtime import TensorInfo
        >>> handle = SessionHandle(0, (TensorInfo("x", "tensor(float16)", (1,)),), (), ())
        >>> match_feeds(handle, {"x": np.ones(1, np.float32)})["x"].dtype
        dtype('float16')
    """
    matched: dict[str, Any] = {}
    for info in session.inputs:
        if info.name not in batch:
            continue
        dtype = _NUMPY_OF_TYPE.get(_ELEMENT.sub(r"tensor(\1)", info.type))
        matched[info.name] = batch[info.name] if dtype is None else _as_type(batch[info.name], dtype)
    return matched


def _as_type(fed: Any, dtype: Any) -> Any:
    """An array, or every array of a sequence, in another floating type."""
    if isinstance(fed, list):
        return [_as_type(item, dtype) for item in fed]
    if not isinstance(fed, np.ndarray) or fed.dtype == dtype:
        return fed
    with np.errstate(over="ignore"):
        return fed.astype(dtype)
