"""Planted bugs around asynchronous copies, mbarriers, clusters, local memory and polling.

The kernels are in tests/kernels; see test_simt_findings for their comments. Each has a twin
NAME_clean, whose numbers are compared with numpy.
"""

import functools
from dataclasses import dataclass

import cupy
import numpy as np
import pytest
from test_simt_findings import FOLDER, marks

from helpers.simt import Trace, simulate

X = np.arange(1, 1025, dtype=np.float32)


@dataclass(frozen=True)
class Launch:
    """How a kernel and its twin are launched: with x, with y of zeros, and with one argument more
    if there is one. Calling it returns (grid, block, arguments, dynamic shared memory)."""

    result: np.ndarray  # what the twin stores in y; zeros follow
    found: tuple[int, int, int | None]  # block, thread and count of the bug's finding
    more: int | np.ndarray | None = 3
    grid: int = 2
    x: np.ndarray | None = None  # by default 1, 2, 3, ...
    shared: int = 0

    def __call__(self) -> tuple[int, int, tuple, int]:
        x = X if self.x is None else self.x
        args = [x.copy(), np.zeros(1024, x.dtype)]
        if self.more is not None:
            args.append(self.more.copy() if isinstance(self.more, np.ndarray) else self.more)
        return self.grid, 64, tuple(args), self.shared


def turned(rows: int, size: int = 64, step: int = 0) -> np.ndarray:
    """The first rows of x, each from right to left; `step` elements from row to row."""
    starts = np.arange(rows) * (step or size)
    return X[starts[:, None] + np.arange(size)[::-1]]


def asynchronous(*found: int | None, rows: int = 2, size: int = 64, **options) -> Launch:
    return Launch(turned(rows, size), found, **options)


def cluster(result: np.ndarray, *found: int | None) -> Launch:
    return Launch(result, found, None, 4)


def zero() -> np.ndarray:
    return np.zeros(1, np.int32)


FOUR = X[:256].reshape(4, 64)
SWAPPED = turned(4)[[1, 0, 3, 2]]  # each block has what its neighbour in a pair has, turned round
EVEN = np.array([[1], [0], [1], [0]], np.float32)  # blocks of rank 0 in a pair
DIGITS = np.arange(1, 129, dtype=np.int32)
DIGITS[70] = 1 << 30
MARKS = np.arange(3 * 128, dtype=np.int32) % 9
PUSHED = np.random.default_rng(5).integers(0, 100, (128, 7)).astype(np.int32)


def binary_digits() -> list[int]:
    texts = [f"{value:b}"[::-1].ljust(44, "\0") for value in DIGITS.tolist()]
    return [ord(text[0]) + ord(text[i % 8]) for i, text in enumerate(texts)]


def first_four_odd() -> list[int]:
    sums = []
    for row in PUSHED.tolist():
        total = 0
        for value in [value for value in row if value % 2][:4]:
            total = 3 * total + value
        sums.append(total)
    return sums


FULL = (PUSHED % 2).cumsum(axis=1) > 4  # after this element: more than a stack of four holds

# Kernel -> its launch, with the block, the thread and the count that its finding has.
BUGS: dict[str, Launch] = {
    "asynchronous/no_wait": asynchronous(0, 0, 128),
    "asynchronous/last_stage": asynchronous(0, 0, 128, rows=6),
    "asynchronous/no_barrier_behind_wait": asynchronous(0, 0, 128),
    "asynchronous/no_commit": asynchronous(0, 0, 128),
    "asynchronous/refill_too_early": asynchronous(0, 0, 256, rows=6),
    "asynchronous/refill_before_barrier": asynchronous(0, 0, 128, rows=6),
    "asynchronous/store_meanwhile": Launch(turned(2) * (turned(2) <= 100), (1, 36, 28), 100),
    "asynchronous/copy_past_shared": asynchronous(0, 16, 2),
    "asynchronous/copy_past_array": Launch(X[:100], (1, 36, 28), 100, x=X[:100]),
    "asynchronous/copies_to_one_place": asynchronous(0, 0, 64, rows=4, size=32),
    "asynchronous/copy_misaligned": Launch(
        X[:512].reshape(2, 8, 32).transpose(0, 2, 1), (0, 8, 96)
    ),
    "asynchronous/source_misaligned": asynchronous(0, 0, 128, size=256),
    "asynchronous/read_before_wait": asynchronous(0, 0, 128),
    "asynchronous/never_waited": asynchronous(0, 0, 128),
    "asynchronous/wrong_parity": asynchronous(0, 0, 128),
    "asynchronous/parity_stays": asynchronous(0, 0, 128, rows=4, more=2),
    "asynchronous/too_many_bytes": asynchronous(0, 0, 128),
    "asynchronous/too_few_bytes": Launch(turned(2) + X[128:256].reshape(2, 64), (0, 0, 128)),
    "asynchronous/elements_for_bytes": asynchronous(0, 0, 128),
    "asynchronous/no_bytes_expected": asynchronous(0, 0, 128),
    "asynchronous/too_few_arrivals": asynchronous(0, 0, 128),
    "asynchronous/too_many_arrivals": asynchronous(0, 0, 128),
    "asynchronous/no_barrier_behind_init": asynchronous(0, 1, 126),
    "asynchronous/all_arrive_behind_init": asynchronous(0, 1, 126),
    "asynchronous/no_init": asynchronous(0, 0, 2, rows=6),
    "asynchronous/bulk_odd_size": asynchronous(0, 0, 1, rows=1, size=63, more=63, grid=1),
    "asynchronous/bulk_odd_address": Launch(turned(2, step=68), (1, 0, 1)),
    "asynchronous/bulk_past_array": Launch(X[:100], (1, 0, 1), 100, x=X[:100]),
    "asynchronous/bulk_past_shared": asynchronous(0, 0, 2, shared=256),
    "asynchronous/no_proxy_fence": asynchronous(0, 0, 2),
    "asynchronous/no_barrier_before_bulk_store": asynchronous(0, 0, 2),
    "asynchronous/buffer_still_read": asynchronous(0, 0, 256, rows=6),
    "asynchronous/other_thread_waits": asynchronous(0, 0, 128),
    "asynchronous/bulk_store_at_the_end": asynchronous(0, 0, 2),
    "asynchronous/bulk_store_no_commit": asynchronous(0, 0, 2),
    "asynchronous/ring_without_barrier": asynchronous(0, 0, 2, rows=6),
    "asynchronous/ring_without_empty": asynchronous(0, 0, 2, rows=6, size=32),
    "asynchronous/ring_starts_full": asynchronous(0, 32, 64, rows=6, size=32),
    "asynchronous/stage_released_early": asynchronous(0, 0, 2, rows=6, size=32),
    "asynchronous/no_named_arrive": asynchronous(0, 32, 64, size=32),
    "asynchronous/arrivals_of_too_many": asynchronous(0, 32, 64, size=32),
    "asynchronous/count_in_a_branch": Launch(np.repeat([61, 64], 64), (0, 0, 64)),
    "asynchronous/flag_never_set": Launch(np.r_[X[:64], 2 * X[:64]], (1, 0, 1), zero()),
    "asynchronous/lock_never_released": Launch(X[:4].sum(), (1, 0, 3), zero(), 4),
    "asynchronous/grid_barrier_after_return": Launch(
        np.r_[X[:192], X[191::-1]], (0, 0, 3), zero(), 4
    ),
    "asynchronous/trap_on_bad_value": Launch(2 * X[:128], (1, 36, 28)),
    "asynchronous/failed_assertion": Launch(2 * X[:128], (1, 36, 28)),
    "clusters/no_sync_before_read": cluster(SWAPPED, 0, 0, 256),
    "clusters/no_sync_at_the_end": cluster(SWAPPED, 0, 0, 256),
    "clusters/early_return": cluster(EVEN * (FOUR + SWAPPED), 0, 0, 128),
    "clusters/rank_outside": cluster(np.roll(turned(4), -1, axis=0), 3, 0, 64),
    "clusters/past_the_end": cluster(SWAPPED, 0, 0, 4),
    "clusters/wait_without_arrive": cluster(SWAPPED, 0, 0, 256),
    "clusters/one_block_arrives": cluster(FOUR + EVEN * SWAPPED, 0, 0, 256),
    "clusters/barrier_and_flag": cluster(FOUR, 1, 0, 128),
    "clusters/one_remote_word": cluster(FOUR[:, 63], 0, 0, 3),
    "clusters/sum_without_atomic": cluster(FOUR[:, 63].sum(), 0, 0, 6),
    "clusters/next_round_too_early": cluster(SWAPPED, 0, 0, 512),
    "clusters/st_async_not_waited": cluster(SWAPPED, 0, 0, 256),
    "clusters/init_not_announced": cluster(FOUR, 1, 0, 256),
    "clusters/arrivals_missing": cluster(FOUR, 0, 0, 256),
    # How many of the stores past the end are seen depends on what else is in local memory.
    "local_memory/too_many_digits": Launch(np.array(binary_digits()), (1, 6, None), 20, x=DIGITS),
    "local_memory/mark_past": Launch(
        (MARKS.reshape(128, 3, 1) == np.arange(8)).any(axis=1), (0, 2, 42), x=MARKS
    ),
    "local_memory/one_before": Launch(
        np.maximum(DIGITS % 9 - 1, 0) * np.arange(128),
        (0, 8, int((DIGITS % 9 == 0).sum())),
        x=DIGITS % 9,
    ),
    "local_memory/stack_overflow": Launch(
        np.array(first_four_odd()),
        (0, int(FULL[:, FULL.any(axis=0).argmax()].argmax()), int((FULL & PUSHED % 2).sum())),
        7,
        x=PUSHED.reshape(-1),
    ),
}


@functools.cache
def run(name: str, twin: str = "") -> tuple[Trace, np.ndarray]:
    """The trace, and y."""
    file, kernel = name.split("/")
    code = f'#line 1 "kernels/{file}.cu"\n' + (FOLDER / f"{file}.cu").read_text()
    grid, block, args, shared = BUGS[name]()
    trace = simulate(cupy.RawKernel(code, kernel + twin), grid, block, args, shared)
    return trace, args[1]


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found_on_its_line(name: str) -> None:
    file, kernel = name.split("/")
    trace, _ = run(name)
    expected = marks(file, kernel)
    assert len(expected) == 1
    assert [(f.kind, f.line) for f in trace.findings] == expected, str(trace.findings)
    (finding,) = trace.findings
    block, thread, count = BUGS[name].found
    assert finding.file == f"kernels/{file}.cu"
    assert (finding.block, finding.thread) == ((block, 0, 0), (thread, 0, 0))
    assert count in (None, finding.count)


@pytest.mark.parametrize("name", BUGS)
def test_the_repaired_twin_has_no_finding_and_the_right_numbers(name: str) -> None:
    file, kernel = name.split("/")
    assert not marks(file, f"{kernel}_clean")
    trace, y = run(name, "_clean")
    assert not trace.findings, str(trace.findings)
    expected = np.ravel(BUGS[name].result)
    assert expected.any()
    assert (y[: len(expected)] == expected).all()
    assert not y[len(expected) :].any()


@pytest.mark.parametrize("file", ["asynchronous", "clusters", "local_memory"])
def test_every_kernel_with_a_planted_bug_is_run(file: str) -> None:
    text = (FOLDER / f"{file}.cu").read_text()
    there = {
        line.split("void ")[1].split("(")[0] for line in text.splitlines() if "_global_" in line
    }
    names = [name.split("/")[1] for name in BUGS if name.startswith(f"{file}/")]
    assert there == {name + twin for name in names for twin in ("", "_clean")}


# ---- what the findings say ----------------------------------------------------------------------


def message(name: str) -> str:
    return run(name)[0].findings[0].message


@pytest.mark.parametrize(
    ("name", "arrivals", "size"),
    [
        ("asynchronous/too_many_bytes", 0, 16),
        ("asynchronous/elements_for_bytes", 0, 64 - 256),
        ("asynchronous/too_few_arrivals", 62, 0),
        ("clusters/arrivals_missing", 64, 0),
    ],
)
def test_a_wait_that_never_ends_says_what_is_missing(name: str, arrivals: int, size: int) -> None:
    expected = f"still waits for {arrivals} arrivals and {size} bytes"
    assert expected in message(name)


@pytest.mark.parametrize(
    "name",
    [
        "asynchronous/flag_never_set",
        "asynchronous/lock_never_released",
        "asynchronous/grid_barrier_after_return",
        "clusters/barrier_and_flag",
    ],
)
def test_a_poll_that_nobody_answers_is_given_up_before_the_limit(name: str) -> None:
    assert "a store that no thread of the blocks that run at once will make" in message(name)


def test_messages_name_the_place_and_the_size() -> None:
    assert "252" in message("asynchronous/bulk_odd_size")
    assert "from byte 256 of argument 0 (400 bytes) on" in message("asynchronous/bulk_past_array")
    past = message("asynchronous/bulk_past_shared")
    assert "1024 bytes at byte 128" in past and "384 bytes of shared memory" in past
    assert "4 bytes at byte -4 of the thread's 32 bytes" in message("local_memory/one_before")


SENT = """
__device__ unsigned place(const void* shared) { return (unsigned)__cvta_generic_to_shared(shared); }

extern "C" __global__ __cluster_dims__(2) void sent(const float* x, float* y)
{
    __shared__ float s[64];
    __shared__ unsigned long long full;
    const int t = threadIdx.x, i = blockIdx.x * 64 + t;
    if (t == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(place(&full)));
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 256;" ::"r"(place(&full)));
    }
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    if (blockIdx.x & 1) {
        unsigned to, bar;
        asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(to) : "r"(place(&s[t])));
        asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(bar) : "r"(place(&full)));
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::
                         "r"(to), "f"(x[i]), "r"(bar) : "memory");
    } else if (WAITS) {
        for (unsigned done = 0; !done;)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;"
                         " selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(place(&full)) : "memory");
        y[i] = s[t];
    }
}
"""


def test_who_waits_for_what_it_is_sent_needs_no_barrier_at_its_end() -> None:
    """A receiver that waits cannot have ended before it got what it waited for."""
    x, y = X[:256].astype(np.float32), np.zeros(256, np.float32)
    waiting = cupy.RawKernel(SENT, "sent", options=("-DWAITS=1",))
    trace = simulate(waiting, 4, 64, (x, y))
    assert not trace.findings, str(trace.findings)
    received = y.reshape(2, 2, 64)[:, 0]
    assert np.array_equal(received, x.reshape(2, 2, 64)[:, 1])
    careless = cupy.RawKernel(SENT, "sent", options=("-DWAITS=0",))
    kinds = {finding.kind for finding in simulate(careless, 4, 64, (x, y)).findings}
    assert "shared memory of a block that may have ended" in kinds


@pytest.mark.parametrize("rank", [0, 1])
def test_a_block_without_a_cluster_is_a_cluster_of_one(rank: int) -> None:
    code = """
extern "C" __global__ void alone(const float* x, float* y, int rank)
{
    __shared__ float s[64];
    const int t = threadIdx.x;
    unsigned place;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) :
        "r"((unsigned)__cvta_generic_to_shared(&s[63 - t])), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(place), "f"(x[t]) : "memory");
    __syncthreads();
    y[t] = rank ? 0.0f : s[t];
}
"""
    x, y = X[:64].astype(np.float32), np.zeros(64, np.float32)
    trace = simulate(cupy.RawKernel(code, "alone"), 1, 64, (x, y, rank))
    if rank:
        assert {finding.kind for finding in trace.findings} == {"out-of-bounds shared store"}
    else:
        assert not trace.findings and np.array_equal(y, x[::-1])
