"""The loops of ragged_loops.cu at three lengths each: lanes of a warp leave them one after another.

A length at which all lanes leave at once says nothing; at each of these the number of a lane's
rounds differs within a warp, by one or by many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tests.simt.launches import Launch

from .cases import Case, Kernel, blocks_of, padded, values

FILE = "ragged_loops.cu"
ROWS = 3
COLUMNS = ((125,), (500,), (1003,))


def rows_of(cols: int, dtype=np.float32) -> np.ndarray:
    return values(ROWS * cols, dtype).reshape(ROWS, cols)


def by_lane(x: np.ndarray, lanes: int = 32) -> np.ndarray:
    """Of each row a table: what a lane gets, round after round; zeros behind the end."""
    return np.stack([padded(row, lanes) for row in x])


def per_row(
    result: Callable[[np.ndarray], np.ndarray], dtype=np.float32, block: int = 32
) -> Callable[..., Launch]:
    """A block for a row: `result` of the rounds of each lane goes to y."""

    def launch(cols: int) -> Launch:
        x = rows_of(cols, dtype)
        y = result(by_lane(x, block)).astype(np.int32 if dtype == np.uint8 else dtype)
        return Launch(ROWS, block, [x, np.zeros_like(y), cols], {1: y})

    return launch


def total(rounds: np.ndarray) -> np.ndarray:
    return rounds.sum(axis=1)


def most(rounds: np.ndarray) -> np.ndarray:
    return rounds.max(axis=1)


def warp_for_row(cols: int) -> Launch:
    x = rows_of(cols)
    y = total(by_lane(x))
    return Launch(2, 64, [x, np.zeros_like(y), ROWS, cols], {1: y})


def doubled(rounds: np.ndarray) -> np.ndarray:
    """The sums after the twelve steps of long_body."""
    for k in range(1, 13):
        rounds = np.maximum(rounds, 2 * rounds - 4 * k)
    return total(rounds)


def dot(cols: int) -> Launch:
    x, z = rows_of(cols), values(cols)
    y = total(by_lane(x * z))
    return Launch(2, 64, [x, z, np.zeros_like(y), ROWS, cols], {2: y})


def scale(cols: int) -> Launch:
    x = rows_of(cols)
    return Launch(ROWS, 64, [x, np.zeros_like(x), cols], {1: 2 * x})


def row_max(cols: int) -> Launch:
    x = rows_of(cols)
    y = most(by_lane(x))
    return Launch(ROWS, 32, [x, np.zeros_like(y), np.int64(cols)], {1: y})


def packs(cols: int) -> Launch:
    x = values(ROWS * cols, lanes=4).reshape(ROWS, cols, 4)
    rounds = np.zeros((ROWS, blocks_of(cols, 32) * 32, 4), np.float32)
    rounds[:, :cols] = x
    y = rounds.reshape(ROWS, -1, 32, 4).sum(axis=1)
    return Launch(ROWS, 32, [x, np.zeros_like(y), cols], {1: y})


def sparse(indexed: bool) -> Callable[..., Launch]:
    def launch(n: int, longest: int) -> Launch:
        counts = np.random.default_rng(n).integers(0, longest + 1, n)
        starts = np.r_[0, counts.cumsum()].astype(np.int32)
        x = values(int(starts[-1]))
        places = np.random.default_rng(0).permutation(len(x)).astype(np.int32)
        taken = x[places] if indexed else x
        y = np.array(
            [taken[a:b].sum() for a, b in zip(starts, starts[1:], strict=False)], np.float32
        )
        arrays = [starts, places, x] if indexed else [starts, x]
        return Launch(blocks_of(n, 64), 64, [*arrays, np.zeros_like(y), n], {len(arrays): y})

    return launch


def count_down(n: int, longest: int) -> Launch:
    counts = np.random.default_rng(n).integers(0, longest + 1, n).astype(np.int32)
    x = values((longest + 1) * n)
    rows = x.reshape(-1, n)
    y = np.array([rows[1 : k + 1, i].sum() for i, k in enumerate(counts)], np.float32)
    return Launch(blocks_of(n, 64), 64, [x, counts, np.zeros_like(y), n], {2: y})


def triangle(n: int) -> Launch:
    x = values(n * n)
    y = np.triu(x.reshape(n, n)).sum(axis=0)
    return Launch(blocks_of(n, 64), 64, [x, np.zeros_like(y), n], {1: y})


def until_zero(cols: int) -> Launch:
    x = values(64 * cols).reshape(64, cols) + 1
    x[np.arange(64), np.random.default_rng(cols).integers(0, cols, 64)] = 0
    y = (x * (np.minimum.accumulate(x, axis=1) > 0)).sum(axis=1)
    return Launch(2, 32, [x, np.zeros_like(y), cols], {1: y})


def find_first(cols: int) -> Launch:
    x = values(64 * cols).reshape(64, cols)
    z = values(32)
    same = x.reshape(2, 32, cols) == z[:, None]
    y = np.where(same.any(axis=2), same.argmax(axis=2), cols).astype(np.float32)
    return Launch(2, 32, [x, z, np.zeros_like(y), cols], {2: y})


def some_of_them(cols: int) -> Launch:
    x, z = rows_of(cols), values(cols)
    y = total(by_lane(np.where(x > 50, z, np.float32(0))))
    return Launch(ROWS, 32, [x, z, np.zeros_like(y), cols], {2: y})


def through_shared(cols: int) -> Launch:
    x = rows_of(cols)
    y = total(by_lane(x))[:, ::-1].copy()
    return Launch(ROWS, 32, [x, np.zeros_like(y), cols], {1: y}, 4 * cols)


def nested(rows: int, cols: int) -> Launch:
    x = values(rows * cols)
    part = np.zeros((blocks_of(rows, 4) * 4, blocks_of(cols, 8) * 8), np.float32)
    part[:rows, :cols] = x.reshape(rows, cols)
    y = part.reshape(-1, 4, part.shape[1] // 8, 8).sum(axis=(0, 2)).reshape(-1)
    return Launch(1, 32, [x, np.zeros_like(y), rows, cols], {1: y})


def fill(cols: int) -> Launch:
    y = np.tile(np.arange(cols, dtype=np.float32), (ROWS, 1))
    return Launch(ROWS, 32, [np.zeros_like(y), cols], {0: y})


def _kernels() -> Iterator[tuple[str, Callable[..., Launch], tuple[tuple[int, ...], ...]]]:
    yield "row_sum", warp_for_row, COLUMNS
    yield "row_dot", dot, COLUMNS
    yield "block_sum", per_row(total, block=96), COLUMNS
    yield "row_scale", scale, COLUMNS
    yield "row_scale_apart", scale, COLUMNS
    yield "row_max", row_max, COLUMNS
    yield "row_packs", packs, COLUMNS
    counted = ((100, 9), (128, 40), (77, 100))
    yield "sparse_rows", sparse(False), counted
    yield "sparse_times", sparse(True), counted
    yield "count_down", count_down, counted
    yield "triangle", triangle, ((20,), (64,), (100,))
    for name in ("as_written", "by_two", "by_eight"):
        yield name, per_row(total), COLUMNS
    yield "until_zero", until_zero, ((9,), (50,), (100,))
    yield "find_first", find_first, ((9,), (50,), (200,))
    yield "some_of_them", some_of_them, COLUMNS
    yield "long_body", per_row(doubled), COLUMNS
    yield "online", per_row(most), COLUMNS
    yield "two_passes", per_row(most), COLUMNS
    yield "through_shared", through_shared, COLUMNS
    yield "nested", nested, ((7, 29), (30, 125), (9, 257))
    yield "fill", fill, COLUMNS
    yield "row_bytes", per_row(total, np.uint8), COLUMNS


RAGGED = tuple(Kernel(name, FILE, launch, shapes) for name, launch, shapes in _kernels())


def ragged() -> list[Case]:
    return [Case(kernel, shape) for kernel in RAGGED for shape in kernel.shapes]
