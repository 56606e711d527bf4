"""What must hold for the conversion of any model, on random graphs with bodies, functions and user casts."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from fp16conv.conversion.onnx import convert
from fp16conv.conversion.save import serialize
from fp16conv.conversion.verify import verify
from fp16conv.evidence.constants import constant_facts
from fp16conv.execution.emulator import emulate_model
from fp16conv.execution.runtime import Feeds, Results, Runtime
from fp16conv.frontends.onnx import LoadedModel, load_onnx
from fp16conv.graph import DataType
from fp16conv.planning.costs import estimate_costs
from fp16conv.planning.devices import load_device
from fp16conv.planning.plan import PrecisionPlan
from fp16conv.planning.planner import make_plan
from fp16conv.rulebook.book import load_book
from fp16conv.rulebook.judge import judge
from tests.strategies import error_bound, example, feeds, models, shuffle

PROFILES = st.sampled_from(("balanced", "fast", "half"))
EXAMPLES = 20
ACCUMULATION = 1e-5  # FP32 results differ between runs of differently fused graphs

BOOK = load_book()  # no fixture: hypothesis would print it

quick = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(threads=1) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def decide(loaded: LoadedModel, profile: str, keep_fp32: Sequence[str] = ()) -> PrecisionPlan:
    """The plan that `fp16conv plan` makes where the model is not run."""
    verdicts = judge(loaded.graph, BOOK, constant_facts(loaded.graph), profile=profile, keep_fp32=keep_fp32)
    costs = estimate_costs(loaded.graph, {}, load_device("a10"))
    return make_plan(loaded.graph, verdicts, costs, rules_digest=BOOK.digest)


def store(proto: onnx.ModelProto, path: Path) -> LoadedModel:
    path.write_bytes(proto.SerializeToString(deterministic=True))
    return load_onnx(path)


def run(runtime: Runtime, model: object) -> list[Results]:
    session = runtime.load(model)  # type: ignore[arg-type]
    inputs: list[Feeds] = list(feeds())
    results = [runtime.run(session, feed) for feed in inputs]
    runtime.unload(session)
    return results


def decided(loaded: LoadedModel, plan: PrecisionPlan) -> dict[tuple[str, str, str], DataType]:
    """Dtype by scope, name and type variable."""
    return {(d.scope, d.label, d.symbol): d.dtype for d in plan.decisions}


@quick
@given(proto=models(), profile=PROFILES)
def test_the_result_is_valid_and_as_close_as_rounding_allows(
    proto: onnx.ModelProto, profile: str, folder: Path, runtime: Runtime
) -> None:
    note(onnx.printer.to_text(proto))
    loaded = store(proto, folder / "in.onnx")
    plan = decide(loaded, profile)
    result = store(serialize(convert(loaded, plan), loaded), folder / "out.onnx")
    assert not verify(result.path, loaded, plan)
    bounds = error_bound(proto)
    before, after = run(runtime, loaded.path), run(runtime, emulate_model(result.model))
    for expected, found in zip(before, after, strict=True):
        for name, value in expected.items():
            np.testing.assert_allclose(
                found[name], value, atol=bounds[name] + ACCUMULATION, rtol=0, err_msg=name
            )


@quick
@given(proto=models(), profile=PROFILES)
def test_converting_twice_is_converting_once(proto: onnx.ModelProto, profile: str, folder: Path) -> None:
    note(onnx.printer.to_text(proto))
    loaded = store(proto, folder / "in.onnx")
    once = serialize(convert(loaded, decide(loaded, profile)), loaded)
    again = store(once, folder / "once.onnx")
    twice = serialize(convert(again, decide(again, profile)), again)
    assert twice.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)


@quick
@given(proto=models(), profile=PROFILES, data=st.data())
def test_the_more_is_kept_in_fp32_the_less_is_fp16(
    proto: onnx.ModelProto, profile: str, data: st.DataObject, folder: Path
) -> None:
    note(onnx.printer.to_text(proto))
    loaded = store(proto, folder / "in.onnx")
    names = sorted({op.name for op in loaded.graph.ops if op.typevars})
    more = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    less = more[: len(more) // 2]
    before = decided(loaded, decide(loaded, profile, less))
    after = decided(loaded, decide(loaded, profile, more))
    assert {k for k, v in after.items() if v is DataType.FLOAT16} <= {
        k for k, v in before.items() if v is DataType.FLOAT16
    }


@quick
@given(proto=models(), profile=PROFILES, seed=st.integers(0, 99))
def test_the_order_of_nodes_in_the_file_does_not_matter(
    proto: onnx.ModelProto, profile: str, seed: int, folder: Path
) -> None:
    shuffled = shuffle(proto, random.Random(seed))
    note(onnx.printer.to_text(shuffled))
    loaded, other = store(proto, folder / "in.onnx"), store(shuffled, folder / "shuffled.onnx")
    first, second = decide(loaded, profile), decide(other, profile)
    assert decided(loaded, first) == decided(other, second)


@quick
@given(proto=models())
def test_keeping_everything_in_fp32_keeps_every_bit(
    proto: onnx.ModelProto, folder: Path, runtime: Runtime
) -> None:
    note(onnx.printer.to_text(proto))
    loaded = store(proto, folder / "in.onnx")
    kept = store(serialize(convert(loaded, decide(loaded, "half", ["*"])), loaded), folder / "kept.onnx")
    for expected, found in zip(run(runtime, loaded.path), run(runtime, kept.path), strict=True):
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


FRESH = """
import hashlib, os, sys
if sys.argv[2] != "1" and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from pathlib import Path
import fp16conv
folder = Path(sys.argv[1])
for source in sorted(folder.glob("source_*.onnx")):
    target = folder / f"{sys.argv[2]}_{source.name}"
    fp16conv.convert(source, target, profile="fast", allow_out_of_tolerance=True, allow_integer_changes=True)
    print(source.name, hashlib.sha256(target.read_bytes()).hexdigest())
"""


def test_a_fresh_process_with_another_hash_seed_and_one_core_writes_the_same_bytes(tmp_path: Path) -> None:
    for seed in (1, 2):
        onnx.save(example(seed), tmp_path / f"source_{seed}.onnx")
    found = []
    for number in ("1", "777"):
        environment = {**os.environ, "PYTHONHASHSEED": number}
        command = [sys.executable, "-c", FRESH, str(tmp_path), number]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert found[0].count("\n") == 2
    assert found[0] == found[1]
