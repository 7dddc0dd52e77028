"""Logic, shifts, fields and permutations of bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .base import INTEGER, Builder, PtxOperation, opcode, same_type, take

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
