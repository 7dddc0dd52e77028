"""Samples of timings: how many are taken and in which order, and what they say for sure.

A difference is one if it is beyond the spread of the samples. How wide that spread is, is found by
bootstrap: both series are drawn again, with replacement, 2000 times, and the 95% in the middle of
what comes out are the interval (Efron and Tibshirani, An Introduction to the Bootstrap, chapter
13). The draws are seeded, so that the same samples give the same interval everywhere.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

DISCARDED = 1  # of each series, the first: it finds caches and clocks as somebody else left them
SHORT_US = 50.0  # a call below this is short
MANY, FEW = 21, 7  # samples kept of a short call, and of a longer one
DRAWS, SEED, SURE = 2000, 0, 0.95


def wanted(us: float) -> int:
    """How many samples are kept of a call that takes so many microseconds."""
    return MANY if us < SHORT_US else FEW


def kept(series: Sequence[float]) -> list[float]:
    """A series of samples in the order they were taken, less what is discarded."""
    return list(series[DISCARDED:])


def orders(count: int) -> Iterator[tuple[int, ...]]:
    """Orders of 0 to count - 1 to be taken round after round, without end.

    Within `count` of them, or twice as many for an odd count, each stands behind each other equally
    often (Williams, 1949). A mere rotation would leave everyone behind the same neighbour.
    """
    first = [place // 2 if place % 2 == 0 else count - 1 - place // 2 for place in range(count)]
    for turn in itertools.count():
        order = tuple((number + turn) % count for number in first)
        backwards = count % 2 and turn // count % 2
        yield order[::-1] if backwards else order


class Estimate(NamedTuple):
    """A number, and the interval that it is in for all that the samples say."""

    value: float
    low: float
    high: float

    def above(self, limit: float) -> bool:
        """Whether it is more than a limit, beyond the spread."""
        return self.low > limit

    def below(self, limit: float) -> bool:
        """Whether it is less than a limit, beyond the spread."""
        return self.high < limit


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Median of one series over median of the other, which are drawn apart from each other: the
    series may be of different lengths. Raises `ValueError` for a series without samples."""
    return _ratio(tuple(above), tuple(below))


@functools.lru_cache(maxsize=4096)  # a table, a figure and a sentence ask for the same one
def _ratio(above: tuple[float, ...], below: tuple[float, ...]) -> Estimate:
    random = _random(above, below)
    drawn = _medians(above, random) / _medians(below, random)
    return _estimate(np.median(above) / np.median(below), drawn)


def difference(left: Sequence[float], right: Sequence[float]) -> Estimate:
    """Median of the differences left - right of samples that were taken in pairs; pairs are drawn.
    Raises `ValueError` for no samples or if one has no partner."""
    return _difference(tuple(one - other for one, other in zip(left, right, strict=True)))


@functools.lru_cache(maxsize=4096)
def _difference(pairs: tuple[float, ...]) -> Estimate:
    drawn = _medians(pairs, _random(pairs))
    return _estimate(np.median(pairs), drawn)


def _random(*series: Sequence[float]) -> np.random.Generator:
    if not all(map(len, series)):
        raise ValueError("a series without samples")
    return np.random.default_rng(SEED)


def _estimate(value: float, drawn: np.ndarray) -> Estimate:
    rest = (1 - SURE) / 2
    low, high = np.quantile(drawn, (rest, 1 - rest))
    return Estimate(float(value), float(low), float(high))


def _medians(series: Sequence[float], random: np.random.Generator) -> np.ndarray:
    """The median of each of `DRAWS` series drawn from this one."""
    samples = np.asarray(series, float)
    return np.median(samples[random.integers(0, len(samples), (DRAWS, len(samples)))], axis=1)
