"""Copies and conversions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..ptx_types import DTYPES
from .base import form
from .rounding import round_to, rounded_sum, saturate


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


@form("cvt", "rounding:direction saturated:sat? result:f32 S:integer", "S", "result")
@form("cvt", "rounding:rn saturated:sat? result:f64 S:integer", "S", "result")
def _to_float(a, rounding: str, saturated: str, result: str):
    if rounding == "rn":
        rounded = a.astype(DTYPES[result])
    else:
        rounded = rounded_sum(*integer_parts(a), rounding)
    return saturate(rounded) if saturated else rounded


@form("cvt", "way:direction|whole? ftz? saturated:sat? result:float S:float", "S", "result")
def _between_floats(a, way: str, saturated: str, result: str):
    if way in ("rz", "rm", "rp") and (a.dtype, result) == (np.float64, "f32"):
        rounded = round_to(a, np.float32, way)
    else:
        rounded = ROUND_TO_INTEGER.get(way, _same)(a).astype(DTYPES[result])
    return saturate(rounded) if saturated else rounded


ROUND_TO_INTEGER: dict[str, Callable] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


@form("cvt", "way:whole ftz? sat? result:integer S:float", "S", "result")
def to_integer(a, way: str, result: str):
    """Float to integer always clamps; NaN becomes 0, or the top bit if a side has 64 bits."""
    to = DTYPES[result]
    top, bottom = np.iinfo(to).max, np.iinfo(to).min
    top_bit = 1 << 8 * to.itemsize - 1 if 8 in (a.dtype.itemsize, to.itemsize) else 0
    nan = np.array(top_bit, f"uint{8 * to.itemsize}").view(to)
    whole = ROUND_TO_INTEGER[way](a.astype(np.float64))
    inside = np.where((whole > float(bottom)) & (whole < float(top)), whole, 0).astype(to)
    found = np.where(whole <= float(bottom), to.type(bottom), inside)
    return np.where(np.isnan(a), nan, np.where(whole >= float(top), to.type(top), found))


def integer_parts(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two float64 numbers whose sum an integer is."""
    whole = a.astype(f"{a.dtype.kind}8")
    low = whole & whole.dtype.type(0xFFFFFFFF)
    return (whole - low).astype(np.float64), low.astype(np.float64)
