"""Statistics of timings: noise is no difference, a difference is one, no neighbour is favoured."""

import itertools
from collections import Counter

import numpy as np
import pytest

from helpers.measure import samples


def noisy(random: np.random.Generator, us: float, count: int) -> list[float]:
    """Samples of 1% noise with a long tail, as a GPU's are."""
    return list(us * (1 + 0.01 * random.gamma(2, 0.5, count)))


@pytest.mark.parametrize("count", [7, 21])
def test_noise_is_no_difference_and_a_difference_is_one(count: int) -> None:
    random = np.random.default_rng(1)
    wrong = found = 0
    for _ in range(80):
        one, same, slower = (noisy(random, us, count) for us in (10, 10, 10.2))
        equal, longer = samples.ratio(same, one), samples.ratio(slower, one)
        assert equal.low <= equal.value <= equal.high
        wrong += equal.above(1) or equal.below(1)
        found += longer.above(1)
    assert wrong <= 8, "a verdict from noise"
    assert found >= 72


def test_series_of_different_lengths_and_the_same_interval_each_time() -> None:
    one, other = [10.0, 10.1, 10.2] * 7, [5.0, 5.1, 5.2]
    estimate = samples.ratio(one, other)
    assert estimate.value == pytest.approx(10.1 / 5.1)
    assert estimate == samples.ratio(one, other) and estimate.above(1.9) and estimate.below(2.1)
    assert samples.ratio([4.0] * 7, [2.0] * 7) == (2, 2, 2)
    assert not samples.ratio([4.0], [4.0]).above(1)
    for series in (([], [1.0]), ([1.0], [])):
        with pytest.raises(ValueError, match="without samples"):
            samples.ratio(*series)


def test_difference_is_of_pairs_so_that_a_drift_of_both_is_none() -> None:
    drift = np.linspace(0, 50, 21)
    noise = np.random.default_rng(3).normal(0, 0.1, 21)
    estimate = samples.difference(list(103 + drift + noise), list(100 + drift))
    assert estimate.value == pytest.approx(3, abs=0.1) and estimate.above(2.8)
    unpaired = samples.difference(list(103 + drift + noise), list(100 + drift[::-1]))
    assert not unpaired.above(0), "paired with the wrong one the drift stays"
    with pytest.raises(ValueError):
        samples.difference([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="without samples"):
        samples.difference([], [])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 11])
def test_everyone_stands_behind_everyone_equally_often(count: int) -> None:
    rounds = [*itertools.islice(samples.orders(count), count if count % 2 == 0 else 2 * count)]
    assert all(sorted(order) == [*range(count)] for order in rounds)
    behind = Counter(pair for order in rounds for pair in itertools.pairwise(order))
    assert len(behind) == count * (count - 1) and len(set(behind.values())) <= 1
    rotated = {
        pair
        for turn in range(count)
        for pair in itertools.pairwise([(place + turn) % count for place in range(count)])
    }
    assert count < 3 or len(rotated) < len(behind), "a rotation would not do"


def test_first_sample_is_discarded_and_short_calls_have_more() -> None:
    assert samples.kept([99.0, 1.0, 2.0]) == [1.0, 2.0]
    assert [samples.wanted(us) for us in (2.0, 49.9, 50.0, 500.0)] == [21, 21, 7, 7]
