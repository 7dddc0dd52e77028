"""Forms of 16-bit floats and of pairs, against exact fractions."""

import itertools
import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from tests.simt.ptx_forms import F32_TO_INTEGER, Form, edges

NAN = 0x7FFF  # whatever NaN came in
INFINITY = math.inf


@dataclass(frozen=True)
class Format:
    digits: int  # with the leading one
    lowest: int  # exponent of the smallest normal number
    infinity: int  # its bits

    @property
    def tiny(self) -> float:
        return 2.0**self.lowest


FORMATS = {"f16": Format(11, -14, 0x7C00), "bf16": Format(8, -126, 0x7F80)}
DIRECTIONS = ("rn", "rz", "rm", "rp")


def unpack(bits: int, base: str) -> float:
    """The number of 16 bits."""
    form = FORMATS[base]
    size, sign = bits & 0x7FFF, -1.0 if bits & 0x8000 else 1.0
    if size >= form.infinity:
        return math.nan if size > form.infinity else sign * INFINITY
    exponent, fraction = divmod(size, 1 << form.digits - 1)
    steps = fraction + (1 << form.digits - 1 if exponent else 0)
    return sign * math.ldexp(steps, form.lowest - form.digits + max(exponent, 1))


def pack(number: float | Fraction, base: str, direction: str = "rn") -> int:
    """The 16 bits next to a number, in one of PTX's four directions."""
    form = FORMATS[base]
    if number != number:
        return NAN
    sign = 0x8000 if number < 0 or number == 0 and math.copysign(1, number) < 0 else 0
    if number in (0, INFINITY, -INFINITY):
        return sign | (form.infinity if number else 0)
    size = abs(Fraction(number))
    place = size.numerator.bit_length() - size.denominator.bit_length() - form.digits
    smallest = form.lowest - form.digits + 1
    place = max(place, smallest)
    while size >= Fraction(2) ** (place + form.digits):
        place += 1
    steps, rest = divmod(size, Fraction(2) ** place)
    if direction == "rn":
        half = Fraction(2) ** (place - 1)
        steps += rest > half or rest == half and steps % 2 == 1
    elif direction == ("rm" if sign else "rp"):
        steps += rest > 0
    bits = (place - smallest << form.digits - 1) + steps
    if bits >= form.infinity:
        outwards = direction in ("rn", "rm" if sign else "rp")
        bits = form.infinity if outwards else form.infinity - 1
    return sign | bits


# ---- cases --------------------------------------------------------------------------------------


def halves(base: str) -> list[int]:
    """Bits that operations get wrong: limits, ties with one another, NaN; and random ones."""
    form, chance = FORMATS[base], random.Random(base)
    one = pack(1.0, base)
    ulp, normal = 2.0 ** (1 - form.digits), 1 << form.digits - 1
    found = [0, 1, 2, normal - 1, normal, normal + 1]
    found += [one - 1, one, one + 1, one + 2, form.infinity - 1, form.infinity, form.infinity + 1]
    numbers = (
        1.5,
        2.0,
        0.5,
        2.5,
        ulp / 2,
        ulp,
        3 * ulp / 2,
        form.tiny / 2,
        1 / ulp,
        2 / ulp,
        100.0,
    )
    found += [pack(number, base) for number in numbers]
    found += [chance.getrandbits(15) for _ in range(12)]
    return [sign | bits for bits in found for sign in (0, 0x8000)]


PAIR_OF = {"f16": "f16x2", "bf16": "bf16x2"}


def given(form: Form) -> list[tuple[int, ...]]:
    """100 cases, their values taken from the form's choices; ties and what decides them first."""
    chance = random.Random(str(form))
    found = []
    if ".f16" in form.ptx or ".bf16" in form.ptx:
        base = "bf16" if ".bf16" in form.ptx else "f16"
        one, near = pack(1.5, base), pack(1 + 2.0 ** (1 - FORMATS[base].digits), base)
        # 1.5 (1 + ulp) is halfway between two numbers. Far too small a number decides.
        found = [(one, near, sign | small) for sign in (0, 0x8000) for small in (0, 1, 2, 0x100)]
        found = [
            tuple(
                bits << 16 | bits if kind == "b32" else bits
                for bits, kind in zip(case, form.sources, strict=True)
            )
            for case in found
            if len(form.sources) == 3 and "pred" not in form.sources
        ]
    while len(found) < 100:
        found.append(
            tuple(
                chance.choice(column) | (chance.choice(column) << 16 if pair else 0)
                for column, pair in zip(form.choices, pairs_of(form), strict=True)
            )
        )
    return found


def pairs_of(form: Form) -> list[bool]:
    """Which sources are two 16-bit values."""
    last = form.ptx.removesuffix(".relu").split(".")[-1]
    return [kind == "b32" and last.endswith("x2") for kind in form.sources]


FORMS: list[Form] = []


def add(ptx: str, sources: str, result: str, expect: Callable, choices: list, **more) -> None:
    kinds = tuple(sources.split())
    columns = tuple([0, 1] if kind == "pred" else choices for kind in kinds)
    FORMS.append(Form(ptx, kinds, result, expect, choices=columns, **more))


def add_both(ptx: str, base: str, count: int, expect: Callable, **more) -> None:
    """The form for one value, and that for pairs; `{}` stands for the type."""
    add(ptx.format(base), "b16 " * count, "b16", expect, halves(base), **more)

    def both(*pairs: int) -> int | list[int]:
        low = expect(*(pair & 0xFFFF for pair in pairs))
        high = expect(*(pair >> 16 for pair in pairs))
        found = [
            top << 16 | bottom
            for top in (high if isinstance(high, list) else [high])
            for bottom in (low if isinstance(low, list) else [low])
        ]
        return found

    add(ptx.format(PAIR_OF[base]), "b32 " * count, "b32", both, halves(base), **more)


# ---- the table: arithmetic ----------------------------------------------------------------------


def plain_or_exact(plain: float, exact: Callable[[], Fraction]) -> float | Fraction:
    """Python's floats know about infinities and the sign of zero; all else is rational. Sums and
    products of 16-bit floats are zero or infinite in fp64 only if they really are."""
    return exact() if math.isfinite(plain) and plain else plain


def total(a: float, b: float) -> float | Fraction:
    return plain_or_exact(a + b, lambda: Fraction(a) + Fraction(b))


def difference(a: float, b: float) -> float | Fraction:
    return total(a, -b)


def product(a: float, b: float) -> float | Fraction:
    return plain_or_exact(a * b, lambda: Fraction(a) * Fraction(b))


def fused(a: float, b: float, c: float) -> float | Fraction:
    return plain_or_exact(a * b + c, lambda: Fraction(a) * Fraction(b) + Fraction(c))


def flushed(number: float, tiny: float) -> float:
    return math.copysign(0.0, number) if abs(number) < tiny else number


def saturated(number: float | Fraction) -> float | Fraction:
    return min(number, 1) if number > 0 else 0.0


def not_negative(number: float | Fraction) -> float | Fraction:
    return 0.0 if number <= 0 else number


def on_bits(function: Callable, base: str, *, ftz: bool = False, finish: str = "") -> Callable:
    """A function of numbers as one of bits, with its modifiers."""
    tiny = FORMATS[base].tiny if ftz else 0.0
    finisher = {"": lambda number: number, ".sat": saturated, ".relu": not_negative}[finish]

    def apply(*sources: int) -> int:
        exact = finisher(function(*(flushed(unpack(bits, base), tiny) for bits in sources)))
        bits = pack(exact, base)
        return bits & 0x8000 if abs(unpack(bits, base)) < tiny else bits

    return apply


ARITHMETIC = {"add": (total, 2), "sub": (difference, 2), "mul": (product, 2), "fma": (fused, 3)}
for base, (name, (function, count)) in itertools.product(FORMATS, ARITHMETIC.items()):
    finishes = ("", ".sat") if base == "f16" else ("",)
    finishes += (".relu",) if count == 3 else ()
    for d, ftz, finish in itertools.product(("", ".rn"), ("", ".ftz"), finishes):
        if (ftz and base == "bf16") or (not d and count == 3):
            continue
        expect = on_bits(function, base, ftz=bool(ftz), finish=finish)
        add_both(f"{name}{d}{ftz}{finish}.{{}}", base, count, expect)


def extremes(pick: Callable, keep_nan: bool, base: str, tiny: float) -> Callable:
    """One NaN is ignored unless told otherwise; of two zeros it may be either."""

    def expect(a: int, b: int) -> int | list[int]:
        first, second = (flushed(unpack(bits, base), tiny) for bits in (a, b))
        if first != first or second != second:
            other = second if first != first else first
            return NAN if keep_nan else pack(other, base)
        if first == second:
            return [pack(first, base), pack(second, base)]
        return pack(pick(first, second), base)

    return expect


for base, (name, pick), keep in itertools.product(
    FORMATS, (("max", max), ("min", min)), ("", ".NaN")
):
    for ftz in ("", ".ftz") if base == "f16" else ("",):
        expect = extremes(pick, bool(keep), base, FORMATS[base].tiny if ftz else 0.0)
        add_both(f"{name}{ftz}{keep}.{{}}", base, 2, expect)
for base in FORMATS:
    add_both("neg.{}", base, 1, on_bits(lambda a: -a, base))
    add_both("abs.{}", base, 1, on_bits(abs, base))


def exponential(a: float) -> float:
    return a if a != a or a == INFINITY else 0.0 if a < -300 else 2.0 ** min(a, 300.0)


def tangent(a: float) -> float:
    return math.tanh(a) if a else a


for base in FORMATS:
    ftz = ".ftz" if base == "bf16" else ""
    expect = on_bits(exponential, base, ftz=bool(ftz))
    add_both(f"ex2.approx{ftz}.{{}}", base, 1, expect, ulp=1)
    add_both("tanh.approx.{}", base, 1, on_bits(tangent, base), ulp=1)


def on_integers(function: Callable, signed: bool) -> Callable:
    """A function of two 16-bit integers, for the pairs in 32 bits."""

    def expect(a: int, b: int) -> int:
        parts = [struct.unpack("<2h" if signed else "<2H", x.to_bytes(4, "little")) for x in (a, b)]
        low, high = (function(x, y) & 0xFFFF for x, y in zip(*parts, strict=True))
        return high << 16 | low

    return expect


SHORTS = [0, 1, 2, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0xFFFE, 1234, 0xABCD]
for k in ("u16x2", "s16x2"):
    add(f"add.{k}", "b32 b32", "b32", on_integers(lambda a, b: a + b, k[0] == "s"), SHORTS)
    for name, pick in (("max", max), ("min", min)):
        add(f"{name}.{k}", "b32 b32", "b32", on_integers(pick, k[0] == "s"), SHORTS)
        if k[0] == "s":
            expect = on_integers(lambda a, b, f=pick: max(f(a, b), 0), True)
            add(f"{name}.{k}.relu", "b32 b32", "b32", expect, SHORTS)


# ---- the table: comparison ----------------------------------------------------------------------


ORDER = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "num": lambda a, b: True,
    "nan": lambda a, b: False,
}
NAMES = [*ORDER, *(f"{name}u" for name in ORDER if len(name) == 2)]
JOINED = {"and": lambda t, c: t and c, "or": lambda t, c: t or c, "xor": lambda t, c: t != c}


def comparing(name: str, base: str, tiny: float = 0.0) -> Callable:
    """The comparison of two numbers given as bits; for NaN that of the unordered forms is true."""

    def expect(a: int, b: int) -> bool:
        first, second = (flushed(unpack(bits, base), tiny) for bits in (a, b))
        if first != first or second != second:
            return name == "nan" or (name not in ORDER)
        return ORDER[name if name in ORDER else name[:2]](first, second)

    return expect


def pair_mask(compare: Callable, true: int, joined: Callable | None = None) -> Callable:
    """set on pairs: `true` in each half of the result where that half's comparison holds."""

    def expect(a: int, b: int, *c: bool) -> int:
        found = [compare(a & 0xFFFF, b & 0xFFFF), compare(a >> 16, b >> 16)]
        low, high = (joined(one, *c) if joined else one for one in found)
        return (true << 16 if high else 0) | (true if low else 0)

    return expect


ONE = {"f16": 0x3C00, "bf16": 0x3F80}
for base, name in itertools.product(FORMATS, NAMES):
    compare, values, pair = comparing(name, base), halves(base), PAIR_OF[base]
    add(f"setp.{name}.{base}", "b16 b16", "pred", compare, values)
    trues = ((base, ONE[base]), ("u32", 2**32 - 1), ("s16", 0xFFFF))
    for result, true in trues:
        kind = "b16" if "16" in result else "b32"
        expect = lambda a, b, f=compare, t=true: t if f(a, b) else 0  # noqa: E731
        add(f"set.{name}.{result}.{base}", "b16 b16", kind, expect, values)
    for result, true in ((pair, ONE[base]), ("u32", 0xFFFF), ("s32", 0xFFFF)):
        add(f"set.{name}.{result}.{pair}", "b32 b32", "b32", pair_mask(compare, true), values)
for base, (join, joined) in itertools.product(FORMATS, JOINED.items()):
    compare, values, pair = comparing("ltu", base), halves(base), PAIR_OF[base]
    expect = lambda a, b, c, f=compare, g=joined: g(f(a, b), bool(c))  # noqa: E731
    add(f"setp.ltu.{join}.{base}", "b16 b16 pred", "pred", expect, values)
    expect = lambda a, b, c, f=expect: 0xFFFF if f(a, b, c) else 0  # noqa: E731
    add(f"set.ltu.{join}.u16.{base}", "b16 b16 pred", "b16", expect, values)
    expect = pair_mask(compare, ONE[base], lambda t, c, g=joined: g(t, bool(c)))
    add(f"set.ltu.{join}.{pair}.{pair}", "b32 b32 pred", "b32", expect, values)
for name in ("eq", "lt", "geu"):
    compare, values = comparing(name, "f16", FORMATS["f16"].tiny), halves("f16")
    add(f"setp.{name}.ftz.f16", "b16 b16", "pred", compare, values)
    expect = pair_mask(compare, 0x3C00)
    add(f"set.{name}.ftz.f16x2.f16x2", "b32 b32", "b32", expect, values)


# ---- the table: conversion ----------------------------------------------------------------------


def f32(bits: int) -> float:
    return struct.unpack("<f", bits.to_bytes(4, "little"))[0]


def f64(bits: int) -> float:
    return struct.unpack("<d", bits.to_bytes(8, "little"))[0]


def bits_of(number: float, kind: str) -> int:
    if kind in FORMATS:
        return pack(number, kind)
    return int.from_bytes(struct.pack({"f32": "<f", "f64": "<d"}[kind], number), "little")


def to_round(base: str, kind: str) -> list[int]:
    """fp32 or fp64 bits around the numbers and ties of a 16-bit type, and beyond its ends."""
    found, step = [], 2.0**-23 if kind == "f32" else 2.0**-52
    form = FORMATS[base]
    ulp = 2.0 ** (1 - form.digits)
    for scale in (1.0, form.tiny, form.tiny / 4, 2.0**-form.lowest, 2.0**5):
        for n in (0.5, 1, 1.5, 2, 2.5, 1 / ulp + 0.5, 1 / ulp + 1, 2 / ulp - 0.5, 2 / ulp - 1):
            found += [n * ulp * scale * (1 + more) for more in (-step, 0.0, step)]
    smallest = form.tiny * ulp
    largest = unpack(form.infinity - 1, base)
    found += [smallest / 2, smallest / 2 * (1 + step), smallest / 4, largest, largest * (1 + step)]
    found += [min(largest * (1 + ulp / 4), f32(0x7F7FFFFF)), f32(0x7F7FFFFF), INFINITY, 0.0]
    bits = [bits_of(sign * number, kind) for number in found for sign in (1.0, -1.0)]
    bits += [bits_of(math.nan, kind)]
    if kind == "f64":
        bits += [bits_of(number, kind) for number in (1e300, -1e300, 1e-300, -1e-300, 1 + 2.0**-40)]
    return bits


def whole_parts(a: float, way: str) -> float:
    to_whole = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[way]
    return math.copysign(float(to_whole(a)), a) if math.isfinite(a) else a


WAYS = ("rni", "rzi", "rmi", "rpi")
WORDS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
REGISTERS = {8: "b8", 16: "b16", 32: "b32", 64: "b64"}


def limits(kind: str) -> tuple[int, int]:
    size = int(kind[1:])
    return (-(1 << size - 1), (1 << size - 1) - 1) if kind[0] == "s" else (0, (1 << size) - 1)


def converted(a: float, kind: str, way: str) -> int:
    """The bits of the clamped integer; NaN is zero, or the top bit of 64."""
    size, (low, high) = int(kind[1:]), limits(kind)
    if a != a:
        return 1 << 63 if size == 64 else 0
    if math.isinf(a):
        number = high if a > 0 else low
    else:
        number = max(low, min(high, int(whole_parts(a, way))))
    return number & (1 << size) - 1


def as_integer(bits: int, kind: str) -> int:
    size = int(kind[1:])
    bits &= (1 << size) - 1
    return bits - (1 << size) if kind[0] == "s" and bits >> size - 1 else bits


for base in FORMATS:
    for (kind, number), d in itertools.product((("f32", f32), ("f64", f64)), DIRECTIONS):
        values = to_round(base, kind)
        finishes = (".sat",) if base == "f16" else ()
        finishes += (".relu",) if kind == "f32" and d in ("rn", "rz") else ()
        for finish in ("", *finishes):
            finisher = {"": lambda x: x, ".sat": saturated, ".relu": not_negative}[finish]
            expect = lambda a, b=base, d=d, g=finisher, n=number: pack(g(n(a)), b, d)  # noqa: E731
            add(f"cvt.{d}{finish}.{base}.{kind}", f"b{kind[1:]}", "b16", expect, values)
    expect = lambda a, b=base: pack(flushed(f32(a), 2.0**-126), b)  # noqa: E731
    add(f"cvt.rn.ftz.{base}.f32", "b32", "b16", expect, [*to_round(base, "f32"), *edges("f32")])
    for d, finish in itertools.product(("rn", "rz"), ("", ".relu")):
        finisher = not_negative if finish else lambda x: x
        expect = lambda a, b, t=base, d=d, g=finisher: (  # noqa: E731
            pack(g(f32(a)), t, d) << 16 | pack(g(f32(b)), t, d)
        )
        ptx = f"cvt.{d}{finish}.{PAIR_OF[base]}.f32"
        add(ptx, "b32 b32", "b32", expect, to_round(base, "f32"))
    other = "bf16" if base == "f16" else "f16"
    for d in DIRECTIONS:
        expect = lambda a, b=base, o=other, d=d: pack(unpack(a, o), b, d)  # noqa: E731
        add(f"cvt.{d}.{base}.{other}", "b16", "b16", expect, halves(other))
    for way in WAYS:
        expect = on_bits(lambda a, way=way: whole_parts(a, way), base)
        add(f"cvt.{way}.{base}.{base}", "b16", "b16", expect, [*halves(base), *halves("f16")])
    for finish in ("", ".sat") if base == "f16" else ("",):
        finisher = saturated if finish else lambda x: x
        expect = on_bits(finisher, base)
        add(f"cvt{finish}.{base}.{base}", "b16", "b16", expect, halves(base))
        for kind in ("f32", "f64"):
            expect = lambda a, b=base, k=kind, g=finisher: bits_of(g(unpack(a, b)), k)  # noqa: E731
            add(f"cvt{finish}.{kind}.{base}", "b16", f"b{kind[1:]}", expect, halves(base))
    expect = lambda a, b=base: bits_of(flushed(unpack(a, b), 2.0**-126), "f32")  # noqa: E731
    add(f"cvt.ftz.f32.{base}", "b16", "b32", expect, halves(base))
    around = [pack(f32(bits), base) for bits in F32_TO_INTEGER]
    for word, way in itertools.product(WORDS, WAYS):
        expect = lambda a, b=base, k=word, w=way: converted(unpack(a, b), k, w)  # noqa: E731
        size = REGISTERS[int(word[1:])]
        add(f"cvt.{way}.{word}.{base}", "b16", size, expect, [*halves(base), *around])
    for word, d in itertools.product(WORDS, DIRECTIONS):
        size, chance = int(word[1:]), random.Random(word)
        ulp = 1 << FORMATS[base].digits
        values = [
            0,
            1,
            *(limits(word)),
            *(
                x + y
                for x in (ulp, 2 * ulp, 8 * ulp, 1 << 40)
                for y in (-3, -2, -1, 1, 3, 4, 5, x >> 9, (x >> 9) + 1)
            ),
        ]
        values += [65504, 65519, 65520, (3 << 61) - (3 << 61 - FORMATS[base].digits) + 1]
        values += [chance.getrandbits(chance.randint(1, size)) for _ in range(20)]
        values = [sign * value % (1 << size) for value in values for sign in (1, -1)]
        expect = lambda a, b=base, k=word, d=d: pack(Fraction(as_integer(a, k)), b, d)  # noqa: E731
        add(f"cvt.{d}.{base}.{word}", REGISTERS[size], "b16", expect, values)
expect = lambda a: pack(saturated(as_integer(a, "s32")), "f16")  # noqa: E731
add("cvt.rn.sat.f16.s32", "b32", "b16", expect, [0, 1, 2, 2**31, 2**32 - 1])
