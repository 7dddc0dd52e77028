"""`Kernel`, a kernel file, and `BoundKernel`, a kernel bound to a shape, a dtype and a GPU.

    bound = load("08_cluster").bind(1024, 262144)        # a step, a variant or a trial
    bound = bind(source("01_naive.cu"), 64, 1024)        # the source of a file
    bound = bind(cupy.RawKernel(...), 64, 1024)          # with its compiler options
    bound = bind(code, 64, 1024, x_stride=1030)          # strided rows, if supported
    bound = bind(code, 64, 1024, features={"MASK": "causal"})       # of its operation, if supported
    bound = bind(code, outer * inner, dim, inner=inner)  # another axis, if supported

A `BoundKernel` has the source, plan, compiler options, workspace and launch. It can be run (on the
GPU or the SIMT machine), simulated, and enqueued for timing, without access to its plan.

    bound.run(x, y)                                      # arrays in the order of the kernel
    bound.run(x=x, y=y, mask=mask, scale=0.5)            # or by name; numbers may be omitted
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from .. import simt
from ..base.arguments import checked, short
from ..base.gpu import Gpu, gpu_for_plans
from ..catalogue.dispatch import changes_of
from ..catalogue.expressions import MAX_BLOCK
from ..catalogue.header import header
from ..catalogue.plan import Header, Plan, option_name
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
    """The source of a kernel file with overrides of its header."""

    code: str
    block: int | None = None  # threads per block; None: the header's
    changes: tuple[tuple[str, int], ...] = ()  # overrides of Build values or integer macros
    raw: object = None  # a `cupy.RawKernel` to use instead of compiling the source

    def __repr__(self) -> str:
        return f"Kernel({self.name}, block={self.block}, changes={dict(self.changes)})"

    @property
    def name(self) -> str:
        """The name of the `__global__` function."""
        return self.raw.name if self.raw is not None else kernel_names(self.code)[0]

    @property
    def header(self) -> Header:
        """The parsed header. Raises `ValueError` if there is none, `TypeError` for a change that is
        not an integer."""
        options = self.raw.options if self.raw is not None else ()
        changes = tuple((name, integer(name, value)) for name, value in self.changes)
        contract = header(self.code, tuple(options), changes)
        if contract is None:
            name = self.name if self.raw is not None else "the source"
            raise ValueError(f"{name} has no header, so its launch configuration is unknown")
        return contract

    def starting_at(self, *matrices: np.ndarray) -> Kernel:
        """Return the kernel for these arrays: with LATE = 1 if it has that macro and the arrays'
        addresses differ modulo 16 bytes."""
        differ = len({byte_offset(matrix) % 16 for matrix in matrices}) > 1
        late = differ and self.raw is None and "LATE" in self.header.macros
        return replace(self, changes=(*self.changes, ("LATE", 1))) if late else self

    @property
    def operation(self) -> Operation:
        """The operation that the kernel computes."""
        return self.header.operation

    @property
    def features(self) -> dict[str, int]:
        """The value of each feature that the kernel supports; 0 is disabled."""
        return self.header.features

    def choosing(self, features: Mapping[str, int | str]) -> Kernel:
        """Return the kernel with features enabled, given as numbers or words. Raises `ValueError`
        naming a feature that its operation does not have or the file does not support."""
        changes = self.header.changes_for(features)
        return kernel_of(self, changes=changes) if changes else self

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters that the kernel declares."""
        return signature(self.code, self.name)

    def check_signature(self) -> None:
        """Raise `ValueError` unless the kernel's parameters match its header and it is compiled
        with all macros of its Build table."""
        contract, operation = self.header, self.operation
        declared = [parameter.name for parameter in self.parameters]
        allowed = {"workspace", *(argument.name for argument in operation.arguments)}
        required = {*operation.required, *(array.name for array in operation.arrays(self.features))}
        required |= {"x_stride", "y_stride"} if contract.strided else set()
        required |= {"workspace"} if "Workspace" in contract.fields else set()
        expected = [
            name
            for name in operation.parameters
            if name in required or (name in declared and name in allowed)
        ]
        if declared != expected:
            raise ValueError(
                f"{self.name} computes {operation.name}, so its parameters must be "
                f"{', '.join(expected)}; they are {', '.join(declared)}"
            )
        given = [*contract.macros] if self.raw is None else list(map(option_name, self.raw.options))
        if missing := [f"-D{name}" for name in contract.macros if name not in given]:
            raise ValueError(
                f"{self.name} is compiled without {', '.join(missing)}: compile it for a shape, "
                "with the options of bind(code, rows, cols, dtype)"
            )

    @checked
    def problem(
        self, rows: int, cols: int, dtype: str | np.dtype | type = "float32", **options
    ) -> Problem:
        """Return the problem that the kernel solves at a shape and dtype; `options` are further
        fields of `Problem`. Raises what `Problem` raises."""
        features = tuple(self.features.items())
        return Problem(rows, cols, dtype, operation=self.operation, features=features, **options)

    def accepts(
        self, rows: int, cols: int, dtype: str = "float32", gpu: Gpu | None = None, **options
    ) -> bool:
        """Return whether the kernel accepts what `problem` returns for the other arguments, on a
        GPU."""
        problem = self.problem(rows, cols, dtype, **options)
        return self.header.accepts(problem, gpu or gpu_for_plans())

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
        """Return the kernel bound to a matrix of rows x cols and a GPU: by default the GPU in use,
        or an H200 in replay mode. `options` are further fields of `Problem`: inner, x_stride,
        y_stride.

        Raises `ValueError` if its header does not accept the problem, the block size or the
        features, and what `Problem` raises.
        """
        kernel = self.choosing(features)
        return kernel.at(kernel.problem(rows, cols, dtype, **options), gpu)

    def at(self, problem: Problem, gpu: Gpu | None = None) -> BoundKernel:
        """Return what `bind` returns, for a `Problem` with the kernel's operation and features."""
        own = self.problem(problem.rows, problem.cols, problem.dtype, inner=problem.inner)
        if (own.operation, own.features) != (problem.operation, problem.features):
            raise ValueError(f"{self.name} computes {own.name}, not {problem.name}")
        gpu = gpu or gpu_for_plans()
        return BoundKernel(self, problem, gpu, self.header.plan(problem, gpu, self.block))


@checked
def load(step: str) -> Kernel:
    """Return the kernel of a step, a variant or a trial: "08_cluster", "01_naive-b32".

    Raises `FileNotFoundError`, which lists the kernel files, and `ValueError` for a trial that
    overrides an unknown name or whose block size is out of range.
    """
    trial = split_trial(step)
    code = source(f"{trial.file}.cu")
    if trial.block is not None and not 1 <= trial.block <= MAX_BLOCK:
        raise ValueError(f"{step!r}: a block has 1 to {MAX_BLOCK} threads")
    plain = Kernel(code).header
    try:
        kernel = Kernel(code, trial.block, changes_of(trial, plain))
        _ = kernel.header  # raises for a number that cannot be overridden
    except ValueError as error:
        raise ValueError(f"{step!r}: {error}") from None
    return kernel


def kernel_of(
    kernel, block: int | None = None, changes: Mapping[str, int] = MappingProxyType({})
) -> Kernel:
    """Convert the source of a kernel file, a `Kernel`, or a `cupy.RawKernel`, which keeps its
    compiler options, to a `Kernel`, with the overrides given.

    Raises `TypeError` or `ValueError` for anything else.
    """
    if isinstance(kernel, Kernel) and kernel.raw is None:
        changes = {**dict(kernel.changes), **changes}
        block = kernel.block if block is None else block
        return replace(kernel, block=block, changes=tuple(changes.items()))
    if isinstance(kernel, str):
        if "__global__" not in kernel:
            raise ValueError(
                f"{kernel[:60]!r} is not CUDA source: pass, for example, source('01_naive.cu')"
            )
        return Kernel(kernel, block, tuple(changes.items()))
    if changes:
        raise ValueError("a compiled kernel cannot be changed: bind the source of its file")
    if isinstance(kernel, Kernel):
        return kernel if block is None else replace(kernel, block=block)
    if not hasattr(kernel, "code"):
        raise TypeError(f"kernel must be a cupy.RawKernel or a kernel's source, not {type(kernel)}")
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
    """Bind the source of a kernel file or a `Kernel`, which is compiled for the shape, or a
    `cupy.RawKernel` with the options it was compiled with.

    `block` overrides the header's block size, `changes` override values of its Build table or
    integer macros of the file; `options` are those of `Kernel.bind`.
    """
    return kernel_of(kernel, block, changes).bind(rows, cols, dtype, **options)


@dataclass(frozen=True)
class BoundKernel:
    """A kernel planned for one problem on one GPU."""

    kernel: Kernel
    problem: Problem
    gpu: Gpu
    plan: Plan

    def __repr__(self) -> str:
        problem = self.problem
        strides = "" if problem.contiguous else f", strides {problem.strides}"
        return f"BoundKernel({self.name}, {problem.place(dtype=True)}{strides}, {self.launch})"

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.problem.dtype)

    @property
    def numbers(self) -> dict[str, int]:
        """Sizes and row strides, by the names of the kernel's parameters."""
        x_stride, y_stride = self.problem.strides
        sizes = {name: self.problem.sizes[name] for name in self.operation.sizes}
        return {**sizes, "x_stride": x_stride, "y_stride": y_stride}

    @property
    def operation(self) -> Operation:
        return self.problem.operation

    @property
    def features(self) -> dict[str, int]:
        """The features that are enabled."""
        return dict(self.problem.features)

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def options(self) -> tuple[str, ...]:
        """The compiler options, without those that CuPy adds."""
        return self.plan.options

    @property
    def launch(self) -> dict[str, int]:
        """Grid, block, shared_mem and macros, as stored in records."""
        return self.plan.launch

    def __getitem__(self, name: str) -> int:
        """Return the value of a name of the header's Build table: `bound["CLUSTER"]`."""
        return {**self.plan.macros, **self.plan.values}[name]

    @cached_property
    def compiled(self):
        """The `cupy.RawKernel`. CuPy compiles it when a GPU first runs it; the SIMT machine only
        uses its source and options, which it compiles to PTX."""
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
        """Return the kernel's arguments in order, with a zeroed workspace if the plan has one.

        Arrays are given in the order of the operation or by name, numbers by name. An omitted
        number has its neutral value; an array that no enabled feature uses is None, a null pointer.

        Raises `TypeError` naming an argument that is missing, given twice, or unknown.
        """
        workspace = np.zeros(self.plan.workspace, np.uint8) if self.plan.workspace else None
        return self._in_order(self._named(arrays, named), workspace)

    def _named(self, arrays: Sequence, named: Mapping[str, object]) -> dict[str, object]:
        """Return all arguments of the operation, by name."""
        declared_arrays = self.problem.arrays
        if len(arrays) > len(declared_arrays):
            names = ", ".join(array.name for array in declared_arrays)
            raise TypeError(f"{self.name} takes the arrays {names}, not {len(arrays)} arrays")
        given = {array.name: value for array, value in zip(declared_arrays, arrays, strict=False)}
        if duplicates := [name for name in named if name in given]:
            raise TypeError(f"{self.name} is given {duplicates[0]} twice")
        values = self.problem.complete({**given, **named})
        if missing := [array.name for array in declared_arrays if array.name not in values]:
            raise TypeError(f"{self.name} needs {missing[0]}")
        declared = {parameter.name for parameter in self.kernel.parameters}
        if unknown := [name for name in named if name not in declared]:
            raise TypeError(f"{self.name} does not take {unknown[0]}")
        return values

    def _in_order(self, values: Mapping[str, object], workspace) -> tuple:
        """Return the arguments in the order of the kernel's parameters: numbers as NumPy scalars of
        the declared types, sizes as Python integers."""
        args: list[object] = []
        for parameter in self.kernel.parameters:
            name = parameter.name
            if name in self.numbers:
                args.append(self.numbers[name])
            elif name == "workspace":
                args.append(workspace)
            elif parameter.pointer:
                args.append(values.get(name))
            else:  # 1 stands for a number that no enabled feature uses
                args.append(as_declared(parameter, values.get(name, 1)))
        return tuple(args)

    def run(self, *arrays: np.ndarray, **named) -> simt.Trace | None:
        """Run the kernel once; it writes the results to the output arrays.

        `arrays` and `named` are those of `arguments`: numpy arrays of shape (rows, cols), or views
        of larger arrays with the bound row strides. Runs on the GPU in live mode and on the SIMT
        machine in replay mode, where it returns the trace. Raises what `arguments` and `check`
        raise, and `KernelBug` for a bug or a workspace that is not zero again afterwards.
        """
        args = self._checked(arrays, named)
        trace = execute(self.compiled, self.plan, args)
        if self.plan.workspace and args[-1].any():
            raise KernelBug(f"{self.name} must leave its workspace zeroed for the next launch")
        return trace

    def _checked(self, arrays: Sequence, named: Mapping[str, object]) -> tuple:
        self.kernel.check_signature()
        args = self.arguments(*arrays, **named)
        self.check(args)
        return args

    def simulate(self, *arrays: np.ndarray, **options) -> simt.Trace:
        """Run the kernel on the SIMT machine, even if there is a GPU; bugs are in `trace.findings`.
        `options` that are not arguments of the operation are passed to `simt.simulate`;
        `watch=True` records what `draw` needs."""
        names = {argument.name for argument in self.operation.arguments} & {*options}
        named = {name: options.pop(name) for name in names}
        return self.simulate_arguments(self._checked(arrays, named), **options)

    def simulate_arguments(self, args: Sequence, grid: int | None = None, **options) -> simt.Trace:
        """Run the kernel on the SIMT machine with the result of `arguments`, which the caller may
        have changed: it is not checked again. `grid` overrides the plan's, to omit blocks."""
        plan = self.plan if grid is None else replace(self.plan, grid=grid)
        return execute_simulated(self.compiled, plan, args, **options)

    def workspace(self) -> tuple:
        """Return a zeroed CuPy array in a tuple, or an empty tuple if the plan has no workspace.
        One is enough for consecutive calls on one stream: each call leaves it zeroed."""
        import cupy

        return (cupy.zeros(self.plan.workspace, cupy.uint8),) if self.plan.workspace else ()

    def prepare(self) -> None:
        """Compile, and set the function attributes that the launch requires (on a GPU only)."""
        prepare(self.compiled, self.plan)

    def enqueue(self, *arrays, workspace: tuple = (), **named) -> None:
        """Enqueue one call on CuPy's current stream. The arguments are those of `arguments`, but
        with CuPy arrays; `workspace` is what `self.workspace` returned. Call `prepare` first."""
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
        the first invalid one."""
        self.kernel.check_signature()
        check_arguments(self.compiled, args)
        names = [parameter.name for parameter in self.kernel.parameters]
        values = dict(zip(names, args, strict=True))
        arrays = self.problem.arrays
        for argument in arrays:
            self._check_dtype(argument, values[argument.name])
        for argument in arrays:
            self._check_layout(argument, values)
        matrices = {a.name: values[a.name] for a in arrays if a.shape == MATRIX}
        (first_name, first), *others = matrices.items()
        for name, other in others:
            if byte_offset(first) % 16 != byte_offset(other) % 16 and self.plan.alike:
                raise ValueError(
                    f"the addresses of {first_name} and {name} differ modulo 16 bytes: compile the "
                    "kernel with LATE = 1"
                )
            if first.shape != other.shape:
                raise ValueError(
                    f"{first_name} has shape {first.shape}, but {name} has shape {other.shape}"
                )
        self._check_overlap({argument.name: values[argument.name] for argument in arrays})
        if self.plan.cooperative and not self.compiled.enable_cooperative_groups:
            raise ValueError(
                f"{self.name} requires a cooperative launch: compile it with "
                "enable_cooperative_groups=True"
            )
        if self.plan.workspace:
            _check_workspace(args[-1], self.plan.workspace)

    def _check_dtype(self, argument: Argument, array: object) -> None:
        name, expected = argument.name, argument.numpy_dtype(self.dtype)
        if not isinstance(array, np.ndarray) or not array.ndim:
            raise TypeError(f"{name} must be a numpy array, not {short(array)}")
        if array.dtype != expected:
            several = len(self.kernel.header.dtypes) > 1
            rule = "the kernel is compiled for" if several else "the header says"
            rule = rule if argument.dtype == "T" else f"{self.operation.name} takes"
            raise TypeError(f"{name} is {array.dtype}, but {rule} {expected}")

    def _check_layout(self, argument: Argument, values: Mapping[str, object]) -> None:
        """Check the shape, alignment and row stride of an array."""
        name, array = argument.name, values[argument.name]
        expected = self.problem.array_shape(argument, values)
        flat = array.ndim not in (2, len(expected))
        if array.shape != expected and not (flat and array.size == np.prod(expected)):
            names = " x ".join(argument.shape)
            if len(expected) == 3:
                names = "outer x dim x inner"
            raise ValueError(
                f"{name} has shape {array.shape}, which is not {names} = "
                f"{' x '.join(map(str, expected))}"
            )
        align = self._align(argument)
        if byte_offset(array) % align:
            raise ValueError(
                f"{name} must start at a multiple of {align} bytes, but it is a view that starts "
                f"{byte_offset(array)} bytes into its base array"
            )
        problem = self.problem
        if argument.shape != MATRIX or problem.inner > 1:
            return
        stride = dict(zip("xy", problem.strides, strict=True)).get(name, problem.cols)
        row_bytes = problem.cols * array.itemsize
        stride_bytes = array.strides[0] if array.ndim == 2 else row_bytes
        if problem.rows > 1 and stride_bytes != stride * array.itemsize:
            raise ValueError(
                f"the rows of {name} start {stride_bytes} bytes apart, which is not "
                f"{name}_stride = {stride} elements"
            )

    def _align(self, argument: Argument) -> int:
        """Return the required alignment of an array in bytes. An array with columns must be aligned
        to as many elements as x, up to 16 bytes."""
        align, dtype = self.kernel.header.align(self.dtype), argument.numpy_dtype(self.dtype)
        if "cols" not in argument.shape:
            return dtype.itemsize
        elements = align // self.dtype.itemsize
        return min(16, max(dtype.itemsize, elements * dtype.itemsize))

    def _check_overlap(self, arrays: Mapping[str, np.ndarray]) -> None:
        inplace = self.kernel.header.fields.get("Inplace", "").split(" = ")
        outputs = [array.name for array in self.problem.arrays if array.output]
        for output in outputs:
            for name, array in arrays.items():
                if name == output or not np.may_share_memory(arrays[output], array):
                    continue
                if inplace != [output, name]:
                    raise ValueError(
                        f"{output} overlaps {name}, but the kernel does not work in place"
                    )
                layouts = [(a.ctypes.data, a.shape, a.strides) for a in (arrays[output], array)]
                if layouts[0] != layouts[1]:
                    raise ValueError(
                        f"{output} overlaps {name}: it must be {name} itself or a separate array"
                    )


def _check_workspace(array: np.ndarray, size: int) -> None:
    if array.nbytes < size:
        raise ValueError(f"workspace has {array.nbytes} bytes, but the header requires {size}")
    if array.view(np.uint8).any():
        raise ValueError("workspace must be all zero before the launch")
