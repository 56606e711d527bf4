"""Metrics and verdict per output, against formulas written out by hand."""

import json
import math

import numpy as np
import pytest

from fp16conv.validation.metrics import OutputComparison

RNG = np.random.default_rng(0)


def compare(reference, candidate, labels=None, **options):
    comparison = OutputComparison("y")
    comparison.update(reference, candidate, labels)
    return comparison.metrics(**options)


def test_distances_match_their_formulas() -> None:
    ref = RNG.normal(size=(40, 30)).astype(np.float32)
    cand = ref + RNG.normal(scale=0.01, size=ref.shape).astype(np.float32)
    m = compare(ref, cand)
    r, c = ref.astype(np.float64), cand.astype(np.float64)
    d = c - r
    assert m.relative_l2 == pytest.approx(np.linalg.norm(d) / np.linalg.norm(r), rel=1e-12)
    assert m.max_abs == np.abs(d).max()
    assert m.snr_db == pytest.approx(20 * math.log10(np.linalg.norm(r) / np.linalg.norm(d)), rel=1e-12)
    assert m.cosine == pytest.approx((r * c).sum() / np.linalg.norm(r) / np.linalg.norm(c), rel=1e-12)
    assert m.top1_agreement == (r.argmax(-1) == c.argmax(-1)).mean()
    assert m.ok


def test_batches_add_up_to_the_whole() -> None:
    ref = RNG.normal(size=(6, 5)).astype(np.float32)
    cand = ref.astype(np.float16)
    parts = OutputComparison("y")
    for i in range(0, 6, 2):
        parts.update(ref[i : i + 2], cand[i : i + 2])
    whole, sum_ = compare(ref, cand), parts.metrics()
    assert sum_.elements == whole.elements
    assert sum_.relative_l2 == pytest.approx(whole.relative_l2, rel=1e-12)
    assert sum_.max_abs == whole.max_abs


@pytest.mark.parametrize(("factor", "ok"), [(0.99, True), (1.01, False)])
def test_the_verdict_is_the_documented_bound(factor: float, ok: bool) -> None:
    ref = np.full(100, 3.0)
    n, rtol, atol = ref.size, 0.02, 0.001
    bound = rtol * np.linalg.norm(ref) + atol * math.sqrt(n)
    cand = ref + factor * bound / math.sqrt(n)
    m = compare(ref, cand, rtol=rtol, atol=atol)
    assert m.ok is ok
    assert m.badness == pytest.approx(factor, rel=1e-9)


def test_an_infinity_that_was_there_is_not_new() -> None:
    ref = np.array([1.0, np.inf, -np.inf, np.nan], np.float32)
    m = compare(ref, ref.astype(np.float16))
    assert (m.new_inf, m.new_nan, m.ok) == (0, 0, True)


@pytest.mark.parametrize(
    ("ref", "cand", "new_nan", "new_inf", "lost"),
    [
        (1.0, np.inf, 0, 1, 0),
        (1.0, np.nan, 1, 0, 0),
        (np.inf, -np.inf, 0, 1, 0),
        (np.inf, np.nan, 1, 0, 0),
        (np.nan, 1.0, 0, 0, 1),
        (-np.inf, -65504.0, 0, 0, 1),
    ],
)
def test_what_counts_as_new(ref: float, cand: float, new_nan: int, new_inf: int, lost: int) -> None:
    m = compare(np.array([ref, 2.0]), np.array([cand, 2.0]))
    assert (m.new_nan, m.new_inf, m.lost_nonfinite) == (new_nan, new_inf, lost)
    assert m.ok is (new_nan + new_inf == 0)
    assert m.relative_l2 == 0.0
    assert m.badness == (math.inf if new_nan + new_inf else 0.0)


def test_integers_must_not_change_unless_allowed() -> None:
    ref, cand = np.array([1, 2, 3]), np.array([1, 2, 4])
    m = compare(ref, cand)
    assert (m.changed, m.ok, m.kind) == (1, False, "integer")
    assert m.badness > 1
    assert compare(ref, cand, allow_integer_changes=True).ok


def test_the_number_of_integers_may_change_only_where_allowed() -> None:
    ref, cand = np.zeros((5, 3), np.int64), np.zeros((4, 3), np.int64)
    assert not compare(ref, cand).ok
    assert compare(ref, cand, allow_integer_changes=True).ok
    assert not compare(ref.astype(np.float32), cand.astype(np.float32), allow_integer_changes=True).ok


def test_a_float_that_became_an_integer_is_a_finding() -> None:
    m = compare(np.zeros(3, np.float32), np.zeros(3, np.int64))
    assert not m.ok
    assert "became" in m.structure


def test_sequences_maps_optionals_and_strings() -> None:
    a, b = np.ones(3, np.float32), np.full(3, 1.001, np.float32)
    assert compare([a, a], [a, b]).elements == 6
    assert not compare([a, a], [a]).ok
    assert compare(None, None).ok
    assert not compare(a, None).ok
    words = np.array(["a", "b"], object)
    assert compare(words, words.copy()).ok
    assert compare(words, np.array(["a", "c"], object)).changed == 1
    assert compare([{1: 0.5, 2: 0.5}], [{1: 0.5, 2: 0.51}]).elements == 2
    assert not compare([{1: 0.5}], [{2: 0.5}]).ok


def test_labels_give_accuracy_before_and_after() -> None:
    ref = np.array([[0.9, 0.1], [0.4, 0.6], [0.51, 0.49]], np.float32)
    cand = np.array([[0.9, 0.1], [0.4, 0.6], [0.49, 0.51]], np.float32)
    m = compare(ref, cand, np.array([0, 1, 0]))
    assert m.top1_agreement == pytest.approx(2 / 3)
    assert (m.reference_accuracy, m.accuracy) == (1.0, pytest.approx(2 / 3))
    integers = compare(np.array([0, 1, 1]), np.array([0, 1, 0]), np.array([0, 1, 0]))
    assert (integers.reference_accuracy, integers.accuracy) == (pytest.approx(2 / 3), 1.0)


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_no_top1_without_classes(shape: tuple[int, ...]) -> None:
    assert compare(np.ones(shape), np.ones(shape)).top1_agreement is None


def test_no_distance_where_the_candidate_leaves_nothing_finite() -> None:
    m = compare(np.ones(4), np.full(4, np.inf))
    assert (m.relative_l2, m.snr_db, m.ok) == (None, None, False)


def test_zero_reference() -> None:
    same = compare(np.zeros(4), np.zeros(4))
    assert (same.relative_l2, same.cosine, same.ok) == (0.0, None, True)
    off = compare(np.zeros(4), np.full(4, 1e-4))
    assert (off.relative_l2, off.ok) == (None, True)  # within atol
    assert not compare(np.zeros(4), np.full(4, 1e-2)).ok


def test_the_dump_is_json_without_special_numbers() -> None:
    m = compare(np.array([1.0]), np.array([np.inf]))
    assert json.loads(json.dumps(m.to_dict(), allow_nan=False))["new_inf"] == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_left_out_wherever_it_is_in_a_large_output(bad: float) -> None:
    ref = RNG.normal(size=(7, 30_000)).astype(np.float32)
    cand = ref + RNG.normal(scale=0.01, size=ref.shape).astype(np.float32)
    places = [(0, 0), (1, 29_999), (3, 12_345), (6, 29_999)]
    for place in places:
        cand[place] = bad
    m = compare(ref, cand)
    finite = np.isfinite(cand)
    r, c = ref[finite].astype(np.float64), cand[finite].astype(np.float64)
    assert m.new_nan + m.new_inf == len(places)
    assert m.rms_error == pytest.approx(np.sqrt(np.mean((c - r) ** 2)), rel=1e-12)
    assert m.max_abs == np.abs(c - r).max()
    assert m.top1_agreement == (ref.argmax(-1) == np.where(np.isnan(cand), -np.inf, cand).argmax(-1)).mean()


def test_finite_numbers_whose_squares_are_not() -> None:
    m = compare(np.array([1e200, 1.0]), np.array([1e200, 1.0]))
    assert (m.new_inf, m.new_nan, m.lost_nonfinite, m.max_abs) == (0, 0, 0, 0.0)
