"""Forms of fp32 and fp64 arithmetic, and of conversion."""

import functools
import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction

from tests.simt.ptx_forms import (
    ANGLES,
    EXPONENTS,
    F32_TO_INTEGER,
    F64_TO_INTEGER,
    INFINITY,
    NAN,
    TINY,
    WORDS,
    add,
    clamp,
    decode,
    edges,
    encode,
    flushed,
    limits,
    rounded,
    width,
    with_modifiers,
    wrap,
)

DIRECTIONS = ("rn", "rz", "rm", "rp")


def zero_sum(a: float, b: float, direction: str) -> float:
    """The zero that two floats add up to: of their sign, else +0, else -0 when rounding down."""
    if a == b == 0 and math.copysign(1, a) == math.copysign(1, b):
        return a
    return -0.0 if direction == "rm" else 0.0


def total(a: float, b: float, direction: str = "rn", kind: str = "f32") -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a + b
    exact = Fraction(a) + Fraction(b)
    return rounded(exact, kind, direction) if exact else zero_sum(a, b, direction)


def difference(a: float, b: float, direction: str = "rn", kind: str = "f32") -> float:
    return total(a, -b, direction, kind)


def product(a: float, b: float, direction: str = "rn", kind: str = "f32") -> float:
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return a * b
    return rounded(Fraction(a) * Fraction(b), kind, direction)


def ratio(a: float, b: float, kind: str = "f32", direction: str = "rn") -> float:
    if math.isnan(a) or math.isnan(b) or math.isinf(a) and math.isinf(b) or a == b == 0:
        return NAN
    if b == 0 or math.isinf(a):
        return math.copysign(INFINITY, math.copysign(1, a) * math.copysign(1, b))
    if a == 0 or math.isinf(b):
        return math.copysign(0, math.copysign(1, a) * math.copysign(1, b))
    return rounded(Fraction(a) / Fraction(b), kind, direction)


def fused(a: float, b: float, c: float, kind: str, direction: str = "rn") -> list[float]:
    """a * b + c rounded once; fp32 may be rounded to fp64 on the way to nearest, the machine's
    stated limit."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return [a * b + c]
    if not math.isfinite(c):
        return [c]
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        sign = math.copysign(1, a) * math.copysign(1, b)
        return [zero_sum(sign if a and b else 0 * sign, c, direction)]
    results = [rounded(exact, kind, direction)]
    if kind == "f32" and direction == "rn":
        results.append(rounded(Fraction(rounded(exact, "f64")), kind))
    return results


def extremes(pick: Callable, keep_nan: bool) -> Callable:
    """max or min, which ignores one NaN unless told otherwise; of two zeros it may be either."""

    def expect(a: float, b: float) -> float | list[float]:
        if math.isnan(a) or math.isnan(b):
            return NAN if keep_nan or math.isnan(a) == math.isnan(b) else b if math.isnan(a) else a
        return [a, b] if a == b else pick(a, b)

    return expect


for d, ftz, sat in itertools.product(("", *DIRECTIONS), ("", ".ftz"), ("", ".sat")):
    dot, modifiers = f".{d}" if d else "", {"ftz": bool(ftz), "finish": sat}
    towards = {"direction": d or "rn"}
    for name, function in (("add", total), ("sub", difference), ("mul", product)):
        expect = with_modifiers(functools.partial(function, **towards), **modifiers)
        add(f"{name}{dot}{ftz}{sat}.f32", "f32 f32", "f32", expect)
    if d:
        expect = with_modifiers(functools.partial(fused, kind="f32", **towards), **modifiers)
        add(f"fma{dot}{ftz}{sat}.f32", "f32 f32 f32", "f32", expect)
        add(f"mad{dot}{ftz}{sat}.f32", "f32 f32 f32", "f32", expect)
        if not sat:
            expect = with_modifiers(functools.partial(ratio, **towards), ftz=bool(ftz))
            add(f"div{dot}{ftz}.f32", "f32 f32", "f32", expect)
HUGE = (*edges("f64"), *(encode(number, "f64") for number in (2.0**1023, -1.7e308, 1e292)))
for d in ("", *DIRECTIONS):
    dot = f".{d}" if d else ""
    for name, function in (("add", total), ("sub", difference)):
        expect = functools.partial(function, direction=d or "rn", kind="f64")
        add(f"{name}{dot}.f64", "f64 f64", "f64", expect, choices=(HUGE, HUGE))
for d in ("", ".rn"):
    add(f"mul{d}.f64", "f64 f64", "f64", lambda a, b: a * b)


def near_ties_and_limits() -> tuple[int, ...]:
    """fp64 numbers whose products need all 106 bits, cancel, overflow, or are below 2^-1022."""
    chance = random.Random("fma.rn.f64")
    numbers = [1 + 2.0**-52, -1 - 2.0**-52, 1 - 2.0**-53, 1 + 2.0**-26, -1 - 2.0**-25, 1.5, 1.0]
    numbers += [
        2.0**-53,
        -(2.0**-54),
        2.0**-105,
        -(2.0**-106),
        2.0**-300,
        2.0**-1074,
        -(2.0**-1060),
    ]
    numbers += [sign * chance.uniform(1, 2) * 2.0**power for power in POWERS for sign in (1, -1)]
    return (*edges("f64"), *(encode(number, "f64") for number in numbers))


POWERS = (-1030, -1000, -537, -512, -511, -40, -1, 0, 0, 1, 52, 511, 512, 900, 1023)
# All of these with all others: products just off half the last bit of another one.
TIES = (1 + 2.0**-52, -1 - 2.0**-52, 2.0**-53 - 2.0**-105, 2.0**-53 + 2.0**-105, 2.0**-53)
TIES += (2.0**1023, -INFINITY)
for name, values in (
    ("fma", near_ties_and_limits()),
    ("mad", tuple(encode(number, "f64") for number in TIES)),
):
    expect = functools.partial(fused, kind="f64")
    add(f"{name}.rn.f64", "f64 f64 f64", "f64", expect, choices=(values,) * 3)
add("div.rn.f64", "f64 f64", "f64", functools.partial(ratio, kind="f64"))


def exponential(a: float, kind: str = "f32") -> float:
    if math.isnan(a) or a == INFINITY:
        return a
    return 0.0 if a < -1000 else INFINITY if a > 1000 else rounded(Fraction(2.0**a), kind)


def logarithm(a: float) -> float:
    if math.isnan(a) or a < 0:
        return NAN
    if a == 0 or a == INFINITY:
        return a or -INFINITY
    return rounded(Fraction(math.log2(a)), "f32")


def wave(function: Callable[[float], float]) -> Callable:
    """sin or cos, NaN for an infinity, as it is for a zero."""

    def expect(a: float) -> float:
        if not math.isfinite(a):
            return NAN
        return rounded(Fraction(function(a)), "f32") if function(a) else a

    return expect


def tangent(a: float, kind: str = "f32") -> float:
    if math.isnan(a) or a == 0:
        return a
    return rounded(Fraction(math.tanh(a)), kind)


def root(a: float, kind: str) -> float:
    if math.isnan(a) or a < 0:
        return NAN
    if a == 0 or math.isinf(a):
        return a
    return math.sqrt(a) if kind == "f64" else rounded(Fraction(math.sqrt(a)), "f32")


def inverse_root(a: float, kind: str) -> float:
    if math.isnan(a) or a < 0:
        return NAN
    if a == 0:
        return math.copysign(INFINITY, a)
    return 0.0 if a == INFINITY else rounded(Fraction(1 / math.sqrt(a)), kind)


def hard_to_divide(a: float, b: float) -> bool:
    """Where div.approx and div.full are not accurate: a subnormal result, or an extreme divisor."""
    return not 2.0**-126 <= abs(b) <= 2.0**126 or abs(a / b) < 2 * TINY


APPROXIMATIONS = {
    # function, extra cases, relative and absolute error of the hardware
    "ex2": (exponential, EXPONENTS, 2.0**-21.5, 0.0),
    "lg2": (logarithm, (), 2.0**-22, 2.0**-22),
    "sin": (wave(math.sin), ANGLES, 0.0, 2.0**-20),
    "cos": (wave(math.cos), ANGLES, 0.0, 2.0**-20),
    "tanh": (tangent, ANGLES, 2.0**-10, 0.0),
    "sqrt": (functools.partial(root, kind="f32"), (), 2.0**-22, 0.0),
    "rcp": (functools.partial(ratio, 1.0), (), 2.0**-22.5, 0.0),
    "rsqrt": (functools.partial(inverse_root, kind="f32"), (), 2.0**-22, 0.0),
}
for name, (function, more, relative, absolute) in APPROXIMATIONS.items():
    for ftz in ("", ".ftz"):
        for way in (".approx", ".rn") if name in ("sqrt", "rcp") else (".approx",):
            if name == "tanh" and ftz:
                continue
            exact = way == ".rn"
            add(
                f"{name}{way}{ftz}.f32",
                "f32",
                "f32",
                with_modifiers(function, ftz=bool(ftz)),
                choices=((*edges("f32"), *(encode(number, "f32") for number in more)),),
                ulp=0 if exact else 1,
                hardware=0.0 if exact else relative,
                absolute=0.0 if exact else absolute,
                unspecified=lambda a, wave=name in ("sin", "cos"): wave and abs(a) > 1000,
            )
add("sqrt.rn.f64", "f64", "f64", functools.partial(root, kind="f64"))
add("rcp.rn.f64", "f64", "f64", lambda a: ratio(1.0, a, "f64"))


def coarse_inverse(a: float) -> float:
    """Of the upper 32 bits, cut to its upper 32 bits; subnormals count as zero."""
    a = decode(encode(a, "f64") & ~0xFFFFFFFF, "f64") if a == a else a
    result = ratio(1.0, math.copysign(0.0, a) if abs(a) < 2.0**-1022 else a, "f64")
    result = math.copysign(0.0, result) if abs(result) < 2.0**-1022 else result
    return result if result != result else decode(encode(result, "f64") & ~0xFFFFFFFF, "f64")


add("rcp.approx.ftz.f64", "f64", "f64", coarse_inverse, hardware=2.0**-20)
expect = functools.partial(inverse_root, kind="f64")
add("rsqrt.approx.f64", "f64", "f64", expect, ulp=2, hardware=2.0**-20)
for way, ftz in itertools.product(("approx", "full"), ("", ".ftz")):
    expect = with_modifiers(ratio, ftz=bool(ftz))
    more = {"hardware": 2.0**-22, "unspecified": hard_to_divide}
    add(f"div.{way}{ftz}.f32", "f32 f32", "f32", expect, **more)

for k, ftz in (("f32", ""), ("f32", ".ftz"), ("f64", "")):
    finish = functools.partial(with_modifiers, ftz=bool(ftz))
    add(f"abs{ftz}.{k}", k, k, finish(abs))
    add(f"neg{ftz}.{k}", k, k, finish(lambda a: -a))
    add(f"max{ftz}.{k}", f"{k} {k}", k, finish(extremes(max, keep_nan=False)))
    add(f"min{ftz}.{k}", f"{k} {k}", k, finish(extremes(min, keep_nan=False)))
    if k == "f32":
        add(f"max{ftz}.NaN.{k}", f"{k} {k}", k, finish(extremes(max, keep_nan=True)))
        add(f"min{ftz}.NaN.{k}", f"{k} {k}", k, finish(extremes(min, keep_nan=True)))


# ---- the table: conversion ----------------------------------------------------------------------


TO_INTEGER = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
INTEGERS = ("u8", "s8", *WORDS)


def integer_of(a: float, result: str, source: str, way: str, ftz: bool) -> int:
    """Clamped. NaN is 0 between types of at most 32 bits, else the top bit alone."""
    if math.isnan(a):
        return 0 if source != "f64" and width(result) < 64 else wrap(1 << width(result) - 1, result)
    if math.isinf(a):
        return limits(result)[a > 0]
    return clamp(TO_INTEGER[way](flushed(a) if ftz else a), result)


def integral(a: float, way: str) -> float:
    return math.copysign(float(TO_INTEGER[way](a)), a) if math.isfinite(a) else a


def narrowed(a: float, direction: str, kind: str = "f32") -> float:
    return rounded(Fraction(a), kind, direction) if math.isfinite(a) and a else a


for source, result in itertools.product(INTEGERS, INTEGERS):
    add(f"cvt.{result}.{source}", source, result, functools.partial(wrap, kind=result))
    if any(number != clamp(number, result) for number in limits(source)):
        add(f"cvt.sat.{result}.{source}", source, result, functools.partial(clamp, kind=result))
for (source, ftz), result, way in itertools.product(
    (("f32", ""), ("f32", ".ftz"), ("f64", "")), INTEGERS, TO_INTEGER
):
    values = (*edges(source), *(F32_TO_INTEGER if source == "f32" else F64_TO_INTEGER))
    expect = functools.partial(integer_of, result=result, source=source, way=way, ftz=bool(ftz))
    add(f"cvt.{way}{ftz}.{result}.{source}", source, result, expect, choices=(values,))
for source, d in itertools.product(INTEGERS, DIRECTIONS):
    for result, sat in (("f32", ""), ("f32", ".sat"), ("f64", "")):
        if result == "f64" and d != "rn":
            continue
        expect = lambda a, k=result, d=d: rounded(Fraction(a), k, d)  # noqa: E731
        expect = with_modifiers(expect, finish=sat)
        add(f"cvt.{d}{sat}.{result}.{source}", source, result, expect)
for ftz, sat in itertools.product(("", ".ftz"), ("", ".sat")):
    finish = functools.partial(with_modifiers, ftz=bool(ftz), finish=sat)
    add(f"cvt{ftz}{sat}.f32.f32", "f32", "f32", finish(lambda a: a))
    add(f"cvt{ftz}{sat}.f64.f32", "f32", "f64", finish(lambda a: a))
    for way in TO_INTEGER:
        expect = finish(functools.partial(integral, way=way))
        values = (*edges("f32"), *F32_TO_INTEGER)
        add(f"cvt.{way}{ftz}{sat}.f32.f32", "f32", "f32", expect, choices=(values,))
    for d in DIRECTIONS:
        # .ftz flushes the fp32 side, which is the result here.
        expect = with_modifiers(functools.partial(narrowed, direction=d), finish=sat)
        if ftz:
            expect = lambda a, f=expect: [flushed(r) for r in f(a)]  # noqa: E731
        add(f"cvt.{d}{ftz}{sat}.f32.f64", "f64", "f32", expect)
for way in TO_INTEGER:
    expect = functools.partial(integral, way=way)
    add(f"cvt.{way}.f64.f64", "f64", "f64", expect, choices=(F64_TO_INTEGER,))
add("cvt.f64.f64", "f64", "f64", lambda a: a)
