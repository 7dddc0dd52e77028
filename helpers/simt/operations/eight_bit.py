"""Conversions to and from the 8-bit floats e4m3 and e5m2, two of them in 16 bits.

To them they round to nearest, ties to even, and saturate: what is too large, infinities too,
becomes the largest finite number. e5m2 has infinities, e4m3 has none. Any NaN gives the same code.
See [ptx] "cvt", and NVIDIA's cuda_fp8.hpp for the codes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ptx_types import EIGHTS
from .base import form
from .rounding import NOT_A_NUMBER, split

NAN = 0x7F  # of both formats, when it is made


@dataclass(frozen=True)
class Format:
    digits: int  # of the fraction
    lowest: int  # exponent of the smallest normal number
    largest: int  # bits of the largest finite number


FORMATS = {"e4m3": Format(3, -6, 0x7E), "e5m2": Format(2, -14, 0x7B)}


def _bits(numbers: np.ndarray, kind: str) -> np.ndarray:
    """The 8 bits nearest to numbers, as uint16."""
    form = FORMATS[kind]
    numbers = numbers.astype(np.float64)
    size = np.minimum(np.abs(numbers), 2.0**16)  # past what either format holds
    exponent = np.where(size > 0, np.maximum(np.frexp(size)[1] - 1, form.lowest), form.lowest)
    steps = np.rint(np.ldexp(size, form.digits - exponent))  # exact but for this rounding
    steps = np.where(np.isnan(steps), 0, steps).astype(np.int64)
    bits = np.minimum(steps + (exponent - form.lowest << form.digits), form.largest)
    bits = np.where(np.isnan(numbers), NAN, bits | np.signbit(numbers) << 7)
    return bits.astype(np.uint16)


def _numbers(bits: np.ndarray, kind: str) -> np.ndarray:
    """The numbers of 8 bits, as float16, which holds them all."""
    form = FORMATS[kind]
    size = bits.astype(np.int64) & 0x7F
    exponent, fraction = size >> form.digits, size & (1 << form.digits) - 1
    steps = np.where(exponent, fraction + (1 << form.digits), fraction)
    power = np.maximum(exponent, 1) - 1 + form.lowest - form.digits
    value = np.ldexp(steps.astype(np.float64), power)
    value = np.where((kind == "e5m2") & (size == 0x7C), np.inf, value)
    result = np.where(bits & 0x80, -value, value).astype(np.float16)
    nan = size > (0x7E if kind == "e4m3" else 0x7C)
    return np.where(nan, np.uint16(NOT_A_NUMBER), result.view(np.uint16)).view(np.float16)


@form("cvt", "rn f16x2 kind:e4m3x2|e5m2x2", "b16", "f16x2")
def _to_halves(pair, kind: str):
    halves = _numbers(split(pair, np.dtype(np.uint8)), EIGHTS[kind])
    return np.ascontiguousarray(halves).view(np.uint32).reshape(-1)


@form("cvt", "rn satfinite kind:e4m3x2|e5m2x2 f32", "f32 f32", "b16")
def _from_floats(upper, lower, kind: str):
    return _bits(upper, EIGHTS[kind]) << np.uint16(8) | _bits(lower, EIGHTS[kind])


@form("cvt", "rn satfinite kind:e4m3x2|e5m2x2 f16x2", "f16x2", "b16")
def _from_halves(pair, kind: str):
    lower, upper = split(pair, np.dtype(np.float16)).T
    return _from_floats(upper, lower, kind)
