"""Expressions of headers are C's: the same value where C has one, refused where C would differ."""

import pytest

from helpers.catalogue.expressions import DivisionByZero, Expression, ExpressionError

NAMES = {"rows": 33, "cols": 1000, "block": 128}


def evaluate(text: str, **names: int) -> int:
    return Expression(text).value(names or NAMES)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(rows + block - 1) / block", 1),
        ("rows % 32", 1),
        ("max(rows, min(block, 64))", 64),
        ("cols >= 1 && cols <= 999", 0),
        ("1 <= rows && rows <= 40 && cols == 1000 && cols % 8 == 0", 1),
        ("rows != 33", 0),
        ("cols < 9 || rows < 9", 0),
        ("rows < 9 && cols < 9 || rows == 33", 1),  # && binds closer, as in C
        ("rows == 33 || rows < 9 && cols < 9", 1),
        ("rows - cols", -967),
        ("ceil_div(cols, 32)", 32),
        ("ceil_div(cols, block) * ceil_div(0, 7)", 0),
        ("power_of_two(1024) + power_of_two(1025)", 3072),
        ("power_of_two(1) + power_of_two(0)", 2),
        ("power_of_two(rows - 1)", 32),
        ("rows != 33 && rows / 0", 0),  # the second is not looked at
        ("rows == 33 || rows / 0", 1),
    ],
)
def test_value_is_that_of_c(text: str, value: int) -> None:
    found = evaluate(text)
    assert found == value and type(found) is int


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not an expression"),
        ("rows)", "is not an expression"),
        ("rows := 3", "is not an expression"),
        ("!rows", "is not an expression"),
        ("-rows", "is not an expression over integers"),
        ("rows << 2", "is not an expression over integers"),
        ("1.5 * rows", "is not an expression over integers"),
        ("rows.real", "is not an expression over integers"),
        ("rows ** 2", "is not written in C"),
        ("rows and cols", "is not written in C"),
        ("rows if cols else 1", "is not written in C"),
        ("rows in (1, 2)", "is not written in C"),
        ("True", "is not written in C"),
        ("rows # of the matrix", "is not written in C"),
        ("rows + 1_000", "is not written in C"),
        ("017", "is not an expression"),  # which C takes for 15
        ("rows ? 1 : 2", "has a `?`; write its cases as lines with `when`"),
        ("1 <= rows <= 40", "has a chained comparison: write a < b && b < c"),
        ("abs(rows)", "calls abs; there are min, max, ceil_div, power_of_two"),
        ("__import__('os').getcwd()", "calls something; there are"),
        ("min(rows)", "min takes 2 arguments"),
        ("min(1, 2, key=3)", "min takes 2 arguments"),
        ("power_of_two()", "power_of_two takes 1 argument"),
        ("min(rows, abs(cols))", "calls abs"),
    ],
)
def test_what_is_not_c_or_means_something_else_in_c_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        Expression(text)
    assert str(caught.value).startswith(f"`{text}`") and reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("colums", "reads colums; there are rows, cols, block"),
        ("(rows - cols) / 2", "divides -967 by 2: C rounds that towards zero"),
        ("cols / (rows - 40)", "divides 1000 by -7"),
        ("ceil_div(rows - cols, 32)", "divides -967 by 32"),
    ],
)
def test_value_that_c_would_have_otherwise_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text)
    assert reason in str(caught.value) and text in str(caught.value)


@pytest.mark.parametrize("text", ["rows / (rows - 33)", "rows % 0", "ceil_div(rows, 0)"])
def test_division_by_zero_is_an_error_of_its_own(text: str) -> None:
    with pytest.raises(DivisionByZero, match="divides by zero"):
        evaluate(text)


def test_products_are_those_of_64_bits() -> None:
    most = 2**63 - 1
    assert evaluate("rows * cols", rows=2**31 - 1, cols=2**31 - 1) == (2**31 - 1) ** 2
    assert evaluate("rows * 1", rows=most) == most
    assert evaluate("0 - rows - 1", rows=most) == -(2**63)
    for text in ("rows + 1", "rows * 2", "0 - rows - 2", "power_of_two(rows)", "rows * 2 - rows"):
        with pytest.raises(ExpressionError, match="does not fit 64 bits"):
            evaluate(text, rows=most)


def test_constants_are_those_of_64_bits() -> None:
    with pytest.raises(ExpressionError, match="does not fit 64 bits"):
        evaluate("9223372036854775808")
