"""Check kernels over shapes, layouts and special values against fp64 references.

References and tolerances are in `helpers.run.references`.
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

UNTOUCHED = 7.0  # fills what a kernel must not write


class WrongResult(ShownShort, AssertionError):
    """The output of a kernel is wrong; the message shows where and how.

    `summary` omits the values, whose last digits depend on the machine.
    """

    def __init__(self, summary: str, values: str = ""):
        super().__init__(f"{summary}: {values}" if values else summary)
        self.summary, self.values = summary, values


def apart(x: np.ndarray, stride: int, phase: int, around: float = np.nan) -> np.ndarray:
    """A copy of a matrix with a row stride of `stride` elements, starting `phase` elements into a
    base array that holds `around` everywhere else."""
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
    """Raise `WrongResult` unless the outputs are those of the operation for complete values.

    NaN and infinities are accepted exactly where the reference has them. `at` are the indices of
    the given rows; None means all rows.
    """
    if operation is COPY:
        return check_copy(values["x"], written["y"])
    exact = expected(operation, values, features, at)
    for name, y in written.items():
        wanted = exact[name].value
        with np.errstate(invalid="ignore"):
            error = np.abs(y.astype(np.float64) - wanted)
            right = (error <= allowed(exact[name], y.dtype)) | (y == wanted)
            right |= np.isnan(wanted) & np.isnan(y)
        if right.all():
            continue
        plain = operation is SOFTMAX and not {"LOG", "DROPOUT"} & {
            n for n, v in features.items() if v
        }
        hint = _hint(values["x"], y, wanted) if plain else _missing(wanted, y)
        place = tuple(map(int, np.argwhere(~right)[0]))
        label = "" if len(written) == 1 else f" of {name}"
        wrong = np.count_nonzero(~right)
        raise WrongResult(
            f"{wrong} of {y.size} elements{label} {are(wrong)} wrong, first at "
            f"{_place(place)}{hint}",
            f"got {float(y[place]):.6g}, expected {wanted[place]:.6g}",
        )


def _place(place: tuple[int, ...]) -> str:
    """The position of an element in words, for arrays of one, two or three axes."""
    words = {1: ("row",), 2: ("row", "column")}.get(len(place))
    return (
        ", ".join(map(" ".join, zip(words, map(str, place), strict=True))) if words else str(place)
    )


@checked
def check_softmax(x: np.ndarray, y: np.ndarray) -> None:
    """Raise `WrongResult` unless y is softmax of x over the last axis.

    Both have the same shape and dtype. NaN is accepted exactly where the reference has it.
    """
    _check_form(x, y)
    if x.dtype.kind not in "fV" or not x.ndim:  # V: bfloat16
        raise TypeError(f"x must be a matrix of floats, not {short(x)}")
    x, y = (array.reshape(-1, array.shape[-1]) for array in (x, y))
    check_outputs(SOFTMAX, {"x": x, "scale": 1.0}, {"y": y})


@checked
def check_copy(x: np.ndarray, y: np.ndarray) -> None:
    """Raise `WrongResult` unless y equals x bit for bit."""
    _check_form(x, y)
    same = x.reshape(-1).view(np.uint8) == y.reshape(-1).view(np.uint8)
    if not same.all():
        first = int(np.argmin(same)) // x.itemsize
        place = tuple(map(int, np.unravel_index(first, x.shape)))
        raise WrongResult(f"y differs from x, first at {place}: {y[place]} instead of {x[place]}")


def _check_form(x: np.ndarray, y: np.ndarray) -> None:
    for name, array in (("x", x), ("y", y)):
        if np.ma.isMaskedArray(array):
            raise TypeError(f"{name} is a masked array: fill it, as {name}.filled(0.0) does")
    if x.shape != y.shape or x.dtype != y.dtype:
        raise WrongResult(f"y is {y.dtype}{y.shape}, x is {x.dtype}{x.shape}")


def _hint(x: np.ndarray, y: np.ndarray, expected: np.ndarray) -> str:
    """The likely kind of mistake; "" if none is recognised."""
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
        return " (rows sum to 1, but the largest element is at another place)"
    return ""


def _missing(expected: np.ndarray, y: np.ndarray) -> str:
    """A sentence if the mistake looks like an element that was never written; otherwise ""."""
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

    `kernel` is a `cupy.RawKernel` whose source has a header, or the text of a kernel file, which is
    compiled for each shape as its header says; the header also gives operation and launch.
    `features` select features of the operation. `shapes` are by default `QUICK_SHAPES`, with
    `LONG_QUICK_SHAPES` for a text with a Build line or one that accepts none of these; for a kernel
    along any axis (outer, dim, inner), `QUICK_AXES`. Shapes that the header refuses are skipped.
    Each shape is checked a second time in another layout, if the kernel supports one: strided or
    unaligned rows, or in place. Returns one sentence. Raises `WrongResult` naming the shape,
    `ValueError` if there is no header, if it refuses every shape, or for features that it does not
    have, and `TypeError` for shapes that are not pairs of integers.
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
    asked = [problem(*_sizes(shape, axes)) for shape in shapes]
    inner = SPECIAL_INNER if axes else 1
    columns = [cols for cols in SPECIAL_COLUMNS if long or axes or cols < 1000]
    special = [one for one in (problem(6, cols, inner) for cols in columns) if accepts(one)]
    if not special and accepts(packs := problem(6, SPECIAL_PACKS, inner)):
        special = [packs]
    taken = [one for one in asked if accepts(one)]
    if not taken:
        refused = contract.why_not(asked[0]) if asked else ""
        reason = f": {refused}" if "does not build" in refused else ""
        raise ValueError(f"the header takes {dtype} at none of these shapes{reason}")
    problems = [(one, make_inputs(one)) for one in taken]
    problems += [(one, special_inputs(one)) for one in special]
    views = 0
    for number, (one, values) in enumerate(problems):
        views += check_case(unbound, one, values, number)
    rows = sum(one.rows for one in special)
    shown = counted(len(taken), "shape")
    if views or contract.strided:
        shown += f", {counted(views, 'view')}"
    said = "".join(f", {name} = {value}" for name, value in unbound.features.items() if value)
    return (
        f"{unbound.name}{said}: right on {shown} and {counted(rows, 'row')} with -inf, NaN or +inf"
    )


def check_case(
    unbound: Kernel, problem: Problem, values: Mapping[str, object], layout: int
) -> bool:
    """Run a kernel on the inputs of a shape (surplus ones are ignored), then in one of three other
    layouts and in place, if it supports them. Returns whether there was another layout; raises what
    `check_kernel` raises."""
    run, contract = _Run(unbound, problem, values), unbound.header
    run.as_they_are()
    if "Inplace" in contract.fields:
        run.in_place()
    anywhere = contract.align(problem.dtype) < 16 and contract.operation is not SOFTMAX
    return (contract.strided or anywhere) and run.apart(layout)


def _sizes(shape: Sequence[int], axes: bool) -> Sequence[int]:
    """Raises `TypeError` unless it is a tuple of integers of the right length."""
    if np.ndim(shape) != 1 or len(shape) != 2 + axes:
        form = "triples [(outer, dim, inner), ...]" if axes else "pairs [(rows, cols), ...]"
        raise TypeError(f"shapes are {form}, not {shape!r}")
    return tuple(integer("a size", size) for size in shape)


class _Run:
    """A kernel with its inputs at a shape, in the plain layout and in others."""

    def __init__(self, unbound: Kernel, problem: Problem, values: Mapping[str, object]) -> None:
        self.unbound, self.problem = unbound, problem
        declared = {parameter.name for parameter in unbound.parameters}
        given = {name: value for name, value in values.items() if name in declared}
        self.given = given
        self.values = problem.complete(given)

    def outputs(self) -> dict[str, np.ndarray]:
        return outputs(self.problem, self.values)

    def matrices(self, arrays: Mapping[str, object]) -> dict[str, np.ndarray]:
        return {
            argument.name: arrays[argument.name]
            for argument in self.problem.arrays
            if argument.shape == MATRIX and argument.name in arrays
        }

    def as_they_are(self) -> None:
        self._run(self.given, self.outputs())

    def in_place(self) -> None:
        output, name = self.unbound.header.fields["Inplace"].split(" = ")
        once = self.given[name].copy()
        self._run({**self.given, name: once}, {**self.outputs(), output: once}, " in place")

    def apart(self, number: int) -> bool:
        """Check in one of three layouts, in turn; False if the header refuses it."""
        problem, contract = self.problem, self.unbound.header
        cols, size = problem.cols, problem.itemsize
        pack, unit = 16 // size, contract.align(problem.dtype) // size
        whole = -cols % pack  # elements from the end of a row to the next multiple of 16 bytes
        x_gap, y_gap, x_phase, y_phase = (
            (5, 2, 1, 3),  # each row has another offset from a multiple of 16 bytes
            (0, 0, 3, 1),
            (whole, whole + pack, 0, 0),
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
            name: _moved(x, strides[0], (x_phase + 2 * place) * unit, np.nan)
            for place, (name, x) in enumerate(self.matrices(self.given).items())
        }
        written = self.outputs()
        written |= {
            name: _moved(y, strides[1], y_phase * unit, UNTOUCHED)
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
        """The row strides of x and y, if the kernel takes them."""
        if not self.unbound.header.strided:
            return ()
        return tuple(arrays[name].strides[0] // arrays[name].itemsize for name in "xy")

    def _where(self, arrays: Mapping[str, np.ndarray]) -> str:
        problem = self.problem
        if problem.inner > 1:
            axes = problem.outer, problem.cols, problem.inner
            return f"{self.unbound.name} at outer x dim x inner = {axes}"
        return f"{self.unbound.name} at rows x cols = {problem.shape}"

    def _run(
        self, given: Mapping[str, object], written: Mapping[str, np.ndarray], how: str = ""
    ) -> None:
        """Run the kernel on the inputs in their layout, and check its outputs."""
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


def _moved(x: np.ndarray, stride: int, phase: int, around: float) -> np.ndarray:
    """`apart` for a matrix; an array of three axes keeps its layout."""
    if x.ndim == 2:
        return apart(x, stride, phase, around)
    return apart(x.reshape(1, -1), x.size, phase, around).reshape(x.shape)
