"""The SIMT machine counts requests, sectors, bytes and branches as an enumeration of lanes does.

The enumeration is plain Python: a list of the bytes that each lane of each warp touches, and sets
of 32-byte sectors. It knows nothing of the machine but where an array starts within 256 bytes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace

import cupy
import numpy as np
import pytest

from helpers.simt import Counters, Trace, machine, simulate
from helpers.simt.geometry import BATCH_THREADS

Lane = tuple[int, int] | None  # first byte and number of bytes; None: takes no part


@dataclass
class Enumerated:
    """What warp-wide accesses to one array cost."""

    requests: int = 0
    sectors: int = 0
    bytes: int = 0

    def access(self, warp: Iterable[Lane]) -> None:
        """Count one instruction of one warp."""
        lanes = [lane for lane in warp if lane is not None]
        touched = {byte // 32 for first, size in lanes for byte in range(first, first + size)}
        self.requests += bool(lanes)
        self.sectors += len(touched)
        self.bytes += sum(size for _, size in lanes)


def warps(grid: int, block: int) -> list[list[tuple[int, int]]]:
    """(block, thread) of the lanes of every warp of a one-dimensional launch."""
    return [
        [(number, thread) for thread in range(first, min(first + 32, block))]
        for number in range(grid)
        for first in range(0, block, 32)
    ]


def enumerate_accesses(
    index: Callable[[int], int | None], size: int, grid: int, block: int, start: int = 0
) -> Enumerated:
    """One instruction that touches element `index(i)` of `size` bytes in thread i."""
    found = Enumerated()
    for warp in warps(grid, block):
        elements = [index(number * block + thread) for number, thread in warp]
        found.access(None if e is None else (start + e * size, size) for e in elements)
    return found


def trace_of(code: str, grid, block, *args) -> Trace:
    trace = simulate(cupy.RawKernel(code, "k"), grid, block, args)
    assert not trace.findings, str(trace.findings)
    return trace


def kernel(body: str, parameters: str) -> str:
    return (
        f'extern "C" __global__ void k({parameters})\n{{\n'
        f"    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n{body}\n}}\n"
    )


def assert_loads(trace: Trace, expected: Enumerated) -> None:
    counted = trace.counters
    assert counted.load_requests == expected.requests
    assert counted.load_sectors == expected.sectors
    assert counted.load_bytes == expected.bytes


def assert_stores(trace: Trace, expected: Enumerated) -> None:
    counted = trace.counters
    assert counted.store_requests == expected.requests
    assert counted.store_sectors == expected.sectors
    assert counted.store_bytes == expected.bytes


# ---- one access per thread ----------------------------------------------------------------------


@dataclass(frozen=True)
class Pattern:
    """Which element a thread touches: in CUDA, and in Python."""

    name: str
    cuda: str
    index: Callable[[int], int]
    takes_part: tuple[str, Callable[[int], bool]] = ("true", lambda i: True)

    def element(self, i: int) -> int | None:
        return self.index(i) if self.takes_part[1](i) else None


PATTERNS = (
    Pattern("coalesced", "i", lambda i: i),
    Pattern("stride 2", "i * 2", lambda i: 2 * i),
    Pattern("stride 8", "i * 8", lambda i: 8 * i),
    Pattern("stride 33", "i * 33", lambda i: 33 * i),
    Pattern("neighbours swapped", "i ^ 1", lambda i: i ^ 1),
    Pattern("lanes permuted", "i / 32 * 32 + i * 7 % 32", lambda i: i // 32 * 32 + i * 7 % 32),
    Pattern("reversed", "4999 - i", lambda i: 4999 - i),
    Pattern("scattered", "i * 1103 % 4999", lambda i: i * 1103 % 4999),
    Pattern("shifted by one", "i + 1", lambda i: i + 1),
    Pattern("every second lane", "i", lambda i: i, ("i & 1", lambda i: i % 2 == 1)),
    Pattern("first 70", "i", lambda i: i, ("i < 70", lambda i: i < 70)),
    Pattern("one lane", "i", lambda i: i, ("i == 40", lambda i: i == 40)),
    Pattern("nobody", "i", lambda i: i, ("i < 0", lambda i: False)),
    Pattern("last of a warp", "i * 9", lambda i: 9 * i, ("i % 32 == 31", lambda i: i % 32 == 31)),
)
SHARED_PATTERNS = (  # lanes meet at an element: loads only
    Pattern("broadcast", "7", lambda i: 7),
    Pattern("one element per warp", "i / 32 * 32", lambda i: i // 32 * 32),
    Pattern("half a warp repeated", "i % 16", lambda i: i % 16),
    Pattern("pairs", "i / 2", lambda i: i // 2),
    Pattern("rows of a matrix", "i % 4 * 1000", lambda i: i % 4 * 1000),
)
TYPES = {
    "unsigned char": (np.uint8, 1),
    "short": (np.int16, 1),
    "float": (np.float32, 1),
    "double": (np.float64, 1),
    "float2": (np.float32, 2),
    "float4": (np.float32, 4),
    "double2": (np.float64, 2),
    "uchar4": (np.uint8, 4),
}


def data(name: str, elements: int, skip: int = 0) -> np.ndarray:
    """An array of that CUDA type that starts `skip` elements into its memory."""
    dtype, lanes = TYPES[name]
    return np.ones(((elements + skip) * lanes,), dtype)[skip * lanes :]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("pattern", PATTERNS + SHARED_PATTERNS, ids=lambda pattern: pattern.name)
def test_loads_cost_what_their_lanes_touch(pattern: Pattern, name: str) -> None:
    x = data(name, 5000)
    size = x.itemsize * TYPES[name][1]
    code = kernel(
        f"if ({pattern.takes_part[0]}) y[i] = x[{pattern.cuda}];", f"{name}* y, const {name}* x"
    )
    trace = trace_of(code, 3, 48, data(name, 144), x)
    assert_loads(trace, enumerate_accesses(pattern.element, size, 3, 48))


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_stores_cost_what_their_lanes_touch(pattern: Pattern, name: str) -> None:
    y = data(name, 5000)
    size = y.itemsize * TYPES[name][1]
    code = kernel(
        f"if ({pattern.takes_part[0]}) y[{pattern.cuda}] = x[i];", f"{name}* y, const {name}* x"
    )
    trace = trace_of(code, 3, 48, y, data(name, 144))
    assert_stores(trace, enumerate_accesses(pattern.element, size, 3, 48))
    only_these = [i for i in range(144) if pattern.takes_part[1](i)]
    assert trace.counters.load_bytes == size * len(only_these)


@pytest.mark.parametrize("block", [1, 32, 33, 63, 64, 100])
def test_partial_warps_cost_what_their_threads_touch(block: int) -> None:
    x, y = data("float", 3 * block), data("float", 3 * block)
    trace = trace_of(kernel("y[i] = x[i];", "float* y, const float* x"), 3, block, y, x)
    expected = enumerate_accesses(lambda i: i, 4, 3, block)
    assert expected.requests == 3 * -(-block // 32)
    assert_loads(trace, expected)
    assert_stores(trace, expected)


@pytest.mark.parametrize("skip", [0, 1, 3, 7, 8])
def test_rows_that_start_off_a_sector_touch_one_more(skip: int) -> None:
    """A view starts `skip` floats into its base, as a row of an odd length does."""
    x, y = data("float", 128, skip), data("float", 128, skip)
    trace = trace_of(kernel("y[i] = x[i];", "float* y, const float* x"), 4, 32, y, x)
    expected = enumerate_accesses(lambda i: i, 4, 4, 32, start=4 * skip)
    assert expected.sectors == (16 if skip % 8 == 0 else 20)
    assert_loads(trace, expected)
    assert_stores(trace, expected)


def test_warps_of_a_flat_block_run_along_x_then_y() -> None:
    code = """
        extern "C" __global__ void k(float* y, const float* x) {
            int at = (blockIdx.y * 4 + threadIdx.y) * 100 + blockIdx.x * 8 + threadIdx.x;
            y[at] = x[at]; }"""
    trace = trace_of(code, (2, 3), (8, 4), data("float", 1200), data("float", 1200))
    expected = Enumerated()
    for by in range(3):
        for bx in range(2):
            rows = [(by * 4 + ty) * 100 + bx * 8 + tx for ty in range(4) for tx in range(8)]
            expected.access((4 * at, 4) for at in rows)
    assert_loads(trace, expected)
    assert_stores(trace, expected)


def test_launches_larger_than_a_batch_are_counted_whole() -> None:
    grid, block = 150, 250
    assert grid * 256 > BATCH_THREADS
    size = grid * block
    trace = trace_of(
        kernel("if (i % 3) y[i] = x[i];", "float* y, const float* x"),
        grid,
        block,
        data("float", size),
        data("float", size),
    )
    expected = enumerate_accesses(lambda i: i if i % 3 else None, 4, grid, block)
    assert_loads(trace, expected)
    assert_stores(trace, expected)


# ---- loops, paths, several arrays ---------------------------------------------------------------


def test_a_thread_per_row_touches_a_sector_per_lane() -> None:
    rows, cols = 70, 9
    body = """
        if (i >= rows) return;
        float sum = 0;
        #pragma unroll 1
        for (int j = 0; j < cols; ++j) sum += x[i * cols + j];
        y[i] = sum;"""
    code = kernel(body, "float* y, const float* x, int rows, int cols")
    trace = trace_of(code, 3, 32, data("float", rows), data("float", rows * cols), rows, cols)
    expected = Enumerated()
    for warp in warps(3, 32):
        active = [32 * number + thread for number, thread in warp if 32 * number + thread < rows]
        for j in range(cols):
            expected.access((4 * (row * cols + j), 4) for row in active)
    assert_loads(trace, expected)


def test_a_loop_costs_the_lanes_that_still_run() -> None:
    body = """
        float sum = 0;
        #pragma unroll 1
        for (int j = 0; j < i % 5; ++j) sum += x[i + 40 * j];
        y[i] = sum;"""
    trace = trace_of(
        kernel(body, "float* y, const float* x"), 2, 48, data("float", 96), data("float", 400)
    )
    expected = Enumerated()
    for warp in warps(2, 48):
        threads = [48 * number + thread for number, thread in warp]
        for j in range(4):
            expected.access((4 * (i + 40 * j), 4) for i in threads if i % 5 > j)
    assert_loads(trace, expected)
    assert_stores(trace, enumerate_accesses(lambda i: i, 4, 2, 48))


def test_the_two_sides_of_a_branch_are_two_requests() -> None:
    body = """
        float v;
        if (i % 2) { v = x[i]; for (int j = 0; j < n; ++j) v = v * v; } else v = x[i + 64] + 1;
        y[i] = v;"""
    code = kernel(body, "float* y, const float* x, int n")
    trace = trace_of(code, 1, 64, data("float", 64), data("float", 128), 2)
    odd = enumerate_accesses(lambda i: i if i % 2 else None, 4, 1, 64)
    even = enumerate_accesses(lambda i: None if i % 2 else i + 64, 4, 1, 64)
    assert trace.counters.load_requests == odd.requests + even.requests == 4
    assert trace.counters.load_sectors == odd.sectors + even.sectors
    assert trace.counters.store_requests == 2


# ---- branches and instructions, in PTX, where the compiler cannot rearrange them ----------------


@pytest.fixture
def run_ptx(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trace]:
    """Run the lines of PTX as a kernel; %t is the thread, %b the block, %at an array's start."""
    monkeypatch.setattr(machine, "compile_template", lambda code, name, *_: (code, name))

    def run(lines: str, grid: int, block: int) -> Trace:
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
        raw = SimpleNamespace(code=code, name="k", options=())
        trace = simulate(raw, grid, block, (np.zeros(4096, np.uint32),))
        assert not trace.findings, str(trace.findings)
        return trace

    return run


FIXED = 3  # instructions that every PTX kernel here starts with


@pytest.mark.parametrize(
    ("condition", "taken"),
    [
        ("setp.lt.u32 %p0, %t, 40", lambda block, thread: thread < 40),
        ("setp.lt.u32 %p0, %t, 32", lambda block, thread: thread < 32),
        ("setp.lt.u32 %p0, %b, 2", lambda block, thread: block < 2),
        ("setp.eq.u32 %p0, %t, 95", lambda block, thread: thread == 95),
        ("setp.ge.u32 %p0, %t, 0", lambda block, thread: True),
        ("setp.gt.u32 %p0, %t, 500", lambda block, thread: False),
    ],
)
@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("action", ["bra DONE", "ret", "exit"])
def test_branches_are_counted_per_warp(
    run_ptx: Callable, condition: str, taken: Callable, negated: bool, action: str
) -> None:
    lines = f"{condition}; @{'!' if negated else ''}%p0 {action}; mov.u32 %r0, 1; DONE: ret;"
    trace = run_ptx(lines, 3, 100)
    divergent = falling = 0
    for warp in warps(3, 100):
        sides = {taken(*lane) is not negated for lane in warp}
        divergent += len(sides) == 2
        falling += False in sides
    assert trace.counters.branches == 12
    assert trace.counters.divergent_branches == divergent
    behind = 12 if action == "bra DONE" else falling
    assert trace.counters.warp_instructions == 12 * (FIXED + 2) + falling + behind


def test_loop_branches_count_the_warps_that_still_run(run_ptx: Callable) -> None:
    lines = """
        and.b32 %r1, %t, 7;
        mov.u32 %r0, 0;
        LOOP:
        add.u32 %r0, %r0, 1;
        setp.le.u32 %p0, %r0, %r1;
        @%p0 bra LOOP;
        ret;"""
    trace = run_ptx(lines, 2, 36)
    branches = divergent = 0
    for warp in warps(2, 36):
        trips = [thread % 8 + 1 for _, thread in warp]
        for step in range(1, max(trips) + 1):
            running = [trip for trip in trips if trip >= step]
            branches += 1
            divergent += min(running) == step < max(running)
    assert (trace.counters.branches, trace.counters.divergent_branches) == (branches, divergent)
    assert trace.counters.warp_instructions == 4 * (FIXED + 2 + 1) + 3 * branches


def test_jumps_without_a_condition_are_no_branches(run_ptx: Callable) -> None:
    trace = run_ptx("bra.uni A; B: ret; A: bra B;", 1, 64)
    assert (trace.counters.branches, trace.counters.warp_instructions) == (0, 2 * (FIXED + 3))


def test_guarded_accesses_count_the_lanes_that_execute_them(run_ptx: Callable) -> None:
    lines = """
        mul.wide.u32 %o, %t, 4;
        add.s64 %at, %at, %o;
        setp.gt.u32 %p0, %t, 20;
        @%p0 ld.global.u32 %r0, [%at];
        @!%p0 st.global.u32 [%at+1024], %t;
        ret;"""
    trace = run_ptx(lines, 1, 64)
    assert_loads(trace, enumerate_accesses(lambda i: i if i > 20 else None, 4, 1, 64))
    assert_stores(trace, enumerate_accesses(lambda i: i + 256 if i <= 20 else None, 4, 1, 64))
    assert trace.counters.branches == 0


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


def test_counts_belong_to_their_source_lines() -> None:
    code = '#line 1 "kernels/lines.cu"' + LINES
    y, x, z = data("float", 128), data("float", 64), data("float", 512)
    trace = trace_of(code, 1, 64, y, x, z)
    lines = {line: counts for (file, line), counts in trace.lines.items()}
    assert {file for file, _ in trace.lines} == {"kernels/lines.cu"}
    loads = {line: (c.load_requests, c.load_sectors) for line, c in lines.items() if c.load_bytes}
    assert loads == {4: (2, 8), 5: (2, 64)}
    stores = {
        line: (c.store_requests, c.store_sectors) for line, c in lines.items() if c.store_bytes
    }
    assert stores == {6: (2, 8), 9: (1, 1)}
    assert lines[8].branches == 2 and lines[8].divergent_branches == 1
    assert sum(lines.values(), Counters()) == trace.counters


def test_a_line_directive_decides_file_and_line() -> None:
    y, x, z = data("float", 128), data("float", 64), data("float", 512)
    code = '#line 101 "/somewhere/else/kernels/tests/other.cu"' + LINES
    assert ("kernels/tests/other.cu", 104) in trace_of(code, 1, 64, y, x, z).lines
    assert ("kernel.cu", 5) in trace_of(LINES, 1, 64, y, x, z).lines


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
    trace = trace_of(code, 1, 32, data("float", 32), data("float", 256))
    loads = {key: c.load_requests for key, c in trace.lines.items() if c.load_requests}
    assert loads == {("kernels/calls.cu", line): count for line, count in ((3, 2), (7, 1), (14, 1))}


def test_passes_and_ratios_follow_from_the_counts() -> None:
    counted = Counters(
        load_requests=4, load_sectors=40, load_bytes=512, store_requests=2, store_sectors=8,
        store_bytes=256,
    )  # fmt: skip
    assert counted.sectors_per_load == 10
    assert counted.sectors_per_store == 4
    assert counted.passes(64) == (2, 1)
    assert counted.passes(64, itemsize=2) == (4, 2)
    assert counted.fetch_ratio == 48 * 32 / 768
    assert (counted + counted).load_sectors == 80
    assert (counted + counted).fetch_ratio == counted.fetch_ratio


def test_ratios_of_nothing_are_zero() -> None:
    nothing = Counters()
    assert (nothing.sectors_per_load, nothing.sectors_per_store, nothing.fetch_ratio) == (0, 0, 0)
    assert nothing.passes(10) == (0, 0)


def test_a_copy_is_one_pass_each_way_and_wastes_nothing() -> None:
    code = kernel("if (i < n) y[i] = x[i];", "float* y, const float* x, int n")
    counted = trace_of(code, 4, 64, data("float", 256), data("float", 256), 256).counters
    assert counted.passes(256) == (1, 1)
    assert counted.fetch_ratio == 1
    assert counted.sectors_per_load == counted.sectors_per_store == 4


def test_a_thread_per_row_fetches_eight_times_what_it_asks_for() -> None:
    body = "float s = 0; for (int j = 0; j < 64; ++j) s += x[i * 64 + j]; y[i] = s;"
    code = kernel(body, "float* y, const float* x")
    counted = trace_of(code, 1, 64, data("float", 64), data("float", 4096)).counters
    assert counted.sectors_per_load == 32
    assert counted.passes(4096)[0] == 1
    assert counted.load_sectors * 32 / counted.load_bytes == 8
