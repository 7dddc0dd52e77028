"""Samples of timings: how many are taken, in which order, and which differences are significant.

A difference counts if it exceeds the run-to-run variation, which is estimated by bootstrap: both
series are resampled with replacement 2000 times, and the middle 95% of the results are the interval
(Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13). The draws are seeded, so that
the same samples give the same interval everywhere.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

DISCARDED = 1  # the first of each series: caches and clocks are still those of other work
SHORT_US = 50.0  # a call below this is short
MANY, FEW = 21, 7  # samples kept for a short call and for a longer one
DRAWS, SEED, SURE = 2000, 0, 0.95
Name = TypeVar("Name")


def wanted(us: float) -> int:
    """The number of samples kept for a call of `us` microseconds."""
    return MANY if us < SHORT_US else FEW


def kept(series: Sequence[float]) -> list[float]:
    """A series of samples in the order in which they were taken, without the discarded ones."""
    return list(series[DISCARDED:])


def orders(count: int) -> Iterator[tuple[int, ...]]:
    """Endless permutations of 0 to count - 1, one per round.

    Within `count` rounds, or twice as many for an odd count, each number follows each other one
    equally often (Williams, 1949). With a mere rotation, each would always follow the same
    neighbour.
    """
    first = [place // 2 if place % 2 == 0 else count - 1 - place // 2 for place in range(count)]
    for turn in itertools.count():
        order = tuple((number + turn) % count for number in first)
        backwards = count % 2 and turn // count % 2
        yield order[::-1] if backwards else order


def in_turn(
    names: Sequence[Name], take: Callable[[Name], None], is_due: Callable[[Name], bool]
) -> None:
    """Take a sample of each name that is due, in rounds of changing order, until none is. The state
    of the L2 depends on the kernel before: after a copy it differs from that after a kernel with
    cache hints, which is 1 or 2% of a short call."""
    for order in orders(len(names)):
        due = [names[place] for place in order if is_due(names[place])]
        if not due:
            return
        for name in due:
            take(name)


class Estimate(NamedTuple):
    """A number with its confidence interval."""

    value: float
    low: float
    high: float

    def above(self, limit: float) -> bool:
        """Whether it is above a limit beyond run-to-run variation."""
        return self.low > limit

    def below(self, limit: float) -> bool:
        """Whether it is below a limit beyond run-to-run variation."""
        return self.high < limit


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Median of one series over median of the other. They are resampled independently, so their
    lengths may differ. Raises `ValueError` for a series without samples."""
    return _ratio(tuple(above), tuple(below))


@functools.lru_cache(maxsize=4096)  # tables, figures and sentences need the same ratios
def _ratio(above: tuple[float, ...], below: tuple[float, ...]) -> Estimate:
    random = _random(above, below)
    drawn = _medians(above, random) / _medians(below, random)
    return _estimate(np.median(above) / np.median(below), drawn)


def difference(left: Sequence[float], right: Sequence[float]) -> Estimate:
    """Median of the differences left - right of paired samples; pairs are resampled. Raises
    `ValueError` for no samples or different lengths."""
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
    """The medians of `DRAWS` series resampled from this one."""
    samples = np.asarray(series, float)
    return np.median(samples[random.integers(0, len(samples), (DRAWS, len(samples)))], axis=1)
