"""The numbers of exported C++ plans stay within 64 bits."""

import itertools
from collections.abc import Sequence

import pytest

from helpers.base.gpu import H200, Gpu
from helpers.catalogue.expressions import Definition, Evaluate, Integers, Names, Requirement
from helpers.catalogue.plan import inputs
from helpers.catalogue.registry import steps, variants
from helpers.export.request import is_exportable
from helpers.problem.problem import MAX_BYTES, MAX_INT, Problem
from helpers.run.bound import load

A100 = Gpu(80, 108, 40 * 2**20)


class Everything(Integers):
    """Evaluates, as C++ does, what does not decide too. A quotient that is not defined is 0."""

    def apply(self, function: str, *values: int) -> int:
        undefined = function in ("/", "%", "ceil_div") and (values[0] < 0 or values[1] <= 0)
        return 0 if undefined else super().apply(function, *values)

    def logical(self, conjunction: bool, parts: Sequence[Evaluate], names: Names) -> int:
        found = [part(names, self) != 0 for part in parts]
        return int(all(found) if conjunction else any(found))

    def define(self, definition: Definition, names: Names) -> int:
        found = [(v.value(names, self), not c or c.value(names, self)) for v, c in definition.cases]
        return next((value for value, holds in found if holds), 0)

    def require(self, requirement: Requirement, names: Names) -> None:
        requirement.condition.value(names, self)


LARGEST = [(min(2**a, MAX_INT), 2**b) for a in range(0, 32, 6) for b in (0, 10, 20, 30)]
LARGEST += [(MAX_INT, 1), (1, MAX_INT), (MAX_INT, 2**24), (2**24, MAX_INT)]


@pytest.mark.parametrize("step", [*filter(is_exportable, (*steps(), *variants()))])
def test_no_plan_of_the_largest_matrices_passes_64_bits(step: str) -> None:
    """Nor anything on the way that no plan contains in the end."""
    contract = load(step).header
    for (rows, cols), dtype, gpu in itertools.product(LARGEST, contract.dtypes, (H200, A100)):
        if rows * cols * dtype.itemsize <= MAX_BYTES:
            for inner in [1] if "inner" not in contract.operation.sizes else [1, 2**11, rows]:
                problem = Problem(max(inner, rows - rows % inner), cols, dtype, inner=inner)
                names = inputs(problem, gpu) | {"isAligned": 1, "isAlike": 1}
                names |= {"isContiguous": 1, "maxShared": gpu.max_shared}
                contract.program(any_start=True).evaluate(names, Everything())
