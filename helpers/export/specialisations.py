"""The specialisations that the requested shapes need: the sets of values of a kernel's macros.

The rules of a header are evaluated for all shapes of a range at once, as arrays. Of a range with
more than `MAX_SHAPES` shapes, some numbers of rows are evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..base.gpu import H200, Gpu
from ..catalogue.dispatch import SOFTMAX_RANKING
from ..catalogue.expressions import (
    DIVISIONS,
    FUNCTIONS,
    Definition,
    Evaluate,
    Expression,
    Names,
    Requirement,
)
from ..catalogue.registry import split_trial
from ..catalogue.tuned import Tuned, tuned_table
from ..problem.problem import MAX_BYTES, MAX_INT, Problem
from ..run.bound import Kernel, load
from .request import ExportError, ExportRequest, Range, Shapes

MAX_SPECIALISATIONS = 64  # per file; compiling each takes a second or more
MAX_SHAPES = 2**18  # of a range; of more, not all numbers of rows are evaluated
MAX_COLUMNS = 2**14  # of a range, as pairs of dim and inner with another axis
MIN_ROWS = 2**6  # numbers of rows that are evaluated in any case


class Specialisation(NamedTuple):
    """A kernel file compiled for a dtype with values of its macros."""

    file: str
    dtype: np.dtype
    macros: tuple[tuple[str, int], ...]


class Start(NamedTuple):
    """Row strides and alignment of x and y, as far as plans distinguish them."""

    gaps: tuple[int, int]  # elements between the rows of x, and of y
    aligned: bool
    alike: bool


def specialisations(request: ExportRequest) -> list[Specialisation]:
    """Return every specialisation that the requested shapes need, in the order of the kernels.

    Raises `ExportError` if no kernel accepts any of the shapes, or for too many specialisations.
    """
    if not request.shapes:
        raise ExportError("name the shapes to compile for, such as 8192x50304 or 1..4096x32000")
    found: set[Specialisation] = set()
    for shapes in request.shapes:
        for dtype in request.dtypes:
            needed: set[Specialisation] = set()
            for gpu in request.gpus:
                for start in starts(request, dtype):
                    needed |= _needed(request, shapes, dtype, gpu, start)
            if not needed:
                raise ExportError(_why_none(request, shapes, dtype))
            found |= needed
    if len(found) > MAX_SPECIALISATIONS:
        raise ExportError(
            f"{', '.join(map(str, request.shapes))} needs {len(found)} specialisations, more than "
            f"{MAX_SPECIALISATIONS} in one file; request fewer shapes or dtypes"
        )
    order = [file_of(step) if request.best else step for step in request.kernels]
    return sorted(found, key=lambda one: (order.index(one.file), str(one.dtype), one.macros))


def _why_none(request: ExportRequest, shapes: Shapes, dtype: np.dtype) -> str:
    """Return why no kernel accepts any of the shapes."""
    kernel, inner = request.kernels[0], shapes.inner.high if shapes.inner else 1
    rows, cols = shapes.rows.high * inner, shapes.cols.high
    reason = load(kernel).header.why_not(Problem(rows, cols, dtype, inner), request.gpus[0])
    return f"{kernel} accepts no {dtype} matrix of {shapes}: {reason}"


def file_of(step: str) -> str:
    """Return the kernel whose rules include a step of the ranking: a trial with LATE = 1 is what
    the rules of its file give for x and y that are aligned differently."""
    file, block, changes = split_trial(step)
    return file if not block and changes in ((), (("LATE", 1),)) else step


def tuned_plans(request: ExportRequest) -> list[Tuned]:
    """Return the tuned plans of the requested shapes; none unless `choose` is what is exported."""
    if not request.best or H200 not in request.gpus:
        return []
    sizes = {dtype.itemsize for dtype in request.dtypes}
    return [
        plan
        for plan in tuned_table(H200)
        if plan.problem.itemsize in sizes
        and any(
            _meet(shapes.rows, plan.rows) and _meet(shapes.cols, plan.cols)
            for shapes in request.shapes
        )
    ]


def _meet(one: Range, other: tuple[int, int]) -> bool:
    return one.low <= other[1] and other[0] <= one.high


def starts(request: ExportRequest, dtype: np.dtype) -> Iterator[Start]:
    """Yield the combinations of strides and alignment that plans distinguish."""
    pack = 16 // dtype.itemsize
    gaps = [(0, 0), (pack, pack), (pack + 1, pack)] if request.strided else [(0, 0)]
    for gap in gaps:
        yield Start(gap, True, True)
        if request.any_start:
            yield Start(gap, False, True)
            yield Start(gap, False, False)


# ---- plans of all shapes ------------------------------------------------------------------------


class Arrays:
    """The domain of many problems at once: a value is an array of one number per problem."""

    def __init__(self, count: int):
        self.accepted = np.ones(count, bool)
        # For which problems the current expression is evaluated; others may divide by zero.
        self._evaluated = np.ones(count, bool)

    def number(self, number: int) -> np.int64:
        return np.int64(number)

    def apply(self, function: str, *values: np.ndarray) -> np.ndarray:
        if function in DIVISIONS:
            left, right = values
            self.accepted &= ~self._evaluated | (right != 0)
            values = left, np.maximum(right, 1)
        if function == "power_of_two":
            return np.int64(1) << np.ceil(np.log2(np.maximum(*values, 1))).astype(np.int64)
        functions = FUNCTIONS | {"min": np.minimum, "max": np.maximum}
        return np.int64(1) * functions[function](*values)  # a comparison is a number too

    def logical(self, conjunction: bool, parts: Sequence[Evaluate], names: Names) -> np.ndarray:
        undecided = before = self._evaluated
        for part in parts:
            undecided = undecided & ((part(names, self) != 0) == conjunction)
            self._evaluated = undecided
        self._evaluated = before
        return np.where(undecided, int(conjunction), int(not conjunction))

    def define(self, definition: Definition, names: Names) -> np.ndarray:
        found = np.zeros(len(self.accepted), np.int64)
        left = every = self._evaluated
        for value, condition in definition.cases:
            holds = condition.value(names, self) != 0 if condition else every
            self._evaluated = left & holds
            found = np.where(self._evaluated, value.value(names, self), found)
            self._evaluated = left = left & ~holds
        self._evaluated = every
        self.accepted &= ~left
        return found

    def require(self, requirement: Requirement, names: Names) -> None:
        self.accepted &= requirement.condition.value(names, self) != 0


Values = Mapping[str, np.ndarray]


def _plan(kernel: Kernel, names: Values, dtype: np.dtype, start: Start) -> tuple:
    """Return which problems a kernel accepts, and the names with the values of its rules."""
    contract, known = kernel.header, {**names}
    domain = Arrays(len(names["rows"]))
    if dtype not in contract.dtypes:
        return ~domain.accepted, known
    known["isAligned"] = np.int64(start.aligned or contract.align(dtype) <= dtype.itemsize)
    contract.program(kernel.block, any_start=True).evaluate(known, domain)
    return domain.accepted, known


def _needed(
    request: ExportRequest, shapes: Shapes, dtype: np.dtype, gpu: Gpu, start: Start
) -> set[Specialisation]:
    """Return the specialisations that the shapes of a range need; a kernel may reject others.
    Raises `ExportError` for too many row lengths."""
    as_timed = gpu == H200 and start.aligned and start.alike
    tuned = tuned_plans(request) if as_timed else []
    names = _names(shapes, dtype, gpu, start)
    found: set[Specialisation] = set()
    for step, when in _order(request):
        left, values = _plan(load(step), names, dtype, start)
        if left.any():  # `packs` of a rank is not the value of this name in a Build table
            left &= when.value({**values, **names}, Arrays(len(left))) != 0
        accepted = left.copy()
        for one in tuned:
            if one.rule != step or one.problem.itemsize != dtype.itemsize:
                continue
            here = np.flatnonzero(left & _covered(one, names))
            part = {name: value[here] for name, value in names.items()}
            taken, of_trial = _plan(load(one.trial), part, dtype, start)
            found |= _found(one.trial, split_trial(one.trial).file, dtype, of_trial, taken)
            left[here[taken]] = False
        file = file_of(step) if request.best else step
        found |= _found(step, file, dtype, values, left)
        names = {name: value[~accepted] for name, value in names.items()}
    return found


def _covered(plan: Tuned, names: Values) -> np.ndarray:
    """Return which problems a tuned plan covers."""
    (rows, last_rows), (cols, last_cols) = plan.rows, plan.cols
    inside = (names["rows"] >= rows) & (names["rows"] <= last_rows) & (names["isContiguous"] == 1)
    inside &= (names["cols"] >= cols) & (names["cols"] <= last_cols)
    return inside & (names["packs"] == plan.problem.packed)


def _order(request: ExportRequest) -> Iterator[tuple[str, Expression]]:
    """Yield the kernels that may be chosen, each with the condition of its rank."""
    if request.best:
        yield from ((rank.file, rank.when) for rank in SOFTMAX_RANKING)
    else:
        yield from ((step, Expression("1")) for step in request.kernels)


def _found(
    step: str, file: str, dtype: np.dtype, values: Values, some: np.ndarray
) -> set[Specialisation]:
    """Return the specialisations of some problems."""
    macros = load(step).header.macros
    if not some.any():
        return set()
    each = {*zip(*(values[name][some].tolist() for name in macros), strict=True)} or {()}
    return {Specialisation(file, dtype, (*zip(macros, one, strict=True),)) for one in each}


def _names(shapes: Shapes, dtype: np.dtype, gpu: Gpu, start: Start) -> dict[str, np.ndarray]:
    """Return the inputs of a header's rules for the shapes of a range. Raises `ExportError` for too
    many columns."""
    cols, inner = shapes.cols, shapes.inner or Range(1, 1)
    count = (cols.high - cols.low + 1) * (inner.high - inner.low + 1)
    if count > MAX_COLUMNS:
        raise ExportError(f"{shapes} has more than {MAX_COLUMNS} row lengths; request fewer")
    sizes = np.meshgrid(
        _rows(shapes.rows, max(MIN_ROWS, MAX_SHAPES // count)),
        np.arange(cols.low, cols.high + 1),
        np.arange(inner.low, inner.high + 1),
    )
    # Requirements of every kernel. They keep products in headers within 64 bits.
    rows, outer, cols, inner = sizes[0] * sizes[2], *sizes
    widest = np.float64(dtype.itemsize) * (cols + max(start.gaps))
    fit = (rows <= MAX_INT) & (rows * widest <= MAX_BYTES)
    rows, outer, cols, inner = (size[fit] for size in (rows, outer, cols, inner))

    names = {"rows": rows, "outer": outer, "cols": cols, "dim": cols, "inner": inner}
    names |= {"row": cols * dtype.itemsize}
    names |= {"x_stride": cols + start.gaps[0], "y_stride": cols + start.gaps[1]}
    numbers = {"size": dtype.itemsize, **vars(gpu), "maxShared": gpu.max_shared}
    numbers |= {"alike": int(start.alike), "isAlike": int(start.alike)}
    names |= {name: np.full(len(rows), number) for name, number in numbers.items()}
    contiguous = (start.gaps == (0, 0)) | (rows == 1)
    packs = contiguous & (names["row"] % 16 == 0) & start.aligned & start.alike
    return names | {"isContiguous": np.int64(1) * contiguous, "packs": np.int64(1) * packs}


def _rows(rows: Range, most: int) -> np.ndarray:
    """Return the numbers of rows of a range, up to `most`: if there are more, the first half of
    `most`, and then by equal factors to the last."""
    every = np.arange(rows.low, min(rows.high, rows.low + most - 1) + 1)
    if every[-1] == rows.high:
        return every
    others = np.geomspace(every[most // 2], rows.high, most // 2).astype(np.int64)
    return np.unique(np.concatenate([every[: most // 2], others]))
