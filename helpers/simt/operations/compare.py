"""Comparison and selection."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..ptx_types import DTYPES, HALVES
from .base import form
from .rounding import TINY, as_floats


def _unequal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    found = a != b
    return found & (a == a) & (b == b) if a.dtype.kind == "f" else found


def _or_nan(function: Callable) -> Callable:
    return lambda a, b: function(a, b) | (a != a) | (b != b)


COMPARISONS: dict[str, Callable] = {
    "eq": np.equal,
    "ne": _unequal,  # and ordered
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "equ": _or_nan(np.equal),
    "neu": np.not_equal,
    "ltu": _or_nan(np.less),
    "leu": _or_nan(np.less_equal),
    "gtu": _or_nan(np.greater),
    "geu": _or_nan(np.greater_equal),
    "num": lambda a, b: (a == a) & (b == b),
    "nan": lambda a, b: (a != a) | (b != b),
}
JOINS: dict[str, Callable] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
# How setp and set begin, with a predicate that the comparison is joined with and without.
COMPARING = f"compare:{'|'.join(COMPARISONS)}"
WITH_JOIN = ((COMPARING, "kind kind"), (f"{COMPARING} join:and|or|xor", "kind kind pred"))


def holds(a, b, *c, compare: str, kind: str, join: str = "", ftz: str = "") -> np.ndarray:
    """setp."""
    if kind in HALVES:
        a, b = as_floats((a, b), kind, ftz)
    found = COMPARISONS[compare](a, b)
    return JOINS[join](found, *c) if c else found


def _fails(a, b, *c, join: str = "", **modifiers) -> np.ndarray:
    found = ~holds(a, b, **modifiers)
    return JOINS[join](found, *c) if c else found


def _set(a, b, *c, result: str, **modifiers) -> np.ndarray:
    """All ones, or 1.0 if the result is a float, where the comparison holds; else zero."""
    true = DTYPES[result].type(1 if result == "f32" else -1 if result == "s32" else 2**32 - 1)
    return np.where(holds(a, b, *c, **modifiers), true, DTYPES[result].type(0))


for _begin, _sources in WITH_JOIN:
    form("setp", f"{_begin} ftz? kind:integer|float", _sources, "pred", _fails)(holds)
    form("setp", f"{_begin} ftz:ftz? kind:half", _sources, "pred", _fails)(holds)
    form("set", f"{_begin} ftz? result:u32|s32|f32 kind:integer|float", _sources, "result")(_set)


@form("selp", "T:integer|float", "T T pred")
def _selp(a, b, p):
    return np.where(p, a, b)


@form("slct", "ftz:ftz? T:integer|float S:s32|f32", "T T S")
def _slct(a, b, c, ftz: str):
    return np.where(c > -TINY if ftz else c >= 0, a, b)  # .ftz is about the selector alone
