"""16-bit numbers, barriers, votes, waiting, atomics, clocks.

The kernels are in tests/simt/kernels/features_*.cu and have no bugs, so that a finding is an error.
"""

import numpy as np
import pytest

from tests.simt.features.support import normal, whole, wrapped
from tests.simt.launching import Run

# ---- 16-bit numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eight_halves", "eight_bfloats"])
def test_eight_16_bit_numbers_an_access(launch: Run, name: str) -> None:
    n = 8 * 75
    values = normal(n) * np.float32(9)
    bits = as_bfloat(values) if name == "eight_bfloats" else values.astype(np.float16)
    y = np.zeros_like(bits)
    launch("half", name, 3, 32, bits, y, np.float32(1.5), n, ptx=["ld.global.(nc.)?v4.u32"])
    pairs = widened(bits).reshape(-1, 2) * np.float32(1.5)  # exact: 11 bits and 2 bits
    expected = np.stack([pairs[:, 1], pairs[:, 0] + np.float32(1)], axis=1).ravel()
    rounded = as_bfloat(expected) if name == "eight_bfloats" else expected.astype(np.float16)
    assert (y.view(np.uint16) == rounded.view(np.uint16)).all()


def as_bfloat(values: np.ndarray) -> np.ndarray:
    """fp32 to the bits of a bfloat16, to the nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def widened(values: np.ndarray) -> np.ndarray:
    if values.dtype == np.float16:
        return values.astype(np.float32)
    return (values.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_atomics_on_16_bit_numbers(launch: Run, kind: str) -> None:
    n, groups = 150, 7
    values = whole(n, 2, low=-5, high=6, dtype=np.float32)  # all sums are exact in 8 bits
    x = as_bfloat(values) if kind == "bf16" else values.astype(np.float16)
    pairs, ones = np.zeros((groups, 2), x.dtype), np.zeros(groups, x.dtype)
    ptx = [f"add.noftz.{kind}x2", f"add.noftz.{kind} "]
    launch("half", f"{kind}_sums", 3, 64, x, pairs, ones, groups, n, ptx=ptx)
    expected = np.array([values[group::groups].sum(0) for group in range(groups)])
    assert (widened(pairs) == expected).all() and (widened(ones) == expected[:, 1]).all()


def test_arithmetic_that_rounds_to_16_bits(launch: Run) -> None:
    n = 100
    x, y = normal(n, 2, dtype=np.float16), np.zeros((n, 2), np.float16)
    launch("half", "half_arithmetic", 2, 64, x, y, n, ptx=["fma.rn.f16x2"])
    other = x[:, ::-1]
    v = x * other + x  # numpy rounds after each operation as well
    exact = v.astype(np.float64) * other.astype(np.float64) + x.astype(np.float64)
    v = np.maximum(exact.astype(np.float16), -x)
    v = np.where(v[:, :1] > v[:, 1:], v - other, v)
    assert (y == v).all()


# ---- barriers and votes -----------------------------------------------------------------------


def test_named_barriers_between_producer_and_consumer_warps(launch: Run) -> None:
    rounds = 5
    x, y = whole(rounds, 32), np.full((2, 3, rounds, 32), -5, np.int32)
    launch("warp", "named_barriers", 2, 160, x, y, rounds, ptx=["bar.arrive", "bar.sync %r"])
    for b in range(2):
        for pair in range(2):
            assert (y[b, pair] == x[:, ::-1] + 1000 * pair + b).all()
        assert (y[b, 2].ravel()[:32] == -1).all() and (y[b, 2].ravel()[32:] == -5).all()


def test_one_lane_of_a_warp_is_elected(launch: Run) -> None:
    x, y = whole(2, 3, 32), np.zeros(1 + 2 * 96, np.int32)
    launch("warp", "elected", 2, 96, x, y, ptx=["elect.sync"])
    assert y[0] == 6  # one in each warp
    for values, found in zip(x.reshape(6, 32), y[1:].reshape(6, 32), strict=True):
        assert not found[:3].any() and not found[29:].any()
        (leader,) = 3 + np.flatnonzero(found[3:29] != np.median(found[3:29]))
        others = np.delete(found, leader)[3:28]
        assert found[leader] == 100 + values[leader] and (others == values[leader]).all()


# ---- threads that wait for each other ---------------------------------------------------------


def test_warps_take_tickets(launch: Run) -> None:
    y = np.zeros(3, np.int32)
    launch("warp", "ticket_lock", 3, 150, y, ptx=["ld.volatile.shared", "atom.shared"])
    chain = 0
    for ticket in range(5):
        chain = 3 * chain + ticket + 1
    assert y.tolist() == [chain] * 3


def test_warps_take_a_lock_in_global_memory(launch: Run) -> None:
    x, times = whole(4 * 3), 3
    lock, total = np.zeros(1, np.int32), np.array([5], np.int32)
    launch("warp", "spin_lock", 4, 96, lock, total, x, times, ptx=["cas.b32", "nanosleep"])
    assert total[0] == 5 + 6 * x.sum() and lock[0] == 0


def test_lanes_of_one_warp_take_a_lock(launch: Run) -> None:
    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    launch("warp", "lock_within_a_warp", 2, 45, lock, total, ptx=["cas.b32", "atom.*exch"])
    assert total[0] == 2 * sum(range(46)) and lock[0] == 0


def test_blocks_take_turns(launch: Run) -> None:
    blocks, block, rounds = 5, 70, 4
    turn, state = np.zeros(1, np.int32), whole(block)
    log, expected = np.zeros(blocks * rounds, np.int32), state.tolist()
    launch("warp", "turns", blocks, block, turn, state, log, rounds, ptx=["exch", "membar|fence"])
    logged = []
    for _ in range(rounds):
        for b in range(blocks):
            expected = [3 * v + b + t for t, v in enumerate(expected)]
            logged.append(expected[0])
    assert (state == wrapped(expected)).all() and (log == wrapped(logged)).all()
    assert turn[0] == blocks * rounds


def test_the_last_block_adds_up(launch: Run) -> None:
    x = whole(23, 70)
    partial, total = np.zeros(23, np.int32), np.zeros(1, np.int32)
    finished = np.zeros(1, np.uint32)
    launch("warp", "last_block", 23, 70, x, partial, finished, total, ptx=["atom.*inc", "volatile"])
    expected = 0
    for part in x.sum(1).tolist():
        expected = 2 * expected + part
    assert total[0] == expected and finished[0] == 0 and (partial == x.sum(1)).all()


def test_a_barrier_of_the_grid_written_by_hand(launch: Run) -> None:
    grid, block, rounds = 40, 96, 3
    a, b, arrived = whole(grid * block), np.zeros(grid * block, np.int32), np.zeros(1, np.uint32)
    expected = a.copy()
    for _ in range(rounds):
        expected = 2 * np.roll(expected, -(block + 1)) + expected
    args = (a, b, arrived, rounds)
    ptx = ["ld.volatile.global", "atom.global.add|red.global.add"]
    launch("cooperative", "barrier_by_hand", grid, block, *args, cooperative=True, ptx=ptx)
    assert ((b if rounds % 2 else a) == expected).all() and arrived[0] == rounds * grid


@pytest.mark.parametrize(("grid", "block"), [(40, 96), (7, 45), (1, 33)])
def test_the_grid_barrier_of_cooperative_groups(launch: Run, grid: int, block: int) -> None:
    x = whole(grid, block, low=1, dtype=np.float32)
    y, partial = np.zeros_like(x), np.zeros(grid, np.float32)
    launch(
        "cooperative",
        "grid_sync",
        grid,
        block,
        x,
        y,
        partial,
        cooperative=True,
        ptx=["ld.acquire.gpu", "%envreg"],
    )
    assert (y == x / x.sum(dtype=np.float32)).all()


def test_coalesced_threads_append_together(launch: Run) -> None:
    n = 190
    x, y, count = whole(n), np.full(n, 1000, np.int32), np.zeros(1, np.int32)
    launch("cooperative", "coalesced", 3, 70, x, y, count, n, ptx=["activemask", "shfl.sync.idx"])
    chosen = x[x % 5 == 0]
    assert count[0] == len(chosen) and (y[len(chosen) :] == 1000).all()
    assert sorted(y[: len(chosen)]) == sorted(chosen)


# ---- atomics ----------------------------------------------------------------------------------


def test_a_float_maximum_by_compare_and_swap(launch: Run) -> None:
    n, groups = 150, 4
    x, y = normal(n), np.full(groups, -np.inf, np.float32)
    launch("warp", "float_maximum", 3, 64, x, y, groups, n, ptx=["atom.*cas.b32"])
    assert (y == [x[group::groups].max() for group in range(groups)]).all()


def test_double_sums_by_atomics(launch: Run) -> None:
    n, groups = 150, 3
    x, y, before = np.abs(normal(n, dtype=np.float64)), np.zeros(groups), np.full(n, np.nan)
    ptx = ["fma.rn.f64", "atom.*add.f64", "cvt.rni.f64"]
    launch("warp", "double_sums", 3, 64, x, y, before, groups, n, ptx=ptx)
    added = np.rint((x * 3.0 + 1.0 / (1.0 + x * x)) * 1024.0)  # far from halves, so no error
    for group in range(groups):
        mine, start = added[group::groups], before[group::groups]
        order = np.argsort(start)
        assert (start[order] == mine[order].cumsum() - mine[order]).all()  # one after another
        assert y[group] == mine.sum()


def test_atomics_on_two_and_four_floats(launch: Run) -> None:
    n = 150
    x = whole(n, dtype=np.float32)
    pairs, quads = np.zeros((3, 2), np.float32), np.zeros((5, 4), np.float32)
    old = np.full((n, 2), np.nan, np.float32)
    launch("warp", "vector_sums", 3, 64, x, pairs, quads, old, n, ptx=["v2.f32", "v4.f32"])
    for group in range(3):
        mine = x[group::3]
        assert pairs[group].tolist() == [mine.sum(), len(mine)]
        order = old[group::3, 1].argsort()
        assert (old[group::3, 1][order] == np.arange(len(mine))).all()
        assert (old[group::3, 0][order] == mine[order].cumsum() - mine[order]).all()
    for group in range(5):
        mine = x[group::5]
        expected = [mine.sum(), -mine.sum(), 2 * len(mine), (mine * mine).sum()]
        assert quads[group].tolist() == expected


def test_the_vector_atomic_of_ptx(launch: Run) -> None:
    y, old = np.array([3, 4], np.float32), np.zeros((90, 2), np.float32)
    launch("warp", "vector_sum_by_asm", 2, 45, y, old, ptx=["atom.global.v2.f32.add"])
    assert y.tolist() == [93, 49]
    assert sorted(map(tuple, old.tolist())) == [(3 + k, 4 + k / 2) for k in range(90)]


def test_one_atomic_for_a_warp(launch: Run) -> None:
    n = 200
    x, y, count = whole(n), np.full(n, 1000, np.int32), np.zeros(1, np.int32)
    launch("warp", "compaction", 3, 70, x, y, count, n, ptx=["activemask", "atom.global.add"])
    chosen = x[x % 3 == 0]
    assert count[0] == len(chosen) and (y[len(chosen) :] == 1000).all()
    assert sorted(y[: len(chosen)]) == sorted(chosen)


# ---- time, and a trap that is not reached -----------------------------------------------------


def test_clocks_go_forward(launch: Run) -> None:
    x, y = normal(90), np.zeros(90, np.float32)
    ticks, cycles = np.zeros(90, np.int64), np.zeros(90, np.uint32)
    ptx = ["%clock64", "%clock;", "%globaltimer", "nanosleep"]
    launch("warp", "clocks", 2, 45, x, y, ticks, cycles, ptx=ptx)
    assert (ticks > 0).all() and (ticks < 2**40).all()
    assert (cycles > 0).all() and (cycles < 2**31).all()
    expected = x.copy()
    for _ in range(20):
        expected = expected * np.float32(0.5) + np.float32(1)
    assert np.allclose(y, expected, rtol=1e-6)
