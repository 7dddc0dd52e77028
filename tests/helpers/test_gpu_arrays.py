"""Operations are timed beside what moves as many bytes; sums are checked of the sampled rows."""

import numpy as np
import pytest

from helpers.measure import bench
from helpers.measure.gpu_arrays import _Sample
from helpers.problem.operations import OPERATIONS, SUMMED
from helpers.problem.problem import Problem
from helpers.run.bound import load

EVERY = (
    ("12_fused", {"MASK": "bytes", "LOG": 1}),
    ("12_fused", {"MASK": "causal", "BIAS": 1}),
    ("12_fused", {"DROPOUT": 1}),
    ("13_any_axis", {}),
    ("14_backward", {}),
    ("14_backward", {"LOG": 1}),
    ("15_cross_entropy", {}),
    ("15_gradient", {}),
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda one: one.name)
def test_a_bandwidth_baseline_moves_as_many_bytes(operation, dtype: str) -> None:
    sizes = (4096, 50257, dtype) if "inner" not in operation.sizes else (64 * 64, 500, dtype, 64)
    problem = Problem(*sizes, operation=operation)
    yard = problem.bandwidth_baseline
    assert abs(yard.compulsory_bytes / problem.compulsory_bytes - 1) < 1e-3
    assert load(operation.bandwidth_baseline).accepts(*yard.shape) and yard.operation is (
        load(operation.bandwidth_baseline).operation
    )


def test_bytes_are_those_of_the_formula() -> None:
    def moved(name: str, dtype: str = "float32", rows=1024, cols=1024, **features: int) -> float:
        chosen = tuple(features.items())
        problem = Problem(rows, cols, dtype, operation=name, features=chosen)
        return problem.compulsory_bytes / (rows * cols)

    assert moved("softmax") == moved("softmax_any_axis") == 8 and moved("softmax", "float16") == 4
    assert moved("softmax", "bfloat16", WIDE=1) == 6 and moved("softmax", MASK=1) == 9
    assert moved("softmax", MASK=2) == pytest.approx(6, abs=0.01)
    assert moved("softmax", MASK=2, rows=4096) == pytest.approx(6, abs=0.01), "four matrices"
    assert moved("softmax_backward") == 12
    assert moved("cross_entropy") == pytest.approx(4, abs=0.05)
    assert moved("cross_entropy_backward") == pytest.approx(8, abs=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "chosen"), EVERY, ids=str)
def test_gpu_times_each_operation(name: str, chosen: dict) -> None:
    inner = 64 if name == "13_any_axis" else 1
    bound = load(name).bind(1024, 512, inner=inner, features=chosen)

    def make(_) -> bench.Candidate:
        return bench.kernel_candidate(bound)

    case = bench.measure({"it": make}, bound.problem, few=3)["it"]
    assert 0 < case.share < 1.1


@pytest.mark.parametrize(
    "rows, cols", ((4096, 32), (2048, 64), (256, 512), (32, 4096), (30, 64), (7, 96))
)
def test_sums_are_those_of_the_rows_that_are_looked_at(rows: int, cols: int) -> None:
    x = np.arange(rows * cols, dtype=np.float64).reshape(rows, cols)
    every = np.arange(0, x.size, SUMMED)
    take = _Sample(Problem(rows, cols, operation="read"))
    sums = take(("sums",), np.add.reduceat(x.reshape(-1), every))
    looked_at = take(("rows", "cols"), x).reshape(-1)
    of_those = np.add.reduceat(looked_at, np.arange(0, looked_at.size, SUMMED))
    np.testing.assert_array_equal(sums, of_those)
    assert {0, rows - 1} <= set(take.rows.tolist())
