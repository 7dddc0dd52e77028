"""The interface of an exported C++ function: its parameters, their checks, and the arguments of the
kernel.

Sizes and row counts are `long long` in the function and int in the kernel, which reads their lower
half once they are checked: hosts of CUDA are little-endian.
Parameters of a kernel that no feature of the file uses get a null pointer or a neutral number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ..problem.operations import MATRIX, STATISTICS, Argument
from ..problem.problem import MAX_INT
from ..run.bound import Kernel
from .request import ExportError

TYPES = {
    "float32": "float",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "uint8": "unsigned char",
    "int32": "long long",  # a row count
    "int64": "std::int64_t",
    "uint64": "std::uint64_t",
}
# Sizes of arrays and of kernels' arguments, as C++.
SIZES = {"rows": "matrix.rows", "cols": "matrix.cols", "dim": "matrix.cols", "2": "2"}
SIZES |= {"inner": "matrix.inner", "outer": "matrix.rows / matrix.inner"}


class CppCall:
    """The function of a file, for all its dtypes."""

    def __init__(
        self, kernels: dict[str, Kernel], dtypes: Sequence[np.dtype], strides: bool
    ) -> None:
        """`kernels` are those of the file by step; `strides` says whether the function has row
        strides. Raises `ExportError` if the kernels have different arguments."""
        self.kernels, self.dtypes = list(kernels.values()), dtypes
        first = self.kernels[0]
        self.operation, self.features = first.operation, first.features
        self.strides = strides
        self.workspace = any("Workspace" in kernel.header.fields for kernel in self.kernels)
        taken = [self._used(kernel) for kernel in self.kernels]
        if other := [step for step, own in zip(kernels, taken, strict=True) if own != taken[0]]:
            raise ExportError(f"{other[0]} has other arguments than {next(iter(kernels))}")
        self.arguments: tuple[Argument, ...] = taken[0]

    def _used(self, kernel: Kernel) -> tuple[Argument, ...]:
        """Return the arguments that a kernel declares and its features use."""
        declared = {parameter.name for parameter in kernel.parameters}
        used = kernel.operation.arguments_for(kernel.features)
        return tuple(argument for argument in used if argument.name in declared)

    @property
    def arrays(self) -> tuple[Argument, ...]:
        return tuple(argument for argument in self.arguments if argument.shape)

    @property
    def outputs(self) -> tuple[Argument, ...]:
        return tuple(array for array in self.arrays if array.output)

    @property
    def first(self) -> str:
        """The array whose alignment is the matrix's x_start."""
        return self.arrays[0].name

    @property
    def last(self) -> str:
        """The array whose alignment is the matrix's y_start: the output, if it is a matrix."""
        written = [array.name for array in self.outputs if array.shape == MATRIX]
        return written[0] if written else self.first

    @property
    def axis(self) -> bool:
        """Whether the function has the sizes outer, dim and inner."""
        return "inner" in self.operation.sizes

    # ---- the function ---------------------------------------------------------------------------

    @property
    def sizes(self) -> list[str]:
        """The names of sizes and row strides."""
        return [*self.operation.sizes, *(["x_stride", "y_stride"] if self.strides else [])]

    @cached_property
    def names(self) -> list[str]:
        """The names of the parameters, without workspace and stream."""
        known = {argument.name for argument in self.arguments} | {*self.sizes}
        return [name for name in self.operation.parameters if name in known]

    def parameters(self, dtype: np.dtype) -> list[str]:
        """Return the parameters for a dtype, without workspace and stream."""
        by_name = {argument.name: argument for argument in self.arguments}
        return [
            parameter(by_name[name], dtype) if name in by_name else f"long long {name}"
            for name in self.names
        ]

    @property
    def matrix(self) -> str:
        """The sizes and strides of the `Matrix` of a call."""
        if self.axis:
            return "product(outer, inner), dim, dim, dim"
        return f"rows, cols, {'x_stride, y_stride' if self.strides else 'cols, cols'}"

    # ---- checks ---------------------------------------------------------------------------------

    @property
    def empty(self) -> str:
        """The condition that there is nothing to write."""
        cols = all("cols" in array.shape for array in self.outputs)
        return "matrix.rows == 0" + " || matrix.cols == 0" * cols

    def checks(self) -> list[str]:
        """Return the conditions of numbers that make a call invalid."""
        found = []
        for argument in self.arguments:
            name = f"given.{argument.name}"
            if argument.dtype == "int32" and not argument.shape:
                found.append(f"{name} < 1 || {name} > {MAX_INT}")
            if argument.between:
                low, high = argument.between
                found.append(f"!({name} >= {low} && {name} <= {high})")  # NaN is refused too
        return found

    def array_lines(self) -> list[str]:
        """Return an initialiser of `Array` for each array."""
        return [self._array(array) for array in self.arrays]

    def _array(self, array: Argument) -> str:
        size = "matrix.size" if array.dtype == "T" else str(np.dtype(array.dtype).itemsize)
        rows, *columns = (SIZES.get(name, f"given.{name}") for name in array.shape)
        if f"{array.name}_group" in self.names:
            rows = f"ceil_div(matrix.rows, given.{array.name}_group).value * {rows}"
        count = " * ".join([rows, *columns])
        if array.shape == MATRIX and self.strides:
            count = f"((matrix.rows - 1) * matrix.{array.name}_stride + matrix.cols)"
        words = [f"given.{array.name}", f"{count} * {size}"]
        words += [self._align(array), str(array.output).lower()]
        words += [str(array.name in self.inplace).lower()] * bool(self.inplace)
        return f"{{{', '.join(words)}}},"

    def _align(self, array: Argument) -> str:
        """Return the required alignment of an array in bytes, as C++: for rows, that of the kernel;
        if kernels differ, the plan checks it."""
        own = np.dtype("float32" if array.dtype == "T" else array.dtype).itemsize
        if "cols" in array.shape and all(k.header.fields["Align"] == "16" for k in self.kernels):
            return "16" if own >= 4 else f"16 / matrix.size * {own}"
        return "matrix.size" if array.dtype == "T" else str(own)

    @property
    def inplace(self) -> list[str]:
        """The two arrays that may be the same; empty if there are none."""
        written = self.kernels[0].header.fields.get("Inplace", "")
        return written.split(" = ") if written else []

    # ---- arguments of the kernel ----------------------------------------------------------------

    def members(self) -> list[str]:
        """Return the members of `Given`; those that a call does not give are neutral."""
        given = {argument.name for argument in self.arguments}
        unused = {p.name for kernel in self.kernels for p in kernel.parameters} - given
        others = {a.name: a for a in self.operation.arguments if a.name in unused}
        return [
            *(f"{_member(argument)};" for argument in self.arguments),
            *(f"{_member(argument)} = {_neutral(argument)};" for argument in others.values()),
        ]

    def taken(self) -> tuple[list[str], str]:
        """Return the lists of arguments of kernels, and the expression for that of a plan."""
        places = {name: f"&matrix.{name}" for name in ("rows", "cols", "x_stride", "y_stride")}
        places |= {"dim": "&matrix.cols", "inner": "&matrix.inner"}
        places |= {name: f"&{name}" for name in ("outer", "workspace")}
        lines: list[str] = []
        lists = {kernel.header.strided: kernel for kernel in self.kernels}
        for strided, kernel in sorted(lists.items()):
            # Without a workspace of its own, a kernel ignores that of another one.
            names = dict.fromkeys(
                [p.name for p in kernel.parameters] + ["workspace"] * self.workspace
            )
            own = ("strided" if strided else "plain") if len(lists) > 1 else "taken"
            addresses = (places.get(name, f"&given.{name}") for name in names)
            lines.append(f"void* {own}[] = {{{', '.join(addresses)}}};")
        return lines, "plan.strided ? strided : plain" if len(lists) > 1 else "taken"


def parameter(argument: Argument, dtype: np.dtype) -> str:
    """Return a parameter of the function for a dtype: `const float* x`."""
    # Both statistics are one type, so that passing one float per row does not compile.
    two = argument.shape == STATISTICS
    kind = "float2" if two else TYPES[argument.numpy_dtype(dtype).name]
    if not argument.shape:
        return f"{kind} {argument.name}"
    return f"{'' if argument.output else 'const '}{kind}* {argument.name}"


def _member(argument: Argument) -> str:
    kind = "const void*" if argument.shape else TYPES[argument.dtype]
    return f"{'void*' if argument.output else kind} {argument.name}"


def _neutral(argument: Argument) -> str:
    """Return the value of an argument that no feature uses."""
    value = 1 if isinstance(argument.neutral, tuple) else argument.neutral
    return "nullptr" if argument.shape else str(int(value))
