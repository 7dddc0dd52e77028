"""Every arithmetic opcode of the SIMT machine, in every form, against scalar Python arithmetic.

A form is one instruction, such as `add.rz.ftz.f32`, with the types of its operands. It runs as a
one-instruction PTX kernel, a case in each thread. What it should give comes from Python's integers,
fractions and `math`, one case at a time, as the PTX ISA manual says it in section 9.7. Where a GPU
is, the GPU has to agree with the same expectations.
"""

import functools
import itertools
import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from helpers import simt
from helpers.simt import UnsupportedPTX, machine
from helpers.simt.operations import COMPARISONS, OPCODES, find_operation

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

    def __str__(self) -> str:
        return " ".join((self.ptx, *self.literals))

    @property
    def opcode(self) -> str:
        return self.ptx.split(".")[0]


# ---- numbers and bits ---------------------------------------------------------------------------


FLOATS = {"f32": "<f", "f64": "<d"}


@functools.cache
def width(kind: str) -> int:
    return 8 if kind == "pred" else int(kind[1:])


def decode(bits: int, kind: str) -> int | float | bool:
    """The number that the low bits stand for."""
    if kind in FLOATS:
        return struct.unpack(FLOATS[kind], bits.to_bytes(8, "little")[: width(kind) // 8])[0]
    return bool(bits) if kind == "pred" else wrap(bits, kind)


def encode(number: int | float, kind: str) -> int:
    if kind in FLOATS:
        return int.from_bytes(struct.pack(FLOATS[kind], number), "little")
    return int(number) & mask(kind)


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
    return kind[0] == "f"


def rounded(exact: Fraction, kind: str, direction: str = "rn") -> float:
    """The float of that type next to an exact number, in one of PTX's four directions."""
    digits, lowest, highest = (24, -126, 127) if kind == "f32" else (53, -1022, 1023)
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


def flushed(number: float) -> float:
    return math.copysign(0.0, number) if abs(number) < TINY else number


def saturated(number: float) -> float:
    return 0.0 if math.isnan(number) or number <= 0 else min(number, 1.0)


def with_modifiers(function: Callable, *, ftz: bool = False, sat: bool = False) -> Callable:
    """An fp32 function with .ftz and .sat around it."""

    def apply(*sources):
        results = function(*(flushed(s) for s in sources) if ftz else sources)
        finished = []
        for result in results if isinstance(results, list) else [results]:
            result = saturated(result) if sat else result
            finished.append(flushed(result) if ftz else result)
        return finished

    return apply


# ---- cases --------------------------------------------------------------------------------------


def edges(kind: str) -> list[int]:
    """Bit patterns of a type that operations get wrong, and a few others."""
    if kind == "pred":
        return [0, 1]
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
    if is_float(kind):
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
    head = ".version 7.0\n.target sm_80\n.address_size 64\n"
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


@pytest.fixture(autouse=True)
def ptx_is_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "compile_template", lambda code, name, *_: (code, name))


def run(ptx: str, *columns: list[int]) -> list[int]:
    """What each thread of one block stores at pointer 0; the columns are at the others."""
    result = np.zeros(len(columns[0]) if columns else 32, np.uint64)
    arrays = [np.array(column, np.uint64) for column in columns]
    trace = simt.simulate(
        SimpleNamespace(code=ptx, name="k", options=()), 1, len(result), (result, *arrays)
    )
    assert not trace.findings, str(trace.findings)
    return result.tolist()


def disagreements(form: Form, given: list[tuple], found: list[int], hardware: bool) -> list[str]:
    """One line for every case in which the bits found are none of those expected."""
    wrong = []
    for case, bits in zip(given, found, strict=True):
        sources = [decode(value, kind) for value, kind in zip(case, form.sources, strict=True)]
        expected = form.expect(*sources)
        expected = expected if isinstance(expected, list) else [expected]
        got = decode(bits, form.result)
        if not any(agrees(form, got, number, hardware) for number in expected):
            wrong.append(f"{form}{tuple(sources)} gave {got!r} instead of {expected}")
    return wrong


def agrees(form: Form, got: float, expected: float, hardware: bool) -> bool:
    if not is_float(form.result) or got == expected != 0:
        return got == expected
    if math.isnan(expected) or math.isnan(got):
        return math.isnan(expected) and math.isnan(got)
    if encode(got, form.result) == encode(expected, form.result):
        return True
    if hardware and ".ftz" in form.ptx and abs(expected) == TINY and got == 0:
        return True  # the hardware looks whether a result is subnormal before it rounds
    if hardware and math.isfinite(expected):
        if abs(got - expected) <= form.hardware * abs(expected) + form.absolute:
            return True
    return 0 < form.ulp >= abs(place(got, form.result) - place(expected, form.result))


def place(number: float, kind: str) -> int:
    """Where a float stands among all floats of its type, zero in the middle."""
    size = encode(abs(number), kind)
    return -size if number < 0 else size


# ---- the table: integers ------------------------------------------------------------------------


FORMS: list[Form] = []
WORDS = ("u16", "s16", "u32", "s32", "u64", "s64")
SIGNED = ("s16", "s32", "s64")
BITS = ("b16", "b32", "b64")


def add(ptx: str, sources: str, result: str, expect: Callable, **more) -> None:
    FORMS.append(Form(ptx, tuple(sources.split()), result, expect, **more))


def wrapping(function: Callable[..., int], kind: str) -> Callable:
    return lambda *sources: wrap(function(*sources), kind)


def quotient(a: int, b: int) -> int:
    """Truncated; all ones for a division by zero."""
    if b == 0:
        return -1
    size = abs(a) // abs(b)
    return size if (a < 0) == (b < 0) else -size


def remainder(a: int, b: int) -> int:
    return a if b == 0 else a - b * quotient(a, b)


def by_zero(a: int, b: int) -> bool:
    return b == 0


for k in WORDS:
    n = width(k)
    add(f"add.{k}", f"{k} {k}", k, wrapping(lambda a, b: a + b, k))
    add(f"sub.{k}", f"{k} {k}", k, wrapping(lambda a, b: a - b, k))
    add(f"mul.lo.{k}", f"{k} {k}", k, wrapping(lambda a, b: a * b, k))
    add(f"mul.hi.{k}", f"{k} {k}", k, wrapping(lambda a, b, n=n: a * b >> n, k))
    add(f"mad.lo.{k}", f"{k} {k} {k}", k, wrapping(lambda a, b, c: a * b + c, k))
    add(f"mad.hi.{k}", f"{k} {k} {k}", k, wrapping(lambda a, b, c, n=n: (a * b >> n) + c, k))
    add(f"div.{k}", f"{k} {k}", k, wrapping(quotient, k), unspecified=by_zero)
    add(f"rem.{k}", f"{k} {k}", k, wrapping(remainder, k), unspecified=by_zero)
    add(f"max.{k}", f"{k} {k}", k, max)
    add(f"min.{k}", f"{k} {k}", k, min)
    if width(k) < 64:
        wide = f"{k[0]}{2 * width(k)}"
        add(f"mul.wide.{k}", f"{k} {k}", wide, wrapping(lambda a, b: a * b, wide))
        add(f"mad.wide.{k}", f"{k} {k} {wide}", wide, wrapping(lambda a, b, c: a * b + c, wide))
for k in SIGNED:
    add(f"abs.{k}", k, k, wrapping(abs, k))
    add(f"neg.{k}", k, k, wrapping(lambda a: -a, k))
for k in BITS:
    add(f"and.{k}", f"{k} {k}", k, lambda a, b: a & b)
    add(f"or.{k}", f"{k} {k}", k, lambda a, b: a | b)
    add(f"xor.{k}", f"{k} {k}", k, lambda a, b: a ^ b)
    add(f"not.{k}", k, k, wrapping(lambda a: ~a, k))
    add(f"cnot.{k}", k, k, lambda a: int(a == 0))
    add(
        f"shl.{k}", f"{k} u32", k, wrapping(lambda a, n: a << min(n, 64), k), choices=(None, SHIFTS)
    )
for k in (*BITS, *WORDS):
    # Python's >> keeps the sign, as the signed form does.
    add(f"shr.{k}", f"{k} u32", k, lambda a, n: a >> min(n, 64), choices=(None, SHIFTS))
add("and.pred", "pred pred", "pred", lambda a, b: a and b)
add("or.pred", "pred pred", "pred", lambda a, b: a or b)
add("xor.pred", "pred pred", "pred", lambda a, b: a != b)
add("not.pred", "pred", "pred", lambda a: not a)


for k in WORDS:
    expect = wrapping(lambda a, b, c: abs(a - b) + c, k)
    add(f"sad.{k}", f"{k} {k} {k}", k, expect)


def dot_product(a: int, b: int, c: int, types: tuple[str, str], part: str) -> int:
    """c and four products of bytes, or two of 16-bit values with two bytes."""
    first, second = (kind[0] for kind in types)
    count, size = (2, 16) if part else (4, 8)
    skipped = 2 if part == "hi" else 0
    for place_ in range(count):
        piece = wrap(a >> size * place_, f"{first}{size}")
        c += piece * wrap(b >> 8 * (place_ + skipped), f"{second}8")
    return wrap(c, "s32" if "s" in (first, second) else "u32")


for part, pair in itertools.product(("", "lo", "hi"), itertools.product(("u32", "s32"), repeat=2)):
    ptx = ".".join(("dp2a", part, *pair) if part else ("dp4a", *pair))
    result = "s32" if "s32" in pair else "u32"
    expect = functools.partial(dot_product, types=pair, part=part)
    add(ptx, f"{pair[0]} {pair[1]} {result}", result, expect)


def funnel(left: bool, wraps: bool) -> Callable:
    def shift(low: int, high: int, amount: int) -> int:
        amount = amount % 32 if wraps else min(amount, 32)
        both = high << 32 | low
        return (both << amount >> 32 if left else both >> amount) & 0xFFFFFFFF

    return shift


for way, mode in itertools.product("lr", ("wrap", "clamp")):
    expect = funnel(way == "l", mode == "wrap")
    add(f"shf.{way}.{mode}.b32", "b32 b32 u32", "b32", expect, choices=(None, None, SHIFTS))


def by_table(table: int, a: int, b: int, c: int) -> int:
    """Each result bit is the bit of the table that the three source bits number."""
    result = 0
    for bit in range(32):
        entry = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | c >> bit & 1
        result |= (table >> entry & 1) << bit
    return result


for table in (0x00, 0x01, 0x80, 0xE8, 0x96, 0xCA, 0x1B, 0xFF):
    add(
        "lop3.b32", "b32 b32 b32", "b32", functools.partial(by_table, table), literals=(hex(table),)
    )


def highest_bit(a: int, kind: str, distance: bool) -> int:
    """The top bit that differs from the sign, or how far it is from the top; -1 for none."""
    found = (~a if a < 0 else a).bit_length() - 1
    return wrap(width(kind) - 1 - found if distance and found >= 0 else found, "u32")


def extract(a: int, start: int, length: int, kind: str) -> int:
    """bfe, written out bit by bit as the manual does."""
    top, start, length = width(kind) - 1, start & 255, length & 255
    sign = 0 if kind[0] == "u" or length == 0 else a >> min(start + length - 1, top) & 1
    result = 0
    for bit in range(top + 1):
        inside = bit < length and start + bit <= top
        result |= (a >> (start + bit) & 1 if inside else sign) << bit
    return wrap(result, kind)


def insert(field: int, base: int, start: int, length: int, kind: str) -> int:
    """bfi, likewise."""
    start, length = start & 255, length & 255
    for bit in range(length):
        if start + bit < width(kind):
            base = base & ~(1 << start + bit) | (field >> bit & 1) << (start + bit)
    return base


def permute(a: int, b: int, selector: int) -> int:
    source, result = a.to_bytes(4, "little") + b.to_bytes(4, "little"), []
    for place_ in range(4):
        chosen = selector >> (4 * place_) & 15
        byte = source[chosen & 7]
        result.append((255 if byte & 128 else 0) if chosen & 8 else byte)
    return int.from_bytes(bytes(result), "little")


def beyond_a_byte(*sources: int) -> bool:
    """Whether a field's start or length is over 255, which the manual rules out."""
    return max(sources[-2:]) > 255


for k in ("b32", "b64"):
    n = width(k)
    add(f"popc.{k}", k, "u32", lambda a: bin(a).count("1"))
    add(f"clz.{k}", k, "u32", lambda a, n=n: n - a.bit_length())
    add(f"brev.{k}", k, k, lambda a, n=n: int(f"{a:0{n}b}"[::-1], 2))
    expect = functools.partial(insert, kind=k)
    choices = (None, None, FIELDS, FIELDS)
    add(f"bfi.{k}", f"{k} {k} u32 u32", k, expect, choices=choices, unspecified=beyond_a_byte)
for k in ("u32", "s32", "u64", "s64"):
    add(f"bfind.{k}", k, "u32", functools.partial(highest_bit, kind=k, distance=False))
    add(f"bfind.shiftamt.{k}", k, "u32", functools.partial(highest_bit, kind=k, distance=True))
    expect = functools.partial(extract, kind=k)
    choices = (None, FIELDS, FIELDS)
    add(f"bfe.{k}", f"{k} u32 u32", k, expect, choices=choices, unspecified=beyond_a_byte)
add("prmt.b32", "b32 b32 b32", "b32", permute, choices=(None, None, SELECTORS))


# ---- the table: comparison and selection --------------------------------------------------------


ORDERED = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
JOINED = {"and": lambda t, c: t and c, "or": lambda t, c: t or c, "xor": lambda t, c: t != c}


def ordered(compare: Callable, ftz: bool, unordered: bool = False) -> Callable:
    """A comparison of floats, which is false for NaN, or true if it is an unordered one."""

    def expect(a: float, b: float) -> bool:
        if math.isnan(a) or math.isnan(b):
            return unordered
        return compare(flushed(a), flushed(b)) if ftz else compare(a, b)

    return expect


def comparison_forms() -> dict[str, tuple[str, Callable]]:
    """Every setp without a joined predicate: its name, the sources' type and the expectation."""
    found = {}
    for kind in WORDS:
        names = ORDERED | {n: ORDERED[o] for n, o in UNSIGNED_NAMES.items() if kind[0] == "u"}
        found |= {f"setp.{name}.{kind}": (kind, compare) for name, compare in names.items()}
    for kind, name in itertools.product(BITS, ("eq", "ne")):
        found[f"setp.{name}.{kind}"] = (kind, ORDERED[name])
    for kind, ftz in (("f32", ""), ("f32", ".ftz"), ("f64", "")):
        for name, compare in ORDERED.items():
            found[f"setp.{name}{ftz}.{kind}"] = (kind, ordered(compare, bool(ftz)))
            found[f"setp.{name}u{ftz}.{kind}"] = (kind, ordered(compare, bool(ftz), True))
        found[f"setp.num{ftz}.{kind}"] = (kind, lambda a, b: not (math.isnan(a) or math.isnan(b)))
        found[f"setp.nan{ftz}.{kind}"] = (kind, lambda a, b: math.isnan(a) or math.isnan(b))
    return found


for name, (k, compare) in comparison_forms().items():
    add(name, f"{k} {k}", "pred", compare)
for join, (name, (k, compare)) in itertools.product(JOINED, comparison_forms().items()):
    if k in ("u32", "s64", "f32"):
        joined = name.replace(f".{name.split('.')[1]}", f".{name.split('.')[1]}.{join}", 1)
        expect = lambda a, b, c, f=compare, g=JOINED[join]: g(f(a, b), c)  # noqa: E731
        add(joined, f"{k} {k} pred", "pred", expect)


for name, (k, compare) in comparison_forms().items():
    if k in ("u32", "s64", "b64", "f32", "f64"):
        for result, true in (("u32", 2**32 - 1), ("s32", -1), ("f32", 1.0)):
            written = f"{name.removesuffix(k).replace('setp', 'set')}{result}.{k}"
            expect = lambda a, b, f=compare, t=true: t if f(a, b) else 0 * t  # noqa: E731
            add(written, f"{k} {k}", result, expect)
for join, ftz in itertools.product(JOINED, ("", ".ftz")):
    compare = ordered(ORDERED["lt"], bool(ftz))
    expect = lambda a, b, c, f=compare, g=JOINED[join]: -int(g(f(a, b), c))  # noqa: E731
    add(f"set.lt.{join}{ftz}.s32.f32", "f32 f32 pred", "s32", expect)


def chosen_by_sign(a, b, c, ftz: bool = False):
    """slct: a for c >= 0, -0 included; b for a NaN."""
    return a if (flushed(c) if ftz else c) >= 0 else b


CLASSES = {
    "finite": lambda a, tiny: math.isfinite(a),
    "infinite": lambda a, tiny: math.isinf(a),
    "number": lambda a, tiny: not math.isnan(a),
    "notanumber": lambda a, tiny: math.isnan(a),
    "normal": lambda a, tiny: a == 0 or tiny <= abs(a) < INFINITY,  # zeros are normal
    "subnormal": lambda a, tiny: 0 < abs(a) < tiny,
}
for k in (*BITS, *WORDS, "f32", "f64"):
    add(f"selp.{k}", f"{k} {k} pred", k, lambda a, b, p: a if p else b)
    add(f"slct.{k}.s32", f"{k} {k} s32", k, chosen_by_sign)
    add(f"slct.{k}.f32", f"{k} {k} f32", k, chosen_by_sign)
    expect = functools.partial(chosen_by_sign, ftz=True)
    add(f"slct.ftz.{k}.f32", f"{k} {k} f32", k, expect)
for k, smallest in (("f32", TINY), ("f64", 2.0**-1022)):
    for name, belongs in CLASSES.items():
        add(f"testp.{name}.{k}", k, "pred", functools.partial(belongs, tiny=smallest))
    add(f"copysign.{k}", f"{k} {k}", k, lambda a, b: math.copysign(b, a))
for k in ("pred", *BITS, *WORDS, "f32", "f64"):
    add(f"mov.{k}", k, k, lambda a: a)
for k, way in itertools.product(("u32", "u64"), ("to.global", "global")):
    if k == "u64":
        add(f"cvta.{way}.{k}", k, k, lambda a: a)


# ---- the table: floats --------------------------------------------------------------------------


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


def product(a: float, b: float, direction: str = "rn") -> float:
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return a * b
    return rounded(Fraction(a) * Fraction(b), "f32", direction)


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
    dot, modifiers = f".{d}" if d else "", {"ftz": bool(ftz), "sat": bool(sat)}
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


def exponential(a: float) -> float:
    if math.isnan(a) or a == INFINITY:
        return a
    return 0.0 if a < -2000 else INFINITY if a > 2000 else rounded(Fraction(2.0**a), "f32")


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


def tangent(a: float) -> float:
    if math.isnan(a) or a == 0:
        return a
    return rounded(Fraction(math.tanh(a)), "f32")


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
        return 0 if source == "f32" and width(result) < 64 else wrap(1 << width(result) - 1, result)
    if math.isinf(a):
        return limits(result)[a > 0]
    return clamp(TO_INTEGER[way](flushed(a) if ftz else a), result)


def integral(a: float, way: str) -> float:
    return math.copysign(float(TO_INTEGER[way](a)), a) if math.isfinite(a) else a


def narrowed(a: float, direction: str) -> float:
    return rounded(Fraction(a), "f32", direction) if math.isfinite(a) and a else a


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
        expect = with_modifiers(expect, sat=bool(sat))
        add(f"cvt.{d}{sat}.{result}.{source}", source, result, expect)
for ftz, sat in itertools.product(("", ".ftz"), ("", ".sat")):
    finish = functools.partial(with_modifiers, ftz=bool(ftz), sat=bool(sat))
    add(f"cvt{ftz}{sat}.f32.f32", "f32", "f32", finish(lambda a: a))
    add(f"cvt{ftz}{sat}.f64.f32", "f32", "f64", finish(lambda a: a))
    for way in TO_INTEGER:
        expect = finish(functools.partial(integral, way=way))
        values = (*edges("f32"), *F32_TO_INTEGER)
        add(f"cvt.{way}{ftz}{sat}.f32.f32", "f32", "f32", expect, choices=(values,))
    for d in DIRECTIONS:
        # .ftz flushes the fp32 side, which is the result here.
        expect = with_modifiers(functools.partial(narrowed, direction=d), sat=bool(sat))
        if ftz:
            expect = lambda a, f=expect: [flushed(r) for r in f(a)]  # noqa: E731
        add(f"cvt.{d}{ftz}{sat}.f32.f64", "f64", "f32", expect)
for way in TO_INTEGER:
    expect = functools.partial(integral, way=way)
    add(f"cvt.{way}.f64.f64", "f64", "f64", expect, choices=(F64_TO_INTEGER,))
add("cvt.f64.f64", "f64", "f64", lambda a: a)


# ---- tests --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_opcode_computes_what_the_manual_says(form: Form) -> None:
    given = cases(form)
    found = run(form_module(form), *zip(*given, strict=True))
    wrong = disagreements(form, given, found, hardware=False)
    assert not wrong, "\n".join([f"{len(wrong)} of {len(given)} cases:", *wrong[:10]])


@pytest.mark.gpu
def test_the_gpu_agrees_with_the_table(tmp_path: Path) -> None:
    """The expectations themselves, against hardware."""
    import cupy

    if int(cupy.cuda.Device().compute_capability) < 80:
        pytest.skip("max.NaN needs compute capability 8.0")
    wrong = []
    for number, form in enumerate(FORMS):
        given = [
            case for case in cases(form) if not form.unspecified(*map(decode, case, form.sources))
        ]
        path = tmp_path / f"{number}.ptx"  # CuPy remembers what it loaded from a path
        path.write_text(form_module(form))
        columns = [cupy.array(column, cupy.uint64) for column in zip(*given, strict=True)]
        result = cupy.zeros(len(given), cupy.uint64)
        kernel = cupy.RawModule(path=str(path)).get_function("k")
        kernel((1,), (len(given),), (result, *columns))
        wrong += disagreements(form, given, result.get().tolist(), hardware=True)[:10]
    assert not wrong, "\n".join(wrong)


def test_every_opcode_is_in_the_table() -> None:
    # Those that read the carry flag are tested below, in chains.
    assert {form.opcode for form in FORMS} | {"addc", "subc", "madc"} == set(OPCODES)
    assert len(FORMS) == len({str(form) for form in FORMS})


def test_every_comparison_is_in_the_table() -> None:
    assert {form.ptx.split(".")[1] for form in FORMS if form.opcode == "setp"} == set(COMPARISONS)


@pytest.mark.parametrize(
    "ptx",
    [
        "frobnicate.b32",
        "add.sat.s32",
        "add.cc.f32",
        "addc.u16",
        "add.rz.f16",
        "fma.rn.f32.f16",
        "mul.rm.f64",
        "fma.rz.f64",
        "mul24.lo.u32",
        "mad.hi.sat.s32",
        "sad.f32",
        "div.rm.f64",
        "max.xorsign.abs.f32",
        "max.relu.s32",
        "sqrt.rz.f32",
        "rcp.rp.ftz.f32",
        "ex2.approx.bf16",
        "lop3.or.b32",
        "prmt.b32.f4e",
        "set.lt.u16.f32",
        "setp.almost.f32",
        "testp.odd.f32",
        "cvt.f16.f32",
        "cvt.rna.tf32.f32",
        "cvt.rn.relu.f32.f64",
        "cvt.rz.f64.s64",
        "cvt.s32.f32",
        "cvt.pack.sat.u8.s32.b32",
        "cvta.shared.u64",
        "dp4a.lo.u32.u32",
        "shfl.sync.bfly.b32",
        "madc.wide.u32",
        "dp2a.u32.u32",
        "fns.b32",
        "rcp.rz.f64",
        "vabsdiff4.u32.u32.u32",
        "add.sat.bf16",
        "add.ftz.bf16x2",
        "add.rn.f32.bf16",
        "mul.u16x2",
        "fma.f16",
        "fma.rn.sat.relu.f16",
        "fma.rn.oob.f16",
        "max.relu.f16",
        "max.u16x2.relu",
        "max.xorsign.abs.f16x2",
        "neg.s16x2",
        "abs.ftz.f16",
        "ex2.f16",
        "ex2.approx.ftz.f16",
        "set.lt.f32.f16",
        "cvt.rn.sat.bf16.f32",
        "cvt.rm.relu.f16.f32",
        "tanh.approx.ftz.f16",
        "selp.f16",
        "mov.f16x2",
        "and.bf16",
        "set.lt.f32.f16x2",
        "set.lt.f16.f32",
        "cvt.rn.satfinite.bf16.f32",
        "cvt.rm.f16x2.f32",
        "cvt.rn.f16x2.f16",
        "cvt.rn.f16.f16",
        "cvt.rn.f32.f16",
        "cvt.rn.ftz.f16.f64",
        "cvt.bf16.s32",
        "cvt.s32.f16",
    ],
)
def test_other_forms_are_refused_by_name(ptx: str) -> None:
    name, *modifiers = ptx.split(".")
    with pytest.raises(UnsupportedPTX, match=f"'{ptx}'"):
        find_operation(name, tuple(modifiers))


def test_registers_of_other_types_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedPTX, match=r"\.reg \.b128 %q"):
        run(module([], 1, [".b128 %q"]))


# ---- operands -----------------------------------------------------------------------------------


def bits(number: float) -> int:
    return encode(number, "f32")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["mov.b32 %r0, -5;"], 2**32 - 5),
        (["mov.b32 %r0, 0xfffffff0U;"], 0xFFFFFFF0),
        (["mov.b64 %l0, -1;", "shr.u64 %l0, %l0, 60;", "cvt.u32.u64 %r0, %l0;"], 15),
        (["mov.f32 %r0, 0f3FC00000;"], bits(1.5)),
        (["mov.f32 %r0, 1.5;"], bits(1.5)),
        (["mov.f32 %r0, -2.5e3;"], bits(-2500.0)),
        (["mov.f32 %r0, 0d3FF8000000000000;"], bits(1.5)),
        (["mov.f32 %r0, 0f40000000;", "add.f32 %r0, %r0, 0.1;"], bits(2.1)),
        (["mov.f64 %l0, 1.5;", "cvt.rn.f32.f64 %r0, %l0;"], bits(1.5)),
        (["mov.u32 %r0, %ntid.x;"], 32),
        (["mov.u16 %h0, %ntid.x;", "cvt.u32.u16 %r0, %h0;"], 32),
        (["mov.u32 %r0, %laneid;", "mov.u32 %r0, 7;"], 7),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_literals_mean_what_ptx_says(lines: list[str], expected: int) -> None:
    registers = [".b32 %r0", ".b64 %l0", ".b16 %h0"]
    assert run(module([*lines, "st.global.u32 [%at0], %r0;"], 1, registers)) == [expected] * 32


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # A literal is flushed like a register.
        (["mul.ftz.f32 %f1, %big, 0f00400000;"], 0),
        (["mov.f32 %f0, 0f00000000;", "max.ftz.f32 %f1, %f0, 0f00400000;"], 0),
        (["mov.f32 %f0, 0f00000000;", "max.f32 %f1, %f0, 0f00400000;"], 0x00400000),
        (["mov.f32 %f0, 0f00400000;", "mul.ftz.f32 %f1, %f0, %big;"], 0),
        (["mov.f32 %f0, 0f00400000;", "mul.f32 %f1, %f0, %big;"], bits(2.0**-107)),
        # A copy, a selection and an integer may hold a subnormal number whatever came before.
        (["mov.f32 %f0, 0f00400000;", "mov.f32 %f2, %f0;", "mul.ftz.f32 %f1, %f2, %big;"], 0),
        (
            [
                "mov.f32 %f0, 0f00400000;",
                "slct.ftz.f32.f32 %f2, %f0, %one, %one;",
                "mul.ftz.f32 %f1, %f2, %big;",
            ],
            0,
        ),
        (
            [
                "cvt.rni.ftz.s32.f32 %r0, %big;",
                "mov.b32 %f2, %r0;",
                "mul.ftz.f32 %f1, %f2, %big;",
            ],
            0,
        ),
        (["mov.b32 %f0, %t;", "mul.ftz.f32 %f1, %f0, %big;"], 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_ftz_reaches_every_operand(lines: list[str], expected: int) -> None:
    setup = ["mov.f32 %one, 0f3F800000;", "mov.f32 %big, 0f49800000;"]  # 1 and 2^20
    registers = [f".f32 {name}" for name in ("%f0", "%f1", "%f2", "%one", "%big")] + [".b32 %r0"]
    lines = [*setup, *lines, "st.global.f32 [%at0], %f1;"]
    assert run(module(lines, 1, registers)) == [expected] * 32


@pytest.mark.parametrize("join", [None, *JOINED])
def test_second_target_of_setp_joins_the_complement(join: str | None) -> None:
    given = [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]
    name = f"setp.lt.{join}.s32" if join else "setp.lt.s32"
    lines = [f"ld.global.b32 %r{number}, [%at{number + 1}];" for number in range(3)]
    lines += ["setp.ne.u32 %c, %r2, 0;", f"{name} %p|%q, %r0, %r1{', %c' if join else ''};"]
    lines += ["selp.u32 %r0, 1, 0, %p;", "selp.u32 %r1, 2, 0, %q;", "or.b32 %r0, %r0, %r1;"]
    registers = [".b32 %r<3>", ".pred %p", ".pred %q", ".pred %c"]
    found = run(
        module([*lines, "st.global.u32 [%at0], %r0;"], 4, registers), *zip(*given, strict=True)
    )
    joined = JOINED[join] if join else lambda t, c: t
    assert found == [joined(a < b, c) + 2 * joined(not a < b, c) for a, b, c in given]


@pytest.mark.parametrize(("wide", "part", "count"), [(32, 16, 2), (64, 32, 2), (64, 16, 4)])
def test_mov_packs_and_unpacks_vectors(wide: int, part: int, count: int) -> None:
    values = [int("0123456789abcdef"[: wide // 4], 16), (1 << wide) - 2, 1 << wide - 1]
    parts = [f"%h{number}" for number in range(count)]
    lines = [
        f"ld.global.b{wide} %w, [%at1];",
        f"mov.b{wide} {{{', '.join(parts)}}}, %w;",
        f"mov.b{wide} %w, {{{', '.join(reversed(parts))}}};",
        f"st.global.b{wide} [%at0], %w;",
    ]
    expected = []
    for value in values:
        pieces = [value >> part * number & (1 << part) - 1 for number in range(count)]
        expected.append(sum(piece << part * n for n, piece in enumerate(reversed(pieces))))
    registers = [f".b{wide} %w", f".b{part} %h<{count}>"]
    assert run(module(lines, 2, registers), values) == expected


def test_unused_part_of_a_vector_may_be_named_by_an_underscore() -> None:
    lines = ["ld.global.b64 %w, [%at1];", "mov.b64 {_, %r0}, %w;", "st.global.u32 [%at0], %r0;"]
    assert run(module(lines, 2, [".b64 %w", ".b32 %r0"]), [5 << 32 | 9, 6 << 32]) == [5, 6]


def test_narrow_types_read_and_write_the_low_bits_of_wide_registers() -> None:
    values = [0x1_2345_67F0, 0x7F, 0xFFFF_FF80, 0x80]
    lines = [
        "ld.global.b64 %w, [%at1];",
        "cvt.u32.u64 %r0, %w;",
        "cvt.s32.s8 %r1, %r0;",
        "st.global.u32 [%at0], %r1;",
    ]
    expected = [wrap(value, "s8") & 0xFFFFFFFF for value in values]
    assert run(module(lines, 2, [".b64 %w", ".b32 %r<2>"]), values) == expected
    lines[2:] = ["cvt.u16.u32 %h, %r0;", "cvt.s16.s8 %h, %h;", "st.global.u8 [%at0], %h;"]
    lines.insert(0, "st.global.u64 [%at0], 0;")
    found = run(module(lines, 2, [".b64 %w", ".b32 %r0", ".b16 %h"]), values)
    assert found == [value & 0xFF for value in values]


def test_guards_choose_the_threads_that_execute() -> None:
    lines = [
        "setp.lt.u32 %p, %t, 10;",
        "mov.u32 %r0, 1;",
        "@%p mov.u32 %r0, 2;",
        "@!%p add.u32 %r0, %r0, %t;",
        "@%p add.u32 %r0, %r0, 5;",
        "st.global.u32 [%at0], %r0;",
    ]
    found = run(module(lines, 1, [".pred %p", ".b32 %r0"]))
    assert found == [7 if lane < 10 else 1 + lane for lane in range(32)]


CHAINS = {  # three words, each with the carry of the one below
    "add": (["add.cc", "addc.cc", "addc"], lambda a, b, c, w: a + b),
    "sub": (["sub.cc", "subc.cc", "subc"], lambda a, b, c, w: a - b),
    # The product of the lowest words, and what its upper word carries.
    "mad": (
        ["mad.lo.cc", "madc.hi.cc", "addc"],
        lambda a, b, c, w: (a % 2**w) * (b % 2**w) + c,
    ),
    # The lower words of products, each with the carry of the one below, and at last an upper one.
    "madc": (
        ["mad.hi.cc", "madc.lo.cc", "madc.hi"],
        lambda a, b, c, w: (
            ((a % 2**w) * (b % 2**w) >> w)
            + ((a >> w) % 2**w * ((b >> w) % 2**w) % 2**w << w)
            + ((a >> 2 * w) * (b >> 2 * w) >> w << 2 * w)
            + c
        ),
    ),
}


# The upper half of a signed product is another one, so products are chained unsigned.
@pytest.mark.parametrize(
    ("chain", "kind"),
    [(c, k) for c in CHAINS for k in ("u32", "u64", "s32", "s64") if k[0] == "u" or "m" not in c],
)
def test_carry_goes_from_instruction_to_instruction(chain: str, kind: str) -> None:
    opcodes, expect = CHAINS[chain]
    size, chance = width(kind), random.Random(kind)
    top = 2**size - 1
    words = [(chance.choice((0, 1, top, chance.getrandbits(size)))) for _ in range(9 * 200)]
    given = [tuple(words[9 * k : 9 * k + 9]) for k in range(200)]
    lines = [f"ld.global.b{size} %s{k}, [%at{k + 3}];" for k in range(9)]
    for k, opcode in enumerate(opcodes):
        addend = [f"%s{k + 6}"] if opcode.startswith("mad") else []
        first = [f"%s{k}", f"%s{k + 3}"]
        if chain == "mad" and k == 1:
            first = ["%s0", "%s3"]
        if chain == "mad" and k == 2:
            first = ["%s8", "0"]
        lines += [f"{opcode}.{kind} {', '.join((f'%d{k}', *first, *addend))};"]
        lines += ["add.u32 %t, %t, 1;"]  # leaves the flag alone
    lines += [f"st.global.b{size} [%at{k}], %d{k};" for k in range(3)]
    registers = [f".b{size} %s<9>", f".b{size} %d<3>"]
    ptx = module(lines, 12, registers)
    results = [np.zeros(200, np.uint64) for _ in range(3)]
    arrays = [np.array(column, np.uint64) for column in zip(*given, strict=True)]
    kernel = SimpleNamespace(code=ptx, name="k", options=())
    trace = simt.simulate(kernel, 1, 200, (*results, *arrays))
    assert not trace.findings, str(trace.findings)
    for case, *found in zip(given, *(result.tolist() for result in results), strict=True):
        a, b, c = (sum(case[3 * n + k] << size * k for k in range(3)) for n in range(3))
        number = sum((word % 2**size) << size * k for k, word in enumerate(found))
        assert number == expect(a, b, c, size) % 2 ** (3 * size), case


def test_carry_belongs_to_its_thread() -> None:
    lines = ["ld.global.b32 %r0, [%at1];", "add.cc.u32 %r1, %r0, 1;", "setp.lt.u32 %p, %t, 2;"]
    lines += ["@%p add.cc.u32 %r1, %t, 1;", "addc.u32 %r1, 0, 0;", "st.global.u32 [%at0], %r1;"]
    values = [2**32 - 1, 5, 2**32 - 1, 5]
    assert run(module(lines, 2, [".b32 %r<2>", ".pred %p"]), values) == [0, 0, 1, 0]


def test_a_difference_carries_unless_it_borrows() -> None:
    lines = ["ld.global.b32 %r0, [%at1];", "sub.cc.u32 %r1, %r0, 5;", "addc.u32 %r1, 0, 0;"]
    lines += ["st.global.u32 [%at0], %r1;"]
    assert run(module(lines, 2, [".b32 %r<2>"]), [4, 5, 6, 0, 2**32 - 1]) == [0, 1, 1, 0, 1]
