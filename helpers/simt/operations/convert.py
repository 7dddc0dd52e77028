"""Copies, conversions, comparisons and selections."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..instructions import DTYPES, HALVES, is_float
from .base import form
from .rounding import TINY, as_floats, exact_sum, narrow, round_to, saturate, to_odd, widen


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


for _begin, _sources in WITH_JOIN:
    form("setp", f"{_begin} ftz? kind:integer|float", _sources, "pred", _fails)(holds)
    form("setp", f"{_begin} ftz:ftz? kind:half", _sources, "pred", _fails)(holds)


@form("selp", "T:integer|float", "T T pred")
def _selp(a, b, p):
    return np.where(p, a, b)


@form("slct", "ftz:ftz? T:integer|float S:s32|f32", "T T S")
def _slct(a, b, c, ftz: str):
    return np.where(c > -TINY if ftz else c >= 0, a, b)  # .ftz is about the selector alone


# ---- copies and conversions ----------------------------------------------------------------------


# One address space: generic and global addresses are the same number.
@form("mov", "T:integer|float|pred", "T")
@form("cvta", "to? global? const? T:integer", "T")
def _same(a):
    return a


@form("cvt", "result:integer S:integer", "S", "result")
def _cast(a, result: str):
    return a.astype(DTYPES[result])


@form("cvt", "sat result:integer S:integer", "S", "result")
def _clamp(a, result: str):
    limits, own = np.iinfo(DTYPES[result]), np.iinfo(a.dtype)
    low, high = max(int(limits.min), int(own.min)), min(int(limits.max), int(own.max))
    return np.clip(a, a.dtype.type(low), a.dtype.type(high)).astype(DTYPES[result])


ROUND_TO_INTEGER: dict[str, Callable] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


FINISH: dict[str, Callable] = {
    "": lambda a: a,
    "sat": saturate,
    "relu": lambda a: np.where(a <= 0, a.dtype.type(0), a),  # -0 to 0 too; NaN stays
}


def _to_float(a, source: str, result: str, way: str = "", finish: str = ""):
    """A number of any type as a float, rounded once."""
    if source in HALVES:
        a = widen(a, source)
    elif a.dtype.kind in "iu":
        plain = way == "rn" and is_float(result)
        a = a.astype(DTYPES[result]) if plain else to_odd(*exact_sum(*_integer_parts(a)))
    if way in ROUND_TO_INTEGER:
        a, way = ROUND_TO_INTEGER[way](a), ""
    a = FINISH[finish](a)
    if result in HALVES:
        return narrow(a, result, way or "rn")
    return round_to(a, DTYPES[result].type, way or "rn")


for _modifiers in (
    "way:direction finish:sat? result:f32 source:integer",
    "way:rn finish:sat? result:f64 source:integer",
    "way:direction|whole? ftz? finish:sat? result:float source:float",
    "way:direction ftz? finish:sat? result:f16 source:f32",
    "way:direction ftz? result:bf16 source:f32",
    "way:rn|rz ftz? finish:relu result:half source:f32",
    "way:direction finish:sat? result:f16 source:f64|integer",
    "way:direction result:bf16 source:f16|f64|integer",
    "way:direction result:f16 source:bf16",
    "way:whole? finish:sat? result:f16 source:f16",
    "way:whole? result:bf16 source:bf16",
    "ftz? finish:sat? result:float source:f16",
    "ftz? result:float source:bf16",
):
    form("cvt", _modifiers, "source", "result")(_to_float)


@form("cvt", "way:whole ftz? sat? result:integer source:float", "source", "result")
@form("cvt", "way:whole result:integer source:half", "source", "result")
def _to_integer(a, way: str, source: str, result: str):
    """Float to integer always clamps; NaN becomes 0, or the top bit if a side has 64 bits."""
    a = widen(a, source) if source in HALVES else a
    to = DTYPES[result]
    top, bottom = np.iinfo(to).max, np.iinfo(to).min
    top_bit = 1 << 8 * to.itemsize - 1 if 8 in (a.dtype.itemsize, to.itemsize) else 0
    nan = np.array(top_bit, f"uint{8 * to.itemsize}").view(to)
    whole = ROUND_TO_INTEGER[way](a.astype(np.float64))
    inside = np.where((whole > float(bottom)) & (whole < float(top)), whole, 0).astype(to)
    found = np.where(whole <= float(bottom), to.type(bottom), inside)
    return np.where(np.isnan(a), nan, np.where(whole >= float(top), to.type(top), found))


def _integer_parts(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two float64 numbers whose sum an integer is."""
    whole = a.astype(f"{a.dtype.kind}8")
    low = whole & whole.dtype.type(0xFFFFFFFF)
    return (whole - low).astype(np.float64), low.astype(np.float64)
