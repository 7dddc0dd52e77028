"""Comparison and selection."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..ptx_types import DTYPES, HALVES, PAIRS
from .base import PtxOperation, opcode, take
from .rounding import TINY, on_halves


def _ordered(function: Callable) -> Callable:
    return lambda a, b: function(a, b) & (a == a) & (b == b)


def _or_nan(function: Callable) -> Callable:
    return lambda a, b: function(a, b) | (a != a) | (b != b)


COMPARISONS: dict[str, Callable] = {
    "eq": np.equal,
    "ne": _ordered(np.not_equal),
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


def comparison(modifiers: list[str]) -> tuple[str, bool, Callable, tuple[str, ...]]:
    """Kind, .ftz, comparison and types of the sources, for setp and set."""
    kind = modifiers.pop()
    ftz = bool(take(modifiers, "ftz"))
    compare = COMPARISONS[modifiers.pop(0)]
    if PAIRS.get(kind, kind) in HALVES:
        compare = on_halves(compare, PAIRS.get(kind, kind), ftz)
    joined = take(modifiers, "and", "or", "xor")
    return kind, ftz, compare, JOINS[joined], (kind, kind, "pred") if joined else (kind, kind)


JOINS: dict[str, Callable] = {
    "": lambda compared: compared,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


@opcode("setp")
def setp(modifiers: list[str]) -> PtxOperation:
    kind, ftz, compare, join, sources = comparison(modifiers)
    return PtxOperation(
        lambda a, b, *c: join(compare(a, b), *c),
        sources,
        "pred",
        ftz,
        lambda a, b, *c: join(~compare(a, b), *c),
    )


@opcode("set")
def _set(modifiers: list[str]) -> PtxOperation:
    """All ones, or 1.0 if the result is a float, where the comparison holds; else zero."""
    result = modifiers.pop(-2)
    kind, ftz, compare, join, sources = comparison(modifiers)
    if result not in ("u32", "s32", "f32"):
        raise KeyError(result)
    true = DTYPES[result].type(1 if result == "f32" else -1 if result == "s32" else 2**32 - 1)

    def apply(a, b, *c):
        return np.where(join(compare(a, b), *c), true, DTYPES[result].type(0))

    return PtxOperation(apply, sources, result, ftz)


@opcode("selp")
def _selp(modifiers: list[str]) -> PtxOperation:
    kind = modifiers.pop()
    return PtxOperation(lambda a, b, p: np.where(p, a, b), (kind, kind, "pred"), kind)


@opcode("slct")
def _slct(modifiers: list[str]) -> PtxOperation:
    selector, kind = modifiers.pop(), modifiers.pop()
    above = -TINY if take(modifiers, "ftz") else None  # .ftz is about the selector alone

    def apply(a, b, c):
        return np.where(c >= 0 if above is None else c > above, a, b)

    return PtxOperation(apply, (kind, kind, selector), kind)
