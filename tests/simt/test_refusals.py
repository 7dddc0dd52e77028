"""Compilation and refusals: a kernel that the machine cannot run, or a launch that CUDA would not
take, is one clear error before anything runs."""

from functools import partial

import cupy
import numpy as np
import pytest

from helpers.simt import CompileError, UnsupportedPTX, simulate
from tests.simt import launching
from tests.simt.launching import FILE, Run

kernel = partial(launching.kernel, parameters="int* y, int n")

# ---- compilation --------------------------------------------------------------------------------


def test_options_reach_the_compiler(run: Run) -> None:
    y = np.zeros(32, np.int32)
    run(kernel("y[i] = N * VALUE;"), 1, 32, y, 0, options=("-DN=6", "-D", "VALUE=7"))
    assert y.tolist() == [42] * 32


# ---- refusals -----------------------------------------------------------------------------------


# What the machine does not execute, and the name that the error must give.
UNSUPPORTED = {
    "red.async": 'asm volatile("red.async.relaxed.cluster.global.shared::cluster.mbarrier'
    '::complete_tx::bytes.add.u32 [%0], 1, [%0];" :: "r"(n));',
    "multimem.ld_reduce": 'float v; asm volatile("multimem.ld_reduce.global.add.f32 %0, [%1];"'
    ' : "=f"(v) : "l"(y)); y[i] = v;',
    "cp.reduce.async.bulk": 'asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group'
    '.add.u32 [%0], [%1], 16;" :: "l"(y), "r"(n));',
    "prefetch.tensor": 'asm volatile("cp.async.bulk.prefetch.tensor.1d.L2.global.tile'
    ' [%0, {%1}];" :: "l"(y), "r"(n));',
    "mma.sync": "float c = 0; int a = i; asm volatile("
    '"mma.sync.aligned.m8n8k4.row.col.f32.tf32.tf32.f32 {%0}, {%1}, {%1}, {%0};"'
    ' : "+f"(c) : "r"(a)); y[i] = c;',
    "add.s32": 'asm("add.s32 %0, %1;" : "=r"(y[i]) : "r"(n));',
    "%pm0": 'asm volatile("mov.u32 %0, %%pm0;" : "=r"(y[i]));',
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_the_machine_cannot_run_is_refused_by_name_and_line(name: str) -> None:
    y = np.zeros(32, np.int32)
    code = FILE + kernel("    y[i] = 5;\n    " + UNSUPPORTED[name])
    with pytest.raises(UnsupportedPTX) as caught:
        simulate(cupy.RawKernel(code, "k"), 1, 32, (y, 0))
    message = str(caught.value)
    assert name in message and "kernels/x.cu:6" in message and "\n" not in message
    assert not y.any()  # refused before anything ran


def test_a_syntax_error_names_the_kernel_file_and_line() -> None:
    code = FILE + kernel("    y[i] = 1;\n    y[i] = n +;\n    y[i] = 2;")
    with pytest.raises(CompileError, match=r"kernels/x\.cu\(6\): error: expected an expression"):
        simulate(cupy.RawKernel(code, "k"), 1, 32, (np.zeros(32, np.int32), 1))


def test_an_undeclared_name_is_a_compile_error_that_says_so() -> None:
    with pytest.raises(CompileError, match='identifier "INFINITY" is undefined'):
        simulate(cupy.RawKernel(kernel("y[i] = INFINITY;"), "k"), 1, 32, (np.zeros(32), 1))


@pytest.mark.parametrize("name", ["eq", "lt", "le", "gt", "ge"])
def test_lane_mask_registers(name):
    body = f'asm("mov.u32 %0, %%lanemask_{name};" : "=r"(y[threadIdx.x]));'
    y = np.zeros(64, np.uint32)
    code = f'extern "C" __global__ void masks(unsigned* y) {{ {body} }}'
    simulate(cupy.RawKernel(code, "masks"), 1, 64, (y,))
    compare = {"eq": int.__eq__, "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__}
    compare["ge"] = int.__ge__
    for lane in range(64):
        bits = sum(1 << k for k in range(32) if compare[name](k, lane % 32))
        assert y[lane] == bits
