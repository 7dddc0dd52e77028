"""Which kernel files there are, what is tried beside them, and which of them suits a shape."""

import numpy as np
import pytest

from helpers.base.gpu import H200, Gpu
from helpers.catalogue.dispatch import choose, why
from helpers.catalogue.registry import (
    TRIALS,
    UNFUSED,
    known_steps,
    source,
    split_trial,
    step_number,
    steps,
    variants,
    with_hints,
)
from helpers.measure.profiling import SMALL_TRIALS
from helpers.problem.shapes import REFERENCE_SHAPE
from helpers.run.bound import load

SHAPES = (
    *((1, 1), (33, 64), (33, 1000), (5, 8), (4096, 12672), (8388608, 32), (262144, 1024)),
    *((1, 32768), (3, 20000), (16, 131072), (1, 1048576), (4096, 2048), REFERENCE_SHAPE),
)


def test_missing_kernel_file_lists_the_files_there_are() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        source("01_naiv.cu")
    assert str(caught.value).startswith("no kernel file kernels/01_naiv.cu; there are: 00_copy.cu")
    assert "01_naive.cu" in str(caught.value) and "variants" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match=r"there are: variants/00_copy_bulk\.cu"):
        source("variants/00_copy_scala.cu")
    with pytest.raises(FileNotFoundError, match=r"there are: 00_copy\.cu"):
        source("varants/00_copy_scalar.cu")


# ---- trials -----------------------------------------------------------------------------------


def test_trial_is_named_after_its_kernel_and_what_is_tried() -> None:
    assert split_trial("01_naive-b32") == ("01_naive", 32, ())
    assert split_trial("06_registers-PACKS4") == ("06_registers", None, (("PACKS", 4),))
    assert split_trial("variants/00_copy_scalar") == ("variants/00_copy_scalar", None, ())
    two = split_trial("08_cluster-CLUSTER2-b512-PACKS_A4")
    assert two == ("08_cluster", 512, (("CLUSTER", 2), ("PACKS_A", 4)))
    assert [step_number(step) for step in ("variants/07_a-b64", "10_b")] == [7, 10]


def test_everything_with_a_record_is_known_once() -> None:
    known = known_steps()
    assert known == [UNFUSED, *steps(), *variants(), *TRIALS] and len(set(known)) == len(known)


@pytest.mark.parametrize("trial", (*TRIALS, *SMALL_TRIALS))
def test_a_trial_differs_from_its_kernel(trial: str) -> None:
    file, block, changes = split_trial(trial)
    own, tried = load(file), load(trial)
    dtypes = own.header.dtypes
    places = [(*shape, dtype) for shape in SHAPES for dtype in dtypes]
    both = [place for place in places if own.accepts(*place) and tried.accepts(*place)]
    assert both
    plans = [(own.bind(*place).plan, tried.bind(*place).plan) for place in both]
    assert any(mine != other for mine, other in plans)
    if block:
        assert block % 32 == 0
        assert all(mine.block != other.block == block for mine, other in plans)
    for name, value in changes:
        if name in own.header.macros:
            assert all(other.macros[name] == value for _, other in plans)
            assert any(mine.macros[name] != value for mine, _ in plans)
        elif name in own.header.numbers:
            assert own.header.numbers[name] != value
            assert all(f"-D{name}={value}" in other.options for _, other in plans)
        else:
            assert all(other.values[name.lower()] == value for _, other in plans)
            assert any(mine.values[name.lower()] != value for mine, _ in plans)


def test_trial_spells_out_what_it_asks_for() -> None:
    values = {"EVICT_LAST": 1, "PROGRAMMATIC": 1, "CLUSTER": 4}
    assert with_hints("07_warp", values) == "07_warp"
    assert with_hints("09_grid-b512", values) == "09_grid-b512-STREAMING0-PROGRAMMATIC1"
    wanted = "08_cluster-STREAMING0-EVICT_LAST1"
    assert with_hints("08_cluster-STREAMING1", values) == wanted


# ---- choose -----------------------------------------------------------------------------------


def test_integers_of_numpy_choose_alike_and_others_are_named() -> None:
    for kind in (np.int32, np.int64, np.uint32):
        assert choose(kind(256), kind(2**20), gpu=H200) == "08_ahead"
        assert choose(kind(4), kind(8), gpu=H200) == "07_warp"
    with pytest.raises(TypeError, match="^rows must be an integer, not 4.5$"):
        choose(4.5, 8)
    with pytest.raises(TypeError, match="^cols must be an integer, not '8'$"):
        choose(4, "8")
    with pytest.raises(TypeError, match="^y_stride must be an integer, not 8.0$"):
        choose(4, 8, y_stride=8.0)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"dtype": "float64"}, "the kernel takes float32, float16, bfloat16, not float64"),
        ({"x_stride": 7}, "x_stride = 7 is less than a row, which has cols = 8"),
        ({"gpu": Gpu(70, 80, 2**22)}, "kernels/11_any_length.cu needs sm_75, the GPU is"),
        ({"inner": 3}, "rows = 4 is not outer * inner, with inner = 3"),
        ({"operation": "softmin"}, "operations are softmax, softmax_any_axis, "),
        ({"features": {"MASK": "upper"}}, "softmax has no MASK = upper; its features: MASK = none"),
        ({"features": {"DROPOUT": 1, "LOG": 1}}, "kernels/12_fused.cu does not build MASK = 0, "),
        ({"features": {"WIDE": 1}}, "kernels/12_fused.cu does not build MASK = 0, "),
    ],
    ids=str,
)
def test_what_no_kernel_takes_is_named(given: dict, reason: str) -> None:
    for answer in (choose, why):
        with pytest.raises(ValueError) as caught:
            answer(**{"rows": 4, "cols": 8, **given})
        said = str(caught.value)
        assert said.startswith(reason) and "\n" not in said
        for name, value in given.get("features", {}).items():
            assert f"{name} = {value}" in said


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"features": {"MASK": "causal"}}, "12_fused-MASK2: a row that the registers"),
        ({"inner": 64}, "13_any_axis: another axis: tiles are wider"),
        ({"operation": "softmax_backward"}, "14_backward: both rows of a gradient"),
        ({"operation": "softmax_backward", "cols": 96}, "14_any_row: both rows of a gradient"),
        ({"operation": "cross_entropy"}, "15_cross_entropy: a loss, in one read"),
        ({"operation": "cross_entropy_backward"}, "15_gradient: a gradient in which"),
    ],
    ids=str,
)
def test_why_says_so_of_what_is_around_softmax(given: dict, taken: str) -> None:
    given = {"cols": 4096, "gpu": H200, **given}
    first, *others = why(8192, **given).splitlines()
    assert first.startswith(taken) and not others
    step = first.partition(":")[0]
    assert step == choose(8192, **given)
    assert load(step).accepts(8192, given["cols"], inner=given.get("inner", 1))


def test_why_says_what_was_taken_and_what_was_passed_over() -> None:
    alone = why(65536, 4096, gpu=H200)
    assert alone == "08_cluster: a row that the registers of a cluster can hold"
    taken, *passed = why(65536, 77, gpu=H200).splitlines()
    assert taken.startswith("11_short_rows: short rows that are no whole packs, or start")
    (tenth, *_) = passed
    assert tenth.startswith(
        "not 10_sixteen_bit (rows of at most 1.5 KB, or 2 KB if the L2 has room"
    )
    assert tenth.endswith("): the kernel takes float16, bfloat16, not float32")
    taken, *passed = why(64, 4096, gpu=H200, x_stride=5000).splitlines()
    assert taken.startswith("11_any_row: ") and "takes rows that follow each other" in passed[0]
    taken, *passed = why(64, 4096, gpu=H200, aligned=False).splitlines()
    assert taken.startswith("11_any_row: ")
    assert passed[0].endswith("arrays must start at multiples of 16 bytes")


@pytest.mark.parametrize(
    ("given", "file"),
    [
        ({"rows": 8388608, "cols": 32}, "07_warp"),
        ({"rows": 8388608, "cols": 32, "dtype": "float16"}, "10_sixteen_bit"),
        ({"rows": 65536, "cols": 704, "dtype": "bfloat16"}, "10_sixteen_bit"),
        ({"rows": 65536, "cols": 77, "dtype": "bfloat16"}, "11_short_rows"),
        ({"rows": 65536, "cols": 1023}, "11_any_row"),
        ({"rows": 16384, "cols": 1024, "dtype": "bfloat16"}, "08_cluster"),
        ({"rows": 8, "cols": 262144}, "09_grid"),
        ({"rows": 9, "cols": 262144}, "08_cluster"),
        ({"rows": 256, "cols": 1048576}, "08_ahead"),
        ({"rows": 8192, "cols": 1000003}, "11_any_length"),
        ({"x_stride": 4096, "y_stride": 4096}, "08_cluster"),
        ({"x_stride": 5000}, "11_any_row"),
        ({"aligned": False}, "11_any_row"),
        ({"rows": 1, "x_stride": 5000, "y_stride": 4097}, "08_cluster"),  # a row has no stride
        ({"cols": 256}, "07_warp"),
        ({"cols": 256, "x_stride": 260}, "11_short_rows"),
        ({"cols": 256, "aligned": False}, "11_short_rows"),
        ({"cols": 2**20, "x_stride": 2**21}, "11_any_length"),
        ({"rows": 64, "inner": 64}, "13_any_axis"),
        ({"rows": 1094, "cols": 100000, "inner": 1094}, "13_long_columns"),
        ({"rows": 1290, "cols": 1109, "inner": 129, "dtype": "float16"}, "13_any_axis"),
        ({"rows": 129000, "cols": 1108, "inner": 129, "dtype": "float16"}, "13_any_axis"),
        ({"rows": 2408, "cols": 512, "inner": 301}, "13_any_axis"),
        ({"rows": 511, "cols": 512, "inner": 511, "dtype": "float16"}, "13_any_axis"),
        ({"rows": 129000, "cols": 1109, "inner": 129, "dtype": "float16"}, "13_long_columns"),
        ({"gpu": Gpu(89, 108, 40 * 2**20)}, "06_registers"),
        ({"gpu": Gpu(89, 108, 40 * 2**20), "dtype": "float16"}, "11_any_row"),
    ],
    ids=str,
)
def test_each_kind_of_matrix_has_its_kernel(given: dict, file: str) -> None:
    step = choose(**{"rows": 4096, "cols": 4096, "gpu": H200, **given})
    assert split_trial(step).file == file
