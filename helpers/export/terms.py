"""Expressions of headers as C++: terms with their precedence.

Literals are folded, so that a file that is exported for one dtype or with fixed features contains
only what depends on the problem.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from ..catalogue.expressions import (
    COMPARISONS,
    DIVISIONS,
    INTEGERS,
    DivisionByZero,
    Evaluate,
    ExpressionError,
    Names,
)

WIDTH = 100  # columns of a line of code
NAMES = {"min": "lesser", "max": "greater"}  # std::min takes two arguments of the same type
OR, AND, COMPARE, SUM, PRODUCT, ATOM = range(6)  # precedences, lowest first


class Term(NamedTuple):
    """An integer expression."""

    text: str
    precedence: int = ATOM
    least: float = 1  # the least value that it may have; -inf if unknown
    number: int | None = None  # the value of a literal

    def within(self, precedence: int) -> str:
        """Return the text, in parentheses if its operator binds less than `precedence`."""
        return self.text if self.precedence >= precedence else f"({self.text})"


class Terms:
    """The domain of C++ expressions of type `long long`. A divisor that may be 0 is written
    `divisor(...)`, which rejects the problem if it is."""

    def number(self, number: int) -> Term:
        return Term(str(number) if number < 2**31 else f"{number}LL", ATOM, number, number)

    def apply(self, function: str, *values: Term) -> Term:
        """Apply a function; raise `ExpressionError` if a number that may be negative is divided,
        whose quotient depends on the language."""
        if all(value.number is not None for value in values):
            try:
                return self.number(INTEGERS.apply(function, *(value.number for value in values)))
            except DivisionByZero:
                pass
        if len(values) == 1:
            return _call(function, 1, *values)  # power_of_two
        left, right = values
        if function in NAMES:
            least = {"min": min, "max": max}[function](left.least, right.least)
            return _call(NAMES[function], least, left, right)
        small, large = (left, right) if function == "<=" else (right, left)
        if function in ("<=", ">=") and small.number is not None and small.number <= large.least:
            return self.number(1)
        if function in COMPARISONS:
            return Term(f"{left.within(SUM)} {function} {right.within(SUM)}", COMPARE, 0)
        if function in DIVISIONS:
            return self._divided(function, left, right)
        if function == "*":
            if 1 in (left.number, right.number):
                return right if left.number == 1 else left
            least = left.least * right.least if min(left.least, right.least) >= 0 else -inf
            return Term(f"{left.within(PRODUCT)} * {right.within(ATOM)}", PRODUCT, least)
        least = left.least + right.least
        if function == "-":
            least = -inf if right.number is None else left.least - right.number
        return Term(f"{left.within(SUM)} {function} {right.within(PRODUCT)}", SUM, least)

    def _divided(self, function: str, left: Term, right: Term) -> Term:
        if left.least < 0:
            raise ExpressionError(f"divides {left.text}, which may be negative")
        if right.least < 1:
            right = _call("divisor", 1, right)
        if function == "ceil_div":
            return _call(function, min(1, left.least), left, right)
        return Term(f"{left.within(PRODUCT)} {function} {right.within(ATOM)}", PRODUCT, 0)

    def logical(self, conjunction: bool, parts: Sequence[Evaluate], names: Names) -> Term:
        terms = []
        for part in parts:
            term = part(names, self)
            if term.number is None:
                terms.append(term)
            elif bool(term.number) is not conjunction:  # decides
                if not any("divisor(" in term.text for term in terms):
                    return self.number(int(not conjunction))
                terms.append(term)
                break
        if not terms:
            return self.number(int(conjunction))
        if len(terms) == 1:
            (only,) = terms
            return only if only.precedence <= COMPARE else self.apply("!=", only, self.number(0))
        # Compilers warn about && within || unless it is in parentheses.
        text = (" && " if conjunction else " || ").join(term.within(COMPARE) for term in terms)
        return Term(text, AND if conjunction else OR, 0)


def _call(function: str, least: float, *values: Term) -> Term:
    return Term(f"{function}({', '.join(value.text for value in values)})", ATOM, least)


def wrapped(text: str, indent: int, hanging: int = 4) -> list[str]:
    """Return code in lines of up to `WIDTH` columns. The first is indented by `indent` columns, the
    others by `hanging` more."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )
