"""The specialisations that the requested shapes need: the sets of values of a kernel's macros.

A range may contain too many shapes to plan one by one. So the rules of a header are evaluated for
boxes of shapes, as intervals: a range of rows, and a range of columns with the same remainder
modulo 16 bytes. A box for which every macro has one value is done; any other is halved. The result
is every specialisation that some shape of the range needs, and no other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..base.gpu import H200, Gpu
from ..catalogue.dispatch import SOFTMAX_RANKING
from ..catalogue.expressions import Expression, Requirement
from ..catalogue.registry import split_trial
from ..catalogue.tuned import Tuned, tuned_table
from ..problem.problem import MAX_BYTES, MAX_INT, Problem
from ..run.bound import Kernel, load
from .intervals import Interval, Intervals, product
from .request import ExportError, ExportRequest, Range, Shapes

MAX_SPECIALISATIONS = 64  # per file; compiling each takes a second or more
MAX_BOXES = 2**20  # per range
MAX_AXES = 2**14  # pairs of dim and inner, each of which is a box
MULTIPLIERS = np.random.default_rng(0).integers(2**63, size=(32, 2), dtype=np.uint64)

Macros = tuple[tuple[str, int], ...]


class Specialisation(NamedTuple):
    """A kernel file compiled for a dtype with values of its macros."""

    file: str
    dtype: np.dtype
    macros: Macros


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
    found: dict[Specialisation, None] = {}
    for shapes in request.shapes:
        for dtype in request.dtypes:
            needed: dict[Specialisation, None] = {}
            for gpu in request.gpus:
                for start in starts(request, dtype):
                    needed |= dict.fromkeys(_needed(request, shapes, dtype, gpu, start))
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


def tuned_names(step: str, plans: Sequence[Tuned]) -> list[str]:
    """Return the names of a kernel's Build table that tuned plans change."""
    trials = [split_trial(plan.trial) for plan in plans]
    found = {name for trial in trials if trial.file == step for name, _ in trial.changes}
    return [entry.name for entry in load(step).header.build if entry.name in found]


def starts(request: ExportRequest, dtype: np.dtype) -> Iterator[Start]:
    """Yield the combinations of strides and alignment that plans distinguish."""
    pack = 16 // dtype.itemsize
    gaps = [(0, 0), (pack, pack), (pack + 1, pack)] if request.strided else [(0, 0)]
    for gap in gaps:
        yield Start(gap, True, True)
        if request.any_start:
            yield Start(gap, False, True)
            yield Start(gap, False, False)


# ---- plans of boxes -----------------------------------------------------------------------------


class Planned(NamedTuple):
    """What a header says of sets of problems."""

    accepted: np.ndarray  # every problem of the set
    rejected: np.ndarray  # every problem of the set
    names: Mapping[str, Interval]

    def where(self, always: np.ndarray, never: np.ndarray) -> Planned:
        """Return the plan for the problems that meet a condition, given for which sets it holds
        always and for which never."""
        return Planned(self.accepted & always, self.rejected | never, self.names)

    def when(self, condition: Expression, names: Mapping[str, Interval]) -> Planned:
        """Return the plan where a condition on `names` and on values of the Build table holds."""
        holds = condition.value({**self.names, **names}, Intervals(len(self.accepted)))
        return self.where(holds.true, holds.false)


# Requirements of every kernel. They keep products in headers within 64 bits.
EVERY_KERNEL = tuple(
    Requirement("", Expression(text))
    for text in (
        f"rows >= 1 && rows <= {MAX_INT}",
        f"rows * x_stride * size <= {MAX_BYTES} && rows * y_stride * size <= {MAX_BYTES}",
    )
)


def _plan(kernel: Kernel, names: Mapping[str, Interval], dtype: np.dtype, start: Start) -> Planned:
    """Return which sets of problems a kernel accepts, and the values of its Build table."""
    contract, known = kernel.header, {**names}
    domain = Intervals(len(names["rows"].low))
    known["isAligned"] = domain.number(
        int(start.aligned or contract.align(dtype) <= dtype.itemsize)
    )
    if dtype not in contract.dtypes:
        return Planned(domain.rejected, ~domain.rejected, {})
    for requirement in EVERY_KERNEL:
        domain.require(requirement, known)
    contract.program(kernel.block, any_start=True).evaluate(known, domain)
    return Planned(domain.accepted, domain.rejected, known)


# ---- ranges -------------------------------------------------------------------------------------


def _needed(
    request: ExportRequest, shapes: Shapes, dtype: np.dtype, gpu: Gpu, start: Start
) -> Iterator[Specialisation]:
    """Yield the specialisations that some shape of a range needs; a kernel may reject other shapes
    of the range. Raises `ExportError` for too many specialisations or boxes."""
    as_timed = gpu == H200 and start.aligned and start.alike
    tuned = [(one, _range_of(one)) for one in tuned_plans(request) if as_timed]
    tuned = [(one, inside) for one, inside in tuned if one.problem.itemsize == dtype.itemsize]
    todo = _first_boxes(shapes, 16 // dtype.itemsize)
    found: dict[Specialisation, None] = {}

    def open_boxes(boxes: np.ndarray) -> np.ndarray:
        """Return which boxes must be halved; add the specialisations of the others."""
        names = _names(boxes, dtype, gpu, start)
        left, again = np.ones(len(boxes), bool), np.zeros(len(boxes), bool)
        for step, when in _order(request):
            some = np.flatnonzero(left & ~again)
            part = {name: value[some] for name, value in names.items()}
            rule = _plan(load(step), part, dtype, start) if len(some) else None
            if rule is None or rule.rejected.all():
                continue
            rule = rule.when(when, part)
            plans = []
            for one, inside in tuned:
                if one.rule == step and not (taken := rule.when(inside, part)).rejected.all():
                    plan = _plan(load(one.trial), part, dtype, start)
                    plan = plan.where(taken.accepted, taken.rejected)
                    plans.append((one.trial, split_trial(one.trial).file, plan))
            plans.append((step, file_of(step) if request.best else step, rule))
            for trial, file, plan in plans:
                here = left[some] & ~again[some]
                plan = plan.where(here, ~here)
                known = _add_found(found, trial, file, dtype, plan)
                left[some] &= ~known
                again[some] |= ~known & ~plan.rejected
        return again

    while len(todo):
        todo = todo[open_boxes(todo)]
        first_rows = todo.copy()
        first_rows[:, 1] = first_rows[:, 0]
        todo = _halved(todo, open_boxes(first_rows))
        if len(todo) > MAX_BOXES:
            raise ExportError(
                f"{shapes} are too many shapes to find all their specialisations; request fewer"
            )
        if len(found) > 4 * MAX_SPECIALISATIONS:
            raise ExportError(
                f"{shapes} needs more than {len(found)} specialisations; one file has at most "
                f"{MAX_SPECIALISATIONS}; request fewer shapes"
            )
    yield from found


def _range_of(plan: Tuned) -> Expression:
    """Return the condition for the shapes that a tuned plan covers."""
    (rows, last_rows), (cols, last_cols) = plan.rows, plan.cols
    return Expression(
        f"packs == {int(plan.problem.packed)} && isContiguous && rows >= {rows} && "
        f"rows <= {last_rows} && cols >= {cols} && cols <= {last_cols}"
    )


def _order(request: ExportRequest) -> Iterator[tuple[str, Expression]]:
    """Yield the kernels that may be chosen, each with the condition of its rank. In that, `packs`
    is not the value of this name in a Build table."""
    if request.best:
        yield from ((rank.file, rank.when) for rank in SOFTMAX_RANKING)
    else:
        yield from ((step, Expression("1")) for step in request.kernels)


def _add_found(
    found: dict[Specialisation, None], step: str, file: str, dtype: np.dtype, plan: Planned
) -> np.ndarray:
    """Add the specialisations of the boxes that need exactly one. Return for which boxes all are
    found: also those where several macros vary and every combination has been found already."""
    macros, known = load(step).header.macros, plan.accepted.copy()
    ends = [(plan.names[name].low[known], plan.names[name].high[known]) for name in macros]
    ends = np.reshape(np.array(ends, np.int64), (len(macros), 2, known.sum()))
    # Sorting one number per box is much faster than rows.
    mixed = np.tensordot(MULTIPLIERS[: len(macros)], ends.astype(np.uint64), 2)
    _, first, place = np.unique(mixed, return_index=True, return_inverse=True)
    choices = [
        [range(low, high + 1) for low, high in pairs]
        for pairs in np.moveaxis(ends[:, :, first], 2, 0).tolist()
    ]

    def specialisation(values: Sequence[int]) -> Specialisation:
        return Specialisation(file, dtype, tuple(zip(macros, values, strict=True)))

    for each in choices:
        if math.prod(map(len, each)) == 1:
            found[specialisation([one.start for one in each])] = None
    all_found = [
        math.prod(map(len, each)) <= MAX_SPECIALISATIONS
        and all(specialisation(values) in found for values in itertools.product(*each))
        for each in choices
    ]
    known[known] = np.array(all_found, bool)[place]
    return known


def _first_boxes(shapes: Shapes, pack: int) -> np.ndarray:
    """Return one box per remainder of the columns: first and last row, first and last quotient of
    the columns by `pack`, remainder, inner. With another axis there is one box per dim and inner,
    because specialisations hardly ever share them. Raises `ExportError` for too many of those."""
    rows, cols, boxes = shapes.rows, shapes.cols, []
    if shapes.inner:
        inner = shapes.inner
        count = (cols.high - cols.low + 1) * (inner.high - inner.low + 1)
        if count > MAX_AXES:
            raise ExportError(
                f"{shapes} are too many axis lengths to find all their specialisations"
            )
        grid = np.mgrid[cols.low : cols.high + 1, inner.low : inner.high + 1].reshape(2, -1)
        boxes = [[rows.low, rows.high, c // pack, c // pack, c % pack, i] for c, i in grid.T]
        return np.array(boxes, np.int64)
    for remainder in range(pack):
        first = -(-(cols.low - remainder) // pack)
        last = (cols.high - remainder) // pack
        if first <= last:
            boxes.append([rows.low, rows.high, first, last, remainder, 1])
    return np.array(boxes, np.int64)


def _names(todo: np.ndarray, dtype: np.dtype, gpu: Gpu, start: Start) -> dict[str, Interval]:
    """Return the inputs of a header's rules, for boxes."""
    low, high, first, last, remainder, inner = todo.T
    pack = 16 // dtype.itemsize
    outer, inner = Interval(low, high), Interval(inner, inner)
    low, high = product(outer, inner).low, product(outer, inner).high

    numbers = {"size": dtype.itemsize, **vars(gpu), "maxShared": gpu.max_shared}
    numbers |= {"alike": int(start.alike), "isAlike": int(start.alike)}
    names = {name: Interval.of(number, len(low)) for name, number in numbers.items()}
    cols = Interval(first * pack + remainder, last * pack + remainder, remainder, pack)
    names |= {"rows": Interval(low, high), "outer": outer, "inner": inner}
    names |= {"cols": cols, "dim": cols, "row": product(cols, names["size"])}
    for stride, gap in zip(("x_stride", "y_stride"), start.gaps, strict=True):
        names[stride] = Interval(cols.low + gap, cols.high + gap, (remainder + gap) % pack, pack)
    adjacent = start.gaps == (0, 0)
    always, sometimes = adjacent | (high == 1), adjacent | (low == 1)
    whole = ((remainder * dtype.itemsize) % 16 == 0) & start.aligned & start.alike
    names["isContiguous"] = Interval(always.astype(np.int64), sometimes.astype(np.int64))
    always, sometimes = whole & always, whole & sometimes
    names["packs"] = Interval(always.astype(np.int64), sometimes.astype(np.int64))
    return names


def _halved(boxes: np.ndarray, by_columns: np.ndarray) -> np.ndarray:
    """Halve each box: by columns if even its first row is undecided, else by rows."""
    low, high, first, last, _, _ = boxes.T
    rows = (high > low) & (~by_columns | (last == first))
    lower, upper = boxes.copy(), boxes.copy()
    middle = np.where(rows, (low + high) // 2, (first + last) // 2)
    lower[:, 1] = np.where(rows, middle, high)
    upper[:, 0] = np.where(rows, middle + 1, low)
    lower[:, 3] = np.where(rows, last, middle)
    upper[:, 2] = np.where(rows, first, middle + 1)
    return np.concatenate([lower, upper])
