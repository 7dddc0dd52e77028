"""The rules of headers as C++ text."""

import itertools

import pytest

from helpers.catalogue.expressions import Expression, ExpressionError
from helpers.catalogue.registry import steps, variants
from helpers.export.cpp_plan import CppText
from helpers.export.request import is_exportable
from helpers.export.terms import Term
from helpers.problem.problem import MAX_BYTES, MAX_INT, Problem
from helpers.run.bound import load
from tests.helpers.export.plans import GPUS

NAMES = {name: Term(name) for name in ("rows", "cols", "size")}
NAMES |= {"share": Term("share", least=0), "any": Term("any", least=float("-inf"))}
NAMES |= {"one": CppText().number(1), "none": CppText().number(0)}


def as_cpp(text: str) -> str:
    return Expression(text).value(NAMES, CppText()).text


@pytest.mark.parametrize(
    ("text", "cpp"),
    [
        ("rows - (cols - 3)", "rows - (cols - 3)"),
        ("rows / (cols / 2)", "rows / divisor(cols / 2)"),
        ("rows % share == 0", "rows % divisor(share) == 0"),
        ("ceil_div(rows, share) * cols", "ceil_div(rows, divisor(share)) * cols"),
        ("rows > 1 || cols > 1 && size == 2", "rows > 1 || (cols > 1 && size == 2)"),
        ("(rows > 1) == (cols > 1)", "(rows > 1) == (cols > 1)"),
        ("rows < 4294967296", "rows < 4294967296LL"),
        ("power_of_two(max(rows, 3)) * (cols + 1)", "power_of_two(greater(rows, 3)) * (cols + 1)"),
        ("rows * (one + none)", "rows"),
        ("one == 0 || rows > 3", "rows > 3"),
        ("rows > 3 && one == 0", "0"),
        ("rows / share > 3 && one == 0", "rows / divisor(share) > 3 && 0"),
        ("rows > 3 || one", "1"),
        ("rows && one", "rows != 0"),
        ("rows >= 1 && cols >= 2", "cols >= 2"),
        ("one / none", "1 / divisor(0)"),
    ],
)
def test_terms_guard_divisors_nest_without_a_warning_and_fold_literals(text: str, cpp: str) -> None:
    assert as_cpp(text) == cpp


@pytest.mark.parametrize("text", ["(rows - cols) / 2", "any % 2", "ceil_div(rows - 2, 3)"])
def test_a_number_that_may_be_negative_is_not_divided(text: str) -> None:
    with pytest.raises(ExpressionError, match="which may be negative"):
        as_cpp(text)


@pytest.mark.parametrize("step", [*filter(is_exportable, (*steps(), *variants()))])
def test_no_plan_of_the_largest_matrices_passes_64_bits(step: str) -> None:
    """What headers compute exactly, an exported plan computes in long long."""
    contract = load(step).header
    largest = [(min(2**a, MAX_INT), 2**b) for a in range(0, 32, 6) for b in (0, 10, 20, 30)]
    largest += [(MAX_INT, 1), (1, MAX_INT), (MAX_INT, 2**24), (2**24, MAX_INT)]
    for (rows, cols), dtype, gpu in itertools.product(largest, contract.dtypes, GPUS):
        if rows * cols * dtype.itemsize <= MAX_BYTES:
            inners = [1] if "inner" not in contract.operation.sizes else [1, 2**11, rows]
            for inner in inners:
                problem = Problem(max(inner, rows - rows % inner), cols, dtype, inner=inner)
                reason = contract.why_not(problem, gpu)
                assert "64 bits" not in reason
