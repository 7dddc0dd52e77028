"""One kernel, one object: a kernel file bound to a shape, a dtype and a GPU.

    bound = load("08_cluster").bind(1024, 262144)        # a step, a variant or a trial
    bound = bind(source("01_naive.cu"), 64, 1024)        # the text of a file
    bound = bind(cupy.RawKernel(...), 64, 1024)          # a kernel as it was compiled
    bound = bind(text, 64, 1024, x_stride=1030)          # rows that are apart, if it takes such

A `BoundKernel` knows its text, plan, compiler options, workspace and launch. It runs (on the GPU or
the SIMT machine), is simulated, and is enqueued to be timed: who has one unpacks no plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from . import simt
from .catalogue import changes_of, source, split_trial
from .execute import KernelBug, check_arguments, enqueue, execute, execute_simulated, prepare
from .gpu import Gpu
from .header import header
from .mode import gpu_for_plans
from .plan import MAX_BLOCK, Header, Plan, integer, option_name, row_strides
from .shapes import place
from .simt import byte_offset
from .simt.cuda_text import kernel_names, signature


@dataclass(frozen=True)
class Kernel:
    """A kernel file's text, and how it is used otherwise than its header says."""

    code: str
    block: int | None = None  # None: the header's
    changes: tuple[tuple[str, int], ...] = ()  # values of the Build table or numbers of the file
    raw: object = None  # the `cupy.RawKernel` that it is to be, as it was compiled

    def __repr__(self) -> str:
        return f"Kernel({self.name}, block={self.block}, changes={dict(self.changes)})"

    @property
    def name(self) -> str:
        """The name of the `__global__` function."""
        return self.raw.name if self.raw is not None else kernel_names(self.code)[0]

    @property
    def header(self) -> Header:
        """Raises `ValueError` without one, `TypeError` for a change that is no integer."""
        options = self.raw.options if self.raw is not None else ()
        changes = tuple((name, integer(name, value)) for name, value in self.changes)
        found = header(self.code, tuple(options), changes)
        if found is None:
            name = self.name if self.raw is not None else "the source"
            raise ValueError(f"{name} has no header to take its launch shape from")
        return found

    def starting_at(self, x: np.ndarray, y: np.ndarray) -> Kernel:
        """The kernel for arrays that may start at different places between multiples of 16 bytes:
        with LATE = 1 where they do, if it has that macro."""
        differ = byte_offset(x) % 16 != byte_offset(y) % 16
        late = differ and self.raw is None and "LATE" in self.header.macros
        return replace(self, changes=(*self.changes, ("LATE", 1))) if late else self

    def check_signature(self) -> None:
        """Raise `ValueError` unless the kernel takes what its header promises, and is compiled with
        the macros that it needs."""
        contract = self.header
        declared = [parameter.name for parameter in signature(self.code, self.name)]
        wanted = ["x", "y", "rows", "cols"]
        wanted += ["x_stride", "y_stride"] if contract.strided else []
        wanted += ["workspace"] if "Workspace" in contract.fields else []
        if declared[: len(wanted)] != wanted:
            raise ValueError(
                f"{self.name} has a header, so it must take {', '.join(wanted)} first; it takes "
                f"{', '.join(declared)}"
            )
        given = [*contract.macros] if self.raw is None else list(map(option_name, self.raw.options))
        if missing := [f"-D{name}" for name in contract.macros if name not in given]:
            raise ValueError(
                f"{self.name} is compiled without {', '.join(missing)}: compile it for a shape, "
                "with the options of bind(code, rows, cols, dtype)"
            )

    def accepts(
        self,
        rows: int,
        cols: int,
        dtype: str | np.dtype = "float32",
        gpu: Gpu | None = None,
        x_stride: int | None = None,
        y_stride: int | None = None,
    ) -> bool:
        """Whether the kernel takes this shape, dtype and strides."""
        return self.header.accepts(rows, cols, dtype, gpu or gpu_for_plans(), x_stride, y_stride)

    def bind(
        self,
        rows: int,
        cols: int,
        dtype: str | np.dtype = "float32",
        gpu: Gpu | None = None,
        x_stride: int | None = None,
        y_stride: int | None = None,
    ) -> BoundKernel:
        """The kernel for a matrix of rows x cols; `gpu` is that in use, or in replay an H200. The
        strides count elements from one row to the next, cols if they are not given.

        Raises `ValueError` if its header does not take the shape, the dtype, the strides or the
        block size, `TypeError` naming what is no integer.
        """
        rows, cols = integer("rows", rows), integer("cols", cols)
        strides = row_strides(cols, x_stride, y_stride)
        gpu = gpu or gpu_for_plans()
        plan = self.header.plan(rows, cols, dtype, self.block, gpu, *strides)
        return BoundKernel(self, rows, cols, np.dtype(dtype), gpu, plan, strides)


def load(step: str) -> Kernel:
    """The kernel of a step, a variant or a trial: "08_cluster", "01_naive-b32".

    Raises `FileNotFoundError` that lists the files there are, `ValueError` for a trial of what the
    file does not have or of a block that no GPU runs.
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
    """A kernel file's text, a `Kernel` of it, or a `cupy.RawKernel`, which is taken as it was
    compiled; with another block size and other values, if they are given.

    Raises `TypeError` or `ValueError` for what is none of them.
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


def bind(
    kernel,
    rows: int,
    cols: int,
    dtype: str | np.dtype = "float32",
    block: int | None = None,
    changes: Mapping[str, int] = MappingProxyType({}),
    gpu: Gpu | None = None,
    x_stride: int | None = None,
    y_stride: int | None = None,
) -> BoundKernel:
    """`Kernel.bind` of a kernel file's text or of a `Kernel`, which is compiled for the shape, or
    of a `cupy.RawKernel` as it was compiled.

    `block` replaces the header's block size, `changes` values of its Build table or of numbers that
    the file defines, to try others.
    """
    return kernel_of(kernel, block, changes).bind(rows, cols, dtype, gpu, x_stride, y_stride)


@dataclass(frozen=True)
class BoundKernel:
    """A kernel for one shape, dtype and strides on one GPU."""

    kernel: Kernel
    rows: int
    cols: int
    dtype: np.dtype
    gpu: Gpu
    plan: Plan
    strides: tuple[int, int]  # of x and y: elements from one row to the next

    def __repr__(self) -> str:
        shape = place(self.rows, self.cols, self.dtype.name, always=True)
        apart = "" if self.strides == (self.cols, self.cols) else f", strides {self.strides}"
        return f"BoundKernel({self.name}, {shape}{apart}, {self.launch})"

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def options(self) -> tuple[str, ...]:
        """For the compiler, beside those that CuPy adds."""
        return self.plan.options

    @property
    def launch(self) -> dict[str, int]:
        """Grid, block, shared_mem and macros, as a record holds them."""
        return self.plan.launch

    def __getitem__(self, name: str) -> int:
        """The value of a name of the header's Build table: `bound["CLUSTER"]`."""
        return {**self.plan.macros, **self.plan.values}[name]

    @cached_property
    def compiled(self):
        """The `cupy.RawKernel`. CuPy compiles it when a GPU first runs it; the SIMT machine takes
        text and options of it, and compiles those to PTX."""
        if self.kernel.raw is not None:
            return self.kernel.raw
        import cupy

        return cupy.RawKernel(
            self.kernel.code,
            self.name,
            options=self.options,
            enable_cooperative_groups=self.plan.cooperative,
        )

    def arguments(self, x: np.ndarray, y: np.ndarray) -> tuple:
        """What the kernel takes: x and y of shape (rows, cols), their sizes, the strides if it
        takes such, and a zeroed workspace if the plan has one."""
        workspace = (np.zeros(self.plan.workspace, np.uint8),) if self.plan.workspace else ()
        return x, y, *self.sizes, *workspace

    @property
    def sizes(self) -> tuple[int, ...]:
        """rows, cols, and the strides if the kernel takes such: its arguments between y and the
        workspace."""
        strides = self.strides if self.kernel.header.strided else ()
        return self.rows, self.cols, *strides

    def run(self, x: np.ndarray, y: np.ndarray) -> simt.Trace | None:
        """Softmax, or what the kernel computes, of x into y: numpy arrays of shape (rows, cols),
        or views of larger ones whose rows are as far apart as was bound.

        Runs on the GPU when live, on the SIMT machine in replay; returns the trace there. Raises
        what `check` raises, and `KernelBug` for a bug or a workspace that is not left as zeros for
        the next launch.
        """
        args = self.arguments(x, y)
        self.check(args)
        trace = execute(self.compiled, self.plan, self.plan.grid, self.plan.block, args)
        if self.plan.workspace and args[-1].any():
            raise KernelBug(f"{self.name}: the workspace is not left as zeros for the next launch")
        return trace

    def simulate(self, x: np.ndarray, y: np.ndarray, **options) -> simt.Trace:
        """The same on the SIMT machine, also where a GPU is; bugs are in `trace.findings`.
        `options` go to `simt.simulate`; `watch=True` keeps what `draw` needs."""
        args = self.arguments(x, y)
        self.check(args)
        return self.simulate_arguments(args, **options)

    def simulate_arguments(self, args: Sequence, grid: int | None = None, **options) -> simt.Trace:
        """The same of what `arguments` returns, which the caller keeps or has changed: it is not
        held against the header. `grid` replaces the plan's, to leave blocks out."""
        plan = self.plan
        grid = plan.grid if grid is None else grid
        return execute_simulated(self.compiled, plan, grid, plan.block, args, **options)

    def workspace(self) -> tuple:
        """A CuPy array of zeros in a tuple, which is empty if the plan has none. One is enough for
        calls that follow each other on one stream: each leaves zeros behind."""
        import cupy

        return (cupy.zeros(self.plan.workspace, cupy.uint8),) if self.plan.workspace else ()

    def prepare(self) -> None:
        """Compile, and set the attributes that CUDA asks for (on a GPU only)."""
        prepare(self.compiled, self.plan)

    def enqueue(self, x, y, workspace: tuple = ()) -> None:
        """Enqueue one call on CuPy's current stream, as planned; x and y are CuPy arrays.
        `prepare` comes first, once."""
        enqueue(self.compiled, self.plan, (x, y, *self.sizes, *workspace))

    def check(self, args: Sequence) -> None:
        """Hold arguments against signature and header. Raises `TypeError` or `ValueError` naming
        the first that does not fit."""
        self.kernel.check_signature()
        check_arguments(self.compiled, args)
        align, name = self.kernel.header.align(self.dtype), self.name
        x, y = args[:2]
        for label, array in (("x", x), ("y", y)):
            if array.dtype != self.dtype:
                several = len(self.kernel.header.dtypes) > 1
                who = "the kernel is compiled for" if several else "the header says"
                raise TypeError(f"{label} is {array.dtype}, {who} {self.dtype}")
        for label, array, stride in (("x", x, self.strides[0]), ("y", y, self.strides[1])):
            fits = array.ndim != 2 or array.shape == (self.rows, self.cols)
            if array.size != self.rows * self.cols or not fits:
                raise ValueError(
                    f"{label} has shape {array.shape}, which is not rows x cols = "
                    f"{self.rows} x {self.cols}"
                )
            if byte_offset(array) % align:
                raise ValueError(
                    f"{label} must start at a multiple of {align} bytes; it is a view that starts "
                    f"{byte_offset(array)} bytes into its base array"
                )
            row = self.cols * array.itemsize
            apart = array.strides[0] if array.ndim == 2 else row
            if self.rows > 1 and apart != stride * array.itemsize:
                raise ValueError(
                    f"the rows of {label} start {apart} bytes apart, which is not {label}_stride = "
                    f"{stride} elements"
                )
        starts = {byte_offset(array) % 16 for array in (x, y)}
        if self.plan.alike and len(starts) > 1:
            raise ValueError(
                "x and y start at different places between multiples of 16 bytes: compile the "
                "kernel with LATE = 1"
            )
        if x.shape != y.shape:
            raise ValueError(f"x has shape {x.shape}, y has shape {y.shape}")
        if np.may_share_memory(x, y):
            raise ValueError("y overlaps x; these kernels do not work in place")
        if self.plan.cooperative and not self.compiled.enable_cooperative_groups:
            raise ValueError(
                f"{name} wants a cooperative launch: compile it with enable_cooperative_groups=True"
            )
        if self.plan.workspace:
            _check_workspace(args[-1], self.plan.workspace)


def _check_workspace(array: np.ndarray, size: int) -> None:
    if array.nbytes < size:
        raise ValueError(f"workspace has {array.nbytes} bytes, the header asks for {size}")
    if array.view(np.uint8).any():
        raise ValueError("workspace must be all zero before the launch")
