"""Threads that wait for one another through memory: what orders them, and what is no hang."""

import time
from types import SimpleNamespace

import cupy
import numpy as np
import pytest

from helpers.simt import Trace, simulate

LIMIT = 2_000_000


def run(body: str, threads: int, *args, blocks: int = 1, before: str = "") -> Trace:
    """Run a kernel `k(int* y, int* f)`; `t` is the thread."""
    code = (
        f'{before}\nextern "C" __global__ void k(int* y, volatile int* f)\n'
        f"{{\n    const int t = threadIdx.x;\n{body}\n}}\n"
    )
    return simulate(cupy.RawKernel(code, "k"), blocks, threads, args, instruction_limit=LIMIT)


ENDS_BY_ITSELF = {
    "counter": "int n;\n#pragma unroll 1\nfor (n = 0; n < 1000; n++) if (f[0]) break;\ny[t] = n;",
    "scan": "int n = 0;\n#pragma unroll 1\nwhile (n < 1000 && f[n] != 9) n++;\ny[t] = n;",
    "clock": "long long s = clock64(); while (clock64() - s < 100000) if (f[0]) break;"
    " y[t] = 1000;",
    "outer loop": "int n = 0;\n#pragma unroll 1\nfor (int i = 0; i < 1000; i++)"
    " { while (f[1000] == 0); n += f[i] + 1; } y[t] = n;",
    "left from within": "for (;;) if (f[1000] && ++y[t] == 999)"
    ' { y[t] = 1000; asm volatile("exit;"); }',
}


@pytest.mark.parametrize("name", ENDS_BY_ITSELF)
def test_a_loop_that_ends_by_itself_is_no_hang(name: str) -> None:
    y, f = np.zeros(40, np.int32), np.zeros(1001, np.int32)
    f[1000] = 1
    trace = run(ENDS_BY_ITSELF[name], 40, y, f)
    assert not trace.findings, str(trace.findings)
    assert y.tolist() == [1000] * 40


WAITS = [
    "while (f[0] == 0);",
    "while (atomicAdd((int*)f, 0) == 0);",
    "#pragma unroll 1\nfor (int k = 0; k < 9; k++) while (f[k] == 0);",
]


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_that_nobody_ends_is_a_hang_at_once(wait: str) -> None:
    y, f = np.zeros(40, np.int32), np.zeros(1, np.int32)
    began = time.process_time()
    trace = run(f"    {wait}\n    y[t] = 1;", 40, y, f)
    assert [finding.kind for finding in trace.findings] == ["hang"]
    assert trace.counters.warp_instructions < 10_000
    assert time.process_time() - began < 2


CHAIN = """
    __shared__ int s[32];
    const int warp = t / 32, lane = t % 32;
    if (warp == 1) { s[lane] = lane; asm volatile("bar.sync 1, 64;" ::: "memory"); }
    if (warp == 0) {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        asm volatile("bar.arrive 2, 64;" ::: "memory");
    }
    if (warp == 2) { asm volatile("bar.sync 2, 64;" ::: "memory"); y[lane] = s[31 - lane]; }"""


def test_an_arrival_hands_over_what_its_warp_has_seen() -> None:
    y, f = np.zeros(32, np.int32), np.zeros(1, np.int32)
    trace = run(CHAIN, 96, y, f)
    assert not trace.findings, str(trace.findings)
    assert y.tolist() == list(range(31, -1, -1))
    first = 'asm volatile("bar.sync 1, 64;" ::: "memory");'
    broken = run(CHAIN.replace(first, ""), 96, y, f)
    assert "race on shared memory" in {finding.kind for finding in broken.findings}


ADD_BY_SWAPS = """
    float* sum = (float*)f; float old = *sum, seen;
    do { seen = old; old = __int_as_float(atomicCAS((int*)sum, __float_as_int(seen),
                                                    __float_as_int(seen + 1.0f))); }
    while (__float_as_int(old) != __float_as_int(seen));"""


def test_compare_and_swap_loops_of_many_threads_end_soon() -> None:
    y, f = np.zeros(1, np.int32), np.zeros(1, np.float32)
    began = time.process_time()
    trace = run(ADD_BY_SWAPS, 512, y, f.view(np.int32))
    assert not trace.findings and f[0] == 512
    assert time.process_time() - began < 5


LOCK_OF_ALL = """
    for (bool done = false; !done;)
        if (atomicCAS((int*)f, 0, 1) == 0) {
            __threadfence();
            *(int*)y += 1;
            __threadfence();
            atomicExch((int*)f, 0);
            done = true;
        }"""


def test_a_lock_that_every_thread_takes_ends_soon_and_orders_what_it_guards() -> None:
    y, f = np.zeros(1, np.int32), np.zeros(1, np.int32)
    began = time.process_time()
    assert not run(LOCK_OF_ALL, 64, y, f).findings and y[0] == 64
    assert time.process_time() - began < 5
    unfenced = LOCK_OF_ALL.replace("__threadfence();\n            atomicExch", "atomicExch")
    assert run(unfenced, 32, y, f).findings


def test_asynchronous_copy_of_more_than_its_size_is_reported() -> None:
    body = """
    __shared__ __align__(16) int s[4];
    unsigned to = (unsigned)__cvta_generic_to_shared(s);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(f), "r"(y[1]));
    asm volatile("cp.async.wait_all;");
    y[0] = s[3];"""
    y, f = np.array([0, 20], np.int32), np.arange(8, dtype=np.int32)
    trace = run(body, 1, y, f)
    assert [one.kind for one in trace.findings] == ["asynchronous copy of more than its size"]
    y[1] = 16
    assert not run(body, 1, y, f).findings and y[0] == 3


def test_cooperative_launch_that_cannot_be_resident_is_refused() -> None:
    code = 'extern "C" __global__ void k(int* y) { y[0] = 1; }'
    kernel = SimpleNamespace(code=code, name="k", options=(), enable_cooperative_groups=True)
    y = np.zeros(1, np.int32)
    simulate(kernel, 132, 32, (y,), 200 * 1024)
    with pytest.raises(ValueError, match="133 blocks .* does not fit on an H200 at once: 132 do"):
        simulate(kernel, 133, 32, (y,), 200 * 1024)
