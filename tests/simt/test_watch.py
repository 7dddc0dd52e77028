"""What a trace keeps for pictures: the addresses of chosen lines, and a block's life step by step.

What each lane touches and in which order is worked out here by hand, from the source.
"""

import numpy as np
import pytest

from helpers.simt import Event, KernelText, Trace, WatchedAccess, simulate
from tests.simt.launching import CLUSTER

ROWS = """extern "C" __global__ void rows(const float* x, float* y, int rows, int cols)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float sum = 0;
#pragma unroll 1
        for (int i = 0; i < cols; i++)
            sum += x[row * cols + i];
        y[row] = sum;
    }
}
"""
COPY = """extern "C" __global__ void copy(const float4* x, float4* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i];
}
"""
TREE = """extern "C" __global__ void tree(const float* x, float* y)
{
    __shared__ float s[128];
    const int t = threadIdx.x;
    s[t] = x[blockIdx.x * 128 + t];
    __syncthreads();
#pragma unroll 1
    for (int half = 64; half > 0; half /= 2) {
        if (t < half)
            s[t] += s[t + half];
        __syncthreads();
    }
    if (t == 0)
        y[blockIdx.x] = s[0];
}
"""
LOAD_OF_ROWS, LOAD_OF_COPY, ADD_OF_TREE = 8, 4, 10


def launch(code: str, grid: int, block: int, *args, **options) -> Trace:
    name = code.rpartition("void ")[2].split("(")[0]
    trace = simulate(KernelText(code, name), grid, block, args, **options)
    assert not trace.findings, str(trace.findings)
    return trace


def rows_trace(rows: int = 64, cols: int = 16, **options) -> Trace:
    x = np.ones((rows, cols), np.float32)
    return launch(ROWS, 2, 32, x, np.zeros(rows, np.float32), rows, cols, **options)


def tree_trace(grid: int = 1, **options) -> Trace:
    x = np.arange(128 * grid, dtype=np.float32)
    return launch(TREE, grid, 128, x, np.zeros(grid, np.float32), **options)


def warp_of(access: WatchedAccess | Event) -> tuple[int, int]:
    return access.block[0], access.warp


# ---- accesses -----------------------------------------------------------------------------------


def test_lanes_that_load_float4_touch_two_lanes_a_sector_and_hold_four_values() -> None:
    x = np.arange(512, dtype=np.float32)
    trace = launch(COPY, 2, 64, x, np.zeros_like(x), watch=[LOAD_OF_COPY])
    loads = [access for access in trace.accesses if access.kind == "load"]
    stores = [access for access in trace.accesses if access.kind == "store"]
    assert sorted(map(warp_of, loads)) == sorted(map(warp_of, stores))
    assert sorted(map(warp_of, loads)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for access in trace.accesses:
        block, warp = warp_of(access)
        assert access.offsets.tolist() == [16 * (64 * block + 32 * warp + k) for k in range(32)]
        assert (access.width, access.sectors) == (16, 16)
        assert access.array == ("x" if access.kind == "load" else "y")
        first = access.offsets // 4
        assert access.values.shape == (32, 4)
        assert (access.values.view(np.float32) == x[first[:, None] + np.arange(4)]).all()


def test_a_tail_has_the_lanes_that_are_left_and_a_view_its_start() -> None:
    x, y = np.ones((41, 3), np.float32)[1:], np.zeros(40, np.float32)
    trace = launch(ROWS, 2, 32, x, y, 40, 3, watch=(9,))
    first, last = trace.accesses
    assert last.mask.tolist() == [True] * 8 + [False] * 24 and first.mask.all()
    assert last.offsets[:8].tolist() == [128 + 4 * lane for lane in range(8)]
    assert (last.array, last.sectors, last.start) == ("y", 1, 0)
    loads = launch(ROWS, 2, 32, x, y, 40, 3, watch=(LOAD_OF_ROWS,)).accesses
    # Rows of 12 bytes from byte 12 on: floats at 12, 24, .., 384, the last in sector 12.
    assert (loads[0].start, loads[0].sectors) == (12, 13)


def test_accesses_hold_what_was_loaded_and_stored() -> None:
    x = np.arange(256, dtype=np.float32) ** 2
    args = x, np.zeros(2, np.float32)
    trace = launch(TREE, 2, 128, *args, watch=(5, ADD_OF_TREE, 14), only_blocks=(1,))
    assert {access.block for access in trace.accesses} == {(1, 0, 0)}
    held, seen = x[128:].copy(), set()
    for access in trace.accesses:
        threads = 32 * access.warp + np.flatnonzero(access.mask)
        bits = access.values[access.mask]
        assert bits.dtype == np.uint32 and bits.shape == (len(threads), 1)
        values, places = bits.view(np.float32)[:, 0], access.offsets[access.mask] // 4
        seen.add((access.memory, access.array, access.kind))
        if access.memory == "shared" and access.kind == "store":
            assert places.tolist() == threads.tolist()
            held[places] = values
        if access.memory == "shared" and access.kind == "load":
            assert {*(places - threads)} <= {0, 64, 32, 16, 8, 4, 2, 1}
            assert values.tolist() == held[places].tolist()
        if access.array == "x":
            assert values.tolist() == x[places].tolist()
    assert held[0] == x[128:].sum() == trace.accesses[-1].values[0].view(np.float32)[0]
    shared = {("shared", "", kind) for kind in ("load", "store")}
    assert seen == {("global", "x", "load"), ("global", "y", "store"), *shared}


NEIGHBOUR = f"""{CLUSTER}#line 1 "kernel.cu"
extern "C" __global__ __cluster_dims__(2) void neighbour(const float* x, float* y)
{{
    __shared__ float s[32];
    s[threadIdx.x] = x[threadIdx.x];
    CLUSTER_SYNC();
    y[blockIdx.x * 32 + threadIdx.x] = in_block(s, blockIdx.x ^ 1)[31 - threadIdx.x];
    CLUSTER_SYNC();
}}
"""


def test_memory_of_another_block_is_remote() -> None:
    x = np.arange(32, dtype=np.float32)
    trace = launch(NEIGHBOUR, 2, 32, x, np.zeros(64, np.float32), watch=(6,), follow=True)
    remote = [access for access in trace.accesses if access.memory == "remote"]
    assert [(a.block[0], a.owner) for a in remote] == [(0, (1, 0, 0)), (1, (0, 0, 0))]
    for access in remote:
        assert access.kind == "load" and access.width == 4
        assert access.offsets.tolist() == [4 * (31 - lane) for lane in range(32)]
    kinds = [event.kind for event in trace.events if event.block == (0, 0, 0)]
    assert [kind for kind in kinds if kind.startswith("cluster")] == [
        *("cluster arrive", "cluster wait", "cluster leave"),
        *("cluster arrive", "cluster wait", "cluster leave"),
    ]


ADDRESSES = """extern "C" __global__ void addresses(const float* x, float* y, int n)
{
    __shared__ __align__(16) float s[128];
    int place[40];
    for (int k = 0; k < 40; k++) place[k] = (k * n) % 40;
    atomicAdd(&y[threadIdx.x / 8], 1.0f);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
        :: "r"((unsigned)__cvta_generic_to_shared(&s[4 * threadIdx.x])), "l"(x + 4 * threadIdx.x));
    asm volatile("cp.async.wait_all;" ::: "memory");
    y[32 + threadIdx.x] = s[4 * threadIdx.x + 1] + place[(threadIdx.x * n) % 40];
}
"""


def test_atomics_copies_and_local_memory() -> None:
    x, y = np.arange(128, dtype=np.float32), np.zeros(64, np.float32)
    trace = launch(ADDRESSES, 1, 32, x, y, 3, watch=(6, 7, 10))
    (atomic,) = [access for access in trace.accesses if access.kind == "atomic"]
    assert atomic.line == 6 and atomic.offsets.tolist() == [k // 8 * 4 for k in range(32)]
    copy = [(a.kind, a.memory, a.width) for a in trace.accesses if a.line in (7, 8)]
    assert copy == [("load", "global", 16), ("store", "shared", 16)]
    (local,) = [access for access in trace.accesses if access.memory == "local"]
    assert local.offsets.tolist() == [t * 3 % 40 * 4 for t in range(32)]


BULK = """extern "C" __global__ void bulk(float* y)
{
    __shared__ __align__(16) float s[64];
    s[threadIdx.x] = threadIdx.x;
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned from = (unsigned)__cvta_generic_to_shared(s + 8);
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
            :: "l"(y + 4), "r"(from), "r"(96) : "memory");
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
"""


def test_a_bulk_copy_is_one_wide_load_and_one_wide_store() -> None:
    y = np.zeros(64, np.float32)
    name = KernelText(BULK, "bulk")
    trace = simulate(name, 1, 64, (y,), watch=(9,))
    assert not trace.findings and y[4:28].tolist() == list(range(8, 32))
    load, store = trace.accesses
    assert (load.kind, load.memory, load.width, load.offsets[0]) == ("load", "shared", 96, 32)
    assert (store.kind, store.array, store.width, store.offsets[0]) == ("store", "y", 96, 16)
    assert load.mask.tolist() == store.mask.tolist() == [True] + [False] * 31
    assert store.sectors == 4  # bytes 16 to 111


# ---- events -------------------------------------------------------------------------------------


def test_no_warp_leaves_a_barrier_before_all_have_arrived() -> None:
    trace = tree_trace(2, follow=True, only_blocks=[(1, 0, 0)])
    assert {event.block for event in trace.events} == {(1, 0, 0)} and not trace.accesses
    meetings = [event for event in trace.events if event.kind.startswith("barrier")]
    assert len(meetings) == 8 * (4 + 4)  # behind the load, and behind each of seven halves
    for start in range(0, len(meetings), 8):
        arrive, leave = meetings[start : start + 4], meetings[start + 4 : start + 8]
        assert [event.kind for event in arrive] == ["barrier arrive"] * 4
        assert [event.kind for event in leave] == ["barrier leave"] * 4
        assert sorted(event.warp for event in arrive) == [0, 1, 2, 3]
        assert {event.line for event in arrive + leave} == {6 if start == 0 else 11}


SHUFFLES = """extern "C" __global__ void shuffles(const float* x, float* y)
{
    float v = x[threadIdx.x];
    for (int d = 16; d > 0; d /= 2)
        v += __shfl_xor_sync(0xffffffff, v, d);
    __syncwarp();
    y[threadIdx.x] = __any_sync(0xffffffff, v > 0) ? v : 0;
}
"""


def test_exchanges_hold_who_takes_from_whom_and_what_each_offers() -> None:
    x = np.arange(64, dtype=np.float32)
    trace = launch(SHUFFLES, 1, 64, x, np.zeros(64, np.float32), follow=True)
    kinds = [event.kind for event in trace.events if event.warp == 1]
    assert kinds == ["load global", *["shuffle"] * 5, "warp barrier", "vote", "store global", "end"]
    assert [event.line for event in trace.events if event.kind == "shuffle"] == [5] * 10
    for warp in (0, 1):
        held = x[32 * warp : 32 * warp + 32].copy()
        ours = [one for one in trace.events if one.kind == "shuffle" and one.warp == warp]
        for distance, event in zip((16, 8, 4, 2, 1), ours, strict=True):
            assert event.sources.tolist() == [lane ^ distance for lane in range(32)]
            assert event.values.view(np.float32).tolist() == held.tolist()
            held += held[event.sources]
    assert all(one.sources is None for one in trace.events if one.kind != "shuffle")


SEGMENTS = """extern "C" __global__ void segments(const int* x, int* y)
{
    int v = x[threadIdx.x];
    v += __shfl_up_sync(0xffffffff, v, 1, 8);
    v += __shfl_down_sync(0xffffffff, v, 2, 16);
    y[threadIdx.x] = v + __shfl_sync(0xffffffff, v, 3);
}
"""


def test_a_lane_past_the_bounds_of_a_shuffle_reads_itself() -> None:
    x = np.arange(32, dtype=np.int32)
    trace = launch(SEGMENTS, 1, 32, x, np.zeros_like(x), follow=True)
    up, down, one = (event.sources.tolist() for event in trace.events if event.kind == "shuffle")
    assert up == [lane - 1 if lane % 8 else lane for lane in range(32)]
    assert down == [lane + 2 if lane % 16 < 14 else lane for lane in range(32)]
    assert one == [3] * 32


# ---- off, and too much --------------------------------------------------------------------------


def test_true_keeps_every_line_and_every_event() -> None:
    everything, named = tree_trace(2, watch=True), tree_trace(2, watch=(5, 10, 14), follow=True)
    assert named.accesses and len(everything.accesses) == len(named.accesses)
    assert [vars(one) | {"mask": 0, "offsets": 0, "values": 0} for one in everything.accesses] == [
        vars(one) | {"mask": 0, "offsets": 0, "values": 0} for one in named.accesses
    ]
    assert [event.kind for event in everything.events] == [event.kind for event in named.events]
    assert not tree_trace(2, watch=False).accesses and not tree_trace(2, watch=False).events


def test_a_trace_knows_what_it_was_given() -> None:
    trace = rows_trace(64, 16)
    assert trace.shape.grid == (2, 1, 1) and trace.shape.block == (32, 1, 1)
    x = trace.arrays["x"]
    assert x == ((64, 16), np.float32, 0) and x.elements == 1024
    assert [*trace.arrays] == ["x", "y"] and trace.file == "kernel.cu"
    assert trace.own_lines()[LOAD_OF_ROWS].strip() == "sum += x[row * cols + i];"
    assert trace.own_counters()[LOAD_OF_ROWS].load_sectors == trace.counters.load_sectors


def test_a_line_without_an_access_is_refused_with_those_that_have_one() -> None:
    for line in (2, 7):
        with pytest.raises(ValueError, match=rf"no load or store in line {line} of .*: 8, 9$"):
            rows_trace(watch=(LOAD_OF_ROWS, line))


def test_a_block_outside_the_grid_is_refused() -> None:
    for block in (2, -1, (0, 1, 0), (0,)):
        with pytest.raises(ValueError, match=r"there is no block .* in a grid of \(2, 1, 1\)"):
            tree_trace(2, follow=True, only_blocks=(block,))


def test_records_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helpers.simt.trace.RECORDS", 31)
    for options in ({"watch": (LOAD_OF_ROWS,)}, {"follow": True}):
        with pytest.raises(ValueError, match="more than 31 records .* fewer rows .* only_blocks"):
            rows_trace(**options)
    monkeypatch.setattr("helpers.simt.trace.RECORDS", 32)
    assert len(rows_trace(watch=(LOAD_OF_ROWS,)).accesses) == 32
