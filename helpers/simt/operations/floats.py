"""Arithmetic of fp32 and fp64."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ..ptx_types import DTYPES
from .base import FLOAT, Builder, PtxOperation, opcode, take
from .rounding import DIRECTIONS, exact_sum, round_to, rounded_sum, saturate, to_odd


def _arithmetic(function: np.ufunc) -> Builder:
    def build(modifiers: list[str]) -> PtxOperation:
        kind = modifiers.pop()
        rounding = take(modifiers, *DIRECTIONS) or "rn"
        ftz, saturated = take(modifiers, "ftz"), take(modifiers, "sat")
        apply = function
        if rounding != "rn":
            is_sum = function in (np.add, np.subtract)
            if kind != "f32" and not is_sum:
                raise KeyError(kind)

            def apply(a, b):
                a, b = a.astype(np.float64), b.astype(np.float64)
                if is_sum:
                    b = b if function is np.add else -b
                    return rounded_sum(a, b, rounding, DTYPES[kind].type)
                return round_to(function(a, b), np.float32, rounding)

        return PtxOperation(saturate(apply) if saturated else apply, (kind, kind), kind, bool(ftz))

    return build


opcode("add", kinds=(FLOAT,))(_arithmetic(np.add))
opcode("sub", kinds=(FLOAT,))(_arithmetic(np.subtract))
opcode("mul", kinds=(FLOAT,))(_arithmetic(np.multiply))


@opcode("div", kinds=(FLOAT,))
def _div(modifiers: list[str]) -> PtxOperation:
    take(modifiers, "approx", "full")
    return _arithmetic(np.divide)(modifiers)


@opcode("fma", "mad", kinds=(FLOAT,))
def _fma(modifiers: list[str]) -> PtxOperation:
    kind = modifiers.pop()
    if kind == "f32":
        rounding = take(modifiers, *DIRECTIONS) or "rn"
        ftz, saturated = take(modifiers, "ftz"), take(modifiers, "sat")

        def apply(a, b, c):
            return rounded_sum(np.multiply(a, b, dtype=np.float64), c, rounding)

        return PtxOperation(saturate(apply) if saturated else apply, (kind,) * 3, kind, bool(ftz))
    take(modifiers, "rn")
    return PtxOperation(_fused_f64, (kind,) * 3, kind)


SPLITTER = np.float64(2.0**27 + 1)  # cuts 53 bits into 26 and 26, one being in the sign


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


def _extremum(quiet: Callable, propagating: Callable) -> Builder:
    """max and min ignore one NaN (IEEE 754-2008 maxNum) unless .NaN asks to keep it."""

    def build(modifiers: list[str]) -> PtxOperation:
        kind = modifiers.pop()
        function = propagating if take(modifiers, "NaN") else quiet
        return PtxOperation(function, (kind, kind), kind, bool(take(modifiers, "ftz")))

    return build


opcode("max", kinds=(FLOAT,))(_extremum(np.fmax, np.maximum))
opcode("min", kinds=(FLOAT,))(_extremum(np.fmin, np.minimum))


def _unary(function: Callable) -> Builder:
    def build(modifiers: list[str]) -> PtxOperation:
        kind = modifiers.pop()
        ftz = bool(take(modifiers, "ftz"))
        take(modifiers, "approx", "rn")
        return PtxOperation(function, (kind,), kind, ftz)

    return build


def _through_float64(function: Callable) -> Callable:
    return lambda a: function(a.astype(np.float64)).astype(a.dtype)


UNARY: dict[str, Callable] = {
    "abs": np.abs,
    "neg": np.negative,
    "ex2": _through_float64(np.exp2),
    "lg2": _through_float64(np.log2),
    "sin": _through_float64(np.sin),
    "cos": _through_float64(np.cos),
    "tanh": _through_float64(np.tanh),
    "sqrt": np.sqrt,
    "rsqrt": _through_float64(lambda a: 1.0 / np.sqrt(a)),
}
for _name, _function in UNARY.items():
    opcode(_name, kinds=(FLOAT,))(_unary(_function))


@opcode("rcp", kinds=(FLOAT,))
def _rcp(modifiers: list[str]) -> PtxOperation:
    if modifiers == ["approx", "ftz", "f64"]:  # of the upper 32 bits, to the upper 32 bits
        modifiers.clear()
        return PtxOperation(_coarse_reciprocal, ("f64",), "f64")
    return _unary(lambda a: a.dtype.type(1) / a)(modifiers)


def _coarse_reciprocal(a: np.ndarray) -> np.ndarray:
    upper = np.uint64(0xFFFFFFFF00000000)
    normal = np.where(np.abs(a) < SMALLEST_F64, np.copysign(0.0, a), a)
    result = 1.0 / (normal.view(np.uint64) & upper).view(np.float64)
    result = np.where(np.abs(result) < SMALLEST_F64, np.copysign(0.0, result), result)
    coarse = (result.view(np.uint64) & upper).view(np.float64)
    return np.where(np.isnan(a), a, coarse)


SMALLEST_F64 = 2.0**-1022  # normal


@opcode("copysign", kinds=(FLOAT,))
def _copysign(modifiers: list[str]) -> PtxOperation:
    kind = modifiers.pop()  # copysign d, a, b: the sign of a on the magnitude of b
    return PtxOperation(lambda a, b: np.copysign(b, a), (kind, kind), kind)


@opcode("testp", kinds=(FLOAT,))
def _testp(modifiers: list[str]) -> PtxOperation:
    kind = modifiers.pop()
    smallest = np.finfo(DTYPES[kind]).smallest_normal
    test = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & ((np.abs(a) >= smallest) | (a == 0)),
        "subnormal": lambda a: (np.abs(a) < smallest) & (a != 0),
    }[modifiers.pop()]
    return PtxOperation(test, (kind,), "pred")
