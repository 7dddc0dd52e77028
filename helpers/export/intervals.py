"""A header's expressions over boxes of shapes at once: of each box the least and largest value.

What is not known for a box, because a condition holds for some of its shapes alone, is open; a
smaller box may tell.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..catalogue.expressions import OPERATORS, Expression

SATURATED = 2**61  # what is larger counts as this
MODULUS = 2**32  # by which a remainder is known at most


@dataclass(frozen=True)
class Interval:
    """Of each box, the least and the largest value; where `modulus` is not 0, each value leaves
    `remainder` by it."""

    low: np.ndarray
    high: np.ndarray
    remainder: np.ndarray | int = 0
    modulus: int = 0

    @classmethod
    def of(cls, number: int, count: int) -> Interval:
        """The same number for so many boxes."""
        value = np.full(count, number)
        return cls(value, value, number % MODULUS, MODULUS)

    @property
    def sure(self) -> np.ndarray:
        """Definitely not 0."""
        return (self.low > 0) | (self.high < 0)

    @property
    def never(self) -> np.ndarray:
        """Definitely 0."""
        return (self.low == 0) & (self.high == 0)

    @property
    def one(self) -> np.ndarray:
        """Whether there is a single value."""
        return self.low == self.high


@dataclass
class Boxes:
    """Shapes, a box each, and what became of them."""

    names: dict[str, Interval]
    refused: np.ndarray  # definitely not taken
    open: np.ndarray  # not yet known

    def value(self, tree: ast.AST, sure: np.ndarray, maybe: np.ndarray) -> Interval:
        """An expression's, where it is surely or maybe evaluated; a division by zero refuses."""
        if isinstance(tree, ast.Constant):
            return Interval.of(tree.value, len(sure))
        if isinstance(tree, ast.Name):
            return self.names[tree.id]
        if isinstance(tree, ast.BoolOp):
            return self._logical(tree, sure, maybe)
        if isinstance(tree, ast.Call):
            parts = [self.value(part, sure, maybe) for part in tree.args]
            name = tree.func.id
            if name == "ceil_div":
                return self._ceil_div(*parts, sure, maybe)
            if name == "power_of_two":
                return Interval(_power_of_two(parts[0].low), _power_of_two(parts[0].high))
            function = {"min": np.minimum, "max": np.maximum}[name]
            a, b = parts
            return Interval(function(a.low, b.low), function(a.high, b.high))
        if isinstance(tree, ast.Compare):
            parts = [self.value(part, sure, maybe) for part in (tree.left, *tree.comparators)]
            return _compared(type(tree.ops[0]), *parts)
        a, b = (self.value(part, sure, maybe) for part in (tree.left, tree.right))
        if isinstance(tree.op, ast.Add | ast.Sub):
            return _sum(a, b, OPERATORS[type(tree.op)][1])
        if isinstance(tree.op, ast.Mult):
            return product(a, b)
        if isinstance(tree.op, ast.Div):
            return self._quotient(a, b, sure, maybe)
        return self._remainder(a, b, sure, maybe)

    def must(self, holds: np.ndarray, fails: np.ndarray) -> None:
        """Refuse what definitely fails; what may hold or not is open."""
        self.refused |= fails & ~self.open
        self.open |= ~holds & ~fails & ~self.refused

    def within(self, value: Interval, least: int, most: int) -> None:
        """Refuse what is outside of limits."""
        self.must(
            (value.low >= least) & (value.high <= most),
            (value.high < least) | (value.low > most),
        )

    def always(self, rule: Expression) -> Interval:
        """The value of an expression that is evaluated for every box."""
        whole = np.ones(len(self.open), bool)
        return self.value(rule.tree, whole, whole)

    def rule(self, rule: Expression) -> None:
        """Refuse where a condition does not hold."""
        value = self.always(rule)
        self.must(value.sure, value.never)

    def case(self, cases: Sequence[tuple[Expression, Expression | None]]) -> Interval:
        """The hull of the cases that may hold; where none does is refused."""
        count = len(self.open)
        low, high = np.full(count, SATURATED), np.full(count, -SATURATED)
        sure = maybe = np.ones(count, bool)
        for value, when in cases:
            here_sure, here = sure, maybe
            if when is not None:
                holds = self.value(when.tree, sure, maybe)
                here_sure, here = sure & holds.sure, maybe & ~holds.never
                sure, maybe = sure & holds.never, maybe & ~holds.sure
            else:
                sure = maybe = np.zeros(count, bool)
            found = self.value(value.tree, here_sure, here)
            low = np.where(here, np.minimum(low, found.low), low)
            high = np.where(here, np.maximum(high, found.high), high)
        self.must(~maybe, sure)
        return Interval(np.where(high < low, 0, low), np.where(high < low, 0, high))

    def _logical(self, tree: ast.BoolOp, sure: np.ndarray, maybe: np.ndarray) -> Interval:
        every = isinstance(tree.op, ast.And)
        low = high = np.full(len(sure), int(every))
        for part in tree.values:
            found = self.value(part, sure, maybe)
            truth = np.asarray(found.sure, int), np.asarray(~found.never, int)
            if every:
                low, high = low & truth[0], high & truth[1]
                sure, maybe = sure & (low == 1), maybe & (high == 1)
            else:
                low, high = low | truth[0], high | truth[1]
                sure, maybe = sure & (high == 0), maybe & (low == 0)
        return Interval(low, high)

    def _divisor(self, b: Interval, sure: np.ndarray, maybe: np.ndarray) -> Interval:
        self.refused |= sure & b.never
        self.open |= maybe & (b.low <= 0) & (b.high >= 0) & ~(sure & b.never)
        return Interval(np.maximum(b.low, 1), np.maximum(b.high, 1))

    def _quotient(self, a: Interval, b: Interval, sure, maybe) -> Interval:
        b = self._divisor(b, sure, maybe)
        return Interval(a.low // b.high, a.high // b.low)  # of numbers from 0 up

    def _ceil_div(self, a: Interval, b: Interval, sure, maybe) -> Interval:
        b = self._divisor(b, sure, maybe)
        return Interval(-(-a.low // b.high), -(-a.high // b.low))

    def _remainder(self, a: Interval, b: Interval, sure, maybe) -> Interval:
        b = self._divisor(b, sure, maybe)
        if a.modulus and b.one.all() and not (a.modulus % b.low).any():
            value = np.broadcast_to(a.remainder % b.low, a.low.shape)
            return Interval(value, value)
        quotient = self._quotient(a, b, sure, maybe)
        within = quotient.one & b.one
        low = np.where(within, a.low - quotient.low * b.low, 0)
        high = np.where(within, a.high - quotient.low * b.low, np.minimum(b.high - 1, a.high))
        return Interval(low, high)


def _power_of_two(number: np.ndarray) -> np.ndarray:
    return np.int64(1) << np.ceil(np.log2(np.maximum(number, 1))).astype(np.int64)


def _compared(operator: type, a: Interval, b: Interval) -> Interval:
    if operator in (ast.Gt, ast.GtE):
        a, b, operator = b, a, {ast.Gt: ast.Lt, ast.GtE: ast.LtE}[operator]
    if operator is ast.Lt:
        low, high = a.high < b.low, a.low < b.high
    elif operator is ast.LtE:
        low, high = a.high <= b.low, a.low <= b.high
    else:
        low = a.one & b.one & (a.low == b.low)
        high = (a.low <= b.high) & (b.low <= a.high)
        if operator is ast.NotEq:
            low, high = ~high, ~low
    return Interval(low.astype(np.int64), high.astype(np.int64))


def _sum(a: Interval, b: Interval, operator) -> Interval:
    if operator(1, 1) == 2:
        low, high = a.low + b.low, a.high + b.high
    else:
        low, high = a.low - b.high, a.high - b.low
    modulus = math.gcd(a.modulus, b.modulus) if a.modulus and b.modulus else 0
    remainder = operator(a.remainder, b.remainder) % modulus if modulus else 0
    bounds = np.clip(low, -SATURATED, SATURATED), np.clip(high, -SATURATED, SATURATED)
    return Interval(*bounds, remainder, modulus)


def product(a: Interval, b: Interval) -> Interval:
    corners = [_times(u, v) for u in (a.low, a.high) for v in (b.low, b.high)]
    for one, other in ((a, b), (b, a)):
        if one.modulus and _constant(other):
            factor = int(other.low[0])
            if factor > 0:
                modulus = math.gcd(one.modulus * factor, MODULUS)
                remainder = one.remainder * factor % modulus
                return Interval(np.min(corners, 0), np.max(corners, 0), remainder, modulus)
    return Interval(np.min(corners, 0), np.max(corners, 0))


def _constant(value: Interval) -> bool:
    """Whether it is one number for all boxes."""
    return bool(len(value.low) and value.one.all() and (value.low == value.low[0]).all())


def _times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    large = np.abs(a.astype(float) * b.astype(float)) >= SATURATED
    return np.where(large, SATURATED * np.sign(a) * np.sign(b), a * b)
