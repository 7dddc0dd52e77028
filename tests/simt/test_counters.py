"""Counters of branches and instructions, of source lines, and what follows from counters.

That requests, sectors and wavefronts are those of an H200 is in tests/hardware.
"""

from collections.abc import Callable

import numpy as np
import pytest

from helpers.simt import Counters, KernelText, Trace, simulate
from tests.simt.ptx_forms import simulate_ptx


def warps(grid: int, block: int) -> list[range]:
    """The threads of every warp of a one-dimensional launch, by their number in it."""
    return [
        range(number * block + first, number * block + min(first + 32, block))
        for number in range(grid)
        for first in range(0, block, 32)
    ]


def trace_of(code: str, grid, block, *args) -> Trace:
    trace = simulate(KernelText(code, "k"), grid, block, args)
    assert not trace.findings, str(trace.findings)
    return trace


# ---- branches and instructions, in PTX, where the compiler cannot rearrange them ----------------


def run_ptx(lines: str, grid: int, block: int, y: np.ndarray | None = None) -> Trace:
    """Run the lines of PTX as a kernel; %t is the thread, %b the block, %at the start of y."""
    code = f"""
        .visible .entry k(.param .u64 p)
        {{
        .reg .b32 %t, %b, %r<9>;
        .reg .b64 %at, %o;
        .reg .pred %p<9>;
        mov.u32 %t, %tid.x;
        mov.u32 %b, %ctaid.x;
        ld.param.u64 %at, [p];
        {lines}
        }}"""
    return simulate_ptx(code, grid, block, (np.zeros(4096, np.uint32) if y is None else y,))


FIXED = 3  # instructions that every PTX kernel here starts with


@pytest.mark.parametrize("action", ["bra DONE", "ret", "exit"])
@pytest.mark.parametrize(
    ("condition", "taken"),
    [
        ("setp.lt.u32 %p0, %t, 40", lambda block, thread: thread < 40),
        ("setp.lt.u32 %p0, %b, 2", lambda block, thread: block < 2),
        ("setp.eq.u32 %p0, %t, 95", lambda block, thread: thread == 95),
        ("setp.gt.u32 %p0, %t, 500", lambda block, thread: False),
    ],
)
def test_branches_are_counted_per_warp(condition: str, taken: Callable, action: str) -> None:
    for negated in (False, True):
        lines = f"{condition}; @{'!' if negated else ''}%p0 {action}; mov.u32 %r0, 1; DONE: ret;"
        sides = [{taken(*divmod(i, 100)) is not negated for i in warp} for warp in warps(3, 100)]
        divergent, falling = sum(len(one) == 2 for one in sides), sum(False in one for one in sides)
        behind = 12 if action == "bra DONE" else falling
        found = run_ptx(lines, 3, 100).counters
        assert (found.branches, found.divergent_branches) == (12, divergent)
        assert found.warp_instructions == 12 * (FIXED + 2) + falling + behind


def test_loop_branches_count_the_warps_that_still_run_and_plain_jumps_do_not_count() -> None:
    lines = """
        and.b32 %r1, %t, 7;
        mov.u32 %r0, 0;
        LOOP:
        add.u32 %r0, %r0, 1;
        setp.le.u32 %p0, %r0, %r1;
        @%p0 bra LOOP;
        bra.uni A; B: ret; A: bra B;"""
    found = run_ptx(lines, 2, 36).counters
    branches = divergent = 0
    for warp in warps(2, 36):
        trips = [i % 36 % 8 + 1 for i in warp]
        for step in range(1, max(trips) + 1):
            running = [trip for trip in trips if trip >= step]
            branches += 1
            divergent += min(running) == step < max(running)
    assert (found.branches, found.divergent_branches) == (branches, divergent)
    assert found.warp_instructions == 4 * (FIXED + 2 + 3) + 3 * branches


def test_a_jump_through_a_table_is_a_branch_that_may_part_a_warp() -> None:
    lines = """
        and.b32 %r1, %t, 3;
        shr.u32 %r2, %t, 5;
        setp.ne.u32 %p0, %r2, 0;
        @%p0 mov.u32 %r1, 2;
        TABLE: .branchtargets A, B, C, B;
        brx.idx %r1, TABLE;
        A: mov.u32 %r0, 10; bra.uni DONE;
        B: mov.u32 %r0, 20; bra.uni DONE;
        C: mov.u32 %r0, 30;
        DONE: mul.wide.u32 %o, %t, 4; add.s64 %at, %at, %o; st.global.u32 [%at], %r0; ret;"""
    y = np.zeros(64, np.uint32)
    found = run_ptx(lines, 1, 64, y).counters
    assert y.tolist() == [10, 20, 30, 20] * 8 + [30] * 32
    assert (found.branches, found.divergent_branches) == (2, 1)


def test_guarded_accesses_count_the_lanes_that_execute_them() -> None:
    lines = """
        mul.wide.u32 %o, %t, 4;
        add.s64 %at, %at, %o;
        setp.gt.u32 %p0, %t, 20;
        @%p0 ld.global.u32 %r0, [%at];
        @!%p0 st.global.u32 [%at+1024], %t;
        ret;"""
    trace = run_ptx(lines, 1, 64)
    found = trace.counters
    # Loads of bytes 84 to 127 and 128 to 255, a store to 1024 to 1107.
    assert (found.load_requests, found.load_sectors, found.load_bytes) == (2, 2 + 4, 4 * 43)
    assert (found.store_requests, found.store_sectors, found.store_bytes) == (1, 3, 4 * 21)
    assert found.branches == 0


# ---- per line, and what follows from the counts -------------------------------------------------


LINES = """
extern "C" __global__ void k(float* y, const float* x, const float* z)
{
    const int i = threadIdx.x;
    const float a = x[i];
    const float b = z[8 * i];
    y[i] = a
         + b;
    if (i < 8)
        y[i + 64] = 1;
}
"""


def test_counts_belong_to_their_source_lines_and_a_directive_decides_which() -> None:
    args = [np.ones(size, np.float32) for size in (128, 64, 512)]
    trace = trace_of('#line 1 "kernels/lines.cu"' + LINES, 1, 64, *args)
    lines = {line: counts for (file, line), counts in trace.lines.items()}
    assert {file for file, _ in trace.lines} == {"kernels/lines.cu"}
    loads = {line: (c.load_requests, c.load_sectors) for line, c in lines.items() if c.load_bytes}
    stores = {line: (c.store_requests, c.store_sectors) for line, c in lines.items()}
    assert loads == {4: (2, 8), 5: (2, 64)}
    assert {line: found for line, found in stores.items() if any(found)} == {6: (2, 8), 9: (1, 1)}
    assert lines[8].branches == 2 and lines[8].divergent_branches == 1
    assert sum(lines.values(), Counters()) == trace.counters
    elsewhere = '#line 101 "/somewhere/else/kernels/tests/other.cu"' + LINES
    assert ("kernels/tests/other.cu", 104) in trace_of(elsewhere, 1, 64, *args).lines
    assert ("kernel.cu", 5) in trace_of(LINES, 1, 64, *args).lines


def test_a_device_function_keeps_its_own_line_and_a_header_gives_it_to_the_caller() -> None:
    code = """#line 1 "common.cuh"
__device__ float in_header(const float* x, int i) { return x[i]; }
__device__ float through_header(const float* x, int i)
{
    return in_header(x, i + 1) * 2;
}
#line 1 "kernels/calls.cu"
__device__ float here(const float* x, int i)
{
    return x[2 * i];
}
__device__ float nested(const float* x, int i)
{
    return here(x, i + 64) + in_header(x, i + 128);
}
extern "C" __global__ void k(float* y, const float* x)
{
    const int i = threadIdx.x;
    float sum = here(x, i);
    sum += nested(x, i);
    sum += through_header(x, i);
    y[i] = sum;
}
"""
    trace = trace_of(code, 1, 32, np.zeros(32, np.float32), np.ones(256, np.float32))
    loads = {key: c.load_requests for key, c in trace.lines.items() if c.load_requests}
    assert loads == {("kernels/calls.cu", line): count for line, count in ((3, 2), (7, 1), (14, 1))}


def test_passes_and_ratios_follow_from_the_counts() -> None:
    found = Counters(
        load_requests=4, load_sectors=40, load_bytes=512, store_requests=2, store_sectors=8,
        store_bytes=256,
    )  # fmt: skip
    assert found.sectors_per_load == 10
    assert found.passes(64) == (2, 1) and found.passes(64, itemsize=2) == (4, 2)
    assert found.fetch_ratio == 48 * 32 / 768 == (found + found).fetch_ratio
    assert (found + found).load_sectors == 80
    nothing = Counters()
    assert (nothing.sectors_per_load, nothing.fetch_ratio) == (0, 0)
    assert nothing.passes(10) == (0, 0)
