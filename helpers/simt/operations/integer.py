"""Integer arithmetic, shifts, bit fields and logic."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import numpy as np

from ..instructions import DTYPES
from .base import form
from .rounding import split

WIDE = (("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64"))
CARRYING = "T:u32|s32|u64|s64"

# ---- arithmetic ---------------------------------------------------------------------------------


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


def _sum_or_carry(which: int, function: np.ufunc, a, b, *carry):
    return _carried(function, a, b, *carry)[which]


def _fused_sum_or_carry(which: int, multiply: Callable, a, b, c, *carry):
    return _carried(np.add, multiply(a, b), c, *carry)[which]


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


def _with_carry(name: str, modifiers: str, sources: str, calculate: Callable, *what) -> None:
    """The forms of an opcode that leave a carry, and those that take one."""
    value, carry = (functools.partial(calculate, which, *what) for which in (0, 1))
    form(name, f"{modifiers} cc {CARRYING}", sources, complement=carry)(value)
    form(f"{name}c", f"{modifiers} cc? {CARRYING}", f"{sources} pred", complement=carry)(value)


for _name, _function in (("add", np.add), ("sub", np.subtract)):
    form(_name)(_function)
    _with_carry(_name, "", "T T", _sum_or_carry, _function)
for _part, _multiply in (("lo", np.multiply), ("hi", _multiply_high)):
    form("mul", f"{_part} T:integer")(_multiply)
    form("mad", f"{_part} T:integer", "T T T")(lambda a, b, c, m=_multiply: m(a, b) + c)
    _with_carry("mad", _part, "T T T", _fused_sum_or_carry, _multiply)
for _half, _wide in WIDE:
    _modifiers, _halves, _to = f"wide {_half}", f"{_half} {_half}", DTYPES[_wide]
    form("mul", _modifiers, _halves, _wide)(lambda a, b, to=_to: a.astype(to) * b)
    form("mad", _modifiers, f"{_halves} {_wide}", _wide)(
        lambda a, b, c, to=_to: a.astype(to) * b + c
    )
form("max")(np.maximum)
form("min")(np.minimum)
form("abs", sources="T")(np.abs)
form("neg", sources="T")(np.negative)


@form("div")
def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Truncating division; by zero gives all ones, as current GPUs do."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = (a - np.fmod(a, safe)) // safe
    return np.where(b == 0, ~np.zeros_like(b), quotient)


@form("rem")
def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, b.dtype.type(1), b)))


@form("sad", sources="T T T")
def _add_difference(a, b, c):
    return np.maximum(a, b) - np.minimum(a, b) + c.view(a.dtype)


def _dot(a, b, c, part: str = ""):
    """c plus the products of four bytes, or of two 16-bit values with the lower or upper bytes."""
    first = split(a, np.dtype(f"{a.dtype.kind}{2 if part else 1}"))
    chosen = {"": slice(0, 4), "lo": slice(0, 2), "hi": slice(2, 4)}[part]
    second = split(b, np.dtype(f"{b.dtype.kind}1"))[:, chosen]
    return ((first.astype(np.int64) * second).sum(axis=1) + c).astype(c.dtype)


for _kinds in itertools.product(("u32", "s32"), repeat=2):
    _result = "s32" if "s32" in _kinds else "u32"
    _modifiers, _sources = " ".join(_kinds), " ".join((*_kinds, _result))
    form("dp4a", _modifiers, _sources, _result)(_dot)
    form("dp2a", f"part:lo|hi {_modifiers}", _sources, _result)(_dot)


def _apart(size: int, a, b, c, total: str):
    """How far the parts of two words are apart, part by part; with .add their sum and c."""
    part = np.dtype(f"{a.dtype.kind}{size}")
    far = np.abs(split(a, part).astype(np.int64) - split(b, part))
    if total:
        return (far.sum(axis=1) + c).astype(np.uint32)
    return far.astype(f"u{size}").view(np.uint32).reshape(-1)


for _kind, _size in itertools.product(("u32", "s32"), (1, 2)):
    _modifiers = f"u32 {_kind} {_kind} total:add?"
    form(f"vabsdiff{4 // _size}", _modifiers, f"{_kind} {_kind} u32", "u32")(
        functools.partial(_apart, _size)
    )

# ---- bits ---------------------------------------------------------------------------------------


form("and", "T:integer|pred")(np.bitwise_and)
form("or", "T:integer|pred")(np.bitwise_or)
form("xor", "T:integer|pred")(np.bitwise_xor)
form("not", "T:integer|pred", "T")(np.invert)
form("cnot", sources="T")(lambda a: (a == 0).astype(a.dtype))


def _width(a: np.ndarray) -> np.uint32:
    return np.uint32(8 * a.dtype.itemsize)


def _shift(function: np.ufunc, a, amount):
    """numpy shifts all bits out from the width on, as PTX does."""
    return function(a, np.minimum(amount, _width(a)).astype(a.dtype))


form("shl", sources="T u32")(functools.partial(_shift, np.left_shift))
form("shr", sources="T u32")(functools.partial(_shift, np.right_shift))


@form("shf", "direction:l|r mode:wrap|clamp T:b32", "T T u32")
def _funnel_shift(low, high, amount, direction: str, mode: str):
    count = amount & np.uint32(31) if mode == "wrap" else np.minimum(amount, 32)
    count = count.astype(np.uint64)
    both = high.astype(np.uint64) << np.uint64(32) | low
    shifted = both << count >> np.uint64(32) if direction == "l" else both >> count
    return shifted.astype(np.uint32)


@form("lop3", "T:b32", "T T T u32")
def _lop3(a, b, c, table):
    result = np.zeros_like(a)
    for entry in range(8):  # bit k of the table answers for (a, b, c) = the bits of k
        if int(table[0]) >> entry & 1:
            result = result | (
                (a if entry & 4 else ~a) & (b if entry & 2 else ~b) & (c if entry & 1 else ~c)
            )
    return result


def _bit_length(a: np.ndarray) -> np.ndarray:
    """How many bits it takes to write each unsigned integer."""
    for shift in (1, 2, 4, 8, 16, 32):
        a = a | _shift(np.right_shift, a, shift)
    return np.bitwise_count(a).astype(np.uint32)


@form("popc", "T:b32|b64", "T", "u32")
def _popc(a):
    return np.bitwise_count(a).astype(np.uint32)


@form("clz", "T:b32|b64", "T", "u32")
def _clz(a):
    return _width(a) - _bit_length(a)


@form("bfind", "distance:shiftamt? T:integer", "T", "u32")
def _bfind(a, distance: str):
    magnitude = np.where(a < 0, ~a, a) if a.dtype.kind == "i" else a
    found = _bit_length(magnitude.view(f"u{a.dtype.itemsize}")) - np.uint32(1)  # none: 0xffffffff
    return np.where(found == 0xFFFFFFFF, found, _width(a) - 1 - found) if distance else found


@form("brev", "T:b32|b64", "T")
def _brev(a):
    bits = np.unpackbits(split(a, np.dtype(np.uint8)), axis=1, bitorder="little")
    return np.packbits(bits[:, ::-1], axis=1, bitorder="little").view(a.dtype).reshape(-1)


@form("fns", "T:b32", "T T s32")
def _fns(mask, base, n):
    """The place of the n-th one of a mask, from a bit on, downwards if n is negative; with n = 0
    that bit itself, if it is one. All ones if there is none."""
    place, step, left = base.astype(np.int64), np.sign(n), np.maximum(np.abs(n), 1)
    found = np.full(np.broadcast_shapes(mask.shape, base.shape, n.shape), 0xFFFFFFFF, np.uint32)
    for _ in range(32):
        inside = (place >= 0) & (place < 32)
        hit = inside & (mask >> np.clip(place, 0, 31).astype(np.uint32) & 1 > 0)
        left = left - hit
        found = np.where(hit & (left == 0), place.astype(np.uint32), found)
        place = place + step
    return found


@form("bfe", sources="T u32 u32")
def _bfe(a, start, length):
    width = _width(a)
    start, length = start & np.uint32(255), length & np.uint32(255)
    top = np.minimum(start + length, width)
    moved = a << (width - top).astype(a.dtype)
    kept = np.where(start >= width, 0, top - np.minimum(start, top))
    field = moved >> (width - kept).astype(a.dtype)
    sign_only = a >> a.dtype.type(width - 1)  # a signed field past the top is all sign
    signed = a.dtype.kind == "i"
    empty = np.where((start >= width) & (length > 0), sign_only, 0) if signed else 0
    return np.where(kept == 0, empty, field).astype(a.dtype)


@form("bfi", "T:b32|b64", "T T u32 u32")
def _bfi(field, base, start, length):
    one, width = base.dtype.type(1), _width(base)
    start = np.minimum(start & np.uint32(255), width).astype(base.dtype)
    length = np.minimum(length & np.uint32(255), width).astype(base.dtype)
    mask = ((one << length) - one) << start
    return base & ~mask | field << start & mask


@form("prmt", "T:b32", "T T T")
def _prmt(a, b, selector):
    both = b.astype(np.uint64) << np.uint64(32) | a
    result = np.zeros_like(both)
    for place in range(4):
        nibble = selector.astype(np.uint64) >> np.uint64(4 * place)
        byte = both >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
        byte = np.where(nibble & np.uint64(8), sign, byte)
        result = result | byte << np.uint64(8 * place)
    return result.astype(np.uint32)


@form("bmsk", "mode:wrap|clamp T:b32", "u32 u32")
def _bmsk(start, length, mode: str):
    """Ones from a bit on, as many as the second source says."""
    if mode == "wrap":
        start, length = start & np.uint32(31), length & np.uint32(31)
    start = np.minimum(start, 32).astype(np.uint64)
    length = np.minimum(length, 32).astype(np.uint64)
    one = np.uint64(1)
    return (((one << length) - one) << start).astype(np.uint32)
