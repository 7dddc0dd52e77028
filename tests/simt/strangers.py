"""Kernels of other kinds, as textbooks write them, run on the SIMT machine and are right.

The kernels are in tests/strangers. Here is how each is launched at awkward sizes into poisoned
outputs, what numpy says in fp64, and which line is spoilt with which symptom.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from helpers.simt import KernelText, Trace, simulate
from tests.simt.launching import on_gpu

FOLDER = Path(__file__).parents[1] / "strangers"
U = 2.0**-24  # half an ulp of fp32 at 1
EMPTY = -123456789  # poison of integer outputs

Shape = int | tuple[int, ...]
Comparison = tuple[np.ndarray, np.ndarray, np.ndarray | float]  # result, reference, tolerance


class Simt:
    """Launches kernels of a file on the SIMT machine, with `old` replaced by `new` in its text."""

    def __init__(self, old: str = "", new: str = "", limit: int = 200_000):
        self.old, self.new, self.limit = old, new, limit
        self.traces: list[Trace] = []

    def __call__(
        self,
        file: str,
        name: str,
        grid: Shape,
        block: Shape,
        args: Sequence,
        shared: int = 0,
        cooperative: bool = False,
    ) -> None:
        code = f'#line 1 "tests/strangers/{file}.cu"\n' + (FOLDER / f"{file}.cu").read_text()
        if self.old:
            assert code.count(self.old) == 1
            code = code.replace(self.old, self.new)
        source = KernelText(code, name, (), cooperative)
        trace = simulate(source, grid, block, args, shared, instruction_limit=self.limit)
        self.traces.append(trace)

    @property
    def findings(self) -> list:
        return [finding for trace in self.traces for finding in trace.findings]


class Gpu:
    """Launches kernels of a file on a GPU."""

    findings = ()

    def __call__(self, file, name, grid, block, args, shared=0, cooperative=False) -> None:
        text = (FOLDER / f"{file}.cu").read_text()
        on_gpu(text, grid, block, *args, name=name, shared=shared, cooperative=cooperative)


Launch = Simt | Gpu


def numbers(shape: Shape, seed: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def poisoned(shape: Shape, dtype=np.float32) -> np.ndarray:
    return np.full(shape, np.nan if np.dtype(dtype).kind == "f" else EMPTY, dtype)


def blocks_for(count: int, block: int) -> int:
    return -(-count // block)


# ---- what each kernel should compute: a launch, and its results beside numpy's ------------------


def transpose(launch: Launch, form: str, height: int, width: int) -> list[Comparison]:
    x, y = numbers((height, width), 1), poisoned((width, height))
    grid = blocks_for(width, 32), blocks_for(height, 32)
    launch("transpose", f"transpose_{form}", grid, (32, 8), (y, x, height, width))
    return [(y, x.T, 0)]


def histogram(launch: Launch, kind: str, n: int, grid: int) -> list[Comparison]:
    dtype = {"int": np.int32, "unsigned char": np.uint8}[kind]
    low, high = (0, 256) if dtype is np.uint8 else (-40, 300)
    chance = np.random.default_rng(n)
    data = chance.integers(low, high, n).astype(dtype)
    data[: n // 2] = 7 + data[: n // 2] % 4  # crowded bins
    bins = np.zeros(256, np.uint32)
    launch("histogram", f"histogram<{kind}>", grid, 96, (data, bins, n))
    inside = data[(data >= 0) & (data <= 255)]
    return [(bins, np.bincount(inside, minlength=256), 0)]


def scan_blelloch(launch: Launch, n: int, block: int) -> list[Comparison]:
    size = 2 * block
    x, y = np.random.default_rng(n).integers(-99, 99, n).astype(np.int32), poisoned(n, np.int32)
    launch("scan", "scan_blelloch", blocks_for(n, size), block, (y, x, n), 4 * size)
    parts = [x[start : start + size] for start in range(0, n, size)]
    return [(y, np.concatenate([part.cumsum() - part for part in parts]), 0)]


def scan_single_pass(launch: Launch, n: int, block: int) -> list[Comparison]:
    tiles = blocks_for(n, block)
    x, y = np.random.default_rng(n).integers(-99, 99, n).astype(np.int32), poisoned(n, np.int32)
    status, ticket = np.zeros((tiles, 3), np.int32), np.zeros(1, np.uint32)
    launch("scan", "scan_single_pass", tiles, block, (y, x, n, status, ticket))
    return [(y, x.cumsum(), 0), (ticket, np.array([tiles]), 0)]


def matmul(launch: Launch, kind: str, tile: int, m: int, n: int, k: int) -> list[Comparison]:
    dtype = {"float": np.float32, "double": np.float64}[kind]
    a, b, c = numbers((m, k), 1, dtype), numbers((k, n), 2, dtype), poisoned((m, n), dtype)
    grid = blocks_for(n, tile), blocks_for(m, tile)
    launch("matmul", f"matmul<{kind}, {tile}>", grid, (tile, tile), (a, b, c, m, n, k))
    a, b = a.astype(np.float64), b.astype(np.float64)
    # k roundings of the kernel, and as many of the reference where that is fp64 too
    return [(c, a @ b, 2 * k * np.finfo(dtype).eps / 2 * (abs(a) @ abs(b)))]


def sum_blocks(launch: Launch, n: int, block: int) -> list[Comparison]:
    grid = blocks_for(n, block)
    x, sums = numbers(n, n), poisoned(grid)
    launch("reduce_groups", "sum_blocks", grid, block, (x, sums, n))
    parts = [x[start : start + block].astype(np.float64) for start in range(0, n, block)]
    error = 10 * U * np.array([abs(part).sum() for part in parts])  # at most ten additions deep
    return [(sums, np.array([part.sum() for part in parts]), error)]


def max_blocks(launch: Launch, n: int, block: int) -> list[Comparison]:
    grid = blocks_for(n, block)
    x, largest = np.random.default_rng(n).integers(-(2**31), 0, n), poisoned(grid, np.int32)
    launch("reduce_groups", "max_blocks", grid, block, (x.astype(np.int32), largest, n))
    return [(largest, np.maximum.reduceat(x, range(0, n, block)), 0)]


def sum_grid(launch: Launch, n: int, grid: int, block: int) -> list[Comparison]:
    x, partial, total = numbers(n, n), poisoned(grid), poisoned(1)
    args = x, partial, total, n
    launch("reduce_groups", "sum_grid", grid, block, args, cooperative=True)
    exact = x.astype(np.float64)
    depth = blocks_for(n, grid * block) + 10 + blocks_for(grid, 32) + 5
    return [(total, exact.sum(keepdims=True), depth * U * abs(exact).sum())]


def layernorm(launch: Launch, rows: int, cols: int, block: int) -> list[Comparison]:
    x, y = numbers((rows, cols), 1) + np.float32(10), poisoned((rows, cols))
    gamma, beta, epsilon = numbers(cols, 2), numbers(cols, 3), np.float32(1e-5)
    launch("layernorm", "layernorm", rows, block, (x, gamma, beta, y, cols, epsilon))
    exact = x.astype(np.float64)
    deviation = np.sqrt(exact.var(axis=1, keepdims=True) + epsilon)
    scaled = (exact - exact.mean(axis=1, keepdims=True)) / deviation * gamma
    # The mean carries some roundings of values near 10, the deviation some of its own.
    depth = 4 * blocks_for(cols, 4 * block) + 20
    error = depth * U * (10 / deviation * abs(gamma) + abs(scaled)) + U * abs(beta)
    return [(y, scaled + beta, error)]


def sort_rows(launch: Launch, rows: int, cols: int, block: int) -> list[Comparison]:
    x = np.random.default_rng(cols).integers(-30, 30, (rows, cols)).astype(np.float32) / 4
    x[:, cols // 2] = np.inf
    keys, places = x.copy(), poisoned((rows, cols), np.int32)
    padded = 1 << (cols - 1).bit_length()
    launch("bitonic_sort", "sort_rows", rows, block, (keys, places, cols, padded), 8 * padded)
    order = np.argsort(x, axis=1, kind="stable")
    return [(keys, np.sort(x, axis=1), 0), (places, order, 0)]


def stencil7(launch: Launch, nx: int, ny: int, nz: int) -> list[Comparison]:
    x, y = numbers((nz, ny, nx), 1), poisoned((nz, ny, nx))
    extent = np.array((nx, ny, nz), np.dtype([(axis, np.int32) for axis in "xyz"]))
    grid = blocks_for(nx, 16), blocks_for(ny, 8)
    launch("stencil", "stencil7", grid, (16, 8), (x, y, extent))

    def apply(values: np.ndarray) -> np.ndarray:
        result, middle = values.copy(), slice(1, -1)
        result[middle, middle, middle] *= 0.4
        for axis, weight in ((2, 0.125), (1, 0.075), (0, 0.1)):
            for neighbour in (slice(0, -2), slice(2, None)):
                index = [middle] * 3
                index[axis] = neighbour
                result[middle, middle, middle] += weight * values[tuple(index)]
        return result

    exact = x.astype(np.float64)
    # five roundings of sums and one of each coefficient; the surface is only copied
    error = 7 * U * apply(abs(exact))
    for axis in range(3):
        for end in (0, -1):
            np.moveaxis(error, axis, 0)[end] = 0
    return [(y, apply(exact), error)]


def dot_half(launch: Launch, n: int, grid: int, block: int) -> list[Comparison]:
    a, b = numbers(n, 1, np.float16), numbers(n, 2, np.float16)
    result = np.zeros(1, np.float32)
    launch("dot_half", "dot_half", grid, block, (a, b, result, n))
    products = a.astype(np.float64) * b  # exact in fp32 too
    depth = 2 * blocks_for(n // 2, grid * block) + 1 + 10 + grid
    return [(result, products.sum(keepdims=True), depth * U * abs(products).sum())]


def wrong(comparisons: list[Comparison]) -> list[str]:
    """One line for each result that differs from its reference by more than its tolerance."""
    lines = []
    for number, (result, reference, tolerance) in enumerate(comparisons):
        assert result.shape == reference.shape
        with np.errstate(invalid="ignore"):  # equal infinities have no difference
            error = abs(result.astype(np.float64) - reference)
        same = (result == reference) | (error <= tolerance)  # never so for NaN
        if not same.all():
            place = np.unravel_index(same.argmin(), same.shape)
            lines.append(f"result {number} at {place}: {result[place]}, not {reference[place]}")
    return lines


# ---- the kernels as they are --------------------------------------------------------------------


RUNS = [
    (transpose, "naive", 45, 70),
    (transpose, "tiled", 45, 70),
    (transpose, "padded", 45, 70),
    (histogram, "int", 5001, 3),
    (histogram, "unsigned char", 4097, 5),
    (scan_blelloch, 1000, 64),
    (scan_single_pass, 3001, 96),
    (matmul, "float", 16, 33, 17, 50),
    (matmul, "double", 8, 13, 30, 21),
    (sum_blocks, 1000, 256),
    (max_blocks, 1001, 128),
    (sum_grid, 5003, 3, 128),
    (sum_grid, 100, 40, 64),
    (layernorm, 3, 1000, 128),
    (layernorm, 2, 77, 96),
    (sort_rows, 3, 300, 128),
    (stencil7, 37, 19, 5),
    (dot_half, 5001, 3, 96),
]


def name_of(case: tuple) -> str:
    return "-".join(str(getattr(part, "__name__", part)) for part in case)


# ---- the kernels with one line spoilt -----------------------------------------------------------


RACE, RACING = "race on shared memory", "race on global memory"
PAST, BEYOND = "out-of-bounds load", "out-of-bounds store"
UNWRITTEN = "read of unwritten shared memory"
BARRIER = "__syncthreads();"

SPOILT = [
    ((transpose, "naive", 45, 70), "    if (x >= width) return;", "", {PAST, BEYOND}),
    ((transpose, "tiled", 45, 70), BARRIER, "", {RACE}),
    (
        (transpose, "padded", 45, 70),
        "x < height && y + j < width",
        "x < height",
        {UNWRITTEN, BEYOND},
    ),
    ((histogram, "int", 5001, 3), f"{BARRIER}  // all bins are empty", "", {RACE}),
    ((histogram, "int", 5001, 3), f"{BARRIER}  // all values are counted", "", {RACE}),
    ((histogram, "int", 5001, 3), "atomicAdd(&bins[b], local[b])", "bins[b] += local[b]", {RACING}),
    ((histogram, "unsigned char", 4097, 5), "i < n", "i <= n", {PAST}),
    ((scan_blelloch, 1000, 64), f"{BARRIER}  // the smaller", "// the smaller", {RACE}),
    ((scan_blelloch, 1000, 64), f"{BARRIER}  // the larger", "// the larger", {RACE}),
    ((scan_single_pass, 3001, 96), f"{BARRIER}  // before_tile is known", "", {RACE, UNWRITTEN}),
    ((scan_single_pass, 3001, 96), "status[tile].state = TILE_PREFIX;", "", {"hang"}),
    ((matmul, "float", 16, 33, 17, 50), f"{BARRIER}  // nobody", "// nobody", {RACE}),
    ((matmul, "double", 8, 13, 30, 21), "row < m && col < n", "row < m", {BEYOND, RACING}),
    ((sum_blocks, 1000, 256), "block.sync();", "", {RACE}),
    ((layernorm, 3, 1000, 128), f"{BARRIER}  // each", "// each", {RACE}),
    ((layernorm, 2, 77, 96), "cols % 4 == 0", "true", {"misaligned load", "misaligned store"}),
    ((sort_rows, 3, 300, 128), f"{BARRIER}  // one stage", "// one stage", {RACE}),
    ((stencil7, 37, 19, 5), f"{BARRIER}  // the plane and", "// the plane and", {RACE}),
    ((stencil7, 37, 19, 5), f"{BARRIER}  // the plane may", "// the plane may", {RACE}),
    ((stencil7, 37, 19, 5), "plane[ty][0]", "plane[ty][1]", {UNWRITTEN}),
    ((dot_half, 5001, 3, 96), BARRIER, "", {RACE}),
    ((dot_half, 5001, 3, 96), "i < n / 2", "i <= n / 2", {PAST}),
]
