"""Exported functions of what is around softmax, called from Python as a C library: what their
kernels are launched with, what they refuse, and on a GPU what they compute."""

import ctypes
import math
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from helpers.bound import BoundKernel, load
from helpers.catalogue import choose
from helpers.export import cpp
from helpers.export.asked import request
from helpers.export.cpp_call import Call
from helpers.gpu import H200, Gpu
from helpers.mode import gpu_for_plans
from helpers.operations import MATRIX, Sizes
from helpers.references import allowed, expected, make_inputs, outputs
from tests.copied.compilers import NO_RUN, compiled, host_compiled, needs_nvcc

FOLDER = Path(__file__).parent
SUCCESS, INVALID, MISALIGNED, NOT_SUPPORTED = 0, 1, 716, 801
MOST = 2**31
C_TYPES = {
    "long long": ctypes.c_longlong,
    "std::int64_t": ctypes.c_int64,
    "std::uint64_t": ctypes.c_uint64,
    "unsigned long long": ctypes.c_uint64,
    "float": ctypes.c_float,
    "int": ctypes.c_int,
}


class Case(NamedTuple):
    """A function of a file."""

    name: str
    operation: str
    features: dict[str, int | str]
    sizes: Sizes
    dtype: str

    def __str__(self) -> str:
        return self.name

    @property
    def step(self) -> str:
        rows, cols, inner = self.sizes
        wanted = {"operation": self.operation, "features": self.features, "inner": inner}
        return choose(rows, cols, self.dtype, H200, **wanted)

    @property
    def shape(self) -> str:
        """The matrix of the first name that its sizes have."""
        names = self.sizes.names
        return "x".join(str(names[name]) for name in load(self.step).operation.sizes)

    def bound(self, gpu: Gpu = H200) -> BoundKernel:
        return load(self.step).bind(*self.sizes[:2], self.dtype, gpu, inner=self.sizes.inner)

    def text(self, gpu: Gpu) -> str:
        return cpp.write(request(self.step, [self.shape], self.name, [self.dtype], [gpu]))

    @property
    def call(self) -> Call:
        return Call({self.step: load(self.step)}, [np.dtype(self.dtype)], False)

    def values(self) -> dict[str, object]:
        """Every argument, none of them neutral, outputs full of NaN; and the sizes."""
        bound = self.bound()
        given = make_inputs(bound.operation, self.sizes, self.dtype, bound.features)
        given = bound.operation.complete(given, bound.features, self.sizes)
        given |= outputs(bound.operation, given, self.sizes, self.dtype, bound.features)
        return given | {name: self.sizes.names[name] for name in bound.operation.sizes}


CASES = (
    Case("biased", "softmax", {"BIAS": "yes", "LOG": "yes"}, Sizes(7, 2048), "float32"),
    Case("masked", "softmax", {"MASK": "bytes", "WIDE": "yes"}, Sizes(6, 2048), "bfloat16"),
    Case("causal", "softmax", {"MASK": "causal"}, Sizes(7, 131072), "float16"),
    Case("dropped", "softmax", {"DROPOUT": "yes"}, Sizes(6, 2048), "float32"),
    Case("axis", "softmax_any_axis", {}, Sizes(3 * 40, 33, 40), "bfloat16"),
    Case("back", "softmax_backward", {"LOG": "yes"}, Sizes(6, 2048), "float32"),
    Case("anew", "softmax_backward", {"FROM_X": 1, "DROPOUT": 1}, Sizes(6, 2048), "float16"),
    Case("loss", "cross_entropy", {}, Sizes(5, 1003), "bfloat16"),
    Case("gradient", "cross_entropy_backward", {}, Sizes(5, 1003), "float32"),
)
each_case = pytest.mark.parametrize("case", CASES, ids=str)


# ---- libraries ----------------------------------------------------------------------------------


def parameters(case: Case) -> dict[str, str]:
    """The function's parameters: name -> how C declares it."""
    declared = case.call.parameters(np.dtype(case.dtype))
    return {text.replace("*", " ").split()[-1]: text for text in declared}


def library_text(gpu: Gpu) -> str:
    """All files behind one another."""
    return "".join(case.text(gpu) for case in CASES)


def calls() -> str:
    """A file that declares each function as its file says, and has one of it that C knows."""
    lines = [f"#include <{name}>" for name in ("cuda_bf16.h", "cuda_fp16.h", "cuda_runtime_api.h")]
    lines.append("#include <cstdint>")
    for case in CASES:
        known = parameters(case)
        declared = ", ".join([*known.values(), "cudaStream_t stream"])
        names = ", ".join([*known, "stream"])
        lines += [
            f"cudaError_t {case.name}({declared});",
            f'extern "C" int c_{case.name}({declared})',
            f"{{ return ::{case.name}({names}); }}",  # one of them has an argument of its name
        ]
    return "\n".join([*lines, ""])


Told = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p
)


class Library:
    """Exported functions, called by names of their arguments."""

    def __init__(self, path: Path) -> None:
        self.folder, self.loaded = path.parent, ctypes.CDLL(str(path))

    def __call__(self, case: Case, values: Mapping[str, object], stream: int = 0) -> int:
        """What the function returns. Arrays may be given as addresses."""
        function, given = self.loaded[f"c_{case.name}"], []
        for name, declared in parameters(case).items():
            value = values[name]
            if "*" in declared:
                given.append(ctypes.c_void_p(address(value)))
            else:
                kind = C_TYPES[declared.rpartition(" ")[0]]
                given.append(kind(float(value) if kind is ctypes.c_float else int(value)))
        return function(*given, ctypes.c_void_p(stream))


def address(value: object) -> int | None:
    """Of an array of NumPy or CuPy; None of a null pointer."""
    if hasattr(value, "ctypes"):
        return value.ctypes.data
    return value.data.ptr if hasattr(value, "data") else value


class Launched(NamedTuple):
    kernel: str
    grid: int
    block: int
    shared: int
    given: int  # the address of the kernel's arguments

    def arguments(self, kernel) -> dict[str, float]:
        """What the kernel takes: numbers, and addresses of arrays."""
        pointers = (ctypes.c_void_p * len(kernel.parameters)).from_address(self.given)
        found = {}
        for parameter, place in zip(kernel.parameters, pointers, strict=True):
            kind = ctypes.c_void_p if parameter.pointer else C_TYPES[parameter.type]
            found[parameter.name] = kind.from_address(place).value
        return found


class Pretended(Library):
    """The same over a CUDA of main memory, which tells what is launched."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.launched: list[tuple[Launched, dict[str, float]]] = []
        self.case: Case | None = None
        self.told = Told(self._told)  # kept, for C has its address
        self.loaded.listen(self.told)

    def _told(self, kernel: bytes, *numbers: int) -> None:
        launched = Launched(kernel.decode(), *numbers)
        self.launched.append((launched, launched.arguments(load(self.case.step))))

    def __call__(self, case: Case, values: Mapping[str, object], stream: int = 0) -> int:
        self.case = case
        return super().__call__(case, values, stream)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Pretended:
    return pretended(tmp_path_factory.mktemp("family"))


def pretended(folder: Path) -> Pretended:
    """All exported functions, compiled in a folder over a CUDA of main memory."""
    (folder / "family.cu").write_text(library_text(H200))
    done = compiled(folder, *NO_RUN, "-arch=sm_90", "-Xcompiler=-fPIC", "-c", "family.cu")
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    includes = (f'#include "{FOLDER / name}.cpp"\n' for name in ("launch_told", "without_gpu"))
    (folder / "runtime.cpp").write_text("".join([*includes, calls()]))
    done = host_compiled(folder, "-fPIC", "-c", "runtime.cpp")
    assert done.returncode == 0, done.stderr
    command = ["g++", "-shared", "-Wl,-Bsymbolic", "family.o", "runtime.o", "-o", "library.so"]
    subprocess.run(command, cwd=folder, check=True)
    return Pretended(folder / "library.so")


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


def wrong_uses(case: Case, values: Mapping) -> Iterator[tuple[str, dict[str, object], int]]:
    """(what is wrong, the arguments in which a call differs, what it returns)"""
    call = case.call
    inplace = {*call.inplace}
    for array in call.arrays:
        name, start = array.name, address(values[array.name])
        yield f"no {name}", {name: None}, INVALID
        yield f"{name} between elements", {name: start + 1}, MISALIGNED
        if array.shape == MATRIX and load(case.step).header.align(case.dtype) == 16:
            size = array.numpy_dtype(case.dtype).itemsize
            yield f"{name} between packs", {name: start + size}, MISALIGNED
        for other in call.arrays:
            if not array.output or other is array:
                continue
            own = address(values[other.name])
            if {name, other.name} != inplace:
                yield f"{name} is {other.name}", {name: own}, INVALID
            if values[other.name].nbytes > 16:
                yield f"{name} behind the start of {other.name}", {name: own + 16}, INVALID
    sizes = load(case.step).operation.sizes
    for name in sizes:
        for number in (-1, MOST, 2 * MOST + values[name]):
            yield f"{name} = {number}", {name: number}, INVALID
    yield "sizes that wrap", dict.fromkeys(sizes, 2**40), INVALID
    yield "less than none of nothing", {sizes[0]: 0, sizes[1]: -1}, INVALID
    for argument in call.arguments:
        name = argument.name
        if argument.dtype == "int32" and not argument.shape:
            for number in (0, -1, MOST, 2 * MOST + 1):
                yield f"{name} = {number}", {name: number}, INVALID
        if name in ("p", "smoothing"):
            for number in (-0.01, 1.01, math.nan, math.inf):
                yield f"{name} = {number}", {name: number}, INVALID


@needs_nvcc
@each_case
def test_a_matrix_that_no_build_is_for_is_refused(case: Case, library: Pretended) -> None:
    library.launched.clear()
    name = "dim" if "dim" in case.values() else "cols"
    many = {**case.values(), name: 32 * case.sizes.cols}
    takes = load(case.step).accepts(
        case.sizes.rows, many[name], case.dtype, H200, inner=case.sizes.inner
    )
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
