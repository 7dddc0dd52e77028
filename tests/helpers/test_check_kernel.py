"""Checking a kernel: those of the series with planted defects are rejected, right ones accepted."""

import re

import pytest

from helpers.catalogue.registry import source
from helpers.run.bound import BoundKernel
from helpers.run.check import WrongResult
from helpers.run.execute import KernelBug
from helpers.run.launch import check_kernel
from helpers.simt import byte_offset
from tests.helpers.sources import APART, raw

pytestmark = pytest.mark.usefixtures("replay_unless_live")

ROW = "(long long)row * cols;\n    y +="  # end of the line that advances x
MUTANTS = {
    "maximum left out": ("01_naive", "every row overflowed", (" - row_max", "")),
    "maximum of the first column only": ("01_naive", "are NaN", ("fmaxf(row_max, x[col])", "x[0]")),
    "stride of the input too small": (
        "01_naive",
        "the largest element is at the wrong place",
        (ROW, f"(long long)row * (cols - 1);{ROW.partition(';')[2]}"),
    ),
    "sum not rescaled to a new maximum": (
        "02_online",
        "do not sum to 1",
        ("sum * expf(row_max - new_max) +", "sum +"),
    ),
    "tail of a pack not copied": ("00_copy", "nan instead of", ("i < count", "i < first")),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_kernel_with_planted_defect_is_rejected(name: str) -> None:
    original, hint, *changes = MUTANTS[name]
    kernel = raw(original, *changes)
    with pytest.raises(WrongResult, match=rf"^{kernel.name} at rows x cols = \(\d+, \d+\): ") as e:
        check_kernel(kernel)
    assert re.search(hint, str(e.value)), str(e.value)


def test_correct_kernels_are_accepted() -> None:
    verdict = check_kernel(raw("01_naive"), shapes=[(3, 7), (129, 31)])
    assert verdict == "softmax_naive: correct for 2 shapes and 12 rows with -inf, NaN or +inf"
    assert "correct for 9 shapes" in check_kernel(APART), "a file compiled for each: long rows too"


def test_kernel_that_takes_long_rows_alone_is_checked_at_long_rows() -> None:
    kernel = raw("05_float4", ("cols >= 1", "cols >= 5000"))
    assert "correct for 2 shapes and 6 rows" in check_kernel(kernel)


def test_a_race_of_warps_is_found_although_1024_columns_have_one_warp() -> None:
    with pytest.raises(KernelBug, match="race on shared memory"):
        check_kernel(raw("06_registers", ("__syncthreads();", "")))


# ---- kernel files that are compiled for each shape ----------------------------------------------

SIXTEEN_BIT = ("float16", "bfloat16")
EACH_DTYPE = ("float32", *SIXTEEN_BIT)
SOME_SHAPES = ((1, 1), (3, 7), (5, 33), (3, 2000))


def test_workspace_that_is_not_cleared_is_a_bug() -> None:
    with pytest.raises(KernelBug, match="^softmax_apart must leave its workspace zeroed"):
        check_kernel(APART.replace("atomicSub(workspace + row, 1u);", ""), SOME_SHAPES)


# ---- rows that are apart, at any element ------------------------------------------------------

APART_DEFECTS = {
    "stride of x for y": ("y += row * y_stride", "y += row * x_stride"),
    "no stride": ("x += row * x_stride", "x += row * (long long)cols"),
    "a column between rows written": ("y[col] =", "y[col] = y[col + (col + 1 == cols)] ="),
    "a column between rows read": ("sum += expf(float(x[col])", "sum += expf(float(x[col + 1])"),
    "rows at multiples of 16 bytes alone": ("    y += row", "    y = (T*)((size_t)y & -16) + row"),
    "whole packs": ("    x += row", "    if (4 * x_stride % 16) x += 1;\n    x += row"),
}


@pytest.mark.parametrize("dtype", EACH_DTYPE[::2])
def test_a_kernel_that_takes_strides_is_checked_with_rows_apart(dtype: str) -> None:
    verdict = check_kernel(APART, SOME_SHAPES, dtype=dtype)
    assert verdict == (
        "softmax_apart: correct for 4 shapes, 7 views and 18 rows with -inf, NaN or +inf"
    )


@pytest.mark.parametrize("name", APART_DEFECTS)
def test_a_defect_that_only_rows_apart_show_is_found(name: str) -> None:
    old, new = APART_DEFECTS[name]
    assert old in APART
    with pytest.raises((WrongResult, KernelBug)):
        check_kernel(APART.replace(old, new), SOME_SHAPES)


def test_each_view_is_bound_as_it_is_and_what_was_written_around_it_is_named(monkeypatch) -> None:
    """As on a GPU, where nobody else sees it."""
    seen, places = [], []

    def run(bound: BoundKernel, x, y) -> None:
        bound.check(bound.arguments(x, y))
        seen.append((bound.problem.strides, byte_offset(x), byte_offset(y)))
        y[:] = x
        if len(seen) == 2:
            y.base[places] = 0

    monkeypatch.setattr(BoundKernel, "run", run)
    monkeypatch.setattr("helpers.run.launch.check_outputs", lambda *_: None)
    check_kernel(APART, SOME_SHAPES[1:3])
    assert seen[:2] == [((7, 7), 0, 0), ((12, 9), 4, 12)]
    assert seen[2:4] == [((33, 33), 0, 0), ((33, 33), 12, 4)]
    assert seen[4:6] == [((5, 5), 0, 0), ((8, 12), 0, 0)]
    for place in (2, 3 + 7, -1):  # before, between and behind the rows
        seen.clear()
        places[:] = [place]
        with pytest.raises(WrongResult, match="^softmax_apart at rows x cols = .3, 7. wrote betwe"):
            check_kernel(APART, SOME_SHAPES[1:3])


def test_views_that_the_header_refuses_are_left_out() -> None:
    """Strides that are no multiple of 16 bytes are; those that are start at such a multiple."""
    code = APART.replace("Align:    size", "Align:    16")
    code = code.replace("cols >= 1 &&", "cols >= 1 && x_stride * size % 16 == 0 &&")
    verdict = check_kernel(code, [(3, 4), (3, 8), (3, 7)])
    assert verdict.startswith("softmax_apart: correct for 2 shapes, 2 views and 12 rows")


def test_shapes_that_are_all_refused_are_no_success() -> None:
    with pytest.raises(ValueError, match="takes float16 at none of these shapes"):
        check_kernel(raw("01_naive"), dtype="float16")
    with pytest.raises(ValueError, match="takes float32 at none of these shapes"):
        check_kernel(APART.replace("cols >= 1 &&", "cols >= 9 &&"), [(3, 7)])


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ((4, 8), "shapes are pairs [(rows, cols), ...], not 4"),
        ([(4, 8, 2)], "shapes are pairs [(rows, cols), ...], not (4, 8, 2)"),
        ([(4, 8), 3], "shapes are pairs [(rows, cols), ...], not 3"),
        ([(4.5, 8)], "a size must be an integer, not 4.5"),
    ],
    ids=str,
)
def test_shapes_that_are_no_pairs_are_named(shapes, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        check_kernel(source("01_naive.cu"), shapes=shapes)
    assert str(caught.value) == message
    assert "correct for 2 shapes" in check_kernel(
        source("01_naive.cu"), shapes=iter([(3, 7), [1, 1]])
    )
