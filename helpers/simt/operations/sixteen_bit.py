"""The 16-bit floats f16 and bf16, alone and as pairs in 32 bits, and pairs of 16-bit integers.

Values are widened to float32 or float64, computed there, and narrowed, rounding once. A sum that
float64 cannot hold is rounded to odd on the way: its last bit says that something was lost, so
the second rounding goes where a single one would have gone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..ptx_types import DTYPES, HALVES, PAIRS, is_float
from .base import SIXTEEN_BIT, Builder, PtxOperation, opcode, take
from .compare import comparison, setp
from .convert import ROUND_TO_INTEGER, integer_parts, to_integer_type
from .rounding import (
    DIRECTIONS,
    TINIEST,
    TINY,
    exact_sum,
    narrow,
    on_halves,
    saturate,
    split,
    to_odd,
    widen,
)


def multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of 16-bit floats in float64, rounded to odd: the product is exact."""
    return to_odd(*exact_sum(np.multiply(a, b, dtype=np.float64), c.astype(np.float64)))


def in_pairs(function: Callable[..., np.ndarray], dtype: np.dtype) -> Callable[..., np.ndarray]:
    """A function of 16-bit values for both halves of 32-bit ones."""

    def apply(*sources: np.ndarray) -> np.ndarray:
        result = function(*(split(source, dtype) for source in sources))
        return np.ascontiguousarray(result).view(np.uint32).reshape(-1)

    return apply


def _half_operation(
    function: Callable, kind: str, count: int, ftz: bool = False, finish: Callable | None = None
) -> PtxOperation:
    """The operation of a function that takes fp32 numbers and gives fp32 or fp64.

    `finish` gets the result before it is rounded, for .sat and .relu.
    """
    base = PAIRS.get(kind, kind)
    tiny = TINIEST if base == "f16" else TINY

    def rounded(*wide):
        result = function(*wide) if finish is None else finish(function(*wide))
        result = narrow(result, base)
        if ftz:
            small = np.abs(widen(result, base)) < tiny
            bits = result.view(np.uint16)
            result = np.where(small, bits & np.uint16(0x8000), bits).view(DTYPES[base])
        return result

    return _for_each_half(on_halves(rounded, base, ftz), kind, count)


def _for_each_half(function: Callable, kind: str, count: int) -> PtxOperation:
    if kind in PAIRS:
        function = in_pairs(function, DTYPES[PAIRS[kind]])
    return PtxOperation(function, (kind,) * count, kind)


def _half_arithmetic(function: Callable, count: int) -> Builder:
    def build(modifiers: list[str]) -> PtxOperation:
        kind = modifiers.pop()
        if kind in ("u16x2", "s16x2"):
            if function is not np.add:
                raise KeyError(kind)
            return _for_each_half(np.add, kind, 2)
        if not take(modifiers, "rn") and count == 3:
            raise KeyError("rn")
        is_f16 = PAIRS.get(kind, kind) == "f16"
        ftz = is_f16 and bool(take(modifiers, "ftz"))
        finish = None
        if is_f16 and take(modifiers, "sat"):
            finish = saturate(lambda a: a)
        elif count == 3 and take(modifiers, "relu"):
            finish = not_negative
        return _half_operation(function, kind, count, ftz, finish)

    return build


def not_negative(values: np.ndarray) -> np.ndarray:
    """.relu: negative values and -0 to 0; NaN stays."""
    return np.where(values <= 0, values.dtype.type(0), values)


# fp32 has more than twice the bits: rounding a sum or a product to it on the way changes nothing.
opcode("add", kinds=(SIXTEEN_BIT,))(_half_arithmetic(np.add, 2))
opcode("sub", kinds=(SIXTEEN_BIT,))(_half_arithmetic(np.subtract, 2))
opcode("mul", kinds=(SIXTEEN_BIT,))(_half_arithmetic(np.multiply, 2))
opcode("fma", kinds=(SIXTEEN_BIT,))(_half_arithmetic(multiply_add, 3))


def _half_extremum(quiet: Callable, propagating: Callable) -> Builder:
    def build(modifiers: list[str]) -> PtxOperation:
        relu = bool(take(modifiers, "relu"))  # NVRTC writes it behind the type
        kind = modifiers.pop()
        if relu and kind != "s16x2":
            raise KeyError(kind)
        if kind in ("u16x2", "s16x2"):
            function = (lambda a, b: not_negative(propagating(a, b))) if relu else propagating
            return _for_each_half(function, kind, 2)
        ftz = PAIRS.get(kind, kind) == "f16" and bool(take(modifiers, "ftz"))
        function = propagating if take(modifiers, "NaN") else quiet
        return _half_operation(function, kind, 2, ftz)

    return build


opcode("max", kinds=(SIXTEEN_BIT,))(_half_extremum(np.fmax, np.maximum))
opcode("min", kinds=(SIXTEEN_BIT,))(_half_extremum(np.fmin, np.minimum))


def _half_sign(function: Callable) -> Builder:
    def build(modifiers: list[str]) -> PtxOperation:
        kind = modifiers.pop()
        if PAIRS.get(kind, kind) not in HALVES:
            raise KeyError(kind)
        return _half_operation(function, kind, 1)

    return build


opcode("neg", kinds=(SIXTEEN_BIT,))(_half_sign(np.negative))
opcode("abs", kinds=(SIXTEEN_BIT,))(_half_sign(np.abs))


@opcode("ex2", kinds=(SIXTEEN_BIT,))
def _half_ex2(modifiers: list[str]) -> PtxOperation:
    kind = modifiers.pop()
    ftz = bool(take(modifiers, "ftz"))
    if not take(modifiers, "approx") or ftz != (PAIRS.get(kind, kind) == "bf16"):
        raise KeyError(kind)
    return _half_operation(lambda a: np.exp2(a.astype(np.float64)), kind, 1, ftz)


@opcode("tanh", kinds=(SIXTEEN_BIT,))
def _half_tanh(modifiers: list[str]) -> PtxOperation:
    kind = modifiers.pop()
    if not take(modifiers, "approx"):
        raise KeyError(kind)
    return _half_operation(lambda a: np.tanh(a.astype(np.float64)), kind, 1)


@opcode("setp", kinds=(SIXTEEN_BIT,))
def _half_setp(modifiers: list[str]) -> PtxOperation:
    if modifiers[-1] not in PAIRS:
        return setp(modifiers)
    # The first target is about the lower halves, the second about the upper.
    kind, _, compare, join, sources = comparison(modifiers)
    dtype = DTYPES[PAIRS[kind]]
    low, high = (
        lambda a, b, *c, half=half: join(compare(split(a, dtype), split(b, dtype))[:, half], *c)
        for half in (0, 1)
    )
    return PtxOperation(low, sources, "pred", complement=high)


@opcode("set", kinds=(SIXTEEN_BIT,))
def _half_set(modifiers: list[str]) -> PtxOperation:
    """As `set`; of pairs, each half of the result is about that half of the sources."""
    result = modifiers.pop(-2)
    kind, _, compare, join, sources = comparison(modifiers)
    pair = kind in PAIRS
    if result not in ((kind, "u32", "s32") if pair else (kind, "u16", "s16", "u32", "s32")):
        raise KeyError(result)
    ones = {"f16": 0x3C00, "bf16": 0x3F80}
    base = PAIRS.get(result, result)
    bits = np.dtype(np.uint16 if pair else f"uint{8 * DTYPES[base].itemsize}")
    true, false = bits.type(ones.get(base, np.iinfo(bits).max)), bits.type(0)

    def apply(a, b, *c):
        holds = join(compare(a, b), *(one[:, None] if pair else one for one in c))
        return np.where(holds, true, false)

    if not pair:
        return PtxOperation(lambda *s: apply(*s).view(DTYPES[result]), sources, result)
    part = DTYPES[PAIRS[kind]]

    def both(a, b, *c):
        found = apply(split(a, part), split(b, part), *c)
        return found.view(np.uint32).reshape(-1).view(DTYPES[result])

    return PtxOperation(both, sources, result)


@opcode("cvt", kinds=(SIXTEEN_BIT,))
def _half_cvt(modifiers: list[str]) -> PtxOperation:
    source, result = modifiers.pop(), modifiers.pop()
    rounding = take(modifiers, *DIRECTIONS, *ROUND_TO_INTEGER)
    ftz, saturated = bool(take(modifiers, "ftz")), bool(take(modifiers, "sat"))
    relu = bool(take(modifiers, "relu"))
    finish = saturate(lambda a: a) if saturated else not_negative if relu else lambda a: a
    if relu and (source != "f32" or saturated or rounding not in ("rn", "rz")):
        raise KeyError(source)
    if (ftz and "f32" not in (source, result)) or (saturated and "bf16" in (source, result)):
        raise KeyError(source)
    if result in PAIRS:  # the first source becomes the upper half
        base = PAIRS[result]
        if source != "f32" or base not in HALVES or rounding not in ("rn", "rz"):
            raise KeyError(source)

        def pack(upper, lower):
            upper, lower = (
                narrow(finish(one), base, rounding).view(np.uint16).astype(np.uint32)
                for one in (upper, lower)
            )
            return upper << np.uint32(16) | lower

        return PtxOperation(pack, ("f32", "f32"), result, ftz)
    if result in HALVES:
        return _cvt_to_half(source, result, rounding, finish, ftz)
    if source not in HALVES:
        raise KeyError(source)
    if is_float(result):
        if rounding:
            raise KeyError(rounding)
        to = DTYPES[result]
        return PtxOperation(lambda a: finish(widen(a, source)).astype(to), (source,), result, ftz)
    convert = to_integer_type(DTYPES[result], rounding, False)
    return PtxOperation(lambda a: convert(widen(a, source)), (source,), result, ftz)


def _cvt_to_half(
    source: str, result: str, rounding: str, finish: Callable, ftz: bool
) -> PtxOperation:
    if source == result:
        if rounding in DIRECTIONS:
            raise KeyError(rounding)
        to_integer = ROUND_TO_INTEGER.get(rounding, lambda a: a)
        return PtxOperation(
            lambda a: narrow(finish(to_integer(widen(a, source))), result), (source,), result
        )
    if rounding not in DIRECTIONS:
        raise KeyError(rounding)

    def apply(a):
        if source in HALVES:
            a = widen(a, source)
        elif not is_float(source):
            a = to_odd(*exact_sum(*integer_parts(a)))
        return narrow(finish(a), result, rounding)

    return PtxOperation(apply, (source,), result, ftz)
