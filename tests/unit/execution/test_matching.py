from __future__ import annotations

import numpy as np
import pytest

from fp16conv.execution.matching import match_feeds
from fp16conv.execution.runtime import SessionHandle, TensorInfo


@pytest.mark.parametrize("kind", ["seq(tensor(float16))", "optional(seq(tensor(float16)))"])
def test_items_of_a_sequence_are_fed_in_the_type_the_model_declares(kind: str) -> None:
    session = SessionHandle(0, (TensorInfo("x", kind, ()),), (), ())
    fed = match_feeds(session, {"x": [np.ones(2, np.float32), np.zeros(1, np.float32)], "unused": 1})
    assert list(fed) == ["x"]
    assert [item.dtype for item in fed["x"]] == [np.float16, np.float16]


def test_an_empty_optional_is_fed_as_it_is() -> None:
    session = SessionHandle(0, (TensorInfo("x", "optional(tensor(float16))", ()),), (), ())
    assert match_feeds(session, {"x": None}) == {"x": None}
