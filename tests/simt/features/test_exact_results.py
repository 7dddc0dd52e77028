"""Kernels with an input x and an output y that numpy gives exactly: copies, clusters, memory,
calls, barriers.

The kernels are in tests/simt/kernels/features_*.cu and have no bugs, so that a finding is an error.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from tests.simt.features.support import normal, whole, wrapped
from tests.simt.launching import Run


@dataclass(frozen=True)
class Case:
    """A kernel `file name` of (x, y, more), and what y is for x: zeros behind the values."""

    kernel: str
    grid: int
    block: int
    x: np.ndarray
    expected: Callable[[np.ndarray], Sequence]
    ptx: tuple[str, ...]  # patterns
    more: tuple = ()
    y: np.ndarray | None = None  # before, where it is not like x
    shared: int = 0


def backwards(x: np.ndarray) -> np.ndarray:
    return x[..., ::-1]


def in_last_but_one(x: np.ndarray) -> np.ndarray:
    return x[:, :, ::-1]


def mixed(x: np.ndarray, rounds: int = 5) -> np.ndarray:
    for _ in range(rounds):
        x = 3 * x + np.roll(x, -(33 % x.shape[1]), axis=1)
    return x


def through_a_ring(x: np.ndarray) -> np.ndarray:
    stored = np.concatenate([x[:, :, :32] + 1, x[:, :, 32:] * 2], axis=2)[:, :, ::-1]
    total = np.zeros((3, 64), np.int64)
    for k in range(x.shape[1]):
        total = 3 * total + stored[:, k]
    return total


def summed_in_clusters(x: np.ndarray) -> np.ndarray:
    totals = (x.sum(2) * [1, 2, 3, 4]).sum(1)
    return x + totals[:, None, None] + 10000 * np.arange(4)[None, :, None]


def quads_of_the_next(x: np.ndarray) -> np.ndarray:
    following = np.roll(x, -1, axis=1)
    quads = following.reshape(2, 4, 18, 4) @ np.array([1, 10, 100, 1000])
    return np.repeat(quads, 4, axis=2) + 2 * following[:, :, ::-1]


def split_rounds(x: np.ndarray) -> np.ndarray:
    v, t = np.zeros_like(x), np.arange(70)
    for j in range(5):
        v = np.where(j <= t % 5, 3 * v + x + j, v)
    return v + x[:, ::-1, ::-1]


def sent_asynchronously(x: np.ndarray) -> np.ndarray:
    other = x[:, ::-1]
    back = other[:, :, ::-1]
    return other + 100 * 2 * back - 10 * 3 * back + 100000 * np.arange(70)[::-1] - back


def nested(x: np.ndarray) -> np.ndarray:
    i, a = np.arange(len(x)), x.astype(np.int64)
    return wrapped((a * a + i) ** 2 + (i * i + a) - (i * i + 1))


def votes(x: np.ndarray) -> np.ndarray:
    return (100 * (x > 0).sum(1) + 10 * (x < 40).all(1) + (x == 7).any(1))[:, None]


def to_vote_on(block: int) -> np.ndarray:
    x = whole(5, block)
    x[0], x[1, -1], x[2] = 7, 40, -(x[2] ** 2)
    return x


def tiled(x: np.ndarray) -> np.ndarray:
    any_13 = (x == 13).any(2, keepdims=True)
    return 100 * x.sum(2, keepdims=True) + 10 * any_13 + np.arange(8)


def with_13() -> np.ndarray:
    x = whole(2, 8, 8, low=0, high=16)
    x[0, 0, :2] = 13
    return x


COPY = ("cp.async.ca", "cp.async.wait_group")
TEST = ("mbarrier.(test_wait|try_wait.parity).shared::cta", "mbarrier.init")
BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
BULK_STORE = "cp.async.bulk.global.shared::cta.bulk_group"
POWERS = np.array([1.0, 0.1, 1e-2, 1e3, 2.5, -7.0, 1e10])
OFFSETS = np.array([0.5, -1.5, 2.25, 8.0])
CASES = [
    *(
        Case(f"async copies_of_{size}", 3, block, normal(3, 5, block * size // 4), backwards,
             (f"cp.async.c[ag].shared.global[^;]*, {size};", "cp.async.wait_group 1"), (5,))
        for size in (4, 8, 16) for block in (70, 32)
    ),
    Case("async pipeline", 2, 70, normal(2, 6, 70, 2), in_last_but_one, COPY, (6,)),
    Case("async zero_fill", 3, 70, normal(683),
         lambda x: np.pad(x, (0, 157)).reshape(3, 280)[:, ::-1],
         ("cp.async.cg.*16, %r", "wait_all"), (683,), np.full((3, 280), np.nan, np.float32)),
    *(
        Case(f"async {name}", 3, block, whole(3, block), mixed, TEST, (5,))
        for name in ("mbarrier_state", "mbarrier_parity") for block in (70, 33)
    ),
    Case("async mbarrier_header", 3, 70, whole(3, 70), backwards,
         ("mbarrier.arrive", "mbarrier.inval")),
    *(
        Case("async arrive_when_copied", 2, block, normal(2, 2, block, 4), in_last_but_one,
             ("cp.async.mbarrier.arrive.noinc",))
        for block in (70, 20)
    ),
    *(
        Case("async ring", 3, 96, whole(3, tiles, 64), through_a_ring,
             ("mbarrier.try_wait.parity", "mbarrier.arrive"), (tiles,), np.zeros((3, 64), np.int32))
        for tiles in (1, 2, 7, 8)
    ),
    *(
        Case("async bulk_row", 3, block, normal(3, n), backwards, (BULK_LOAD, "expect_tx"), (n,),
             shared=4 * n)
        for n, block in ((100, 70), (1000, 32), (8, 33))
    ),
    *(
        Case("async bulk_out", 3, block, normal(3, n),
             lambda x: np.stack([2 * x[:, ::-1], 3 * x[:, ::-1]], axis=1),
             (BULK_STORE, "wait_group.read 0", "commit_group"), (n,),
             np.zeros((3, 2, n), np.float32), 4 * n)
        for n, block in ((100, 70), (256, 32))
    ),
    Case("async bulk_prefetch", 3, 70, whole(3, 260, dtype=np.float32), lambda x: x + 1,
         ("cp.async.bulk.prefetch.L2.global",), (260,)),
    *(
        Case("cluster cluster_sum", 12, block, whole(3, 4, block, dtype=np.float32),
             summed_in_clusters, ("mapa", "barrier.cluster.arrive"))
        for block in (70, 32)
    ),
    Case("cluster cluster_by_asm", 8, 72, whole(2, 4, 72, dtype=np.float32), quads_of_the_next,
         ("mapa.shared::cluster.u32", "ld.shared::cluster.v4.f32", "st.shared::cluster.f32")),
    Case("cluster remote_atomics", 12, 45, whole(3, 333, low=0, high=64),
         lambda x: [np.bincount(row, minlength=64) for row in x], ("atom.*add", "mapa"), (333,),
         np.zeros((3, 64), np.int32)),
    Case("cluster split_barrier", 6, 70, whole(3, 2, 70), split_rounds,
         ("barrier.cluster.arrive.release.aligned", "barrier.cluster.arrive.relaxed")),
    Case("cluster async_stores", 6, 70, whole(3, 2, 70), sent_asynchronously,
         ("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32", "complete_tx::bytes.v4")),
    Case("cluster remote_arrivals", 12, 70, whole(3, 280), backwards,
         ("mbarrier.arrive.release.cluster.shared::cluster", "try_wait.parity.acquire.cluster")),
    Case("cluster bulk_to_neighbour", 6, 72, normal(2, 3, 72),
         lambda x: np.roll(x, 1, axis=1)[:, :, ::-1], ("bulk.shared::cluster.shared::cta",)),
    Case("local nested_calls", 3, 32, whole(77), nested,
         ("call[^;]*horner", "call[^;]*square_plus"), (77,)),
    Case("local call_with_shuffle", 3, 64, whole(3, 2, 32), lambda x: x.cumsum(axis=2), ("call",)),
    Case("local device_variables", 1, 70, whole(70),
         lambda x: x[::-1] * 3 * 7 + OFFSETS[np.arange(70) % 4],
         ("ld.global.u32[^;]*factor", "offsets"), y=np.zeros(70, np.float32)),
    Case("local lookup_table", 2, 33, whole(50, low=0, high=7000),
         lambda x: POWERS[x % 7] * np.arange(50), (r"ld.(const|global|local)[.\w]*f64",), (50,),
         np.zeros(50)),
    Case("asm cache_hints", 3, 32, normal(85, 4), lambda x: x[::-1, ::-1],
         ("ld.global.nc.L1::no_allocate.v4.f32", "st.global.cs.v4.f32"), (85,)),
    Case("asm eviction_policy", 3, 32, normal(85), lambda x: x - 2 * np.roll(x, -1),
         ("createpolicy.fractional.L2::evict_first.b64", "st.global.*L2::cache_hint"), (85,),
         np.zeros(96, np.float32)),
    Case("asm prefetch", 2, 72, normal(500), lambda x: x + np.float32(1),
         ("prefetch.global.L2 ", "prefetchu.L1"), (500,), np.zeros(508, np.float32)),
    Case("asm asm_loop", 3, 40, whole(90, low=1, high=10**6, dtype=np.uint32),
         lambda x: [1000 * math.gcd(v, 360360 + i) + math.gcd(v + 1, 30030)
                    for i, v in enumerate(x.tolist())], ("bra AGAIN",), (90,)),
    Case("asm nested_scopes", 2, 33, whole(45),
         lambda x: x + 5 - np.maximum(3 * x - 100, 3 * x), (r"\.reg \.s32 t;",), (45,)),
    *(
        Case("warp barrier_votes", 5, block, to_vote_on(block), votes,
             ("bar.red.popc", "bar.red.and", "bar.red.or"))
        for block in (70, 96, 1)
    ),
    Case("warp named_barrier", 3, 90, whole(3, 32), lambda x: 5 * x[:, np.arange(32) ^ 5],
         ("bar.arrive 1, 64", "bar.sync 1, 64")),
    Case("warp trap_not_reached", 2, 32, whole(50, low=0), lambda x: x + 1, ("trap",), (50,),
         np.zeros(64, np.int32)),
    Case("cooperative tiles", 2, 64, with_13(), tiled, ("shfl.sync.bfly",)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kernel} {case.x.shape}")
def test_a_kernel_gives_what_numpy_gives(launch: Run, case: Case) -> None:
    x, y = case.x.copy(), np.zeros_like(case.x) if case.y is None else case.y.copy()
    file, name = case.kernel.split()
    sizes = case.grid, case.block
    launch(file, name, *sizes, x, y, *case.more, shared=case.shared, ptx=case.ptx)
    expected = np.asarray(case.expected(case.x))
    found = y if y.ndim > 1 else y[: len(expected)]
    assert (found == expected).all()
    assert y.ndim > 1 or not y[len(expected) :].any()
