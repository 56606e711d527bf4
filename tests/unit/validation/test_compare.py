"""Comparison of whole models: what the CPU provider hides, what is a finding, what is an error."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from fp16conv.errors import ValidationError
from fp16conv.execution.runtime import Runtime
from fp16conv.validation.compare import compare_models
from tests.unit.validation.models import batches, write

THOUSAND = {"h": np.array(1000.0, np.float32), "s": np.array(1e-3, np.float32)}
CHAIN = "g (float[2] x) => (float[2] y) { a = Mul(x, h) y = Mul(a, s) }"
HALF_CHAIN = """g (float[2] x) => (float[2] y) {
    x16 = Cast<to=10>(x)
    a = Mul(x16, h)
    y16 = Mul(a, s)
    y = Cast<to=1>(y16)
}"""
FEEDS = batches({"x": np.array([100.0, 2.0], np.float32)})
TAME = batches({"x": np.array([10.0, 2.0], np.float32)})


def halves(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {k: v.astype(np.float16) for k, v in weights.items()}


@pytest.fixture
def pair(tmp_path: Path):
    reference = write(tmp_path, CHAIN, THOUSAND, "reference")
    return reference, write(tmp_path, HALF_CHAIN, halves(THOUSAND), "candidate")


def test_the_overflow_that_the_cpu_provider_hides_is_seen(pair, runtime: Runtime) -> None:
    result = compare_models(*pair, FEEDS, runtime=runtime)
    (y,) = result.outputs
    assert not result.ok
    assert y.new_inf == 1
    with Runtime(threads=1) as other:  # what a naive comparison would have looked at
        session = other.load(pair[1].model)
        assert np.isfinite(other.run(session, next(iter(FEEDS)))["y"]).all()


def test_within_range_the_same_model_is_fine(pair, runtime: Runtime) -> None:
    result = compare_models(*pair, TAME, runtime=runtime)
    assert result.ok
    assert result.relative_l2 is not None
    assert 0 < result.relative_l2 < 2**-10  # three roundings of 2^-11 at most each, partly exact
    assert result.backends[0].backend == "emulated"
    assert runtime.version in result.backends[0].description
    assert result.findings == ()
    assert result.inputs == "real"
    assert result.batches == 1


def test_made_up_inputs_are_called_that(pair, runtime: Runtime) -> None:
    feeds = batches(*TAME, origin="synthetic")
    assert compare_models(*pair, feeds, runtime=runtime, check=False).inputs == "synthetic"


def test_the_result_dumps_to_json(pair, runtime: Runtime) -> None:
    dump = compare_models(*pair, FEEDS, runtime=runtime, check=False).to_dict()
    again = json.loads(json.dumps(dump, allow_nan=False))
    assert again["backends"][0]["outputs"][0]["new_inf"] == 1
    assert again["backends"][0]["limits"]
    assert again["rtol"] == 0.02


def test_fp16_inputs_and_outputs_of_the_candidate_are_met(tmp_path: Path, runtime: Runtime) -> None:
    reference = write(tmp_path, CHAIN, THOUSAND, "reference")
    text = "g (float16[2] x) => (float16[2] y) { a = Mul(x, h) y = Mul(a, s) }"
    candidate = write(tmp_path, text, halves(THOUSAND), "candidate")
    assert compare_models(reference, candidate, TAME, runtime=runtime).ok
    assert not compare_models(reference, candidate, FEEDS, runtime=runtime).ok


def test_tolerances_are_those_asked_for(pair, runtime: Runtime) -> None:
    strict = compare_models(*pair, TAME, runtime=runtime, rtol=1e-6, atol=0.0, check=False)
    assert not strict.ok
    assert "above the allowed" in strict.outputs[0].problems[0]


def test_labels_give_the_accuracy_of_both(tmp_path: Path, runtime: Runtime) -> None:
    model = write(tmp_path, "g (float[N,3] x) => (float[N,3] y) { y = Softmax(x) }")
    feeds = batches({"x": np.eye(3, dtype=np.float32)}, {"x": np.eye(3, dtype=np.float32)})
    labels = [np.array([0, 1, 2]), np.array([0, 1, 1])]
    (y,) = compare_models(model, model, feeds, labels=labels, runtime=runtime, check=False).outputs
    assert (y.reference_accuracy, y.accuracy) == (pytest.approx(5 / 6), pytest.approx(5 / 6))


def test_changed_integers_fail_unless_allowed(tmp_path: Path, runtime: Runtime) -> None:
    reference = write(tmp_path, "g (float[2] x) => (int64[2] n) { n = Cast<to=7>(x) }", name="reference")
    text = "g (float[2] x) => (int64[2] n) { x16 = Cast<to=10>(x) n = Cast<to=7>(x16) }"
    candidate = write(tmp_path, text, name="candidate")
    feeds = batches({"x": np.array([2049.0, 5.0], np.float32)})
    result = compare_models(reference, candidate, feeds, runtime=runtime, check=False)
    assert result.outputs[0].changed == 1
    assert not result.ok
    assert result.relative_l2 is None
    allowed = compare_models(
        reference, candidate, feeds, runtime=runtime, check=False, allow_integer_changes=True
    )
    assert allowed.ok


def test_a_reference_that_does_not_run_is_an_error(pair, runtime: Runtime) -> None:
    feeds = batches({"x": np.zeros((3, 4), np.float32)})
    with pytest.raises(ValidationError, match="FP32 model itself does not run"):
        compare_models(*pair, feeds, runtime=runtime)


def test_a_reference_that_does_not_load_is_an_error(tmp_path: Path, runtime: Runtime) -> None:
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("Nothing", ["x"], ["y"], domain="nowhere")],
            "g",
            [onnx.helper.make_tensor_value_info("x", 1, [2])],
            [onnx.helper.make_tensor_value_info("y", 1, [2])],
        ),
        ir_version=9,
        opset_imports=[onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("nowhere", 1)],
    )
    path = tmp_path / "custom.onnx"
    onnx.save(proto, path)
    from fp16conv.frontends.onnx import load_onnx

    loaded = load_onnx(path)
    with pytest.raises(ValidationError, match="FP32 model itself does not load"):
        compare_models(loaded, loaded, FEEDS, runtime=runtime)


def test_other_output_names_are_an_error(tmp_path: Path, pair, runtime: Runtime) -> None:
    other = write(tmp_path, "g (float[2] x) => (float[2] z) { z = Relu(x) }", name="other")
    with pytest.raises(ValidationError, match="lacks output 'y'"):
        compare_models(pair[0], other, TAME, runtime=runtime)


def test_no_batch_is_an_error(pair, runtime: Runtime) -> None:
    with pytest.raises(ValidationError, match="no batch"):
        compare_models(*pair, batches(), runtime=runtime)


def test_an_unknown_provider_is_an_error(pair, runtime: Runtime) -> None:
    with pytest.raises(ValidationError, match="unknown provider 'tpu'"):
        compare_models(*pair, TAME, provider="tpu", runtime=runtime)  # type: ignore[arg-type]


def cuda_works() -> bool:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[1] x) => (float[1] y) { y = Relu(x) }'
    )
    try:
        with Runtime("cuda", threads=1) as cuda:
            cuda.load(model.SerializeToString())
    except ValidationError:
        return False
    return True


def test_asking_for_cuda_never_falls_back(pair, runtime: Runtime) -> None:
    if cuda_works():
        result = compare_models(*pair, TAME, provider="cuda", runtime=runtime)
        assert [b.backend for b in result.backends] == ["cuda"]
    else:
        with pytest.raises(ValidationError, match="CUDA was asked for"):
            compare_models(*pair, TAME, provider="cuda", runtime=runtime)


def test_auto_says_why_cuda_was_not_used(pair, runtime: Runtime) -> None:
    result = compare_models(*pair, TAME, runtime=runtime, check=False)
    if cuda_works():
        assert [b.backend for b in result.backends] == ["emulated", "cuda"]
    else:
        assert "not run on CUDA" in result.notes[0]


def test_a_runtime_without_a_kernel_is_a_finding_and_the_verdict_rests_on_the_rest(
    tmp_path: Path, runtime: Runtime
) -> None:
    # ONNX Runtime's CPU provider has no FP16 ScatterElements with a reduction: it fails at run time.
    body = 'y{0} = ScatterElements<axis=0, reduction="add">(d{0}, i, u{0})'
    weights = {"i": np.array([0, 0], np.int64)}
    reference = write(
        tmp_path,
        "g (float[3] d, float[2] u) => (float[3] y) { " + body.format("") + " }",
        weights,
        "reference",
    )
    candidate = write(
        tmp_path,
        "g (float[3] d, float[2] u) => (float[3] y) { d16 = Cast<to=10>(d) u16 = Cast<to=10>(u) "
        + body.format("16")
        + " y = Cast<to=1>(y16) }",
        weights,
        "candidate",
    )
    feeds = batches({"d": np.ones(3, np.float32), "u": np.ones(2, np.float32)})
    result = compare_models(reference, candidate, feeds, runtime=runtime)
    assert result.ok
    (finding,) = result.findings
    assert finding.runtime.startswith("ONNX Runtime")
    assert finding.stage in {"load", "run"}
    assert finding.message


def test_an_interrupt_between_batches_ends_it_and_leaves_the_runtime_usable(pair, runtime: Runtime) -> None:
    def interrupt() -> dict[str, np.ndarray]:
        raise KeyboardInterrupt

    (read,) = TAME._makers
    with pytest.raises(KeyboardInterrupt):
        compare_models(*pair, replace(TAME, _makers=(read, interrupt)), runtime=runtime)
    assert compare_models(*pair, TAME, runtime=runtime).ok


def test_every_batch_is_compared_with_its_own_reference(pair, runtime: Runtime) -> None:
    rows = [np.array([i, -i], np.float32) for i in range(1, 9)]
    (y,) = compare_models(*pair, batches(*({"x": row} for row in rows)), runtime=runtime).outputs
    assert y.elements == 2 * len(rows)
    assert y.relative_l2 is not None
    assert y.relative_l2 < 2**-9


def test_the_reference_is_blamed_first(tmp_path: Path, runtime: Runtime) -> None:
    wrong = batches({"x": np.zeros((3, 4), np.float32)})  # neither runs on it
    both = write(tmp_path, CHAIN, THOUSAND, "both")
    with pytest.raises(ValidationError, match="FP32 model itself does not run"):
        compare_models(both, both, wrong, runtime=runtime, check=False)
