"""Operations are timed beside what moves as many bytes, and a kernel that is wrong has no time:
with NumPy in CuPy's place, and the SIMT machine in a GPU's."""

import sys
from types import SimpleNamespace

import cupy
import numpy as np
import pytest

from helpers.base.gpu import H200
from helpers.measure import baselines, bench, comparison
from helpers.measure.comparison import ComparisonTask
from helpers.measure.gpu_arrays import _Sample
from helpers.measure.problem_groups import numbers
from helpers.measure.workers import Failure
from helpers.problem.operations import OPERATIONS, SUMMED
from helpers.problem.problem import Problem
from helpers.run.bound import BoundKernel, bind, load
from helpers.run.references import expected
from tests.helpers.fake_cupy import fake_cupy
from tests.helpers.family import ANY_AXIS, BACKWARD, CROSS_ENTROPY, EACH, FUSED, GRADIENT
from tests.made_up import RUN


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list:
    """The list of calls in the capture that goes on, each of which runs on the SIMT machine. It
    gives the same each time: a call that finds all arrays as an earlier one did leaves them as that
    one did, and takes no time."""
    calls: list = []
    left: dict[tuple, tuple[BoundKernel, list[np.ndarray]]] = {}

    def enqueue(bound: BoundKernel, *arrays, workspace=(), **numbers) -> None:
        asked = bound.operation.arrays(bound.features)
        types = [argument.numpy_dtype(bound.dtype) for argument in asked]
        views = [
            array
            if len(arrays) != len(types) or array.itemsize != kind.itemsize
            else array.view(kind)
            for array, kind in zip(arrays, types, strict=False)
        ]

        def call() -> None:
            found = id(bound), repr(numbers), *(view.tobytes() for view in views)
            if found not in left:
                bound.simulate_arguments(bound.arguments(*views, **numbers))
                left[found] = bound, [view.copy() for view in views]
            for view, after in zip(views, left[found][1], strict=True):
                view[...] = after

        calls.append(call)
        call()

    def raw_kernel(code: str, name: str, options=(), **asked) -> SimpleNamespace:
        counted = {"num_regs": 1, "local_size_bytes": 0, "shared_size_bytes": 0}
        return SimpleNamespace(code=code, name=name, options=options, **asked, **counted)

    monkeypatch.setitem(
        sys.modules, "cupy", fake_cupy(calls, RawKernel=raw_kernel, __spec__=cupy.__spec__)
    )
    monkeypatch.setitem(bench.PROTOCOL, "warmup_s", 0)
    monkeypatch.setattr(BoundKernel, "prepare", lambda bound: None)
    monkeypatch.setattr(BoundKernel, "workspace", lambda bound: ())
    monkeypatch.setattr(BoundKernel, "enqueue", enqueue)
    monkeypatch.setattr(bench, "active_clusters", lambda *_: None)
    monkeypatch.setattr(bench, "gpu_in_use", lambda: H200)
    monkeypatch.setattr(bench.samples, "FEW", 1)
    return calls


EVERY = (
    ("softmax", {"MASK": "bytes", "LOG": 1}),
    ("softmax", {"MASK": "causal", "BIAS": 1}),
    ("softmax", {"DROPOUT": 1}),
    ("softmax_any_axis", {}),
    ("softmax_backward", {}),
    ("softmax_backward", {"LOG": 1}),
    ("cross_entropy", {}),
    ("cross_entropy_backward", {}),
)
BASELINES = {
    "softmax_backward": "variants/00_two_reads",
    "cross_entropy": "variants/00_read",
}


def measured(code: str, chosen: dict, dtype: str = "float32") -> tuple[Problem, dict]:
    inner = 4 if code is ANY_AXIS or "softmax_any_axis" in code else 1

    bound = bind(code, 12, 40, dtype, gpu=H200, inner=inner, features=chosen)

    def make(_) -> bench.Candidate:
        return bench.kernel_candidate(bound)

    return bound.problem, bench.measure({"it": make}, bound.problem, few=1)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay of few calls."""
    monkeypatch.setattr(bench, "FEW_WARMUP_S", 0)
    monkeypatch.setattr(bench, "FEW_REPLAY_MS", 1)


@pytest.mark.parametrize(
    ("name", "chosen", "dtype"),
    [*((*one, "float32") for one in EVERY), *((*one, "bfloat16") for one in EVERY[::3])],
    ids=str,
)
def test_each_operation_is_timed_beside_its_bandwidth_baseline(
    name, chosen, dtype, simulated
) -> None:
    problem, cases = measured(EACH[name], chosen, dtype)
    bandwidth_baseline = BASELINES.get(name, "00_copy")
    assert set(cases) == {"it", bandwidth_baseline}
    case = cases["it"]
    assert problem.operation.bandwidth_baseline == bandwidth_baseline and case.copy_samples_us


WRONG = {
    "mask": (FUSED, {"MASK": 1}, "if (byte)", "if (false)"),
    "scale": (FUSED, {"LOG": 1}, "scale * float", "float"),
    "dropout": (FUSED, {"DROPOUT": 1}, "round < 7", "round < 6"),
    "axis": (ANY_AXIS, {}, "+ column % inner", "+ column / outer"),
    "backward": (BACKWARD, {}, "kept * (g - sum)", "kept * g"),
    "loss": (CROSS_ENTROPY, {}, "float(x[t]) :", "float(x[t > 0 ? t - 1 : t]) :"),
    "gradient": (GRADIENT, {}, "if (col == t) value -=", "if (false) value -="),
    "statistics": (CROSS_ENTROPY, {}, "statistics[2 * row + 1] = log_sum;", ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_has_no_time(name: str, simulated) -> None:
    code, chosen, old, new = WRONG[name]
    assert old in code
    with pytest.raises(Failure, match="^it: wrong result: "):
        measured(code.replace(old, new), chosen)


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


CONTESTS = {
    "mask": Problem(3, 512, "bfloat16", features={"MASK": 1}),
    "axis": Problem(12, 64, inner=4, operation="softmax_any_axis"),
    "loss": Problem(6, 64, operation="cross_entropy"),
}


@pytest.mark.parametrize("name", CONTESTS)
def test_ours_and_a_baseline_are_compared_around_softmax(name: str, simulated, monkeypatch) -> None:
    """Our kernel as it is chosen, and one of another library that rounds once and leaves statistics
    unwritten; with the numbers of the comparison. A baseline that is wrong is named."""
    problem, right = CONTESTS[name], 1.0

    def make(problem: Problem):
        asked = problem.arrays

        def call(*arrays) -> None:
            def run() -> None:
                given = {}
                for argument, array in zip(asked, arrays, strict=True):
                    given[argument.name] = array.view(argument.numpy_dtype(problem.dtype))
                inputs = {one.name: given[one.name] for one in asked if not one.output}
                values = problem.complete({**inputs, **numbers(problem)})
                exact = expected(problem.operation, values, dict(problem.features))
                for one in (one for one in asked if one.output and one.name != "statistics"):
                    given[one.name][...] = exact[one.name].value * right

            simulated.append(run)
            run()

        return call

    unwritten = ("statistics",) if name == "loss" else ()
    offer = baselines.Offer(make, unwritten=unwritten, note="said")
    monkeypatch.setitem(baselines.OFFERS, problem.operation.name, {"torch": offer})
    monkeypatch.setattr(baselines, "why_not", lambda name, problem: "")
    monkeypatch.setattr(baselines, "free_memory", lambda: None)
    monkeypatch.setattr(comparison, "gpu_in_use", lambda: H200)
    task = ComparisonTask(problem, RUN, ("torch",))
    case = comparison.run_task(task)
    assert case.problem == problem and case.is_current()
    assert {*case.samples_us} == {case.step, "torch"} and case.notes == {"torch": "said"}
    assert case.copies_us == {} and case.copy_samples_us and case.verdict in comparison.VERDICTS
    right = 1.5
    with pytest.raises(Failure, match=r"^torch: wrong result: .* are wrong, by up to"):
        comparison.run_task(task)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "chosen"), EVERY, ids=str)
def test_gpu_times_each_operation(name: str, chosen: dict) -> None:
    inner = 64 if name == "softmax_any_axis" else 1

    bound = bind(EACH[name], 1024, 512, inner=inner, features=chosen)

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
