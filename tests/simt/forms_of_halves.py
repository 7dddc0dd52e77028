"""Forms of 16-bit floats and of pairs, with the expectations of the wider ones."""

import functools
import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction

from tests.simt.forms_of_floats import (
    DIRECTIONS,
    INTEGERS,
    TO_INTEGER,
    difference,
    exponential,
    extremes,
    fused,
    integer_of,
    integral,
    narrowed,
    product,
    tangent,
    total,
)
from tests.simt.forms_of_integers import JOINED, ORDERED, ordered
from tests.simt.ptx_forms import (
    F32_TO_INTEGER,
    FINISH,
    FORMATS,
    INFINITY,
    NAN,
    SIXTEEN,
    add,
    decode,
    edges,
    encode,
    flushed,
    limits,
    mask,
    rounded,
    tiny,
    width,
    with_modifiers,
)

PAIR_OF = {"f16": "f16x2", "bf16": "bf16x2"}


def for_each(function: Callable) -> Callable:
    """Of numbers as one of pairs."""
    return lambda *pairs: tuple(function(*numbers) for numbers in zip(*pairs, strict=True))


def add_both(ptx: str, base: str, count: int, expect: Callable, **more) -> None:
    """The form for one value, and that for pairs; `{}` stands for the type."""
    ties: list[tuple[int, ...]] = []
    if count == 3:  # 1.5 (1 + ulp) is halfway between two numbers: far too small a number decides
        one, near = encode(1.5, base), encode(1.0, base) + 1
        ties = [(one, near, sign | small) for sign in (0, 0x8000) for small in (0, 1, 2, 0x100)]
    twice = tuple(tuple(bits << 16 | bits for bits in case) for case in ties)
    add(ptx.format(base), f"{base} " * count, base, expect, first=tuple(ties), **more)
    pair = PAIR_OF[base]
    add(ptx.format(pair), f"{pair} " * count, pair, for_each(expect), first=twice, **more)


# ---- the table: arithmetic ----------------------------------------------------------------------


ARITHMETIC = {"add": (total, 2), "sub": (difference, 2), "mul": (product, 2), "fma": (fused, 3)}
for base, (name, (function, count)) in itertools.product(SIXTEEN, ARITHMETIC.items()):
    finishes = ("", ".sat") if base == "f16" else ("",)
    finishes += (".relu",) if count == 3 else ()
    for d, ftz, finish in itertools.product(("", ".rn"), ("", ".ftz"), finishes):
        if (ftz and base == "bf16") or (not d and count == 3):
            continue
        exact = functools.partial(function, kind=base)
        expect = with_modifiers(exact, ftz=bool(ftz), finish=finish, kind=base)
        add_both(f"{name}{d}{ftz}{finish}.{{}}", base, count, expect)
for base, (name, pick), keep in itertools.product(
    SIXTEEN, (("max", max), ("min", min)), ("", ".NaN")
):
    for ftz in ("", ".ftz") if base == "f16" else ("",):
        expect = with_modifiers(extremes(pick, bool(keep)), ftz=bool(ftz), kind=base)
        add_both(f"{name}{ftz}{keep}.{{}}", base, 2, expect)
for base in SIXTEEN:
    add_both("neg.{}", base, 1, lambda a: -a)
    add_both("abs.{}", base, 1, abs)
    ftz = ".ftz" if base == "bf16" else ""
    expect = functools.partial(exponential, kind=base)
    expect = with_modifiers(expect, ftz=bool(ftz), kind=base)
    near = {"ulp": 1, "hardware": 2.0 ** (4 - FORMATS[base][0])}  # the approximations
    add_both(f"ex2.approx{ftz}.{{}}", base, 1, expect, **near)
    add_both("tanh.approx.{}", base, 1, functools.partial(tangent, kind=base), **near)
SHORTS = [0, 1, 2, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0xFFFE, 1234, 0xABCD]
SHORTS = tuple(low | high << 16 for low, high in itertools.product(SHORTS, SHORTS))
for k in ("u16x2", "s16x2"):
    more = {"choices": (SHORTS, SHORTS)}
    low, high = limits(k[:3])
    wrapped = lambda a, b, n=low: (a + b - n) % (1 << 16) + n  # noqa: E731
    add(f"add.{k}", f"{k} {k}", k, for_each(wrapped), **more)
    for name, pick in (("max", max), ("min", min)):
        add(f"{name}.{k}", f"{k} {k}", k, for_each(pick), **more)
        if k[0] == "s":
            expect = for_each(lambda a, b, f=pick: max(f(a, b), 0))
            add(f"{name}.{k}.relu", f"{k} {k}", k, expect, **more)


# ---- the table: comparison ----------------------------------------------------------------------


def comparing(name: str, base: str, ftz: bool = False) -> Callable:
    if name in ("num", "nan"):
        return lambda a, b: (math.isnan(a) or math.isnan(b)) == (name == "nan")
    return ordered(ORDERED[name[:2]], ftz, len(name) == 3, base)


def giving(true: float, compare: Callable) -> Callable:
    """set: `true` where the comparison holds."""
    return lambda *sources: true if compare(*sources) else 0 * true


NAMES = [*ORDERED, *(f"{name}u" for name in ORDERED), "num", "nan"]
for base, name in itertools.product(SIXTEEN, NAMES):
    compare, pair = comparing(name, base), PAIR_OF[base]
    add(f"setp.{name}.{base}", f"{base} {base}", "pred", compare)
    if name not in ("lt", "neu"):  # `set` writes what `setp` finds
        continue
    for result, true in ((base, 1.0), ("u32", 2**32 - 1), ("s16", -1)):
        add(f"set.{name}.{result}.{base}", f"{base} {base}", result, giving(true, compare))
    for result, kind, true in ((pair, pair, 1.0), ("u32", "u16x2", 0xFFFF), ("s32", "s16x2", -1)):
        expect = for_each(giving(true, compare))
        add(f"set.{name}.{result}.{pair}", f"{pair} {pair}", kind, expect)
for base, (join, joined) in itertools.product(SIXTEEN, JOINED.items()):
    compare, pair = comparing("ltu", base), PAIR_OF[base]
    expect = lambda a, b, c, f=compare, g=joined: g(f(a, b), c)  # noqa: E731
    add(f"setp.ltu.{join}.{base}", f"{base} {base} pred", "pred", expect)
    add(f"set.ltu.{join}.u16.{base}", f"{base} {base} pred", "u16", giving(0xFFFF, expect))
    both = for_each(giving(1.0, expect))
    expect = lambda a, b, c, f=both: f(a, b, (c, c))  # noqa: E731
    add(f"set.ltu.{join}.{pair}.{pair}", f"{pair} {pair} pred", pair, expect)
for name in ("eq", "lt", "geu"):
    compare = comparing(name, "f16", True)
    add(f"setp.{name}.ftz.f16", "f16 f16", "pred", compare)
    expect = for_each(giving(1.0, compare))
    add(f"set.{name}.ftz.f16x2.f16x2", "f16x2 f16x2", "f16x2", expect)


# ---- the table: conversion ----------------------------------------------------------------------


def to_round(base: str, kind: str) -> tuple[int, ...]:
    """fp32 or fp64 bits around the numbers and ties of a 16-bit type, and beyond its ends."""
    found, step = [], 2.0**-23 if kind == "f32" else 2.0**-52
    digits, lowest, highest = FORMATS[base]
    ulp = 2.0 ** (1 - digits)
    for scale in (1.0, tiny(base), tiny(base) / 4, 2.0**-lowest, 2.0**5):
        for n in (0.5, 1, 1.5, 2, 2.5, 1 / ulp + 0.5, 1 / ulp + 1, 2 / ulp - 0.5, 2 / ulp - 1):
            found += [n * ulp * scale * (1 + more) for more in (-step, 0.0, step)]
    smallest, most = tiny(base) * ulp, decode(0x7F7FFFFF, "f32")
    largest = (2 - ulp) * 2.0**highest
    found += [smallest / 2, smallest / 2 * (1 + step), smallest / 4, largest, largest * (1 + step)]
    found += [min(largest * (1 + ulp / 4), most), most, INFINITY, 0.0]
    found = [sign * number for number in found for sign in (1.0, -1.0)] + [NAN]
    if kind == "f64":
        found += [1e300, -1e300, 1e-300, -1e-300, 1 + 2.0**-40]
    return tuple(encode(number, kind) for number in found)


for base in SIXTEEN:
    for kind, d in itertools.product(("f32", "f64"), DIRECTIONS):
        finishes = ("", ".sat") if base == "f16" else ("",)
        finishes += (".relu",) if kind == "f32" and d in ("rn", "rz") else ()
        for finish in finishes:
            expect = functools.partial(narrowed, direction=d, kind=base)
            expect = with_modifiers(expect, finish=finish)
            ptx, choices = f"cvt.{d}{finish}.{base}.{kind}", (to_round(base, kind),)
            add(ptx, kind, base, expect, choices=choices)
    values = to_round(base, "f32")
    expect = lambda a, b=base: narrowed(flushed(a), "rn", b)  # noqa: E731
    add(f"cvt.rn.ftz.{base}.f32", "f32", base, expect, choices=((*values, *edges("f32")),))
    for d, finish in itertools.product(("rn", "rz"), ("", ".relu")):
        one = lambda a, t=base, d=d, g=FINISH[finish]: g(narrowed(a, d, t))  # noqa: E731
        expect = lambda a, b, f=one: (f(b), f(a))  # noqa: E731
        ptx = f"cvt.{d}{finish}.{PAIR_OF[base]}.f32"
        add(ptx, "f32 f32", PAIR_OF[base], expect, choices=(values, values))
    other = "bf16" if base == "f16" else "f16"
    for d in DIRECTIONS:
        expect = functools.partial(narrowed, direction=d, kind=base)
        add(f"cvt.{d}.{base}.{other}", other, base, expect)
    for way in TO_INTEGER:
        expect = functools.partial(integral, way=way)
        more = {"choices": ((*edges(base), *edges("f16")),)}
        add(f"cvt.{way}.{base}.{base}", base, base, expect, **more)
    for finish in ("", ".sat") if base == "f16" else ("",):
        for kind in (base, "f32", "f64"):
            add(f"cvt{finish}.{kind}.{base}", base, kind, FINISH[finish])
    add(f"cvt.ftz.f32.{base}", base, "f32", flushed)
    around = (narrowed(decode(bits, "f32"), "rn", base) for bits in F32_TO_INTEGER)
    around = (*edges(base), *(encode(number, base) for number in around))
    for word, way in itertools.product(INTEGERS, TO_INTEGER):
        expect = functools.partial(integer_of, result=word, source=base, way=way, ftz=False)
        add(f"cvt.{way}.{word}.{base}", base, word, expect, choices=(around,))
    for word, d in itertools.product(INTEGERS, DIRECTIONS):
        size, chance, ulp = width(word), random.Random(word), 1 << FORMATS[base][0]
        values = [0, 1, *limits(word)]
        for x in (ulp, 2 * ulp, 8 * ulp, 1 << 40):
            values += [x + y for y in (-3, -2, -1, 1, 3, 4, 5, x >> 9, (x >> 9) + 1)]
        values += [65504, 65519, 65520, (3 << 61) - (3 << 61 - FORMATS[base][0]) + 1]
        values += [chance.getrandbits(chance.randint(1, size)) for _ in range(20)]
        values = tuple(sign * value & mask(word) for value in values for sign in (1, -1))
        expect = lambda a, b=base, d=d: rounded(Fraction(a), b, d)  # noqa: E731
        add(f"cvt.{d}.{base}.{word}", word, base, expect, choices=(values,))
expect = lambda a: FINISH[".sat"](rounded(Fraction(a), "f16"))  # noqa: E731
add("cvt.rn.sat.f16.s32", "s32", "f16", expect, choices=((0, 1, 2, 2**31, 2**32 - 1),))
