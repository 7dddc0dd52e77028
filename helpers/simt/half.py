"""The 16-bit floats f16 and bf16 on numpy arrays, alone and as pairs in 32 bits.

An f16 array is numpy's float16. numpy has no bf16, so a bf16 array holds its bits as uint16; they
are the upper half of an fp32 number. Values are widened to float32 or float64, computed there,
and narrowed, rounding once. A sum that float64 cannot hold is rounded to odd on the way: its last
bit says that something was lost, so the second rounding goes where a single one would have gone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

HALVES = ("f16", "bf16")
PAIRS = {"f16x2": "f16", "bf16x2": "bf16", "u16x2": "u16", "s16x2": "s16"}
TINIEST = np.float32(2.0**-14)  # the smallest normal f16
NOT_A_NUMBER = 0x7FFF  # what the hardware gives for any NaN, in both types


def widen(values: np.ndarray, kind: str) -> np.ndarray:
    """16-bit floats to float32, exactly."""
    if kind == "f16":
        return values.astype(np.float32)
    return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(values: np.ndarray, kind: str, rounding: str = "rn") -> np.ndarray:
    """float32 or float64 to 16-bit floats, in one of PTX's directions: rn, rz, rm, rp."""
    if kind == "f16":
        bits = round_to(values, np.float16, rounding).view(np.uint16)
    else:
        bits = _upper_half(values, rounding)
    bits = np.where(np.isnan(values), np.uint16(NOT_A_NUMBER), bits)
    return bits.view(np.float16) if kind == "f16" else bits


def _upper_half(values: np.ndarray, rounding: str) -> np.ndarray:
    """The bits of bf16: add to those of fp32 what makes a carry where rounding goes up."""
    single = values if values.dtype == np.float32 else _single_rounded_to_odd(values)
    bits = single.view(np.uint32)
    negative = bits >> np.uint32(31)
    up = {
        "rn": np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)),
        "rz": np.uint32(0),
        "rm": negative * np.uint32(0xFFFF),
        "rp": (negative ^ np.uint32(1)) * np.uint32(0xFFFF),
    }[rounding]
    return ((bits + up) >> np.uint32(16)).astype(np.uint16)


def _single_rounded_to_odd(exact: np.ndarray) -> np.ndarray:
    nearest = exact.astype(np.float32)
    back = nearest.astype(np.float64)
    with np.errstate(invalid="ignore"):
        rest = np.where(np.isinf(exact), 0, exact - back)
    return to_odd(nearest, rest)


def to_odd(values: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Of the two floats around values + rest, the one whose last bit is 1; exact values stay."""
    bits = values.view(f"int{8 * values.dtype.itemsize}")
    lost = (np.abs(rest) > 0) & (bits & 1 == 0)
    away = np.where((rest < 0) == np.signbit(values), 1, -1).astype(bits.dtype)
    return np.where(lost, bits + away, bits).view(values.dtype)


def exact_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The float64 sum to nearest, and what it lacks to be exact (NaN if it is infinite)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def round_to(
    exact: np.ndarray, dtype: type, rounding: str, rest: np.ndarray | float = 0.0
) -> np.ndarray:
    """Round floats to a narrower type in one of PTX's directions: rn, rz, rm (down), rp (up).

    `rest` is what a value lacks to be exact, less than half of its last bit; rn ignores it.
    """
    nearest = exact.astype(dtype)
    if rounding == "rn":
        return nearest
    back = nearest.astype(exact.dtype)
    result = nearest
    if rounding in ("rm", "rz"):
        too_high = (back > exact) | (back == exact) & (rest < 0)
        too_high = too_high if rounding == "rm" else too_high & (back > 0)
        result = np.where(too_high, np.nextafter(nearest, dtype(-np.inf)), result)
    if rounding in ("rp", "rz"):
        too_low = (back < exact) | (back == exact) & (rest > 0)
        too_low = too_low if rounding == "rp" else too_low & (back < 0)
        result = np.where(too_low, np.nextafter(nearest, dtype(np.inf)), result)
    return result


def multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of 16-bit floats in float64, rounded to odd: the product is exact."""
    return to_odd(*exact_sum(np.multiply(a, b, dtype=np.float64), c.astype(np.float64)))


def in_pairs(function: Callable[..., np.ndarray], dtype: np.dtype) -> Callable[..., np.ndarray]:
    """A function of 16-bit values for both halves of 32-bit ones."""

    def apply(*sources: np.ndarray) -> np.ndarray:
        result = function(*(split(source, dtype) for source in sources))
        return np.ascontiguousarray(result).view(np.uint32).reshape(-1)

    return apply


def split(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Shape (threads, parts): the parts of each value, the lowest bits first."""
    return np.ascontiguousarray(values)[:, None].view(dtype)
