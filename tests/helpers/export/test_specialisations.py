"""The builds of a range: those that its shapes need, and no other."""

import itertools
import math
import random

import numpy as np
import pytest

from helpers.base.gpu import H200, Gpu
from helpers.catalogue.registry import split_trial
from helpers.export import specialisations as module
from helpers.export.request import ExportError, Range, Shapes, export_request
from helpers.export.specialisations import Specialisation, file_of, specialisations
from tests.golden import sources

A100 = Gpu(80, 108, 40 * 2**20)


def build_at(asked, rows: int, cols: int, gap=(0, 0), start=(True, True), inner: int = 1):
    """The build that a shape needs, as kernels are planned one by one; None if none takes it."""
    (dtype,), (gpu,) = asked.dtypes, asked.gpus
    problem = rows, cols, inner, dtype.name, (gpu.capability, gpu.sms, gpu.l2)
    kernel, (aligned, alike) = None if asked.best else asked.kernels[0], start
    strides = (cols + extra for extra in gap)
    plan = sources.plan(*problem, *strides, kernel, aligned=aligned, alike=alike)
    if "refused" in plan:
        return None
    file = split_trial(plan["kernel"]).file if asked.best else file_of(kernel)
    return Specialisation(file, dtype, tuple(plan["macros"].items()))


@pytest.mark.parametrize(
    ("kernel", "shape", "dtype", "gpu", "layouts"),
    [
        ("best", "1..12x200..216", "bfloat16", H200, False),
        ("best", "14..18x8185..8195", "float32", H200, False),
        ("best", "1..2x1..90", "float32", A100, False),
        ("best", "1..2x245760..245770", "float32", H200, False),  # a plan of 09 covers those of 08
        ("best", "1..600x1000", "bfloat16", H200, True),
        ("best", "1..16x200000..202000", "float32", H200, True),
        ("best", "1..2147483647x32000", "float16", H200, False),
        ("09_grid", "1..12x262140..262152", "float16", H200, False),
        ("11_any_length", "1..9x1..3000", "float32", H200, True),
        ("12_fused-MASK2", "62..66x1000..1040", "bfloat16", H200, False),
        ("13_any_axis", "1..4x60..66x1..24", "bfloat16", A100, False),
        ("14_backward-FROM_X1", "1..2x1..400", "bfloat16", H200, False),
        ("15_cross_entropy", "20..40x30000..30010", "float32", H200, False),
        ("15_gradient", "1..2x32000..32200", "bfloat16", A100, False),
    ],
)
def test_a_range_has_the_builds_of_its_shapes(
    kernel, shape, dtype, gpu, layouts, monkeypatch
) -> None:
    """All of those if they are few, however rows lie and wherever x and y start."""
    monkeypatch.setattr(module, "MAX_SPECIALISATIONS", 10**6)
    asked = export_request(kernel, [shape], "f", [dtype], [gpu], layouts, layouts)
    (shapes,) = asked.shapes
    parts = (shapes.rows, shapes.cols, shapes.inner or Range(1, 1))
    found, chance = {*specialisations(asked)}, random.Random(0)
    if few := math.prod(part.high - part.low + 1 for part in parts) < 4000 and not layouts:
        sizes = itertools.product(*(range(part.low, part.high + 1) for part in parts))
    else:
        sizes = ([chance.randint(part.low, part.high) for part in parts] for _ in range(120))
    needed = set()
    for rows, cols, inner in sizes:
        rows = rows if few or chance.random() < 0.7 else min(rows, chance.randint(1, 40))
        gap = [chance.choice([0, 0, 1, 3, 4, 8]) if layouts else 0 for _ in "xy"]
        start = chance.choice([(True, True), (False, True), (False, False)][: 1 + 2 * layouts])
        needed.add(build_at(asked, rows * inner, cols, gap, start, inner))
    assert needed - {None} == found if few else needed <= found | {None}


def test_several_shapes_dtypes_and_gpus_add_up() -> None:
    gpus = [H200, Gpu(90, 114, 50 * 2**20)]
    dtypes = ["float32", "bfloat16"]
    asked = export_request("09_grid", ["1x1048576", "2x262144"], "f", dtypes, gpus)
    single = {
        build
        for shape in ("1x1048576", "2x262144")
        for dtype in dtypes
        for gpu in gpus
        for build in specialisations(export_request("09_grid", [shape], "f", [dtype], [gpu]))
    }
    assert {*specialisations(asked)} == single and len(single) == len(specialisations(asked))


def test_a_shape_is_a_range_and_another_axis_has_three_sizes() -> None:
    asked = export_request("06_registers", ["8x4096", "1..9x32"], "f")
    assert asked.shapes[0] == Shapes(Range(8, 8), Range(4096, 4096))
    assert [str(shapes) for shapes in asked.shapes] == ["8x4096", "1..9x32"]
    assert asked.dtypes == (np.dtype("float32"),)
    asked = export_request("13_any_axis", ["1..64x1024x3136"])
    assert asked.shapes == (Shapes(Range(1, 64), Range(1024, 1024), Range(3136, 3136)),)
    assert [str(shapes) for shapes in asked.shapes] == ["1..64x1024x3136"]


@pytest.mark.parametrize(
    ("step", "shape", "said"),
    [
        ("13_any_axis", "64x64", "shapes must be OUTERxDIMxINNER, each a number or"),
        ("12_fused", "3x64x64", "shapes must be ROWSxCOLS, each a number or"),
        ("13_any_axis", "1x1..200x1..200", "has more than 16384 row lengths; request fewer"),
        (
            *("12_fused-WIDE1", "64x4096"),
            "accepts no float32 matrix of 64x4096: kernels/12_fused.cu does not build .*WIDE = 1",
        ),
        ("14_backward-BIAS1", "64x4096", "14_backward.cu has no BIAS"),
        ("variants/00_read", "64x64", "variants/00_read computes read, which cannot be exported"),
        (
            *("softmax_backward-BIAS1", "64x4096"),
            "softmax_backward has no BIAS = 1; its features: LOG = no",
        ),
    ],
)
def test_a_refusal_says_why(step: str, shape: str, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        specialisations(export_request(step, [shape]))


@pytest.mark.parametrize(
    ("name", "step", "shape"),
    [
        ("softmax", "12_fused", "64x4096"),
        ("softmax-LOG1-MASK2", "12_fused-LOG1-MASK2", "64x4096"),
        ("softmax_any_axis", "13_any_axis", "4x64x64"),
        ("softmax_backward-FROM_X1", "14_backward-FROM_X1", "64x4096"),
        ("cross_entropy", "15_cross_entropy", "64x4096"),
        ("cross_entropy_backward", "15_gradient", "64x4096"),
        ("cross_entropy_loss_and_gradient", "15_loss_and_gradient", "64x4096"),
    ],
)
def test_an_operation_stands_for_its_kernel_and_names_it(name: str, step: str, shape: str) -> None:
    assert export_request(name, [shape]) == export_request(step, [shape])
    assert export_request(step, [shape]).name == name.partition("-")[0]
