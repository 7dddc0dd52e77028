"""16-bit floats on the SIMT machine, bit by bit, against exact rational arithmetic.

As in test_simt_operations.py a form is one instruction that runs as a PTX kernel, a case in each
thread. Values here are bits. What a form should give comes from fractions, rounded once by `pack`,
and where a GPU is, it has to agree. At the end, kernels in CUDA C++, also with the functions that
the CUDA headers make of fp32, fp64 and 128-bit arithmetic.
"""

import itertools
import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import cupy
import numpy as np
import pytest

from helpers import simt
from helpers.simt import machine
from helpers.simt.operations import OPCODES
from helpers.simt.operations.base import SIXTEEN_BIT
from helpers.simt.operations.rounding import narrow, widen
from tests.test_simt_operations import COMPARISONS, F32_TO_INTEGER, Form, edges, form_module, module

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


def test_pack_and_unpack_agree_with_the_struct_module() -> None:
    chance = random.Random(1)
    for bits in (*range(0, 0x7C00, 7), *range(0x8000, 0xFC00, 7)):
        assert struct.pack("<e", unpack(bits, "f16")) == bits.to_bytes(2, "little")
        assert struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0] == unpack(bits, "bf16")
    for _ in range(2000):
        number = chance.uniform(-2, 2) * 2.0 ** chance.randint(-27, 14)
        assert pack(number, "f16").to_bytes(2, "little") == struct.pack("<e", number)


@np.errstate(all="ignore")
@pytest.mark.parametrize("base", FORMATS)
def test_every_value_survives_widening_and_narrowing(base: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    wide = widen(bits.view(np.float16) if base == "f16" else bits, base)
    expected = np.array([unpack(int(one), base) for one in bits])
    np.testing.assert_array_equal(wide, expected.astype(np.float32))
    assert np.array_equal(np.signbit(wide), bits >> 15 == 1)
    numbers = ~np.isnan(wide)
    for values, direction in itertools.product((wide, wide.astype(np.float64)), DIRECTIONS):
        back = narrow(values, base, direction).view(np.uint16)
        assert np.array_equal(back[numbers], bits[numbers])
        assert (back[~numbers] == NAN).all()


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


# ---- tests --------------------------------------------------------------------------------------


def run_ptx(ptx: str, *columns: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(machine, "compile_template", lambda code, name, *_: (code, name))
    result = np.zeros(len(columns[0]), np.uint64)
    arrays = [np.array(column, np.uint64) for column in columns]
    kernel = SimpleNamespace(code=ptx, name="k", options=())
    trace = simt.simulate(kernel, 1, len(result), (result, *arrays))
    assert not trace.findings, str(trace.findings)
    return result.tolist()


def disagreements(form: Form, found: list[int], hardware: bool = False) -> list[str]:
    wrong = []
    for case, bits in zip(given(form), found, strict=True):
        expected = form.expect(*case)
        expected = expected if isinstance(expected, list) else [expected]
        if not any(agrees(form, bits, one, hardware) for one in expected):
            sources = ", ".join(f"{value:#x}" for value in case)
            wrong.append(f"{form}({sources}) gave {bits:#x}, not {[f'{e:#x}' for e in expected]}")
    return wrong


def agrees(form: Form, got: int, expected: int, hardware: bool) -> bool:
    if got == expected:
        return True
    wide = {"f32": f32, "f64": f64}.get(form.ptx.split(".")[-2])
    if form.opcode == "cvt" and wide and expected == bits_of(math.nan, form.ptx.split(".")[-2]):
        return math.isnan(wide(got))
    parts = [(got >> shift & 0xFFFF, expected >> shift & 0xFFFF) for shift in (0, 16)]
    if hardware and form.opcode == "cvt" and expected == NAN and got & NAN > 0x7C00:
        return True  # a NaN of fp64 may keep its payload
    if (
        hardware
        and ".ftz" in form.ptx
        and all(a == b or (b & NAN, a & NAN) == (1 << 10, 0) for a, b in parts)
    ):
        return True  # the hardware looks whether a result is subnormal before it rounds
    if form.ulp:
        # The hardware's approximations are good to about 2^-10 for f16, 2^-7 for bf16.
        return all(abs(a - b) <= (8 if hardware else form.ulp) or a == b for a, b in parts)
    return False


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_opcode_rounds_as_the_manual_says(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = zip(*given(form), strict=True)
    wrong = disagreements(form, run_ptx(form_module(form), *columns, monkeypatch=monkeypatch))
    assert not wrong, "\n".join([f"{len(wrong)} cases:", *wrong[:10]])


@pytest.mark.gpu
def test_the_gpu_agrees_with_the_table(tmp_path: Path) -> None:
    if int(cupy.cuda.Device().compute_capability) < 90:
        pytest.skip("arithmetic on bf16 needs compute capability 9.0")
    wrong = []
    for number, form in enumerate(FORMS):
        path = tmp_path / f"{number}.ptx"
        text = form_module(form).replace(".version 7.0", ".version 8.6").replace("sm_80", "sm_90")
        # ptxas wants registers of 8 bits in conversions between them and bf16.
        text = text.replace(".b16 %d", ".b8 %d") if form.result == "b8" else text
        text = text.replace(".b16 %s0", ".b8 %s0") if form.sources[0] == "b8" else text
        path.write_text(text)
        columns = [cupy.array(column, cupy.uint64) for column in zip(*given(form), strict=True)]
        result = cupy.zeros(len(columns[0]), cupy.uint64)
        kernel = cupy.RawModule(path=str(path)).get_function("k")
        kernel((1,), (len(result),), (result, *columns))
        wrong += disagreements(form, result.get().tolist(), hardware=True)[:10]
    assert not wrong, "\n".join(wrong)


def test_every_opcode_and_comparison_is_in_the_table() -> None:
    known = {name for name, builders in OPCODES.items() if SIXTEEN_BIT in builders}
    assert {form.opcode for form in FORMS} == known
    assert len(FORMS) == len({str(form) for form in FORMS})
    names = {form.ptx.split(".")[1] for form in FORMS if form.opcode == "setp"}
    assert names == set(COMPARISONS) - {"lo", "ls", "hi", "hs"}


@pytest.mark.parametrize("base", FORMATS)
@pytest.mark.parametrize("join", ["", *JOINED])
def test_setp_of_pairs_writes_a_predicate_for_each_half(
    base: str, join: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(base)
    values = [
        tuple(chance.choice(halves(base)) | chance.choice(halves(base)) << 16 for _ in range(2))
        + (chance.randint(0, 1),)
        for _ in range(200)
    ]
    lines = [f"ld.global.b32 %r{k}, [%at{k + 1}];" for k in range(3)]
    name = f"setp.lt.{join}.{PAIR_OF[base]}" if join else f"setp.lt.{PAIR_OF[base]}"
    lines += ["setp.ne.u32 %c, %r2, 0;", f"{name} %p|%q, %r0, %r1{', %c' if join else ''};"]
    lines += ["selp.u32 %r0, 1, 0, %p;", "selp.u32 %r1, 2, 0, %q;", "or.b32 %r0, %r0, %r1;"]
    lines += ["st.global.u32 [%at0], %r0;"]
    ptx = module(lines, 4, [".b32 %r<3>", ".pred %p", ".pred %q", ".pred %c"])
    found = run_ptx(ptx, *zip(*values, strict=True), monkeypatch=monkeypatch)
    compare, joined = comparing("lt", base), JOINED.get(join, lambda t, c: t)
    for (a, b, c), bits in zip(values, found, strict=True):
        low = joined(compare(a & 0xFFFF, b & 0xFFFF), bool(c))
        high = joined(compare(a >> 16, b >> 16), bool(c))
        assert bits == low + 2 * high, f"{a:#x} {b:#x} {c}"


# ---- kernels in CUDA C++ ------------------------------------------------------------------------


ARCHITECTURES = ("compute_75", "compute_80", "compute_90")  # each has other code for bf16
INCLUDES = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"


def run_cuda(code: str, count: int, *args, arch: str = "compute_90") -> None:
    """Run the kernel `k` with at least `count` threads."""
    kernel = SimpleNamespace(code=INCLUDES + code, name="k", options=("--device-int128",))
    trace = simt.simulate(kernel, -(-count // 96), 96, args, arch=arch)
    assert not trace.findings, str(trace.findings)


def sixteen(values: np.ndarray, base: str) -> np.ndarray:
    return np.array([pack(float(value), base) for value in values], np.uint16)


def numbers(bits: np.ndarray, base: str) -> np.ndarray:
    return np.array([unpack(int(one), base) for one in bits])


def assert_within(got: np.ndarray, expected: np.ndarray, base: str, ulps: float = 0.5) -> None:
    """`expected` is float64, better than the last bit of 16 by far."""
    form = FORMATS[base]
    exponent = np.maximum(np.frexp(expected)[1] - 1, form.lowest)
    error = np.abs(got - expected) / np.ldexp(1.0, exponent - form.digits + 1)
    assert error.max() <= ulps * (1 + 1e-9), f"{error.max()} ulp at {error.argmax()}"


CPP = {"f16": ("__half", "__half2"), "bf16": ("__nv_bfloat16", "__nv_bfloat162")}


# CUDA has no fused multiply-add of bf16 before compute capability 8.0.
@pytest.mark.parametrize(
    ("base", "arch"),
    [(b, a) for b in FORMATS for a in ARCHITECTURES if (b, a) != ("bf16", "compute_75")],
)
@pytest.mark.parametrize("count", [1, 777])
def test_pairs_and_an_odd_last_value_are_rounded_once(base: str, arch: str, count: int) -> None:
    one, two = CPP[base]
    code = f"""extern "C" __global__ void k({one}* y, const {one}* x, float a, int n)
    {{
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        const {one} factor = {"__float2half" if base == "f16" else "__float2bfloat16"}(a);
        if (2 * i + 1 < n) {{
            {two}* pairs = reinterpret_cast<{two}*>(y);
            const {two} given = reinterpret_cast<const {two}*>(x)[i];
            pairs[i] = __hfma2({two}(factor, factor), given, pairs[i]);
        }} else if (2 * i < n) {{
            y[2 * i] = __hfma(factor, x[2 * i], y[2 * i]);
        }}
    }}"""
    x, y = (sixteen(np.random.default_rng(s).normal(size=count), base) for s in (1, 2))
    factor = unpack(pack(1 / 3, base), base)
    expected = factor * numbers(x, base) + numbers(y, base)
    run_cuda(code, -(-count // 2), y, x, np.float32(1 / 3), count, arch=arch)
    assert_within(numbers(y, base), expected, base)


OPERATORS = {
    "__hadd": lambda a, b: a + b,
    "__hsub": lambda a, b: a - b,
    "__hmul": lambda a, b: a * b,
    "__h2div": lambda a, b: a / b,
    "__hmax2": np.maximum,
}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("base", FORMATS)
@pytest.mark.parametrize("name", OPERATORS)
def test_functions_of_the_headers(name: str, base: str, arch: str) -> None:
    one, two = CPP[base]
    kind, count = (two, 2 * 301) if "2" in name else (one, 601)
    code = f"""extern "C" __global__ void k({kind}* y, const {kind}* a, const {kind}* b, int n)
    {{
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = {name}(a[i], b[i]);
    }}"""
    chance = np.random.default_rng(3)
    a, b = (sixteen(chance.normal(size=count) * 4, base) for _ in range(2))
    y, threads = np.zeros(count, np.uint16), count // (2 if "2" in name else 1)
    run_cuda(code, threads, y, a, b, threads, arch=arch)
    expected = OPERATORS[name](numbers(a, base), numbers(b, base))
    # The quotient goes through fp32, and is rounded again.
    assert_within(numbers(y, base), expected, base, 0.501 if name == "__h2div" else 0.5)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("base", FORMATS)
def test_softmax_of_16_bit_values_in_fp32(base: str, arch: str) -> None:
    two, rows, cols = CPP[base][1], 5, 66
    from_pair, to_pair = {
        "f16": ("__half22float2", "__float22half2_rn"),
        "bf16": ("__bfloat1622float2", "__float22bfloat162_rn"),
    }[base]
    code = f"""extern "C" __global__ void k({two}* y, const {two}* x, int cols)
    {{
        const int lane = threadIdx.x % 32;
        const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
        if (row >= {rows}) return;
        {two} highest = __hmax2(x[row * cols], x[row * cols]);
        for (int j = lane; j < cols; j += 32) highest = __hmax2(highest, x[row * cols + j]);
        for (int step = 16; step > 0; step /= 2)
            highest = __hmax2(highest, __shfl_xor_sync(0xffffffff, highest, step));
        const float2 ends = {from_pair}(highest);
        const float top = fmaxf(ends.x, ends.y);
        float sum = 0;
        for (int j = lane; j < cols; j += 32) {{
            const float2 v = {from_pair}(x[row * cols + j]);
            sum += expf(v.x - top) + expf(v.y - top);
        }}
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
        for (int j = lane; j < cols; j += 32) {{
            const float2 v = {from_pair}(x[row * cols + j]);
            y[row * cols + j] =
                {to_pair}(make_float2(expf(v.x - top) / sum, expf(v.y - top) / sum));
        }}
    }}"""
    x = sixteen(np.random.default_rng(4).normal(size=rows * cols) * 3, base)
    y = np.zeros_like(x)
    run_cuda(code, 32 * rows, y, x, cols // 2, arch=arch)
    exponentials = np.exp(numbers(x, base).reshape(rows, cols))
    expected = (exponentials / exponentials.sum(axis=1, keepdims=True)).reshape(-1)
    assert_within(numbers(y, base), expected, base, 0.505)  # fp32 may be 20 ulp off: 2^-19


# ---- functions of the CUDA headers in fp32 and fp64 ---------------------------------------------


# Largest error in ulp that the CUDA programming guide gives, for fp32 and fp64.
FUNCTIONS = {
    "exp": (1, 1),
    "exp2": (2, 1),
    "log": (1, 1),
    "log2": (1, 1),
    "sin": (2, 2),
    "cos": (2, 2),
    "tanh": (2, 1),
    "erf": (2, 2),
    "sqrt": (0.5, 0.5),
    "round": (0, 0),
    "cbrt": (1, 1),
}


@pytest.mark.parametrize("type_name", ["float", "double"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_mathematical_functions(name: str, type_name: str) -> None:
    function = f"{name}f" if type_name == "float" else name
    code = f"""extern "C" __global__ void k({type_name}* y, const {type_name}* x, int n)
    {{
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = {function}(x[i]);
    }}"""
    dtype = np.dtype(np.float32 if type_name == "float" else np.float64)
    x = np.random.default_rng(5).uniform(0.01, 40, 97)
    # Far arguments of sine and cosine: the remainder needs many digits of pi.
    x[:7] = (1e6, 123456.789, 1e7, 3e5, 2.0**31, 1e12, 1e15) if name in ("sin", "cos") else x[:7]
    x = x.astype(dtype)
    y = np.zeros_like(x)
    run_cuda(code, len(x), y, x, len(x))
    exact = {"exp2": lambda a: 2.0**a, "cbrt": lambda a: a ** (1 / 3), "round": rounded_half_up}
    expected = np.array([exact.get(name, getattr(math, name, None))(float(one)) for one in x])
    limit = FUNCTIONS[name][type_name == "double"]
    reference = 1.0 if type_name == "double" and name != "sqrt" else 0.01  # of math itself
    ulp = np.spacing(np.abs(expected).astype(dtype)).astype(np.float64)
    error = np.abs(y.astype(np.float64) - expected) / ulp
    assert error.max() <= limit + (reference if limit else 0), f"{x[error.argmax()]}"


def rounded_half_up(a: float) -> float:
    return math.copysign(math.floor(abs(a) + 0.5), a)


def test_a_product_of_128_bits_and_its_quotient() -> None:
    code = """extern "C" __global__ void k(
        unsigned long long* y, const unsigned long long* x, const unsigned long long* z, int n)
    {
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        const unsigned __int128 product = (unsigned __int128)x[i] * z[i] + x[n - 1 - i];
        y[3 * i] = product >> 64;
        y[3 * i + 1] = product / (z[n - 1 - i] | 1);
        y[3 * i + 2] = product - ((unsigned __int128)z[i] << 64) >> 64;
    }"""
    chance, count = random.Random(6), 45
    x, z = (
        [2**64 - 1, *(chance.getrandbits(chance.randint(1, 64)) for _ in range(count - 1))]
        for _ in range(2)
    )
    y = np.zeros(3 * count, np.uint64)
    run_cuda(code, count, y, np.array(x, np.uint64), np.array(z, np.uint64), count)
    for i in range(count):
        product = x[i] * z[i] + x[count - 1 - i]
        expected = [product >> 64, product // (z[count - 1 - i] | 1), (product >> 64) - z[i]]
        assert y[3 * i : 3 * i + 3].tolist() == [number % 2**64 for number in expected]


@pytest.mark.parametrize("count", [1, 333])
def test_fp64_sums_of_products_are_rounded_once(count: int) -> None:
    code = """extern "C" __global__ void k(double* y, const double* a, const double* b, int n)
    {
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = fma(a[i], b[i], -a[i] * b[i]);
    }"""
    a, b = (np.random.default_rng(seed).normal(size=count) for seed in (7, 8))
    y = np.zeros(count)
    run_cuda(code, count, y, a, b, count)
    exact = [Fraction(p) * Fraction(q) - Fraction(p * q) for p, q in zip(a, b, strict=True)]
    assert y.tolist() == [float(one) for one in exact]  # what the rounded product lacks
    assert any(exact)
