from collections.abc import Iterator

import pytest

from fp16conv.execution.runtime import Runtime


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime
