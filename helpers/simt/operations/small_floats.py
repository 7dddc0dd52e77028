"""Floats of 16 and of 8 bits, alone and packed, and pairs of 16-bit integers.

Values are widened to float32 or float64, computed there, and narrowed, rounding once. A sum that
float64 cannot hold is rounded to odd on the way: its last bit says that something was lost, so
the second rounding goes where a single one would have gone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import ml_dtypes
import numpy as np

from ..instructions import DTYPES, HALVES, PAIRS
from .base import form
from .convert import FINISH, WITH_JOIN, holds
from .rounding import (
    SMALLEST,
    as_floats,
    exact_sum,
    narrow,
    split,
    to_odd,
    widen,
)


def multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of 16-bit floats in float64, rounded to odd: the product is exact."""
    return to_odd(*exact_sum(np.multiply(a, b, dtype=np.float64), c.astype(np.float64)))


def _in_pairs(function: Callable, *sources, kind: str, **modifiers) -> np.ndarray:
    """A function of 16-bit values, or of both halves of 32-bit ones."""
    if kind not in PAIRS:
        return function(*sources, **modifiers)
    parts = (split(source, DTYPES[PAIRS[kind]]) for source in sources)
    return np.ascontiguousarray(function(*parts, **modifiers)).view(np.uint32).reshape(-1)


def _on_integers(function: np.ufunc, *sources, kind: str, finish: str = "") -> np.ndarray:
    return _in_pairs(lambda *parts: FINISH[finish](function(*parts)), *sources, kind=kind)


def _on_halves(function: Callable, *sources, kind: str, ftz: str = "", finish: str = ""):
    """A function that takes fp32 numbers and gives fp32 or fp64, which are finished and rounded."""
    base = PAIRS.get(kind, kind)

    def rounded(*parts: np.ndarray) -> np.ndarray:
        result = narrow(FINISH[finish](function(*as_floats(parts, base, ftz))), base)
        if ftz:
            small = np.abs(widen(result, base)) < SMALLEST[base]
            bits = result.view(np.uint16)
            result = np.where(small, bits & np.uint16(0x8000), bits).view(DTYPES[base])
        return result

    return _in_pairs(rounded, *sources, kind=kind)


def _half_forms(names: str, function: Callable, count: int, *modifiers: str) -> None:
    sources = " ".join(["kind"] * count)
    for one in modifiers:
        form(names, one, sources, "kind")(functools.partial(_on_halves, function))


# fp32 has more than twice the bits: rounding a sum or a product to it on the way changes nothing.
for _name, _function in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply)):
    _half_forms(_name, _function, 2, "rn? ftz:ftz? finish:sat? kind:f16s", "rn? kind:bf16s")
_half_forms(
    "fma", multiply_add, 3, "rn ftz:ftz? finish:sat|relu? kind:f16s", "rn finish:relu? kind:bf16s"
)
for _name, _quiet, _propagating in (("max", np.fmax, np.maximum), ("min", np.fmin, np.minimum)):
    _half_forms(_name, _quiet, 2, "ftz:ftz? kind:f16s", "kind:bf16s")
    _half_forms(_name, _propagating, 2, "ftz:ftz? NaN kind:f16s", "NaN kind:bf16s")
    for _modifiers in ("kind:u16x2", "kind:s16x2 finish:relu?"):  # NVRTC writes it behind the type
        form(_name, _modifiers, "kind kind", "kind")(functools.partial(_on_integers, _propagating))
form("add", "kind:u16x2|s16x2", "kind kind", "kind")(functools.partial(_on_integers, np.add))
_half_forms("neg", np.negative, 1, "kind:f16s|bf16s")
_half_forms("abs", np.abs, 1, "kind:f16s|bf16s")
_half_forms(
    "ex2",
    lambda a: np.exp2(a.astype(np.float64)),
    1,
    "approx kind:f16s",
    "approx ftz:ftz kind:bf16s",
)
_half_forms("tanh", lambda a: np.tanh(a.astype(np.float64)), 1, "approx kind:f16s|bf16s")

# ---- comparison ---------------------------------------------------------------------------------


def _half_holds(half: int, a, b, *c, kind: str, **modifiers) -> np.ndarray:
    """setp of pairs: the first target is about the lower halves, the second about the upper."""
    part = PAIRS[kind]
    a, b = (split(one, DTYPES[part])[:, half] for one in (a, b))
    return holds(a, b, *c, kind=part, **modifiers)


def _set(a, b, *c, result: str, kind: str, **modifiers) -> np.ndarray:
    """All ones, or 1.0 if the result is a float, where the comparison holds; else zero. Of pairs,
    each half of the result is about that half of the sources."""
    pair = kind in PAIRS
    base = PAIRS.get(result, result)
    bits = np.dtype(np.uint16 if pair else f"uint{8 * DTYPES[base].itemsize}")
    true = bits.type(
        {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000}.get(base, np.iinfo(bits).max)
    )

    def chosen(a, b) -> np.ndarray:
        joined = [one[:, None] if pair else one for one in c]
        found = holds(a, b, *joined, kind=PAIRS.get(kind, kind), **modifiers)
        return np.where(found, true, bits.type(0))

    return _in_pairs(chosen, a, b, kind=kind).view(DTYPES[result])


for _begin, _sources in WITH_JOIN:
    form(
        "setp",
        f"{_begin} ftz:ftz? kind:f16x2|bf16x2",
        _sources,
        "pred",
        functools.partial(_half_holds, 1),
    )(functools.partial(_half_holds, 0))
    form("set", f"{_begin} ftz? result:u32|s32|f32 kind:integer|float", _sources, "result")(_set)
    for _kind in (*HALVES, "f16x2", "bf16x2"):
        _results = "u32|s32" if _kind in PAIRS else "u16|s16|u32|s32"
        _modifiers = f"{_begin} ftz:ftz? result:{_kind}|{_results} kind:{_kind}"
        form("set", _modifiers, _sources, "result")(_set)

# ---- conversion ---------------------------------------------------------------------------------


@form("cvt", "rounding:rn|rz ftz? finish:relu? result:f16x2|bf16x2 f32", "f32 f32", "result")
def _pack(upper, lower, rounding: str, finish: str, result: str):
    """The first source becomes the upper half."""
    upper, lower = (
        narrow(FINISH[finish](one), PAIRS[result], rounding).view(np.uint16).astype(np.uint32)
        for one in (upper, lower)
    )
    return upper << np.uint32(16) | lower


# ---- floats of 8 bits, two of them in 16 ---------------------------------------------------------

EIGHT = {"e4m3x2": ml_dtypes.float8_e4m3fn, "e5m2x2": ml_dtypes.float8_e5m2}


def _bits(numbers: np.ndarray, kind: str) -> np.ndarray:
    """The 8 bits nearest to numbers, as uint16: what is too large, infinities too, becomes the
    largest finite number, and any NaN gives the same code."""
    most = float(ml_dtypes.finfo(EIGHT[kind]).max)
    bits = np.clip(numbers, -most, most).astype(EIGHT[kind]).view(np.uint8)
    return np.where(np.isnan(numbers), np.uint8(0x7F), bits).astype(np.uint16)


@form("cvt", "rn f16x2 kind:e4m3x2|e5m2x2", "b16", "f16x2")
def _to_halves(pair, kind: str):
    halves = narrow(split(pair, np.dtype(EIGHT[kind])).astype(np.float32), "f16")
    return np.ascontiguousarray(halves).view(np.uint32).reshape(-1)


@form("cvt", "rn satfinite kind:e4m3x2|e5m2x2 f32", "f32 f32", "b16")
def _from_floats(upper, lower, kind: str):
    return _bits(upper, kind) << np.uint16(8) | _bits(lower, kind)


@form("cvt", "rn satfinite kind:e4m3x2|e5m2x2 f16x2", "f16x2", "b16")
def _from_halves(pair, kind: str):
    lower, upper = split(pair, np.dtype(np.float16)).T
    return _from_floats(upper, lower, kind)
