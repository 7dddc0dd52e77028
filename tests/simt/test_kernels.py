"""Small CUDA kernels give what Python says, and on a GPU too: control flow, launches, memory, and
what the lanes of a warp do together. Random programs do the same at length (random_programs.py),
arithmetic has tables of its own (test_operations.py)."""

import gc
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from helpers.simt import CompileError, KernelText, simulate
from tests.simt.launching import Run, kernel

FULL = 0xFFFFFFFF


@dataclass(frozen=True)
class Case:
    """A kernel `k(int* y, const int* x, int n)` of 2 x 64 threads; `expected` has x and n."""

    body: str
    expected: Callable[[np.ndarray, int], Sequence]
    n: int = 3
    before: str = ""


def left_a_loop(x: np.ndarray, n: int) -> list[int]:
    trips = np.abs(x) % 9
    warps = [range(i // 32 * 32, i // 32 * 32 + 32) for i in range(128)]
    rounds = [[1000 + sum(k % 64 for k in warps[i] if trips[k] > j) for j in range(trips[i])]
              for i in range(128)]  # fmt: skip
    return [sum(one) for one in rounds]


HERE, T = np.arange(128), np.arange(128) % 64
CASES = {
    "every lane chooses its memory": Case(
        """__shared__ int s[64];
        s[t] = -x[i];
        int* p = t % 2 ? s + t : y + i;
        *p = 7 * x[i];
        const int* q = t % 3 ? s + t : x + i;
        y[i] += *q;""",
        lambda x, n: np.where(T % 2, 0, 7 * x) + np.where(T % 3, np.where(T % 2, 7 * x, -x), x),
    ),
    "registers of a scope in inline PTX": Case(
        'int a;\nasm("{ .reg .b32 t<2>, u; add.s32 t0, %1, 5; mov.b32 u, t0;"\n'
        '"{ .reg .b32 t0; mov.b32 t0, 100; mad.lo.s32 t1, u, t0, t0; } add.s32 %0, t0, t1; }"\n'
        ': "=r"(a) : "r"(i));\ny[i] = a;',
        lambda x, n: HERE + 5 + (HERE + 5) * 100 + 100,
    ),
    "addresses forwards and backwards in inline PTX": Case(
        'int a, b;\nasm("ld.global.b32 %0, [%1+-8];" : "=r"(a) : "l"(x + i + 2));\n'
        'asm("ld.global.b32 %0, [%1 + 0x8];" : "=r"(b) : "l"(x + (i ^ 4) % 126));\ny[i] = a - b;',
        lambda x, n: x - x[(HERE ^ 4) % 126 + 2],
    ),
    "fields of mixed sizes": Case(
        """__shared__ S s[64];
        s[t].a = (char)t; s[t].b = (short)(-3 * t); s[t].c = x[i]; s[t].d = x[i] / 4.0;
        s[t].e = 1000 * t;
        __syncthreads();
        const S other = s[63 - t];
        y[i] = other.a + other.b + other.c + (float)(other.d * 4.0) + other.e;""",
        lambda x, n: 998 * T[HERE ^ 63] + 2 * x[HERE ^ 63],
        before="struct S { char a; short b; float c; double d; int e; };",
    ),
    "lanes leave a loop that asks who is left": Case(
        """const int trips = abs(x[i]) % 9;
        int sum = 0;
        unsigned m = __ballot_sync(~0u, trips > 0);
        for (int j = 0; j < trips; ++j) {
            sum += __reduce_add_sync(m, t) + 1000;
            m = __ballot_sync(m, j + 1 < trips);
        }
        y[i] = sum;""",
        left_a_loop,
    ),
    "the active mask in either branch": Case(
        "unsigned m;\nif (t % 32 < n) { m = __activemask(); y[i] = m; }\n"
        "else { m = __activemask(); y[i] = ~m; }",
        lambda x, n: np.full(128, (1 << n) - 1),
        n=5,
    ),
    "a guarded active mask leaves other lanes alone": Case(
        'unsigned m = 77;\nasm volatile("{ .reg .pred p; setp.gt.s32 p, %1, 9;"\n'
        '" @p activemask.b32 %0; }" : "+r"(m) : "r"(t % 32));\ny[i] = m;',
        lambda x, n: np.where(T % 32 < 10, 77, ~0x3FF),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gives_what_python_says(run: Run, name: str) -> None:
    case = CASES[name]
    x, y = np.random.default_rng(1).integers(-99, 99, 128).astype(np.int32), np.zeros(128, np.int32)
    code = kernel(case.body, "int* y, const int* x, int n", case.before)
    run(code, 2, 64, y, x, case.n)
    assert y.tolist() == list(case.expected(x, case.n))


# ---- launches and arguments ---------------------------------------------------------------------


WHERE = """
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int size = blockDim.x * blockDim.y * blockDim.z;
    int* at = y + 6 * (block * size + thread);
    at[0] = blockIdx.x; at[1] = blockIdx.y; at[2] = blockIdx.z;
    at[3] = threadIdx.x; at[4] = threadIdx.y; at[5] = threadIdx.z;
"""


@pytest.mark.parametrize(
    ("grid", "block"),
    [((1, 1, 1), (1, 1, 1)), ((2, 1, 3), (5, 3, 1)), ((1, 2, 2), (4, 3, 5)),
     ((2, 1, 1), (1, 1, 64)), ((2, 1, 1), (1024, 1, 1))],
)  # fmt: skip
def test_every_thread_knows_its_place(run: Run, grid: tuple, block: tuple) -> None:
    places = [
        [(x, y, z) for z in range(size[2]) for y in range(size[1]) for x in range(size[0])]
        for size in (grid, block)
    ]
    y = np.full((len(places[0]), len(places[1]), 6), -1, np.int32)
    run(kernel(WHERE, "int* y"), grid, block, y)
    assert y.tolist() == [[[*where, *who] for who in places[1]] for where in places[0]]


def test_parameters_keep_their_order_and_alignment(run: Run) -> None:
    y = np.zeros(6)
    parameters = "char a, double b, short c, double* y, float d, bool e, unsigned long long f"
    body = "if (!i) { y[0] = a; y[1] = b; y[2] = c; y[3] = d; y[4] = e; y[5] = f; }"
    args = (np.int8(-3), 2.5, np.int16(-300), y, np.float32(0.5), np.bool_(True), np.uint64(2**60))
    run(kernel(body, parameters), 1, 1, *args)
    assert y.tolist() == [-3, 2.5, -300, 0.5, 1, 2.0**60]


# ---- the lanes of a warp ------------------------------------------------------------------------


def shuffle_source(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """PTX ISA, shfl.sync: the lane that is read, and whether it is within range."""
    value, clamp, segment = b & 31, c & 31, c >> 8 & 31
    last = (lane & segment) | (clamp & ~segment & 31)
    if mode == "up":
        source, inside = lane - value, lane - value >= last
    elif mode == "down":
        source, inside = lane + value, lane + value <= last
    elif mode == "bfly":
        source, inside = lane ^ value, lane ^ value <= last
    else:
        source = (lane & segment) | (value & ~segment & 31)
        inside = source <= last
    return (source, inside) if inside else (lane, False)


@pytest.mark.parametrize("mode", ["idx", "up", "down", "bfly"])
def test_shuffles_by_any_amount_and_clamp_read_the_lane_that_ptx_names(run: Run, mode: str) -> None:
    chance, count = random.Random(mode), 512
    b = [chance.randrange(64) for _ in range(count)]
    usual = [(32 - width) << 8 | (0 if mode == "up" else 31) for width in (1, 2, 8, 16, 32)]
    c = [chance.choice((*usual, chance.randrange(32) << 8 | chance.randrange(32))) for _ in b]
    x = np.random.default_rng(1).integers(-(2**31), 2**31, count).astype(np.int32)
    y, p = np.zeros(count, np.int32), np.full(count, -1, np.int32)
    body = f"""
        asm volatile("{{ .reg .pred inside; .reg .b32 v;"
            "shfl.sync.{mode}.b32 v|inside, %2, %3, %4, 0xffffffff;"
            "mov.b32 %0, v; selp.s32 %1, 1, 0, inside; }}"
            : "=r"(y[i]), "=r"(p[i]) : "r"(x[i]), "r"(b[i]), "r"(c[i]));"""
    parameters = "int* y, int* p, const int* x, const int* b, const int* c"
    run(kernel(body, parameters), 8, 64, y, p, x, np.array(b, np.int32), np.array(c, np.int32))
    assert set(p.tolist()) == {0, 1}
    for i in range(count):
        source, inside = shuffle_source(mode, i % 32, b[i], c[i])
        assert (y[i], p[i]) == (x[i // 32 * 32 + source], inside)


def signed(bits: int) -> int:
    bits &= FULL
    return bits - 2**32 if bits >> 31 else bits


Warp = dict[int, int]  # the lanes that take part, and their values


def ballot(warp: Warp, lane: int) -> int:
    return sum(1 << other for other, v in warp.items() if v & 1)


def match_any(warp: Warp, lane: int) -> int:
    return sum(1 << other for other, v in warp.items() if v == warp[lane])


def match_all(warp: Warp, lane: int) -> int:
    return sum(1 << other for other in warp) if len(set(warp.values())) == 1 else 0


def folded(function: Callable[[int, int], int]) -> Callable[[Warp, int], int]:
    def fold(warp: Warp, lane: int) -> int:
        first, *others = warp.values()
        for value in others:
            first = function(first, value)
        return first

    return fold


OPERATIONS = {  # of `v` among the lanes of `m`
    "ballot": ("__ballot_sync(m, v & 1)", ballot),
    "any": ("!!__any_sync(m, v % 8 == 0)", lambda w, _: any(v & 7 == 0 for v in w.values())),
    "all": ("!!__all_sync(m, v % 8 != 0)", lambda w, _: all(v & 7 for v in w.values())),
    "uni": ("!!__uni_sync(m, v & 1)", lambda w, _: len({v & 1 for v in w.values()}) == 1),
    "match_any": ("__match_any_sync(m, v)", match_any),
    "match_all": ("__match_all_sync(m, v, &same) + 0 * same", match_all),
    "same": (
        "__match_all_sync(m, v / 64, &same) ? same : -same",
        lambda w, _: len({int(v / 64) for v in w.values()}) == 1,
    ),
    "match_64": ("__match_any_sync(m, (long long)v << 32)", match_any),
    "add": ("__reduce_add_sync(m, v)", folded(lambda a, b: signed(a + b))),
    "min": ("__reduce_min_sync(m, v)", folded(min)),
    "max": ("__reduce_max_sync(m, v)", folded(max)),
    "umin": ("__reduce_min_sync(m, u)", folded(lambda a, b: min(a, b, key=FULL.__and__))),
    "umax": ("__reduce_max_sync(m, u)", folded(lambda a, b: max(a, b, key=FULL.__and__))),
    "and": ("__reduce_and_sync(m, u)", folded(lambda a, b: a & b)),
    "or": ("__reduce_or_sync(m, u)", folded(lambda a, b: a | b)),
    "xor": ("__reduce_xor_sync(m, u)", folded(lambda a, b: a ^ b)),
}
# Which mask each lane names: everyone's, tiles of 8, odd and even lanes, its own, a hole.
MASKS = [
    ("0xffffffffu", lambda lane: FULL),
    ("0xffu << (t % 32 & ~7)", lambda lane: 0xFF << (lane & ~7)),
    ("t % 2 ? 0xaaaaaaaau : 0x55555555u", lambda lane: (0x55555555, 0xAAAAAAAA)[lane % 2]),
    ("1u << t % 32", lambda lane: 1 << lane),
    ("t % 32 < 5 ? 0x1fu : 0xffffffe0u", lambda lane: 0x1F if lane < 5 else 0xFFFFFFE0),
]
BOUNDS = [(0, 3), (-(2**31), 2**31 - 1), (-9, 9), (1, 1), (64, 127), (8, 8)]  # of a warp's values


@pytest.mark.parametrize("name", OPERATIONS)
def test_lanes_that_name_each_other_decide_together_in_a_branch_too(run: Run, name: str) -> None:
    call, reference = OPERATIONS[name]
    chance = random.Random(1)
    x = np.array([[chance.randint(*bounds) for _ in range(32)] for bounds in BOUNDS], np.int32)
    y = np.zeros((len(MASKS) + 1, len(BOUNDS), 32), np.int32)
    steps = [
        f"{{ const unsigned m = {mask}; y[192 * {k} + i] = {call}; }}"
        for k, (mask, _) in enumerate(MASKS)
    ]
    steps += [f"if (t % 32 % 3 == 1) {{ const unsigned m = 0x92492492; y[960 + i] = {call}; }}"]
    steps += ["else if (t % 32 < 16) y[960 + i] = -5;"]
    body = "int same, v = x[i]; unsigned u = v;\n" + "\n".join(steps)
    run(kernel(body, "int* y, const int* x"), 3, 64, y, x)
    for k, (_, mask_of) in enumerate([*MASKS, ("", lambda lane: 0x92492492)]):
        for values, found in zip(x.tolist(), y[k].tolist(), strict=True):
            for lane in range(32):
                warp = {other: values[other] for other in range(32) if mask_of(lane) >> other & 1}
                outside = -5 if lane < 16 else 0
                expected = signed(reference(warp, lane)) if lane in warp else outside
                assert found[lane] == expected, (k, lane)


# ---- memory of the host -------------------------------------------------------------------------


@pytest.mark.parametrize("body", ["y[i] = n;", "__syncthreads(); y[i] = 1 / n;"])
def test_a_launch_leaves_no_cycle_of_objects_and_has_them_looked_for_again(body: str) -> None:
    """Nobody looks for cycles while it runs."""
    args = np.zeros(128, np.int32), 3
    launch = KernelText(kernel(body, "int* y, int n"), "k"), 2, 64, args
    simulate(*launch)  # what is made once is there
    assert gc.isenabled()
    gc.disable()
    gc.collect()
    try:
        simulate(*launch)
        assert not gc.isenabled() and gc.collect() == 0
    finally:
        gc.enable()
    with pytest.raises(CompileError):
        simulate(KernelText(kernel("nonsense"), "k"), 1, 32, args)
    assert gc.isenabled()


def test_launches_of_a_kernel_in_several_threads_have_registers_of_their_own() -> None:
    """A launch goes on with the registers of one that is over, not of one that runs."""
    body = """
        int value = x[t];
        for (int round = 0; round < x[32]; ++round) value = value * 3 + round;
        y[t] = value;"""
    arrays = [np.full(33, 2000, np.int32) for _ in range(4)]
    for number, x in enumerate(arrays):
        x[:32] = number

    def launched(x: np.ndarray) -> list[int]:
        y = np.zeros(32, np.int32)
        simulate(KernelText(kernel(body, "const int* x, int* y"), "k"), 1, 32, (x, y))
        return y.tolist()

    alone = [launched(x) for x in arrays]
    assert len({*map(tuple, alone)}) == 4
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(launched, arrays)) == alone
