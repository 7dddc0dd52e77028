"""Integer arithmetic, shifts, bit fields and logic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..ptx_types import DTYPES
from .base import INTEGER, Builder, PtxOperation, opcode, same_type, take
from .rounding import split

# ---- arithmetic ---------------------------------------------------------------------------------


def _with_carry_flag(function: np.ufunc) -> Builder:
    """add and sub; with .cc they leave a carry."""

    def build(modifiers: list[str]) -> PtxOperation:
        if "cc" in modifiers:
            return _with_carry(function)(modifiers)
        return same_type(function, 2)(modifiers)

    return build


def _with_carry(function: np.ufunc, carry_in: bool = False):
    """add, sub, addc and subc with the carry (or borrow) as one more source or target."""

    def build(modifiers: list[str]) -> PtxOperation:
        take(modifiers, "cc")
        kind = modifiers.pop()
        if kind not in ("u32", "s32", "u64", "s64"):
            raise KeyError(kind)
        sources = (kind, kind, "pred") if carry_in else (kind, kind)
        return PtxOperation(
            lambda a, b, *carry: _carried(function, a, b, *carry)[0],
            sources,
            kind,
            complement=lambda a, b, *carry: _carried(function, a, b, *carry)[1],
        )

    return build


def _carried(
    function: np.ufunc, a: np.ndarray, b: np.ndarray, carry: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """a + b + carry modulo 2^width, and the carry out.

    A difference is a + ~b + 1 as in the hardware: its carry says that nothing was borrowed. The
    manual leaves that open; NVRTC's 128-bit division relies on it.
    """
    kind, bits = a.dtype, f"uint{8 * a.dtype.itemsize}"
    a, b = a.view(bits), b.view(bits)
    if function is np.subtract:
        b = ~b
        carry = np.ones(1, bool) if carry is None else carry
    total = a + b
    out = total < a
    if carry is not None:
        total = total + carry
        out = out | (total < carry)
    return total.view(kind), out


opcode("add", kinds=(INTEGER,))(_with_carry_flag(np.add))
opcode("sub", kinds=(INTEGER,))(_with_carry_flag(np.subtract))
opcode("addc", kinds=(INTEGER,))(_with_carry(np.add, carry_in=True))
opcode("subc", kinds=(INTEGER,))(_with_carry(np.subtract, carry_in=True))


@opcode("mul", kinds=(INTEGER,))
def _mul(modifiers: list[str]) -> PtxOperation:
    part = take(modifiers, "lo", "hi", "wide")
    if part in ("", "lo"):
        return same_type(np.multiply, 2)(modifiers)
    kind = modifiers.pop()
    if part == "wide":
        wide = f"{kind[0]}{2 * int(kind[1:])}"
        return PtxOperation(lambda a, b: a.astype(DTYPES[wide]) * b, (kind, kind), wide)
    return PtxOperation(_multiply_high, (kind, kind), kind)


def _multiply_high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The upper half of the full product, for 16-, 32- and 64-bit integers."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
        return ((a.astype(wide) * b.astype(wide)) >> bits).astype(a.dtype)
    low_mask, half = a.dtype.type(0xFFFFFFFF), a.dtype.type(32)
    a_low, a_high, b_low, b_high = a & low_mask, a >> half, b & low_mask, b >> half
    low = (a_low.astype(np.uint64) * b_low.astype(np.uint64) >> np.uint64(32)).astype(a.dtype)
    middle = a_high * b_low + low
    return a_high * b_high + (middle >> half) + ((a_low * b_high + (middle & low_mask)) >> half)


@opcode("madc", kinds=(INTEGER,))
def _madc(modifiers: list[str], carry_in: bool = True) -> PtxOperation:
    multiply = {"lo": np.multiply, "hi": _multiply_high}[take(modifiers, "lo", "hi")]
    base = _with_carry(np.add, carry_in)(modifiers)

    def fused(function: Callable) -> Callable:
        return lambda a, b, c, *carry: function(multiply(a, b), c, *carry)

    return replace(
        base,
        apply=fused(base.apply),
        complement=fused(base.complement),
        sources=(base.result, *base.sources),
    )


@opcode("mad", kinds=(INTEGER,))
def _mad(modifiers: list[str]) -> PtxOperation:
    if "cc" in modifiers:
        return _madc(modifiers, carry_in=False)
    part = take(modifiers, "lo", "hi", "wide")
    kind = modifiers.pop()
    if part == "wide":
        wide = f"{kind[0]}{2 * int(kind[1:])}"
        return PtxOperation(
            lambda a, b, c: a.astype(DTYPES[wide]) * b + c, (kind, kind, wide), wide
        )
    if part == "hi":
        return PtxOperation(lambda a, b, c: _multiply_high(a, b) + c, (kind,) * 3, kind)
    return PtxOperation(lambda a, b, c: a * b + c, (kind,) * 3, kind)


def _integer_division(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Truncating division; by zero gives all ones, as current GPUs do."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = (a - np.fmod(a, safe)) // safe
    return np.where(b == 0, ~np.zeros_like(b), quotient)


def _integer_remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, b.dtype.type(1), b)))


opcode("div", kinds=(INTEGER,))(same_type(_integer_division, 2))
opcode("rem", kinds=(INTEGER,))(same_type(_integer_remainder, 2))
opcode("max", kinds=(INTEGER,))(same_type(np.maximum, 2))
opcode("min", kinds=(INTEGER,))(same_type(np.minimum, 2))
opcode("abs", kinds=(INTEGER,))(same_type(np.abs, 1))
opcode("neg", kinds=(INTEGER,))(same_type(np.negative, 1))
opcode("sad", kinds=(INTEGER,))(
    same_type(lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c.view(a.dtype), 3)
)


@opcode("dp4a", kinds=(INTEGER,))
def _dp4a(modifiers: list[str], part: str = "") -> PtxOperation:
    """c plus the products of four bytes, or of two 16-bit values with the lower or upper bytes."""
    second, first = modifiers.pop(), modifiers.pop()
    if not {first, second} <= {"s32", "u32"}:
        raise KeyError(first)
    result = "s32" if "s32" in (first, second) else "u32"
    first_part = np.dtype(f"{'int' if first == 's32' else 'uint'}{16 if part else 8}")
    second_part = np.dtype("int8" if second == "s32" else "uint8")
    chosen = {"": slice(0, 4), "lo": slice(0, 2), "hi": slice(2, 4)}[part]

    def apply(a, b, c):
        products = split(a, first_part).astype(np.int64) * split(b, second_part)[:, chosen]
        return (products.sum(axis=1) + c).astype(c.dtype)

    return PtxOperation(apply, (first, second, result), result)


def _apart(bits: int) -> Builder:
    """How far the parts of two words are apart, part by part; with .add their sum and c."""

    def build(modifiers: list[str]) -> PtxOperation:
        add = take(modifiers, "add")
        second, first, result = modifiers.pop(), modifiers.pop(), modifiers.pop()
        if first != second or first not in ("s32", "u32") or result != "u32":
            raise KeyError(result)
        part = np.dtype(f"{'int' if first == 's32' else 'uint'}{bits}")

        def apply(a, b, c):
            far = np.abs(split(a, part).astype(np.int64) - split(b, part))
            if add:
                return (far.sum(axis=1) + c).astype(np.uint32)
            return far.astype(f"uint{bits}").view(np.uint32).reshape(-1)

        return PtxOperation(apply, (first, second, result), result)

    return build


opcode("vabsdiff2", kinds=(INTEGER,))(_apart(16))
opcode("vabsdiff4", kinds=(INTEGER,))(_apart(8))


@opcode("dp2a", kinds=(INTEGER,))
def _dp2a(modifiers: list[str]) -> PtxOperation:
    return _dp4a(modifiers, {"lo": "lo", "hi": "hi"}[take(modifiers, "lo", "hi")])


# ---- bits ---------------------------------------------------------------------------------------


opcode("and", kinds=(INTEGER,))(same_type(np.bitwise_and, 2))
opcode("or", kinds=(INTEGER,))(same_type(np.bitwise_or, 2))
opcode("xor", kinds=(INTEGER,))(same_type(np.bitwise_xor, 2))
opcode("not", kinds=(INTEGER,))(same_type(np.invert, 1))
opcode("cnot", kinds=(INTEGER,))(same_type(lambda a: (a == 0).astype(a.dtype), 1))


def _shift(function: Callable) -> Builder:
    def build(modifiers: list[str]) -> PtxOperation:
        kind = modifiers.pop()  # numpy shifts all bits out from the width on, as PTX does
        width = np.uint32(int(kind[1:]))
        return PtxOperation(
            lambda a, n: function(a, np.minimum(n, width).astype(a.dtype)), (kind, "u32"), kind
        )

    return build


opcode("shl", kinds=(INTEGER,))(_shift(np.left_shift))
opcode("shr", kinds=(INTEGER,))(_shift(np.right_shift))


@opcode("shf", kinds=(INTEGER,))
def _funnel_shift(modifiers: list[str]) -> PtxOperation:
    direction = take(modifiers, "l", "r")
    wrap = take(modifiers, "wrap", "clamp") == "wrap"
    modifiers.pop()

    def apply(low, high, amount):
        count = (amount & np.uint32(31) if wrap else np.minimum(amount, 32)).astype(np.uint64)
        both = high.astype(np.uint64) << np.uint64(32) | low
        shifted = both << count >> np.uint64(32) if direction == "l" else both >> count
        return shifted.astype(np.uint32)

    return PtxOperation(apply, ("b32", "b32", "u32"), "b32")


@opcode("lop3", kinds=(INTEGER,))
def _lop3(modifiers: list[str]) -> PtxOperation:
    take(modifiers, "b32")

    def apply(a, b, c, table):
        result = np.zeros_like(a)
        for entry in range(8):  # bit k of the table answers for (a, b, c) = the bits of k
            if int(table[0]) >> entry & 1:
                result = result | (
                    (a if entry & 4 else ~a) & (b if entry & 2 else ~b) & (c if entry & 1 else ~c)
                )
        return result

    return PtxOperation(apply, ("b32", "b32", "b32", "u32"), "b32")


@opcode("popc", kinds=(INTEGER,))
def _popc(modifiers: list[str]) -> PtxOperation:
    kind = modifiers.pop()
    return PtxOperation(lambda a: _bits(a).sum(axis=0, dtype=np.uint32), (kind,), "u32")


@opcode("clz", kinds=(INTEGER,))
def _clz(modifiers: list[str]) -> PtxOperation:
    kind = modifiers.pop()
    width = int(kind[1:])
    return PtxOperation(lambda a: np.uint32(width) - _bit_length(a), (kind,), "u32")


@opcode("bfind", kinds=(INTEGER,))
def _bfind(modifiers: list[str]) -> PtxOperation:
    shift_amount = take(modifiers, "shiftamt")
    kind = modifiers.pop()

    def apply(a):
        magnitude = np.where(a < 0, ~a, a) if kind[0] == "s" else a
        found = _bit_length(magnitude.view(f"uint{kind[1:]}")) - np.uint32(1)  # none: 0xffffffff
        distance = np.uint32(int(kind[1:]) - 1) - found
        return np.where(found == 0xFFFFFFFF, found, distance) if shift_amount else found

    return PtxOperation(apply, (kind,), "u32")


@opcode("brev", kinds=(INTEGER,))
def _brev(modifiers: list[str]) -> PtxOperation:
    kind = modifiers.pop()  # "b32"

    def apply(a):
        result = np.zeros_like(a)
        for bit in _bits(a):
            result = result << a.dtype.type(1) | bit
        return result

    return PtxOperation(apply, (kind,), kind)


@opcode("fns", kinds=(INTEGER,))
def _fns(modifiers: list[str]) -> PtxOperation:
    """The place of the n-th one of a mask, from a bit on, downwards if n is negative; with n = 0
    that bit itself, if it is one. All ones if there is none."""
    if modifiers.pop() != "b32":
        raise KeyError("fns")

    def apply(mask, base, n):
        place, step, left = base.astype(np.int64), np.sign(n), np.maximum(np.abs(n), 1)
        found = np.full(np.broadcast_shapes(mask.shape, base.shape, n.shape), 0xFFFFFFFF, np.uint32)
        for _ in range(32):
            inside = (place >= 0) & (place < 32)
            hit = inside & (mask >> np.clip(place, 0, 31).astype(np.uint32) & 1 > 0)
            left = left - hit
            found = np.where(hit & (left == 0), place.astype(np.uint32), found)
            place = place + step
        return found

    return PtxOperation(apply, ("b32", "b32", "s32"), "b32")


def _bits(a: np.ndarray) -> np.ndarray:
    """Shape (width, threads): bit k of every value in row k."""
    width = 8 * a.dtype.itemsize
    places = np.arange(width, dtype=a.dtype)[:, None]
    return a[None, :] >> places & a.dtype.type(1)


def _bit_length(a: np.ndarray) -> np.ndarray:
    weights = np.arange(1, 8 * a.dtype.itemsize + 1, dtype=np.uint32)[:, None]
    return (_bits(a).astype(np.uint32) * weights).max(axis=0)


@opcode("bfe", kinds=(INTEGER,))
def _bfe(modifiers: list[str]) -> PtxOperation:
    kind = modifiers.pop()
    width = int(kind[1:])

    def apply(a, start, length):
        start, length = start & np.uint32(255), length & np.uint32(255)
        top = np.minimum(start + length, width).astype(np.uint32)
        left = (np.uint32(width) - top).astype(a.dtype)
        moved = a << left
        kept = np.where(start >= width, 0, top - np.minimum(start, top))
        field = moved >> (np.uint32(width) - kept).astype(a.dtype)
        sign_only = a >> a.dtype.type(width - 1)  # a signed field past the top is all sign
        empty = np.where((start >= width) & (length > 0), sign_only, 0) if kind[0] == "s" else 0
        return np.where(kept == 0, empty, field).astype(a.dtype)

    return PtxOperation(apply, (kind, "u32", "u32"), kind)


@opcode("bfi", kinds=(INTEGER,))
def _bfi(modifiers: list[str]) -> PtxOperation:
    kind = modifiers.pop()
    width = int(kind[1:])

    def apply(field, base, start, length):
        one = base.dtype.type(1)
        start = np.minimum(start & np.uint32(255), width).astype(base.dtype)
        length = np.minimum(length & np.uint32(255), width).astype(base.dtype)
        mask = ((one << length) - one) << start
        return base & ~mask | field << start & mask

    return PtxOperation(apply, (kind, kind, "u32", "u32"), kind)


@opcode("prmt", kinds=(INTEGER,))
def _prmt(modifiers: list[str]) -> PtxOperation:
    take(modifiers, "b32")

    def apply(a, b, selector):
        both = b.astype(np.uint64) << np.uint64(32) | a
        result = np.zeros_like(both)
        for place in range(4):
            nibble = selector.astype(np.uint64) >> np.uint64(4 * place)
            byte = both >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(255)
            sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
            byte = np.where(nibble & np.uint64(8), sign, byte)
            result = result | byte << np.uint64(8 * place)
        return result.astype(np.uint32)

    return PtxOperation(apply, ("b32", "b32", "b32"), "b32")


@opcode("bmsk", kinds=(INTEGER,))
def _bmsk(modifiers: list[str]) -> PtxOperation:
    """Ones from a bit on, as many as the second source says."""
    wrap = take(modifiers, "wrap", "clamp") == "wrap"
    modifiers.pop()

    def apply(start, length):
        if wrap:
            start, length = start & np.uint32(31), length & np.uint32(31)
        start = np.minimum(start, 32).astype(np.uint64)
        length = np.minimum(length, 32).astype(np.uint64)
        one = np.uint64(1)
        return (((one << length) - one) << start).astype(np.uint32)

    return PtxOperation(apply, ("u32", "u32"), "b32")
