"""A form: one arithmetic instruction as a one-instruction PTX kernel, a case in each thread.

What it should give comes from Python's integers, fractions and `math`, one case at a time, as the
PTX ISA manual says it in section 9.7.
"""

import functools
import itertools
import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from unittest.mock import patch

import numpy as np

from helpers import simt
from helpers.simt import KernelText, machine

TINY = 2.0**-126
LARGEST = 2.0**128 - 2.0**104
INFINITY, NAN = math.inf, math.nan


@dataclass(frozen=True)
class Form:
    """One instruction; `expect` gets a Python number per source and gives one, or a list of them
    if more than one is right."""

    ptx: str
    sources: tuple[str, ...]
    result: str
    expect: Callable
    literals: tuple[str, ...] = ()  # more operands, written as they are
    choices: tuple[tuple | None, ...] = ()  # for each source its values, None for the usual ones
    ulp: int = 0  # how far a float may be off here
    hardware: float = 0.0  # and on the hardware: relative error, in addition
    absolute: float = 0.0  # and its absolute error
    unspecified: Callable = lambda *_: False  # cases in which the manual leaves the result open
    first: tuple[tuple[int, ...], ...] = ()  # cases that come before all others

    def __str__(self) -> str:
        return " ".join((self.ptx, *self.literals))

    @property
    def opcode(self) -> str:
        return self.ptx.split(".")[0]


# ---- numbers and bits ---------------------------------------------------------------------------


FLOATS = {"f16": "<e", "f32": "<f", "f64": "<d"}
# Digits with the leading one, and the exponents of the smallest and the largest normal number.
FORMATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127)}
FORMATS |= {"f32": (24, -126, 127), "f64": (53, -1022, 1023)}
SIXTEEN = ("f16", "bf16")
PAIRS = {"f16x2": "f16", "bf16x2": "bf16", "u16x2": "u16", "s16x2": "s16"}
NOT_A_NUMBER = 0x7FFF  # of 16 bits, whatever NaN came in


@functools.cache
def width(kind: str) -> int:
    return 8 if kind == "pred" else 32 if kind in PAIRS else int(kind.lstrip("bfus"))


def decode(bits: int, kind: str) -> int | float | bool | tuple:
    """The number that the low bits stand for; of a pair the lower and the upper one."""
    if kind in PAIRS:
        return tuple(decode(bits >> shift & 0xFFFF, PAIRS[kind]) for shift in (0, 16))
    if kind == "bf16":
        return decode(bits << 16, "f32")
    if kind in FLOATS:
        return struct.unpack(FLOATS[kind], bits.to_bytes(8, "little")[: width(kind) // 8])[0]
    return bool(bits) if kind == "pred" else wrap(bits, kind)


def encode(number: int | float, kind: str) -> int:
    if kind == "bf16":
        return encode(number, "f32") >> 16
    if kind in FLOATS:
        return int.from_bytes(struct.pack(FLOATS[kind], number), "little")
    return int(number) & mask(kind)


def tiny(kind: str) -> float:
    """The smallest normal number."""
    return 2.0 ** FORMATS[kind][1]


def mask(kind: str) -> int:
    return (1 << width(kind)) - 1


@functools.cache
def limits(kind: str) -> tuple[int, int]:
    if kind[0] == "s":
        return -(1 << width(kind) - 1), (1 << width(kind) - 1) - 1
    return 0, mask(kind)


def wrap(number: int, kind: str) -> int:
    """An integer modulo 2^width, signed if the type is."""
    number &= mask(kind)
    return number - (1 << width(kind)) if number > limits(kind)[1] else number


def clamp(number: int, kind: str) -> int:
    low, high = limits(kind)
    return max(low, min(high, number))


def is_float(kind: str) -> bool:
    return kind in FORMATS


def rounded(exact: Fraction, kind: str, direction: str = "rn") -> float:
    """The float of that type next to an exact number, in one of PTX's four directions."""
    digits, lowest, highest = FORMATS[kind]
    if exact == 0:
        return 0.0
    above, below = abs(exact.numerator), exact.denominator
    exponent = above.bit_length() - below.bit_length()
    if above << max(-exponent, 0) < below << max(exponent, 0):
        exponent -= 1
    # How many steps of 2^place the number is from zero, and the rest of a step.
    place = max(exponent, lowest) - digits + 1
    step = below << max(place, 0)
    steps, rest = divmod(above << max(-place, 0), step)
    if direction == "rn":
        steps += 2 * rest > step or (2 * rest == step and steps % 2 == 1)
    elif direction == ("rm" if exact < 0 else "rp"):
        steps += rest > 0
    if steps.bit_length() + place > highest + 1:
        to_infinity = direction in ("rn", "rm" if exact < 0 else "rp")
        size = INFINITY if to_infinity else math.ldexp(2**digits - 1, highest - digits + 1)
    else:
        size = math.ldexp(steps, place)
    return -size if exact < 0 else size


def flushed(number: float, kind: str = "f32") -> float:
    return math.copysign(0.0, number) if abs(number) < tiny(kind) else number


def saturated(number: float) -> float:
    return 0.0 if math.isnan(number) or number <= 0 else min(number, 1.0)


def not_negative(number: float) -> float:
    """.relu"""
    return 0.0 if number <= 0 else number


FINISH = {"": lambda number: number, ".sat": saturated, ".relu": not_negative}


def with_modifiers(
    function: Callable, *, ftz: bool = False, finish: str = "", kind: str = "f32"
) -> Callable:
    """A function of floats with .ftz, and .sat or .relu, around it."""

    def apply(*sources):
        results = function(*(flushed(s, kind) for s in sources) if ftz else sources)
        finished = []
        for result in results if isinstance(results, list) else [results]:
            result = FINISH[finish](result)
            finished.append(flushed(result, kind) if ftz else result)
        return finished

    return apply


# ---- cases --------------------------------------------------------------------------------------


def edges(kind: str) -> list[int]:
    """Bit patterns of a type that operations get wrong, and a few others."""
    if kind == "pred":
        return [0, 1]
    if kind in PAIRS:
        chance, one = random.Random(kind), edges(PAIRS[kind])
        return [chance.choice(one) | chance.choice(one) << 16 for _ in range(60)]
    if kind in SIXTEEN:
        chance, ulp = random.Random(kind), 2.0 ** (1 - FORMATS[kind][0])
        one, normal, infinity = (encode(n, kind) for n in (1.0, tiny(kind), INFINITY))
        found = [0, 1, 2, normal - 1, normal, normal + 1, one - 1, one, one + 1, one + 2]
        found += [infinity - 1, infinity, infinity + 1]
        numbers = (1.5, 2.0, 0.5, 2.5, ulp / 2, ulp, 1.5 * ulp, tiny(kind) / 2, 1 / ulp, 2 / ulp)
        found += [encode(number, kind) for number in (*numbers, 100.0)]
        found += [chance.getrandbits(15) for _ in range(12)]
        return [sign | bits for bits in found for sign in (0, 0x8000)]
    if kind == "f32":
        numbers = (0.0, 2.0**-149, TINY - 2.0**-149, TINY, 1 - 2.0**-24, 1.0, 1 + 2.0**-23)
        numbers += (1.5, 2.5, 3.0, 2.0**24 + 2, LARGEST, INFINITY)
    elif kind == "f64":
        numbers = (0.0, 2.0**-1074, 2.0**-1022, 2.0**-149, 1 - 2.0**-53, 1.0, 1 + 2.0**-52)
        numbers += (2.0**-126 - 2.0**-151, 2.5, 1 + 2.0**-24, 1e39, LARGEST, INFINITY)
    else:
        size, chance = width(kind), random.Random(kind)
        top = 1 << size - 1
        found = [0, 1, 2, 3, 7, 255, top - 1, top, top + 1, 2 * top - 2, 2 * top - 1]
        found += [
            int(digits[: size // 4], 16) for digits in ("0123456789abcdef", "f0e1d2c3b4a59687")
        ]
        found += [chance.getrandbits(chance.randint(1, size)) for _ in range(7)]
        return [bits & mask(kind) for bits in found]
    return [encode(sign * number, kind) for number in (*numbers, NAN) for sign in (1, -1)][:-1]


def anything(kind: str, chance: random.Random) -> int:
    """Random bits; a float of a size that meets others in a sum."""
    if kind in FLOATS and kind != "f16":
        number = math.ldexp(chance.uniform(-2, 2), chance.randint(-12, 12))
        return encode(number, kind)
    return chance.getrandbits(width(kind))


# What a conversion has to see: halves, and the numbers around the limits of the integers.
HALVES = [sign * (n + 0.5) for n in (0, 1, 2, 126, 127, 254, 255, 32767, 65535) for sign in (1, -1)]
AROUND = [
    sign * (2.0**power + step)
    for power in (7, 8, 15, 16, 31, 32, 63, 64)
    for step in (0, -(2.0 ** (power - 24)), 2.0 ** (power - 23))
    for sign in (1, -1)
]
FAR = [-0.75, 0.25, 0.75, 1e30, -1e30]
F32_TO_INTEGER = tuple(encode(number, "f32") for number in HALVES + AROUND + FAR)
F64_TO_INTEGER = tuple(
    encode(number, "f64")
    for number in HALVES + AROUND + FAR + [2.0**31 - 0.5, -(2.0**31) - 0.5, 2.0**63 - 1024, 1e300]
)
ANGLES = (0.0, -0.0, 1e-40, 2.0**-126, 0.5, -0.5, 1.0, 1.5707964, -3.1415927, 3.0, -2.0)
EXPONENTS = (1e-40, 0.0, 1.0, -1.0, 0.5, 10.25, -20.7, 127.0, 127.99999, 128.0)
EXPONENTS += (-126.0, -126.5, -149.0, -149.5, -151.0, -200.0)
SHIFTS = (0, 1, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256)
SHIFTS += (0x10000, 0x10001, 2**31, 2**32 - 1)
FIELDS = (0, 1, 5, 8, 16, 30, 31, 32, 33, 40, 62, 63, 64, 65, 128, 200, 254, 255)
FIELDS += (256, 263, 2**32 - 1)
SELECTORS = (0x3210, 0x7654, 0x0123, 0x4567, 0xFEDC, 0xBA98, 0x8888, 0xFFFF, 0x5410, 0x9B71)
SELECTORS += (0xABCD7F3A,)


def cases(form: Form) -> list[tuple[int, ...]]:
    """The operands' bits of every case: edges with edges, then edges and random bits mixed."""
    chance = random.Random(form.ptx)
    choices = form.choices or (None,) * len(form.sources)
    columns = list(zip(form.sources, choices, strict=True))
    values = [list(chosen or edges(kind)) for kind, chosen in columns]
    if {*SIXTEEN, *PAIRS} & {*form.sources, form.result}:  # there are very many of these forms
        count = 100 - len(form.first)
        drawn = [tuple(chance.choice(column) for column in values) for _ in range(count)]
        return [*form.first, *drawn]
    if math.prod(len(column) for column in values) <= 400:
        found = list(itertools.product(*values))
    else:
        found = [tuple(chance.choice(column) for column in values) for _ in range(250)]
    for _ in range(100):
        case = []
        for (kind, chosen), column in zip(columns, values, strict=True):
            fresh = not chosen and chance.random() < 0.5
            case.append(anything(kind, chance) if fresh else chance.choice(column))
        found.append(tuple(case))
    return found


# ---- running ------------------------------------------------------------------------------------


REGISTER = {1: "pred", 8: "b16", 16: "b16", 32: "b32", 64: "b64"}


def register_type(kind: str) -> str:
    return kind if kind in ("pred", "f32", "f64") else REGISTER[width(kind)]


def module(lines: list[str], pointers: int, registers: list[str]) -> str:
    """PTX of a kernel "k" that gets that many pointers; its thread's 8 bytes are at %at0, ..."""
    parameters = ", ".join(f".param .u64 p{number}" for number in range(pointers))
    lead = [f".reg {register};" for register in (*registers, ".b32 %t", ".b64 %o")]
    lead += [f".reg .b64 %at<{pointers}>;", "mov.u32 %t, %tid.x;", "mul.wide.u32 %o, %t, 8;"]
    for number in range(pointers):
        lead += [
            f"ld.param.u64 %at{number}, [p{number}];",
            f"add.s64 %at{number}, %at{number}, %o;",
        ]
    body = "\n".join((*lead, *lines, "ret;"))
    head = ".version 7.6\n.target sm_80\n.address_size 64\n"
    return f"{head}.visible .entry k({parameters})\n{{\n{body}\n}}\n"


def form_module(form: Form) -> str:
    """PTX that applies the form to one case per thread; pointer 0 is the result's."""
    lines, operands, registers = [], [], [f".{register_type(form.result)} %d"]
    for number, kind in enumerate(form.sources):
        registers.append(f".{register_type(kind)} %s{number}")
        at = f"[%at{number + 1}]"
        if kind == "pred":
            registers.append(f".b32 %w{number}")
            lines += [f"ld.global.u32 %w{number}, {at};", f"setp.ne.u32 %s{number}, %w{number}, 0;"]
        else:
            lines.append(f"ld.global.b{width(kind)} %s{number}, {at};")
        operands.append(f"%s{number}")
    lines.append(f"{form.ptx} {', '.join(('%d', *operands, *form.literals))};")
    if form.result == "pred":
        registers.append(".b32 %w")
        lines += ["selp.u32 %w, 1, 0, %d;", "st.global.u32 [%at0], %w;"]
    else:
        lines.append(f"st.global.b{width(form.result)} [%at0], %d;")
    return module(lines, len(form.sources) + 1, registers)


def simulate_ptx(ptx: str, grid: int, block: int, args: tuple) -> simt.Trace:
    """Run the kernel "k" of a PTX text."""
    with patch.object(machine, "compile_kernels", lambda code, *_: (code, {"k": "k"})):
        trace = simt.simulate(KernelText(ptx, "k"), grid, block, args)
    others = [one for one in trace.findings if one.kind != "integer division by zero"]
    assert not others, str(trace.findings)
    return trace


def run_ptx(ptx: str, *columns: list[int]) -> list[int]:
    """What each thread of one block stores at pointer 0; the columns are at the others."""
    result = np.zeros(len(columns[0]) if columns else 32, np.uint64)
    arrays = [np.array(column, np.uint64) for column in columns]
    simulate_ptx(ptx, 1, len(result), (result, *arrays))
    return result.tolist()


def disagreements(form: Form, given: list[tuple], found: list[int], hardware: bool) -> list[str]:
    """One line for every case in which the bits found are none of those expected."""
    wrong = []
    for case, bits in zip(given, found, strict=True):
        sources = [decode(value, kind) for value, kind in zip(case, form.sources, strict=True)]
        expected = form.expect(*sources)
        if not agrees(form, bits, expected, hardware, form.result):
            got = decode(bits, form.result)
            wrong.append(f"{form}{tuple(sources)} gave {got!r} instead of {expected}")
    return wrong


def agrees(form: Form, bits: int, expected, hardware: bool, kind: str) -> bool:
    """Whether bits of a type are what is expected, or one of a list of it."""
    if isinstance(expected, list):
        return any(agrees(form, bits, one, hardware, kind) for one in expected)
    if kind in PAIRS:
        halves = zip((bits & 0xFFFF, bits >> 16), expected, strict=True)
        return all(agrees(form, half, one, hardware, PAIRS[kind]) for half, one in halves)
    got = decode(bits, kind)
    if not is_float(kind) or got == expected != 0:
        return got == expected
    if math.isnan(expected) or math.isnan(got):
        usual = kind not in SIXTEEN or hardware or bits == NOT_A_NUMBER
        return math.isnan(expected) and math.isnan(got) and usual
    if encode(got, kind) == encode(expected, kind):
        return True
    if hardware and ".ftz" in form.ptx and abs(expected) == tiny(kind) and got == 0:
        return True  # the hardware looks whether a result is subnormal before it rounds
    if hardware and math.isfinite(expected):
        if abs(got - expected) <= form.hardware * abs(expected) + form.absolute:
            return True
    return 0 < form.ulp >= abs(place(got, kind) - place(expected, kind))


def place(number: float, kind: str) -> int:
    """Where a float stands among all floats of its type, zero in the middle."""
    size = encode(abs(number), kind)
    return -size if number < 0 else size


# ---- the table, which the modules forms_of_* fill ------------------------------------------------


FORMS: list[Form] = []
WORDS = ("u16", "s16", "u32", "s32", "u64", "s64")
SIGNED = ("s16", "s32", "s64")
BITS = ("b16", "b32", "b64")


def add(ptx: str, sources: str, result: str, expect: Callable, **more) -> None:
    FORMS.append(Form(ptx, tuple(sources.split()), result, expect, **more))
