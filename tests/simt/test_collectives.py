"""Shuffles, votes, matches and reductions of a warp, against what the PTX ISA says lane by lane.

The references are plain Python over the 32 lanes of a warp.
"""

import random
from collections.abc import Callable

import numpy as np
import pytest

from tests.simt.launching import Run, kernel

FULL = 0xFFFFFFFF


def integers(count: int, low: int = -(2**31), high: int = 2**31) -> np.ndarray:
    return np.random.default_rng(count).integers(low, high, count).astype(np.int32)


# ---- shuffles -----------------------------------------------------------------------------------


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


def clamp_of(mode: str, width: int) -> int:
    """What the CUDA headers pass for a width."""
    return (32 - width) << 8 | (0 if mode == "up" else 31)


FUNCTIONS = {"idx": "__shfl", "up": "__shfl_up", "down": "__shfl_down", "bfly": "__shfl_xor"}


@pytest.mark.parametrize("width", [1, 2, 8, 16, 32])
@pytest.mark.parametrize("mode", FUNCTIONS)
def test_every_shuffle_reads_the_lane_that_ptx_names(run: Run, mode: str, width: int) -> None:
    amounts = [0, 1, 2, 5, 7, 8, 16, 31]
    x, y = integers(96), np.zeros((96, len(amounts)), np.int32)
    lines = [
        f"y[{len(amounts)} * i + {place}] = {FUNCTIONS[mode]}_sync(~0u, x[i], {b}, {width});"
        for place, b in enumerate(amounts)
    ]
    run(kernel("\n".join(lines), "int* y, const int* x"), 1, 96, y, x)
    for i in range(96):
        for place, b in enumerate(amounts):
            source, _ = shuffle_source(mode, i % 32, b, clamp_of(mode, width))
            assert y[i, place] == x[i // 32 * 32 + source]


@pytest.mark.parametrize("mode", FUNCTIONS)
def test_shuffles_by_another_amount_and_clamp_in_every_lane(run: Run, mode: str) -> None:
    chance = random.Random(mode)
    b = [chance.randrange(64) for _ in range(64)]
    c = [chance.randrange(32) << 8 | chance.randrange(32) for _ in range(64)]
    x, y, p = integers(64), np.zeros(64, np.int32), np.full(64, -1, np.int32)
    body = f"""
        asm volatile("{{ .reg .pred inside; .reg .b32 v;"
            "shfl.sync.{mode}.b32 v|inside, %2, %3, %4, 0xffffffff;"
            "mov.b32 %0, v; selp.s32 %1, 1, 0, inside; }}"
            : "=r"(y[i]), "=r"(p[i]) : "r"(x[i]), "r"(b[i]), "r"(c[i]));"""
    parameters = "int* y, int* p, const int* x, const int* b, const int* c"
    run(kernel(body, parameters), 2, 32, y, p, x, np.array(b, np.int32), np.array(c, np.int32))
    assert set(p.tolist()) == {0, 1}
    for i in range(64):
        source, inside = shuffle_source(mode, i % 32, b[i], c[i])
        assert (y[i], p[i]) == (x[i // 32 * 32 + source], inside)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("double", np.float64), ("long long", np.int64), ("float", np.float32), ("unsigned", "u4")],
)
def test_values_of_32_and_64_bits_are_shuffled(run: Run, name: str, dtype) -> None:
    x = np.random.default_rng(1).integers(0, 2**32, 64).astype(dtype)
    if x.itemsize == 8:
        x = x * x.dtype.type(1 << 20) + x.dtype.type(12345)
    y = np.zeros_like(x)
    body = "y[i] = __shfl_xor_sync(~0u, x[i], 3) + __shfl_sync(~0u, x[i], t + 1);"
    run(kernel(body, f"{name}* y, const {name}* x"), 2, 32, y, x)
    lane = np.arange(32)
    by_warp = x.reshape(2, 32)
    assert (y.reshape(2, 32) == by_warp[:, lane ^ 3] + by_warp[:, (lane + 1) % 32]).all()


@pytest.mark.parametrize("block", [32, 64, 256])
def test_a_butterfly_gives_every_lane_the_sum(run: Run, block: int) -> None:
    x = integers(3 * block, -50, 50).astype(np.float32).reshape(3, -1, 32)
    y = np.zeros_like(x)
    body = """
        float v = x[i];
        for (int offset = 16; offset; offset /= 2) v += __shfl_xor_sync(0xffffffff, v, offset);
        y[i] = v;"""
    run(kernel(body), 3, block, y, x, 0)
    assert (y == x.sum(axis=2, keepdims=True)).all()


def test_two_stages_add_up_a_block(run: Run) -> None:
    x = integers(40 * 1024, -50, 50).astype(np.float32).reshape(40, 1024)
    y = np.zeros(40, np.float32)
    body = """
        __shared__ float s[32];
        float v = x[i];
        for (int offset = 16; offset; offset /= 2) v += __shfl_down_sync(~0u, v, offset);
        if (t % 32 == 0) s[t / 32] = v;
        __syncthreads();
        if (t < 32) {
            v = t < blockDim.x / 32 ? s[t] : 0.0f;
            for (int offset = 16; offset; offset /= 2) v += __shfl_down_sync(~0u, v, offset);
            if (t == 0) y[blockIdx.x] = v;
        }"""
    run(kernel(body), 40, 1024, y, x, 0)
    assert (y == x.sum(axis=1)).all()


@pytest.mark.parametrize("block", [48, 36, 16, 100])
def test_lanes_that_the_block_does_not_have_are_not_waited_for(run: Run, block: int) -> None:
    x, y = integers(2 * block, -99, 99), np.zeros(2 * block, np.int32)
    body = """
        y[i] = __shfl_xor_sync(~0u, x[i], 1) + 1000 * __popc(__ballot_sync(~0u, x[i] > 0));
        __syncwarp();"""
    run(kernel(body, "int* y, const int* x"), 2, block, y, x)
    for i in range(2 * block):
        start = i // block * block + i % block // 32 * 32
        warp = x[start : min(start + 32, (i // block + 1) * block)]
        assert y[i] == warp[(i - start) ^ 1] + 1000 * (warp > 0).sum()


# ---- votes, matches, reductions, for masks of every kind ----------------------------------------


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


INT, BITS = "int v = x[i];", "unsigned v = x[i];"
OPERATIONS = {
    "ballot": ("__ballot_sync(m, v & 1)", INT, ballot),
    "not": ("__ballot_sync(m, !(v & 1))", INT, lambda w, _: ballot(w, 0) ^ sum(1 << k for k in w)),
    "any": ("!!__any_sync(m, v % 8 == 0)", INT, lambda w, _: any(v & 7 == 0 for v in w.values())),
    "all": ("!!__all_sync(m, v % 8 != 0)", INT, lambda w, _: all(v & 7 for v in w.values())),
    "uni": ("!!__uni_sync(m, v & 1)", INT, lambda w, _: len({v & 1 for v in w.values()}) == 1),
    "match_any": ("__match_any_sync(m, v)", INT, match_any),
    "match_all": ("__match_all_sync(m, v, &same) + 0 * same", "int same; " + INT, match_all),
    "same": (
        "__match_all_sync(m, v / 64, &same) ? same : -same",
        "int same; " + INT,
        lambda w, _: len({int(v / 64) for v in w.values()}) == 1,
    ),
    "match_64": ("__match_any_sync(m, v)", "long long v = (long long)x[i] << 32;", match_any),
    "add": ("__reduce_add_sync(m, v)", INT, folded(lambda a, b: signed(a + b))),
    "min": ("__reduce_min_sync(m, v)", INT, folded(min)),
    "max": ("__reduce_max_sync(m, v)", INT, folded(max)),
    "umin": ("__reduce_min_sync(m, v)", BITS, folded(lambda a, b: min(a, b, key=FULL.__and__))),
    "umax": ("__reduce_max_sync(m, v)", BITS, folded(lambda a, b: max(a, b, key=FULL.__and__))),
    "and": ("__reduce_and_sync(m, v)", BITS, folded(lambda a, b: a & b)),
    "or": ("__reduce_or_sync(m, v)", BITS, folded(lambda a, b: a | b)),
    "xor": ("__reduce_xor_sync(m, v)", BITS, folded(lambda a, b: a ^ b)),
}
# Which mask each lane names: everyone's, tiles of 8, odd and even lanes, a hole.
MASKS = {
    "full": ("0xffffffffu", lambda lane: FULL),
    "tiles": ("0xffu << (t % 32 & ~7)", lambda lane: 0xFF << (lane & ~7)),
    "parity": (
        "t % 2 ? 0xaaaaaaaau : 0x55555555u",
        lambda lane: (0x55555555, 0xAAAAAAAA)[lane % 2],
    ),
    "alone": ("1u << t % 32", lambda lane: 1 << lane),
    "uneven": (
        "t % 32 < 5 ? 0x1fu : 0xffffffe0u",
        lambda lane: 0x1F if lane < 5 else 0xFFFFFFE0,
    ),
}


def warp_values(kind: int) -> list[int]:
    """The values of a warp; small, wide or all the same."""
    chance = random.Random(kind)
    bounds = [(0, 3), (-(2**31), 2**31 - 1), (-9, 9), (1, 1), (64, 127), (8, 8)][kind]
    return [chance.randint(*bounds) for _ in range(32)]


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_lanes_that_name_each_other_decide_together(run: Run, name: str, masks: str) -> None:
    call, declare, reference = OPERATIONS[name]
    expression, mask_of = MASKS[masks]
    x = np.array([warp_values(kind) for kind in range(6)], np.int32)
    y = np.zeros((6, 32), np.int32)
    body = f"{declare} const unsigned m = {expression}; y[i] = {call};"
    run(kernel(body, "int* y, const int* x"), 3, 64, y, x)
    for values, found in zip(x.tolist(), y.tolist(), strict=True):
        for lane in range(32):
            warp = {other: values[other] for other in range(32) if mask_of(lane) >> other & 1}
            assert found[lane] == signed(reference(warp, lane))


@pytest.mark.parametrize("name", OPERATIONS)
def test_collectives_run_in_a_branch_among_the_lanes_there(run: Run, name: str) -> None:
    call, declare, reference = OPERATIONS[name]
    x, y = np.array([warp_values(kind) for kind in range(6)], np.int32), np.zeros((6, 32), np.int32)
    body = f"""
        {declare}
        if (t % 32 % 3 == 1) {{ const unsigned m = 0x92492492; y[i] = {call}; }}
        else if (t % 32 < 16) {{ y[i] = 0; }}
        else {{ y[i] = -7; }}"""
    run(kernel(body, "int* y, const int* x"), 3, 64, y, x)
    for values, found in zip(x.tolist(), y.tolist(), strict=True):
        warp = {lane: values[lane] for lane in range(1, 32, 3)}
        for lane in range(32):
            other = 0 if lane < 16 else -7
            expected = signed(reference(warp, lane)) if lane in warp else other
            assert found[lane] == expected


def test_the_active_mask_is_that_of_the_branch(run: Run) -> None:
    y = np.zeros((2, 40), np.uint32)
    body = """
        unsigned m;
        if (t % 32 < n) { m = __activemask(); y[i] = m; }
        else { m = __activemask(); y[i] = ~m; }"""
    run(kernel(body, "unsigned* y, int n"), 2, 40, y, 5)
    for row in y.tolist():
        for t, found in enumerate(row):
            exist = FULL if t < 32 else 0xFF
            assert found == (0x1F if t % 32 < 5 else ~(exist & ~0x1F) & FULL)


def test_a_guarded_active_mask_leaves_the_other_lanes_alone(run: Run) -> None:
    y = np.zeros(32, np.uint32)
    body = """
        unsigned m = 77;
        asm volatile("{ .reg .pred p; setp.gt.s32 p, %1, 9; @p activemask.b32 %0; }"
                     : "+r"(m) : "r"(t));
        y[i] = m;"""
    run(kernel(body, "unsigned* y"), 1, 32, y)
    assert y.tolist() == [77] * 10 + [FULL & ~0x3FF] * 22


def test_lanes_may_leave_a_loop_that_asks_who_is_left(run: Run) -> None:
    y, trips = np.zeros(64, np.int32), integers(64, 0, 9)
    body = """
        int sum = 0;
        unsigned m = __ballot_sync(~0u, trips[i] > 0);
        for (int j = 0; j < trips[i]; ++j) {
            sum += __reduce_add_sync(m, t) + 1000;
            m = __ballot_sync(m, j + 1 < trips[i]);
        }
        y[i] = sum;"""
    run(kernel(body, "int* y, const int* trips"), 1, 64, y, trips)
    for i in range(64):
        warp = range(i // 32 * 32, i // 32 * 32 + 32)
        rounds = [sum(k for k in warp if trips[k] > j) + 1000 for j in range(trips[i])]
        assert y[i] == sum(rounds)


def test_lanes_that_part_within_a_loop_meet_at_the_shuffle(run: Run) -> None:
    x, y = integers(128, -99, 99), np.zeros(128, np.int32)
    body = """
        int v = x[i];
        for (int j = 0; j < 5; ++j) {
            for (int k = 0; k < (t + j) % 4; ++k) v = v * 3 + k;
            v += __shfl_xor_sync(~0u, v, 1 << j);
            v &= 0xffff;
        }
        y[i] = v;"""
    run(kernel(body, "int* y, const int* x"), 2, 64, y, x)
    v = x.tolist()
    for j in range(5):
        for i in range(128):
            for k in range((i % 64 + j) % 4):
                v[i] = v[i] * 3 + k
        v = [(v[i] + v[i ^ 1 << j]) & 0xFFFF for i in range(128)]
    assert y.tolist() == v
