"""Launch a `cupy.RawKernel` that the reader compiled, with explicit grid, block and arguments, or
check a kernel over shapes, layouts and special values.

The same notebook cell runs with and without a GPU: arguments are numpy arrays, and results are
written to them in place. If the source has a header, the launch is first checked against it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from .. import simt
from ..base.arguments import checked
from ..base.gpu import gpu_for_plans
from ..catalogue.header import header
from ..catalogue.plan import Header, Plan
from ..problem.operations import MATRIX, SOFTMAX
from ..problem.problem import Problem, integer
from ..problem.shapes import (
    LONG_QUICK_SHAPES,
    QUICK_AXES,
    QUICK_SHAPES,
    SPECIAL_COLUMNS,
    SPECIAL_INNER,
    SPECIAL_PACKS,
)
from ..simt.words import counted
from .bound import NO_FEATURES, Kernel, kernel_of
from .check import WrongResult, check_outputs, strided_copy
from .execute import check_arguments, execute, execute_simulated
from .references import make_inputs, outputs, special_inputs

UNTOUCHED = 7.0  # fills memory around outputs, which a kernel must not write


def launch(
    kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence,
    shared_mem: int = 0,
) -> simt.Trace | None:
    """Run a `cupy.RawKernel` once and wait for it to finish.

    `args` are numpy arrays and numbers in the order of the kernel's parameters; arrays passed as
    non-const pointers are written in place. `shared_mem` is the dynamic shared memory per block in
    bytes. A kernel with Strides in its header takes the row strides of x and y, in elements, after
    cols; the matrices must have these strides. A kernel with a Workspace in its header takes a
    zeroed array of that many bytes as its last argument.

    Returns the SIMT machine's trace in replay mode, None on a GPU.

    Raises `TypeError` or `ValueError` naming the argument that does not match the kernel's
    signature or header, `KernelBug` if a bug is found, and what `helpers.simt` or CuPy raise for
    source that does not compile.
    """
    plan = _checked(kernel, grid, block, args, shared_mem)
    return execute(kernel, plan, args)


def simulate(
    kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence,
    shared_mem: int = 0,
    **options,
) -> simt.Trace:
    """Run a kernel on the SIMT machine, even if there is a GPU, and return its trace.

    Arguments and exceptions are those of `launch`, except that bugs are in `trace.findings`.
    `watch=True` records every access and event of the kernel's own lines for `draw`, at most
    100,000 of them, so shapes must be small. Other `options` are also passed to `simt.simulate`:
    `instruction_limit`, beyond which a batch of blocks counts as hanging, and `watch=(30,)`,
    `follow` and `only_blocks` to record less.
    """
    plan = _checked(kernel, grid, block, args, shared_mem)
    return execute_simulated(kernel, plan, args, **options)


def _checked(kernel, grid, block, args: Sequence, shared_mem: int) -> Plan:
    """Check a launch; return the header's plan, or the launch as given if there is no header."""
    if not hasattr(kernel, "code"):
        raise TypeError(
            f"kernel must be a cupy.RawKernel, not {type(kernel).__name__}: pass, for example, "
            "cupy.RawKernel(source('01_naive.cu'), 'softmax_naive')"
        )
    check_arguments(kernel, args)
    shared_mem = integer("shared_mem", shared_mem)
    grid, block = simt.launch_shape(grid, "grid"), simt.launch_shape(block, "block")
    contract = header(kernel.code, tuple(kernel.options))
    if contract is None:
        return Plan(grid, block, shared_mem)
    unbound = kernel_of(kernel, math.prod(block))
    unbound.check_signature()
    names = [parameter.name for parameter in unbound.parameters]
    given = dict(zip(names, args, strict=True))
    try:
        bound = unbound.bind(**_sizes(contract, given), dtype=contract.dtype)
    except ValueError as error:
        compiled = f" (compiled with {', '.join(kernel.options)})" if contract.build else ""
        raise ValueError(f"{kernel.name}: {error}{compiled}") from None
    bound.check(args)
    plan = bound.plan
    if math.prod(grid) != plan.grid or shared_mem != plan.shared_mem:
        raise ValueError(
            f"{kernel.name} requires grid = {plan.grid} and {plan.shared_mem} bytes of shared "
            f"memory for rows = {bound.problem.rows}, cols = {bound.problem.cols}, block = "
            f"{plan.block}; got grid = {math.prod(grid)}, {shared_mem} bytes"
        )
    for name, sizes in (("grid", grid), ("block", block)):
        if sizes[1:] != (1, 1):
            raise ValueError(
                f"{kernel.name} has a header, which requires a one-dimensional {name}; got "
                f"{name} = {sizes}"
            )
    return plan


def _sizes(contract: Header, given: Mapping[str, object]) -> dict[str, int]:
    """Return the sizes and strides among a kernel's arguments, by the names of `Kernel.bind`."""
    sizes = {name: int(given[name]) for name in contract.operation.sizes}
    if "inner" in sizes:
        rows = sizes["outer"] * sizes["inner"]
        return {"rows": rows, "cols": sizes["dim"], "inner": sizes["inner"]}
    if contract.strided:
        sizes |= {name: int(given[name]) for name in ("x_stride", "y_stride")}
    return sizes


# ---- check a kernel -----------------------------------------------------------------------------


@checked
def check_kernel(
    kernel,
    shapes: Iterable[Sequence[int]] | None = None,
    dtype: str = "float32",
    features: Mapping[str, int | str] = NO_FEATURES,
) -> str:
    """Run a kernel of the series over shapes and over special rows, and check every output.

    `kernel` is a `cupy.RawKernel` whose source has a header, or the source of a kernel file, which
    is compiled for each shape according to its header. The header also defines the launch and the
    operation; `features` enables features of it.

    `shapes` are (rows, cols), by default `QUICK_SHAPES`, with `LONG_QUICK_SHAPES` unless one thread
    computes a row; for a kernel for any axis they are (outer, dim, inner), by default `QUICK_AXES`.
    Shapes that the header rejects are skipped. Each
    shape is run a second time with another layout if the kernel supports one: strided rows,
    unaligned rows, or unaligned arrays; and again in place if the kernel allows it.

    Returns one sentence. Raises `WrongResult` naming the shape, `ValueError` if there is no header,
    it rejects every shape, or features are not supported, and `TypeError` for invalid shapes.
    """
    unbound = kernel_of(kernel).choosing(features)
    contract = unbound.header
    axes = "inner" in contract.operation.sizes

    def accepts(problem: Problem) -> bool:
        return contract.accepts(problem, gpu_for_plans())

    def problem(outer: int, cols: int, inner: int = 1) -> Problem:
        return unbound.problem(outer * inner, cols, dtype, inner=inner)

    long = not contract.fields["Row"].startswith("one thread")
    if shapes is None:
        shapes = QUICK_AXES if axes else (*QUICK_SHAPES, *(LONG_QUICK_SHAPES if long else ()))
    requested = [problem(*_sizes_of(shape, axes)) for shape in shapes]
    inner = SPECIAL_INNER if axes else 1
    columns = [cols for cols in SPECIAL_COLUMNS if long or cols < 1000]
    special = [one for one in (problem(6, cols, inner) for cols in columns) if accepts(one)]
    if not special and accepts(packs := problem(6, SPECIAL_PACKS, inner)):
        special = [packs]
    accepted = [one for one in requested if accepts(one)]
    if not accepted:
        refused = contract.why_not(requested[0]) if requested else ""
        reason = f": {refused}" if "does not build" in refused else ""
        raise ValueError(f"the header takes {dtype} at none of these shapes{reason}")
    problems = [(one, make_inputs(one)) for one in accepted]
    problems += [(one, special_inputs(one)) for one in special]
    views = 0
    for number, (one, values) in enumerate(problems):
        views += check_case(unbound, one, values, number)
    rows = sum(one.rows for one in special)
    checks = counted(len(accepted), "shape")
    if views or contract.strided:
        checks += f", {counted(views, 'view')}"
    enabled = "".join(f", {name} = {value}" for name, value in unbound.features.items() if value)
    special_rows = f"{counted(rows, 'row')} with -inf, NaN or +inf"
    return f"{unbound.name}{enabled}: correct for {checks} and {special_rows}"


def check_case(
    unbound: Kernel, problem: Problem, values: Mapping[str, object], layout: int
) -> bool:
    """Run a kernel on `values` (unused ones are ignored), in place if it allows that, and in one of
    three other layouts, chosen by the number `layout`, if it supports that one. Return whether it
    does; raises what `check_kernel` raises."""
    check, contract = _Check(unbound, problem, values), unbound.header
    check.run(check.given, check.outputs())
    if "Inplace" in contract.fields:
        output, name = contract.fields["Inplace"].split(" = ")
        shared = check.given[name].copy()
        check.run({**check.given, name: shared}, {**check.outputs(), output: shared}, " in place")
    unaligned = contract.align(problem.dtype) < 16 and contract.operation is not SOFTMAX
    return (contract.strided or unaligned) and check.run_other_layout(layout)


def _sizes_of(shape: Sequence[int], axes: bool) -> Sequence[int]:
    """Return the sizes of a shape; raise `TypeError` unless they are two or three integers."""
    if np.ndim(shape) != 1 or len(shape) != 2 + axes:
        form = "triples [(outer, dim, inner), ...]" if axes else "pairs [(rows, cols), ...]"
        raise TypeError(f"shapes are {form}, not {shape!r}")
    return tuple(integer("a size", size) for size in shape)


class _Check:
    """Runs of a kernel on the same values in different layouts."""

    def __init__(self, unbound: Kernel, problem: Problem, values: Mapping[str, object]) -> None:
        self.unbound, self.problem = unbound, problem
        declared = {parameter.name for parameter in unbound.parameters}
        given = {name: value for name, value in values.items() if name in declared}
        self.given = given
        self.values = problem.complete(given)

    def outputs(self) -> dict[str, np.ndarray]:
        """Return new output arrays full of NaN."""
        return outputs(self.problem, self.values)

    def matrices(self, arrays: Mapping[str, object]) -> dict[str, np.ndarray]:
        """Return those of the arrays that are matrices."""
        return {
            argument.name: arrays[argument.name]
            for argument in self.problem.arrays
            if argument.shape == MATRIX and argument.name in arrays
        }

    def run_other_layout(self, number: int) -> bool:
        """Check the kernel in layout `number` modulo 3; return False if the header rejects it."""
        problem, contract = self.problem, self.unbound.header
        cols, size = problem.cols, problem.itemsize
        pack, unit = 16 // size, contract.align(problem.dtype) // size
        padding = -cols % pack  # elements from the end of a row to the next multiple of 16 bytes
        x_gap, y_gap, x_phase, y_phase = (
            (5, 2, 1, 3),  # strided rows, each with another address modulo 16 bytes
            (0, 0, 3, 1),  # contiguous rows, unaligned arrays
            (padding, padding + pack, 0, 0),  # strided rows, all aligned
        )[number % 3]
        if not contract.strided:
            x_gap = y_gap = 0
        strides = cols + x_gap, cols + y_gap
        strided = replace(problem, x_stride=strides[0], y_stride=strides[1])
        if not contract.accepts(strided, gpu_for_plans()):
            return False
        if not contract.strided and not x_phase:
            return False
        inputs = {
            name: _with_layout(x, strides[0], (x_phase + 2 * index) * unit, np.nan)
            for index, (name, x) in enumerate(self.matrices(self.given).items())
        }
        written = self.outputs()
        written |= {
            name: _with_layout(y, strides[1], y_phase * unit, UNTOUCHED)
            for name, y in self.matrices(written).items()
        }
        before = {name: y.base.copy() for name, y in written.items() if y.base is not None}
        self.run({**self.given, **inputs}, written)
        for name, base in before.items():
            written[name][:] = np.nan
            if written[name].base.tobytes() != base.tobytes():
                raise WrongResult(f"{self._where()} wrote between the rows of {name}")
        return True

    def _where(self) -> str:
        """Return the kernel and its shape, for messages."""
        problem = self.problem
        if problem.inner > 1:
            axes = problem.outer, problem.cols, problem.inner
            return f"{self.unbound.name} at outer x dim x inner = {axes}"
        return f"{self.unbound.name} at rows x cols = {problem.shape}"

    def run(
        self, given: Mapping[str, object], written: Mapping[str, np.ndarray], how: str = ""
    ) -> None:
        """Run the kernel on arrays in their layout, and check the outputs."""
        arrays, strides = {**given, **written}, ()
        if self.unbound.header.strided:
            strides = tuple(arrays[name].strides[0] // arrays[name].itemsize for name in "xy")
        where = self._where() + how
        if strides and strides != 2 * (self.problem.cols,):
            where += f", x_stride = {strides[0]}, y_stride = {strides[1]}"
        kernel = self.unbound.starting_at(*self.matrices(arrays).values())
        x_stride, y_stride = strides or (None, None)
        bound = kernel.at(replace(self.problem, x_stride=x_stride, y_stride=y_stride))
        try:
            bound.run(**given, **{name: y for name, y in written.items() if name not in given})
            check_outputs(self.problem.operation, self.values, written, dict(self.problem.features))
        except WrongResult as error:
            raise WrongResult(f"{where}: {error.summary}", error.values) from None


def _with_layout(x: np.ndarray, stride: int, phase: int, around: float) -> np.ndarray:
    """Return `strided_copy` of a matrix; an array of three axes is only moved by `phase`."""
    if x.ndim == 2:
        return strided_copy(x, stride, phase, around)
    return strided_copy(x.reshape(1, -1), x.size, phase, around).reshape(x.shape)
