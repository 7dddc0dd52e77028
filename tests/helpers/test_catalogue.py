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
    steps,
    variants,
)
from helpers.run.bound import load


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


def test_everything_with_a_record_is_known_once() -> None:
    known = known_steps()
    assert known == [UNFUSED, *steps(), *variants(), *TRIALS] and len(set(known)) == len(known)


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
        ({"inner": 64}, "13_any_axis: another axis: lines begin at sectors"),
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
