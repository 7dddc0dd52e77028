"""Every kernel with a planted bug: how it and its twin without the bug are launched, and what the
twin computes.

The kernels are in tests/simt/kernels, compiled with -DPLANTED for the bug and without it for the
twin: see twins.cuh. A line with a bug ends in a comment such as `// <- out-of-bounds load`, which
says the kind and the line of a finding; the golden data has the block, thread and count of each.
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
            if not np.array_equal(arguments[place], np.ravel(values))
        ]


@dataclass(frozen=True)
class Planted:
    """A kernel with a bug, or its twin without one, and its launch."""

    file: str
    kernel: str
    launch: Launch
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


def kernels(file: str) -> list[str]:
    text = (FOLDER / f"{file}.cu").read_text(encoding="utf-8")
    return re.findall(r"__global__.* void (\w+)\(", text)


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

LAUNCHED = {
    "global_bounds/off_by_one": Launch(2, 64, (floats(1000), zeros(100), 100, 10)),
    "global_bounds/before_the_array": Launch(2, 64, (floats(100), zeros(100), 100)),
    "global_bounds/missing_guard": Launch(2, 64, (floats(100), zeros(100), 100)),
    "global_bounds/flat_index": Launch(
        (2, 2), (32, 4), (np.ones(300, np.int32), zeros(300, np.int32), 6, 50)
    ),
    "global_bounds/store_past_the_end": Launch(2, 64, (floats(100), zeros(100), 100)),
    "global_bounds/misaligned": Launch(1, 32, (floats(100, 1), zeros(101)[1:], 100)),
    "global_bounds/wild_pointer": Launch(1, 32, (floats(32), zeros(32), 0x7F00DEADBEE0)),
    "global_bounds/bad_index": Launch(2, 64, (zeros(100, np.int32), floats(100), zeros(100), 100)),
    "global_bounds/several": Launch(1, 32, (floats(32), floats(40), zeros(32), 32)),
    "waiting/endless_loop": Launch(2, 64, (zeros(100), 100, 0)),
}
# What follows from a bad value is not reported: there is no twin.
ALONE = {
    "global_bounds/bad_pointer": Launch(2, 32, (zeros(64, np.uint64), zeros(64), 64)),
    "global_bounds/unsigned_bound": Launch(2, 32, (np.ones(64, np.uint32), zeros(64), 64)),
}

# ---- of x, y and a number -----------------------------------------------------------------------

# Each kernel of these files takes x, y of so many elements and a number.
ELEMENTS = {"shared_races": 256, "shared_bounds": 256, "shared_barriers": 256}
ELEMENTS |= {"warp_operations": 128}
SIZES = {"transpose": (1, (8, 8)), "one_counter": (2, 32), "short_warp": (2, 48)}
NUMBERS = {"early_return": 40, "far_away": 1 << 28, "inside_tree": 0}
DYNAMIC = {"too_small": (128, 256)}  # bytes for the bug, and for its twin

# ---- whose twin stores `result` in y ------------------------------------------------------------

X = np.arange(1, 1025, dtype=np.float32)


def launched(
    result: np.ndarray,
    more: int | np.ndarray | None = 3,
    grid: int = 2,
    x: np.ndarray = X,
    shared: int = 0,
) -> Launch:
    """A launch of 64 threads a block with x, y of zeros and one argument more if there is one; the
    twin stores `result` in y, and zeros follow."""
    y = zeros(1024, x.dtype)
    expected = y.copy()
    expected[: np.size(result)] = np.ravel(result)
    values = (x, y) if more is None else (x, y, more)
    return Launch(grid, 64, values, {1: expected}, shared)


def turned(rows: int, size: int = 64, step: int = 0) -> np.ndarray:
    """The first rows of x, each from right to left; `step` elements from row to row."""
    starts = np.arange(rows) * (step or size)
    return X[starts[:, None] + np.arange(size)[::-1]]


def reversed_rows(rows: int = 2, size: int = 64, **options) -> Launch:
    return launched(turned(rows, size), **options)


def cluster(result: np.ndarray) -> Launch:
    return launched(result, None, 4)


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


# How the kernels of a file are launched, and those that are launched in another way.
USUAL = {
    **dict.fromkeys(("asynchronous", "mbarriers", "bulk_copies"), reversed_rows()),
    "rings": reversed_rows(rows=6, size=32),
    "waiting": None,
    "clusters": cluster(SWAPPED),
    "local_memory": None,
}
AT_64_THREADS = {
    "asynchronous/last_stage": reversed_rows(rows=6),
    "asynchronous/refill_too_early": reversed_rows(rows=6),
    "asynchronous/refill_before_barrier": reversed_rows(rows=6),
    "asynchronous/store_meanwhile": launched(turned(2) * (turned(2) <= 100), 100),
    "asynchronous/copy_past_array": launched(X[:100], 100, x=X[:100]),
    "asynchronous/copies_to_one_place": reversed_rows(rows=4, size=32),
    "asynchronous/copy_misaligned": launched(X[:512].reshape(2, 8, 32).transpose(0, 2, 1)),
    "asynchronous/source_misaligned": reversed_rows(size=256),
    "mbarriers/parity_stays": reversed_rows(rows=4, more=2),
    "mbarriers/too_few_bytes": launched(turned(2) + X[128:256].reshape(2, 64)),
    "mbarriers/no_init": reversed_rows(rows=6),
    "bulk_copies/bulk_odd_size": reversed_rows(rows=1, size=63, more=63, grid=1),
    "bulk_copies/bulk_odd_address": launched(turned(2, step=68)),
    "bulk_copies/bulk_past_array": launched(X[:100], 100, x=X[:100]),
    "bulk_copies/bulk_past_shared": reversed_rows(shared=256),
    "bulk_copies/buffer_still_read": reversed_rows(rows=6),
    "rings/ring_without_barrier": reversed_rows(rows=6),
    "waiting/no_named_arrive": reversed_rows(size=32),
    "waiting/arrivals_of_too_many": reversed_rows(size=32),
    "waiting/count_in_a_branch": launched(np.repeat([61, 64], 64)),
    "waiting/flag_never_set": launched(np.r_[X[:64], 2 * X[:64]], zeros(1, np.int32)),
    "waiting/lock_never_released": launched(X[:4].sum(), zeros(1, np.int32), 4),
    "waiting/grid_barrier_after_return": launched(
        np.r_[X[:192], X[191::-1]], zeros(1, np.int32), 4
    ),
    "waiting/trap_on_bad_value": launched(2 * X[:128]),
    "waiting/failed_assertion": launched(2 * X[:128]),
    "clusters/early_return": cluster(EVEN * (FOUR + SWAPPED)),
    "clusters/rank_outside": cluster(np.roll(turned(4), -1, axis=0)),
    "clusters/one_block_arrives": cluster(FOUR + EVEN * SWAPPED),
    "clusters/barrier_and_flag": cluster(FOUR),
    "clusters/one_remote_word": cluster(FOUR[:, 63]),
    "clusters/sum_without_atomic": cluster(FOUR[:, 63].sum()),
    "clusters/init_not_announced": cluster(FOUR),
    "clusters/arrivals_missing": cluster(FOUR),
    "local_memory/too_many_digits": launched(np.array(binary_digits()), 20, x=DIGITS),
    "local_memory/mark_past": launched(
        (MARKS.reshape(128, 3, 1) == np.arange(8)).any(axis=1), x=MARKS
    ),
    "local_memory/one_before": launched(
        np.maximum(DIGITS % 9 - 1, 0) * np.arange(128),
        x=DIGITS % 9,
    ),
    "local_memory/stack_overflow": launched(
        np.array(first_four_odd()),
        7,
        x=PUSHED.reshape(-1),
    ),
}


def _launches() -> Iterator[Planted]:
    for name, launch in ALONE.items():
        yield Planted(*name.split("/"), launch)
    twins = dict(LAUNCHED)
    for file, count in ELEMENTS.items():
        for kernel in kernels(file):
            values = floats(count), zeros(count), NUMBERS.get(kernel, 5)
            twins[f"{file}/{kernel}"] = Launch(*SIZES.get(kernel, (2, 64)), values)
    for file, usual in USUAL.items():
        for name in (f"{file}/{kernel}" for kernel in kernels(file)):
            twins.setdefault(name, AT_64_THREADS.get(name, usual))
    for name, launch in twins.items():
        file, kernel = name.split("/")
        small, large = DYNAMIC.get(kernel, (launch.shared_mem,) * 2)
        yield Planted(file, kernel, replace(launch, expected={}, shared_mem=small))
        yield Planted(file, kernel, replace(launch, shared_mem=large), bug=False)


PLANTED = {planted.name: planted for planted in _launches()}
