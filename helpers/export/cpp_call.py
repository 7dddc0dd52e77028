"""What an exported C++ function is called with: its parameters, what is checked of them, and how a
kernel takes them.

Sizes and counts of rows are `long long` to a caller, and an int to a kernel once they are checked.
What a kernel declares and no feature of the file asks for is a null pointer or a neutral number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ..problem.operations import ANY_AXIS, COPY, CROSS_ENTROPY, MATRIX, STATISTICS, Argument
from ..problem.problem import MAX_INT
from ..run.bound import Kernel
from .asked import NoSuchExport

TYPES = {
    "float32": "float",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "uint8": "unsigned char",
    "int32": "long long",  # a count
    "int64": "std::int64_t",
    "uint64": "std::uint64_t",
}
SIZES = {  # what a kernel reads of its matrix
    "rows": "matrix.rows",
    "cols": "matrix.cols",
    "2": "2",
    "outer": "matrix.rows / matrix.inner",
    "dim": "matrix.cols",
    "inner": "matrix.inner",
}
# What a caller must know of an argument.
ABOUT = {
    "scale": "x is multiplied by it; 1 leaves it as it is",
    "bias": "bias_rows rows of cols: row r of x goes with row r % bias_rows",
    "mask": "mask_rows rows of cols: what is not 0 hides an element of x, and row r of x goes with "
    "row r / mask_repeat % mask_rows",
    "mask_rows": "element c of row r of x is hidden where c > r / mask_repeat % mask_rows: of a "
    "square mask_rows is its cols and mask_repeat is 1",
    "p": "the share that is dropped, 0 to 1 in steps of 1/65536; seed and offset say what",
    "target": "of each row the column that was right; loss and gradient of any that there is not "
    "are NaN",
    "statistics": "two per row: its maximum m, and log(sum(exp(x - m))); the loss writes them, its "
    "gradient reads them, and their sum is lse",
    "dloss": "of each row the gradient by its loss",
    "ignore_index": "a row with this target counts 0; -100 in PyTorch",
    "smoothing": "of labels, 0 to 1; 0 is without",
    "z_loss": "what lse * lse is multiplied by; 0 is without",
}


class CppCall:
    """The function of a file, for every dtype that it takes."""

    def __init__(
        self, kernels: dict[str, Kernel], dtypes: Sequence[np.dtype], strides: bool
    ) -> None:
        """`kernels` are those of the file by step; `strides` says that rows may be apart. Raises
        `NoSuchExport` where they take different arguments."""
        self.kernels, self.dtypes = list(kernels.values()), dtypes
        first = self.kernels[0]
        self.operation, self.features = first.operation, first.features
        self.strides = strides
        self.workspace = any("Workspace" in kernel.header.fields for kernel in self.kernels)
        taken = [self._asked(kernel) for kernel in self.kernels]
        if other := [step for step, own in zip(kernels, taken, strict=True) if own != taken[0]]:
            raise NoSuchExport(f"{other[0]} takes other arguments than {next(iter(kernels))}")
        self.arguments: tuple[Argument, ...] = taken[0]

    def _asked(self, kernel: Kernel) -> tuple[Argument, ...]:
        """The arguments that a kernel's features ask for, as far as it declares them."""
        declared = {parameter.name for parameter in kernel.parameters}
        asked = kernel.operation.arguments_for(kernel.features)
        return tuple(argument for argument in asked if argument.name in declared)

    @property
    def arrays(self) -> tuple[Argument, ...]:
        return tuple(argument for argument in self.arguments if argument.shape)

    @property
    def outputs(self) -> tuple[Argument, ...]:
        return tuple(array for array in self.arrays if array.output)

    @property
    def first(self) -> str:
        """The array whose start is the matrix's x_start."""
        return self.arrays[0].name

    @property
    def last(self) -> str:
        """The array whose start is the matrix's y_start: what is written, if that is a matrix."""
        written = [array.name for array in self.outputs if array.shape == MATRIX]
        return written[0] if written else self.first

    @property
    def axis(self) -> bool:
        """Whether columns may be apart."""
        return "inner" in self.operation.sizes

    # ---- the function ---------------------------------------------------------------------------

    @property
    def sizes(self) -> list[str]:
        """Names of sizes, and of strides where rows may be apart."""
        return [*self.operation.sizes, *(["x_stride", "y_stride"] if self.strides else [])]

    @cached_property
    def names(self) -> list[str]:
        """The parameters' names, but for workspace and stream."""
        known = {argument.name for argument in self.arguments} | {*self.sizes}
        return [name for name in self.operation.parameters if name in known]

    def parameters(self, dtype: np.dtype) -> list[str]:
        """The parameters of the function for a dtype, but for workspace and stream."""
        by_name = {argument.name: argument for argument in self.arguments}
        return [
            parameter(by_name[name], dtype) if name in by_name else f"long long {name}"
            for name in self.names
        ]

    @property
    def matrix(self) -> str:
        """Sizes and strides of the `Matrix` of a call."""
        if self.axis:
            return "product(outer, inner), dim, dim, dim"
        return f"rows, cols, {'x_stride, y_stride' if self.strides else 'cols, cols'}"

    # ---- checks ---------------------------------------------------------------------------------

    @property
    def empty(self) -> str:
        """When there is nothing to write."""
        cols = all("cols" in array.shape for array in self.outputs)
        return "matrix.rows == 0" + " || matrix.cols == 0" * cols

    def checks(self) -> list[str]:
        """Conditions of numbers that refuse a call."""
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
        """An `Array` for each of the call's."""
        return [self._array(array) for array in self.arrays]

    def _array(self, array: Argument) -> str:
        size = "matrix.size" if array.dtype == "T" else str(np.dtype(array.dtype).itemsize)
        rows, *columns = (SIZES.get(name, f"given.{name}") for name in array.shape)
        cols = columns[0] if columns else "1"
        stride = f"matrix.{array.name}_stride" if array.shape == MATRIX and self.strides else cols
        words = [f"given.{array.name}", rows, cols, stride, size, self._align(array)]
        words.append(str(array.output).lower())
        if self.inplace:
            words.append(str(array.name in self.inplace).lower())
        return f"{{{', '.join(words)}}},"

    def _align(self, array: Argument) -> str:
        """What the address is a multiple of, in C++."""
        every = self._aligned(array)
        if len(every) == 1:
            return str(every.pop())
        if array.dtype == "T":
            return "matrix.size"
        return f"16 / matrix.size * {np.dtype(array.dtype).itemsize}"

    def _aligned(self, array: Argument) -> set[int]:
        """What it is a multiple of for each dtype, as `BoundKernel` holds it; where several kernels
        want different ones, the plan knows."""
        found = set()
        for dtype in self.dtypes:
            align = {k.header.align(dtype) for k in self.kernels if dtype in k.header.dtypes}
            own, elements = array.numpy_dtype(dtype).itemsize, align.pop() // dtype.itemsize
            found.add(own if align or "cols" not in array.shape else min(16, elements * own))
        return found

    @property
    def inplace(self) -> list[str]:
        """Two arrays that may be one."""
        written = self.kernels[0].header.fields.get("Inplace", "")
        return written.split(" = ") if written else []

    # ---- as kernels take them -------------------------------------------------------------------

    def members(self) -> list[str]:
        """Of `Given`."""
        return [
            f"{'void*' if a.output else 'const void*' if a.shape else TYPES[a.dtype]} {a.name};"
            for a in self.arguments
        ]

    def taken(self) -> tuple[list[str], str]:
        """(lines that make what kernels take, the list that a plan's kernel takes)"""
        lists = {kernel.header.strided: kernel for kernel in self.kernels}
        lines = self._locals(kernel for kernel in lists.values())
        names = (
            {False: "plain", True: "strided"} if len(lists) > 1 else dict.fromkeys(lists, "taken")
        )
        for apart, kernel in sorted(lists.items()):
            places = [self._place(name) for name in _declared(kernel, self.workspace)]
            lines.append(f"void* {names[apart]}[] = {{{', '.join(places)}}};")
        return lines, "plan.strided ? strided : plain" if len(lists) > 1 else "taken"

    def _locals(self, kernels) -> list[str]:
        """Variables of a kernel's types for what is given otherwise, or not at all."""
        lines, given = [], {argument.name: argument for argument in self.arguments}
        declared = dict.fromkeys(p.name for kernel in kernels for p in kernel.parameters)
        of_all = {argument.name: argument for argument in self.operation.arguments}
        for name in declared:
            if name in self.operation.sizes:
                lines.append(f"int {name} = static_cast<int>({SIZES[name]});")
            elif name in given and given[name].dtype == "int32":
                lines.append(f"int {name} = static_cast<int>(given.{name});")
            elif name in of_all and name not in given:
                lines.append(f"{_neutral(of_all[name])};")
        return lines

    def _place(self, name: str) -> str:
        given = {argument.name for argument in self.arguments if argument.dtype != "int32"}
        if name.endswith("_stride"):
            return f"&matrix.{name}"
        return f"&given.{name}" if name in given else f"&{name}"

    # ---- words ----------------------------------------------------------------------------------

    def about(self) -> list[tuple[str, str]]:
        """(argument, what a caller must know of it)"""
        known = {argument.name for argument in self.arguments}
        if "mask" in known:
            known -= {"mask_rows"}
        return [(name, ABOUT[name]) for name in self.names if name in known & {*ABOUT}]

    def result(self) -> str:
        """What the function computes."""
        if self.operation is COPY:
            return "y = x"
        if self.operation is CROSS_ENTROPY:
            return "the cross-entropy of each row of x, of which softmax is never written"
        known = {argument.name for argument in self.arguments}
        if self.operation.name == "cross_entropy_backward":
            return "dx, the gradient by x of cross-entropy"
        if self.operation.name == "softmax_backward":
            return self._result_of_gradient()
        at = "[o, :, i]" if self.operation is ANY_AXIS else "[row]"
        what = f"scale * x{at}" if "scale" in known else f"x{at}"
        what += f" + bias{at}" if "bias" in known else ""
        what += ", -inf where it is hidden" if self.features.get("MASK") else ""
        what = f"softmax({what})"
        what = f"log({what})" if self.features.get("LOG") else what
        return f"y{at} = " + (f"dropout({what})" if self.features.get("DROPOUT") else what)

    def _result_of_gradient(self) -> str:
        what = "log(softmax(scale * x))" if self.features.get("LOG") else "softmax(scale * x)"
        lost = ", of which dropout left something" if self.features.get("DROPOUT") else ""
        given = "y is given" if not self.features.get("FROM_X") else "scale * x is given as y"
        return f"dx, the gradient by x of {what}{lost}; {given}, and dy, the gradient by the result"

    def misaligned(self) -> str:
        """Which array may not start where."""
        each = [" or ".join(map(str, sorted(self._aligned(array)))) for array in self.arrays]
        if [array.name for array in self.arrays] == ["x", "y"]:
            mixed = len({kernel.header.fields["Align"] for kernel in self.kernels}) > 1
            at = "where the kernel wants it" if mixed else f"at a multiple of {each[0]} bytes"
            return f"x or y does not start {at}"
        listed = (f"{array.name} {bytes}" for array, bytes in zip(self.arrays, each, strict=True))
        return f"an array does not start at a multiple of its bytes: {', '.join(listed)}"

    def overlap(self) -> str:
        """How arrays may not lie."""
        if [array.name for array in self.arrays] == ["x", "y"]:
            return "x and y overlap"
        which = " or ".join(array.name for array in self.outputs)
        if self.inplace:
            return f"{which} overlaps another array and is not {self.inplace[1]} itself"
        return f"{which} overlaps another array"


def parameter(argument: Argument, dtype: np.dtype) -> str:
    """A parameter of a function for a dtype: `const float* x`."""
    # Both statistics as one type: a caller with one float per row gets a compiler's error.
    two = argument.shape == STATISTICS
    kind = "float2" if two else TYPES[argument.numpy_dtype(dtype).name]
    if not argument.shape:
        return f"{kind} {argument.name}"
    return f"{'' if argument.output else 'const '}{kind}* {argument.name}"


def _declared(kernel: Kernel, workspace: bool) -> Sequence[str]:
    """What a kernel takes, and the workspace that others of its file take last."""
    names = [parameter.name for parameter in kernel.parameters]
    return [*names, *(["workspace"] if workspace and "workspace" not in names else [])]


def _neutral(argument: Argument) -> str:
    """A variable of a kernel's type for what no feature asks for."""
    if argument.shape:
        return f"const void* {argument.name} = nullptr"
    kind = "int" if argument.dtype == "int32" else TYPES[argument.dtype]
    value = 1 if isinstance(argument.neutral, tuple) else argument.neutral
    number = f"{value}f" if argument.dtype == "float32" else str(int(value))
    return f"{kind} {argument.name} = {number}"
