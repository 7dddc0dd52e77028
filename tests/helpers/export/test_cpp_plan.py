"""The rules of headers as C++ text."""

import itertools

import pytest

from helpers.base.gpu import H200, Gpu
from helpers.catalogue.expressions import Expression, ExpressionError
from helpers.catalogue.registry import steps, variants
from helpers.export.cpp_plan import CppText, Text
from helpers.export.request import is_exportable
from helpers.problem.problem import MAX_BYTES, MAX_INT, Problem
from helpers.run.bound import load

A100 = Gpu(80, 108, 40 * 2**20)
NAMES = {name: Text(name) for name in ("rows", "cols", "size", "share")}


def as_cpp(text: str) -> str:
    return Expression(text).value(NAMES, CppText())


@pytest.mark.parametrize(
    "text",
    [
        "rows - (cols - 3)",
        "rows * (cols * 3) - 2 - 1",
        "(rows + cols - 1) / cols",
        "(rows > 1) == (cols > 1)",
        "rows / (cols / 2) -> rows / divisor(plan, cols / 2)",
        "ceil_div(rows, share) * cols -> ceil_div(rows, divisor(plan, share)) * cols",
        "rows > 1 || cols > 1 && size == 2 -> rows > 1 || (cols > 1 && size == 2)",
        "rows < 4294967296 -> rows < 4294967296LL",
        "power_of_two(max(rows, 3)) * (cols + 1) -> power_of_two(greater(rows, 3)) * (cols + 1)",
    ],
)
def test_divisors_are_guarded_and_operators_nest_without_a_warning(text: str) -> None:
    rule, _, cpp = text.partition(" -> ")
    assert as_cpp(rule) == (cpp or rule)


@pytest.mark.parametrize("text", ["(rows - cols) / 2", "ceil_div(rows - 2, 3)"])
def test_a_number_that_may_be_negative_is_not_divided(text: str) -> None:
    with pytest.raises(ExpressionError, match="which may be negative"):
        as_cpp(text)


def test_no_plan_of_the_largest_matrices_passes_64_bits() -> None:
    """What headers compute exactly, an exported plan computes in long long."""
    largest = [(min(2**a, MAX_INT), 2**b) for a in range(0, 32, 6) for b in (0, 10, 20, 30)]
    largest += [(MAX_INT, 1), (1, MAX_INT), (MAX_INT, 2**24), (2**24, MAX_INT)]
    for step in filter(is_exportable, (*steps(), *variants())):
        contract = load(step).header
        for (rows, cols), dtype, gpu in itertools.product(largest, contract.dtypes, (H200, A100)):
            if rows * cols * dtype.itemsize <= MAX_BYTES:
                inners = [1] if "inner" not in contract.operation.sizes else [1, 2**11, rows]
                for inner in inners:
                    problem = Problem(max(inner, rows - rows % inner), cols, dtype, inner=inner)
                    assert "64 bits" not in contract.why_not(problem, gpu), step
