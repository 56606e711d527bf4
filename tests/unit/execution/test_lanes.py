from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import onnx.parser
import pytest

from fp16conv.execution.failures import RuntimeFailure
from fp16conv.execution.lanes import Lane
from fp16conv.execution.runtime import Runtime

NEG = '<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
SLOW = """<ir_version: 9, opset_import: ["": 18]> g (float[400, 400] x) => (float[400, 400] y) {
    n = Constant<value = int64 {100000000}>()
    y = Loop(n, , x) <body = b (int64 i, bool c, float[400, 400] a) => (bool d, float[400, 400] s) {
        d = Identity(c)
        s = MatMul(a, a)
    }>
}"""


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


def test_two_lanes_work_at_the_same_time(runtime: Runtime) -> None:
    meeting = threading.Barrier(2, timeout=60)  # passed only by two at once
    with Lane(runtime) as lane, Lane(runtime.companion) as beside:
        both = [lane.submit(meeting.wait), beside.submit(meeting.wait)]
        assert sorted(future.result() for future in both) == [0, 1]
        model = onnx.parser.parse_model(NEG).SerializeToString()
        loaded = [(each, each.submit(each.runtime.load, model)) for each in (lane, beside)]
        for each, session in loaded:
            done = each.submit(each.runtime.run, session.result(), {"x": np.ones(2, np.float32)})
            assert done.result()["y"].tolist() == [-1.0, -1.0]


def test_an_interrupt_ends_a_run_that_would_take_for_ever(runtime: Runtime) -> None:
    model = onnx.parser.parse_model(SLOW).SerializeToString()
    session = runtime.load(model)
    with pytest.raises(KeyboardInterrupt), Lane(runtime) as lane:  # noqa: PT012 - the lane's end is the test
        running = lane.submit(runtime.run, session, {"x": np.zeros((400, 400), np.float32)})
        raise KeyboardInterrupt
    with pytest.raises(RuntimeFailure):
        running.result()
    assert runtime.load(onnx.parser.parse_model(NEG).SerializeToString()).inputs


def test_an_error_drops_what_has_not_begun(runtime: Runtime) -> None:
    begun, free = threading.Event(), threading.Event()

    def wait() -> bool:
        begun.set()
        return free.wait(60)

    with pytest.raises(ValueError, match="late"), Lane(runtime) as lane:  # noqa: PT012 - as above
        first, second = lane.submit(wait), lane.submit(wait)
        begun.wait(60)
        threading.Timer(0.05, free.set).start()
        raise ValueError("late")
    assert first.result()
    assert second.cancelled()
