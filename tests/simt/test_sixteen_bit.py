"""Every opcode on 16-bit floats and pairs, in every form, rounds as the manual says."""

import itertools
import math
import random
import struct
from pathlib import Path

import cupy
import numpy as np
import pytest

from helpers.simt.operations import COMPARISONS, OPCODES
from helpers.simt.operations.rounding import narrow, widen
from tests.simt.forms_of_halves import (
    DIRECTIONS,
    FORMATS,
    FORMS,
    JOINED,
    NAN,
    PAIR_OF,
    bits_of,
    comparing,
    f32,
    f64,
    given,
    halves,
    pack,
    unpack,
)
from tests.simt.ptx_forms import Form, form_module, module, run_ptx


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


def complaints(form: Form) -> list[str]:
    columns = zip(*given(form), strict=True)
    wrong = disagreements(form, run_ptx(form_module(form), *columns))
    return [f"{form}: {len(wrong)} cases:", *wrong[:10]] if wrong else []


@pytest.mark.parametrize("opcode", dict.fromkeys(form.opcode for form in FORMS))
def test_opcode_rounds_as_the_manual_says(opcode: str) -> None:
    """In each of its forms."""
    wrong = [one for form in FORMS if form.opcode == opcode for one in complaints(form)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.gpu
def test_the_gpu_agrees_with_the_table(tmp_path: Path) -> None:
    if int(cupy.cuda.Device().compute_capability) < 90:
        pytest.skip("arithmetic on bf16 needs compute capability 9.0")
    wrong = []
    for number, form in enumerate(FORMS):
        path = tmp_path / f"{number}.ptx"
        text = form_module(form).replace(".version 7.6", ".version 8.6").replace("sm_80", "sm_90")
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
    known = {n for n, forms in OPCODES.items() for one in forms if "16x2" in one.modifiers.pattern}
    assert {form.opcode for form in FORMS} == known
    assert len(FORMS) == len({str(form) for form in FORMS})
    names = {form.ptx.split(".")[1] for form in FORMS if form.opcode == "setp"}
    assert names == set(COMPARISONS) - {"lo", "ls", "hi", "hs"}


@pytest.mark.parametrize("base", FORMATS)
@pytest.mark.parametrize("join", ["", *JOINED])
def test_setp_of_pairs_writes_a_predicate_for_each_half(base: str, join: str) -> None:
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
    found = run_ptx(ptx, *zip(*values, strict=True))
    compare, joined = comparing("lt", base), JOINED.get(join, lambda t, c: t)
    for (a, b, c), bits in zip(values, found, strict=True):
        low = joined(compare(a & 0xFFFF, b & 0xFFFF), bool(c))
        high = joined(compare(a >> 16, b >> 16), bool(c))
        assert bits == low + 2 * high, f"{a:#x} {b:#x} {c}"
