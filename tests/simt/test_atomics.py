"""Atomics of the SIMT machine: results, tickets, and what they do and do not race with."""

import time

import cupy
import numpy as np
import pytest

from helpers.simt import simulate
from tests.simt.launching import CLUSTER


def test_an_atomic_on_uninitialised_shared_memory_is_found() -> None:
    code = """extern "C" __global__ void k(double* y)
{
    __shared__ int count;
    if (threadIdx.x == 99) count = 0;
    __syncthreads();
    atomicAdd(&count, 1);
    __syncthreads();
    atomicAdd(y, count * 0.5);
}"""
    y = np.zeros(1)
    (found,) = simulate(cupy.RawKernel(code, "k"), 1, 64, (y,)).findings
    assert (found.kind, found.line) == ("read of unwritten shared memory", 6)
    right = code.replace("== 99", "== 9")
    assert not simulate(cupy.RawKernel(right, "k"), 1, 64, (y := np.zeros(1),)).findings
    assert y[0] == 64 * 64 / 2


OPERATIONS = {  # CUDA's function: (what it leaves of old and value)
    "atomicAdd(y, v)": lambda old, v: old + v,
    "atomicSub(y, v)": lambda old, v: old - v,
    "atomicMin(y, v)": min,
    "atomicMax(y, v)": max,
    "atomicAnd(y, v)": lambda old, v: old & v,
    "atomicOr(y, v)": lambda old, v: old | v,
    "atomicXor(y, v)": lambda old, v: old ^ v,
    "atomicExch(y, v)": lambda old, v: v,
    "atomicInc(y, v)": lambda old, v: 0 if old >= v else old + 1,
    "atomicDec(y, v)": lambda old, v: v if old == 0 or old > v else old - 1,
    "atomicCAS(y, 7u, v)": lambda old, v: v if old == 7 else old,
}


@pytest.mark.parametrize("call", OPERATIONS)
def test_operation_equals_taking_turns_lane_by_lane(call):
    code = (
        'extern "C" __global__ void run(const unsigned* x, unsigned* y, unsigned* old)\n'
        f"{{ unsigned v = x[threadIdx.x]; old[threadIdx.x] = {call}; }}"
    )
    x = np.random.default_rng(1).integers(0, 50, 40).astype(np.uint32)
    y, old = np.array([7], np.uint32), np.zeros(40, np.uint32)
    simulate(cupy.RawKernel(code, "run"), 1, 40, (x, y, old))
    state, seen = 7, []
    for value in map(int, x):
        seen.append(state)
        state = OPERATIONS[call](state, value) & 0xFFFFFFFF
    assert old.tolist() == seen
    assert int(y[0]) == state


def test_atomic_out_of_bounds_is_found_at_its_line():
    code = (
        '#line 1 "kernels/wild.cu"\nextern "C" __global__ void wild(int* y, int n)\n'
        "{\n    atomicAdd(&y[n], 1);\n}"
    )
    trace = simulate(cupy.RawKernel(code, "wild"), 1, 32, (np.zeros(4, np.int32), 4))
    assert {finding.line for finding in trace.findings} == {3}
    assert all("out-of-bounds" in finding.kind for finding in trace.findings)


CROWD = """
extern "C" __global__ void crowd(const int* x, int* found, int* total, float* sum, int* seen)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    found[i] = atomicAdd(total, x[i]);
    atomicAdd(sum, (float)x[i]);
    atomicMax(total + 1, x[i]);
    seen[i] = atomicExch(total + 2, i + 1);
    atomicInc((unsigned*)total + 3, 99);
    if (atomicCAS(total + 4, 0, i + 1) == 0) total[5] = i;
}
"""


def test_a_crowd_at_one_address_takes_turns_as_a_few_do() -> None:
    blocks, threads = 40, 512
    count = blocks * threads
    x = np.random.default_rng(0).integers(-50, 50, count).astype(np.int32)
    found, seen = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
    total, total_sum = np.zeros(6, np.int32), np.zeros(1, np.float32)
    total[1] = -100
    began = time.perf_counter()
    args = x, found, total, total_sum, seen
    trace = simulate(cupy.RawKernel(CROWD, "crowd"), blocks, threads, args)
    assert not trace.findings and time.perf_counter() - began < 5
    assert trace.counters.atomic_requests == 6 * count // 32
    assert found.tolist() == [0, *np.cumsum(x)[:-1]]
    assert total[0] == x.sum() == total_sum[0] and total[1] == x.max()
    assert sorted([*seen, total[2]]) == list(range(count + 1))
    assert total[3] == count % 100
    assert total[4] == 1 and total[5] == 0


SHARED_BY_TWO = f"""{CLUSTER}
extern "C" __global__ void __cluster_dims__(2) count(int* y)
{{
    __shared__ int counter;
    if (threadIdx.x == 0) counter = 0;
    CLUSTER_SYNC();
    // One instruction, two ways to name the counter of block 0.
    int* first = blockIdx.x % 2 == 0 ? &counter : in_block(&counter, 0);
    atomicAdd(first, 1);
    CLUSTER_SYNC();
    if (threadIdx.x == 0) y[blockIdx.x] = counter;
}}
"""


def test_own_and_remote_addresses_of_one_word_do_not_lose_updates() -> None:
    y = np.full(4, -1, np.int32)
    trace = simulate(cupy.RawKernel(SHARED_BY_TWO, "count"), 4, 33, (y,))
    assert not trace.findings, str(trace.findings)
    assert y.tolist() == [66, 0, 66, 0]
