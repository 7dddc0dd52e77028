"""Races where a flag in shared memory, a volatile value or half a barrier ought to order, and does
not: a rule a kernel, as in global_races.py. Each is right as it stands; what is replaced in it
makes it racy."""

import re

from tests.simt.global_races import BLOCKS, WARP, Case, Rules

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
    "shared": ("own[0]", "own[", "with no barrier in between"),
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


# ---- volatile values, and relaxed ones, that a flag guards ----

NO_FENCE = "needs a fence before it is set"
SEND = """
if (b == 0) {
    if (t == 0) { *(volatile int*)y = x[0] + 5; __threadfence(); *(volatile int*)flag = 1; }
} else if (t == 0) {
    while (*(volatile int*)flag == 0);
    __threadfence();
    x[i] = *(volatile int*)y;
}"""
RELAXED = """
cuda::atomic_ref<int, cuda::thread_scope_device> f(*flag), value(*y);
if (b == 0) {
    if (t == 0) {
        value.store(7, cuda::memory_order_relaxed);
        f.store(1, cuda::memory_order_release);
    }
} else if (t == 0) {
    while (f.load(cuda::memory_order_acquire) == 0);
    x[i] = value.load(cuda::memory_order_relaxed);
}"""
LAST = """
__shared__ bool is_last;
if (t < 8) atomicAdd(&y[t], x[i]);
__threadfence();
__syncthreads();
if (t == 0) is_last = atomicAdd(flag, 1) == last;
__syncthreads();
if (is_last && t < 8) x[i] = *(volatile int*)&y[t];"""
NEAR = """
__shared__ int flag_;
if (t == 0) flag_ = 0;
__syncthreads();
if (t == 0) {
    *(volatile int*)&y[b] = x[i];
    __threadfence_block();
    *(volatile int*)&flag_ = 1;
} else if (t == 32) {
    while (*(volatile int*)&flag_ == 0);
    __threadfence_block();
    x[i] = *(volatile int*)&y[b];
}"""
CASES |= {
    "volatile values without a fence": Case(
        SEND, {"5; __threadfence();": "5;", "    __threadfence();\n": ""}, NO_FENCE
    ),
    "a volatile value and no fence behind it": Case(SEND, ("5; __threadfence();", "5;"), NO_FENCE),
    "a volatile value and a fence before it": Case(
        SEND,
        ("*(volatile int*)y = x[0] + 5; __threadfence();",
         "__threadfence(); *(volatile int*)y = x[0] + 5;"),
        NO_FENCE,
    ),
    "a volatile value and a fence behind the flag": Case(
        SEND,
        ("__threadfence(); *(volatile int*)flag = 1;",
         "*(volatile int*)flag = 1; __threadfence();"),
        NO_FENCE,
    ),
    "a volatile value, its fence too narrow": Case(
        SEND, ("5; __threadfence();", "5; __threadfence_block();"), NO_FENCE
    ),
    "a volatile value and no fence before reading": Case(
        SEND, ("    __threadfence();\n", ""), NO_FENCE
    ),
    "a volatile value and a fence before the wait": Case(
        SEND,
        {"    __threadfence();\n": "", "    while": "    __threadfence();\n    while"},
        NO_FENCE,
    ),
    "a volatile value, the reader's fence too narrow": Case(
        SEND, ("    __threadfence();\n", "    __threadfence_block();\n"), NO_FENCE
    ),
    "a relaxed value without release": Case(
        RELAXED, ("order_release", "order_relaxed"), NO_FENCE
    ),
    "a relaxed value without acquire": Case(
        RELAXED, ("order_acquire", "order_relaxed"), NO_FENCE
    ),
    "sums of all blocks, and a last one": Case(
        LAST, ("__threadfence();\n", ""), NO_FENCE, grid=4
    ),
    "a volatile value that a flag in shared memory guards": Case(
        NEAR, ("x[i];\n    __threadfence_block();", "x[i];"), NO_FENCE
    ),
    "a volatile value behind a flag in shared memory": Case(
        NEAR, ("0);\n    __threadfence_block();", "0);"), NO_FENCE
    ),
}  # fmt: skip


# ---- barriers in two halves ----

ARRIVE = 'asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");'
WAIT = 'asm volatile("barrier.cluster.wait.aligned;" ::: "memory");'
OTHER = "int* other = cg::this_cluster().map_shared_rank(s, cg::this_cluster().block_rank() ^ 1);"
FENCE = 'asm volatile("fence.acq_rel.cluster;" ::: "memory");'
CLUSTER = "a barrier of the cluster between"
PRODUCER = """
__shared__ int s[32];
for (int k = 0; k < 3; k++)
    if (t < 32) {
        if (k > 0) asm volatile("bar.sync 2, 64;" ::: "memory");
        s[t] = x[i] + k;
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        y[i] += s[t - 32];
        if (k < 2) asm volatile("bar.arrive 2, 64;" ::: "memory");
    }"""
MBARRIER = """
__shared__ unsigned long long barriers[33];
int* s = (int*)(barriers + 1);
const unsigned at = (unsigned)__cvta_generic_to_shared(barriers);
if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 64;" ::"r"(at) : "memory");
__syncthreads();
s[t] = x[i];
y[i] = t;
asm volatile("{ .reg .b64 r; mbarrier.arrive.shared.b64 r, [%0]; }" ::"r"(at) : "memory");
for (int over = 0; !over;)
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; "
                 "selp.s32 %0, 1, 0, p; }" : "=r"(over) : "r"(at) : "memory");
x[i] = s[t ^ 63] + y[i ^ 63];
__syncthreads();
if (t == 0) asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(at) : "memory");
__syncthreads();
if (t < 2) ((int*)barriers)[t] = t;"""
ARRIVES = MBARRIER.splitlines()[8]
HANDED_ON = """
cuda::atomic_ref<int, cuda::thread_scope_device> one(flag[0]), other(flag[1]);
if (t == 32) __threadfence();
if (b == 0 && t == 0) { y[0] = 7; one.store(1, cuda::memory_order_release); }
if (b == 1 && t < 2) {
    while (t == 0 && one.load(cuda::memory_order_acquire) == 0);
    __syncwarp(3);
    if (t == 1) other.store(1, cuda::memory_order_release);
}
if (b == 2 && t == 0) {
    while (other.load(cuda::memory_order_acquire) == 0);
    x[i] = y[0];
}"""
EQUAL = """
__shared__ int s[32];
asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
             ::"r"((unsigned)__cvta_generic_to_shared(s + t / 2)), "l"(x + i / 2) : "memory");
asm volatile("cp.async.wait_all;" ::: "memory");
__syncthreads();
y[i] = s[t / 2];"""
UNORDERED = "with no barrier in between"
OVERWRITTEN, ENDED = "hold an mbarrier", "the other block may have ended"
SPLIT = [
    ("a store between the halves", "y[i] = x[i];\nARRIVE WAIT\nx[i] = y[i ^ 64];",
     ("y[i] = x[i];\nARRIVE", "ARRIVE\ny[i] = x[i];"), CLUSTER),
    ("a load between the halves", "int v = y[i ^ 64];\nARRIVE WAIT\ny[i] = v + 1;",
     ("int v = y[i ^ 64];\nARRIVE", "ARRIVE int v = y[i ^ 64];"), CLUSTER),
    ("a store to another block between the halves",
     "__shared__ int s[64];\nOTHER\ns[t] = 0;\nARRIVE WAIT\nother[t] = x[i];\nARRIVE WAIT\n"
     "y[i] = s[t];",
     ("other[t] = x[i];\nARRIVE", "ARRIVE other[t] = x[i];"), UNORDERED),
    ("a store for another block between the halves",
     "__shared__ int s[64];\nOTHER\ns[t] = x[i];\nARRIVE WAIT\ny[i] = other[t];\nARRIVE WAIT",
     ("s[t] = x[i];\nARRIVE", "ARRIVE s[t] = x[i];"), UNORDERED),
    ("an arrival that is relaxed and has no fence",
     "y[i] = x[i];\nFENCE RELAXED WAIT\nx[i] = y[i ^ 64];",
     ("FENCE ", ""), CLUSTER),
    ("a block reached between the halves of the first barrier",
     "__shared__ int s[64];\nOTHER\nARRIVE WAIT\nother[t] = x[i];\nARRIVE WAIT\ny[i] = s[t];",
     ("ARRIVE WAIT\nother[t] = x[i];", "ARRIVE\nother[t] = x[i];\nWAIT"), "may not have started"),
    ("a block reached between the halves of the last barrier",
     "__shared__ int s[64];\nOTHER\ns[t] = x[i];\nARRIVE WAIT\nint v = other[t];\nARRIVE\n"
     "y[i] = v;\nWAIT",
     ("int v = other[t];\nARRIVE", "ARRIVE int v = other[t];"), ENDED),
]  # fmt: skip


WORDS = {"ARRIVE": ARRIVE, "RELAXED": ARRIVE.replace("arrive", "arrive.relaxed")}
WORDS |= {"WAIT": WAIT, "OTHER": OTHER, "FENCE": FENCE}


def _written_out(text: str) -> str:
    return re.sub("|".join(WORDS), lambda word: WORDS[word[0]], text)


for _rule, _body, _spoil, _says in SPLIT:
    CASES[f"cluster: {_rule}"] = Case(
        _written_out(_body),
        tuple(map(_written_out, _spoil)),
        _says,
        grid=4,
        qualifiers="__cluster_dims__(2)",
    )
CASES |= {
    "a place is given back before it is read": Case(
        PRODUCER,
        {
            "y[i] += s[t - 32];\n": "",
            'if (k < 2) asm volatile("bar.arrive 2, 64;" ::: "memory");': "if (k < 2) "
            'asm volatile("bar.arrive 2, 64;" ::: "memory");\ny[i] += s[t - 32];',
        },
        UNORDERED,
    ),
    "a place is filled behind its arrival": Case(
        PRODUCER,
        {
            "s[t] = x[i] + k;\n": "",
            'asm volatile("bar.arrive 1, 64;" ::: "memory");': "asm volatile("
            '"bar.arrive 1, 64;" ::: "memory");\ns[t] = x[i] + k;',
        },
        UNORDERED,
    ),
    "a store behind an arrival at an mbarrier": Case(
        MBARRIER, {"s[t] = x[i];\n": "", ARRIVES: ARRIVES + "s[t] = x[i];"}, UNORDERED
    ),
    "a global store behind an arrival at an mbarrier": Case(
        MBARRIER, {"y[i] = t;\n": "", ARRIVES: ARRIVES + "y[i] = t;"}, "__syncthreads() between"
    ),
    "data that lie on an mbarrier": Case(MBARRIER, ("barriers + 1)", "barriers)"), OVERWRITTEN),
    "an mbarrier that has not been ended": Case(
        MBARRIER, ("mbarrier.inval.shared.b64 [%0];", ""), OVERWRITTEN
    ),
    "an mbarrier that begins twice": Case(
        MBARRIER,
        ("if (t < 2) ((int*)barriers)[t] = t;",
         'if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 64; "'
         '"mbarrier.init.shared.b64 [%0], 64;" ::"r"(at) : "memory");'),
        OVERWRITTEN,
    ),
    "copies of equal bytes to one place": Case(EQUAL, ("x + i / 2", "x + i"), UNORDERED),
    "a volatile value that an atomic has drawn before": Case(
        SEND.replace("*(volatile int*)y =", "x[1] = atomicAdd(y, 1); *(volatile int*)y ="),
        {"5; __threadfence();": "5;", "    __threadfence();\n": ""}, NO_FENCE
    ),
    "the halves of a warp meet apart": Case(
        "y[i] = t;\n__syncwarp(t & 16 ? 0xffff0000 : 0xffff);\nx[i] = y[i ^ 1];",
        ("y[i ^ 1]", "y[i ^ 16]"), WARP
    ),
    "a lane hands on by release what another has acquired": Case(
        HANDED_ON, ("other.store(1, cuda::memory_order_release)",
                    "other.store(1, cuda::memory_order_relaxed)"), BLOCKS, grid=3
    ),
}  # fmt: skip

RULES = Rules("order_races", CASES)
