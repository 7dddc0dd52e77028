"""Asynchronous copies, mbarriers and clusters.

The kernels are in tests/simt/kernels/features_*.cu and have no bugs, so that a finding is an error.
"""

import numpy as np
import pytest

from tests.simt.features.support import whole
from tests.simt.launching import Run

# ---- asynchronous copies ----------------------------------------------------------------------


BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


@pytest.mark.parametrize("tiles", [2, 3, 7])
def test_a_ring_that_bulk_copies_fill(launch: Run, tiles: int) -> None:
    x, y = whole(2, tiles, 96, dtype=np.float32), np.zeros((2, 48), np.float32)
    launch("async", "bulk_ring", 2, 48, x, y, tiles, ptx=[BULK_LOAD, "fence.proxy.async"])
    expected = np.zeros((2, 48), np.float32)
    for k in range(tiles):
        for part in (x[:, k, :47:-1], x[:, k, 47::-1]):
            expected = expected * np.float32(0.5) + part
    assert np.allclose(y, expected, rtol=0, atol=2e-5)  # 14 roundings of numbers below 100


def test_a_row_goes_in_and_out_by_bulk_copies(launch: Run) -> None:
    n = 260
    x = whole(4, n, dtype=np.float32)
    expected = x * x + 1
    ptx = [BULK_LOAD, "cp.async.bulk.global.shared::cta.bulk_group"]
    launch("async", "bulk_round_trip", 4, 70, x, n, shared=4 * n, ptx=ptx)
    assert (x == expected).all()


# ---- clusters ---------------------------------------------------------------------------------


def test_atomics_on_another_block_by_inline_assembly(launch: Run) -> None:
    x, y = whole(3, 2, 70, low=1, high=9), np.zeros((3, 2, 2), np.int32)
    ptx = ["atom.shared::cluster.add.u32", "red.shared::cluster.max.u32"]
    launch("cluster", "remote_atomics_by_asm", 6, 70, x, y, ptx=ptx)
    total, before_last = y[:, :, 0], y[:, :, 1]
    assert (total == x.sum(2)[:, ::-1]).all()
    assert ((total - before_last >= 1) & (total - before_last <= 8)).all()


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
