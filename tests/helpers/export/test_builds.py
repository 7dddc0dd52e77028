"""The builds of a range: those that its shapes need, and no other."""

import random

import numpy as np
import pytest

from helpers.bound import load
from helpers.catalogue import choose
from helpers.export import builds as module
from helpers.export.asked import Asked, Range, Refused, Shapes, request
from helpers.export.builds import Build, builds, file_of
from helpers.gpu import H200, Gpu

A100 = Gpu(80, 108, 40 * 2**20)


def build_at(asked: Asked, rows: int, cols: int, gap=(0, 0), aligned=True, alike=True):
    """The build that a shape needs, as kernels are planned one by one; None if none takes it."""
    (dtype,), (gpu,) = asked.dtypes, asked.gpus
    strides = [cols + extra for extra in gap]
    step = asked.kernels[0]
    try:
        if asked.best:
            step = choose(rows, cols, dtype, gpu, *strides, aligned, alike)
        elif not alike and "LATE" in load(step).header.macros:
            step = f"{step}-LATE1"
        kernel = load(step)
        if not aligned and kernel.header.align(dtype) > dtype.itemsize:
            return None
        plan = kernel.bind(rows, cols, dtype, gpu, *strides).plan
    except ValueError:
        return None
    return Build(file_of(step), dtype, tuple(plan.macros.items()))


@pytest.mark.parametrize(
    ("kernel", "shape", "dtype", "gpu"),
    [
        ("best", "1..40x200..300", "bfloat16", H200),
        ("best", "4090..4099x250..264", "float32", H200),
        ("best", "14..18x8185..8195", "float32", H200),
        ("best", "1..3x1..90", "float32", A100),
        ("07_warp", "5x1..1030", "float16", H200),
        ("08_cluster", "1..70x32760..32780", "float32", H200),
        ("09_grid", "1..12x262140..262152", "float16", H200),
        ("11_any_row", "10..20x12280..12300", "float32", H200),
        ("variants/11_short_rows", "3..5x1..300", "float16", H200),
        ("06_registers", "1..9x1..9", "float32", H200),
    ],
)
def test_a_small_range_has_the_builds_of_its_shapes(kernel, shape, dtype, gpu, monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_BUILDS", 10**6)
    asked = request(kernel, [shape], "f", [dtype], [gpu])
    (shapes,) = asked.shapes
    needed = {
        build_at(asked, rows, cols)
        for rows in range(shapes.rows.low, shapes.rows.high + 1)
        for cols in range(shapes.cols.low, shapes.cols.high + 1)
    }
    assert {*builds(asked)} == needed - {None}


@pytest.mark.parametrize(
    ("kernel", "shape", "dtype"),
    [
        ("best", "1..65536x1000", "bfloat16"),
        ("best", "1..100000x50257..50260", "float32"),
        ("best", "1..64x200000..300000", "float32"),
        ("11_any_row", "1..100000x30000..60000", "float16"),
        ("variants/11_any_length", "1..300x1..50257", "float32"),
    ],
)
def test_a_large_range_has_the_build_of_any_of_its_shapes(
    kernel, shape, dtype, monkeypatch
) -> None:
    """However rows lie and wherever x and y start."""
    monkeypatch.setattr(module, "MOST_BUILDS", 10**6)
    asked = request(kernel, [shape], "f", [dtype], [H200], strides=True, anywhere=True)
    (shapes,) = asked.shapes
    found, chance = {*builds(asked), None}, random.Random(0)
    for _ in range(400):
        rows = chance.randint(shapes.rows.low, shapes.rows.high)
        rows = rows if chance.random() < 0.7 else min(rows, chance.randint(1, 40))
        cols = chance.randint(shapes.cols.low, shapes.cols.high)
        gap = chance.choice([0, 0, 1, 3, 4, 8]), chance.choice([0, 0, 1, 3, 4, 8])
        start = chance.choice([(True, True), (False, True), (False, False)])
        assert build_at(asked, rows, cols, gap, *start) in found


def test_a_range_that_takes_too_long_is_not_said_to_need_many_builds(monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_BOXES", 2**10)
    asked = request("01_naive", ["1..2147483647x1..2147483647"], "f", ["float32"], [H200])
    with pytest.raises(Refused, match="are too many shapes to find all their builds; ask for few"):
        builds(asked)


def test_a_forgotten_half_of_a_range_is_noticed(monkeypatch) -> None:
    halved = module._halved
    monkeypatch.setattr(module, "_halved", lambda *boxes: halved(*boxes)[::2])
    asked = request("08_cluster", ["1..70x32768"], "f", ["float32"], [H200])
    needed = {build_at(asked, rows, 32768) for rows in range(1, 71)}
    assert {*builds(asked)} != needed


def test_a_range_with_too_many_builds_says_how_many() -> None:
    asked = request("07_warp", ["1..1000x1..1024"], "f", ["float32"], [H200])
    needed = {build_at(asked, 1000, cols) for cols in range(1, 1025)}
    with pytest.raises(Refused, match=rf"needs {len(needed)} builds, more than 64 in one file"):
        builds(asked)


def test_several_shapes_dtypes_and_gpus_add_up() -> None:
    gpus = [H200, Gpu(90, 114, 50 * 2**20)]
    dtypes = ["float32", "bfloat16"]
    asked = request("09_grid", ["1x1048576", "2x262144"], "f", dtypes, gpus)
    single = {
        build
        for shape in ("1x1048576", "2x262144")
        for dtype in dtypes
        for gpu in gpus
        for build in builds(request("09_grid", [shape], "f", [dtype], [gpu]))
    }
    assert {*builds(asked)} == single and len(single) == len(builds(asked))


def test_a_shape_is_a_range() -> None:
    asked = request("06_registers", ["8x4096", "1..9x32"], "f")
    assert asked.shapes[0] == Shapes(Range(8, 8), Range(4096, 4096))
    assert [str(shapes) for shapes in asked.shapes] == ["8x4096", "1..9x32"]
    assert asked.dtypes == (np.dtype("float32"),)


def test_a_kernel_that_takes_more_than_a_matrix_is_not_exported() -> None:
    said = "13_any_axis does more than softmax of a matrix: it is not exported"
    with pytest.raises(Refused, match=said):
        request("13_any_axis", ["64x64"])
