"""`Problem`: what it refuses, how it is compared, what it says of sizes, arguments and traffic."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.problem.operations import OPERATIONS, SOFTMAX
from helpers.problem.problem import Problem

REFUSED = {
    "no rows": ({"rows": 0}, ValueError, "rows = 0 is not 1 to 2147483647"),
    "cols past an int": ({"cols": 2**31}, ValueError, "cols = 2147483648 is not 1 to 2147483647"),
    "half a row": ({"rows": 4.5}, TypeError, "rows must be an integer, not 4.5"),
    "inner of no integer": ({"inner": 2.0}, TypeError, "inner must be an integer, not 2.0"),
    "inner that does not divide": (
        *({"inner": 5}, ValueError),
        "rows = 12 is not outer * inner, with inner = 5",
    ),
    "stride of no integer": ({"x_stride": 8.5}, TypeError, "x_stride must be an integer, not 8.5"),
    "stride below cols": (
        *({"x_stride": 7}, ValueError),
        "x_stride = 7 is less than a row, which has cols = 8",
    ),
    "stride past memory": (
        *({"y_stride": 2**61}, ValueError),
        f"y_stride = {2**61} makes a matrix of more than {2**57} bytes",
    ),
    "no dtype": (
        *({"dtype": "float"[:3]}, ValueError),
        "dtype must be one of float32, float16, bfloat16, not 'flo' (str)",
    ),
    "no operation": (
        *({"operation": "softmin"}, ValueError),
        f"operations are {', '.join(OPERATIONS)}, not 'softmin'",
    ),
    "no feature": (
        *({"features": {"HUGE": 1}}, ValueError),
        "softmax has no HUGE = 1; its features: MASK = none, bytes, causal; BIAS = no, yes; "
        "LOG = no, yes; WIDE = no, yes; DROPOUT = no, yes; ZERO = no, yes",
    ),
    "no value of a feature": (
        *({"operation": "softmax_any_axis", "features": {"LOG": 2}}, ValueError),
        "softmax_any_axis has no LOG = 2; its features: LOG = no, yes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_kernel_could_take_is_refused_in_one_sentence(case: str) -> None:
    given, error, sentence = REFUSED[case]
    with pytest.raises(error) as caught:
        Problem(**{"rows": 12, "cols": 8, **given})
    assert str(caught.value) == sentence


def test_equal_problems_are_equal_however_they_are_written() -> None:
    one = Problem(12, 8, "float32", features=(("MASK", 2), ("LOG", 1)))
    other = Problem(
        *(np.int64(12), np.uint8(8), np.float32),
        operation="softmax",
        features={"LOG": "yes", "BIAS": 0, "MASK": "causal"},
        x_stride=8,
    )
    assert one == other and hash(one) == hash(other) and one.operation is SOFTMAX
    assert other.features == (("MASK", 2), ("LOG", 1)), "in the operation's order, without zeros"
    assert type(other.rows) is int
    for change in ({"rows": 6}, {"dtype": "float16"}, {"y_stride": 9}, {"alike": False}):
        assert replace(one, **change) != one


def test_arguments_are_completed_with_neutral_numbers() -> None:
    problem = Problem(6, 8, features={"BIAS": 1})
    bias = np.zeros((2, 8), np.float32)
    values = problem.complete({"x": 1, "bias": bias})
    assert values.pop("bias") is bias
    neutral = {"scale": 1.0, "bias_rows": 2, "bias_repeat": 1, "bias_group": 6}
    assert values == {"x": 1, **neutral}
    for given, error, sentence in (
        ({"x": 1}, TypeError, "softmax with BIAS = 1 needs bias"),
        ({"x": 1, "bias": bias, "mask": 1}, TypeError, "softmax with BIAS = 1 takes x, y, .* mask"),
    ):
        with pytest.raises(error, match=sentence):
            problem.complete(given)
    with pytest.raises(ValueError, match="p = 1.5 is not 0 to 1"):
        Problem(6, 8, features={"DROPOUT": 1}).complete({"x": 1, "p": 1.5})
