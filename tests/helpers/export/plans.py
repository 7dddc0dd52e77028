"""Random matrices on six GPUs, and what the headers plan for them."""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from helpers.base.gpu import Gpu
from helpers.catalogue.dispatch import RANKINGS, SOFTMAX_RANKING, choose, with_features
from helpers.catalogue.registry import split_trial
from helpers.problem.operations import OPERATIONS
from helpers.run import bound
from helpers.run.bound import Kernel

load = cache(bound.load)
MB = 2**20
GPUS = (  # multiprocessors and L2 as their vendor gives them
    Gpu(90, 132, 60 * MB),  # H200
    Gpu(90, 114, 50 * MB),  # H100 PCIe
    Gpu(100, 148, 126 * MB),  # B200
    Gpu(80, 108, 40 * MB),  # A100
    Gpu(89, 58, 48 * MB),  # L4
    Gpu(75, 40, 4 * MB),  # T4
)


class Matrix(NamedTuple):
    rows: int
    cols: int
    dtype: np.dtype
    x_stride: int
    y_stride: int
    x_start: int  # bytes past a multiple of 16
    y_start: int
    gpu: Gpu


def matrices(count: int, dtypes: tuple[np.dtype, ...], gpus=GPUS, seed: int = 0) -> list[Matrix]:
    """Few rows and many, short rows and long, sizes that tables name and their neighbours; a
    quarter in rows that are apart, a quarter that start anywhere, some that no kernel takes."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        rows = chance.choice(
            [chance.randint(1, 40), int(2 ** chance.uniform(0, 24)), 16 * chance.randint(1, 40)]
        )
        cols = chance.choice([2 ** chance.randint(0, 21), int(2 ** chance.uniform(0, 21.5))])
        cols = max(1, cols + chance.choice([0, 0, 0, 1, -1, 4, 8]))
        if chance.random() < 0.5:
            cols = max(8, cols // 8 * 8)
        if chance.random() < 0.01:
            rows, cols = chance.choice([(0, cols), (rows, 0), (2**31, cols), (2**31 - 1, 2**28)])
        dtype = dtypes[number % len(dtypes)]
        size = dtype.itemsize
        gaps = chance.choice([(0, 0), (0, 0), (0, 0), (5, 2), (8, 0), (16, 16), (-1, 0)])
        starts = chance.choice([(0, 0), (0, 0), (0, 0), (size, size), (size, 0), (1, 0)])
        gpu = gpus[number // len(dtypes) % len(gpus)]
        found.append(Matrix(rows, cols, dtype, cols + gaps[0], cols + gaps[1], *starts, gpu))
    return found


def family() -> Iterator[str]:
    """The kernels of related operations: each file alone, and with each of its features."""
    for file in dict.fromkeys(rank.file for ranks in RANKINGS.values() for rank in ranks):
        yield file
        contract = load(file).header
        for feature in contract.features.keys() - contract.made_for.keys():
            yield with_features(file, {feature: 1})


class OnAxis(NamedTuple):
    """A matrix whose columns are `inner` elements apart."""

    matrix: Matrix
    inner: int


def on_axes(count: int, dtypes: tuple[np.dtype, ...], seed: int = 0) -> list[OnAxis]:
    """outer x dim x inner: short axes and long, lines that are packs, sectors, neither; some that
    no kernel takes."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        inner = chance.choice([1, 2, 3, 8, 32, 64, 100, 3136, int(2 ** chance.uniform(0, 13))])
        dim = max(1, chance.choice([2 ** chance.randint(0, 16), int(2 ** chance.uniform(0, 16.5))]))
        outer = chance.choice([1, chance.randint(1, 40), int(2 ** chance.uniform(0, 16))])
        rows = outer * inner + chance.choice([0] * 49 + [1])
        dtype, start = dtypes[number % len(dtypes)], chance.choice([(0, 0)] * 9 + [(8, 8)])
        gpu = GPUS[number // len(dtypes) % len(GPUS)]
        found.append(OnAxis(Matrix(rows, dim, dtype, dim, dim, *start, gpu), inner))
    return found


class Launch(NamedTuple):
    grid: int
    block: int
    shared: int
    workspace: int
    cluster: int
    programmatic: bool
    cooperative: bool
    macros: tuple[int, ...]


@cache
def planned(step: str, matrix: Matrix, inner: int = 1) -> Launch | None:
    """What the header of a kernel plans; None if it does not take the matrix."""
    rows, cols, dtype, x_stride, y_stride, *starts, gpu = matrix
    kernel = load(step)
    if dtype not in kernel.header.dtypes:
        return None
    if any(start % kernel.header.align(dtype) for start in starts):
        return None
    if starts[0] != starts[1] and "LATE" in kernel.header.macros:
        kernel = replace(kernel, changes=(("LATE", 1),))
    sizes = {"x_stride": x_stride, "y_stride": y_stride, "inner": inner}
    return launch_of(kernel, rows, cols, dtype, gpu, **sizes)


def launch_of(kernel: Kernel, *matrix, **sizes: int) -> Launch | None:
    try:
        plan = kernel.bind(*matrix, **sizes).plan
    except ValueError:
        return None
    return Launch(
        plan.grid,
        plan.block,
        plan.shared_mem,
        plan.workspace,
        plan.cluster,
        plan.programmatic,
        plan.cooperative,
        tuple(plan.macros.values()),
    )


class Around(NamedTuple):
    """What is asked of a matrix beside plain softmax."""

    operation: str
    features: tuple[tuple[str, int], ...]


def arounds() -> list[Around]:
    """Every operation with each of its features, with two, and with none."""
    found = []
    for name in RANKINGS:
        words = OPERATIONS[name].features
        one = [(((n, value),)) for n in words for value in range(1, len(words[n]))]
        two = [(*a, *b) for a in one for b in one if a[0][0] < b[0][0]]
        found += [Around(name, features) for features in ((), *one, *two)]
    return found


PLAIN = Around("softmax", ())


@cache
def chosen(matrix: Matrix, asked: Around = PLAIN, inner: int = 1) -> tuple[str, Launch] | None:
    """What `choose` picks, and its plan; None if it refuses."""
    rows, cols, dtype, x_stride, y_stride, *starts, gpu = matrix
    if any(start % dtype.itemsize for start in starts):
        return None
    sizes = {"x_stride": x_stride, "y_stride": y_stride, "inner": inner}
    place = {"aligned": starts == [0, 0], "alike": starts[0] == starts[1]}
    kind = {"operation": asked.operation, "features": dict(asked.features)}
    try:
        step = choose(rows, cols, dtype, gpu, **sizes, **place, **kind)
    except ValueError:
        return None
    file = split_trial(step).file
    if inner == 1 and file in {split_trial(rank.file).file for rank in SOFTMAX_RANKING}:
        return file, planned(step, matrix)
    return file, launch_of(load(step), rows, cols, dtype, gpu, **sizes)
