"""Arithmetic of fp32 and fp64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from .base import form
from .rounding import exact_sum, round_to, rounded_sum, saturate, to_odd

ROUNDING = "rounding:direction? ftz? saturated:sat?"


def _rounded(function: np.ufunc, a, b, rounding: str, saturated: str = "") -> np.ndarray:
    dtype = a.dtype.type
    if rounding in ("", "rn"):
        result = function(a, b)
    elif function in (np.add, np.subtract):
        a, b = a.astype(np.float64), b.astype(np.float64)
        result = rounded_sum(a, b if function is np.add else -b, rounding, dtype)
    else:
        result = round_to(function(a.astype(np.float64), b.astype(np.float64)), dtype, rounding)
    return saturate(result) if saturated else result


for _name, _function in {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
}.items():
    form(_name, "rn? ftz? T:float")(_function)  # the usual ones, and quick
    form(_name, f"{ROUNDING} T:f32")(functools.partial(_rounded, _function))
form("div", "approx|full ftz? T:f32")(np.divide)
form("add", "rounding:direction T:f64")(functools.partial(_rounded, np.add))
form("sub", "rounding:direction T:f64")(functools.partial(_rounded, np.subtract))


def _exact_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of fp32 numbers, in fp64."""
    return a.astype(np.float64) * b.astype(np.float64)


@form("fma mad", f"{ROUNDING} T:f32", "T T T")
def _fused_and_rounded(a, b, c, rounding: str, saturated: str):
    result = rounded_sum(_exact_product(a, b), c.astype(np.float64), rounding or "rn")
    return saturate(result) if saturated else result


SPLITTER = np.float64(2.0**27 + 1)  # cuts 53 bits into 26 and 26, one being in the sign


@form("fma mad", "rn? T:f64", "T T T")
def _fused_f64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of float64 rounded once: the product as two floats, the last sum to odd."""
    product = a * b
    finite = np.isfinite(a) & np.isfinite(b)
    plain = np.where(finite & np.isinf(c), c, product + c)
    a_high, b_high = a * SPLITTER - (a * SPLITTER - a), b * SPLITTER - (b * SPLITTER - b)
    a_low, b_low = a - a_high, b - b_high
    low = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    upper, rest_of_c = exact_sum(c, low)
    upper, rest = exact_sum(product, upper)
    result = upper + to_odd(*exact_sum(rest_of_c, rest))
    # Plain arithmetic is right for these; it also knows the sign of a zero.
    simple = ~finite | ~np.isfinite(c) | (a == 0) | (b == 0)
    result = np.where(simple | (result == 0), plain, result)
    extreme = ~simple & ~(_in_reach(a) & _in_reach(b) & _in_reach(product) & _in_reach(c))
    if extreme.any():
        sources = np.broadcast_arrays(a, b, c)
        for place in np.flatnonzero(extreme):
            result[place] = _fused_exactly(*(float(source[place]) for source in sources))
    return result


def _in_reach(values: np.ndarray) -> np.ndarray:
    """Whether no step of `_fused_f64` can overflow or lose bits to the smallest exponent."""
    sizes = np.abs(values)
    return (sizes > 2.0**-900) & (sizes < 2.0**900) | (values == 0)


def _fused_exactly(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(exact) if exact else a * b + c
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


# They ignore one NaN (IEEE 754-2008 maxNum) unless .NaN asks to keep it.
for _name, _quiet, _propagating in (("max", np.fmax, np.maximum), ("min", np.fmin, np.minimum)):
    form(_name, "ftz? T:float")(_quiet)
    form(_name, "ftz? NaN T:float")(_propagating)


@form("rcp", "approx ftz T:f64", "T")  # of the upper 32 bits, to the upper 32 bits
def _coarse_reciprocal(a: np.ndarray) -> np.ndarray:
    upper = np.uint64(0xFFFFFFFF00000000)
    normal = np.where(np.abs(a) < SMALLEST_F64, np.copysign(0.0, a), a)
    result = 1.0 / (normal.view(np.uint64) & upper).view(np.float64)
    result = np.where(np.abs(result) < SMALLEST_F64, np.copysign(0.0, result), result)
    coarse = (result.view(np.uint64) & upper).view(np.float64)
    return np.where(np.isnan(a), a, coarse)


SMALLEST_F64 = 2.0**-1022  # normal


def _through_float64(function: Callable) -> Callable:
    return lambda a: function(a.astype(np.float64)).astype(a.dtype)


UNARY: dict[str, Callable] = {
    "abs": np.abs,
    "neg": np.negative,
    "rcp": lambda a: a.dtype.type(1) / a,
    "ex2": _through_float64(np.exp2),
    "lg2": _through_float64(np.log2),
    "sin": _through_float64(np.sin),
    "cos": _through_float64(np.cos),
    "tanh": _through_float64(np.tanh),
    "sqrt": np.sqrt,
    "rsqrt": _through_float64(lambda a: 1.0 / np.sqrt(a)),
}
for _name, _function in UNARY.items():
    form(_name, "approx|rn? ftz? T:float", "T")(_function)


@form("copysign", "T:float")
def _copysign(a, b):
    return np.copysign(b, a)  # copysign d, a, b: the sign of a on the magnitude of b


CLASSES: dict[str, Callable] = {
    "finite": lambda a, smallest: np.isfinite(a),
    "infinite": lambda a, smallest: np.isinf(a),
    "number": lambda a, smallest: ~np.isnan(a),
    "notanumber": lambda a, smallest: np.isnan(a),
    "normal": lambda a, smallest: np.isfinite(a) & ((np.abs(a) >= smallest) | (a == 0)),
    "subnormal": lambda a, smallest: (np.abs(a) < smallest) & (a != 0),
}


@form("testp", f"test:{'|'.join(CLASSES)} T:float", "T", "pred")
def _testp(a, test: str):
    return CLASSES[test](a, np.finfo(a.dtype).smallest_normal)
