"""Exported functions as a C library that Python calls: over a CUDA runtime that Python answers, or
on a GPU."""

import ctypes
import math
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
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
from helpers.run.check import strided_copy
from helpers.run.references import make_inputs, outputs
from tests.copied.compilers import NO_RUN, compiled, host_compiled

FOLDER = Path(__file__).parent
SUCCESS, INVALID, MISALIGNED, NOT_SUPPORTED, UNKNOWN = 0, 1, 716, 801, 999
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
    kernel: str = ""  # that of the file, if not the one that dispatch chooses
    apart: bool = False  # row strides > cols, and different alignment of x and y
    best: tuple[str, ...] = ()  # shapes of a file of the best kernels, which has `kernel` too

    def __str__(self) -> str:
        return self.name

    @property
    def step(self) -> str:
        return self.kernel or best(self.problem, H200)

    @property
    def problem(self) -> Problem:
        rows, cols, *inner = self.sizes
        of = {"operation": self.operation, "features": self.features}
        strides = {"x_stride": cols + 5, "y_stride": cols + 2} if self.apart else {}
        return Problem(rows, cols, self.dtype, *inner, **of, **strides)

    @property
    def shape(self) -> str:
        """The matrix of the first name that its sizes have."""
        names = self.problem.sizes
        return "x".join(str(names[name]) for name in load(self.step).operation.sizes)

    def bound(self, gpu: Gpu = H200) -> BoundKernel:
        return load(self.step).at(self.problem, gpu)

    def text(self, gpu: Gpu = H200) -> str:
        step, shapes = ("best", self.best) if self.best else (self.step, [self.shape])
        layout = self.apart, self.apart
        return cpp.write(export_request(step, shapes, self.name, [self.dtype], [gpu], *layout))

    @property
    def call(self) -> CppCall:
        return CppCall({self.step: load(self.step)}, [np.dtype(self.dtype)], self.apart)

    def values(self) -> dict[str, object]:
        """Every argument, outputs full of NaN, and the sizes. What the function takes is not
        neutral."""
        problem, known = self.problem, parameters(self)
        given = {name: value for name, value in make_inputs(problem).items() if name in known}
        given = problem.complete(given)
        given |= outputs(problem, given)
        strides = zip(("x_stride", "y_stride"), problem.strides, strict=True)
        if self.apart:
            for name, stride, start in zip("xy", problem.strides, (1, 3), strict=True):
                given[name] = strided_copy(given[name], stride, start)
        return (
            given | {name: problem.sizes[name] for name in problem.operation.sizes} | dict(strides)
        )


CASES = (
    Case("biased", "softmax", {"BIAS": "yes", "LOG": "yes"}, (7, 2048), "float32"),
    Case("masked", "softmax", {"MASK": "bytes", "WIDE": "yes"}, (6, 2048), "bfloat16"),
    Case("causal", "softmax", {"MASK": "causal", "ZERO": "yes"}, (7, 131072), "float16"),
    Case("dropped", "softmax", {"DROPOUT": "yes"}, (6, 2048), "float32"),
    Case("axis", "softmax_any_axis", {}, (3 * 40, 33, 40), "bfloat16"),
    Case("back", "softmax_backward", {"LOG": "yes"}, (6, 2048), "float32"),
    Case("anew", "softmax_backward", {"FROM_X": 1, "DROPOUT": 1, "MASK": 1}, (7, 2048), "float16"),
    Case("loss", "cross_entropy", {}, (5, 1003), "bfloat16"),
    Case("gradient", "cross_entropy_backward", {}, (5, 1003), "float32"),
)
SOFTMAX = (
    Case("ahead", "softmax", {}, (1, 262144), "float32", "08_ahead"),  # a cluster of 16
    Case("grid", "softmax", {}, (2, 65536), "float32", "09_grid"),  # workspace, all blocks at once
    Case("any_length", "softmax", {}, (3, 5001), "float16", "11_any_length", apart=True),
    Case("sixteen_bit", "softmax", {}, (37, 256), "bfloat16", "10_sixteen_bit"),
)
EVERY = (*CASES, *SOFTMAX)


def alone(step: str, dtype: str = "", gpu: Gpu = H200) -> Case:
    """A kernel of softmax or of a copy at the first shape that it takes."""
    kernel = load(step)
    dtype = dtype or kernel.header.dtype.name
    shapes = (37, 1003), (37, 8200), (37, 200), (5, 32768)
    shape = next(shape for shape in shapes if kernel.accepts(*shape, dtype, gpu))
    name = "of_" + re.sub(r"\W", "_", step)
    return Case(name, kernel.operation.name, {}, shape, dtype, step)


# ---- libraries ----------------------------------------------------------------------------------


def parameters(case: Case) -> dict[str, str]:
    """The function's parameters: name -> how C declares it."""
    declared = case.call.parameters(np.dtype(case.dtype))
    return {text.replace("*", " ").split()[-1]: text for text in declared}


def c_functions(cases: Sequence[Case]) -> str:
    """C++ that includes the files as their callers do, and has functions of them that C knows."""
    lines = []
    for case in cases:
        name, known = case.name, parameters(case)
        workspace = {"workspace": "void* workspace", "bytes": "size_t bytes"}
        known |= workspace if case.call.workspace else {}
        declared = [*known.values(), "cudaStream_t s"]
        sizes = [f"long long {size}" for size in case.call.sizes]
        lines += [
            f"#define {name.upper()}_DECLARATIONS",
            f'#include "{name}.cu"',
            f'extern "C" int c_{name}({", ".join(declared)})',
            # One of them has an argument of its name.
            f"{{ return ::{name}({', '.join([*known, 's'])}); }}",
        ]
        if case.call.workspace:
            lines += [
                f'extern "C" size_t workspace_{name}({", ".join(sizes)})',
                f"{{ return {name}_workspace({', '.join(case.call.sizes)}); }}",
            ]
    return "\n".join([*lines, ""])


class Library:
    """Exported functions, called by names of their arguments."""

    def __init__(self, path: Path) -> None:
        self.path, self.loaded = path, ctypes.CDLL(str(path))
        self.memory: dict[str, tuple[object, int]] = {}  # a function's workspace, and its bytes

    def __call__(self, case: Case, values: Mapping[str, object], stream: int = 1) -> int:
        """What the function returns. Arrays may be given as addresses."""
        function, given = self.loaded[f"c_{case.name}"], []
        for name, declared in parameters(case).items():
            value = values[name]
            if "*" in declared:
                given.append(ctypes.c_void_p(address(value)))
            else:
                kind = C_TYPES[declared.rpartition(" ")[0]]
                given.append(kind(float(value) if kind is ctypes.c_float else int(value)))
        if case.call.workspace:
            memory, bytes = self.memory.get(case.name, (None, 0))
            given += [ctypes.c_void_p(address(memory)), ctypes.c_size_t(bytes)]
        return function(*given, ctypes.c_void_p(stream))

    def prepare(self, case: Case, values: Mapping) -> None:
        """Give a function the workspace that it asks for, full of zeros."""
        if case.call.workspace:
            ask = self.loaded[f"workspace_{case.name}"]
            ask.restype = ctypes.c_size_t
            bytes = ask(*(ctypes.c_longlong(values[name]) for name in case.call.sizes))
            self.memory[case.name] = self.zeros(max(8, bytes)), bytes

    def zeros(self, bytes: int) -> object:
        return np.zeros(bytes, np.uint8)


def address(value: object) -> int | None:
    """Of an array of NumPy or CuPy; None of a null pointer."""
    if hasattr(value, "ctypes"):
        return value.ctypes.data
    return value.data.ptr if hasattr(value, "data") else value


class Launched(NamedTuple):
    kernel: str
    block: int
    how: list[str]  # the attributes of the launch
    grid: int
    shared: int
    arguments: dict[str, float]  # of the kernel: numbers, and addresses of arrays


DEVICE = {16: H200.sms, 38: H200.l2, 75: 9, 76: 0, 97: H200.max_shared}  # cudaDeviceAttr -> value


class Pretended(Library):
    """The same over a CUDA runtime that tells what is called, launches nothing, and fails as it is
    told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.calls: list[tuple[str, int, int]] = []
        self.launched: list[Launched] = []
        self.fails = 0  # the number of the call that does, from 1
        self.case: Case | None = None
        kinds = ctypes.c_char_p, ctypes.c_longlong, ctypes.c_longlong, ctypes.c_void_p
        self.answer = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(self._answer)  # C has its address
        self.loaded.answer_with(self.answer)

    def fresh(self) -> "Pretended":
        """The library as another process would load it."""
        copy = self.path.with_name(f"{len([*self.path.parent.iterdir()])}.so")
        return Pretended(Path(shutil.copyfile(self.path, copy)))

    def _answer(self, call: bytes, one: int, other: int, result: int | None) -> int:
        name, *more = call.decode().split(" ")
        self.calls.append((call.decode(), one, other))
        if len(self.calls) == self.fails:
            return UNKNOWN
        if name == "launch":
            kernel, block, *how = more
            given = self._arguments(result)
            self.launched.append(Launched(kernel, int(block), how, one, other, given))
        elif result:
            value = DEVICE[one] if name == "attribute" else 0
            ctypes.c_int.from_address(result).value = value
        return SUCCESS

    def _arguments(self, given: int) -> dict[str, float]:
        kernel, found = load(self.case.step), {}
        pointers = (ctypes.c_void_p * len(kernel.parameters)).from_address(given)
        for parameter, place in zip(kernel.parameters, pointers, strict=True):
            kind = ctypes.c_void_p if parameter.pointer else C_TYPES[parameter.type]
            found[parameter.name] = kind.from_address(place).value
        return found

    def __call__(self, case: Case, values: Mapping[str, object], stream: int = 1) -> int:
        self.case = case
        return super().__call__(case, values, stream)


def write_files(folder: Path, cases: Sequence[Case], gpu: Gpu = H200) -> None:
    """Write each file, one of all of them behind one another, and their functions for C."""
    texts = {case.name: case.text(gpu) for case in cases}
    for name, text in {**texts, "every": "".join(texts.values())}.items():
        (folder / f"{name}.cu").write_text(text)
    (folder / "calls.cpp").write_text(c_functions(cases))


def pretended(folder: Path) -> Pretended:
    """All exported functions, compiled in a folder over a runtime that Python answers."""
    write_files(folder, EVERY)
    done = compiled(folder, *NO_RUN, "-arch=sm_90", "-Xcompiler=-fPIC", "-c", "every.cu")
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    (folder / "runtime.cpp").write_text(f'#include "{FOLDER}/cuda.cpp"\n#include "calls.cpp"\n')
    done = host_compiled(folder, "-fPIC", "-c", "runtime.cpp")
    assert done.returncode == 0, done.stderr
    command = ["g++", "-shared", "-Wl,-Bsymbolic", "every.o", "runtime.o", "-o", "library.so"]
    subprocess.run(command, cwd=folder, check=True)
    return Pretended(folder / "library.so")


def unusual_uses(case: Case, values: Mapping) -> Iterator[tuple[str, dict[str, object], int]]:
    """(what is wrong, the arguments in which a call differs, what it returns)"""
    call, header = case.call, load(case.step).header
    none = {array.name: None for array in call.arrays}
    for name in call.operation.sizes:  # rows without columns have a loss
        loss = case.name == "loss" and name == "cols"
        yield f"nothing, {name} = 0", {**none, name: 0}, INVALID if loss else SUCCESS
    inplace = {*call.inplace}
    for array in call.arrays:
        name, start = array.name, address(values[array.name])
        yield f"no {name}", {name: None}, INVALID
        yield f"{name} between elements", {name: start + 1}, MISALIGNED
        if array.shape == MATRIX and header.align(case.dtype) == 16:
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
    sizes = call.operation.sizes
    for name in sizes:
        for number in (-1, MOST, 2 * MOST + values[name]):
            yield f"{name} = {number}", {name: number}, INVALID
    for name in call.sizes[len(sizes) :]:
        yield f"{name} less than a row", {name: values["cols"] - 1}, INVALID
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
