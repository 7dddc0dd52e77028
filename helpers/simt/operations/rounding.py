"""Rounding, once and in PTX's directions, and the numbers between types.

An f16 array is numpy's float16. A bf16 array holds its bits as uint16.
"""

from __future__ import annotations

from collections.abc import Iterable

import ml_dtypes
import numpy as np

TINY = np.float32(2.0**-126)  # the smallest normal fp32
SMALLEST = {"f16": np.float32(2.0**-14), "bf16": TINY}  # likewise
NARROW = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
NOT_A_NUMBER = 0x7FFF  # what the hardware gives for any NaN, in both 16-bit types


def flush(values: np.ndarray, tiny: np.floating = TINY) -> np.ndarray:
    """Subnormal fp32 values to zero of the same sign (-ftz=true)."""
    small = np.abs(values) < tiny
    if not np.count_nonzero(small):
        return values
    return values * np.logical_not(small, out=small)


def saturate(values: np.ndarray) -> np.ndarray:
    """.sat: clamp to [0, 1], NaN and -0 to 0."""
    zero, one = values.dtype.type(0), values.dtype.type(1)
    result = np.fmin(np.fmax(values, zero), one)
    result += zero  # -0 becomes 0
    return result


def rounded_sum(
    a: np.ndarray, b: np.ndarray, rounding: str, dtype: type = np.float32
) -> np.ndarray:
    """The sum of float64 values in fp32 or fp64, as if it had been exact before rounding. Only
    "rn" to fp32 is rounded to fp64 first, which can differ next to a tie: a check costs more time
    than the sum."""
    if rounding == "rn":
        return (a + b).astype(dtype)
    total, rest = exact_sum(a, b)
    if rounding == "rm" and not total.all():
        total = np.where(total == 0, -(-a - b), total)  # rounding down, 1 - 1 is -0
    if dtype is np.float64 and not np.isfinite(total).all():
        overflow = np.isinf(total) & np.isfinite(a) & np.isfinite(b)
        rest = np.where(overflow, total, rest)
        total = np.where(overflow, np.copysign(np.finfo(dtype).max, total), total)
    return round_to(total, dtype, rounding, rest)


def widen(values: np.ndarray, kind: str) -> np.ndarray:
    """16-bit floats to float32, exactly."""
    return values.view(NARROW[kind]).astype(np.float32)


def narrow(values: np.ndarray, kind: str, rounding: str = "rn") -> np.ndarray:
    """float32 or float64 to 16-bit floats, in one of PTX's directions: rn, rz, rm, rp."""
    if kind == "bf16" and values.dtype == np.float64:  # ml_dtypes would round twice
        nearest = values.astype(np.float32)
        with np.errstate(invalid="ignore"):
            values = to_odd(nearest, np.where(np.isinf(values), 0, values - nearest))
    bits = round_to(values, NARROW[kind], rounding).view(np.uint16)
    bits = np.where(np.isnan(values), np.uint16(NOT_A_NUMBER), bits)
    return bits.view(np.float16) if kind == "f16" else bits


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
    excess, bits = nearest - exact, nearest.view(f"i{nearest.itemsize}")
    next_up = bits >> 8 * nearest.itemsize - 1 | 1  # what takes the bits to the next float
    if rounding in ("rm", "rz"):
        too_high = excess > rest if rounding == "rm" else (excess > rest) & (nearest > 0)
        bits = bits - too_high * next_up
    if rounding in ("rp", "rz"):
        too_low = excess < rest if rounding == "rp" else (excess < rest) & (nearest < 0)
        bits = bits + too_low * next_up
    return bits.view(dtype)


def as_floats(sources: Iterable[np.ndarray], base: str, ftz: str = "") -> list[np.ndarray]:
    """16-bit floats as fp32 numbers, the subnormal ones as zeros if .ftz asks for it."""
    wide = [widen(source, base) for source in sources]
    return [flush(one, SMALLEST[base]) for one in wide] if ftz else wide


def split(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Shape (threads, parts): the parts of each value, the lowest bits first."""
    return np.ascontiguousarray(values)[:, None].view(dtype)
