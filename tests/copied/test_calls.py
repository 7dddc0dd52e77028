"""Exported functions, called from Python as a C library: what their kernels are launched with, what
they ask CUDA for and refuse, and on a GPU what they compute."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.base.gpu import H200, Gpu, gpu_for_plans
from helpers.catalogue.registry import steps, variants
from helpers.export.request import takes_matrix
from helpers.run.bound import load
from helpers.run.execute import to_gpu
from helpers.run.references import allowed, expected
from tests.copied.compilers import compiled, needs_nvcc
from tests.copied.library import (
    EVERY,
    INVALID,
    NOT_SUPPORTED,
    SOFTMAX,
    SUCCESS,
    UNKNOWN,
    Case,
    Library,
    Pretended,
    address,
    alone,
    pretended,
    unusual_uses,
    write_files,
)

each_case = pytest.mark.parametrize("case", EVERY, ids=str)
WITH_WORKSPACE = [case for case in SOFTMAX if case.call.workspace]
(GRADIENT,) = (case for case in EVERY if case.name == "gradient")


@pytest.fixture(scope="module")
def compiled_library(tmp_path_factory: pytest.TempPathFactory) -> Pretended:
    return pretended(tmp_path_factory.mktemp("library"))


@pytest.fixture
def library(compiled_library: Pretended) -> Pretended:
    return compiled_library.fresh()


# ---- without a GPU ------------------------------------------------------------------------------


@needs_nvcc
@each_case
def test_a_kernel_is_launched_as_planned_with_what_was_given(case: Case, library) -> None:
    """The kernel gets each argument in its place, and neutral ones for what is not asked for."""
    values, bound = case.values(), case.bound()
    plan = bound.plan
    library.prepare(case, values)
    for _ in range(2):
        assert library(case, values) == SUCCESS
    first, again = library.launched
    assert first == again and bound.kernel.name in first.kernel
    sizes = first.grid, first.block, first.shared
    assert sizes == (plan.grid, plan.block, plan.shared_mem)
    assert first.how == ["cooperative"] * plan.cooperative
    neutral = {argument.name: argument.neutral for argument in bound.operation.arguments}
    values |= {"workspace": library.memory.get(case.name, [None])[0]}
    for parameter in bound.kernel.parameters:
        name = parameter.name
        if name not in values:
            wanted = 1 if isinstance(neutral[name], tuple) else neutral[name]
        else:
            wanted = address(values[name]) if parameter.pointer else values[name]
        assert first.arguments[name] == wanted, name
    once = [("shared", H200.max_shared - 1024, 0)] * bool(plan.shared_mem)
    once += [("clusters", 1, 0)] * (plan.cluster > 8)
    assert [call for call in library.calls if call[0] in ("shared", "clusters")] == once
    assert sum(call[0] == "attribute" for call in library.calls) == 5


@needs_nvcc
@pytest.mark.parametrize("case", SOFTMAX, ids=str)
def test_every_call_that_cuda_refuses_is_told(case: Case, library: Pretended) -> None:
    values = case.values()

    def status(library: Pretended) -> int:
        library.prepare(case, values)
        return library(case, values)

    assert status(library) == SUCCESS
    for number in range(1, len(library.calls) + 1):
        other = library.fresh()
        other.fails = number
        # The first calls may be those that ask for the bytes of a workspace, which are 0 then.
        told = {UNKNOWN, INVALID} if case.call.workspace and number <= 7 else {UNKNOWN}
        assert status(other) in told and not other.launched, library.calls[number - 1]


@needs_nvcc
@each_case
def test_wrong_use_and_a_matrix_of_nothing_launch_nothing(case: Case, library: Pretended) -> None:
    values = case.values()
    library.prepare(case, values)
    for what, changed, wanted in unusual_uses(case, values):
        assert library(case, values | changed) == wanted, what
    assert library.launched == []


@needs_nvcc
@each_case
def test_a_matrix_that_no_build_is_for_is_refused(case: Case, library: Pretended) -> None:
    name = "dim" if "dim" in case.values() else "cols"
    problem = replace(case.problem, cols=32 * case.problem.cols, x_stride=None, y_stride=None)
    many = {**case.values(), name: problem.cols, "x_stride": problem.cols, "y_stride": problem.cols}
    takes = load(case.step).header.accepts(problem, H200)
    assert library(case, many) == (NOT_SUPPORTED if takes else INVALID)
    assert library.launched == []


@needs_nvcc
def test_a_gradient_may_take_the_place_of_its_logits(library: Pretended) -> None:
    values = GRADIENT.values()
    assert library(GRADIENT, {**values, "dx": values["x"]}) == SUCCESS
    (launched,) = library.launched
    assert launched.arguments["x"] == launched.arguments["dx"] == address(values["x"])


@needs_nvcc
@pytest.mark.parametrize("case", WITH_WORKSPACE, ids=str)
def test_a_workspace_is_large_enough_and_aligned(case: Case, library: Pretended) -> None:
    values = case.values()
    library.prepare(case, values)
    memory, bytes = library.memory[case.name]
    for wrong in ((None, bytes), (memory, bytes - 1), (memory[4:], bytes)):
        library.memory[case.name] = wrong
        assert library(case, values) == INVALID
    library.memory[case.name] = memory, bytes
    assert library(case, values) == SUCCESS and len(library.launched) == 1


# ---- on a GPU -----------------------------------------------------------------------------------


class OnGpu(Library):
    """Exported functions for the GPU at hand."""

    def __init__(self, folder: Path, cases: Sequence[Case]) -> None:
        write_files(folder, cases, gpu_for_plans())
        options = "-arch=native", "-shared", "-Xcompiler=-fPIC", "-o", "library.so"
        done = compiled(folder, *options, "every.cu", "calls.cpp")
        assert done.returncode == 0, done.stderr
        super().__init__(folder / "library.so")

    def zeros(self, bytes: int) -> object:
        import cupy

        return cupy.zeros(bytes, cupy.uint8)

    def check(self, case: Case) -> None:
        """Hold what a function computes, on a stream and by a graph that was captured at its first
        call, against the reference."""
        import cupy

        values = case.values()
        first, again = moved(values), moved(values)
        stream = cupy.cuda.Stream(non_blocking=True)
        self.prepare(case, values)
        cupy.cuda.Device().synchronize()
        stream.begin_capture()
        error = self(case, first, stream.ptr)
        graph = stream.end_capture()
        assert error == SUCCESS
        for _ in range(2):
            graph.launch(stream)
            assert self(case, again, stream.ptr) == SUCCESS
        stream.synchronize()
        for there in (first, again):
            check_results(case, values, there)


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> OnGpu:
    return OnGpu(tmp_path_factory.mktemp("gpu"), EVERY)


def moved(values: Mapping[str, object]) -> dict[str, object]:
    """The arrays on the GPU, where they start and lie as they do here."""
    return {
        name: to_gpu(value) if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


def check_results(case: Case, values: Mapping[str, object], there: Mapping[str, object]) -> None:
    operation, features = case.problem.operation, dict(case.problem.features)
    for name, exact in expected(operation, values, features).items():
        array = values[name]
        found = there[name].get().view(array.dtype).reshape(exact.value.shape).astype(np.float64)
        off = np.abs(found - exact.value)
        same = (found == exact.value) | (np.isnan(exact.value) & np.isnan(found))
        fine = same | (off <= allowed(exact, array.dtype))
        assert fine.all(), f"{name}: {found[~fine][:3]}, not {exact.value[~fine][:3]}"


@pytest.mark.gpu
@needs_nvcc
@each_case
def test_a_function_computes_what_it_should(case: Case, on_gpu: OnGpu) -> None:
    on_gpu.check(case)


def kernels_alone() -> list[Case]:
    """Every kernel of softmax or of a copy, at the first shape that it takes and at a long one;
    those with strides in rows that are apart too, those of several dtypes in each."""
    found = []
    for step in filter(takes_matrix, (*steps(), *variants())):
        kernel = load(step)
        for dtype in kernel.header.dtypes:
            found.append(alone(step, dtype.name))
            if kernel.header.build and kernel.accepts(1, 262144, dtype):
                found.append(found[-1]._replace(sizes=(1, 262144)))
            if kernel.header.strided:
                found.append(found[-1]._replace(apart=True))
    return found


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.parametrize("case", kernels_alone(), ids=lambda case: f"{case.kernel}-{case.dtype}")
def test_a_kernel_alone_computes_what_it_should(case: Case, tmp_path: Path) -> None:
    gpu: Gpu = gpu_for_plans()
    if not load(case.step).accepts(*case.sizes, case.dtype, gpu=gpu):
        pytest.skip(f"{case.step} does not take it on this GPU")
    OnGpu(tmp_path, [case]).check(case)


BEST = ((1, 1), (3, 7), (33, 1000), (8192, 257), (37, 50257), (64, 32000), (1, 1048576))


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("apart", [False, True])
def test_the_best_of_the_series_computes_what_it_should(
    dtype: str, apart: bool, tmp_path: Path
) -> None:
    shapes = tuple(f"{rows}x{cols}" for rows, cols in BEST)
    case = Case("of_best", "softmax", {}, BEST[0], dtype, "11_any_length", apart, shapes)
    library = OnGpu(tmp_path, [case])
    for sizes in BEST:
        library.check(case._replace(sizes=sizes))


@pytest.mark.gpu
@needs_nvcc
def test_a_gradient_takes_the_place_of_its_logits(on_gpu: OnGpu) -> None:
    import cupy

    values = GRADIENT.values()
    there = moved(values)
    assert on_gpu(GRADIENT, {**there, "dx": there["x"]}, 0) == SUCCESS
    cupy.cuda.Device().synchronize()
    check_results(GRADIENT, values, {**there, "dx": there["x"]})


@pytest.mark.gpu
@needs_nvcc
@each_case
def test_wrong_use_and_a_matrix_of_nothing_write_nothing(case: Case, on_gpu: OnGpu) -> None:
    import cupy

    before = case.values()
    there = moved(before)
    stream = cupy.cuda.Stream(non_blocking=True)
    on_gpu.prepare(case, before)
    for what, changed, wanted in unusual_uses(case, there):
        assert on_gpu(case, there | changed, stream.ptr) == wanted, what
    cupy.cuda.Device().synchronize()
    for array in case.call.outputs:
        assert there[array.name].get().tobytes() == before[array.name].tobytes()
