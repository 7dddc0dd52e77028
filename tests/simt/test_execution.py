"""Control flow and launch shapes: small CUDA kernels give what Python says, and on a GPU too."""

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import cupy
import numpy as np
import pytest

from helpers.simt import CompileError, KernelText, simulate
from helpers.simt.geometry import BATCH_THREADS
from tests.simt.launching import Run, floats, rounded
from tests.simt.launching import small_kernel as kernel

# ---- control flow -------------------------------------------------------------------------------


def nested_ifs(i: int, n: int) -> int:
    if i & 1:
        v = (i * 3 if i & 4 else i - 7) if i & 2 else -i
    elif i % 3 == 0:
        v = i * i
    else:
        v = 5
    return v + 1000


def triangle(i: int, n: int) -> int:
    return sum(j * j + i for j in range(i % 37))


def collatz(i: int, n: int) -> int:
    steps = 0
    while i > 1:
        i = 3 * i + 1 if i % 2 else i // 2
        steps += 1
    return steps


def early_return(i: int, n: int) -> int | None:
    if i >= n:
        return None
    for j in range(2, 12):
        if (i + 2) % j == 0:
            return j
    return -1


def break_and_continue(i: int, n: int) -> int:
    total = 0
    for j in range(40):
        if (i + j) % 3 == 0:
            continue
        if total > 5 * (i % 29):
            break
        total += j
    return 100 * total + i


def switch(i: int, n: int) -> int:
    case = i % 23
    v = 10 * i if case in (0, 1) else i
    if case in (0, 1, 7):
        v += 7  # 0 and 1 fall through
    elif case == 11:
        v = -v
    elif case == 22:
        return 1
    elif case != 12:
        v ^= 0x55
    return v + 1


def dense_switch(i: int, n: int) -> int:
    weights = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
    return i * weights[i % 16] + i % 16 if i % 16 < 14 else -1


def nested_loops(i: int, n: int) -> int:
    found = 0
    for a in range(i % 7):
        b = a
        while True:
            b += 2
            if b > i % 11:
                break
            if (a * b) % 5 == 4:
                found += 100
                continue
            found += b
        if found > 300:
            break
    return found


def unsigned_wraps(i: int, n: int) -> int:
    return ((i - 50) & 0xFFFFFFFF) // 3 & 0x7FFFFFFF


CONTROL_FLOW = {
    nested_ifs: """
        int v;
        if (i & 1) { if (i & 2) { if (i & 4) v = i * 3; else v = i - 7; } else v = -i; }
        else if (i % 3 == 0) v = i * i;
        else v = 5;
        y[i] = v + 1000;""",
    triangle: """
        int v = 0;
        for (int j = 0; j < i % 37; ++j) v += j * j + i;
        y[i] = v;""",
    collatz: """
        long long m = i; int steps = 0;
        while (m > 1) { m = m % 2 ? 3 * m + 1 : m / 2; ++steps; }
        y[i] = steps;""",
    early_return: """
        if (i >= n) return;
        for (int j = 2; j < 12; ++j) if ((i + 2) % j == 0) { y[i] = j; return; }
        y[i] = -1;""",
    break_and_continue: """
        int total = 0;
        for (int j = 0; j < 40; ++j) {
            if ((i + j) % 3 == 0) continue;
            if (total > 5 * (i % 29)) break;
            total += j;
        }
        y[i] = 100 * total + i;""",
    switch: """
        int v = i;
        switch (i % 23) {
        case 0: case 1: v = 10 * i;
        case 7: v += 7; break;
        case 11: v = -v; break;
        case 12: break;
        case 22: y[i] = 1; return;
        default: v ^= 0x55;
        }
        y[i] = v + 1;""",
    dense_switch: "int v; switch (i % 16) {"
    + "".join(
        f"case {case}: v = i * {weight} + {case}; break;"
        for case, weight in enumerate((3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7))
    )
    + "default: v = -1; } y[i] = v;",
    nested_loops: """
        int found = 0;
        for (int a = 0; a < i % 7; ++a) {
            int b = a;
            do {
                b += 2;
                if (b > i % 11) break;
                if (a * b % 5 == 4) { found += 100; continue; }
                found += b;
            } while (true);
            if (found > 300) break;
        }
        y[i] = found;""",
    unsigned_wraps: "y[i] = ((unsigned)i - 50u) / 3u & 0x7fffffff;",
}


@pytest.mark.parametrize("block", [32, 96])
@pytest.mark.parametrize("expect", CONTROL_FLOW, ids=lambda function: function.__name__)
def test_lanes_part_and_meet_again(run: Run, expect: Callable, block: int) -> None:
    grid, n, untouched = 5, 100, -12345
    y = np.full(grid * block, untouched, np.int32)
    run(kernel(CONTROL_FLOW[expect]), grid, block, y, n)
    results = [expect(i, n) for i in range(len(y))]
    assert y.tolist() == [untouched if result is None else result for result in results]


def test_parted_lanes_share_one_store_once_they_have_met() -> None:
    body = """
        int v = n;
        for (int j = 0; j < i % 5; ++j) { if ((i ^ j) & 1) v += i; else v *= 3; }
        if (i % 3) v -= 2;
        y[i] = v;"""
    y = np.zeros(128, np.int32)
    trace = simulate(cupy.RawKernel(kernel(body), "k"), 2, 64, (y, 1))
    assert trace.counters.divergent_branches > 0
    assert trace.counters.store_requests == 4  # warps


@pytest.mark.parametrize(
    ("condition", "chosen"),
    [
        ("n > 3", lambda i: True),
        ("n > 30", lambda i: False),
        ("blockIdx.x % 2", lambda i: i // 64 % 2 == 1),
        ("threadIdx.x / 32", lambda i: i % 64 >= 32),
        ("i == 77", lambda i: i == 77),
        ("i % 2", lambda i: i % 2 == 1),
        ("x[i] > 0", lambda i: i % 7 > 3),
    ],
)
def test_branches_follow_uniform_and_divergent_predicates(
    run: Run, condition: str, chosen: Callable[[int], bool]
) -> None:
    x = np.array([i % 7 - 3 for i in range(192)], np.int32)
    y = np.zeros_like(x)
    # The loop keeps the compiler from turning the branch into a selection.
    body = f"if ({condition}) {{ for (int j = 0; j < n; ++j) y[i] += x[j]; }} else y[i] = -1;"
    run(kernel(body, "int* y, const int* x, int n"), 3, 64, y, x, 5)
    assert y.tolist() == [sum(x[:5].tolist()) if chosen(i) else -1 for i in range(192)]


def test_guarded_loads_read_only_where_the_guard_holds(run: Run) -> None:
    x = floats(70)
    y = np.full(96, np.nan, np.float32)
    body = "y[i] = (i < n ? x[i] : -1.0f) + (i >= 1 && i <= n ? x[i - 1] : 0.0f);"
    run(kernel(body, "float* y, const float* x, int n"), 3, 32, y, x, len(x))
    values = x.tolist()
    for i, found in enumerate(y.tolist()):
        here = values[i] if i < 70 else -1.0
        assert found == rounded(here + (values[i - 1] if 1 <= i <= 70 else 0.0))


# ---- launch shapes ------------------------------------------------------------------------------


WHERE = """
extern "C" __global__ void k(int* y)
{
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int size = blockDim.x * blockDim.y * blockDim.z;
    int* at = y + 6 * (block * size + thread);
    at[0] = blockIdx.x; at[1] = blockIdx.y; at[2] = blockIdx.z;
    at[3] = threadIdx.x; at[4] = threadIdx.y; at[5] = threadIdx.z;
}
"""


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((1,), (1,)),
        ((4,), (31,)),
        ((3,), (33,)),
        ((2, 3), (32,)),
        ((2, 1, 3), (5, 3)),
        ((1, 2, 2), (4, 3, 5)),
        ((2,), (1, 1, 64)),
        ((1, 5), (1, 100)),
        ((3, 2, 2), (8, 8, 2)),
        ((2,), (1024,)),
    ],
    ids=str,
)
def test_every_thread_knows_its_place(run: Run, grid: tuple, block: tuple) -> None:
    blocks = [(x, y, z) for z in axis(grid, 2) for y in axis(grid, 1) for x in axis(grid, 0)]
    threads = [(x, y, z) for z in axis(block, 2) for y in axis(block, 1) for x in axis(block, 0)]
    y = np.full((len(blocks), len(threads), 6), -1, np.int32)
    run(WHERE, grid, block, y)
    assert y.tolist() == [[[*where, *who] for who in threads] for where in blocks]


def axis(sizes: tuple, number: int) -> range:
    return range(sizes[number] if number < len(sizes) else 1)


@pytest.mark.parametrize("block", [1, 31, 33, 50, 1000])
def test_blocks_need_not_be_whole_warps(run: Run, block: int) -> None:
    y = np.zeros(3 * block + 10, np.int32)
    run(kernel("y[i] += i % 5 ? 2 * i : n;"), 3, block, y, 9)
    assert y.tolist() == [2 * i if i % 5 else 9 for i in range(3 * block)] + [0] * 10


@pytest.mark.parametrize(("grid", "block"), [(300, 256), (1100, 33), (40, 1024)])
def test_launches_larger_than_a_batch_run_to_the_end(run: Run, grid: int, block: int) -> None:
    assert grid * -(-block // 32) * 32 > BATCH_THREADS
    y = np.zeros(grid * block, np.int32)
    body = "int v = 0; for (int j = 0; j < blockIdx.x % 5 + i % 3; ++j) v += i; y[i] += v + n;"
    run(kernel(body), grid, block, y, 7)
    assert y.tolist() == [i * (i // block % 5 + i % 3) + 7 for i in range(grid * block)]


def test_blocks_may_stride_over_the_data(run: Run) -> None:
    x, y = floats(5000), np.zeros(5000, np.float32)
    body = "for (int j = i; j < n; j += gridDim.x * blockDim.x) y[j] = -x[j];"
    run(kernel(body, "float* y, const float* x, int n"), 3, 96, y, x, 5000)
    assert y.tolist() == [-value for value in x.tolist()]


# ---- memory of the host -------------------------------------------------------------------------


@pytest.mark.parametrize("body", ["y[i] = n;", "__syncthreads(); y[i] = 1 / n;"])
def test_a_launch_leaves_no_cycle_of_objects(body: str) -> None:
    """Nobody looks for cycles while it runs."""
    launch = KernelText(kernel(body), "k"), 2, 64, (np.zeros(128, np.int32), 3)
    simulate(*launch)  # what is made once is there
    gc.collect()
    gc.disable()
    try:
        simulate(*launch)
        assert not gc.isenabled() and gc.collect() == 0
    finally:
        gc.enable()


def test_cycles_are_looked_for_again_after_a_launch() -> None:
    simulate(KernelText(kernel(""), "k"), 1, 32, (np.zeros(1, np.int32), 3))
    assert gc.isenabled()
    with pytest.raises(CompileError):
        simulate(KernelText(kernel("nonsense"), "k"), 1, 32, (np.zeros(1, np.int32), 3))
    assert gc.isenabled()


def test_launches_of_a_kernel_in_several_threads_have_registers_of_their_own() -> None:
    """A launch goes on with the registers of one that is over, not of one that runs."""
    code = """
    extern "C" __global__ void k(const int* x, int* y)
    {
        int value = x[threadIdx.x];
        for (int round = 0; round < x[32]; ++round) value = value * 3 + round;
        y[threadIdx.x] = value;
    }
    """
    arrays = [np.full(33, 2000, np.int32) for _ in range(4)]
    for number, x in enumerate(arrays):
        x[:32] = number

    def launched(x: np.ndarray) -> list[int]:
        y = np.zeros(32, np.int32)
        simulate(KernelText(code, "k"), 1, 32, (x, y))
        return y.tolist()

    alone = [launched(x) for x in arrays]
    assert len({*map(tuple, alone)}) == 4
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(launched, arrays)) == alone
