"""16-bit floats: rounding to them, and comparisons of pairs with two results."""

import itertools
import random

import numpy as np
import pytest

from helpers.simt.operations.rounding import narrow, widen
from tests.simt.forms_of_floats import DIRECTIONS
from tests.simt.forms_of_halves import PAIR_OF, comparing
from tests.simt.forms_of_integers import JOINED
from tests.simt.ptx_forms import (
    NOT_A_NUMBER,
    SIXTEEN,
    decode,
    edges,
    module,
    run_ptx,
)


@np.errstate(all="ignore")
@pytest.mark.parametrize("base", SIXTEEN)
def test_every_value_survives_widening_and_narrowing(base: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    wide = widen(bits.view(np.float16) if base == "f16" else bits, base)
    expected = np.array([decode(int(one), base) for one in bits])
    np.testing.assert_array_equal(wide, expected.astype(np.float32))
    assert np.array_equal(np.signbit(wide), bits >> 15 == 1)
    numbers = ~np.isnan(wide)
    for values, direction in itertools.product((wide, wide.astype(np.float64)), DIRECTIONS):
        back = narrow(values, base, direction).view(np.uint16)
        assert np.array_equal(back[numbers], bits[numbers])
        assert (back[~numbers] == NOT_A_NUMBER).all()


@pytest.mark.parametrize("base", SIXTEEN)
@pytest.mark.parametrize("join", ["", *JOINED])
def test_setp_of_pairs_writes_a_predicate_for_each_half(base: str, join: str) -> None:
    chance = random.Random(base)
    values = [
        tuple(chance.choice(edges(base)) | chance.choice(edges(base)) << 16 for _ in range(2))
        + (chance.randint(0, 1),)
        for _ in range(200)
    ]
    lines = [f"ld.global.b32 %r{k}, [%at{k + 1}];" for k in range(3)]
    name = f"setp.lt.{join}.{PAIR_OF[base]}" if join else f"setp.lt.{PAIR_OF[base]}"
    lines += ["setp.ne.u32 %c, %r2, 0;", f"{name} %p|%q, %r0, %r1{', %c' if join else ''};"]
    lines += ["selp.u32 %r0, 1, 0, %p;", "selp.u32 %r1, 2, 0, %q;", "or.b32 %r0, %r0, %r1;"]
    lines += ["st.global.u32 [%at0], %r0;"]
    ptx = module(lines, 4, [".b32 %r<3>", ".pred %p", ".pred %q", ".pred %c"])
    found = run_ptx(ptx, *zip(*values, strict=True))
    compare, joined = comparing("lt", base), JOINED.get(join, lambda t, c: t)
    for (a, b, c), bits in zip(values, found, strict=True):
        numbers = zip(decode(a, PAIR_OF[base]), decode(b, PAIR_OF[base]), strict=True)
        low, high = (joined(compare(*one), bool(c)) for one in numbers)
        assert bits == low + 2 * high, f"{a:#x} {b:#x} {c}"
