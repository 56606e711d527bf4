"""The running summary against plain numpy on the same numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fp16conv import half
from fp16conv.evidence.summary import RangeSummary, iterate_chunks
from fp16conv.graph import Origin
from fp16conv.graph.pieces import PIECE

FLOATS = hnp.arrays(
    np.float32, st.integers(1, 60), elements=st.floats(width=32, allow_nan=True, allow_infinity=True)
)


def summarize(*arrays: np.ndarray) -> RangeSummary:
    summary = RangeSummary()
    for array in arrays:
        summary.update(array)
    return summary


@settings(max_examples=200, deadline=None)
@given(FLOATS, FLOATS)
def test_it_agrees_with_numpy_whatever_the_batches(first: np.ndarray, second: np.ndarray) -> None:
    summary = summarize(first, second)
    x = np.concatenate([first, second])
    finite = x[np.isfinite(x)]
    magnitude = np.abs(finite)
    assert summary.count == x.size
    assert summary.nans == np.isnan(x).sum()
    assert summary.positive_infinities == np.isposinf(x).sum()
    assert summary.negative_infinities == np.isneginf(x).sum()
    assert summary.overflowing == (magnitude >= half.OVERFLOW).sum()
    assert summary.subnormal == ((magnitude > 0) & (magnitude < half.SMALLEST_NORMAL)).sum()
    rounded = half.round_to_fp16(finite)
    assert summary.zeroed == ((finite != 0) & (rounded == 0)).sum()
    assert summary.overflowing == np.isinf(rounded).sum()
    np.testing.assert_array_equal(summary.histogram(), half.exponent_histogram(x))
    if finite.size:
        assert (summary.finite_lo, summary.finite_hi) == (finite.min(), finite.max())
        assert summary.is_integral == bool((finite == np.rint(finite)).all())
        expected = np.sqrt(np.mean(finite.astype(np.float64) ** 2))
        assert summary.rms == pytest.approx(expected, rel=1e-6)  # squares are rounded to float32
    nonzero = magnitude[magnitude > 0]
    assert summary.min_abs_nonzero == (nonzero.min() if nonzero.size else None)


@pytest.mark.parametrize("number", [1e-10, 0.3, -7.7, 90000.0, 3e38])
def test_root_mean_square_is_at_most_the_largest_magnitude(number: float) -> None:
    x = np.full(1000, number, np.float32)
    summary = RangeSummary()
    summary.update(x)
    assert summary.rms is not None
    assert summary.rms <= float(abs(x[0]))
    assert summary.rms == pytest.approx(abs(number), rel=1e-6)


@pytest.mark.parametrize(
    ("numbers", "lo", "hi", "nan"),
    [
        ([np.inf, 1.0], 1.0, np.inf, False),
        ([-np.inf], -np.inf, -np.inf, False),
        ([np.nan], -np.inf, np.inf, True),
        ([np.nan, 2.0], 2.0, 2.0, True),
    ],
)
def test_a_fact_covers_infinities_and_leaves_nan_out(
    numbers: list[float], lo: float, hi: float, nan: bool
) -> None:
    fact = summarize(np.array(numbers, np.float32)).fact(Origin.CONSTANT)
    assert fact is not None
    assert (fact.lo, fact.hi, fact.has_nan) == (lo, hi, nan)


def test_an_infinity_is_no_overflow_because_fp16_has_it_too() -> None:
    fact = summarize(np.array([np.inf, 7e4], np.float32)).fact(Origin.CONSTANT)
    assert fact is not None
    assert fact.share_overflow == 0.5


@pytest.mark.parametrize(
    ("numbers", "finite"),
    [([-np.inf, 3.0, -5.0], 5.0), ([np.inf, np.nan], 0.0), ([3.0, -5.0], None), ([np.nan], None)],
)
def test_the_extreme_beside_infinities_is_kept(numbers: list[float], finite: float | None) -> None:
    fact = summarize(np.array(numbers, np.float32)).fact(Origin.OBSERVED)
    assert fact is not None
    assert fact.finite_max_abs == finite


def test_no_numbers_no_fact() -> None:
    assert summarize(np.zeros((0, 3), np.float32)).fact(Origin.OBSERVED) is None


def test_a_double_beyond_float32_counts_as_infinite_not_as_an_error() -> None:
    assert summarize(np.array([1e300])).positive_infinities == 1


def test_chunks_of_a_memory_map_are_views(tmp_path) -> None:
    path = tmp_path / "weights.bin"
    np.arange(10, dtype=np.float32).tofile(path)
    mapped = np.memmap(path, np.float32, "r", shape=(2, 5))
    chunks = list(iterate_chunks(mapped, 4))
    assert [c.size for c in chunks] == [4, 4, 2]
    assert all(np.shares_memory(c, mapped) for c in chunks)


def test_numbers_of_many_chunks_are_counted_once() -> None:
    numbers = np.random.default_rng(0).standard_normal(3 * PIECE + 5).astype(np.float32) * 1e-4
    whole = RangeSummary(exponents=False)
    whole.update(numbers)
    fact = whole.fact(Origin.CONSTANT)
    assert fact is not None
    assert fact.share_subnormal == np.count_nonzero(np.abs(numbers) < half.SMALLEST_NORMAL) / numbers.size
