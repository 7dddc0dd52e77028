"""Undefined bits pass through an instruction: what is said to be defined does not change, whatever
the undefined bits are; and where an instruction moves bits, no more than those are undefined."""

from types import SimpleNamespace

import numpy as np
import pytest

from helpers.simt import machine, simulate
from helpers.simt.instructions import DTYPES, UNSIGNED, Instruction
from helpers.simt.operations.base import find_operation
from helpers.simt.spreading import spreader

COUNT, TRIES = 400, 24
EXACT = """
    mov.b32 mov.f32 mov.pred not.b32 not.pred xor.b32 xor.pred and.b32 and.b16 and.pred
    or.b32 or.pred or.b64 shl.b32 shl.b64 shr.u32 shr.s32 shr.s16 prmt.b32 bfe.u32 bfe.s32
    bfi.b32 brev.b32 shf.l.wrap.b32 shf.r.clamp.b32 selp.b32 selp.f32 cvt.u32.u8 cvt.s32.s8
    cvt.u64.u32 cvt.s64.s32 cvt.u16.u32 lop3.b32
""".split()
OTHERS = """
    add.s32 add.u64 sub.s32 neg.s32 mul.lo.s32 mul.lo.u64 mul.wide.s32 mul.wide.u16 mul.wide.s16
    mul.hi.u32 mad.lo.s32 mad.wide.u32 mul.lo.u16 div.s32 rem.u32 min.s32 max.u32 abs.s32 popc.b32
    clz.b32 clz.b64 bfind.u32 bfind.u64 bfind.shiftamt.u32 bfind.s32
    setp.eq.s32 setp.ne.b32 setp.lt.s32 setp.gt.u32 setp.lt.and.s32
    setp.le.u64 setp.ge.s16 setp.gt.s64 setp.lo.u32 setp.hs.u32 setp.ge.or.u16
    setp.eq.or.u32 setp.ne.xor.s32 setp.lt.f32 setp.eq.f32 add.f32 mul.rn.f32 fma.rn.f32
    max.f32 cvt.rn.f32.s32 cvt.rzi.s32.f32 cvt.sat.u8.s32 slct.b32.s32 sad.s32 add.f16x2
    set.lt.u32.s32 add.bf16 fma.rn.bf16 setp.lt.bf16 setp.eq.bf16 setp.gt.bf16
    sub.f16x2 mul.rn.f16x2 fma.rn.f16x2 fma.rn.bf16x2 max.f16x2 min.NaN.bf16x2 neg.f16x2 abs.bf16x2
    add.u16x2 max.s16x2 min.u16x2 set.gt.f16x2.f16x2 cvt.rn.f16x2.f32 cvt.rn.bf16x2.f32
    vabsdiff4.u32.u32.u32 vabsdiff2.u32.s32.s32 vabsdiff4.u32.u32.u32.add ex2.approx.f16x2
""".split()
CHOICES = {"u32": [0, 1, 3, 8, 16, 31, 32, 70]}  # amounts of shifts, starts and lengths of fields


def drawn(form: str, seed: int):
    """(instruction, operation, bits and values of the sources)"""
    rng = np.random.default_rng(seed)
    opcode, *modifiers = form.split(".")
    instruction = Instruction(opcode, tuple(modifiers), (), None, form, "x.cu", 1, 0)
    operation = find_operation(opcode, tuple(modifiers))
    bits, values = [], []
    for place, kind in enumerate(operation.sources):
        if kind == "pred":
            bits.append(rng.random(COUNT) < 0.3)
            values.append(rng.random(COUNT) < 0.5)
            continue
        dtype = UNSIGNED[DTYPES[kind].itemsize]
        drawn = rng.integers(0, 2 ** (8 * dtype.itemsize), (4, COUNT), dtype=dtype)
        few = (drawn[0] & drawn[1]) >> (drawn[2] & dtype.type(8 * dtype.itemsize - 1))
        value = np.where(rng.random(COUNT) < 0.3, dtype.type(0), drawn[3])
        if place and kind == "u32" and opcode in ("shl", "shr", "shf", "bfe", "bfi"):
            value = rng.choice(CHOICES["u32"], COUNT).astype(dtype)
            few = few * dtype.type(0)
        if opcode in ("prmt", "lop3") and place == len(operation.sources) - 1:
            value = np.full(COUNT, value[-1] & 255 if opcode == "lop3" else value[-1], dtype)
            few = few * dtype.type(0)
        bits.append(np.where(rng.random(COUNT) < 0.4, dtype.type(0), few))
        values.append(value.view(DTYPES[kind]))
    return instruction, operation, bits, values


def outcomes(operation, bits: list, values: list, seed: int) -> np.ndarray:
    """The bits of the result that change when undefined bits do."""
    rng = np.random.default_rng(seed)
    raw = (
        np.dtype(bool)
        if operation.result == "pred"
        else UNSIGNED[DTYPES[operation.result].itemsize]
    )
    with np.errstate(all="ignore"):
        first = operation.apply(*values).astype(DTYPES[operation.result]).view(raw)
        changed = np.zeros(COUNT, raw)
        for _ in range(TRIES):
            others = []
            for undefined, value in zip(bits, values, strict=True):
                if undefined.dtype == bool:
                    others.append(value ^ (undefined & (rng.random(COUNT) < 0.5)))
                else:
                    noise = rng.integers(0, 2 ** (8 * undefined.itemsize), COUNT, undefined.dtype)
                    flipped = value.view(undefined.dtype) ^ noise & undefined
                    others.append(flipped.view(value.dtype))
            result = operation.apply(*others).astype(DTYPES[operation.result]).view(raw)
            changed |= result ^ first
    return changed


@pytest.mark.parametrize("form", EXACT + OTHERS)
def test_what_is_called_defined_does_not_change(form: str) -> None:
    for seed in range(3):
        instruction, operation, bits, values = drawn(form, seed)
        with np.errstate(all="ignore"):
            undefined = spreader(instruction, operation)(bits, values)
        changed = outcomes(operation, bits, values, seed)
        missed = np.flatnonzero(changed & ~undefined)
        assert not len(missed), [hex(one[missed[0]]) for one in (changed, undefined)]


@pytest.mark.parametrize("form", EXACT)
def test_no_more_is_undefined_than_what_is_moved(form: str) -> None:
    instruction, operation, bits, values = drawn(form, 1)
    undefined = spreader(instruction, operation)(bits, values)
    changed = outcomes(operation, bits, values, 1)
    if form.startswith("selp"):  # an undefined choice leaves both sides to chance
        undefined = undefined[~bits[2]]
        changed = changed[~bits[2]]
    assert (undefined == changed).mean() > 0.97  # a bit may stay as it was by chance
    assert (undefined != 0).any()


ALL = 0xFFFFFFFF
# (form, values, their undefined bits, undefined bits of the result)
OF_ONE = [
    ("clz.b32", [0x100], [0xFF], 0),
    ("clz.b32", [0x100], [0x200], ALL),
    ("clz.b64", [1 << 40], [(1 << 40) - 1], 0),
    ("bfind.u32", [0x80000000], [1], 0),
    ("bfind.shiftamt.u32", [0], [1], ALL),
    ("setp.lt.u32", [0x1200, 0x1300], [0xFF, 0], 0),
    ("setp.lt.u32", [0x1200, 0x1210], [0xFF, 0], 1),
    ("setp.ge.u32", [0x1200, 0x1200], [0xFF, 0], 0),
    ("setp.gt.u32", [0x1200, 0x1200], [0xFF, 0], 1),
    ("setp.lt.s32", [0x80000000, 0], [0x7FFFFFFF, 0], 0),
    ("setp.lt.s32", [1, 2], [0x80000000, 0], 0),
    ("setp.lt.s32", [2, 1], [0x80000000, 0], 1),
    ("setp.lt.u32", [1, 2], [0x80000000, 0], 1),
    ("mul.wide.s16", [7, 256], [0xFF00, 0], 0xFFFF0000),
    ("mul.lo.s32", [5, 12], [4, 0], ALL - 15),
    ("mul.lo.u32", [4, 12], [8, 4], ALL - 15),
    ("mul.lo.u32", [5, 0], [8, 0], 0),
    ("mad.lo.u32", [5, 4, 0], [2, 0, 0], ALL - 7),
    ("lop3.b32", [0xFF, 6, 7, 0xCA], [0, 0x1FF, 0x3FF, 0], 0x3FF),
    ("lop3.b32", [0xFF, 6, 7, 0xC0], [0, 0x1FF, 0x3FF, 0], 0xFF),
    ("add.f16x2", [0x3C003C00, 0x3C003C00], [1, 0], 0xFFFF),
    ("fma.rn.bf16x2", [0, 0, 0], [0, 1 << 16, 0], 0xFFFF0000),
    ("max.s16x2", [5, 6], [0, 1 << 20], 0xFFFF0000),
    ("set.gt.f16x2.f16x2", [5, 6], [0, 1], 0xFFFF),
    ("cvt.rn.f16x2.f32", [5, 6], [1, 0], 0xFFFF0000),
    ("cvt.rn.bf16x2.f32", [5, 6], [0, 1], 0xFFFF),
    ("vabsdiff4.u32.u32.u32", [5, 6, 0], [0x100, 1 << 31, 0], 0xFF00FF00),
    ("vabsdiff2.u32.s32.s32", [5, 6, 0], [0x100, 0, 0], 0xFFFF),
    ("vabsdiff4.u32.u32.u32.add", [5, 6, 0], [0x100, 0, 0], ALL),
]


@pytest.mark.parametrize("form, values, bits, undefined", OF_ONE)
def test_bits_that_cannot_matter_do_not_count(
    form: str, values: list[int], bits: list[int], undefined: int
) -> None:
    instruction, operation, *_ = drawn(form, 0)
    types = [DTYPES[kind] for kind in operation.sources]
    loose = [np.array([one], f"u{kind.itemsize}") for one, kind in zip(bits, types, strict=True)]
    sources = [np.array([one]).astype(kind) for one, kind in zip(values, types, strict=True)]
    assert spreader(instruction, operation)(loose, sources)[0] == undefined


# ---- under a guard, in PTX, where the compiler cannot rearrange it ------------------------------

# %r1 is undefined and %p1 depends on it; %p2 holds in 20 of 64 threads; %r2 is 1.
GUARDED = {
    "@%p1 mov.u32 %r2, 2; st.global.u32 [%at], %r2;": 64,
    "@%p1 st.global.u32 [%at], %r2;": 64,
    "@%p2 mov.u32 %r2, %r1; st.global.u32 [%at], %r2;": 20,
    "@!%p2 mov.u32 %r2, %r1; st.global.u32 [%at], %r2;": 44,
    "@%p2 mov.u32 %r2, %r1; @!%p2 st.global.u32 [%at], %r2;": 0,
    "@%p2 mov.u32 %r1, 3; st.global.u32 [%at], %r1;": 44,
    "@%p2 mov.u32 %r1, 3; @%p2 st.global.u32 [%at], %r1;": 0,
    "mov.u32 %r1, 3; st.global.u32 [%at], %r1;": 0,
    "@%p2 st.global.u32 [%at], %r1;": 20,
    "@%p1 mov.u32 %r2, 2; mov.u32 %r2, 3; st.global.u32 [%at], %r2;": 0,
    "@%p2 bra DONE; @%p1 bra DONE; DONE: st.global.u32 [%at], %r2;": 44,
    "add.s32 %r1, %r1, 1; shl.b32 %r1, %r1, 16; @%p2 st.global.u16 [%at], %r1;": 0,
    "add.cc.u32 %r3, %r1, %r2; addc.u32 %r4, %r2, 0; st.global.u32 [%at], %r4;": 64,
    "add.cc.u32 %r3, %r1, 1; madc.lo.u32 %r4, %r2, 2, 0; @%p2 st.global.u32 [%at], %r4;": 20,
    "add.cc.u32 %r3, %r2, 1; addc.cc.u32 %r4, %r1, 0; subc.u32 %r5, %r2, 1; "
    "st.global.u32 [%at], %r5;": 64,
    "add.cc.u32 %r3, %r2, 1; addc.u32 %r4, %r1, 0;": 0,
    "add.cc.u32 %r3, %r1, 1; add.cc.u32 %r3, %r2, 1; addc.u32 %r4, %r2, 0; "
    "st.global.u32 [%at], %r4;": 0,
}


@pytest.mark.parametrize("lines", GUARDED)
def test_a_guard_says_whose_bits_count(lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "compile_kernels", lambda code, *_: (code, {"k": "k"}))
    code = f"""
        .visible .entry k(.param .u64 p)
        {{
        .reg .b32 %t, %r<9>;
        .reg .b64 %at, %o;
        .reg .pred %p<9>;
        .shared .align 4 .b8 s[4];
        mov.u32 %t, %tid.x;
        ld.param.u64 %at, [p];
        mul.wide.u32 %o, %t, 4;
        add.s64 %at, %at, %o;
        setp.lt.u32 %p2, %t, 20;
        mov.u32 %r2, 1;
        ld.shared.u32 %r1, [s];
        setp.ne.u32 %p1, %r1, 0;
        {lines}
        ret;
        }}"""
    raw = SimpleNamespace(code=code, name="k", options=())
    findings = simulate(raw, 1, 64, (np.zeros(64, np.uint32),)).findings
    assert sum(finding.count for finding in findings) == GUARDED[lines], str(findings)
