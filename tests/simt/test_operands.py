"""Literals, guards, carries, parts of registers: how operands are read and written."""

import random
from operator import lt

import numpy as np
import pytest

from tests.simt.forms_of_halves import PAIR_OF
from tests.simt.forms_of_integers import JOINED
from tests.simt.ptx_forms import (
    decode,
    edges,
    encode,
    module,
    run_ptx,
    simulate_ptx,
    width,
    wrap,
)


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
    assert run_ptx(module([*lines, "st.global.u32 [%at0], %r0;"], 1, registers)) == [expected] * 32


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
    assert run_ptx(module(lines, 1, registers)) == [expected] * 32


@pytest.mark.parametrize("kind", ["s32", *PAIR_OF])
@pytest.mark.parametrize("join", ["", *JOINED])
def test_setp_with_two_targets(join: str, kind: str) -> None:
    """The second is about the complement, or of pairs about the upper halves."""
    chance, pair = random.Random(kind), PAIR_OF.get(kind, kind)
    values = edges(pair)
    given = [
        (chance.choice(values), chance.choice(values), chance.randint(0, 1)) for _ in range(200)
    ]
    lines = [f"ld.global.b32 %r{number}, [%at{number + 1}];" for number in range(3)]
    name = f"setp.lt.{join}.{pair}" if join else f"setp.lt.{pair}"
    lines += ["setp.ne.u32 %c, %r2, 0;", f"{name} %p|%q, %r0, %r1{', %c' if join else ''};"]
    lines += ["selp.u32 %r0, 1, 0, %p;", "selp.u32 %r1, 2, 0, %q;", "or.b32 %r0, %r0, %r1;"]
    registers = [".b32 %r<3>", ".pred %p", ".pred %q", ".pred %c"]
    found = run_ptx(
        module([*lines, "st.global.u32 [%at0], %r0;"], 4, registers), *zip(*given, strict=True)
    )
    joined = JOINED.get(join, lambda t, c: t)
    for (a, b, c), bits in zip(given, found, strict=True):
        one, two = decode(a, pair), decode(b, pair)
        low, high = (one < two, not one < two) if kind == "s32" else map(lt, one, two)
        assert bits == joined(low, bool(c)) + 2 * joined(high, bool(c)), (hex(a), hex(b), c)


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
    assert run_ptx(module(lines, 2, registers), values) == expected


def test_unused_part_of_a_vector_may_be_named_by_an_underscore() -> None:
    lines = ["ld.global.b64 %w, [%at1];", "mov.b64 {_, %r0}, %w;", "st.global.u32 [%at0], %r0;"]
    assert run_ptx(module(lines, 2, [".b64 %w", ".b32 %r0"]), [5 << 32 | 9, 6 << 32]) == [5, 6]


def test_narrow_types_read_and_write_the_low_bits_of_wide_registers() -> None:
    values = [0x1_2345_67F0, 0x7F, 0xFFFF_FF80, 0x80]
    lines = [
        "ld.global.b64 %w, [%at1];",
        "cvt.u32.u64 %r0, %w;",
        "cvt.s32.s8 %r1, %r0;",
        "st.global.u32 [%at0], %r1;",
    ]
    expected = [wrap(value, "s8") & 0xFFFFFFFF for value in values]
    assert run_ptx(module(lines, 2, [".b64 %w", ".b32 %r<2>"]), values) == expected
    lines[2:] = ["cvt.u16.u32 %h, %r0;", "cvt.s16.s8 %h, %h;", "st.global.u8 [%at0], %h;"]
    lines.insert(0, "st.global.u64 [%at0], 0;")
    found = run_ptx(module(lines, 2, [".b64 %w", ".b32 %r0", ".b16 %h"]), values)
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
    found = run_ptx(module(lines, 1, [".pred %p", ".b32 %r0"]))
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
    simulate_ptx(ptx, 1, 200, (*results, *arrays))
    for case, *found in zip(given, *(result.tolist() for result in results), strict=True):
        a, b, c = (sum(case[3 * n + k] << size * k for k in range(3)) for n in range(3))
        number = sum((word % 2**size) << size * k for k, word in enumerate(found))
        assert number == expect(a, b, c, size) % 2 ** (3 * size), case


def test_carry_belongs_to_its_thread() -> None:
    lines = ["ld.global.b32 %r0, [%at1];", "add.cc.u32 %r1, %r0, 1;", "setp.lt.u32 %p, %t, 2;"]
    lines += ["@%p add.cc.u32 %r1, %t, 1;", "addc.u32 %r1, 0, 0;", "st.global.u32 [%at0], %r1;"]
    values = [2**32 - 1, 5, 2**32 - 1, 5]
    assert run_ptx(module(lines, 2, [".b32 %r<2>", ".pred %p"]), values) == [0, 0, 1, 0]


def test_a_difference_carries_unless_it_borrows() -> None:
    lines = ["ld.global.b32 %r0, [%at1];", "sub.cc.u32 %r1, %r0, 5;", "addc.u32 %r1, 0, 0;"]
    lines += ["st.global.u32 [%at0], %r1;"]
    assert run_ptx(module(lines, 2, [".b32 %r<2>"]), [4, 5, 6, 0, 2**32 - 1]) == [0, 1, 1, 0, 1]
