"""One object travels: a kernel file's text, or a compiled kernel, bound to shape, dtype and GPU."""

import numpy as np
import pytest

from helpers.catalogue.registry import source
from helpers.run.bound import BoundKernel, bind, kernel_of, load
from helpers.run.check import check_softmax, strided_copy
from helpers.run.references import make_input, poisoned
from tests.helpers.sources import APART

pytestmark = pytest.mark.usefixtures("replay_unless_live")

EXAMPLE = source("01_naive.cu")

# ---- load -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("02_online-b2048", "'02_online-b2048': a block has 1 to 1024 threads"),
        ("02_online-WIDTH4", "'02_online-WIDTH4': kernels/02_online.cu has no WIDTH"),
        (
            "09_grid-PACK4",
            "'09_grid-PACK4': kernels/09_grid.cu has no PACK; there are THREADS, FEW_PACKS, ",
        ),
        (
            "variants/00_copy_bulk-TILE2048",
            "'variants/00_copy_bulk-TILE2048': kernels/variants/00_copy_bulk.cu defines TILE "
            "without #ifndef",
        ),
        ("07_warp-ROWS2-ROWS2", "'07_warp-ROWS2-ROWS2' sets a value twice"),
    ],
)
def test_a_trial_of_what_is_not_there_is_refused_in_one_sentence(step: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        load(step)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


# ---- bind -------------------------------------------------------------------------------------


def test_what_bind_is_given_beside_a_kernel_is_tried() -> None:
    warp = load("07_warp-ROWS2")
    assert bind(warp, 10, 64) == warp.bind(10, 64)
    both = bind(warp, 10, 64, changes={"WIDTH": 2})
    assert both == load("07_warp-ROWS2-WIDTH2").bind(10, 64) and both["ROWS"] == 2
    assert bind(warp, 10, 64, changes={"ROWS": 4})["ROWS"] == 4
    naive = load("01_naive-b32")
    assert bind(naive, 129, 7).plan.block == 32 and bind(naive, 129, 7, block=64).plan.block == 64
    compiled = kernel_of(bind(EXAMPLE, 129, 7).compiled)
    assert bind(compiled, 129, 7, block=64).plan.block == 64 and kernel_of(compiled) is compiled
    for kernel in (compiled, compiled.raw):
        with pytest.raises(
            ValueError, match="a compiled kernel cannot be changed: bind the source"
        ):
            bind(kernel, 129, 7, changes={"WIDTH": 2})


# ---- rows that are apart, at any element ------------------------------------------------------


def bound_apart(rows: int, cols: int, dtype: str = "float32") -> BoundKernel:
    return bind(APART, rows, cols, dtype, x_stride=cols + 5, y_stride=cols + 2)


def test_strides_are_arguments_between_the_sizes_and_the_workspace() -> None:
    bound = bound_apart(4, 100)
    x, y = (np.zeros((4, 100), np.float32) for _ in range(2))
    *_, workspace = values = bound.arguments(x, y)
    assert values[2:6] == (4, 100, 105, 102) and len(values) == 7
    assert bound.plan.workspace == workspace.nbytes == 16 and not workspace.any()
    assert bind(APART, 4, 100).arguments(x, y)[2:6] == (4, 100, 100, 100)
    assert bind(EXAMPLE, 4, 100).arguments(x, y)[2:] == (4, 100)
    assert "4 x 100 float32, strides (105, 102), {" in repr(bound)
    assert kernel_of(APART).accepts(4, 100, x_stride=105)
    assert not kernel_of(EXAMPLE).accepts(4, 100, x_stride=105)


@pytest.mark.parametrize("run", ["run", "simulate"])
def test_strides_other_than_the_bound_ones_are_named(run: str) -> None:
    bound = bound_apart(4, 100)
    x = make_input(4, 100)
    good = strided_copy(x, 105, 1, 0), strided_copy(x, 102, 1, 0)
    wide = np.zeros((4, 210), np.float32)
    for place, wrong, error, message in (
        (0, x, ValueError, "the rows of x start 400 bytes apart, which is not x_stride = 105 elem"),
        (
            1,
            strided_copy(x, 105, 1, 0),
            ValueError,
            "the rows of y start 420 bytes apart, which is not ",
        ),
        (0, wide[:, :200:2], TypeError, "x has strides (840, 8), but each row must be contiguous"),
        (0, good[0][::-1], TypeError, "x has strides (-420, 4), but each row must be contiguous"),
        (1, np.broadcast_to(x[0], (4, 100)), TypeError, "y has strides (0, 4), but each row must"),
        (0, np.zeros((100, 4), np.float32).T, TypeError, "x has strides (4, 16), but each row mu"),
    ):
        pair = [*good]
        pair[place] = wrong
        with pytest.raises(error) as caught:
            getattr(bound, run)(*pair)
        assert str(caught.value).startswith(message)
    with pytest.raises(ValueError, match="y overlaps x"):
        getattr(bind(APART, 4, 100, x_stride=105, y_stride=105), run)(good[0], good[0])
    with pytest.raises(TypeError, match="^x is not C-contiguous"):
        getattr(bind(EXAMPLE, 4, 100), run)(*good)


def test_a_single_row_has_no_stride() -> None:
    """numpy gives a row of a wider matrix the stride of that."""
    x = np.zeros((4, 105), np.float32)[1:2, 3:103]
    x[:] = make_input(1, 100)
    for bound in (bind(APART, 1, 100), bound_apart(1, 100), bind(EXAMPLE, 1, 100, x_stride=900)):
        y = poisoned(x)
        bound.run(x, y)
        check_softmax(x, y)
