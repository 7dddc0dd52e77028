"""Expressions of headers in C++ and Python."""

import itertools

import pytest

from helpers.catalogue.expressions import Expression
from helpers.catalogue.plan import INPUTS
from helpers.catalogue.registry import steps, variants
from helpers.export.asked import exports
from helpers.export.terms import as_cpp
from helpers.problem.problem import MAX_BYTES, MAX_INT, Problem
from helpers.run.bound import load
from tests.helpers.export.plans import GPUS

LEAST = dict.fromkeys(INPUTS, 1) | {"share": 0, "any": float("-inf")}


def test_terms_guard_what_divides_and_nest_without_a_warning() -> None:
    """What no header of today has; the rest is compared at random matrices, in test_cpp.py."""
    for text, cpp in (
        ("rows - (cols - 3)", "rows - (cols - 3)"),
        ("rows / (cols / 2)", "rows / divisor(cols / 2)"),
        ("rows % share == 0", "rows % divisor(share) == 0"),
        ("rows > 1 || cols > 1 && size == 2", "rows > 1 || (cols > 1 && size == 2)"),
        ("(rows > 1) == (cols > 1)", "(rows > 1) == (cols > 1)"),
        ("rows < 4294967296", "rows < 4294967296LL"),
    ):
        assert as_cpp(Expression(text).tree, LEAST) == cpp


@pytest.mark.parametrize("text", ["(rows - cols) / 2", "any % 2", "ceil_div(rows - 2, 3)"])
def test_what_may_be_negative_is_not_divided(text: str) -> None:
    with pytest.raises(ValueError, match="may be negative and is divided"):
        as_cpp(Expression(text).tree, LEAST)


@pytest.mark.parametrize("step", [*filter(exports, (*steps(), *variants()))])
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
