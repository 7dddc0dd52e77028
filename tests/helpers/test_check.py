"""The checker bites: planted mistakes are rejected, what is right or PyTorch's rule is accepted."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from helpers.run.check import WrongResult, check_copy, check_softmax
from helpers.run.references import (
    UNIT_ROUNDOFF,
    make_input,
    poisoned,
    reference,
    special_rows,
)

SHAPES = ((3, 2), (3, 7), (133, 33), (4, 1000), (3, 32768))
INF, NAN = np.inf, np.nan


def right(x: np.ndarray) -> np.ndarray:
    return reference(x).astype(np.float32)


# ---- planted defects --------------------------------------------------------------------------


def changed(y: np.ndarray, place: tuple, value: float) -> np.ndarray:
    y[place] = value
    return y


def half_precision_sum(x):
    """Exponentials added up in fp16, one after the other."""
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    halves = exponentials.astype(np.float16)
    total = np.add.accumulate(halves, axis=1, dtype=np.float16)[:, -1:]
    return exponentials / total.astype(np.float32)


DEFECTS = {  # name -> what it makes of x, the hint that the message gives
    "zeros": (np.zeros_like, "all zero"),
    "constant": (lambda x: np.full_like(x, 1 / x.shape[1]), ""),
    "shifted columns": (
        lambda x: np.roll(right(x), 1, axis=1),
        "the largest element is at the wrong",
    ),
    "dropped tail": (lambda x: changed(right(x), np.s_[:, -1], 0), ""),
    "unwritten tail": (lambda x: changed(right(x), (-1, -1), NAN), ""),
    "one NaN": (lambda x: changed(right(x), (len(x) // 2, x.shape[1] // 3), NAN), "are NaN"),
    "unnormalised": (lambda x: np.exp(x - x.max(axis=1, keepdims=True)), "do not sum to 1; the wo"),
    "half precision sum": (half_precision_sum, ""),
    "unwritten": (poisoned, "nothing was written, or every row overflowed"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_planted_defect_is_rejected(name: str) -> None:
    defect, hint = DEFECTS[name]
    for shape in SHAPES:
        x = make_input(*shape)
        y = defect(x)
        assert y.shape == x.shape and y.dtype == np.float32
        with pytest.raises(WrongResult, match=r"elements? (is|are) wrong, first at row \d+") as e:
            check_softmax(x, y)
        assert shape not in ((3, 7), (4, 1000)) or hint in str(e.value)


@pytest.mark.parametrize("cols", [7, 1000, 32768])
@pytest.mark.parametrize("column", ["largest", "smallest"])
def test_single_element_off_by_a_thousandth_is_rejected(cols: int, column: str) -> None:
    x = make_input(2, cols)
    y = right(x)
    place = y[1].argmax() if column == "largest" else y[1].argmin()
    y[1, place] *= 1.001
    with pytest.raises(WrongResult, match=rf"^1 of {x.size} .*row 1, column {place}\b"):
        check_softmax(x, y)


@pytest.mark.parametrize("check", [check_softmax, check_copy])
def test_wrong_shape_or_dtype_is_rejected(check: Callable) -> None:
    x = make_input(3, 7)
    for y in (np.zeros((21,), np.float32), x.T, x.astype(np.float16), x.astype(np.int32)):
        form = re.escape(f"y is {y.dtype}{y.shape}, but x is float32(3, 7)")
        with pytest.raises(WrongResult, match=form):
            check(x, y)


# ---- correct answers --------------------------------------------------------------------------


def serial_fp32(x):
    """One element after the other, as one thread per row adds them up."""
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    return exponentials / np.add.accumulate(exponentials, axis=1, dtype=np.float32)[:, -1:]


def test_serial_sum_may_walk_at_random() -> None:
    """4095 small terms after a 1: every addition rounds by up to u, and none is lost."""
    terms = np.random.default_rng(0).uniform(2e-6, 2e-5, (500, 4096))
    terms[:, 0] = 1
    x = np.log(terms).astype(np.float32)
    y = serial_fp32(x)
    assert np.abs(y[:, 0] / reference(x)[:, 0] - 1).max() > 100 * UNIT_ROUNDOFF
    check_softmax(x, y)


SIXTEEN_BIT = ("float16", "bfloat16")


def truncated(x):
    """The 16 bits that are there, without rounding: towards zero."""
    exact = right(x)
    if x.dtype.name == "bfloat16":
        return (exact.view(np.uint32) >> 16).astype(np.uint16).view(x.dtype)
    rounded = exact.astype(np.float16)
    return np.where(rounded > exact, np.nextafter(rounded, np.float16(0)), rounded)


def sum_in_16_bits(x):
    exponentials = np.exp((x - x.max(axis=1, keepdims=True)).astype(np.float32))
    total = np.zeros(len(x), x.dtype)
    for column in exponentials.astype(x.dtype).T:
        total = (total + column).astype(x.dtype)
    return (exponentials / total.astype(np.float32)[:, None]).astype(x.dtype)


@pytest.mark.parametrize("cols", [7, 1000, 4097])
@pytest.mark.parametrize("dtype", SIXTEEN_BIT)
@pytest.mark.parametrize(
    "defect",
    [
        truncated,
        sum_in_16_bits,
        *(DEFECTS[name][0] for name in ("zeros", "constant", "shifted columns", "unwritten")),
        *(DEFECTS[name][0] for name in ("dropped tail", "unnormalised")),
    ],
)
def test_16_bit_result_is_rejected_if_wrong(defect: Callable, dtype: str, cols: int) -> None:
    x = make_input(16, cols, dtype=dtype)
    with pytest.raises(WrongResult):
        check_softmax(x, defect(x).astype(dtype))


def test_float16_may_lose_what_is_below_its_smallest_number_and_no_more() -> None:
    smallest = 2.0**-24
    x = np.array([[0, np.log(0.4 * smallest), np.log(3.2 * smallest)]], np.float16)
    y = reference(x).astype(np.float16)
    assert y[0, 1] == 0 and y[0, 2] == np.float16(3 * smallest)
    check_softmax(x, y)
    for wrong in (0, 2 * smallest, 4 * smallest):
        y[0, 2] = wrong
        with pytest.raises(WrongResult, match=r"^1 of 3 .* row 0, column 2\b"):
            check_softmax(x, y)


def test_reference_is_softmax_of_known_rows() -> None:
    x = np.log(np.array([[1, 2, 5], [4, 4, 8]], np.float64))
    assert np.allclose(reference(x), [[1 / 8, 2 / 8, 5 / 8], [1 / 4, 1 / 4, 1 / 2]], rtol=1e-15)
    assert np.allclose(reference(x + 1000), reference(x), rtol=1e-12)


# ---- -inf, NaN, +inf --------------------------------------------------------------------------

# What PyTorch gives: a masked element is 0; a row of all -inf, or one with NaN or +inf, is NaN.
SPECIAL_CASES = {
    "one masked": ([0, -INF, 0], [0.5, 0, 0.5]),
    "all but one masked": ([-INF, -7, -INF], [0, 1, 0]),
    "first masked": ([-INF, 3, 3], [0, 0.5, 0.5]),
    "all masked": ([-INF, -INF, -INF], [NAN, NAN, NAN]),
    "a NaN": ([0, NAN, 1], [NAN, NAN, NAN]),
    "a +inf": ([0, INF, 1], [NAN, NAN, NAN]),
    "two +inf": ([INF, 0, INF], [NAN, NAN, NAN]),
    "+inf and -inf": ([INF, 0, -INF], [NAN, NAN, NAN]),
    "a NaN and a +inf": ([NAN, 0, INF], [NAN, NAN, NAN]),
}


@pytest.mark.parametrize("case", SPECIAL_CASES)
def test_special_row_accepts_exactly_what_pytorch_gives(case: str) -> None:
    ordinary = [1, 1, 1]
    row, result = SPECIAL_CASES[case]
    x = np.array([ordinary, row], np.float32)
    y = np.array([[1 / 3] * 3, result], np.float32)
    check_softmax(x, y)
    for column in range(3):
        for other in {0.0, 0.25, 1.0, NAN, INF} - {float(y[1, column])}:
            if np.isnan(other) and np.isnan(y[1, column]):
                continue
            wrong = y.copy()
            wrong[1, column] = other
            with pytest.raises(WrongResult, match=rf"^1 of 6 .* row 1, column {column}\b"):
                check_softmax(x, wrong)


# ---- inputs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (33, 2), (33, 3), (257, 65), (4, 4097)], ids=str)
def test_input_exposes_mistakes(shape: tuple[int, int]) -> None:
    rows, cols = shape
    x = make_input(rows, cols)
    assert x.shape == shape and x.dtype == np.float32 and x.flags.c_contiguous
    assert np.isfinite(x).all()
    assert len(np.unique(x, axis=0)) == rows
    assert (np.abs(np.median(x, axis=1)) > 80).all(), "each row is far from 0"
    if rows > 30:
        assert (x[:, 0] > 0).any() and (x[:, 0] < 0).any()
    if cols > 1:
        top = np.sort(x, axis=1)[:, -2:]
        assert (np.diff(top, axis=1) > 3.9).all(), "one value of a row towers over the others"
    if cols > 2:
        assert all(len(np.unique(row)) < cols for row in x), "a row has a tie"
        if rows > 30:
            assert len(np.unique(x.argmax(axis=1))) > 1, "not always in the same column"


# ---- copies -----------------------------------------------------------------------------------


def test_copy_is_compared_bit_for_bit() -> None:
    x = special_rows(33)
    check_copy(x, x.copy())
    for change in (np.float32(1), np.float32(-0.0), np.float32(NAN)):
        y = x.copy()
        y[2, 32] = change
        with pytest.raises(WrongResult, match=r"first at \(2, 32\)"):
            check_copy(x, y)
