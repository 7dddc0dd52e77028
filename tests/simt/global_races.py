"""Races in global memory: a rule a kernel. Each is right as it stands; what is replaced in it makes
it racy."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from helpers.simt import KernelText, Trace, simulate

HEADERS = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
#include <cuda/atomic>
"""
LENGTH = 4096
LIMIT = 1_000_000  # instructions


@dataclass(frozen=True)
class Case:
    """A kernel of `int *x, *y, *flag`; t is the thread, b the block, i the thread in the launch."""

    body: str
    spoil: tuple[str, str] | dict[str, str]  # what is replaced, by what, in the racy twin
    says: str  # what the finding says would order it
    grid: int = 2
    block: int = 64
    cooperative: bool = False
    qualifiers: str = ""
    flag: list[int] = field(default_factory=list)

    def function(self, name: str, racy: bool) -> str:
        """The kernel, or its racy twin, under a name."""
        body = self.body
        if racy:
            pairs = self.spoil if isinstance(self.spoil, dict) else dict([self.spoil])
            for old, new in pairs.items():
                assert old in body
                body = body.replace(old, new)
        return (
            f'extern "C" __global__ void {self.qualifiers} {name}(int* x, int* y, int* flag)\n{{\n'
            "    const int t = threadIdx.x, b = blockIdx.x, i = b * blockDim.x + t;\n"
            f"    const int last = gridDim.x - 1;\n{body}\n}}\n"
        )

    def arrays(self) -> list[np.ndarray]:
        """x, y and flag before the launch."""
        flag = np.zeros(64, np.int32)
        flag[: len(self.flag)] = self.flag
        return [np.arange(LENGTH, dtype=np.int32), np.zeros(LENGTH, np.int32), flag]


BARRIER, WARP = "__syncthreads() between", "__syncwarp() between"
BLOCKS, TOLD = "blocks are ordered by", "what it then writes"
SAME = "they need an atomic"
SCOPE, WEAK = "block scope", "one is atomic or volatile"

CASES = {
    # ---- inside a block ----
    "neighbours of a block need a barrier": Case(
        "y[i] = t;\n__syncthreads();\nx[i] = y[i ^ 63];",
        ("__syncthreads();", ""),
        BARRIER,
    ),
    "a barrier after reading too": Case(
        "int v = x[i ^ 63];\n__syncthreads();\nx[i] = v;",
        ("__syncthreads();", ""),
        BARRIER,
    ),
    "lanes of a warp need a __syncwarp": Case(
        "y[i] = t;\n__syncwarp();\nx[i] = y[i ^ 1];",
        ("__syncwarp();", ""),
        WARP,
    ),
    "a shuffle orders nothing": Case(
        "y[i] = t;\nint v = __shfl_xor_sync(~0u, t, 1);\n__syncwarp();\nx[i] = y[i ^ 1] + v;",
        ("__syncwarp();", ""),
        WARP,
    ),
    "a __syncwarp is not for other warps": Case(
        "y[i] = t;\n__syncthreads();\nx[i] = y[i ^ 32];",
        ("__syncthreads();", "__syncwarp();"),
        BARRIER,
    ),
    "a fence is no barrier": Case(
        "y[i] = t;\n__syncthreads();\nx[i] = y[i ^ 63];",
        ("__syncthreads();", "__threadfence();"),
        BARRIER,
    ),
    "a named barrier orders those that take part": Case(
        'if (t < 64) y[i] = t;\nif (t < 64) asm volatile("bar.sync 1, 64;" ::: "memory");\n'
        "if (t < 32) x[i] = y[i + 32];",
        (
            "if (t < 64) asm",
            'if (t < 32) asm volatile("bar.sync 1, 32;" ::: "memory");\nif (0) asm',
        ),
        BARRIER,
        block=96,
    ),
    "two threads store different values at one place": Case(
        "atomicExch(&y[b], t);", ("atomicExch(&y[b], t)", "y[b] = t"), SAME
    ),
    "threads add to one place": Case(
        "atomicAdd(&y[b], 1);", ("atomicAdd(&y[b], 1)", "y[b] += 1"), WARP
    ),
    "a sum is read behind a barrier": Case(
        "atomicAdd(&y[b], x[i]);\n__syncthreads();\nif (t == 63) x[i] = y[b];",
        ("__syncthreads();", ""),
        BARRIER,
    ),
    "a flag within a block": Case(
        "if (t == 0) { y[b] = 5; __threadfence_block(); *(volatile int*)&flag[b] = 1; }\n"
        "if (t == 32) {\nwhile (*(volatile int*)&flag[b] == 0);\n"
        "__threadfence_block(); x[i] = y[b]; }",
        ("5; __threadfence_block();", "5;"),
        BARRIER,
    ),
    # ---- bytes ----
    "bytes of one word are different places": Case("((char*)y)[i] = t;", ("[i]", "[i / 2]"), SAME),
    "a wide store and narrow ones": Case(
        "if (t == 0) *(int4*)(y + i) = make_int4(1, 2, 3, 4);\nelse if (t > 3) y[i] = t;",
        ("t > 3", "t > 2"),
        WARP,
    ),
    # ---- across blocks ----
    "blocks share nothing without an order": Case("y[i] = x[i];", ("y[i]", "y[t]"), SAME),
    "the next block's values": Case(
        "y[i] = x[i] + 1;\n__syncthreads();\nx[i] = y[b * 64 + (t ^ 1)];",
        ("y[b * 64 + (t ^ 1)]", "y[(i + 64) % 128]"),
        BLOCKS,
    ),
    "a flag that many raise": Case("if (x[i] > 70) y[0] = 1;", ("y[0] = 1", "y[0] = x[i]"), SAME),
    "all blocks add to a sum": Case(
        "if (t == 0) atomicAdd(y, x[i]);",
        ("atomicAdd(y, x[i])", "*y = *y + x[i]"),
        BLOCKS,
    ),
    "an atomic of block scope": Case("atomicAdd(y, 1);", ("atomicAdd(", "atomicAdd_block("), SCOPE),
    "an atomic of block scope beside others": Case(
        "if (b == 0) atomicMax_block(y, t); else atomicMax(y + 1, t);",
        ("y + 1", "y"),
        SCOPE,
    ),
    "an ordinary load of what others add to": Case(
        "atomicAdd(y, 1);\nif (t == 0) x[i] = *(volatile int*)y;",
        ("*(volatile int*)y", "*y"),
        WEAK,
    ),
    "an ordinary store to what others add to": Case(
        "if (i == 0) atomicExch(y, 0);\n__syncthreads();\natomicAdd(y, 1);",
        ("atomicExch(y, 0)", "y[0] = 0"),
        WEAK,
    ),
    "a swap may guess first": Case(
        "int old = *y, seen;\n"
        "do { seen = old; old = atomicCAS(y, seen, seen + 1); } while (old != seen);",
        ("atomicCAS(y, seen, seen + 1)", "*y; *y = seen + 1"),
        WARP,
    ),
    "a counter that is reset, drawn from and then only added to": Case(
        "if (i == 0) x[i] = atomicAdd(y, 1);\n__syncthreads();\n"
        "if (i == 32) atomicAdd(y, 1);\n__syncthreads();\nif (i == 0) *y = 0;",
        ("i == 32", "i == 64"),
        WEAK,
    ),
}

SEND = """
if (b == 0) {
    y[t] = x[t] + 1;
    __syncthreads();
    if (t == 0) { __threadfence(); *(volatile int*)flag = 1; }
} else {
    if (t == 0) { while (*(volatile int*)flag == 0); __threadfence(); }
    __syncthreads();
    x[i] = y[t];
}"""
LAST = """
__shared__ bool is_last;
y[i] = x[i] + 1;
__syncthreads();
if (t == 0) { __threadfence(); is_last = atomicAdd(flag, 1) == last; __threadfence(); }
__syncthreads();
if (is_last) {
    int sum = 0;
    for (int k = t; k < 64 * gridDim.x; k += 64) sum += y[k];
    x[t] = sum;
}"""
LOCK = """
if (t == 0) {
    while (atomicCAS(flag, 0, 1) != 0);
    __threadfence();
    y[0] += 1;
    __threadfence();
    atomicExch(flag, 0);
}"""
RELEASE = """
cuda::atomic_ref<int, cuda::thread_scope_device> f(*flag);
if (b == 0) {
    if (t == 0) { y[0] = 7; f.store(1, cuda::memory_order_release); }
} else if (t == 0) {
    while (f.load(cuda::memory_order_acquire) == 0);
    x[i] = y[0];
}"""
TWICE = """
for (int round = 0; round < 2; round++)  // so that the others come when block 0 is done
    if (t == 0 && (b == 0) == (round == 0)) {
        if (*(volatile int*)&flag[1] == 0) {
            while (atomicCAS(flag, 0, 1) != 0);
            __threadfence();
            if (*(volatile int*)&flag[1] == 0) {
                y[0] = 9;
                __threadfence();
                atomicExch(&flag[1], 1);
            }
            __threadfence();
            atomicExch(flag, 0);
        }
        __threadfence();
        x[i] = y[0];
    }"""
CHAIN = """
if (t == 0) {
    if (b > 0) { while (*(volatile int*)&flag[b - 1] == 0); __threadfence(); }
    y[b] = b == 0 ? x[i] : y[b - 1] + x[i];
    __threadfence();
    *(volatile int*)&flag[b] = 1;
}"""
GRID = """
auto grid = cg::this_grid();
for (int step = 0; step < 4; step++) {
    int* from = step % 2 ? y : x, *to = step % 2 ? x : y;
    to[i] = from[(i + 64) % (64 * gridDim.x)] + 1;
    grid.sync();
}"""
OWN_FENCES = """
y[i] = x[i] + 1;
__threadfence();
__syncthreads();
if (t == 0) atomicAdd(flag, 1);
if (b == last) {
    if (t == 0) { while (*(volatile int*)flag <= last); __threadfence(); }
    __syncthreads();
    for (int k = t; k < 64 * gridDim.x; k += 64) x[k] = y[k];
}"""

CASES |= {
    "a flag to another block": Case(SEND, ("__threadfence(); *(", "*("), "an atomic write after"),
    "a fence that is too narrow, of the sender": Case(
        SEND, ("__threadfence(); *(", "__threadfence_block(); *("), "reaches no other block"
    ),
    "a flag without acquire": Case(SEND, ("== 0); __threadfence();", "== 0);"), TOLD),
    "a fence that is too narrow, of the receiver": Case(
        SEND, ("== 0); __threadfence();", "== 0); __threadfence_block();"), TOLD
    ),
    "a flag that is not volatile": Case(
        SEND, ("*(volatile int*)flag = 1", "*flag = t + 1"), WEAK
    ),
    "no barrier before the flag": Case(
        SEND, ("1;\n    __syncthreads();", "1;"), BLOCKS
    ),
    "a fence on the wrong side of the stores": Case(
        SEND,
        {"y[t] =": "__threadfence(); __syncthreads(); y[t] =", "__threadfence(); *(": "*("},
        BLOCKS,
    ),
    "the last block has to know": Case(LAST, ("{ __threadfence(); is", "{ is"), TOLD, grid=5),
    "the last block has to know all of it": Case(
        LAST, ("1;\n__syncthreads();", "1;"), BLOCKS, grid=5
    ),
    "the last block acquires": Case(LAST, ("last; __threadfence();", "last;"), TOLD, grid=5),
    "not the last block but the first": Case(
        LAST, ("is_last = atomicAdd(flag, 1) == last", "is_last = atomicAdd(flag, 1) == 0"),
        TOLD, grid=5,
    ),
    "the last block by a counter of block scope": Case(
        LAST, ("atomicAdd(", "atomicAdd_block("), SCOPE, grid=5
    ),
    "a lock": Case(LOCK, ("y[0] += 1;\n    __threadfence();", "y[0] += 1;"), BLOCKS, grid=4),
    "a lock that is taken without a fence": Case(
        LOCK, ("!= 0);\n    __threadfence();", "!= 0);"), TOLD, grid=4
    ),
    "a lock of block scope": Case(
        LOCK, {"atomicCAS(": "atomicCAS_block(", "atomicExch(": "atomicExch_block("},
        SCOPE, grid=4,
    ),
    "release and acquire": Case(RELEASE, ("order_release", "order_relaxed"), BLOCKS),
    "release without acquire": Case(
        RELEASE, ("order_acquire", "order_relaxed"), BLOCKS
    ),
    "release and acquire of a block": Case(RELEASE, ("scope_device", "scope_block"), SCOPE),
    "read twice, published too early": Case(
        TWICE,
        {"                y[0] = 9;\n": "", "flag[1], 1);\n": "flag[1], 1); y[0] = 9;\n"},
        TOLD, grid=3
    ),
    "read twice without a fence": Case(
        TWICE, ("        __threadfence();\n        x[i]", "        x[i]"), TOLD, grid=3
    ),
    "a chain of blocks": Case(CHAIN, ("    __threadfence();\n", ""), BLOCKS, grid=4),
    "a chain of blocks whose links acquire": Case(
        CHAIN, ("== 0); __threadfence();", "== 0);"), TOLD, grid=4
    ),
    "two buffers need a barrier of the grid": Case(
        GRID, ("grid.sync();", "__syncthreads();"), "a barrier of the grid", grid=3,
        cooperative=True,
    ),
    "every thread its own fence before the barrier": Case(
        OWN_FENCES, ("1;\n__threadfence();", "1;"), BLOCKS, grid=3
    ),
    "blocks of a cluster meet": Case(
        "auto cluster = cg::this_cluster();\ny[i] = t;\ncluster.sync();\nx[i] = y[i ^ 64];",
        ("cluster.sync();", "__syncthreads();"), "a barrier of the cluster",
        qualifiers="__cluster_dims__(2)",
    ),
    "a barrier of the cluster is for no other": Case(
        "auto cluster = cg::this_cluster();\ny[i] = t;\ncluster.sync();\nx[i] = y[i ^ 64];",
        ("y[i ^ 64]", "y[i ^ 128]"), BLOCKS,
        qualifiers="__cluster_dims__(2)", grid=4,
    ),
}  # fmt: skip


CASES["a value that nobody uses"] = Case(
    "y[i] = t;\nint v;\n"
    'asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(y + (i ^ 32)) : "memory");\n'
    "x[i] = flag[0] ? v : t;",
    ("flag[0] ? v", "true ? v"),
    BARRIER,
)

# ---- asynchronous copies ----

COPY_IN = """
__shared__ int s[64];
const unsigned to = (unsigned)__cvta_generic_to_shared(s + t);
asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(x + i) : "memory");
asm volatile("cp.async.wait_all;" ::: "memory");
__syncthreads();
x[i ^ 1] = t;
y[i] = s[t];"""
COPY_OUT = """
__shared__ __align__(16) int s[64];
s[t] = t;
asm volatile("fence.proxy.async;" ::: "memory");
__syncthreads();
if (t == 0) {
    const unsigned from = (unsigned)__cvta_generic_to_shared(s);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;"
                 ::"l"(y + 64 * b), "r"(from) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
__syncthreads();
x[i] = y[64 * b + t];"""
GOES_ON = "until its thread has waited"

CASES |= {
    "a copy reads until it is waited for": Case(
        COPY_IN,
        {'asm volatile("cp.async.wait_all;" ::: "memory");\n__syncthreads();': "__syncthreads();",
         "y[i] =": 'asm volatile("cp.async.wait_all;" ::: "memory"); y[i] ='}, GOES_ON
    ),
    "a copy of what another thread writes": Case(
        "y[i] = t;\n__syncthreads();"
        + COPY_IN.replace("x + i", "y + (i ^ 32)").replace("y[i] =", "y[i + 128] ="),
        ("y[i] = t;\n__syncthreads();", "y[i] = t;"), BARRIER
    ),
    "a copy writes until it is waited for": Case(
        COPY_OUT, ("wait_group 0", "wait_group.read 0"), GOES_ON
    ),
    "copies of blocks that overlap": Case(
        COPY_OUT, {"y + 64 * b)": "y + 60 * b)", "x[i] = y[64 * b + t];": ""}, GOES_ON
    ),
    "a copy of what a store wrote too": Case(
        COPY_OUT, ("if (t == 0) {", "y[i] = 0;\nif (t == 0) {"), WARP
    ),
}  # fmt: skip


def kernel_name(rule: str, racy: bool) -> str:
    """A name that C takes: "neighbours of a block need a barrier" -> neighbours_of_a_..._racy."""
    words = "".join(letter if letter.isalnum() else "_" for letter in rule)
    return f"{words}_{'racy' if racy else 'right'}"


@dataclass(frozen=True, eq=False)
class Rules:
    """Kernels by what they are about, each right as it stands and its racy twin, in one source."""

    file: str
    cases: dict[str, Case]

    @cached_property
    def source(self) -> str:
        """All of them, to be compiled once."""
        functions = [
            one.function(kernel_name(rule, racy), racy)
            for rule, one in self.cases.items()
            for racy in (True, False)
        ]
        return "".join([HEADERS, f'#line 1 "kernels/{self.file}.cu"\n', *functions])

    def run(self, rule: str, racy: bool) -> Trace:
        """Run a kernel, or its racy twin, on the SIMT machine."""
        case = self.cases[rule]
        kernel = KernelText(self.source, kernel_name(rule, racy), (), case.cooperative)
        sizes = case.grid, case.block
        return simulate(kernel, *sizes, case.arrays(), instruction_limit=LIMIT)


RULES = Rules("global_races", CASES)
