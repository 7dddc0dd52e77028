"""Softmax of any matrix, by what `choose` picks: rows, columns, dtypes, strides and places between
multiples of 16 bytes at random, rows with infinities and NaN among them, everything around y
guarded. A group of launches shares its columns and so, mostly, one compiled kernel.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from helpers.catalogue.dispatch import choose
from helpers.run.bound import BoundKernel, load
from helpers.run.check import WrongResult, check_softmax, strided_copy
from helpers.run.execute import device_dtype
from helpers.run.references import make_input, poisoned, special_rows

AROUND = -7.0  # what stands around y, and must still stand there
GROUPS, LAUNCHES = 12, 4
GPU_GROUPS, GPU_LAUNCHES = 150, 20


class Matrix(NamedTuple):
    """What a launch is given; strides and phases count elements."""

    rows: int
    cols: int
    dtype: str
    x_stride: int
    y_stride: int
    x_phase: int
    y_phase: int
    special: bool  # rows with -inf, NaN and +inf among the others
    seed: int

    @property
    def pack(self) -> int:
        return 16 // np.dtype(self.dtype).itemsize


def matrices(group: int, launches: int, most_cols: int, most_elements: int) -> Iterator[Matrix]:
    """The launches of a group: one dtype, one number of columns, few or many rows, one kind of
    layout."""
    pick = random.Random(group)
    dtype = pick.choice(("float32", "float16", "bfloat16"))
    pack = 16 // np.dtype(dtype).itemsize
    cols = round(most_cols ** pick.random())
    if pick.random() < 0.3:
        cols = -(-cols // pack) * pack
    few = pick.random() < 0.5
    kind = pick.choice(("dense", "dense", "alike", "unlike", "apart", "apart by packs"))
    for launch in range(launches):
        most = min(16 if few else most_elements, max(1, most_elements // cols))
        rows = pick.randint(1, most)
        gaps = (0, 0)
        if kind == "apart":
            gaps = (pick.randint(0, 9), pick.randint(1, 9))
        elif kind == "apart by packs":
            gaps = (-cols % pack, -cols % pack + pack)
        phase = 0 if kind.endswith(("dense", "packs")) else pick.randrange(pack)
        other = phase if kind != "unlike" else pick.randrange(pack)
        yield Matrix(
            rows, cols, dtype, cols + gaps[0], cols + gaps[1], phase, other, launch % 3 == 2, launch
        )


def given(matrix: Matrix) -> np.ndarray:
    """x of shape (rows, cols); every other row of a special one has infinities or NaN."""
    x = make_input(matrix.rows, matrix.cols, matrix.seed, matrix.dtype)
    if matrix.special:
        rows = special_rows(matrix.cols, matrix.dtype)
        x[::2] = np.resize(rows, x[::2].shape)
    return x


def chosen(matrix: Matrix) -> BoundKernel:
    """The kernel that `choose` picks, for the matrix."""
    step = choose(
        *matrix[:3],
        x_stride=matrix.x_stride,
        y_stride=matrix.y_stride,
        aligned=matrix.x_phase % matrix.pack == matrix.y_phase % matrix.pack == 0,
        alike=matrix.x_phase % matrix.pack == matrix.y_phase % matrix.pack,
    )
    return load(step).bind(*matrix[:3], x_stride=matrix.x_stride, y_stride=matrix.y_stride)


def check_guarded(x: np.ndarray, y: np.ndarray, before: np.ndarray, where: str) -> None:
    """`y` is a view of what was `before` the launch but for softmax of x."""
    try:
        check_softmax(x, np.ascontiguousarray(y))
    except WrongResult as error:
        raise WrongResult(f"{where}: {error.summary}", error.values) from None
    y[:] = poisoned(x)
    if y.base.tobytes() != before.tobytes():
        raise WrongResult(f"{where}: something around y was written")


def run_simulated(matrix: Matrix) -> None:
    """Launch on the SIMT machine."""
    bound = chosen(matrix)
    x = given(matrix)
    y = strided_copy(poisoned(x), matrix.y_stride, matrix.y_phase, AROUND)
    before = y.base.copy()
    bound.run(strided_copy(x, matrix.x_stride, matrix.x_phase), y)
    check_guarded(x, y, before, f"{bound.name}, {matrix}")


def run_on_gpu(matrix: Matrix) -> None:
    """The same on the GPU, with what is around y there too."""
    import cupy

    bound = chosen(matrix)
    bound.prepare()
    x = given(matrix)
    views = (
        strided_copy(x, matrix.x_stride, matrix.x_phase),
        strided_copy(poisoned(x), matrix.y_stride, matrix.y_phase, AROUND),
    )
    before = views[1].base.copy()
    on_gpu = [cupy.asarray(view.base.view(device_dtype(view.dtype))) for view in views]
    phases = (matrix.x_phase, matrix.y_phase)
    arrays = [base[at:] for base, at in zip(on_gpu, phases, strict=True)]
    bound.enqueue(*arrays, workspace=bound.workspace())
    y = views[1]
    y.base[:] = cupy.asnumpy(on_gpu[1]).view(y.dtype)
    check_guarded(x, y, before, f"{bound.name}, {matrix}")


@pytest.mark.parametrize("group", range(GROUPS))
def test_any_matrix_is_right(group: int) -> None:
    most_cols = (300, 3000, 30000)[group % 3]
    for matrix in matrices(group, LAUNCHES, most_cols, 2**13):
        run_simulated(matrix)


@pytest.mark.gpu
@pytest.mark.parametrize("first", range(0, GPU_GROUPS, 15))
def test_any_matrix_is_right_on_the_gpu(first: int) -> None:
    for group in range(first, first + 15):
        most_cols = (1000, 20000, 300000, 3000000)[group % 4]
        for matrix in matrices(group, GPU_LAUNCHES, most_cols, 2**21):
            run_on_gpu(matrix)
