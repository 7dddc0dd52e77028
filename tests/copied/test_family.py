"""Exported functions of what is around softmax, called from Python as a C library: what their
kernels are launched with, what they refuse, and on a GPU what they compute."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from helpers.base.gpu import H200
from helpers.base.mode import gpu_for_plans
from helpers.run.bound import load
from helpers.run.references import allowed, expected
from tests.copied.compilers import compiled, needs_nvcc
from tests.copied.family import (
    CASES,
    INVALID,
    NOT_SUPPORTED,
    SUCCESS,
    Case,
    Library,
    Pretended,
    address,
    calls,
    library_text,
    parameters,
    pretended,
    wrong_uses,
)

each_case = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Pretended:
    return pretended(tmp_path_factory.mktemp("family"))


# ---- without a GPU ------------------------------------------------------------------------------


@needs_nvcc
@each_case
def test_a_kernel_is_launched_with_what_was_given(case: Case, library: Pretended) -> None:
    """The kernel gets each argument in its place, and neutral ones for what is not asked for."""
    values, bound = case.values(), case.bound()
    library.launched.clear()
    assert library(case, values) == SUCCESS
    ((launched, found),) = library.launched
    plan = bound.plan
    assert bound.kernel.name in launched.kernel
    assert launched[1:4] == (plan.grid, plan.block, plan.shared_mem)
    neutral = {argument.name: argument.neutral for argument in bound.operation.arguments}
    for parameter in bound.kernel.parameters:
        name = parameter.name
        if name not in values:
            wanted = 1 if isinstance(neutral[name], tuple) else neutral[name]
        else:
            wanted = address(values[name]) if parameter.pointer else values[name]
        assert found[name] == wanted, name


@needs_nvcc
@each_case
def test_wrong_use_is_an_error_and_launches_nothing(case: Case, library: Pretended) -> None:
    library.launched.clear()
    values = case.values()
    for what, changed, wanted in wrong_uses(case, values):
        assert library(case, values | changed) == wanted, what
    assert library.launched == []


@needs_nvcc
@each_case
def test_a_matrix_that_no_build_is_for_is_refused(case: Case, library: Pretended) -> None:
    library.launched.clear()
    name = "dim" if "dim" in case.values() else "cols"
    problem = replace(case.problem, cols=32 * case.problem.cols)
    many = {**case.values(), name: problem.cols}
    takes = load(case.step).header.accepts(problem, H200)
    assert library(case, many) == (NOT_SUPPORTED if takes else INVALID)
    assert library.launched == []


@needs_nvcc
@each_case
def test_of_nothing_nothing_is_launched(case: Case, library: Pretended) -> None:
    library.launched.clear()
    none = {name: None for name, text in parameters(case).items() if "*" in text}
    for name in load(case.step).operation.sizes:
        # Rows without columns have a loss.
        wanted = INVALID if case.name == "loss" and name == "cols" else SUCCESS
        assert library(case, {**case.values(), **none, name: 0}) == wanted
    assert library.launched == []


@needs_nvcc
def test_a_gradient_may_take_the_place_of_its_logits(library: Pretended) -> None:
    (case,) = (case for case in CASES if case.name == "gradient")
    values = case.values()
    library.launched.clear()
    assert library(case, {**values, "dx": values["x"]}) == SUCCESS
    ((_, found),) = library.launched
    assert found["x"] == found["dx"] == address(values["x"])


# ---- on a GPU -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "family.cu").write_text(library_text(gpu_for_plans()))
    (folder / "calls.cu").write_text(calls())
    options = "-arch=native", "-shared", "-Xcompiler=-fPIC", "-o", "library.so"
    done = compiled(folder, *options, "family.cu", "calls.cu")
    assert done.returncode == 0, done.stderr
    return Library(folder / "library.so")


def moved(values: Mapping[str, object]) -> dict[str, object]:
    """The arrays on the GPU."""
    import cupy

    return {
        name: cupy.asarray(value.view(np.uint8)) if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


def check_results(case: Case, values: Mapping[str, object], there: Mapping[str, object]) -> None:
    bound = case.bound()
    for name, exact in expected(bound.operation, values, bound.features).items():
        array = values[name]
        found = there[name].get().view(array.dtype).reshape(exact.value.shape).astype(np.float64)
        off = np.abs(found - exact.value)
        same = (found == exact.value) | (np.isnan(exact.value) & np.isnan(found))
        fine = same | (off <= allowed(exact, array.dtype))
        assert fine.all(), f"{name}: {found[~fine][:3]}, not {exact.value[~fine][:3]}"


@pytest.mark.gpu
@needs_nvcc
@each_case
def test_a_function_computes_what_it_should(case: Case, on_gpu: Library) -> None:
    """On a stream, and by a graph that was captured at its first call."""
    import cupy

    values = case.values()
    first, again = moved(values), moved(values)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    stream.begin_capture()
    error = on_gpu(case, first, stream.ptr)
    graph = stream.end_capture()
    assert error == SUCCESS
    graph.launch(stream)
    assert on_gpu(case, again, stream.ptr) == SUCCESS
    stream.synchronize()
    for there in (first, again):
        check_results(case, values, there)


@pytest.mark.gpu
@needs_nvcc
def test_a_gradient_takes_the_place_of_its_logits(on_gpu: Library) -> None:
    import cupy

    (case,) = (case for case in CASES if case.name == "gradient")
    values = case.values()
    there = moved(values)
    assert on_gpu(case, {**there, "dx": there["x"]}) == SUCCESS
    cupy.cuda.Device().synchronize()
    check_results(case, values, {**there, "dx": there["x"]})


@pytest.mark.gpu
@needs_nvcc
@each_case
def test_wrong_use_on_a_gpu_is_an_error_and_writes_nothing(case: Case, on_gpu: Library) -> None:
    import cupy

    before = case.values()
    there = moved(before)
    for what, changed, wanted in wrong_uses(case, there):
        assert on_gpu(case, there | changed) == wanted, what
    cupy.cuda.Device().synchronize()
    for array in case.call.outputs:
        assert (there[array.name].get() == before[array.name].view(np.uint8)).all()
