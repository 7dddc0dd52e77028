"""Exported functions of what is around softmax as a C library that Python calls: over a CUDA of
main memory, which tells what is launched, or on a GPU."""

import ctypes
import math
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from helpers.base.gpu import H200, Gpu
from helpers.catalogue.dispatch import best
from helpers.export import cpp
from helpers.export.cpp_call import CppCall
from helpers.export.request import export_request
from helpers.problem.operations import MATRIX
from helpers.problem.problem import Problem
from helpers.run.bound import BoundKernel, load
from helpers.run.references import make_inputs, outputs
from tests.copied.compilers import NO_RUN, compiled, host_compiled

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
    sizes: tuple[int, ...]  # rows, cols, inner
    dtype: str

    def __str__(self) -> str:
        return self.name

    @property
    def step(self) -> str:
        return best(self.problem, H200)

    @property
    def problem(self) -> Problem:
        rows, cols, *inner = self.sizes
        of = {"operation": self.operation, "features": self.features}
        return Problem(rows, cols, self.dtype, *inner, **of)

    @property
    def shape(self) -> str:
        """The matrix of the first name that its sizes have."""
        names = self.problem.sizes
        return "x".join(str(names[name]) for name in load(self.step).operation.sizes)

    def bound(self, gpu: Gpu = H200) -> BoundKernel:
        return load(self.step).at(self.problem, gpu)

    def text(self, gpu: Gpu) -> str:
        return cpp.write(export_request(self.step, [self.shape], self.name, [self.dtype], [gpu]))

    @property
    def call(self) -> CppCall:
        return CppCall({self.step: load(self.step)}, [np.dtype(self.dtype)], False)

    def values(self) -> dict[str, object]:
        """Every argument, none of them neutral, outputs full of NaN; and the sizes."""
        problem = self.problem
        given = problem.complete(make_inputs(problem))
        given |= outputs(problem, given)
        return given | {name: problem.sizes[name] for name in problem.operation.sizes}


CASES = (
    Case("biased", "softmax", {"BIAS": "yes", "LOG": "yes"}, (7, 2048), "float32"),
    Case("masked", "softmax", {"MASK": "bytes", "WIDE": "yes"}, (6, 2048), "bfloat16"),
    Case("causal", "softmax", {"MASK": "causal"}, (7, 131072), "float16"),
    Case("dropped", "softmax", {"DROPOUT": "yes"}, (6, 2048), "float32"),
    Case("axis", "softmax_any_axis", {}, (3 * 40, 33, 40), "bfloat16"),
    Case("back", "softmax_backward", {"LOG": "yes"}, (6, 2048), "float32"),
    Case("anew", "softmax_backward", {"FROM_X": 1, "DROPOUT": 1}, (6, 2048), "float16"),
    Case("loss", "cross_entropy", {}, (5, 1003), "bfloat16"),
    Case("gradient", "cross_entropy_backward", {}, (5, 1003), "float32"),
)


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
