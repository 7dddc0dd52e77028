"""What baselines offer around softmax: formulas that are right, mistakes that are found, what they
are told. Formulas are tried where PyTorch is installed, on any machine."""

import ctypes
import importlib.util
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.measure import baselines, interop
from helpers.measure.baselines import NOT_OFFERED, OFFERS, check_result
from helpers.measure.bench import poison_outputs
from helpers.measure.gpu_arrays import buffers, verify
from helpers.measure.interop import torch_dtypes
from helpers.measure.problem_groups import GROUPS, chosen, entries, group_of, name_of, numbers
from helpers.problem.problem import Problem
from helpers.run.check import WrongResult
from helpers.run.references import expected
from tests.helpers.fake_cupy import fake_cupy

ROWS, COLS, INNER = 40, 20, 5
SMALL = {  # rows are whole squares of columns, and whole lots of the elements between columns
    f"{name}, {dtype}": group.problem(ROWS, COLS, dtype, INNER if name == "any axis" else 1)
    for name, group in GROUPS.items()
    for dtype in group.dtypes
}


@pytest.fixture
def numpy_for_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy([]))


def arrays_of(problem: Problem) -> tuple:
    arrays = buffers(problem, np.random.default_rng(0))
    poison_outputs(problem, arrays)
    return arrays


# ---- formulas -----------------------------------------------------------------------------------


def run_on_tensors(function, problem: Problem, arrays) -> None:
    """Give NumPy's memory to a function of PyTorch's tensors."""
    import torch

    def tensor(array: np.ndarray, dtype: str):
        whole = torch.from_numpy(array.view(np.int16) if array.dtype == np.uint16 else array)
        return whole.view(getattr(torch, dtype))

    function(*map(tensor, arrays, torch_dtypes(problem)))


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="PyTorch is not installed")
@pytest.mark.parametrize("case", SMALL)
@pytest.mark.parametrize("way", ["torch", "compile"])
def test_formulas_of_pytorch_are_right(case: str, way: str, numpy_for_cupy) -> None:
    problem = SMALL[case]
    arrays = arrays_of(problem)
    function = {"torch": interop.eager, "compile": interop.formula}[way](problem)
    run_on_tensors(function, problem, arrays)
    unwritten = OFFERS[problem.operation.name][way].unwritten
    verify(problem, numbers(problem), arrays, check_result, unwritten)
    if unwritten:
        with pytest.raises(WrongResult, match="left NaN in statistics"):
            verify(problem, numbers(problem), arrays, check_result)


def test_each_way_says_how_it_computes_each_group() -> None:
    for problem in SMALL.values():
        offers = OFFERS[problem.operation.name]
        assert {"torch", "compile"} <= {*offers} <= {*baselines.BASELINES}
        assert not offers["compile"].refuses(problem) and not offers["torch"].refuses(problem)
        outputs = {argument.name for argument in problem.arrays if argument.output}
        assert all({*offer.unwritten} < outputs | {""} for offer in offers.values())


# ---- right enough -------------------------------------------------------------------------------


def results(case: str, numpy_for_cupy) -> tuple[Problem, dict, dict]:
    """What goes into a comparison, and what comes out of it, rounded once."""
    problem = SMALL[case]
    asked = problem.arrays
    given = dict(zip([one.name for one in asked], arrays_of(problem), strict=True))
    inputs = {
        one.name: given[one.name].view(one.numpy_dtype(problem.dtype))
        for one in asked
        if not one.output
    }
    values = problem.complete({**inputs, **numbers(problem)})
    exact = expected(problem.operation, values, dict(problem.features))
    written = {
        one.name: exact[one.name].value.astype(one.numpy_dtype(problem.dtype))
        for one in asked
        if one.output
    }
    return problem, values, written


@pytest.mark.parametrize("case", SMALL)
def test_what_is_rounded_once_is_right_and_another_row_is_not(case: str, numpy_for_cupy) -> None:
    problem, values, written = results(case, numpy_for_cupy)
    features = dict(problem.features)
    check_result(problem.operation, values, written, features)
    for name, array in written.items():
        with pytest.raises(WrongResult, match=rf"elements of {name} are wrong, by up to \d"):
            check_result(problem.operation, values, {name: array[::-1]}, features)
        with pytest.raises(WrongResult):
            check_result(problem.operation, values, {name: np.full_like(array, np.nan)}, features)


MISTAKES = {  # what a baseline may leave out, as what it then gives for the values
    "gradient of softmax": lambda v: v["y"] * v["dy"],
    "gradient of log-softmax": lambda v: v["dy"],
    "gradient of cross-entropy": lambda v: softmax(v["x"]),
    "cross-entropy": lambda v: v["x"][np.arange(ROWS), v["target"]],
    "scale and mask": lambda v: softmax(v["x"] * v["scale"]),
    "scale and causal mask": lambda v: softmax(v["x"] * v["scale"]),
    "scale and bias": lambda v: softmax(v["x"] * v["scale"]),
    "log-softmax": lambda v: np.log(softmax(v["x"]) + 1e-2),
    "16 bits in, float32 out": lambda v: softmax(v["x"] * 0.9),
    "any axis": lambda v: softmax(v["x"]),
}


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("case", SMALL)
def test_a_mistake_is_found(case: str, numpy_for_cupy) -> None:
    problem, values, written = results(case, numpy_for_cupy)
    doubles = {k: v.astype(np.float64) if np.ndim(v) > 1 else v for k, v in values.items()}
    doubles["scale"] = float(doubles.get("scale", 1))
    name = next(iter(written))
    wrong = MISTAKES[case.rpartition(", ")[0]](doubles).astype(written[name].dtype)
    with pytest.raises(WrongResult):
        check_result(problem.operation, values, {name: wrong}, dict(problem.features))


# ---- who takes what -----------------------------------------------------------------------------


def reason(baseline: str, group: str, cols: int = 4096, dtype: str = "float32") -> str:
    return baselines.refusal(baseline, GROUPS[group].problem(8, cols, dtype))


@pytest.mark.parametrize(
    ("baseline", "group", "cols", "dtype", "why"),
    [
        ("liger", "gradient of softmax", 65536, "float32", ""),
        ("liger", "gradient of softmax", 65537, "float32", "Liger refuses more than 65536 columns"),
        ("liger", "gradient of log-softmax", 8, "float32", f"Liger {NOT_OFFERED}"),
        ("liger", "gradient of cross-entropy", 8, "float32", f"Liger {NOT_OFFERED}"),
        ("liger", "cross-entropy", 262144, "bfloat16", ""),
        ("quack", "16 bits in, float32 out", 4096, "bfloat16", ""),
        ("quack", "16 bits in, float32 out", 4100, "bfloat16", "QuACK needs cols % 8 == 0"),
        ("quack", "scale and mask", 4096, "float32", f"QuACK {NOT_OFFERED}"),
        ("quack", "gradient of softmax", 131072, "float32", ""),
        ("quack", "gradient of softmax", 524288, "float32", "QuACK holds a row in the shared"),
        ("quack", "cross-entropy", 50257, "float32", ""),
        ("cudnn", "log-softmax", 50257, "float32", ""),
        ("cudnn", "scale and bias", 8, "float32", f"cuDNN {NOT_OFFERED}"),
        ("triton", "log-softmax", 8, "float32", f"Triton tutorial {NOT_OFFERED}"),
    ],
)
def test_what_a_baseline_refuses(
    baseline: str, group: str, cols: int, dtype: str, why: str
) -> None:
    answer = reason(baseline, group, cols, dtype)
    assert answer.startswith(why) and bool(answer) == bool(why)


def test_cudnn_is_told_algorithm_mode_and_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, tuple] = {}

    class Library:
        def __getattr__(self, name: str):
            def function(*arguments) -> int:
                calls[name] = tuple(getattr(one, "value", one) for one in arguments)
                return 0

            return function

    fake = fake_cupy([])
    fake.cuda.get_current_stream = lambda: SimpleNamespace(ptr=77)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(interop, "cudnn", lambda: Library())
    monkeypatch.setattr(interop, "cudnn_handle", lambda: ctypes.c_void_p(5))
    array = [SimpleNamespace(data=SimpleNamespace(ptr=ptr)) for ptr in (512, 1024, 2048)]
    problem = GROUPS["any axis"].problem(10, 7, "bfloat16", 5)
    baselines.candidate("cudnn", problem).run(*array[:2])
    assert calls["cudnnSetTensor4dDescriptor"][1:] == (0, 9, 2, 7, 5, 1), "2 images of 7 channels"
    forward = calls["cudnnSoftmaxForward"]
    assert forward[1:3] == (1, 1) and (forward[5], forward[8]) == (512, 1024)
    problem = GROUPS["gradient of log-softmax"].problem(10, 7, "float32")
    baselines.candidate("cudnn", problem).run(*array)
    assert calls["cudnnSetTensor4dDescriptor"][1:] == (0, 0, 10, 7, 1, 1)
    backward = calls["cudnnSoftmaxBackward"]
    assert backward[1:3] == (2, 0) and [backward[place] for place in (5, 7, 10)] == [
        512,
        1024,
        2048,
    ]


# ---- the comparisons -----------------------------------------------------------------------------


def test_contests_are_each_once_and_ours_takes_them_all() -> None:
    compared = entries()
    assert len({*compared}) == len(compared) > 60
    for problem in compared:
        rows, cols = problem.shape
        assert chosen(problem), name_of(problem)
        assert abs(rows * cols / 2**27 - 1) < 0.02 or cols == 8192
        assert problem.features != (("MASK", 2),) or rows % cols == 0, "eager masks whole squares"
    assert {*map(group_of, compared[:20])} == {*GROUPS}, "something of each first"


def test_a_problem_of_a_group_is_named_after_it() -> None:
    problem = GROUPS["any axis"].problem(14, 100, "bfloat16", 7)
    assert chosen(problem) == "13_any_axis"
    assert name_of(problem) == "any axis, 2 x 100 x 7 bfloat16"
    assert name_of(Problem(14, 100, "bfloat16")) == "14 x 100 bfloat16"
    both = {"DROPOUT": 1, "LOG": 1}
    assert chosen(Problem(8, 64, operation="softmax_backward", features=both)) == "", "none has it"
