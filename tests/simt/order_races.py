"""Races where a flag in shared memory, a volatile value or half a barrier ought to order, and does
not: a rule a kernel, as in global_races.py. Each is right as it stands; what is replaced in it
makes it racy."""

from functools import cache

from helpers.simt import KernelText, Trace, simulate
from tests.simt.global_races import HEADERS, LIMIT, Case, kernel_name

FILE = "order_races"

# ---- a flag in shared memory that guards `data`, in shared or global memory ----

VOLATILE_FLAG = """
__shared__ int flag_, own[64];
if (t == 0) flag_ = 0;
__syncthreads();
if (t == 0) { data = x[i] + 1; __threadfence_block(); *(volatile int*)&flag_ = 1; }
if (t == 32) { while (*(volatile int*)&flag_ == 0); __threadfence_block(); x[i] = data; }"""
ATOMIC_FLAG = VOLATILE_FLAG.replace("*(volatile int*)&flag_ = 1", "atomicExch(&flag_, 1)").replace(
    "*(volatile int*)&flag_", "atomicAdd(&flag_, 0)"
)
RELEASED_FLAG = """
__shared__ int flag_, own[64];
if (t == 0) flag_ = 0;
__syncthreads();
cuda::atomic_ref<int, cuda::thread_scope_block> f(flag_);
if (t == 0) { data = x[i] + 1; f.store(1, cuda::memory_order_release); }
if (t == 32) { while (f.load(cuda::memory_order_acquire) == 0); x[i] = data; }"""
LOCK = """
__shared__ int lock, own[64];
if (t == 0) lock = own[0] = 0;
__syncthreads();
if (t % 32 == 0) {
    while (atomicCAS(&lock, 0, 1) != 0);
    __threadfence_block();
    data += 1;
    __threadfence_block();
    atomicExch(&lock, 0);
}"""
TICKET = """
__shared__ int count, own[64];
if (t == 0) count = 0;
__syncthreads();
values[t] = x[i];
__threadfence_block();
if (atomicAdd(&count, 1) == 63) {
    count = 0;
    __threadfence_block();
    int sum = 0;
    for (int k = 0; k < 64; k++) sum += values[k];
    x[i] = sum;
}"""
ONE_LANE = """
__shared__ int flag_, own[64];
if (t == 0) flag_ = 0;
__syncthreads();
if (t == 0) { data = x[i] + 1; __threadfence_block(); *(volatile int*)&flag_ = 1; }
if (t == 32) { while (*(volatile int*)&flag_ == 0); __threadfence_block(); }
if (t >= 32) { __syncwarp(); x[i] = data; }"""
RELEASES = "; __threadfence_block(); *("
SETS = "data = x[i] + 1; __threadfence_block(); *(volatile int*)&flag_ = 1;"
EARLY = "__threadfence_block(); *(volatile int*)&flag_ = 1; data = x[i] + 1;"
ACQUIRES = "== 0); __threadfence_block();"


PLACES = {  # of data, one and many
    "shared": ("own[0]", "own[", "with no barrier between"),
    "global": ("y[b]", "(y + 64 * b)[", "__syncthreads() between"),
}


def _placed(name: str, body: str, *spoils: tuple[str, str, str]) -> dict[str, Case]:
    """A kernel whose data is in shared memory and one where it is in global memory, for each way to
    spoil it: how, what is replaced, by what."""
    found = {}
    for how, *spoil in spoils:
        for where, (one, many, says) in PLACES.items():
            text, old, new = (
                part.replace("data", one).replace("values[", many) for part in (body, *spoil)
            )
            found[f"{name} {how}, {where} memory"] = Case(text, (old, new), says)
    return found


CASES = {
    **_placed(
        "a volatile flag in shared memory",
        VOLATILE_FLAG,
        ("without acquire", ACQUIRES, "== 0);"),
        ("without release", RELEASES, "; *("),
        ("that is set too early", SETS, EARLY),
    ),
    **_placed(
        "an atomic flag in shared memory",
        ATOMIC_FLAG,
        ("without acquire", ACQUIRES, "== 0);"),
        ("without release", "1; __threadfence_block();", "1;"),
    ),
    **_placed(
        "release and acquire in shared memory",
        RELEASED_FLAG,
        ("without acquire", "order_acquire", "order_relaxed"),
        ("without release", "order_release", "order_relaxed"),
    ),
    **_placed(
        "a lock in shared memory",
        LOCK,
        ("taken without a fence", "!= 0);\n    __threadfence_block();", "!= 0);"),
        ("given back without a fence", "+= 1;\n    __threadfence_block();", "+= 1;"),
        ("given back by a store", "atomicExch(&lock, 0)", "lock = 0"),
    ),
    **_placed(
        "the last of a block",
        TICKET,
        ("has to know", "x[i];\n__threadfence_block();", "x[i];"),
        ("acquires", "count = 0;\n    __threadfence_block();", "count = 0;"),
    ),
    **_placed(
        "a flag in shared memory, seen by one lane",
        ONE_LANE,
        ("for its warp", "__syncwarp(); x[i]", "x[i]"),
    ),
}


@cache
def source() -> str:
    """All kernels, each right as it stands and its racy twin, to be compiled once."""
    functions = [
        one.function(kernel_name(rule, racy), racy)
        for rule, one in CASES.items()
        for racy in (True, False)
    ]
    return "".join([HEADERS, f'#line 1 "kernels/{FILE}.cu"\n', *functions])


def run(rule: str, racy: bool) -> Trace:
    """Run a kernel, or its racy twin, on the SIMT machine."""
    case = CASES[rule]
    kernel = KernelText(source(), kernel_name(rule, racy), (), case.cooperative)
    arrays, names = case.arrays(), ("x", "y", "flag")
    return simulate(kernel, case.grid, case.block, arrays, names=names, instruction_limit=LIMIT)
