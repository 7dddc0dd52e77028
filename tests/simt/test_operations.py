"""Every arithmetic opcode of the SIMT machine, in every form, against scalar Python arithmetic.

Where a GPU is, the GPU has to agree with the same expectations.
"""

import re
from pathlib import Path

import cupy
import pytest

from helpers.simt import UnsupportedPTX
from helpers.simt.operations.base import OPCODES, find_operation
from helpers.simt.operations.convert import COMPARISONS
from tests.simt import forms_of_floats, forms_of_halves, forms_of_integers  # noqa: F401
from tests.simt.ptx_forms import (
    FORMS,
    Form,
    cases,
    decode,
    disagreements,
    form_module,
    module,
    run_ptx,
)


def complaints(form: Form) -> list[str]:
    given = cases(form)
    found = run_ptx(form_module(form), *zip(*given, strict=True))
    wrong = disagreements(form, given, found, hardware=False)
    return [f"{form}: {len(wrong)} of {len(given)} cases:", *wrong[:10]] if wrong else []


@pytest.mark.parametrize("opcode", dict.fromkeys(form.opcode for form in FORMS))
def test_opcode_computes_what_the_manual_says(opcode: str) -> None:
    """In each of its forms."""
    wrong = [one for form in FORMS if form.opcode == opcode for one in complaints(form)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.gpu
def test_the_gpu_agrees_with_the_table(tmp_path: Path) -> None:
    """The expectations themselves, against hardware."""
    if int(cupy.cuda.Device().compute_capability) < 90:
        pytest.skip("arithmetic on bf16 needs compute capability 9.0")
    wrong = []
    for number, form in enumerate(FORMS):
        given = [
            case for case in cases(form) if not form.unspecified(*map(decode, case, form.sources))
        ]
        path = tmp_path / f"{number}.ptx"  # CuPy remembers what it loaded from a path
        text = form_module(form).replace(".version 7.6", ".version 8.6").replace("sm_80", "sm_90")
        if {"f16", "bf16"} & {form.result, *form.sources}:
            # ptxas wants registers of 8 bits in conversions between them and bf16.
            text = text.replace(".b16 %d", ".b8 %d") if form.result in ("u8", "s8") else text
            text = text.replace(".b16 %s0", ".b8 %s0") if form.sources[0] in ("u8", "s8") else text
        path.write_text(text)
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
    of_pairs = {n for n, forms in OPCODES.items() if any("16x2" in str(f.modifiers) for f in forms)}
    assert {form.opcode for form in FORMS if re.search(r"b?f16", form.ptx)} == of_pairs


def test_every_comparison_is_in_the_table() -> None:
    compared = [form.ptx.split(".") for form in FORMS if form.opcode == "setp"]
    assert {name for _, name, *_ in compared} == set(COMPARISONS)
    of_halves = {name for _, name, *_, kind in compared if "16" in kind and "f" in kind}
    assert of_halves == set(COMPARISONS) - {"lo", "ls", "hi", "hs"}


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
        "fns.b64",
        "rcp.rz.f64",
        "vadd4.u32.u32.u32",
        "vabsdiff4.s32.s32.s32",
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
        "cvt.rn.e4m3x2.f32",
        "cvt.rn.satfinite.relu.e5m2x2.f32",
    ],
)
def test_other_forms_are_refused_by_name(ptx: str) -> None:
    name, *modifiers = ptx.split(".")
    with pytest.raises(UnsupportedPTX, match=f"'{ptx}'"):
        find_operation(name, tuple(modifiers))


def test_registers_of_other_types_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedPTX, match=r"\.reg \.b128 %q"):
        run_ptx(module([], 1, [".b128 %q"]))
