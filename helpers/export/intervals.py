"""Interval arithmetic: the rules of a header for many sets of problems at once.

A set is a box of shapes, such as rows 1 to 64 with cols 1000 to 2000. Each value is an interval per
set: the least and the largest value that it has for the problems of the set. A condition that holds
for some problems of a set and not for others leaves the set open; a smaller set may be decided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..catalogue.expressions import COMPARISONS, Definition, Evaluate, Names, Requirement

SATURATED = 2**61  # larger values count as this
MODULUS = 2**32  # the largest modulus for which remainders are known


@dataclass(frozen=True)
class Interval:
    """Per set, the least and the largest value. If `modulus` is not 0, every value has the
    remainder `remainder` modulo `modulus`."""

    low: np.ndarray
    high: np.ndarray
    remainder: np.ndarray | int = 0
    modulus: int = 0

    @classmethod
    def of(cls, number: int, count: int) -> Interval:
        """Return the same number for `count` sets."""
        value = np.full(count, number)
        return cls(value, value, number % MODULUS, MODULUS)

    @property
    def true(self) -> np.ndarray:
        """Whether the value is never 0."""
        return (self.low > 0) | (self.high < 0)

    @property
    def false(self) -> np.ndarray:
        """Whether the value is always 0."""
        return (self.low == 0) & (self.high == 0)

    @property
    def single(self) -> np.ndarray:
        """Whether there is exactly one value."""
        return self.low == self.high

    def __getitem__(self, sets: np.ndarray) -> Interval:
        remainder = self.remainder
        if isinstance(remainder, np.ndarray):
            remainder = remainder[sets]
        return Interval(self.low[sets], self.high[sets], remainder, self.modulus)


class Intervals:
    """The domain of `count` sets of problems."""

    def __init__(self, count: int):
        self.count = count
        self.rejected = np.zeros(count, bool)  # no problem of the set is accepted
        self.open = np.zeros(count, bool)  # not decided for the set as a whole
        # For which sets the current expression is evaluated: for all, or for some of the problems.
        self._always = self._sometimes = np.ones(count, bool)

    @property
    def accepted(self) -> np.ndarray:
        """Whether every problem of the set is accepted."""
        return ~self.rejected & ~self.open

    def number(self, number: int) -> Interval:
        return Interval.of(number, self.count)

    def apply(self, function: str, *values: Interval) -> Interval:
        if function in COMPARISONS:
            return _compared(function, *values)
        if function == "power_of_two":
            return Interval(_power_of_two(values[0].low), _power_of_two(values[0].high))
        a, b = values
        if function in ("+", "-"):
            return _sum(a, b, 1 if function == "+" else -1)
        if function == "*":
            return product(a, b)
        if function in ("min", "max"):
            pick = np.minimum if function == "min" else np.maximum
            return Interval(pick(a.low, b.low), pick(a.high, b.high))
        b = self._divisor(b)
        if function == "/":
            return Interval(a.low // b.high, a.high // b.low)
        if function == "ceil_div":
            return Interval(-(-a.low // b.high), -(-a.high // b.low))
        return _remainder(a, b)

    def logical(self, conjunction: bool, parts: Sequence[Evaluate], names: Names) -> Interval:
        always, sometimes = self._always, self._sometimes
        low = high = np.full(self.count, int(conjunction))
        for part in parts:
            found = part(names, self)
            true, possible = found.true.astype(int), (~found.false).astype(int)
            if conjunction:
                low, high = low & true, high & possible
                self._always, self._sometimes = always & (low == 1), sometimes & (high == 1)
            else:
                low, high = low | true, high | possible
                self._always, self._sometimes = always & (high == 0), sometimes & (low == 0)
        self._always, self._sometimes = always, sometimes
        return Interval(low, high)

    def define(self, definition: Definition, names: Names) -> Interval:
        """Return the hull of the cases that may apply; reject the sets where none does."""
        low, high = np.full(self.count, SATURATED), np.full(self.count, -SATURATED)
        always = sometimes = np.ones(self.count, bool)
        for value, condition in definition.cases:
            self._always, self._sometimes = always, sometimes
            if condition is None:
                always = sometimes = np.zeros(self.count, bool)
            else:
                holds = condition.value(names, self)
                self._always, self._sometimes = always & holds.true, sometimes & ~holds.false
                always, sometimes = always & holds.false, sometimes & ~holds.true
            found, here = value.value(names, self), self._sometimes
            low = np.where(here, np.minimum(low, found.low), low)
            high = np.where(here, np.maximum(high, found.high), high)
        self._always = self._sometimes = np.ones(self.count, bool)
        self._decide(~sometimes, always)
        empty = high < low
        return Interval(np.where(empty, 0, low), np.where(empty, 0, high))

    def require(self, requirement: Requirement, names: Names) -> None:
        value = requirement.condition.value(names, self)
        self._decide(value.true, value.false)

    def _decide(self, holds: np.ndarray, fails: np.ndarray) -> None:
        self.rejected |= fails & ~self.open
        self.open |= ~holds & ~fails & ~self.rejected

    def _divisor(self, b: Interval) -> Interval:
        """Return a divisor of at least 1; a division by zero rejects."""
        self.rejected |= self._always & b.false
        self.open |= self._sometimes & (b.low <= 0) & (b.high >= 0) & ~(self._always & b.false)
        return Interval(np.maximum(b.low, 1), np.maximum(b.high, 1))


def product(a: Interval, b: Interval) -> Interval:
    """Return the interval of products."""
    corners = [_times(u, v) for u in (a.low, a.high) for v in (b.low, b.high)]
    low, high = np.min(corners, 0), np.max(corners, 0)
    for one, other in ((a, b), (b, a)):
        if one.modulus and _constant(other) and (factor := int(other.low[0])) > 0:
            modulus = math.gcd(one.modulus * factor, MODULUS)
            return Interval(low, high, one.remainder * factor % modulus, modulus)
    return Interval(low, high)


def _constant(value: Interval) -> bool:
    """Return whether the value is the same single number in all sets."""
    return bool(len(value.low) and value.single.all() and (value.low == value.low[0]).all())


def _times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    large = np.abs(a.astype(float) * b.astype(float)) >= SATURATED
    return np.where(large, SATURATED * np.sign(a) * np.sign(b), a * b)


def _sum(a: Interval, b: Interval, sign: int) -> Interval:
    low, high = (a.low + b.low, a.high + b.high) if sign > 0 else (a.low - b.high, a.high - b.low)
    modulus = math.gcd(a.modulus, b.modulus) if a.modulus and b.modulus else 0
    remainder = (a.remainder + sign * b.remainder) % modulus if modulus else 0
    bounds = np.clip(low, -SATURATED, SATURATED), np.clip(high, -SATURATED, SATURATED)
    return Interval(*bounds, remainder, modulus)


def _remainder(a: Interval, b: Interval) -> Interval:
    if a.modulus and b.single.all() and not (a.modulus % b.low).any():
        value = np.broadcast_to(a.remainder % b.low, a.low.shape)
        return Interval(value, value)
    quotient, last = a.low // b.high, a.high // b.low
    known = (quotient == last) & b.single
    low = np.where(known, a.low - quotient * b.low, 0)
    high = np.where(known, a.high - quotient * b.low, np.minimum(b.high - 1, a.high))
    return Interval(low, high)


def _power_of_two(number: np.ndarray) -> np.ndarray:
    return np.int64(1) << np.ceil(np.log2(np.maximum(number, 1))).astype(np.int64)


def _compared(function: str, a: Interval, b: Interval) -> Interval:
    if function in (">", ">="):
        a, b, function = b, a, {">": "<", ">=": "<="}[function]
    if function == "<":
        low, high = a.high < b.low, a.low < b.high
    elif function == "<=":
        low, high = a.high <= b.low, a.low <= b.high
    else:
        low = a.single & b.single & (a.low == b.low)
        high = (a.low <= b.high) & (b.low <= a.high)
        if function == "!=":
            low, high = ~high, ~low
    return Interval(low.astype(np.int64), high.astype(np.int64))
