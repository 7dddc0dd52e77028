"""What the order of blocks shows, counters that are read again, and volatile accesses that count as
ordinary ones. The rules of order_races.py are tested with those of global memory."""

import numpy as np
import pytest

from helpers.simt import KernelText, simulate

COUNTED = {  # of a flag itself every thread reads the latest that it has seen, or a later one
    "by all": "{}",
    "by some": "if (i % 32 == 0) for (int r = 0; r < 3; r++) {}",
    "behind a barrier": "if (i % 32 == 0) {}\n__syncthreads();\n{}",
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_counter_that_is_read_again_needs_no_fence(name: str) -> None:
    once = "{ x[i] = atomicAdd(y, 1) + atomicAdd(y, 1); x[i] += *(volatile int*)y; }"
    text = (
        'extern "C" __global__ void k(int* x, int* y)\n{\n'
        f"const int i = blockIdx.x * 64 + threadIdx.x;\n{COUNTED[name].format(*[once] * 2)}\n}}"
    )
    arrays = np.zeros(128, np.int32), np.zeros(4, np.int32)
    findings = simulate(KernelText(text, "k"), 2, 64, arrays).findings
    assert not findings, str(findings)


# ---- blocks in reverse order --------------------------------------------------------------------

UNDER_A_LOCK = """#line 1 "kernels/x.cu"
extern "C" __global__ void k(int* y, int* lock) {
    if (threadIdx.x) return;
    while (atomicCAS(lock, 0, 1) != 0);
    __threadfence();
    if (blockIdx.x == READER) lock[1] = y[0];
    INSIDE
    __threadfence();
    atomicExch(lock, 0);
    OUTSIDE
}"""
STORE = "if (blockIdx.x != READER) y[0] = 5;"
UNSAFE = UNDER_A_LOCK.replace("OUTSIDE", STORE).replace("INSIDE", "")
SAFE = UNDER_A_LOCK.replace("INSIDE", STORE).replace("OUTSIDE", "")


@pytest.mark.parametrize("reader", [0, 1])
def test_a_store_after_the_unlock_is_found_whichever_block_is_first(reader: int) -> None:
    def findings(code: str, **options) -> list:
        kernel = KernelText(code, "k", (f"-DREADER={reader}",))
        arrays = np.zeros(1, np.int32), np.zeros(2, np.int32)
        return simulate(kernel, 2, 32, arrays, **options).findings

    (found,) = findings(UNSAFE, orders=2)
    assert (found.kind, found.line) == ("race on global memory", 5)
    assert found.block == (reader, 0, 0)
    assert len(findings(UNSAFE)) == reader  # with one order only where the reader comes second
    assert ("(found with the blocks in reverse order)" in found.message) == (not reader)
    assert not findings(SAFE, orders=2)


APART = """#line 1 "kernels/x.cu"
extern "C" __global__ void k(int* y, int* lock) {
    if (blockIdx.x == READER) {
        while (atomicCAS(lock, 0, 1) != 0);
        __threadfence();
        lock[1] = y[0];
        __threadfence();
        atomicExch(lock, 0);
    } else {
        while (atomicCAS(lock, 0, 1) != 0);
        __threadfence();
        lock[2] = y[0];
        __threadfence();
        atomicExch(lock, 0);
        y[0] = 5;
    }
}"""


@pytest.mark.parametrize("reader", [0, 1])
@pytest.mark.parametrize("condition", ["==", "!="])
def test_blocks_that_take_different_paths_change_their_order_too(
    reader: int, condition: str
) -> None:
    code = APART.replace("==", condition, 1)
    kernel = KernelText(code, "k", (f"-DREADER={reader}",))
    arrays = np.zeros(1, np.int32), np.zeros(3, np.int32)
    (found,) = simulate(kernel, 2, 1, arrays, orders=2).findings
    assert (found.kind, found.line) == ("race on global memory", 5)


ORDERED = """extern "C" __global__ void k(int* y) {
    if (threadIdx.x == 0) y[1 + blockIdx.x] = atomicAdd(y, 1);
}"""


def test_all_but_the_findings_is_of_the_first_order() -> None:
    told, y = [], np.zeros(41, np.int32)
    trace = simulate(
        KernelText(ORDERED, "k"), 40, 1024, (y,), orders=2, progress=lambda *now: told.append(now)
    )
    assert not trace.findings and y.tolist() == [40, *range(40)]
    assert trace.counters.atomic_requests == 40
    assert told == [(32, 80), (40, 80), (72, 80), (80, 80)]


@pytest.mark.parametrize("qualifier", ["", "__cluster_dims__(2, 1, 1)"])
def test_a_finding_of_both_orders_is_reported_once_as_in_the_first(qualifier: str) -> None:
    code = f"""extern "C" __global__ void {qualifier} k(int* y, int n) {{
        y[blockIdx.x * 32 + threadIdx.x] = n;
    }}"""
    (found,) = simulate(
        KernelText(code, "k"), 4, 32, (np.zeros(100, np.int32), 3), orders=2
    ).findings
    assert (found.block, found.thread, found.count) == ((3, 0, 0), (4, 0, 0), 28)
    assert "reverse" not in found.message


CLUSTERS = """extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int* y) {
    unsigned id, rank;
    asm("mov.u32 %0, %clusterid.x;\\nmov.u32 %1, %cluster_ctarank;" : "=r"(id), "=r"(rank));
    if (EXPECTED != blockIdx.x) y[999] = 1;
}"""


@pytest.mark.parametrize(("expected", "count"), [("2 * id + rank", 0), ("2 * id + 1 - rank", 1)])
def test_clusters_keep_their_blocks_in_reverse_order(expected: str, count: int) -> None:
    kernel = KernelText(CLUSTERS, "k", (f"-DEXPECTED={expected}",))
    assert len(simulate(kernel, 8, 1, (np.zeros(8, np.int32),), orders=2).findings) == count


# ---- volatile accesses that count as ordinary ones ----------------------------------------------

# Each is silent by default and a race with volatile="plain"; with the replacements, silent too.
VOLATILE = {
    "data of another block": (
        "if (b == 0) v[t] = t; else x[i] = v[t];",
        {"v[t] = t;": "v[64 + t] = t;"},
    ),
    "data of another thread of the block": (
        "v[i] = t; x[i] = v[i ^ 33];",
        {"v[i] = t;": "v[i] = t; __syncthreads();"},
    ),
    "a flag": (
        "if (i == 64) { while (v[0] == 0); __threadfence(); x[64] = x[0]; }\n"
        "if (i == 0) { x[0] = 5; __threadfence(); v[0] = 1; }",
        {"v[0] = 1": "atomicExch(y, 1)", "v[0] == 0": "atomicAdd(y, 0) == 0"},
    ),
    "a lock that a volatile store releases": (
        "if (t == 0) { while (atomicCAS(y, 0, 1) != 0); __threadfence(); x[0] += 1;\n"
        "__threadfence(); v[0] = 0; }",
        {"v[0] = 0": "atomicExch(y, 0)"},
    ),
    "shared memory": (
        "if (t == 0) *(volatile int*)s = 1;\nx[i] = *(volatile int*)(s + (t == 33)) ? 1 : 2;",
        {";\nx": "; __syncthreads();\nx"},
    ),
}
RACES = {f"race on {memory} memory" for memory in ("global", "shared")}


@pytest.mark.parametrize("name", VOLATILE)
def test_volatile_accesses_count_as_ordinary_ones_if_asked_to(name: str) -> None:
    def findings(body: str, volatile: str) -> list:
        code = f"""extern "C" __global__ void k(int* x, int* y) {{
            volatile int* v = y;
            const int t = threadIdx.x, b = blockIdx.x, i = 64 * b + t;
            __shared__ int s[2];
            if (t < 2) s[t] = 0;
            __syncthreads();
            {body}
        }}"""
        arrays = np.zeros(128, np.int32), np.zeros(128, np.int32)
        options = {"volatile": volatile, "instruction_limit": 10**6}
        return simulate(KernelText(code, "k"), 2, 64, arrays, **options).findings

    body, replacements = VOLATILE[name]
    assert not findings(body, "relaxed")
    found = findings(body, "plain")
    assert found and {one.kind for one in found} <= RACES
    if name.startswith("a lock"):
        assert "the store in line 8 is volatile, which counts as ordinary here" in found[0].message
    for wrong, right in replacements.items():
        assert wrong in body
        body = body.replace(wrong, right)
    assert not findings(body, "plain")
