"""Products with unbounded numbers, against the plain definition: every weight times every end."""

from collections.abc import Iterator

import numpy as np
import pytest

from fp16conv.evidence.abstract.domain import interval, times
from fp16conv.evidence.abstract.linear import weigh


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Interval arithmetic meets infinities by design; `prove_bounds` silences numpy the same way."""
    with np.errstate(all="ignore"):
        yield


ENDS = [(-np.inf, np.inf), (0.0, np.inf), (-np.inf, 0.0), (-2.0, np.inf), (-np.inf, 3.0)]


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("padded", [False, True])
def test_infinite_ends_count_only_where_a_weight_is_not_zero(ends: tuple[float, float], padded: bool) -> None:
    rows = [[1.0, -2.0, 0.5], [1.0, 2.0, 0.0], [-1.0, -2.0, 0.0], [0.0, 0.0, 0.0]]
    weights = np.array(rows, np.float32)
    found = weigh(weights, interval(*ends), 1e-9, -1, padded=padded)
    low, high = (min(ends[0], 0.0), max(ends[1], 0.0)) if padded else ends
    products = np.stack([times(weights, low), times(weights, high)])
    assert found is not None
    np.testing.assert_allclose(found[0], products.min(axis=0).sum(axis=1), rtol=1e-6)
    np.testing.assert_allclose(found[1], products.max(axis=0).sum(axis=1), rtol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_channels_of_mixed_ends(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(-1, 2, (6, 4)).astype(np.float32)
    low = np.where(rng.random(4) < 0.4, -np.inf, -rng.random(4))
    high = np.where(rng.random(4) < 0.4, np.inf, rng.random(4))
    found = weigh(weights, interval(low, high, -1), 1e-9, -1)
    products = np.stack([times(weights, low), times(weights, high)])
    assert found is not None
    np.testing.assert_allclose(found[0], products.min(axis=0).sum(axis=1), rtol=1e-6)
    np.testing.assert_allclose(found[1], products.max(axis=0).sum(axis=1), rtol=1e-6)


def test_a_weight_that_is_not_finite_gives_no_bounds() -> None:
    assert weigh(np.array([[np.inf, 1.0]], np.float32), interval(0.0, np.inf), 1e-9, -1) is None
