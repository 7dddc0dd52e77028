"""Check a kernel's results over shapes, layouts and special values against an fp64 reference.

`helpers.run.references` defines the references and tolerances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..base.arguments import checked, short
from ..base.mode import gpu_for_plans
from ..problem.operations import COPY, MATRIX, SOFTMAX, Operation
from ..problem.problem import Problem, integer
from ..problem.shapes import (
    LONG_QUICK_SHAPES,
    QUICK_AXES,
    QUICK_SHAPES,
    SPECIAL_COLUMNS,
    SPECIAL_INNER,
    SPECIAL_PACKS,
)
from ..simt import ShownShort
from ..simt.words import are, counted
from .bound import NO_FEATURES, Kernel, kernel_of
from .references import allowed, expected, make_inputs, outputs, special_inputs

UNTOUCHED = 7.0  # fills memory around outputs, which a kernel must not write


class WrongResult(ShownShort, AssertionError):
    """A kernel's output is wrong; the message shows where and how.

    `summary` omits the values, whose last digits depend on the machine.
    """

    def __init__(self, summary: str, values: str = ""):
        super().__init__(f"{summary}: {values}" if values else summary)
        self.summary, self.values = summary, values


def strided_copy(x: np.ndarray, stride: int, phase: int, around: float = np.nan) -> np.ndarray:
    """Copy a matrix to a view with row stride `stride` that starts `phase` elements into its base
    array; all other elements of the base array are `around`."""
    rows, cols = x.shape
    base = np.full(phase + rows * stride + 3, around, x.dtype)
    view = base[phase : phase + rows * stride].reshape(rows, stride)[:, :cols]
    view[:] = x
    return view


def check_outputs(
    operation: Operation,
    values: Mapping[str, object],
    written: Mapping[str, np.ndarray],
    features: Mapping[str, int] = NO_FEATURES,
    at: np.ndarray | None = None,
) -> None:
    """Raise `WrongResult` unless the outputs in `written` match the reference of an operation.

    `values` are all arguments of the operation (`Problem.complete`). NaN and infinities are
    accepted exactly where the reference has them. `at` are the row numbers if only some rows are
    given.
    """
    if operation is COPY:
        return check_copy(values["x"], written["y"])
    exact = expected(operation, values, features, at)
    for name, y in written.items():
        exact_y = exact[name].value
        with np.errstate(invalid="ignore"):
            error = np.abs(y.astype(np.float64) - exact_y)
            right = (error <= allowed(exact[name], y.dtype)) | (y == exact_y)
            right |= np.isnan(exact_y) & np.isnan(y)
        if right.all():
            continue
        sums_to_1 = operation is SOFTMAX and not {"LOG", "DROPOUT"} & {
            n for n, v in features.items() if v
        }
        hint = _softmax_hint(values["x"], y, exact_y) if sums_to_1 else _nan_hint(exact_y, y)
        index = tuple(map(int, np.argwhere(~right)[0]))
        label = "" if len(written) == 1 else f" of {name}"
        wrong = np.count_nonzero(~right)
        raise WrongResult(
            f"{wrong} of {y.size} elements{label} {are(wrong)} wrong, first at "
            f"{_describe_index(index)}{hint}",
            f"got {float(y[index]):.6g}, expected {exact_y[index]:.6g}",
        )


def _describe_index(index: tuple[int, ...]) -> str:
    """Return an index in words: "row 1", "row 1, column 2", or "(1, 2, 3)"."""
    words = {1: ("row",), 2: ("row", "column")}.get(len(index))
    return (
        ", ".join(map(" ".join, zip(words, map(str, index), strict=True))) if words else str(index)
    )


@checked
def check_softmax(x: np.ndarray, y: np.ndarray) -> None:
    """Raise `WrongResult` unless y is softmax of x over the last axis.

    Both have the same shape and dtype. NaN is accepted exactly where the reference has it.
    """
    _check_same_form(x, y)
    if x.dtype.kind not in "fV" or not x.ndim:  # V: bfloat16
        raise TypeError(f"x must be a matrix of floats, not {short(x)}")
    x, y = (array.reshape(-1, array.shape[-1]) for array in (x, y))
    check_outputs(SOFTMAX, {"x": x, "scale": 1.0}, {"y": y})


@checked
def check_copy(x: np.ndarray, y: np.ndarray) -> None:
    """Raise `WrongResult` unless y equals x bit for bit."""
    _check_same_form(x, y)
    same = x.reshape(-1).view(np.uint8) == y.reshape(-1).view(np.uint8)
    if not same.all():
        first = int(np.argmin(same)) // x.itemsize
        index = tuple(map(int, np.unravel_index(first, x.shape)))
        raise WrongResult(f"y differs from x, first at {index}: {y[index]} instead of {x[index]}")


def _check_same_form(x: np.ndarray, y: np.ndarray) -> None:
    for name, array in (("x", x), ("y", y)):
        if np.ma.isMaskedArray(array):
            raise TypeError(f"{name} is a masked array: fill it, for example by {name}.filled(0.0)")
    if x.shape != y.shape or x.dtype != y.dtype:
        raise WrongResult(f"y is {y.dtype}{y.shape}, but x is {x.dtype}{x.shape}")


def _softmax_hint(x: np.ndarray, y: np.ndarray, expected: np.ndarray) -> str:
    """Return the mistake that a wrong softmax suggests; "" if it suggests none of these."""
    finite = np.isfinite(expected).all(axis=-1)
    if not finite.any():
        return ""
    stored = y.dtype
    x, y, expected = x[finite], y[finite].astype(np.float64), expected[finite]
    if np.isnan(y).all():
        return " (nothing was written, or every row overflowed)"
    if np.isnan(y).any():
        return " (some elements are NaN: not written, or inf / inf)"
    if not y.any():
        return " (all zero)"
    sums = y.sum(axis=-1)
    worst = sums.reshape(-1)[np.abs(sums - 1).argmax()]
    if abs(worst - 1) > (1e-2 if stored.itemsize == 2 else 1e-3):
        return f" (rows do not sum to 1; the worst sums to {worst:.4g})"
    if x.shape[-1] > 1 and (y.argmax(axis=-1) != expected.argmax(axis=-1)).any():
        return " (rows sum to 1, but the largest element is at the wrong place)"
    return ""


def _nan_hint(expected: np.ndarray, y: np.ndarray) -> str:
    """Return a hint at elements that were not written; "" if there are none."""
    finite = np.isfinite(expected)
    if finite.any() and np.isnan(y[finite]).all():
        return " (nothing was written, or every row overflowed)"
    return " (some elements are NaN)" if np.isnan(y[finite]).any() else ""


@checked
def check_kernel(
    kernel,
    shapes: Iterable[Sequence[int]] | None = None,
    block: int | None = None,
    dtype: str = "float32",
    features: Mapping[str, int | str] = NO_FEATURES,
) -> str:
    """Run a kernel of the series over shapes and over special rows, and check every output.

    `kernel` is a `cupy.RawKernel` whose source has a header, or the source of a kernel file, which
    is compiled for each shape according to its header. The header also defines the launch and the
    operation; `features` enables features of it.

    `shapes` are (rows, cols), by default `QUICK_SHAPES`, with `LONG_QUICK_SHAPES` for source with a
    Build table or a kernel that accepts none of the former; for a kernel for any axis they are
    (outer, dim, inner), by default `QUICK_AXES`. Shapes that the header rejects are skipped. Each
    shape is run a second time with another layout if the kernel supports one: strided rows,
    unaligned rows, or unaligned arrays; and again in place if the kernel allows it.

    Returns one sentence. Raises `WrongResult` naming the shape, `ValueError` if there is no header,
    it rejects every shape, or features are not supported, and `TypeError` for invalid shapes.
    """
    unbound = kernel_of(kernel, block).choosing(features)
    contract = unbound.header
    axes = "inner" in contract.operation.sizes

    def accepts(problem: Problem) -> bool:
        return contract.accepts(problem, gpu_for_plans())

    def problem(outer: int, cols: int, inner: int = 1) -> Problem:
        return unbound.problem(outer * inner, cols, dtype, inner=inner)

    per_shape = unbound.raw is None and contract.build
    long = per_shape or not any(accepts(problem(*shape)) for shape in QUICK_SHAPES)
    if shapes is None:
        shapes = QUICK_AXES if axes else (*QUICK_SHAPES, *(LONG_QUICK_SHAPES if long else ()))
    requested = [problem(*_sizes(shape, axes)) for shape in shapes]
    inner = SPECIAL_INNER if axes else 1
    columns = [cols for cols in SPECIAL_COLUMNS if long or axes or cols < 1000]
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
    check.run_contiguous()
    if "Inplace" in contract.fields:
        check.run_in_place()
    unaligned = contract.align(problem.dtype) < 16 and contract.operation is not SOFTMAX
    return (contract.strided or unaligned) and check.run_other_layout(layout)


def _sizes(shape: Sequence[int], axes: bool) -> Sequence[int]:
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

    def run_contiguous(self) -> None:
        """Check the kernel on contiguous, aligned arrays."""
        self._run(self.given, self.outputs())

    def run_in_place(self) -> None:
        """Check the kernel with one array as an input and the output."""
        output, name = self.unbound.header.fields["Inplace"].split(" = ")
        shared = self.given[name].copy()
        self._run({**self.given, name: shared}, {**self.outputs(), output: shared}, " in place")

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
        self._run({**self.given, **inputs}, written)
        for name, base in before.items():
            written[name][:] = np.nan
            if written[name].base.tobytes() != base.tobytes():
                raise WrongResult(f"{self._where(written)} wrote between the rows of {name}")
        return True

    def _strides(self, arrays: Mapping[str, np.ndarray]) -> tuple[int, ...]:
        """Return the row strides of x and y in elements, or () if the kernel takes none."""
        if not self.unbound.header.strided:
            return ()
        return tuple(arrays[name].strides[0] // arrays[name].itemsize for name in "xy")

    def _where(self, arrays: Mapping[str, np.ndarray]) -> str:
        """Return the kernel and its shape, for messages."""
        problem = self.problem
        if problem.inner > 1:
            axes = problem.outer, problem.cols, problem.inner
            return f"{self.unbound.name} at outer x dim x inner = {axes}"
        return f"{self.unbound.name} at rows x cols = {problem.shape}"

    def _run(
        self, given: Mapping[str, object], written: Mapping[str, np.ndarray], how: str = ""
    ) -> None:
        """Run the kernel on arrays in their layout, and check the outputs."""
        strides = self._strides({**given, **written})
        where = self._where(written) + how
        if strides and strides != 2 * (self.problem.cols,):
            where += f", x_stride = {strides[0]}, y_stride = {strides[1]}"
        matrices = self.matrices({**given, **written})
        kernel = self.unbound.starting_at(*matrices.values())
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
