"""What other libraries offer, as far as no GPU is needed: formulas that are right, mistakes that
are found, what they refuse. Formulas are tried where PyTorch is installed."""

import importlib.util
import sys
from dataclasses import replace

import cupy
import numpy as np
import pytest

from helpers.base.gpu import H200
from helpers.catalogue.dispatch import chosen
from helpers.measure import baselines, interop, side_by_side
from helpers.measure.baselines import NOT_OFFERED, OFFERS, TWO_KERNELS
from helpers.measure.bench import outputs_of
from helpers.measure.gpu_arrays import buffers, poison, verify
from helpers.measure.interop import torch_dtypes
from helpers.measure.side_by_side import check_result
from helpers.problem.operations import CROSS_ENTROPY_BACKWARD, SOFTMAX
from helpers.problem.problem import Problem
from helpers.problem.shapes import GROUPS, entries, group_of, name_of, numbers
from helpers.run.bound import BoundKernel
from helpers.run.check import WrongResult
from helpers.run.references import expected, make_input, reference
from tests.helpers.fake_cupy import fake_cupy


def test_first_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"torch": 1, "triton": 1, "tvm_ffi": 1, "cutlass": 1}
    monkeypatch.setattr(importlib.util, "find_spec", found.get)
    assert baselines.why_not("torch", Problem(8, 8)) == ""
    assert baselines.why_not("liger", Problem(8, 8)) == "liger_kernel is not installed"
    assert baselines.why_not("quack", Problem(8, 8)) == "quack is not installed"


def test_cudnn_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop, "cudnn", lambda: None)
    assert baselines.why_not("cudnn", Problem(8, 8)) == "cuDNN is not installed"
    assert "cudnn" not in baselines.versions()


# ---- how precise a result is --------------------------------------------------------------------


def ulp_of(x: np.ndarray, y: np.ndarray, check=check_result) -> float:
    return check(SOFTMAX, {"x": x, "scale": 1.0}, {"y": y}, {})


def test_result_of_one_more_rounding_is_less_precise_and_of_several_is_wrong() -> None:
    """Planted: the sum in 8 bits less, two more roundings, a row scaled by 2%."""
    x = make_input(9, 300, dtype="bfloat16")
    exact = x.astype(np.float64)
    terms = np.exp(exact - exact.max(axis=-1, keepdims=True))
    total = terms.sum(axis=-1, keepdims=True)
    once = (terms / total.astype(x.dtype).astype(np.float64)).astype(x.dtype)
    keep = side_by_side.Precision()
    for y, least, most in ((reference(x), 0, 0), (once, 0.5, 1.5), (reference(x), 0.5, 1.5)):
        ulp_of(x, y.astype(x.dtype), keep)
        assert least <= keep.worst_ulp <= most
    for wrong in (once * 1.02, terms / (2.0 ** np.floor(np.log2(total)))):
        with pytest.raises(WrongResult, match="wrong, by up to"):
            ulp_of(x, wrong.astype(x.dtype))


# ---- fused and related operations ---------------------------------------------------------------

ROWS, COLS, INNER = 40, 20, 5
SMALL = {  # rows are whole squares of columns, and whole lots of the elements between columns
    f"{name}, {dtype}": group.problem((ROWS, COLS, INNER if name == "any axis" else 1), dtype)
    for name, group in GROUPS.items()
    for dtype in group.dtypes
}
SMALL |= {f"softmax, {dtype}": Problem(ROWS, COLS, dtype) for dtype in ("float32", "bfloat16")}


@pytest.fixture
def numpy_for_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())


def arrays_of(problem: Problem) -> tuple:
    arrays = buffers(problem, np.random.default_rng(0))
    for place in outputs_of(problem):
        poison(arrays[place])
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
    if way == "compile" and problem.operation is CROSS_ENTROPY_BACKWARD:  # takes lse
        of_lse, function = function, lambda x, t, both, *rest: of_lse(x, t, both.sum(-1), *rest)
    run_on_tensors(function, problem, arrays)
    unwritten = OFFERS[problem.operation.name][way].unwritten
    verify(problem, numbers(problem), arrays, check_result, unwritten)
    if unwritten:
        with pytest.raises(WrongResult, match="left NaN in statistics"):
            verify(problem, numbers(problem), arrays, check_result)


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_our_two_kernels_in_sequence_are_right(dtype: str, monkeypatch) -> None:
    """On the SIMT machine; and a baseline that overwrites its input is checked once alone."""

    def enqueue(bound: BoundKernel, *arrays: np.ndarray) -> None:
        bound.simulate(*(a.view(dtype) if a.dtype == np.uint16 else a for a in arrays))

    fake = fake_cupy(RawKernel=cupy.RawKernel, __spec__=cupy.__spec__)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(BoundKernel, "prepare", lambda bound: None)
    monkeypatch.setattr(BoundKernel, "enqueue", enqueue)
    monkeypatch.setattr(side_by_side, "gpu_in_use", lambda: H200)
    problem = SMALL[f"cross-entropy with gradient, {dtype}"]
    arrays, offers = arrays_of(problem), OFFERS[problem.operation.name]
    two = side_by_side.candidate(TWO_KERNELS, problem)
    with pytest.raises(WrongResult, match="left NaN in loss"):
        two.judge(arrays)
    two.run(*arrays)
    two.judge(arrays)
    monkeypatch.setitem(offers, "liger", replace(offers["liger"], make=lambda problem: two.run))
    once = side_by_side.candidate("liger", problem)
    once.judge(arrays)
    for place in outputs_of(problem):
        poison(arrays[place])
    once.judge(arrays)


# ---- what they refuse ---------------------------------------------------------------------------

LIGER, MANY = "Liger refuses more than 65536 columns", "QuACK holds a row in the shared"
REFUSED = [  # baseline, group ("": softmax alone), columns, dtype, reason
    *(("triton", "", 65536, "float32", ""), ("liger", "", 65536, "bfloat16", "")),
    ("triton", "", 65537, "float32", "a row of more than 65536 columns"),
    ("triton", "log-softmax", 8, "float32", f"Triton tutorial {NOT_OFFERED}"),
    ("liger", "", 65537, "bfloat16", LIGER),
    ("liger", "gradient of softmax", 65536, "float32", ""),
    ("liger", "gradient of softmax", 65537, "float32", LIGER),
    ("liger", "gradient of cross-entropy", 8, "float32", f"Liger {NOT_OFFERED}"),
    *(("quack", "", 12, "float32", ""), ("quack", "", 262144, "float32", "")),
    ("quack", "", 10, "float32", "QuACK needs cols % 4 == 0"),
    ("quack", "", 12, "bfloat16", "QuACK needs cols % 8 == 0"),
    *(("quack", "", 2**20, "bfloat16", ""), ("quack", "", 2**20, "float32", MANY)),
    ("quack", "16 bits in, float32 out", 4100, "bfloat16", "QuACK needs cols % 8 == 0"),
    ("quack", "scale and mask", 4096, "float32", f"QuACK {NOT_OFFERED}"),
    ("quack", "gradient of softmax", 524288, "float32", MANY),
    *(("torch", "", 50257, "bfloat16", ""), ("compile", "", 2**20, "float32", "")),
    *(("cudnn", "", 77, "float32", ""), ("cudnn", "log-softmax", 50257, "float32", "")),
    ("cudnn", "scale and bias", 8, "float32", f"cuDNN {NOT_OFFERED}"),
    ("flashinfer", "", 50257, "float32", ""),
    ("flashinfer", "", 4096, "bfloat16", "FlashInfer's softmax takes float32 alone"),
]


@pytest.mark.parametrize(("baseline", "group", "cols", "dtype", "why"), REFUSED)
def test_what_a_baseline_refuses(baseline, group, cols, dtype, why) -> None:
    problem = GROUPS[group].problem((8, cols), dtype) if group else Problem(64, cols, dtype)
    answer = baselines.refusal(baseline, problem)
    assert answer.startswith(why) and bool(answer) == bool(why)


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
