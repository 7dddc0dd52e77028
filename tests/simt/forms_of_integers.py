"""Forms of integer arithmetic, logic, comparison and selection."""

import functools
import itertools
import math
from collections.abc import Callable

from tests.simt.ptx_forms import (
    BITS,
    FIELDS,
    INFINITY,
    SELECTORS,
    SHIFTS,
    SIGNED,
    TINY,
    WORDS,
    add,
    flushed,
    width,
    wrap,
)


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


def apart(a: int, b: int, c: int, kind: str, size: int, add_up: bool) -> int:
    """How far the parts of two words are apart: side by side, or their sum and c."""
    places = range(0, 32, size)
    far = [abs(wrap(a >> p, f"{kind[0]}{size}") - wrap(b >> p, f"{kind[0]}{size}")) for p in places]
    if add_up:
        return wrap(sum(far) + c, "u32")
    return sum(one << place for one, place in zip(far, places, strict=True))


for kind, count, end in itertools.product(("u32", "s32"), (2, 4), ("", ".add")):
    expect = functools.partial(apart, kind=kind, size=32 // count, add_up=bool(end))
    add(f"vabsdiff{count}.u32.{kind}.{kind}{end}", f"{kind} {kind} u32", "u32", expect)


def nth_one(mask: int, base: int, n: int) -> int:
    """fns, as the manual writes it."""
    left, step = (abs(n) - 1, 1 if n > 0 else -1) if n else (0, 32)
    place = base
    while 0 <= place < 32:
        if mask >> place & 1:
            if left == 0:
                return place
            left -= 1
        place += step
    return 0xFFFFFFFF


counts = tuple(n & 0xFFFFFFFF for n in (0, 1, 2, 3, 16, 32, 33, -1, -2, -5, -32))
add("fns.b32", "b32 b32 s32", "b32", nth_one, choices=(None, (0, 1, 7, 16, 30, 31), counts))


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


def ones(start: int, length: int, mode: str) -> int:
    """bmsk: bits start, start + 1, ..., as many as there are; .wrap looks at five bits of each."""
    if mode == "wrap":
        start, length = start % 32, length % 32
    return sum(1 << bit for bit in range(32) if start <= bit < start + length)


def beyond_a_byte(*sources: int) -> bool:
    """Whether a field's start or length is over 255, which the manual rules out."""
    return max(sources[-2:]) > 255


for mode in ("wrap", "clamp"):
    expect = lambda a, b, m=mode: ones(a, b, m)  # noqa: E731
    add(f"bmsk.{mode}.b32", "u32 u32", "b32", expect, choices=(FIELDS, FIELDS))
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


def ordered(compare: Callable, ftz: bool, unordered: bool = False, kind: str = "f32") -> Callable:
    """A comparison of floats, which is false for NaN, or true if it is an unordered one."""

    def expect(a: float, b: float) -> bool:
        if math.isnan(a) or math.isnan(b):
            return unordered
        return compare(flushed(a, kind), flushed(b, kind)) if ftz else compare(a, b)

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
# What follows a comparison is the same for all of them.
SOME = {
    name: one for name, one in comparison_forms().items() if name.split(".")[1] in ("lt", "neu")
}
for join, (name, (k, compare)) in itertools.product(JOINED, SOME.items()):
    if k in ("u32", "s64", "f32"):
        joined = name.replace(f".{name.split('.')[1]}", f".{name.split('.')[1]}.{join}", 1)
        expect = lambda a, b, c, f=compare, g=JOINED[join]: g(f(a, b), c)  # noqa: E731
        add(joined, f"{k} {k} pred", "pred", expect)


for name, (k, compare) in SOME.items():
    if k in ("u32", "s64", "f32", "f64"):
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
