"""Asynchronous copies, mbarriers and clusters.

The kernels are in tests/simt/kernels/features_*.cu and have no bugs, so that a finding is an error.
"""

import numpy as np
import pytest

from tests.simt.features.support import normal, whole
from tests.simt.launching import Run

# ---- asynchronous copies ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("block", [70, 32])
def test_asynchronous_copies_with_two_buffers(launch: Run, size: int, block: int) -> None:
    x = normal(3, 5, block * size // 4)
    y = np.zeros_like(x)
    kind = "cg" if size == 16 else "ca"
    ptx = [f"cp.async.{kind}.shared.global[^;]*, {size};", "cp.async.wait_group 1"]
    launch("async", f"copies_of_{size}", 3, block, x, y, 5, ptx=ptx)
    assert (y == x[:, :, ::-1]).all()


def test_the_pipeline_functions_of_the_headers(launch: Run) -> None:
    x = normal(2, 6, 70, 2)
    y = np.zeros_like(x)
    launch("async", "pipeline", 2, 70, x, y, 6, ptx=["cp.async.ca", "cp.async.wait_group"])
    assert (y == x[:, :, ::-1]).all()


def test_a_copy_that_fills_up_with_zeros(launch: Run) -> None:
    grid, block, n = 3, 70, 4 * 170 + 3
    x, y = normal(n), np.full((grid, 4 * block), np.nan, np.float32)
    launch("async", "zero_fill", grid, block, x, y, n, ptx=["cp.async.cg.*16, %r", "wait_all"])
    padded = np.zeros(grid * 4 * block, np.float32)
    padded[:n] = x
    assert (y == padded.reshape(grid, -1)[:, ::-1]).all()


@pytest.mark.parametrize("name", ["mbarrier_state", "mbarrier_parity"])
@pytest.mark.parametrize("block", [70, 33])
def test_an_mbarrier_holds_a_block_together(launch: Run, name: str, block: int) -> None:
    x, rounds = whole(3, block), 5
    y = np.zeros_like(x)
    ptx = ["mbarrier.(test_wait|try_wait.parity).shared::cta", "mbarrier.init"]
    launch("async", name, 3, block, x, y, rounds, ptx=ptx)
    expected = x.copy()
    for _ in range(rounds):
        expected = 3 * expected + np.roll(expected, -(33 % block), axis=1)
    assert (y == expected).all()


def test_the_mbarrier_functions_of_the_headers(launch: Run) -> None:
    x = whole(3, 70)
    y = np.zeros_like(x)
    launch("async", "mbarrier_header", 3, 70, x, y, ptx=["mbarrier.arrive", "mbarrier.inval"])
    assert (y == x[:, ::-1]).all()


@pytest.mark.parametrize("block", [70, 20])
def test_copies_arrive_at_an_mbarrier(launch: Run, block: int) -> None:
    x = normal(2, 2, block, 4)
    y = np.zeros_like(x)
    launch("async", "arrive_when_copied", 2, block, x, y, ptx=["cp.async.mbarrier.arrive.noinc"])
    assert (y == x[:, :, ::-1]).all()


@pytest.mark.parametrize("tiles", [1, 2, 7, 8])
def test_a_ring_of_two_stages(launch: Run, tiles: int) -> None:
    x, y = whole(3, tiles, 64), np.zeros((3, 64), np.int32)
    launch("async", "ring", 3, 96, x, y, tiles, ptx=["mbarrier.try_wait.parity", "mbarrier.arrive"])
    stored = np.concatenate([x[:, :, :32] + 1, x[:, :, 32:] * 2], axis=2)[:, :, ::-1]
    expected = np.zeros((3, 64), np.int64)
    for k in range(tiles):
        expected = 3 * expected + stored[:, k]
    assert (y == expected).all()


BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


@pytest.mark.parametrize(("n", "block"), [(100, 70), (1000, 32), (8, 33)])
def test_bulk_copies_bring_a_row(launch: Run, n: int, block: int) -> None:
    x = normal(3, n)
    y = np.zeros_like(x)
    launch("async", "bulk_row", 3, block, x, y, n, shared=4 * n, ptx=[BULK_LOAD, "expect_tx"])
    assert (y == x[:, ::-1]).all()


@pytest.mark.parametrize("tiles", [2, 3, 7])
def test_a_ring_that_bulk_copies_fill(launch: Run, tiles: int) -> None:
    x, y = whole(2, tiles, 96, dtype=np.float32), np.zeros((2, 48), np.float32)
    launch("async", "bulk_ring", 2, 48, x, y, tiles, ptx=[BULK_LOAD, "fence.proxy.async"])
    expected = np.zeros((2, 48), np.float32)
    for k in range(tiles):
        for part in (x[:, k, :47:-1], x[:, k, 47::-1]):
            expected = expected * np.float32(0.5) + part
    assert np.allclose(y, expected, rtol=0, atol=2e-5)  # 14 roundings of numbers below 100


@pytest.mark.parametrize(("n", "block"), [(100, 70), (256, 32)])
def test_bulk_copies_take_a_row_away(launch: Run, n: int, block: int) -> None:
    x, y = normal(3, n), np.zeros((3, 2, n), np.float32)
    ptx = ["cp.async.bulk.global.shared::cta.bulk_group", "wait_group.read 0", "commit_group"]
    launch("async", "bulk_out", 3, block, x, y, n, shared=4 * n, ptx=ptx)
    assert (y[:, 0] == 2 * x[:, ::-1]).all() and (y[:, 1] == 3 * x[:, ::-1]).all()


def test_a_row_goes_in_and_out_by_bulk_copies(launch: Run) -> None:
    n = 260
    x = whole(4, n, dtype=np.float32)
    expected = x * x + 1
    ptx = [BULK_LOAD, "cp.async.bulk.global.shared::cta.bulk_group"]
    launch("async", "bulk_round_trip", 4, 70, x, n, shared=4 * n, ptx=ptx)
    assert (x == expected).all()


def test_a_bulk_prefetch_changes_nothing(launch: Run) -> None:
    n = 260
    x = whole(3, n, dtype=np.float32)
    y = np.zeros_like(x)
    launch("async", "bulk_prefetch", 3, 70, x, y, n, ptx=["cp.async.bulk.prefetch.L2.global"])
    assert (y == x + 1).all()


# ---- clusters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [70, 32])
def test_blocks_of_a_cluster_add_up(launch: Run, block: int) -> None:
    x = whole(3, 4, block, dtype=np.float32)
    y = np.zeros_like(x)
    launch("cluster", "cluster_sum", 12, block, x, y, ptx=["mapa", "barrier.cluster.arrive"])
    totals = (x.sum(2) * [1, 2, 3, 4]).sum(1)
    ranks = 10000 * np.arange(4)[None, :, None]
    assert (y == x + totals[:, None, None] + ranks).all()


def test_shared_memory_of_other_blocks_by_inline_assembly(launch: Run) -> None:
    x = whole(2, 4, 72, dtype=np.float32)
    y = np.zeros_like(x)
    ptx = ["mapa.shared::cluster.u32", "ld.shared::cluster.v4.f32", "st.shared::cluster.f32"]
    launch("cluster", "cluster_by_asm", 8, 72, x, y, ptx=ptx)
    following = np.roll(x, -1, axis=1)
    quads = following.reshape(2, 4, 18, 4) @ np.array([1, 10, 100, 1000])
    assert (y == np.repeat(quads, 4, axis=2) + 2 * following[:, :, ::-1]).all()


def test_atomics_on_another_block(launch: Run) -> None:
    n = 333
    x, y = whole(3, n, low=0, high=64), np.zeros((3, 64), np.int32)
    launch("cluster", "remote_atomics", 12, 45, x, y, n, ptx=["atom.*add", "mapa"])
    assert y.tolist() == [np.bincount(row, minlength=64).tolist() for row in x]


def test_atomics_on_another_block_by_inline_assembly(launch: Run) -> None:
    x, y = whole(3, 2, 70, low=1, high=9), np.zeros((3, 2, 2), np.int32)
    ptx = ["atom.shared::cluster.add.u32", "red.shared::cluster.max.u32"]
    launch("cluster", "remote_atomics_by_asm", 6, 70, x, y, ptx=ptx)
    total, before_last = y[:, :, 0], y[:, :, 1]
    assert (total == x.sum(2)[:, ::-1]).all()
    assert ((total - before_last >= 1) & (total - before_last <= 8)).all()


def test_the_halves_of_a_cluster_barrier(launch: Run) -> None:
    x = whole(3, 2, 70)
    y = np.zeros_like(x)
    ptx = ["barrier.cluster.arrive.release.aligned", "barrier.cluster.arrive.relaxed"]
    launch("cluster", "split_barrier", 6, 70, x, y, ptx=ptx)
    v, t = np.zeros_like(x), np.arange(70)
    for j in range(5):
        v = np.where(j <= t % 5, 3 * v + x + j, v)
    assert (y == v + x[:, ::-1, ::-1]).all()


def test_asynchronous_stores_into_another_block(launch: Run) -> None:
    x = whole(3, 2, 70)
    y = np.zeros_like(x)
    ptx = ["st.async.shared::cluster.mbarrier::complete_tx::bytes.b32", "complete_tx::bytes.v4"]
    launch("cluster", "async_stores", 6, 70, x, y, ptx=ptx)
    other = x[:, ::-1]
    back = other[:, :, ::-1]
    quads = 100 * 2 * back - 10 * 3 * back + 100000 * np.arange(70)[::-1] - back
    assert (y == other + quads).all()


def test_arrivals_at_the_mbarrier_of_another_block(launch: Run) -> None:
    x = whole(3, 4 * 70)
    y = np.zeros_like(x)
    ptx = ["mbarrier.arrive.release.cluster.shared::cluster", "try_wait.parity.acquire.cluster"]
    launch("cluster", "remote_arrivals", 12, 70, x, y, ptx=ptx)
    assert (y == x[:, ::-1]).all()


def test_a_bulk_copy_to_another_block(launch: Run) -> None:
    x = normal(2, 3, 72)
    y = np.zeros_like(x)
    launch("cluster", "bulk_to_neighbour", 6, 72, x, y, ptx=["bulk.shared::cluster.shared::cta"])
    assert (y == np.roll(x, 1, axis=1)[:, :, ::-1]).all()


@pytest.mark.parametrize(
    ("name", "size"),
    [("places_alone", (1, 1)), ("places_in_pairs", (2, 1)), ("places_in_squares", (2, 2))],
)
def test_blocks_know_their_place_in_the_cluster(launch: Run, name: str, size: tuple) -> None:
    grid, block = (4, 6, 2), 33
    y = np.zeros((2, 6, 4, block, 16), np.uint32)
    launch("cluster", name, grid, block, y, ptx=["%cluster_ctarank", "%clusterid.x"])
    a, b = size
    for z, j, i in np.ndindex(2, 6, 4):
        rank = [i % a + a * (j % b), a * b]
        cluster = [i // a, j // b, z, 4 // a, 6 // b, 2]
        inside = [i % a, j % b, 0, a, b, 1]
        assert (y[z, j, i] == [*rank, *cluster, *inside, name != "places_alone", 77]).all()
