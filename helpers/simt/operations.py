"""What each arithmetic PTX opcode computes, as numpy functions.

To add an opcode, write a function that takes the instruction's modifiers and returns an
`Operation`, and decorate it with `@opcode("name")`. The last modifier of most opcodes is the type
("f32", "s64"), which is also how the bits of the sources are read. Sources arrive as arrays of
that type (shape `(threads,)`, or `(1,)` if the value is the same in every thread); the result is
an array of the same kind. Semantics follow the PTX ISA manual, section 9.7, with these limits:
`.approx` functions are correctly rounded here and up to 2 ulp off on the hardware, a fused
multiply-add to nearest goes through float64 (a double rounding in about one case in 2^29) and is
two operations for float64 itself, `.ftz` looks at a result after rounding (the hardware before),
and max or min of +0 and -0 may give either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .parse import UnsupportedPTX

DTYPES = {
    "pred": np.dtype(bool),
    **{f"b{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
TINY = np.float32(2.0**-126)  # the smallest normal fp32


@dataclass(frozen=True)
class Operation:
    apply: Callable[..., np.ndarray]
    sources: tuple[str, ...]  # PTX type of each source
    result: str  # PTX type of the result
    flush: bool = False  # .ftz: subnormal fp32 sources and results count as zero
    complement: Callable[..., np.ndarray] | None = None  # what a second target gets (setp)


OPCODES: dict[str, Callable[[list[str]], Operation]] = {}


def opcode(*names: str):
    def register(builder):
        for name in names:
            OPCODES[name] = builder
        return builder

    return register


def find_operation(name: str, modifiers: tuple[str, ...]) -> Operation:
    """Return the operation of an opcode; raises `UnsupportedPTX` if there is none."""
    written = ".".join((name, *modifiers))
    if name not in OPCODES:
        raise UnsupportedPTX(f"the SIMT machine does not know the opcode {written!r}")
    remaining = list(modifiers)
    try:
        operation = OPCODES[name](remaining)
        types = [DTYPES[kind] for kind in (*operation.sources, operation.result)]
        assert types
    except (KeyError, IndexError):
        raise UnsupportedPTX(f"the SIMT machine does not know this form of {written!r}") from None
    if remaining:
        unknown = ", ".join(f".{item}" for item in remaining)
        raise UnsupportedPTX(f"the SIMT machine does not know {unknown} in {written!r}")
    return operation


def flush(values: np.ndarray) -> np.ndarray:
    """Subnormal fp32 values to zero of the same sign (-ftz=true)."""
    return values * (np.abs(values) >= TINY)


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


def round_to_f32(exact: np.ndarray, rounding: str, rest: np.ndarray | float = 0.0) -> np.ndarray:
    """Round float64 values to fp32 in one of PTX's directions: rn, rz, rm (down), rp (up).

    `rest` is what a value lacks to be exact, less than half of its last bit.
    """
    nearest = exact.astype(np.float32)
    if rounding == "rn":
        return nearest
    back = nearest.astype(np.float64)
    result = nearest
    if rounding in ("rm", "rz"):
        too_high = (back > exact) | (back == exact) & (rest < 0)
        too_high = too_high if rounding == "rm" else too_high & (back > 0)
        result = np.where(too_high, np.nextafter(nearest, np.float32(-np.inf)), result)
    if rounding in ("rp", "rz"):
        too_low = (back < exact) | (back == exact) & (rest > 0)
        too_low = too_low if rounding == "rp" else too_low & (back < 0)
        result = np.where(too_low, np.nextafter(nearest, np.float32(np.inf)), result)
    return result


def _rounded_sum(a: np.ndarray, b: np.ndarray, rounding: str) -> np.ndarray:
    """The sum of float64 values in fp32, as if it had been exact before rounding."""
    if rounding == "rn":
        return (a + b).astype(np.float32)
    total = -(-a - b) if rounding == "rm" else a + b  # rounding down, 1 - 1 is -0
    part = total - a
    return round_to_f32(total, rounding, (a - (total - part)) + (b - part))


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
        kind = _kind(modifiers)
        if not _is_float(kind):
            return Operation(function, (kind, kind), kind)
        rounding = _take(modifiers, "rn", "rz", "rm", "rp") or "rn"
        ftz, saturate = _take(modifiers, "ftz"), _take(modifiers, "sat")
        apply = function
        if rounding != "rn":
            if kind != "f32":
                raise KeyError(kind)

            def apply(a, b):
                a, b = a.astype(np.float64), b.astype(np.float64)
                if function in (np.add, np.subtract):
                    return _rounded_sum(a, b if function is np.add else -b, rounding)
                return round_to_f32(function(a, b), rounding)

        return Operation(_saturate(apply) if saturate else apply, (kind, kind), kind, bool(ftz))

    return build


OPCODES["add"] = _arithmetic(np.add)
OPCODES["sub"] = _arithmetic(np.subtract)


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


@opcode("fma", "mad")
def _fma(modifiers: list[str]) -> Operation:
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
        return Operation(lambda a, b, c: a * b + c, (kind,) * 3, kind)
    if part == "wide":
        wide = f"{kind[0]}{2 * int(kind[1:])}"
        return Operation(lambda a, b, c: a.astype(DTYPES[wide]) * b + c, (kind, kind, wide), wide)
    if part == "hi":
        return Operation(lambda a, b, c: _multiply_high(a, b) + c, (kind,) * 3, kind)
    return Operation(lambda a, b, c: a * b + c, (kind,) * 3, kind)


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
OPCODES["rcp"] = _unary(lambda a: a.dtype.type(1) / a, f32_only=True)
OPCODES["rsqrt"] = _unary(_through_float64(lambda a: 1.0 / np.sqrt(a)), f32_only=True)


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


@opcode("setp")
def _setp(modifiers: list[str]) -> Operation:
    kind = _kind(modifiers)
    ftz = bool(_take(modifiers, "ftz"))
    compare = COMPARISONS[modifiers.pop(0)]
    combine = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
    joined = _take(modifiers, *combine)
    if not joined:
        return Operation(compare, (kind, kind), "pred", ftz, lambda a, b: ~compare(a, b))
    return Operation(
        lambda a, b, c: combine[joined](compare(a, b), c),
        (kind, kind, "pred"),
        "pred",
        ftz,
        lambda a, b, c: combine[joined](~compare(a, b), c),
    )


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
                return round_to_f32(a, rounding)
        else:

            def apply(a):
                return to_integer(a).astype(to)

        apply = _saturate(apply) if saturate else apply
    elif _is_float(source):
        # Float to integer always clamps; NaN becomes 0, or the top bit if a side has 64 bits.
        low, high = float(np.iinfo(to).min), float(np.iinfo(to).max)
        to_integer = ROUND_TO_INTEGER[rounding]
        has_64_bits = DTYPES[source].itemsize == 8 or to.itemsize == 8
        nan = np.array(
            1 << 8 * to.itemsize - 1 if has_64_bits else 0, f"uint{8 * to.itemsize}"
        ).view(to)

        def apply(a):
            whole = to_integer(a.astype(np.float64))
            inside = np.where((whole > low) & (whole < high), whole, 0).astype(to)
            top, bottom = np.iinfo(to).max, np.iinfo(to).min
            result = np.where(
                whole >= high, to.type(top), np.where(whole <= low, to.type(bottom), inside)
            )
            return np.where(np.isnan(a), nan, result)

    elif _is_float(result):
        if rounding not in (("rn", "rz", "rm", "rp") if result == "f32" else ("rn",)):
            raise KeyError(rounding)
        if rounding == "rn":

            def apply(a):
                return a.astype(to)
        else:

            def apply(a):
                whole = a.astype(f"{a.dtype.kind}8")
                low = whole & whole.dtype.type(0xFFFFFFFF)
                high = whole - low  # both halves are exact in float64
                return _rounded_sum(high.astype(np.float64), low.astype(np.float64), rounding)

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


ROUND_TO_INTEGER: dict[str, Callable] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
