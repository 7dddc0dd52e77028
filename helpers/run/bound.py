"""One kernel, one object: a kernel file bound to a shape, a dtype and a GPU.

    bound = load("08_cluster").bind(1024, 262144)        # a step, a variant or a trial
    bound = bind(source("01_naive.cu"), 64, 1024)        # the text of a file
    bound = bind(cupy.RawKernel(...), 64, 1024)          # a kernel as it was compiled
    bound = bind(text, 64, 1024, x_stride=1030)          # a row stride, if it supports one
    bound = bind(text, 64, 1024, features={"MASK": "causal"})       # features, if it has them
    bound = bind(text, outer * inner, dim, inner=inner)  # another axis, if it supports one

A `BoundKernel` knows its text, plan, compiler options, workspace and launch. It can be run (on the
GPU or the SIMT machine), simulated, and enqueued for timing, without unpacking a plan.

    bound.run(x, y)                                      # arrays in the order of the kernel
    bound.run(x=x, y=y, mask=mask, scale=0.5)            # or by name; numbers are optional
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from .. import simt
from ..base.arguments import checked
from ..base.gpu import Gpu
from ..base.mode import gpu_for_plans
from ..catalogue.dispatch import changes_of
from ..catalogue.header import header
from ..catalogue.plan import MAX_BLOCK, Header, Plan, option_name
from ..catalogue.registry import source, split_trial
from ..problem.operations import MATRIX, Argument, Operation
from ..problem.problem import Problem, integer
from ..simt import byte_offset
from ..simt.cuda_text import Parameter, kernel_names, signature
from .execute import (
    KernelBug,
    as_declared,
    check_arguments,
    enqueue,
    execute,
    execute_simulated,
    prepare,
)

NO_FEATURES: Mapping[str, int | str] = MappingProxyType({})


@dataclass(frozen=True)
class Kernel:
    """The text of a kernel file, and the changes to what its header says."""

    code: str
    block: int | None = None  # None: the header's
    changes: tuple[
        tuple[str, int], ...
    ] = ()  # overrides of the Build table or of numbers in the file
    raw: object = None  # the compiled `cupy.RawKernel`, if one was given

    def __repr__(self) -> str:
        return f"Kernel({self.name}, block={self.block}, changes={dict(self.changes)})"

    @property
    def name(self) -> str:
        """The name of the `__global__` function."""
        return self.raw.name if self.raw is not None else kernel_names(self.code)[0]

    @property
    def header(self) -> Header:
        """Raises `ValueError` if there is none, `TypeError` for a change that is not an integer."""
        options = self.raw.options if self.raw is not None else ()
        changes = tuple((name, integer(name, value)) for name, value in self.changes)
        found = header(self.code, tuple(options), changes)
        if found is None:
            name = self.name if self.raw is not None else "the source"
            raise ValueError(f"{name} has no header to take its launch shape from")
        return found

    def starting_at(self, *matrices: np.ndarray) -> Kernel:
        """The kernel for arrays whose offsets from a multiple of 16 bytes may differ: with LATE = 1
        if they do and it has that macro."""
        differ = len({byte_offset(matrix) % 16 for matrix in matrices}) > 1
        late = differ and self.raw is None and "LATE" in self.header.macros
        return replace(self, changes=(*self.changes, ("LATE", 1))) if late else self

    @property
    def operation(self) -> Operation:
        return self.header.operation

    @property
    def features(self) -> dict[str, int]:
        """The features of its operation that are selected."""
        return self.header.features

    def choosing(self, features: Mapping[str, int | str]) -> Kernel:
        """The kernel with these features, given by number or name. Raises `ValueError` naming a
        feature that the operation or the file does not have."""
        changes = self.header.changes_for(features)
        return kernel_of(self, changes=changes) if changes else self

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of the kernel."""
        return signature(self.code, self.name)

    def check_signature(self) -> None:
        """Raise `ValueError` unless the kernel has the parameters that its header promises, and the
        macros that it needs are defined."""
        contract, operation = self.header, self.operation
        declared = [parameter.name for parameter in self.parameters]
        allowed = {"workspace", *(argument.name for argument in operation.arguments)}
        needed = {*operation.required, *(array.name for array in operation.arrays(self.features))}
        needed |= {"x_stride", "y_stride"} if contract.strided else set()
        needed |= {"workspace"} if "Workspace" in contract.fields else set()
        wanted = [
            name
            for name in operation.parameters
            if name in needed or (name in declared and name in allowed)
        ]
        if declared != wanted:
            raise ValueError(
                f"{self.name} computes {operation.name}, so it must take {', '.join(wanted)}; it "
                f"takes {', '.join(declared)}"
            )
        given = [*contract.macros] if self.raw is None else list(map(option_name, self.raw.options))
        if missing := [f"-D{name}" for name in contract.macros if name not in given]:
            raise ValueError(
                f"{self.name} is compiled without {', '.join(missing)}: compile it for a shape, "
                "with the options of bind(code, rows, cols, dtype)"
            )

    def problem(self, rows: int, cols: int, dtype: str = "float32", **options) -> Problem:
        """Return the problem that the kernel solves at a shape and dtype; `options` are further
        fields of `Problem`. Raises what `Problem` raises."""
        features = tuple(self.features.items())
        return Problem(rows, cols, dtype, operation=self.operation, features=features, **options)

    @checked
    def accepts(
        self,
        rows: int,
        cols: int,
        dtype: str | np.dtype | type = "float32",
        gpu: Gpu | None = None,
        features: Mapping[str, int | str] = NO_FEATURES,
        **options,
    ) -> bool:
        """Return whether the kernel accepts a problem and has these features. Raises what
        `choosing` and `Problem` raise."""
        kernel = self.choosing(features)
        problem = kernel.problem(rows, cols, dtype, **options)
        return kernel.header.accepts(problem, gpu or gpu_for_plans())

    @checked
    def bind(
        self,
        rows: int,
        cols: int,
        dtype: str | np.dtype | type = "float32",
        gpu: Gpu | None = None,
        features: Mapping[str, int | str] = NO_FEATURES,
        **options,
    ) -> BoundKernel:
        """Bind the kernel to a matrix of rows x cols and a GPU: by default the one in use, or in
        replay an H200. `options` are further fields of `Problem`: inner, x_stride, y_stride.

        Raises `ValueError` if its header refuses the problem, the block size or the features, and
        what `Problem` raises.
        """
        kernel = self.choosing(features)
        return kernel.at(kernel.problem(rows, cols, dtype, **options), gpu)

    def at(self, problem: Problem, gpu: Gpu | None = None) -> BoundKernel:
        """`bind` for a problem with the kernel's operation and features."""
        own = self.problem(problem.rows, problem.cols, problem.dtype, inner=problem.inner)
        if (own.operation, own.features) != (problem.operation, problem.features):
            raise ValueError(f"{self.name} computes {own.name}, not {problem.name}")
        gpu = gpu or gpu_for_plans()
        return BoundKernel(self, problem, gpu, self.header.plan(problem, gpu, self.block))


@checked
def load(step: str) -> Kernel:
    """The kernel of a step, a variant or a trial: "08_cluster", "01_naive-b32".

    Raises `FileNotFoundError` that lists the existing files, and `ValueError` for a trial with a
    name that the file does not have or a block size that no GPU supports.
    """
    trial = split_trial(step)
    code = source(f"{trial.file}.cu")
    if trial.block is not None and not 1 <= trial.block <= MAX_BLOCK:
        raise ValueError(f"{step!r}: a block has 1 to {MAX_BLOCK} threads")
    plain = Kernel(code).header
    try:
        kernel = Kernel(code, trial.block, changes_of(trial, plain))
        _ = kernel.header  # raises for a number that cannot be changed
    except ValueError as error:
        raise ValueError(f"{step!r}: {error}") from None
    return kernel


def kernel_of(
    kernel, block: int | None = None, changes: Mapping[str, int] = MappingProxyType({})
) -> Kernel:
    """Make a `Kernel` from the text of a kernel file, a `Kernel`, or a `cupy.RawKernel`, which
    stays as it was compiled; with another block size and other values, if they are given.

    Raises `TypeError` or `ValueError` for anything else.
    """
    if isinstance(kernel, Kernel) and kernel.raw is None:
        changes = {**dict(kernel.changes), **changes}
        block = kernel.block if block is None else block
        return replace(kernel, block=block, changes=tuple(changes.items()))
    if isinstance(kernel, str):
        if "__global__" not in kernel:
            raise ValueError(
                f"{kernel[:60]!r} is no source of a kernel: pass source('01_naive.cu'), say"
            )
        return Kernel(kernel, block, tuple(changes.items()))
    if changes:
        raise ValueError("a compiled kernel cannot be changed: bind the text of its file")
    if isinstance(kernel, Kernel):
        return kernel if block is None else replace(kernel, block=block)
    if not hasattr(kernel, "code"):
        raise TypeError(f"a cupy.RawKernel or the text of a kernel file, not {type(kernel)}")
    return Kernel(kernel.code, block, raw=kernel)


@checked
def bind(
    kernel,
    rows: int,
    cols: int,
    dtype: str | np.dtype | type = "float32",
    block: int | None = None,
    changes: Mapping[str, int] = MappingProxyType({}),
    **options,
) -> BoundKernel:
    """`Kernel.bind` for the text of a kernel file or a `Kernel`, which is compiled for the shape,
    or for a `cupy.RawKernel`, which stays as it was compiled.

    `block` replaces the header's block size; `changes` override values of its Build table or
    numbers that the file defines; `options` are those of `Kernel.bind`.
    """
    return kernel_of(kernel, block, changes).bind(rows, cols, dtype, **options)


@dataclass(frozen=True)
class BoundKernel:
    """A kernel for one problem on one GPU."""

    kernel: Kernel
    problem: Problem
    gpu: Gpu
    plan: Plan

    def __repr__(self) -> str:
        problem = self.problem
        apart = "" if problem.contiguous else f", strides {problem.strides}"
        return f"BoundKernel({self.name}, {problem.place(dtype=True)}{apart}, {self.launch})"

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.problem.dtype)

    @property
    def numbers(self) -> dict[str, int]:
        """Sizes and strides by the names that kernels use."""
        x_stride, y_stride = self.problem.strides
        sizes = {name: self.problem.sizes[name] for name in self.operation.sizes}
        return {**sizes, "x_stride": x_stride, "y_stride": y_stride}

    @property
    def operation(self) -> Operation:
        return self.problem.operation

    @property
    def features(self) -> dict[str, int]:
        """The nonzero features."""
        return dict(self.problem.features)

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def options(self) -> tuple[str, ...]:
        """Compiler options, without those that CuPy adds."""
        return self.plan.options

    @property
    def launch(self) -> dict[str, int]:
        """Grid, block, shared_mem and macros, as a record stores them."""
        return self.plan.launch

    def __getitem__(self, name: str) -> int:
        """The value of a name in the header's Build table: `bound["CLUSTER"]`."""
        return {**self.plan.macros, **self.plan.values}[name]

    @cached_property
    def compiled(self):
        """The `cupy.RawKernel`. CuPy compiles it when a GPU first runs it; the SIMT machine
        compiles its text and options to PTX."""
        if self.kernel.raw is not None:
            return self.kernel.raw
        import cupy

        return cupy.RawKernel(
            self.kernel.code,
            self.name,
            options=self.options,
            enable_cooperative_groups=self.plan.cooperative,
        )

    def arguments(self, *arrays: np.ndarray, **named) -> tuple:
        """The arguments of the kernel in order, with a zeroed workspace if the plan has one. Arrays
        are given in the order of the operation, or anything by name. A number that is not given is
        neutral; an array that no feature requires is None, the null pointer.

        Raises `TypeError` naming an argument that is missing, given twice, or unknown.
        """
        workspace = np.zeros(self.plan.workspace, np.uint8) if self.plan.workspace else None
        return self._in_order(self._named(arrays, named), workspace)

    def _named(self, arrays: Sequence, named: Mapping[str, object]) -> dict[str, object]:
        """All arguments of the operation by name."""
        asked = self.problem.arrays
        if len(arrays) > len(asked):
            names = ", ".join(array.name for array in asked)
            raise TypeError(f"{self.name} takes arrays {names}, {len(arrays)} were given")
        given = {array.name: value for array, value in zip(asked, arrays, strict=False)}
        if twice := [name for name in named if name in given]:
            raise TypeError(f"{self.name} is given {twice[0]} twice")
        values = self.problem.complete({**given, **named})
        if missing := [array.name for array in asked if array.name not in values]:
            raise TypeError(f"{self.name} needs {missing[0]}")
        declared = {parameter.name for parameter in self.kernel.parameters}
        if unknown := [name for name in named if name not in declared]:
            raise TypeError(f"{self.name} does not take {unknown[0]}")
        return values

    def _in_order(self, values: Mapping[str, object], workspace) -> tuple:
        """The declared parameters; numbers as NumPy types, sizes as Python ints."""
        found: list[object] = []
        for parameter in self.kernel.parameters:
            name = parameter.name
            if name in self.numbers:
                found.append(self.numbers[name])
            elif name == "workspace":
                found.append(workspace)
            elif parameter.pointer:
                found.append(values.get(name))
            else:  # no feature requires it
                found.append(as_declared(parameter, values.get(name, 1)))
        return tuple(found)

    def run(self, *arrays: np.ndarray, **named) -> simt.Trace | None:
        """Run the kernel: `arrays` and `named` are those of `arguments`, NumPy arrays of shape
        (rows, cols) or views with the row strides that were bound.

        Runs on the GPU when live; in replay runs on the SIMT machine and returns its trace. Raises
        what `arguments` and `check` raise, and `KernelBug` for a bug or a workspace that is not
        zero again after the launch.
        """
        args = self._checked(arrays, named)
        trace = execute(self.compiled, self.plan, self.plan.grid, self.plan.block, args)
        if self.plan.workspace and args[-1].any():
            raise KernelBug(f"{self.name}: the workspace is not left as zeros for the next launch")
        return trace

    def _checked(self, arrays: Sequence, named: Mapping[str, object]) -> tuple:
        self.kernel.check_signature()
        args = self.arguments(*arrays, **named)
        self.check(args)
        return args

    def simulate(self, *arrays: np.ndarray, **options) -> simt.Trace:
        """The same on the SIMT machine, even if there is a GPU; bugs are in `trace.findings`.
        `options` that are not arguments of the operation go to `simt.simulate`; `watch=True`
        records what `draw` needs."""
        asked = {argument.name for argument in self.operation.arguments} & {*options}
        named = {name: options.pop(name) for name in asked}
        return self.simulate_arguments(self._checked(arrays, named), **options)

    def simulate_arguments(self, args: Sequence, grid: int | None = None, **options) -> simt.Trace:
        """The same for the result of `arguments`, which the caller may have modified: it is not
        checked against the header. `grid` replaces the plan's, to leave blocks out."""
        plan = self.plan
        grid = plan.grid if grid is None else grid
        return execute_simulated(self.compiled, plan, grid, plan.block, args, **options)

    def workspace(self) -> tuple:
        """A tuple with a CuPy array of zeros, or an empty tuple if the plan has no workspace. One
        array suffices for consecutive calls on one stream, because each leaves zeros behind."""
        import cupy

        return (cupy.zeros(self.plan.workspace, cupy.uint8),) if self.plan.workspace else ()

    def prepare(self) -> None:
        """Compile, and set the attributes that CUDA requires (GPU only)."""
        prepare(self.compiled, self.plan)

    def enqueue(self, *arrays, workspace: tuple = (), **named) -> None:
        """Enqueue one call on CuPy's current stream, as planned: the arguments as CuPy arrays, and
        the result of `workspace`. Call `prepare` once before."""
        values = self._in_order(self._named(arrays, named), *(workspace or (None,)))
        typed = [
            np.uintp(0)
            if value is None
            else value
            if parameter.pointer
            else as_declared(parameter, value)
            for parameter, value in zip(self.kernel.parameters, values, strict=True)
        ]
        enqueue(self.compiled, self.plan, typed)

    def check(self, args: Sequence) -> None:
        """Check arguments against signature and header. Raises `TypeError` or `ValueError` naming
        the first one that does not fit."""
        self.kernel.check_signature()
        check_arguments(self.compiled, args)
        names = [parameter.name for parameter in self.kernel.parameters]
        values = dict(zip(names, args, strict=True))
        arrays = self.problem.arrays
        for argument in arrays:
            self._check_dtype(argument, values[argument.name])
        for argument in arrays:
            self._check_place(argument, values)
        matrices = {a.name: values[a.name] for a in arrays if a.shape == MATRIX}
        (first, one), *others = matrices.items()
        for name, other in others:
            if byte_offset(one) % 16 != byte_offset(other) % 16 and self.plan.alike:
                raise ValueError(
                    f"{first} and {name} start at different places between multiples of 16 bytes: "
                    "compile the kernel with LATE = 1"
                )
            if one.shape != other.shape:
                raise ValueError(f"{first} has shape {one.shape}, {name} has shape {other.shape}")
        self._check_overlap({argument.name: values[argument.name] for argument in arrays})
        if self.plan.cooperative and not self.compiled.enable_cooperative_groups:
            raise ValueError(
                f"{self.name} wants a cooperative launch: compile it with "
                "enable_cooperative_groups=True"
            )
        if self.plan.workspace:
            _check_workspace(args[-1], self.plan.workspace)

    def _check_dtype(self, argument: Argument, array: np.ndarray | None) -> None:
        name, wanted = argument.name, argument.numpy_dtype(self.dtype)
        if array is None:
            raise TypeError(f"{name} must be a numpy array, not None")
        if array.dtype != wanted:
            several = len(self.kernel.header.dtypes) > 1
            who = "the kernel is compiled for" if several else "the header says"
            who = who if argument.dtype == "T" else f"{self.operation.name} takes"
            raise TypeError(f"{name} is {array.dtype}, {who} {wanted}")

    def _check_place(self, argument: Argument, values: Mapping[str, object]) -> None:
        """Shape, address and stride of an array."""
        name, array = argument.name, values[argument.name]
        wanted = self.problem.array_shape(argument, values)
        flat = array.ndim not in (2, len(wanted))
        if array.shape != wanted and not (flat and array.size == np.prod(wanted)):
            names = " x ".join(argument.shape)
            if len(wanted) == 3:
                names = "outer x dim x inner"
            raise ValueError(
                f"{name} has shape {array.shape}, which is not {names} = "
                f"{' x '.join(map(str, wanted))}"
            )
        align = self._align(argument)
        if byte_offset(array) % align:
            raise ValueError(
                f"{name} must start at a multiple of {align} bytes; it is a view that starts "
                f"{byte_offset(array)} bytes into its base array"
            )
        problem = self.problem
        if argument.shape != MATRIX or problem.inner > 1:
            return
        stride = dict(zip("xy", problem.strides, strict=True)).get(name, problem.cols)
        row = problem.cols * array.itemsize
        apart = array.strides[0] if array.ndim == 2 else row
        if problem.rows > 1 and apart != stride * array.itemsize:
            raise ValueError(
                f"the rows of {name} start {apart} bytes apart, which is not {name}_stride = "
                f"{stride} elements"
            )

    def _align(self, argument: Argument) -> int:
        """Required alignment of an array in bytes: for arrays with columns, as many elements as the
        header requires of x."""
        align, itemsize = self.kernel.header.align(self.dtype), argument.numpy_dtype(self.dtype)
        if "cols" not in argument.shape:
            return itemsize.itemsize
        elements = align // self.dtype.itemsize
        return min(16, max(itemsize.itemsize, elements * itemsize.itemsize))

    def _check_overlap(self, arrays: Mapping[str, np.ndarray]) -> None:
        inplace = self.kernel.header.fields.get("Inplace", "").split(" = ")
        outputs = [array.name for array in self.problem.arrays if array.output]
        for output in outputs:
            for name, array in arrays.items():
                if name == output or not np.may_share_memory(arrays[output], array):
                    continue
                if inplace != [output, name]:
                    raise ValueError(
                        f"{output} overlaps {name}; these kernels do not work in place"
                    )
                same = [(a.ctypes.data, a.shape, a.strides) for a in (arrays[output], array)]
                if same[0] != same[1]:
                    raise ValueError(f"{output} overlaps {name}: it may be {name} itself, no part")


def _check_workspace(array: np.ndarray, size: int) -> None:
    if array.nbytes < size:
        raise ValueError(f"workspace has {array.nbytes} bytes, the header asks for {size}")
    if array.view(np.uint8).any():
        raise ValueError("workspace must be all zero before the launch")
