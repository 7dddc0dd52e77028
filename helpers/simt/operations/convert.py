"""Copies and conversions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..ptx_types import DTYPES, is_float
from .base import PtxOperation, opcode, take
from .rounding import DIRECTIONS, round_to, rounded_sum, saturate


@opcode("mov")
def _mov(modifiers: list[str]) -> PtxOperation:
    kind = modifiers.pop()
    return PtxOperation(lambda a: a, (kind,), kind)


@opcode("cvta")
def _cvta(modifiers: list[str]) -> PtxOperation:
    take(modifiers, "to")  # one address space: generic and global addresses are the same number
    take(modifiers, "global")
    kind = modifiers.pop()
    return PtxOperation(lambda a: a, (kind,), kind)


@opcode("cvt")
def _cvt(modifiers: list[str]) -> PtxOperation:
    source, result = modifiers.pop(), modifiers.pop()
    rounding = take(modifiers, *DIRECTIONS, *ROUND_TO_INTEGER)
    ftz, saturated = bool(take(modifiers, "ftz")), bool(take(modifiers, "sat"))
    to = DTYPES[result]
    if is_float(source) and is_float(result):
        to_integer = ROUND_TO_INTEGER.get(rounding, lambda a: a)
        if rounding in ("rz", "rm", "rp") and (source, result) == ("f64", "f32"):

            def apply(a):
                return round_to(a, np.float32, rounding)
        else:

            def apply(a):
                return to_integer(a).astype(to)

        apply = saturate(apply) if saturated else apply
    elif is_float(source):
        apply = to_integer_type(to, rounding, DTYPES[source].itemsize == 8)
    elif is_float(result):
        if rounding not in (DIRECTIONS if result == "f32" else ("rn",)):
            raise KeyError(rounding)
        if rounding == "rn":

            def apply(a):
                return a.astype(to)
        else:

            def apply(a):
                return rounded_sum(*integer_parts(a), rounding)

        apply = saturate(apply) if saturated else apply
    elif saturated:
        limits = np.iinfo(to)

        def apply(a):
            low = max(int(limits.min), int(np.iinfo(a.dtype).min))
            high = min(int(limits.max), int(np.iinfo(a.dtype).max))
            return np.clip(a, a.dtype.type(low), a.dtype.type(high)).astype(to)
    else:

        def apply(a):
            return a.astype(to)

    return PtxOperation(apply, (source,), result, ftz)


ROUND_TO_INTEGER: dict[str, Callable] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def to_integer_type(to: np.dtype, rounding: str, from_64_bits: bool) -> Callable:
    """Float to integer always clamps; NaN becomes 0, or the top bit if a side has 64 bits."""
    top, bottom = np.iinfo(to).max, np.iinfo(to).min
    to_integer = ROUND_TO_INTEGER[rounding]
    top_bit = 1 << 8 * to.itemsize - 1 if from_64_bits or to.itemsize == 8 else 0
    nan = np.array(top_bit, f"uint{8 * to.itemsize}").view(to)

    def apply(a):
        whole = to_integer(a.astype(np.float64))
        inside = np.where((whole > float(bottom)) & (whole < float(top)), whole, 0).astype(to)
        result = np.where(whole <= float(bottom), to.type(bottom), inside)
        return np.where(np.isnan(a), nan, np.where(whole >= float(top), to.type(top), result))

    return apply


def integer_parts(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two float64 numbers whose sum an integer is."""
    whole = a.astype(f"{a.dtype.kind}8")
    low = whole & whole.dtype.type(0xFFFFFFFF)
    return (whole - low).astype(np.float64), low.astype(np.float64)
