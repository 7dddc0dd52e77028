"""The launches that are counted: each kernel at three shapes, with the results that it must give.

A kernel's counts are worth comparing only if it did its work, so every case says what must be in
its arrays afterwards. `COMPARED` must count on the SIMT machine as on the hardware, `REPORTED` is
shown beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from helpers.simt import KernelText, Trace, simulate
from tests.simt.launches import Launch

FOLDER = Path(__file__).parent
DATA = FOLDER.parent / "data"
FILES = ("global_memory.cu", "shared_memory.cu", "reported.cu")


@dataclass(frozen=True)
class Kernel:
    """A kernel, how it is launched at a shape, and the three shapes."""

    name: str
    file: str
    launch: Callable[..., Launch]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Case:
    """One kernel at one shape. The shape holds the arguments of the kernel's function below."""

    kernel: Kernel
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.kernel.name}-{'x'.join(map(str, self.shape))}"

    def launch(self) -> Launch:
        return self.kernel.launch(*self.shape)

    def run(self) -> tuple[Trace, list[int]]:
        """(the machine's trace, the arguments with wrong results)"""
        launch = self.launch()
        arguments = launch.arguments()
        kernel = KernelText(source(self.kernel.file), self.kernel.name)
        trace = simulate(kernel, launch.grid, launch.block, arguments, launch.shared_mem)
        return trace, launch.wrong(arguments)


def source(file: str) -> str:
    return (FOLDER / file).read_text(encoding="utf-8")


def compared() -> list[Case]:
    return [Case(kernel, shape) for kernel in COMPARED for shape in kernel.shapes]


def reported() -> list[Case]:
    return [Case(kernel, shape) for kernel in REPORTED for shape in kernel.shapes]


def patterns() -> list[Case]:
    """One launch for each measured pattern of shared memory, in the order of its file."""
    return [
        Case(PATTERNS[case["type"]], (number,)) for number, case in enumerate(measured_patterns())
    ]


@cache
def measured_patterns() -> list[dict]:
    return json.loads((DATA / "shared_wavefronts_h200.json").read_text())["cases"]


# ---- data ---------------------------------------------------------------------------------------


def values(count: int, dtype=np.float32, lanes: int = 1) -> np.ndarray:
    """Small whole numbers, whose sums are exact in every type."""
    chance = np.random.default_rng(count)
    return chance.integers(0, 100, (count, lanes)).astype(dtype).reshape(-1)


def blocks_of(count: int, block: int) -> int:
    return -(-count // block)


def padded(x: np.ndarray, block: int) -> np.ndarray:
    """x as a row for each block, zeros in the places past its end."""
    rows = np.zeros((blocks_of(len(x), block), block), x.dtype)
    rows.reshape(-1)[: len(x)] = x
    return rows


# ---- global memory ------------------------------------------------------------------------------


def copies(dtype, lanes: int = 1) -> Callable[..., Launch]:
    def launch(n: int, block: int) -> Launch:
        x = values(n, dtype, lanes)
        return Launch(blocks_of(n, block), block, [x, np.zeros_like(x), n], {1: x})

    return launch


def strided_loads(lanes: int) -> Callable[..., Launch]:
    def launch(n: int, stride: int) -> Launch:
        x = values(n * stride, lanes=lanes)
        y = np.zeros(n * lanes, np.float32)
        expected = x.reshape(n, stride, lanes)[:, 0].reshape(-1)
        return Launch(blocks_of(n, 128), 128, [x, y, n, stride], {1: expected})

    return launch


def strided_stores(n: int, stride: int) -> Launch:
    x, y = values(n, lanes=2), np.zeros(2 * n * stride, np.float32)
    expected = y.copy().reshape(n, stride, 2)
    expected[:, 0] = x.reshape(n, 2)
    return Launch(blocks_of(n, 64), 64, [x, y, n, stride], {1: expected.reshape(-1)})


def off_by_an_element(n: int, block: int) -> Launch:
    x = values(n + 1)
    expected = np.r_[np.float32(0), x[1:]]
    return Launch(blocks_of(n, block), block, [x, np.zeros_like(x), n], {1: expected})


def reversed_copy(n: int, block: int) -> Launch:
    x = values(n, np.float64)
    return Launch(blocks_of(n, block), block, [x, np.zeros_like(x), n], {1: x[::-1]})


def gather(n: int, size: int) -> Launch:
    x = values(size)
    index = np.random.default_rng(n).integers(0, size, n).astype(np.int32)
    y = np.zeros(n, np.float32)
    return Launch(blocks_of(n, 256), 256, [x, index, y, n], {2: x[index]})


def scatter(n: int, block: int) -> Launch:
    x, index = values(n), np.random.default_rng(n).permutation(n).astype(np.int32)
    expected = np.zeros(n, np.float32)
    expected[index] = x
    return Launch(blocks_of(n, block), block, [x, index, np.zeros_like(x), n], {2: expected})


def transposed_store(rows: int, cols: int, width: int) -> Launch:
    block = (width, 128 // width)
    grid = (blocks_of(cols, block[0]), blocks_of(rows, block[1]))
    x = values(rows * cols)
    expected = x.reshape(rows, cols).T.reshape(-1)
    return Launch(grid, block, [x, np.zeros_like(x), rows, cols], {1: expected})


def broadcast(n: int, block: int, group: int) -> Launch:
    x, z, i = values(blocks_of(n, block)), values(blocks_of(n, group)), np.arange(n)
    expected = x[i // block] + z[i // group]
    y = np.zeros(n, np.float32)
    return Launch(blocks_of(n, block), block, [x, z, y, n, group], {2: expected})


def divergent(n: int, block: int, limit: int) -> Launch:
    x, z, i = values(2 * n), values(n), np.arange(n)
    v = np.where(i % 3 == 0, x[2 * i], np.where(i < limit, z + x[i + 1], 0)).astype(np.float32)
    expected = np.where((i > limit) & (i % 2 == 1), v, -v)
    y = np.zeros(n, np.float32)
    return Launch(blocks_of(n, block), block, [x, z, y, n, limit], {2: expected})


def two_arrays(n: int, block: int, period: int) -> Launch:
    x, z, i = values(n), values(n)[::-1].copy(), np.arange(n)
    expected = np.where(i // period % 2, x, z)
    y = np.zeros(n, np.float32)
    return Launch(blocks_of(n, block), block, [x, z, y, n, period], {2: expected})


def stencil(rows: int, cols: int, width: int) -> Launch:
    block = (width, 256 // width)
    grid = (blocks_of(cols, block[0]), blocks_of(rows, block[1]))
    x = values(rows * cols).reshape(rows, cols)
    expected = np.zeros_like(x)
    expected[1:-1, 1:-1] = x[1:-1, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] + x[:-2, 1:-1] + x[2:, 1:-1]
    args = [x.reshape(-1), np.zeros(x.size, np.float32), rows, cols]
    return Launch(grid, block, args, {1: expected.reshape(-1)})


def grid_stride(n: int, grid: int, block: int) -> Launch:
    x = values(n)
    expected = padded(x, grid * block).sum(axis=0)
    return Launch(grid, block, [x, np.zeros(grid * block, np.float32), n], {1: expected})


def cache_hints(n: int, block: int) -> Launch:
    x, z = values(n), values(n)[::-1].copy()
    y = np.zeros_like(x)
    return Launch(blocks_of(n, block), block, [x, z, y, n], {2: x + z + x[::-1]})


# ---- shared memory ------------------------------------------------------------------------------


def strided(dtype, lanes: int = 1) -> Callable[..., Launch]:
    def launch(n: int, block: int, stride: int) -> Launch:
        x = values(n, dtype, lanes)
        i = np.arange(n)
        t = i % block
        other = i - t + (t ^ 1)
        x, expected = x.reshape(n, lanes), np.zeros((n, lanes), dtype)
        there = other < n
        expected[there] = x[other[there]]
        args = [x.reshape(-1), np.zeros(x.size, dtype), n, stride]
        shared = block * stride * lanes * np.dtype(dtype).itemsize
        return Launch(blocks_of(n, block), block, args, {1: expected.reshape(-1)}, shared)

    return launch


def shared_gather(grid: int, block: int) -> Launch:
    x = values(grid * block)
    index = np.random.default_rng(block).integers(0, block, x.size).astype(np.int32)
    expected = np.take_along_axis(x.reshape(grid, -1), index.reshape(grid, -1), 1).reshape(-1)
    return Launch(grid, block, [x, index, np.zeros_like(x)], {2: expected}, 4 * block)


def transpose(rows: int, cols: int, height: int) -> Launch:
    grid = (blocks_of(cols, 32), blocks_of(rows, 32))
    x = values(rows * cols)
    expected = x.reshape(rows, cols).T.reshape(-1)
    return Launch(grid, (32, height), [x, np.zeros_like(x), rows, cols], {1: expected})


def sums(dynamic: bool) -> Callable[..., Launch]:
    def launch(n: int, block: int) -> Launch:
        x = values(n)
        expected = padded(x, block).sum(axis=1)
        y = np.zeros(len(expected), np.float32)
        return Launch(len(y), block, [x, y, n], {1: expected}, 4 * block if dynamic else 0)

    return launch


def shared_broadcast(n: int, block: int, group: int) -> Launch:
    x = values(n)
    rows, t = padded(x, block), np.arange(block)
    expected = (rows[:, -1:] + rows[:, t // group]).reshape(-1)[:n]
    y = np.zeros(n, np.float32)
    return Launch(len(rows), block, [x, y, n, group], {1: expected}, 4 * block)


def shared_points(n: int, block: int) -> Launch:
    x = values(n)
    expected = 321 * padded(x, block)[:, ::-1].reshape(-1)[:n]
    return Launch(blocks_of(n, block), block, [x, np.zeros_like(x), n], {1: expected}, 12 * block)


def scan(n: int, block: int) -> Launch:
    x = values(n)
    expected = padded(x, block).cumsum(axis=1, dtype=np.float32).reshape(-1)[:n]
    return Launch(blocks_of(n, block), block, [x, np.zeros_like(x), n], {1: expected}, 8 * block)


def matrix_product(size: int) -> Launch:
    a, b = values(size * size), values(size * size)[::-1].copy()
    expected = (a.reshape(size, size) @ b.reshape(size, size)).reshape(-1)
    return Launch((size // 16, size // 16), (16, 16), [a, b, np.zeros_like(a), size], {2: expected})


def pattern(lanes: int) -> Callable[..., Launch]:
    def launch(number: int) -> Launch:
        index = np.array(measured_patterns()[number]["index"], np.int32)
        x = np.repeat(index, lanes).astype(np.float32).reshape(32, lanes)
        expected = np.where(index[:, None] >= 0, x, 0).reshape(-1)
        args = [index, x.reshape(-1), np.zeros(x.size, np.float32)]
        return Launch(1, 32, args, {2: expected}, 4 * lanes * (int(index.max()) + 1))

    return launch


# ---- what is reported beside --------------------------------------------------------------------


def atomics(read: bool) -> Callable[..., Launch]:
    def launch(n: int, group: int, places: int) -> Launch:
        x, y = values(n, np.int32), np.zeros(places, np.int32)
        expected = np.zeros_like(y)
        where = np.arange(n) // group % places
        (np.maximum if read else np.add).at(expected, where, x)
        args = [x, y, *([np.zeros(n, np.int32)] if read else []), n, group, places]
        return Launch(blocks_of(n, 128), 128, args, {1: expected})

    return launch


def shared_atom(n: int, stride: int, places: int) -> Launch:
    block = 128
    x, grid = values(n, np.int32), blocks_of(n, block)
    expected = np.zeros((grid, places), np.int32)
    i = np.arange(n)
    np.add.at(expected, (i // block, i % block % places), x)
    y = np.zeros(expected.size, np.int32)
    args = [x, y, n, stride, places]
    return Launch(grid, block, args, {1: expected.reshape(-1)}, 4 * stride * places)


def local_array(n: int, block: int, spread: int) -> Launch:
    """`spread` 1: all lanes use one index at a time; more: their indices differ."""
    x = values(n)
    index = (np.arange(n) * 7 % spread).astype(np.int32)
    places = (5 * np.arange(4) + index[:, None] // 2 - index[:, None]) % 64
    expected = (x[:, None] + places).sum(axis=1, dtype=np.float32)
    y = np.zeros(n, np.float32)
    return Launch(blocks_of(n, block), block, [x, index, y, n], {2: expected})


def async_copy(lanes: int) -> Callable[..., Launch]:
    def launch(grid: int, block: int) -> Launch:
        x = values(grid * block, lanes=lanes)
        expected = x.reshape(grid, block // 2, 2, lanes)[:, :, ::-1].reshape(-1)
        args = [x, np.zeros_like(x)]
        return Launch(grid, block, args, {1: expected}, 4 * lanes * block)

    return launch


def bulk_copy(grid: int, block: int, count: int) -> Launch:
    x = values(grid * count)
    return Launch(grid, block, [x, np.zeros_like(x), count], {1: 2 * x}, 4 * count)


def cluster_exchange(grid: int, block: int, stride: int) -> Launch:
    x = values(grid * block)
    expected = x.reshape(grid // 2, 2, block)[:, ::-1].reshape(-1)
    return Launch(grid, block, [x, np.zeros_like(x), stride], {1: expected}, 4 * block * stride)


# ---- the table ----------------------------------------------------------------------------------

SIZES = ((1000, 128), (4096, 256), (333, 48))  # elements, threads of a block
STRIDES = ((512, 2), (300, 8), (200, 32))  # elements, stride
# Elements, threads of a block, stride. Some fill a warp partly.
BANKS = ((256, 64, 2), (250, 64, 8), (96, 32, 32))
SUMS = ((1024, 64), (1000, 128), (600, 256))


def _rows() -> Iterator[Kernel]:
    file = "global_memory.cu"
    for name, function in {
        "copy_bytes": copies(np.uint8),
        "copy_halves": copies(np.uint16),
        "copy_floats": copies(np.float32),
        "copy_doubles": copies(np.float64),
        "copy_float2": copies(np.float32, 2),
        "copy_float4": copies(np.float32, 4),
        "copy_points": copies(np.float32, 3),
        "off_by_an_element": off_by_an_element,
        "reversed": reversed_copy,
        "scatter": scatter,
        "cache_hints": cache_hints,
    }.items():
        yield Kernel(name, file, function, SIZES)
    yield Kernel("strided_loads", file, strided_loads(1), STRIDES)
    yield Kernel("strided_vectors", file, strided_loads(4), STRIDES)
    yield Kernel("strided_stores", file, strided_stores, STRIDES)
    yield Kernel("gather", file, gather, ((1000, 5000), (2048, 64), (100, 100)))
    yield Kernel(
        "transposed_store", file, transposed_store, ((64, 64, 32), (50, 70, 16), (33, 9, 8))
    )
    yield Kernel("broadcast", file, broadcast, ((1000, 128, 32), (700, 96, 5), (512, 64, 100)))
    yield Kernel("divergent", file, divergent, ((1000, 128, 300), (333, 48, 0), (512, 64, 512)))
    yield Kernel("two_arrays", file, two_arrays, ((1000, 128, 1), (333, 48, 7), (512, 64, 32)))
    yield Kernel("stencil", file, stencil, ((40, 64, 32), (33, 50, 16), (9, 300, 256)))
    yield Kernel("grid_stride", file, grid_stride, ((5000, 4, 128), (1000, 3, 96), (100, 2, 64)))

    file = "shared_memory.cu"
    for name, function in {
        "strided_bytes": strided(np.uint8),
        "strided_halves": strided(np.int16),
        "strided_4": strided(np.float32),
        "strided_8": strided(np.float32, 2),
        "strided_16": strided(np.float32, 4),
        "strided_doubles": strided(np.float64),
    }.items():
        yield Kernel(name, file, function, BANKS)
    yield Kernel("shared_gather", file, shared_gather, ((4, 64), (3, 256), (2, 50)))
    for name in ("transpose_unpadded", "transpose_padded"):
        yield Kernel(name, file, transpose, ((64, 64, 8), (50, 70, 4), (33, 9, 32)))
    for name in ("tree_divergent", "tree_interleaved", "tree_sequential"):
        yield Kernel(name, file, sums(True), SUMS)
    yield Kernel("shuffle_reduction", file, sums(False), SUMS)
    yield Kernel(
        "shared_broadcast", file, shared_broadcast, ((512, 64, 8), (500, 128, 3), (90, 32, 32))
    )
    yield Kernel("shared_points", file, shared_points, SUMS)
    yield Kernel("scan", file, scan, ((512, 64), (500, 128), (90, 32)))
    yield Kernel("matrix_product", file, matrix_product, ((16,), (32,), (48,)))


def _rows_beside() -> Iterator[Kernel]:
    file = "reported.cu"
    # One place for all, a place for each thread, a place for each warp.
    shapes = ((1024, 1, 1), (1000, 1, 1000), (1024, 32, 32))
    yield Kernel("global_red", file, atomics(False), shapes)
    yield Kernel("global_atom", file, atomics(True), shapes)
    # One place for all, a place for each lane, places in one bank.
    yield Kernel("shared_atom", file, shared_atom, ((512, 1, 1), (500, 1, 32), (512, 32, 32)))
    yield Kernel("local_array", file, local_array, ((256, 64, 1), (250, 64, 8), (300, 96, 64)))
    for size in (4, 8, 16):
        shapes = ((4, 64), (3, 128), (2, 48))
        yield Kernel(f"async_copy_{size}", file, async_copy(size // 4), shapes)
    yield Kernel("bulk_copy", file, bulk_copy, ((4, 64, 256), (3, 128, 1000), (2, 32, 4)))
    yield Kernel("cluster_exchange", file, cluster_exchange, ((4, 64, 1), (8, 96, 2), (2, 32, 32)))


COMPARED = tuple(_rows())
REPORTED = tuple(_rows_beside())
PATTERNS = {
    name: Kernel(f"pattern_{name}", "shared_memory.cu", pattern(lanes), ())
    for name, lanes in {"float": 1, "float2": 2, "float4": 4}.items()
}
