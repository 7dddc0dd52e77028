"""Instructions that no other test set has: kernels of kernels/features_*.cu without a bug, so that
a finding is an error. What they compute is said here by numpy, and a GPU has to agree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cupy
import numpy as np
import pytest

from tests.simt.launches import source
from tests.simt.launching import Run, on_gpu


def text(file: str) -> str:
    return source(f"features_{file}")


@pytest.fixture
def launch(run: Run) -> Run:
    """Run a kernel of a file, by its name, on numpy arrays in place."""
    if run is on_gpu and int(cupy.cuda.Device().compute_capability) < 90:
        pytest.skip("needs a GPU of compute capability 9.0")

    def launch_named(file: str, name: str, *sizes_and_args, **options) -> None:
        run(text(file), *sizes_and_args, name=name, **options)

    return launch_named


def whole(*shape: int, low: int = -50, high: int = 50, dtype=np.int32) -> np.ndarray:
    """Small whole numbers, whose sums are exact also in fp32."""
    return np.random.default_rng(sum(shape)).integers(low, high, shape).astype(dtype)


def normal(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


# ---- an input x and an output y -----------------------------------------------------------------


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


def mixed(x: np.ndarray) -> np.ndarray:
    for _ in range(5):
        x = 3 * x + np.roll(x, -33, axis=1)
    return x


def quads_of_the_next(x: np.ndarray) -> np.ndarray:
    following = np.roll(x, -1, axis=1)
    quads = following.reshape(2, 4, 18, 4) @ np.array([1, 10, 100, 1000])
    return np.repeat(quads, 4, axis=2) + 2 * following[:, :, ::-1]


def sent_asynchronously(x: np.ndarray) -> np.ndarray:
    other = x[:, ::-1]
    back = other[:, :, ::-1]
    return other + 100 * 2 * back - 10 * 3 * back + 100000 * np.arange(70)[::-1] - back


def votes(x: np.ndarray) -> np.ndarray:
    return (100 * (x > 0).sum(1) + 10 * (x < 40).all(1) + (x == 7).any(1))[:, None]


def to_vote_on(block: int) -> np.ndarray:
    x = whole(5, block)
    x[0], x[1, -1], x[2] = 7, 40, -(x[2] ** 2)
    return x


CASES = [
    Case("async zero_fill", 3, 70, normal(683),
         lambda x: np.pad(x, (0, 157)).reshape(3, 280)[:, ::-1],
         ("cp.async.cg.*16, %r", "wait_all"), (683,), np.full((3, 280), np.nan, np.float32)),
    Case("async mbarrier_header", 3, 70, whole(3, 70), mixed,
         ("mbarrier.arrive", "mbarrier.test_wait", "mbarrier.inval"), (5,)),
    Case("async arrive_when_copied", 2, 70, normal(2, 2, 70, 4), lambda x: x[:, :, ::-1],
         ("cp.async.mbarrier.arrive.noinc",)),
    Case("async bulk_prefetch", 3, 70, whole(3, 260, dtype=np.float32), lambda x: x + 1,
         ("cp.async.bulk.prefetch.L2.global",), (260,)),
    Case("cluster cluster_by_asm", 8, 72, whole(2, 4, 72, dtype=np.float32), quads_of_the_next,
         ("mapa.shared::cluster.u32", "ld.shared::cluster.v4.f32", "st.shared::cluster.f32")),
    Case("cluster async_stores", 6, 70, whole(3, 2, 70), sent_asynchronously,
         ("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32", "complete_tx::bytes.v4")),
    Case("cluster remote_arrivals", 12, 70, whole(3, 280), lambda x: x[:, ::-1],
         ("mbarrier.arrive.release.cluster.shared::cluster", "try_wait.parity.acquire.cluster")),
    Case("cluster bulk_to_neighbour", 6, 72, normal(2, 3, 72),
         lambda x: np.roll(x, 1, axis=1)[:, :, ::-1], ("bulk.shared::cluster.shared::cta",)),
    Case("asm cache_hints", 3, 32, normal(85, 4), lambda x: x[::-1, ::-1],
         ("ld.global.nc.L1::no_allocate.v4.f32", "st.global.cs.v4.f32"), (85,)),
    Case("asm eviction_policy", 3, 32, normal(85), lambda x: x - 2 * np.roll(x, -1),
         ("createpolicy.fractional.L2::evict_first.b64", "st.global.*L2::cache_hint"), (85,),
         np.zeros(96, np.float32)),
    Case("asm prefetch", 2, 72, normal(500), lambda x: x + np.float32(1),
         ("prefetch.global.L2 ", "prefetchu.L1"), (500,), np.zeros(508, np.float32)),
    Case("warp barrier_votes", 5, 70, to_vote_on(70), votes,
         ("bar.red.popc", "bar.red.and", "bar.red.or")),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_a_kernel_gives_what_numpy_gives(launch: Run, case: Case) -> None:
    x, y = case.x.copy(), np.zeros_like(case.x) if case.y is None else case.y.copy()
    file, name = case.kernel.split()
    launch(file, name, case.grid, case.block, x, y, *case.more, ptx=case.ptx)
    expected = np.asarray(case.expected(case.x))
    found = y if y.ndim > 1 else y[: len(expected)]
    assert (found == expected).all()
    assert y.ndim > 1 or not y[len(expected) :].any()


# ---- clusters and warps -------------------------------------------------------------------------


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


def test_one_lane_of_a_warp_is_elected(launch: Run) -> None:
    x, y = whole(2, 3, 32), np.zeros(1 + 2 * 96, np.int32)
    launch("warp", "elected", 2, 96, x, y, ptx=["elect.sync"])
    assert y[0] == 6  # one in each warp
    for values, found in zip(x.reshape(6, 32), y[1:].reshape(6, 32), strict=True):
        assert not found[:3].any() and not found[29:].any()
        (leader,) = 3 + np.flatnonzero(found[3:29] != np.median(found[3:29]))
        others = np.delete(found, leader)[3:28]
        assert found[leader] == 100 + values[leader] and (others == values[leader]).all()


def test_clocks_go_forward(launch: Run) -> None:
    x, y = normal(90), np.zeros(90, np.float32)
    ticks, cycles = np.zeros(90, np.int64), np.zeros(90, np.uint32)
    ptx = ["%clock64", "%clock;", "%globaltimer", "nanosleep"]
    launch("warp", "clocks", 2, 45, x, y, ticks, cycles, ptx=ptx)
    assert (ticks > 0).all() and (ticks < 2**40).all()
    assert (cycles > 0).all() and (cycles < 2**31).all()


# ---- memory -------------------------------------------------------------------------------------


def test_local_elements_of_1_8_and_16_bytes(launch: Run) -> None:
    n = 75
    x, y = whole(n, low=0, high=60), np.zeros(n, np.int64)
    ptx = ["ld.local.(s|u)8", "ld.local.u64", "local.v"]
    launch("local", "local_sizes", 2, 40, x, y, n, ptx=ptx)
    for v, found in zip(x.tolist(), y.tolist(), strict=True):
        small = (v * (v % 11 + 1) + 128) % 256 - 128
        j = v % 3
        assert found == small + ((v + v % 5) << 33) + v + j * v * j - 2


def test_a_variable_starts_as_the_address_of_another(launch: Run) -> None:
    n = 66
    y = np.zeros(n, np.int32)
    launch("local", "device_pointer", 2, 40, y, n, ptx=["ld.global.u64[^;]*middle"])
    assert y.tolist() == [[2, 3, 5, 7, 11][i % 5] * i for i in range(n)]


def test_load_and_store_functions_for_every_cache_operator(launch: Run) -> None:
    n = 70
    x, z, w = normal(n, 4), whole(n, dtype=np.float64), whole(n)
    y = np.zeros((2 * n, 4), np.float32)
    ptx = ["ld.global.cs.v4", "ld.global.nc.f64", "st.global.cs.v4", "ld.global.cg"]
    ptx += ["st.global.wt", "ld.volatile|ld.global.cv"]
    launch("asm", "streaming", 3, 32, x, z, w, y, n, ptx=ptx)
    i = np.arange(n)
    added = np.stack([z, w, w[::-1], w[i // 2] + w[i // 3]], axis=1).astype(np.float32)
    assert (y[:n] == x + added).all() and (y[n:] == 2 * y[:n]).all()


# ---- atomics ------------------------------------------------------------------------------------


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
