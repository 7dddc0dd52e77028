"""Integer arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..ptx_types import DTYPES
from .base import INTEGER, Builder, PtxOperation, opcode, same_type, take
from .rounding import split


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
        carry_out = bool(take(modifiers, "cc"))
        kind = modifiers.pop()
        if kind not in ("u32", "s32", "u64", "s64"):
            raise KeyError(kind)
        sources = (kind, kind, "pred") if carry_in else (kind, kind)
        return PtxOperation(
            lambda a, b, *carry: _carried(function, a, b, *carry)[0],
            sources,
            kind,
            complement=lambda a, b, *carry: _carried(function, a, b, *carry)[1],
            writes_carry=carry_out,
            reads_carry=carry_in,
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
