"""What each arithmetic PTX opcode computes, as numpy functions.

To add an opcode, write a function that takes the instruction's modifiers and returns an
`Operation`, and decorate it with `@opcode("name")`. The last modifier of most opcodes is the type
("f32", "s64"), which is also how the bits of the sources are read. Sources arrive as arrays of
that type (shape `(threads,)`, or `(1,)` if the value is the same in every thread); the result is
an array of the same kind. Semantics follow the PTX ISA manual, section 9.7, with these limits:
`.approx` functions are correctly rounded here and up to 2 ulp off on the hardware (more for 16-bit
floats), an fp32 fused multiply-add to nearest goes through float64 (a double rounding in about one
case in 2^29), `.ftz` looks at a result after rounding (the hardware before), and max or min of +0
and -0 may give either. All else is exact: fp64 and 16-bit fused multiply-adds round once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from .half import (
    HALVES,
    PAIRS,
    TINIEST,
    exact_sum,
    in_pairs,
    multiply_add,
    narrow,
    round_to,
    split,
    to_odd,
    widen,
)
from .parse import UnsupportedPTX

DTYPES = {
    "pred": np.dtype(bool),
    **{f"b{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),  # its bits
    **{pair: np.dtype(np.uint32) for pair in PAIRS},  # the bits of both halves
}
TINY = np.float32(2.0**-126)  # the smallest normal fp32


@dataclass(frozen=True)
class Operation:
    apply: Callable[..., np.ndarray]
    sources: tuple[str, ...]  # PTX type of each source
    result: str  # PTX type of the result
    flush: bool = False  # .ftz: subnormal fp32 sources and results count as zero
    complement: Callable[..., np.ndarray] | None = None  # what a second target gets (setp, .cc)
    # The carry flag is a predicate: a second target with .cc, a further source of addc and alike.
    writes_carry: bool = False
    reads_carry: bool = False


OPCODES: dict[str, Callable[[list[str]], Operation]] = {}
HALF_OPCODES: dict[str, Callable[[list[str]], Operation]] = {}  # with a 16-bit float or a pair


def opcode(*names: str, table: dict = OPCODES):
    def register(builder):
        for name in names:
            table[name] = builder
        return builder

    return register


def find_operation(name: str, modifiers: tuple[str, ...]) -> Operation:
    """Return the operation of an opcode; raises `UnsupportedPTX` if there is none."""
    written = ".".join((name, *modifiers))
    if name not in OPCODES:
        raise UnsupportedPTX(f"the SIMT machine does not know the opcode {written!r}")
    remaining = list(modifiers)
    half = any(kind in HALVES or kind in PAIRS for kind in modifiers)
    try:
        operation = (HALF_OPCODES if half else OPCODES)[name](remaining)
        types = [DTYPES[kind] for kind in (*operation.sources, operation.result)]
        assert types
    except (KeyError, IndexError):
        raise UnsupportedPTX(f"the SIMT machine does not know this form of {written!r}") from None
    if remaining:
        unknown = ", ".join(f".{item}" for item in remaining)
        raise UnsupportedPTX(f"the SIMT machine does not know {unknown} in {written!r}")
    return operation


def flush(values: np.ndarray, tiny: np.floating = TINY) -> np.ndarray:
    """Subnormal fp32 values to zero of the same sign (-ftz=true)."""
    return values * (np.abs(values) >= tiny)


def _take(modifiers: list[str], *choices: str) -> str:
    """Remove and return the first of `choices` found among the modifiers, or ""."""
    for choice in choices:
        if choice in modifiers:
            modifiers.remove(choice)
            return choice
    return ""


def _kind(modifiers: list[str]) -> str:
    return modifiers.pop()


def _is_float(kind: str) -> bool:
    return kind.startswith("f")


def _rounded_sum(
    a: np.ndarray, b: np.ndarray, rounding: str, dtype: type = np.float32
) -> np.ndarray:
    """The sum of float64 values in fp32 or fp64, as if it had been exact before rounding."""
    if rounding == "rn":
        return (a + b).astype(dtype)
    total, rest = exact_sum(a, b)
    if rounding == "rm":
        total = np.where(total == 0, -(-a - b), total)  # rounding down, 1 - 1 is -0
    overflow = np.isinf(total) & np.isfinite(a) & np.isfinite(b)
    return round_to(total, dtype, rounding, np.where(overflow, -total, rest))


def _saturate(function: Callable) -> Callable:
    """.sat: clamp to [0, 1], NaN and -0 to 0."""

    def saturated(*sources):
        result = function(*sources)
        zero, one = result.dtype.type(0), result.dtype.type(1)
        return np.where(result > 0, np.minimum(result, one), zero)

    return saturated


# ---- arithmetic -------------------------------------------------------------------------------


def _arithmetic(function: np.ufunc):
    def build(modifiers: list[str]) -> Operation:
        if "cc" in modifiers:
            return _with_carry(function)(modifiers)
        kind = _kind(modifiers)
        if not _is_float(kind):
            return Operation(function, (kind, kind), kind)
        rounding = _take(modifiers, "rn", "rz", "rm", "rp") or "rn"
        ftz, saturate = _take(modifiers, "ftz"), _take(modifiers, "sat")
        apply = function
        if rounding != "rn":
            is_sum = function in (np.add, np.subtract)
            if kind != "f32" and not is_sum:
                raise KeyError(kind)

            def apply(a, b):
                a, b = a.astype(np.float64), b.astype(np.float64)
                if is_sum:
                    b = b if function is np.add else -b
                    return _rounded_sum(a, b, rounding, DTYPES[kind].type)
                return round_to(function(a, b), np.float32, rounding)

        return Operation(_saturate(apply) if saturate else apply, (kind, kind), kind, bool(ftz))

    return build


OPCODES["add"] = _arithmetic(np.add)
OPCODES["sub"] = _arithmetic(np.subtract)


def _with_carry(function: np.ufunc, carry_in: bool = False):
    """add, sub, addc and subc with the carry (or borrow) as one more source or target."""

    def build(modifiers: list[str]) -> Operation:
        carry_out = bool(_take(modifiers, "cc"))
        kind = _kind(modifiers)
        if kind not in ("u32", "s32", "u64", "s64"):
            raise KeyError(kind)
        sources = (kind, kind, "pred") if carry_in else (kind, kind)
        return Operation(
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


OPCODES["addc"] = _with_carry(np.add, carry_in=True)
OPCODES["subc"] = _with_carry(np.subtract, carry_in=True)


@opcode("mul")
def _mul(modifiers: list[str]) -> Operation:
    part = _take(modifiers, "lo", "hi", "wide")
    if part in ("", "lo"):
        return _arithmetic(np.multiply)(modifiers)
    kind = _kind(modifiers)
    if part == "wide":
        wide = f"{kind[0]}{2 * int(kind[1:])}"
        return Operation(lambda a, b: a.astype(DTYPES[wide]) * b, (kind, kind), wide)
    return Operation(_multiply_high, (kind, kind), kind)


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


@opcode("madc")
def _madc(modifiers: list[str], carry_in: bool = True) -> Operation:
    multiply = {"lo": np.multiply, "hi": _multiply_high}[_take(modifiers, "lo", "hi")]
    base = _with_carry(np.add, carry_in)(modifiers)

    def fused(function: Callable) -> Callable:
        return lambda a, b, c, *carry: function(multiply(a, b), c, *carry)

    return replace(
        base,
        apply=fused(base.apply),
        complement=fused(base.complement),
        sources=(base.result, *base.sources),
    )


@opcode("fma", "mad")
def _fma(modifiers: list[str]) -> Operation:
    if "cc" in modifiers:
        return _madc(modifiers, carry_in=False)
    part = _take(modifiers, "lo", "hi", "wide")
    kind = _kind(modifiers)
    if kind == "f32":
        rounding = _take(modifiers, "rn", "rz", "rm", "rp") or "rn"
        ftz, saturate = _take(modifiers, "ftz"), _take(modifiers, "sat")

        def apply(a, b, c):
            return _rounded_sum(np.multiply(a, b, dtype=np.float64), c, rounding)

        return Operation(_saturate(apply) if saturate else apply, (kind,) * 3, kind, bool(ftz))
    if kind == "f64":
        _take(modifiers, "rn")
        return Operation(_fused_f64, (kind,) * 3, kind)
    if part == "wide":
        wide = f"{kind[0]}{2 * int(kind[1:])}"
        return Operation(lambda a, b, c: a.astype(DTYPES[wide]) * b + c, (kind, kind, wide), wide)
    if part == "hi":
        return Operation(lambda a, b, c: _multiply_high(a, b) + c, (kind,) * 3, kind)
    return Operation(lambda a, b, c: a * b + c, (kind,) * 3, kind)


SPLITTER = np.float64(2.0**27 + 1)  # cuts 53 bits into 26 and 26, one being in the sign


def _fused_f64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of float64 rounded once: the product as two floats, the last sum to odd."""
    product = a * b
    finite = np.isfinite(a) & np.isfinite(b)
    plain = np.where(finite & np.isinf(c), c, product + c)
    a_high, b_high = a * SPLITTER - (a * SPLITTER - a), b * SPLITTER - (b * SPLITTER - b)
    a_low, b_low = a - a_high, b - b_high
    low = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    upper, rest_of_c = exact_sum(c, low)
    upper, rest = exact_sum(product, upper)
    result = upper + to_odd(*exact_sum(rest_of_c, rest))
    # Plain arithmetic is right for these; it also knows the sign of a zero.
    simple = ~finite | ~np.isfinite(c) | (a == 0) | (b == 0)
    result = np.where(simple | (result == 0), plain, result)
    extreme = ~simple & ~(_in_reach(a) & _in_reach(b) & _in_reach(product) & _in_reach(c))
    if extreme.any():
        sources = np.broadcast_arrays(a, b, c)
        for place in np.flatnonzero(extreme):
            result[place] = _fused_exactly(*(float(source[place]) for source in sources))
    return result


def _in_reach(values: np.ndarray) -> np.ndarray:
    """Whether no step of `_fused_f64` can overflow or lose bits to the smallest exponent."""
    sizes = np.abs(values)
    return (sizes > 2.0**-900) & (sizes < 2.0**900) | (values == 0)


def _fused_exactly(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(exact) if exact else a * b + c
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _integer_division(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Truncating division; by zero gives all ones, as current GPUs do."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = (a - np.fmod(a, safe)) // safe
    return np.where(b == 0, ~np.zeros_like(b), quotient)


def _integer_remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, b.dtype.type(1), b)))


@opcode("div")
def _div(modifiers: list[str]) -> Operation:
    _take(modifiers, "approx", "full")
    if _is_float(modifiers[-1]):
        return _arithmetic(np.divide)(modifiers)
    kind = _kind(modifiers)
    return Operation(_integer_division, (kind, kind), kind)


@opcode("rem")
def _rem(modifiers: list[str]) -> Operation:
    kind = _kind(modifiers)
    return Operation(_integer_remainder, (kind, kind), kind)


def _extremum(quiet: Callable, propagating: Callable):
    """fp max and min ignore one NaN (IEEE 754-2008 maxNum) unless .NaN asks to keep it."""

    def build(modifiers: list[str]) -> Operation:
        kind = _kind(modifiers)
        function = propagating if _take(modifiers, "NaN") or not _is_float(kind) else quiet
        return Operation(function, (kind, kind), kind, bool(_take(modifiers, "ftz")))

    return build


OPCODES["max"] = _extremum(np.fmax, np.maximum)
OPCODES["min"] = _extremum(np.fmin, np.minimum)


def _unary(function: Callable, f32_only: bool = False):
    def build(modifiers: list[str]) -> Operation:
        kind = _kind(modifiers)
        ftz = bool(_take(modifiers, "ftz"))
        if _is_float(kind):
            _take(modifiers, "approx", "rn")
        elif f32_only:
            raise KeyError(kind)
        return Operation(function, (kind,), kind, ftz)

    return build


def _through_float64(function: Callable) -> Callable:
    return lambda a: function(a.astype(np.float64)).astype(a.dtype)


OPCODES["abs"] = _unary(np.abs)
OPCODES["neg"] = _unary(np.negative)
OPCODES["ex2"] = _unary(_through_float64(np.exp2), f32_only=True)
OPCODES["lg2"] = _unary(_through_float64(np.log2), f32_only=True)
OPCODES["sin"] = _unary(_through_float64(np.sin), f32_only=True)
OPCODES["cos"] = _unary(_through_float64(np.cos), f32_only=True)
OPCODES["tanh"] = _unary(_through_float64(np.tanh), f32_only=True)
OPCODES["sqrt"] = _unary(np.sqrt, f32_only=True)
OPCODES["rsqrt"] = _unary(_through_float64(lambda a: 1.0 / np.sqrt(a)), f32_only=True)


@opcode("rcp")
def _rcp(modifiers: list[str]) -> Operation:
    if modifiers == ["approx", "ftz", "f64"]:  # of the upper 32 bits, to the upper 32 bits
        modifiers.clear()
        return Operation(_coarse_reciprocal, ("f64",), "f64")
    return _unary(lambda a: a.dtype.type(1) / a, f32_only=True)(modifiers)


def _coarse_reciprocal(a: np.ndarray) -> np.ndarray:
    upper = np.uint64(0xFFFFFFFF00000000)
    normal = np.where(np.abs(a) < SMALLEST_F64, np.copysign(0.0, a), a)
    result = 1.0 / (normal.view(np.uint64) & upper).view(np.float64)
    result = np.where(np.abs(result) < SMALLEST_F64, np.copysign(0.0, result), result)
    coarse = (result.view(np.uint64) & upper).view(np.float64)
    return np.where(np.isnan(a), a, coarse)


SMALLEST_F64 = 2.0**-1022  # normal


@opcode("sad")
def _sad(modifiers: list[str]) -> Operation:
    kind = _kind(modifiers)
    if _is_float(kind):
        raise KeyError(kind)
    return Operation(
        lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c.view(a.dtype), (kind,) * 3, kind
    )


@opcode("dp4a")
def _dp4a(modifiers: list[str], part: str = "") -> Operation:
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

    return Operation(apply, (first, second, result), result)


@opcode("dp2a")
def _dp2a(modifiers: list[str]) -> Operation:
    return _dp4a(modifiers, {"lo": "lo", "hi": "hi"}[_take(modifiers, "lo", "hi")])


@opcode("copysign")
def _copysign(modifiers: list[str]) -> Operation:
    kind = _kind(modifiers)  # copysign d, a, b: the sign of a on the magnitude of b
    return Operation(lambda a, b: np.copysign(b, a), (kind, kind), kind)


# ---- logic and bits ---------------------------------------------------------------------------


def _same_type(function: Callable, count: int):
    def build(modifiers: list[str]) -> Operation:
        kind = _kind(modifiers)
        return Operation(function, (kind,) * count, kind)

    return build


OPCODES["and"] = _same_type(np.bitwise_and, 2)
OPCODES["or"] = _same_type(np.bitwise_or, 2)
OPCODES["xor"] = _same_type(np.bitwise_xor, 2)
OPCODES["not"] = _same_type(np.invert, 1)
OPCODES["cnot"] = _same_type(lambda a: (a == 0).astype(a.dtype), 1)


def _shift(function: Callable):
    def build(modifiers: list[str]) -> Operation:
        kind = _kind(modifiers)  # numpy shifts all bits out from the width on, as PTX does
        width = np.uint32(int(kind[1:]))
        return Operation(
            lambda a, n: function(a, np.minimum(n, width).astype(a.dtype)), (kind, "u32"), kind
        )

    return build


OPCODES["shl"] = _shift(np.left_shift)
OPCODES["shr"] = _shift(np.right_shift)


@opcode("shf")
def _funnel_shift(modifiers: list[str]) -> Operation:
    direction = _take(modifiers, "l", "r")
    wrap = _take(modifiers, "wrap", "clamp") == "wrap"
    _kind(modifiers)

    def apply(low, high, amount):
        count = (amount & np.uint32(31) if wrap else np.minimum(amount, 32)).astype(np.uint64)
        both = high.astype(np.uint64) << np.uint64(32) | low
        shifted = both << count >> np.uint64(32) if direction == "l" else both >> count
        return shifted.astype(np.uint32)

    return Operation(apply, ("b32", "b32", "u32"), "b32")


@opcode("lop3")
def _lop3(modifiers: list[str]) -> Operation:
    _take(modifiers, "b32")

    def apply(a, b, c, table):
        result = np.zeros_like(a)
        for entry in range(8):  # bit k of the table answers for (a, b, c) = the bits of k
            if int(table[0]) >> entry & 1:
                result = result | (
                    (a if entry & 4 else ~a) & (b if entry & 2 else ~b) & (c if entry & 1 else ~c)
                )
        return result

    return Operation(apply, ("b32", "b32", "b32", "u32"), "b32")


@opcode("popc")
def _popc(modifiers: list[str]) -> Operation:
    kind = _kind(modifiers)
    return Operation(lambda a: _bits(a).sum(axis=0, dtype=np.uint32), (kind,), "u32")


@opcode("clz")
def _clz(modifiers: list[str]) -> Operation:
    kind = _kind(modifiers)
    width = int(kind[1:])
    return Operation(lambda a: np.uint32(width) - _bit_length(a), (kind,), "u32")


@opcode("bfind")
def _bfind(modifiers: list[str]) -> Operation:
    shift_amount = _take(modifiers, "shiftamt")
    kind = _kind(modifiers)

    def apply(a):
        magnitude = np.where(a < 0, ~a, a) if kind[0] == "s" else a
        found = _bit_length(magnitude.view(f"uint{kind[1:]}")) - np.uint32(1)  # none: 0xffffffff
        distance = np.uint32(int(kind[1:]) - 1) - found
        return np.where(found == 0xFFFFFFFF, found, distance) if shift_amount else found

    return Operation(apply, (kind,), "u32")


@opcode("brev")
def _brev(modifiers: list[str]) -> Operation:
    kind = _kind(modifiers)

    def apply(a):
        result = np.zeros_like(a)
        for bit in _bits(a):
            result = result << a.dtype.type(1) | bit
        return result

    return Operation(apply, (kind,), kind)


def _bits(a: np.ndarray) -> np.ndarray:
    """Shape (width, threads): bit k of every value in row k."""
    width = 8 * a.dtype.itemsize
    places = np.arange(width, dtype=a.dtype)[:, None]
    return a[None, :] >> places & a.dtype.type(1)


def _bit_length(a: np.ndarray) -> np.ndarray:
    weights = np.arange(1, 8 * a.dtype.itemsize + 1, dtype=np.uint32)[:, None]
    return (_bits(a).astype(np.uint32) * weights).max(axis=0)


@opcode("bfe")
def _bfe(modifiers: list[str]) -> Operation:
    kind = _kind(modifiers)
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

    return Operation(apply, (kind, "u32", "u32"), kind)


@opcode("bfi")
def _bfi(modifiers: list[str]) -> Operation:
    kind = _kind(modifiers)
    width = int(kind[1:])

    def apply(field, base, start, length):
        one = base.dtype.type(1)
        start = np.minimum(start & np.uint32(255), width).astype(base.dtype)
        length = np.minimum(length & np.uint32(255), width).astype(base.dtype)
        mask = ((one << length) - one) << start
        return base & ~mask | field << start & mask

    return Operation(apply, (kind, kind, "u32", "u32"), kind)


@opcode("prmt")
def _prmt(modifiers: list[str]) -> Operation:
    _take(modifiers, "b32")

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

    return Operation(apply, ("b32", "b32", "b32"), "b32")


# ---- comparison and selection -----------------------------------------------------------------


def _ordered(function: Callable) -> Callable:
    return lambda a, b: function(a, b) & (a == a) & (b == b)


def _or_nan(function: Callable) -> Callable:
    return lambda a, b: function(a, b) | (a != a) | (b != b)


COMPARISONS: dict[str, Callable] = {
    "eq": np.equal,
    "ne": _ordered(np.not_equal),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "equ": _or_nan(np.equal),
    "neu": np.not_equal,
    "ltu": _or_nan(np.less),
    "leu": _or_nan(np.less_equal),
    "gtu": _or_nan(np.greater),
    "geu": _or_nan(np.greater_equal),
    "num": lambda a, b: (a == a) & (b == b),
    "nan": lambda a, b: (a != a) | (b != b),
}


def _comparison(modifiers: list[str]) -> tuple[str, bool, Callable, tuple[str, ...]]:
    """Kind, .ftz, comparison and types of the sources, for setp and set."""
    kind = _kind(modifiers)
    ftz = bool(_take(modifiers, "ftz"))
    compare = COMPARISONS[modifiers.pop(0)]
    if PAIRS.get(kind, kind) in HALVES:
        compare = _on_halves(compare, PAIRS.get(kind, kind), ftz)
    joined = _take(modifiers, "and", "or", "xor")
    return kind, ftz, compare, JOINS[joined], (kind, kind, "pred") if joined else (kind, kind)


JOINS: dict[str, Callable] = {
    "": lambda compared: compared,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


@opcode("setp")
def _setp(modifiers: list[str]) -> Operation:
    kind, ftz, compare, join, sources = _comparison(modifiers)
    return Operation(
        lambda a, b, *c: join(compare(a, b), *c),
        sources,
        "pred",
        ftz,
        lambda a, b, *c: join(~compare(a, b), *c),
    )


@opcode("set")
def _set(modifiers: list[str]) -> Operation:
    """All ones, or 1.0 if the result is a float, where the comparison holds; else zero."""
    result = modifiers.pop(-2)
    kind, ftz, compare, join, sources = _comparison(modifiers)
    if result not in ("u32", "s32", "f32"):
        raise KeyError(result)
    true = DTYPES[result].type(1 if result == "f32" else -1 if result == "s32" else 2**32 - 1)

    def apply(a, b, *c):
        return np.where(join(compare(a, b), *c), true, DTYPES[result].type(0))

    return Operation(apply, sources, result, ftz)


@opcode("selp")
def _selp(modifiers: list[str]) -> Operation:
    kind = _kind(modifiers)
    return Operation(lambda a, b, p: np.where(p, a, b), (kind, kind, "pred"), kind)


@opcode("slct")
def _slct(modifiers: list[str]) -> Operation:
    selector, kind = modifiers.pop(), modifiers.pop()
    above = -TINY if _take(modifiers, "ftz") else None  # .ftz is about the selector alone

    def apply(a, b, c):
        return np.where(c >= 0 if above is None else c > above, a, b)

    return Operation(apply, (kind, kind, selector), kind)


@opcode("testp")
def _testp(modifiers: list[str]) -> Operation:
    kind = _kind(modifiers)
    smallest = np.finfo(DTYPES[kind]).smallest_normal
    test = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & ((np.abs(a) >= smallest) | (a == 0)),
        "subnormal": lambda a: (np.abs(a) < smallest) & (a != 0),
    }[modifiers.pop()]
    return Operation(test, (kind,), "pred")


# ---- conversion -------------------------------------------------------------------------------


@opcode("mov")
def _mov(modifiers: list[str]) -> Operation:
    kind = _kind(modifiers)
    return Operation(lambda a: a, (kind,), kind)


@opcode("cvta")
def _cvta(modifiers: list[str]) -> Operation:
    _take(modifiers, "to")  # one address space: generic and global addresses are the same number
    _take(modifiers, "global")
    kind = _kind(modifiers)
    return Operation(lambda a: a, (kind,), kind)


@opcode("cvt")
def _cvt(modifiers: list[str]) -> Operation:
    source, result = modifiers.pop(), modifiers.pop()
    rounding = _take(modifiers, "rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi")
    ftz, saturate = bool(_take(modifiers, "ftz")), bool(_take(modifiers, "sat"))
    to = DTYPES[result]
    if _is_float(source) and _is_float(result):
        to_integer = ROUND_TO_INTEGER.get(rounding, lambda a: a)
        if rounding in ("rz", "rm", "rp") and (source, result) == ("f64", "f32"):

            def apply(a):
                return round_to(a, np.float32, rounding)
        else:

            def apply(a):
                return to_integer(a).astype(to)

        apply = _saturate(apply) if saturate else apply
    elif _is_float(source):
        apply = _to_integer(to, rounding, DTYPES[source].itemsize == 8)
    elif _is_float(result):
        if rounding not in (DIRECTIONS if result == "f32" else ("rn",)):
            raise KeyError(rounding)
        if rounding == "rn":

            def apply(a):
                return a.astype(to)
        else:

            def apply(a):
                return _rounded_sum(*_integer_parts(a), rounding)

        apply = _saturate(apply) if saturate else apply
    elif saturate:
        limits = np.iinfo(to)

        def apply(a):
            low = max(int(limits.min), int(np.iinfo(a.dtype).min))
            high = min(int(limits.max), int(np.iinfo(a.dtype).max))
            return np.clip(a, a.dtype.type(low), a.dtype.type(high)).astype(to)
    else:

        def apply(a):
            return a.astype(to)

    return Operation(apply, (source,), result, ftz)


DIRECTIONS = ("rn", "rz", "rm", "rp")
ROUND_TO_INTEGER: dict[str, Callable] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def _to_integer(to: np.dtype, rounding: str, from_64_bits: bool) -> Callable:
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


def _integer_parts(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two float64 numbers whose sum an integer is."""
    whole = a.astype(f"{a.dtype.kind}8")
    low = whole & whole.dtype.type(0xFFFFFFFF)
    return (whole - low).astype(np.float64), low.astype(np.float64)


# ---- 16-bit floats, and pairs of 16-bit values ------------------------------------------------


def _on_halves(function: Callable, base: str, ftz: bool) -> Callable:
    """A function of 16-bit floats from one of fp32 numbers."""
    tiny = TINIEST if base == "f16" else TINY

    def apply(*sources):
        wide = [widen(source, base) for source in sources]
        return function(*(flush(one, tiny) for one in wide) if ftz else wide)

    return apply


def _half_operation(
    function: Callable, kind: str, count: int, ftz: bool = False, finish: Callable | None = None
) -> Operation:
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

    return _for_each_half(_on_halves(rounded, base, ftz), kind, count)


def _for_each_half(function: Callable, kind: str, count: int) -> Operation:
    if kind in PAIRS:
        function = in_pairs(function, DTYPES[PAIRS[kind]])
    return Operation(function, (kind,) * count, kind)


def _half_arithmetic(function: Callable, count: int):
    def build(modifiers: list[str]) -> Operation:
        kind = _kind(modifiers)
        if kind in ("u16x2", "s16x2"):
            if function is not np.add:
                raise KeyError(kind)
            return _for_each_half(np.add, kind, 2)
        if not _take(modifiers, "rn") and count == 3:
            raise KeyError("rn")
        is_f16 = PAIRS.get(kind, kind) == "f16"
        ftz = is_f16 and bool(_take(modifiers, "ftz"))
        finish = None
        if is_f16 and _take(modifiers, "sat"):
            finish = _saturate(lambda a: a)
        elif count == 3 and _take(modifiers, "relu"):
            finish = _not_negative
        return _half_operation(function, kind, count, ftz, finish)

    return build


def _not_negative(values: np.ndarray) -> np.ndarray:
    """.relu: negative values and -0 to 0; NaN stays."""
    return np.where(values <= 0, values.dtype.type(0), values)


# fp32 has more than twice the bits: rounding a sum or a product to it on the way changes nothing.
HALF_OPCODES["add"] = _half_arithmetic(np.add, 2)
HALF_OPCODES["sub"] = _half_arithmetic(np.subtract, 2)
HALF_OPCODES["mul"] = _half_arithmetic(np.multiply, 2)
HALF_OPCODES["fma"] = _half_arithmetic(multiply_add, 3)


def _half_extremum(quiet: Callable, propagating: Callable):
    def build(modifiers: list[str]) -> Operation:
        relu = bool(_take(modifiers, "relu"))  # NVRTC writes it behind the type
        kind = _kind(modifiers)
        if relu and kind != "s16x2":
            raise KeyError(kind)
        if kind in ("u16x2", "s16x2"):
            function = (lambda a, b: _not_negative(propagating(a, b))) if relu else propagating
            return _for_each_half(function, kind, 2)
        ftz = PAIRS.get(kind, kind) == "f16" and bool(_take(modifiers, "ftz"))
        function = propagating if _take(modifiers, "NaN") else quiet
        return _half_operation(function, kind, 2, ftz)

    return build


HALF_OPCODES["max"] = _half_extremum(np.fmax, np.maximum)
HALF_OPCODES["min"] = _half_extremum(np.fmin, np.minimum)


def _half_sign(function: Callable):
    def build(modifiers: list[str]) -> Operation:
        kind = _kind(modifiers)
        if PAIRS.get(kind, kind) not in HALVES:
            raise KeyError(kind)
        return _half_operation(function, kind, 1)

    return build


HALF_OPCODES["neg"] = _half_sign(np.negative)
HALF_OPCODES["abs"] = _half_sign(np.abs)


@opcode("ex2", table=HALF_OPCODES)
def _half_ex2(modifiers: list[str]) -> Operation:
    kind = _kind(modifiers)
    ftz = bool(_take(modifiers, "ftz"))
    if not _take(modifiers, "approx") or ftz != (PAIRS.get(kind, kind) == "bf16"):
        raise KeyError(kind)
    return _half_operation(lambda a: np.exp2(a.astype(np.float64)), kind, 1, ftz)


@opcode("tanh", table=HALF_OPCODES)
def _half_tanh(modifiers: list[str]) -> Operation:
    kind = _kind(modifiers)
    if not _take(modifiers, "approx"):
        raise KeyError(kind)
    return _half_operation(lambda a: np.tanh(a.astype(np.float64)), kind, 1)


@opcode("setp", table=HALF_OPCODES)
def _half_setp(modifiers: list[str]) -> Operation:
    if modifiers[-1] not in PAIRS:
        return _setp(modifiers)
    # The first target is about the lower halves, the second about the upper.
    kind, _, compare, join, sources = _comparison(modifiers)
    dtype = DTYPES[PAIRS[kind]]
    low, high = (
        lambda a, b, *c, half=half: join(compare(split(a, dtype), split(b, dtype))[:, half], *c)
        for half in (0, 1)
    )
    return Operation(low, sources, "pred", complement=high)


@opcode("set", table=HALF_OPCODES)
def _half_set(modifiers: list[str]) -> Operation:
    """As `set`; of pairs, each half of the result is about that half of the sources."""
    result = modifiers.pop(-2)
    kind, _, compare, join, sources = _comparison(modifiers)
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
        return Operation(lambda *s: apply(*s).view(DTYPES[result]), sources, result)
    part = DTYPES[PAIRS[kind]]

    def both(a, b, *c):
        found = apply(split(a, part), split(b, part), *c)
        return found.view(np.uint32).reshape(-1).view(DTYPES[result])

    return Operation(both, sources, result)


@opcode("cvt", table=HALF_OPCODES)
def _half_cvt(modifiers: list[str]) -> Operation:
    source, result = modifiers.pop(), modifiers.pop()
    rounding = _take(modifiers, *DIRECTIONS, *ROUND_TO_INTEGER)
    ftz, saturate = bool(_take(modifiers, "ftz")), bool(_take(modifiers, "sat"))
    relu = bool(_take(modifiers, "relu"))
    finish = _saturate(lambda a: a) if saturate else _not_negative if relu else lambda a: a
    if relu and (source != "f32" or saturate or rounding not in ("rn", "rz")):
        raise KeyError(source)
    if (ftz and "f32" not in (source, result)) or (saturate and "bf16" in (source, result)):
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

        return Operation(pack, ("f32", "f32"), result, ftz)
    if result in HALVES:
        return _cvt_to_half(source, result, rounding, finish, ftz)
    if source not in HALVES:
        raise KeyError(source)
    if _is_float(result):
        if rounding:
            raise KeyError(rounding)
        to = DTYPES[result]
        return Operation(lambda a: finish(widen(a, source)).astype(to), (source,), result, ftz)
    convert = _to_integer(DTYPES[result], rounding, False)
    return Operation(lambda a: convert(widen(a, source)), (source,), result, ftz)


def _cvt_to_half(source: str, result: str, rounding: str, finish: Callable, ftz: bool) -> Operation:
    if source == result:
        if rounding in DIRECTIONS:
            raise KeyError(rounding)
        to_integer = ROUND_TO_INTEGER.get(rounding, lambda a: a)
        return Operation(
            lambda a: narrow(finish(to_integer(widen(a, source))), result), (source,), result
        )
    if rounding not in DIRECTIONS:
        raise KeyError(rounding)

    def apply(a):
        if source in HALVES:
            a = widen(a, source)
        elif not _is_float(source):
            a = to_odd(*exact_sum(*_integer_parts(a)))
        return narrow(finish(a), result, rounding)

    return Operation(apply, (source,), result, ftz)
