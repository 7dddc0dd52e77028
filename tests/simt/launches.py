"""Every kernel with a planted bug as data: how it and its twin without the bug are launched, what
is found in it, and what the twin computes.

The kernels are in tests/simt/kernels, compiled with -DPLANTED for the bug and without it for the
twin: see twins.cuh. A line with a bug ends in a comment such as `// <- out-of-bounds load`, which
says the kind and the line of a finding; the tables here say the rest. test_planted.py holds the
SIMT machine against them, tests/hardware compute-sanitizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from helpers.simt import Trace, byte_offset, simulate

FOLDER = Path(__file__).parent / "kernels"
LIMIT = 20_000  # instructions; every kernel here needs fewer

Sizes = int | tuple[int, ...]
Found = tuple[int | tuple[int, ...], int | tuple[int, ...], int | None]


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched, and what some of its arguments must hold after it."""

    grid: Sizes
    block: Sizes
    values: Sequence[np.ndarray | int]  # before the launch; nothing writes into these arrays
    expected: Mapping[int, np.ndarray] = field(default_factory=dict)  # by place of the argument
    shared_mem: int = 0  # bytes of dynamic shared memory

    def arguments(self) -> list[np.ndarray | int]:
        """The values, arrays copied; a view stays as many bytes into its allocation as it was."""
        return [copied(value) if isinstance(value, np.ndarray) else value for value in self.values]

    def wrong(self, arguments: Sequence) -> list[int]:
        """The arguments that do not hold what they must; results are exact."""
        return [
            place
            for place, values in self.expected.items()
            if not np.array_equal(arguments[place], values)
        ]


@dataclass(frozen=True)
class Planted:
    """A kernel with a bug, or its twin without one, and its launch."""

    file: str
    kernel: str
    launch: Launch
    # Block, thread and count of each finding, in the order of the source; one number for a place
    # along x, no count where it depends on more than the source.
    found: tuple[Found, ...] = ()
    bug: bool = True

    @property
    def name(self) -> str:
        return f"{self.file}/{self.kernel}{'' if self.bug else '_clean'}"

    @property
    def options(self) -> tuple[str, ...]:
        return ("-DPLANTED",) if self.bug else ()

    @property
    def code(self) -> str:
        return source(self.file)

    @property
    def marks(self) -> list[tuple[str, int]]:
        return marks(self.file, self.kernel) if self.bug else []

    def run(self) -> tuple[Trace, list]:
        """(what the SIMT machine saw, the arguments after it)"""
        kernel = SimpleNamespace(code=self.code, name=self.kernel, options=self.options)
        arguments = self.launch.arguments()
        sizes = self.launch.grid, self.launch.block
        shared = self.launch.shared_mem
        trace = simulate(kernel, *sizes, arguments, shared, instruction_limit=LIMIT)
        return trace, arguments


def copied(array: np.ndarray) -> np.ndarray:
    around = np.zeros(byte_offset(array) + array.nbytes, np.uint8)
    inside = around[byte_offset(array) :].view(array.dtype)
    inside[:] = array.reshape(-1)
    return inside


def source(file: str) -> str:
    """The text of a file, and in it those of the headers beside it that it includes."""
    lines = (FOLDER / f"{file}.cu").read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        if included := re.fullmatch(r'#include "(\w+\.cuh)"', line):
            text = (FOLDER / included[1]).read_text(encoding="utf-8")
            back = f'#line {number + 1} "kernels/{file}.cu"'
            lines[number - 1] = f'#line 1 "kernels/{included[1]}"\n{text}{back}'
    return "\n".join([f'#line 1 "kernels/{file}.cu"', *lines])


def marks(file: str, kernel: str) -> list[tuple[str, int]]:
    """(kind, line) of the bugs that the comments of that kernel announce, and of the helpers
    between it and the kernel before."""
    lines = (FOLDER / f"{file}.cu").read_text(encoding="utf-8").splitlines()
    found, own = [], None  # whether the kernel that a line is in is that one; None: it is in none
    for number, line in enumerate(lines, 1):
        if "__global__" in line:
            own = f"void {kernel}(" in line
        if mark := re.search(r"// <- (.+)$", line):
            found.append((mark[1], number))
        if line == "}" and own is not None:
            if own:
                return found
            found, own = [], None
    raise ValueError(f"no kernel {kernel} in {file}.cu")


def floats(count: int, skip: int = 0) -> np.ndarray:
    """1, 2, 3, ... in an array that starts `skip` elements into its memory."""
    return np.arange(1 - skip, count + 1, dtype=np.float32)[skip:]


def zeros(count: int, dtype: type = np.float32) -> np.ndarray:
    return np.zeros(count, dtype)


# ---- of sizes of their own ----------------------------------------------------------------------

LAUNCHED: dict[str, tuple[Sizes, Sizes, tuple, tuple[Found, ...]]] = {
    "global_bounds/off_by_one": (2, 64, (floats(1000), zeros(100), 100, 10), ((1, 35, 1),)),
    "global_bounds/before_the_array": (2, 64, (floats(100), zeros(100), 100), ((0, 0, 1),)),
    "global_bounds/missing_guard": (2, 64, (floats(100), zeros(100), 100), ((1, 36, 28),) * 2),
    "global_bounds/flat_index": (
        *((2, 2), (32, 4), (np.ones(300, np.int32), zeros(300, np.int32), 6, 50)),
        (((0, 1), (0, 2), 100),) * 2,
    ),
    "global_bounds/store_past_the_end": (
        *(2, 64, (floats(100), zeros(100), 100)),
        ((0, 50, 50),) * 2,
    ),
    "global_bounds/misaligned": (1, 32, (floats(100, 1), zeros(101)[1:], 100), ((0, 0, 25),) * 2),
    "global_bounds/wild_pointer": (
        *(1, 32, (floats(32), zeros(32), 0x7F00DEADBEE0)),
        ((0, 0, 32), (0, 1, 31)),
    ),
    "global_bounds/bad_index": (
        *(2, 64, (zeros(100, np.int32), floats(100), zeros(100), 100)),
        ((1, 35, 1),),
    ),
    "global_bounds/several": (
        *(1, 32, (floats(32), floats(40), zeros(32), 32)),
        ((0, 31, 1), (0, 1, 1), (0, 0, 32), (0, 5, 1)),
    ),
    "waiting/endless_loop": (2, 64, (zeros(100), 100, 0), ((0, 0, 100),)),
}
# What follows from a bad value is not reported: there is no twin.
ALONE = {
    "global_bounds/bad_pointer": Launch(2, 32, (zeros(64, np.uint64), zeros(64), 64)),
    "global_bounds/unsigned_bound": Launch(2, 32, (np.ones(64, np.uint32), zeros(64), 64)),
}

# ---- of x, y and a number -----------------------------------------------------------------------

SHARED: dict[str, list[Found]] = {
    "shared_races/after_fill": [(0, 0, 128)],
    "shared_races/inside_tree": [(0, 0, 62)],
    "shared_races/before_reuse": [(0, 0, 128)],
    "shared_races/between_reductions": [(0, 0, 2)],
    "shared_races/after_broadcast": [(0, 1, 126)],
    "shared_races/one_place": [(0, 0, 126)],
    "shared_races/two_warps": [(0, 0, 64)],
    "shared_races/neighbour": [(0, 1, 124)],
    "shared_races/within_warp": [(0, 0, 128)],
    "shared_races/warp_for_block": [(0, 0, 128)],
    "shared_races/second_block": [(1, 0, 64)],
    "shared_races/transpose": [(0, 1, 56)],
    "shared_races/bytes": [(0, 0, 128)],
    "shared_races/own_bytes": [(0, 0, 128)],
    "shared_races/one_counter": [(0, 0, 2)],
    "shared_races/vectors": [(0, 0, 128)],
    "shared_races/any_pointer": [(0, 1, 64)],
    "shared_bounds/read_past": [(0, 63, 2)],
    "shared_bounds/read_before": [(0, 0, 2)],
    "shared_bounds/store_past": [(0, 63, 2)],
    "shared_bounds/far_away": [(0, 0, 128)],
    "shared_bounds/too_small": [(0, 32, 64), (0, 0, 64)],
    "shared_bounds/misaligned_load": [(0, 0, 128)],
    "shared_bounds/misaligned_store": [(0, 0, 128)],
    "shared_bounds/partial_fill": [(0, 0, 48)],
    "shared_bounds/no_fill": [(0, 0, 128)],
    "shared_bounds/half_a_vector": [(0, 0, 128)],
    "shared_bounds/any_pointer_past": [(0, 63, 2)],
    "shared_barriers/in_a_branch": [(0, 0, 64)],
    "shared_barriers/in_both_branches": [(0, 0, 64)],
    "shared_barriers/uneven_loops": [(0, 32, None)],
    "shared_barriers/early_return": [(0, 32, 16)],
    "shared_barriers/waits_for_more": [(0, 0, 128)],
    "shared_barriers/waits_elsewhere": [(0, 0, 64), (0, 32, 64)],
    "shared_barriers/waits_for_fewer": [(0, 0, 128)],
    "shared_barriers/endless": [(0, 0, 128)],
}
WARPS: dict[str, list[Found]] = {
    "warp_operations/returned": [(0, 0, 64)],
    "warp_operations/diverged": [(0, 0, 64)],
    "warp_operations/both_sides": [(0, 0, 64), (0, 16, 64)],
    "warp_operations/outside": [(0, 0, 64)],
    "warp_operations/one_lane_outside": [(0, 30, 4)],
    "warp_operations/ballot": [(0, 5, 27)],
    "warp_operations/syncwarp": [(0, 1, 64)],
    "warp_operations/leaving_a_loop": [(0, 1, 192)],
    "warp_operations/own_mask": [(0, 16, 64)],
    "warp_operations/short_warp": [(0, 32, 32)],
    "warp_operations/predicate_only": [(0, 5, 2)],
}
SIZES = {"transpose": (1, (8, 8)), "one_counter": (2, 32), "short_warp": (2, 48)}
NUMBERS = {"early_return": 40, "far_away": 1 << 28, "inside_tree": 0}
DYNAMIC = {"too_small": (128, 256)}  # bytes for the bug, and for its twin

# ---- whose twin stores `result` in y ------------------------------------------------------------

X = np.arange(1, 1025, dtype=np.float32)


def launched(
    result: np.ndarray,
    found: Found,
    more: int | np.ndarray | None = 3,
    grid: int = 2,
    x: np.ndarray = X,
    shared: int = 0,
) -> tuple[Launch, Found]:
    """A launch of 64 threads a block with x, y of zeros and one argument more if there is one; the
    twin stores `result` in y, and zeros follow. With it, what is found in the kernel."""
    y = zeros(1024, x.dtype)
    expected = y.copy()
    expected[: np.size(result)] = np.ravel(result)
    values = (x, y) if more is None else (x, y, more)
    return Launch(grid, 64, values, {1: expected}, shared), found


def turned(rows: int, size: int = 64, step: int = 0) -> np.ndarray:
    """The first rows of x, each from right to left; `step` elements from row to row."""
    starts = np.arange(rows) * (step or size)
    return X[starts[:, None] + np.arange(size)[::-1]]


def reversed_rows(
    *found: int | None, rows: int = 2, size: int = 64, **options
) -> tuple[Launch, Found]:
    return launched(turned(rows, size), found, **options)


def cluster(result: np.ndarray, *found: int | None) -> tuple[Launch, Found]:
    return launched(result, found, None, 4)


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

AT_64_THREADS: dict[str, tuple[Launch, Found]] = {
    "asynchronous/no_wait": reversed_rows(0, 0, 128),
    "asynchronous/last_stage": reversed_rows(0, 0, 128, rows=6),
    "asynchronous/no_barrier_behind_wait": reversed_rows(0, 0, 128),
    "asynchronous/no_commit": reversed_rows(0, 0, 128),
    "asynchronous/refill_too_early": reversed_rows(0, 0, 256, rows=6),
    "asynchronous/refill_before_barrier": reversed_rows(0, 0, 128, rows=6),
    "asynchronous/store_meanwhile": launched(turned(2) * (turned(2) <= 100), (1, 36, 28), 100),
    "asynchronous/copy_past_shared": reversed_rows(0, 16, 2),
    "asynchronous/copy_past_array": launched(X[:100], (1, 36, 28), 100, x=X[:100]),
    "asynchronous/copies_to_one_place": reversed_rows(0, 0, 64, rows=4, size=32),
    "asynchronous/copy_misaligned": launched(
        X[:512].reshape(2, 8, 32).transpose(0, 2, 1), (0, 8, 96)
    ),
    "asynchronous/source_misaligned": reversed_rows(0, 0, 128, size=256),
    "mbarriers/read_before_wait": reversed_rows(0, 0, 128),
    "mbarriers/never_waited": reversed_rows(0, 0, 128),
    "mbarriers/wrong_parity": reversed_rows(0, 0, 128),
    "mbarriers/parity_stays": reversed_rows(0, 0, 128, rows=4, more=2),
    "mbarriers/too_many_bytes": reversed_rows(0, 0, 128),
    "mbarriers/too_few_bytes": launched(turned(2) + X[128:256].reshape(2, 64), (0, 0, 128)),
    "mbarriers/elements_for_bytes": reversed_rows(0, 0, 128),
    "mbarriers/no_bytes_expected": reversed_rows(0, 0, 128),
    "mbarriers/too_few_arrivals": reversed_rows(0, 0, 128),
    "mbarriers/too_many_arrivals": reversed_rows(0, 0, 128),
    "mbarriers/no_barrier_behind_init": reversed_rows(0, 1, 126),
    "mbarriers/all_arrive_behind_init": reversed_rows(0, 1, 126),
    "mbarriers/no_init": reversed_rows(0, 0, 2, rows=6),
    "bulk_copies/bulk_odd_size": reversed_rows(0, 0, 1, rows=1, size=63, more=63, grid=1),
    "bulk_copies/bulk_odd_address": launched(turned(2, step=68), (1, 0, 1)),
    "bulk_copies/bulk_past_array": launched(X[:100], (1, 0, 1), 100, x=X[:100]),
    "bulk_copies/bulk_past_shared": reversed_rows(0, 0, 2, shared=256),
    "bulk_copies/no_proxy_fence": reversed_rows(0, 0, 2),
    "bulk_copies/no_barrier_before_bulk_store": reversed_rows(0, 0, 2),
    "bulk_copies/buffer_still_read": reversed_rows(0, 0, 256, rows=6),
    "bulk_copies/other_thread_waits": reversed_rows(0, 0, 128),
    "bulk_copies/bulk_store_at_the_end": reversed_rows(0, 0, 2),
    "bulk_copies/bulk_store_no_commit": reversed_rows(0, 0, 2),
    "rings/ring_without_barrier": reversed_rows(0, 0, 2, rows=6),
    "rings/ring_without_empty": reversed_rows(0, 0, 2, rows=6, size=32),
    "rings/ring_starts_full": reversed_rows(0, 32, 64, rows=6, size=32),
    "rings/stage_released_early": reversed_rows(0, 0, 2, rows=6, size=32),
    "waiting/no_named_arrive": reversed_rows(0, 32, 64, size=32),
    "waiting/arrivals_of_too_many": reversed_rows(0, 32, 64, size=32),
    "waiting/count_in_a_branch": launched(np.repeat([61, 64], 64), (0, 0, 64)),
    "waiting/flag_never_set": launched(np.r_[X[:64], 2 * X[:64]], (1, 0, 1), zeros(1, np.int32)),
    "waiting/lock_never_released": launched(X[:4].sum(), (1, 0, 3), zeros(1, np.int32), 4),
    "waiting/grid_barrier_after_return": launched(
        np.r_[X[:192], X[191::-1]], (0, 0, 3), zeros(1, np.int32), 4
    ),
    "waiting/trap_on_bad_value": launched(2 * X[:128], (1, 36, 28)),
    "waiting/failed_assertion": launched(2 * X[:128], (1, 36, 28)),
    "clusters/no_sync_before_read": cluster(SWAPPED, 0, 0, 256),
    "clusters/no_sync_at_the_end": cluster(SWAPPED, 0, 0, 256),
    "clusters/early_return": cluster(EVEN * (FOUR + SWAPPED), 0, 0, 128),
    "clusters/rank_outside": cluster(np.roll(turned(4), -1, axis=0), 3, 0, 64),
    "clusters/past_the_end": cluster(SWAPPED, 0, 0, 4),
    "clusters/wait_without_arrive": cluster(SWAPPED, 0, 0, 256),
    "clusters/one_block_arrives": cluster(FOUR + EVEN * SWAPPED, 0, 0, 256),
    "clusters/barrier_and_flag": cluster(FOUR, 1, 0, 128),
    "clusters/one_remote_word": cluster(FOUR[:, 63], 0, 0, 3),
    "clusters/sum_without_atomic": cluster(FOUR[:, 63].sum(), 1, 0, 7),
    "clusters/next_round_too_early": cluster(SWAPPED, 0, 0, 512),
    "clusters/st_async_not_waited": cluster(SWAPPED, 0, 0, 256),
    "clusters/init_not_announced": cluster(FOUR, 1, 0, 256),
    "clusters/arrivals_missing": cluster(FOUR, 0, 0, 256),
    # How many of the stores past the end are seen depends on what else is in local memory.
    "local_memory/too_many_digits": launched(np.array(binary_digits()), (1, 6, None), 20, x=DIGITS),
    "local_memory/mark_past": launched(
        (MARKS.reshape(128, 3, 1) == np.arange(8)).any(axis=1), (0, 2, 42), x=MARKS
    ),
    "local_memory/one_before": launched(
        np.maximum(DIGITS % 9 - 1, 0) * np.arange(128),
        (0, 8, int((DIGITS % 9 == 0).sum())),
        x=DIGITS % 9,
    ),
    "local_memory/stack_overflow": launched(
        np.array(first_four_odd()),
        (0, int(FULL[:, FULL.any(axis=0).argmax()].argmax()), int((FULL & PUSHED % 2).sum())),
        7,
        x=PUSHED.reshape(-1),
    ),
}


def _launches() -> Iterator[Planted]:
    for name, launch in ALONE.items():
        yield Planted(*name.split("/"), launch, ((0, 0, 64),))
    twins = {name: (Launch(*how), found) for name, (*how, found) in LAUNCHED.items()}
    for name, found in {**SHARED, **WARPS}.items():
        file, kernel = name.split("/")
        size = 128 if file == "warp_operations" else 256
        values = np.arange(1, size + 1, dtype=np.float32), zeros(size), NUMBERS.get(kernel, 5)
        twins[name] = Launch(*SIZES.get(kernel, (2, 64)), values), tuple(found)
    twins |= {name: (launch, (found,)) for name, (launch, found) in AT_64_THREADS.items()}
    for name, (launch, found) in twins.items():
        file, kernel = name.split("/")
        small, large = DYNAMIC.get(kernel, (launch.shared_mem,) * 2)
        bug = replace(launch, expected={}, shared_mem=small)
        yield Planted(file, kernel, bug, found)
        yield Planted(file, kernel, replace(launch, shared_mem=large), bug=False)


PLANTED = {planted.name: planted for planted in _launches()}
