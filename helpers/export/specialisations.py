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
    pack, tuned_here = 16 // dtype.itemsize, tuned_plans(request)
    todo = _first_boxes(shapes, pack)
    found: dict[Specialisation, None] = {}

    def open_boxes(boxes: np.ndarray) -> np.ndarray:
        """Return which boxes must be halved; add the specialisations of the others."""
        names = _names(boxes, dtype, gpu, start)
        left, again = np.ones(len(boxes), bool), np.zeros(len(boxes), bool)
        for step, when in _order(request):
            some = np.flatnonzero(left & ~again)
            if not len(some):
                break
            part = {name: value[some] for name, value in names.items()}
            plan = _ranked(_plan(load(step), part, dtype, start), when, part)
            as_timed = gpu == H200 and start.aligned and start.alike
            for tuned in tuned_here if as_timed else ():
                inside, outside = _within(tuned, part)
                same = tuned.rule == step and tuned.problem.itemsize == dtype.itemsize
                if same and not outside.all():
                    faster = _plan(load(tuned.trial), part, dtype, start)
                    sure = outside | faster.rejected | inside & faster.accepted
                    taken = plan.accepted & inside & faster.accepted
                    file = split_trial(tuned.trial).file
                    faster = faster._replace(accepted=taken)
                    known = _add_found(found, tuned.trial, file, dtype, faster)
                    left[some[known]] = False
                    again[some[taken & ~known | ~plan.rejected & ~sure]] = True
                    plan = plan._replace(
                        accepted=plan.accepted & sure & ~taken, rejected=plan.rejected | taken
                    )
            file = file_of(step) if request.best else step
            known = _add_found(found, step, file, dtype, plan)
            left[some[known & ~again[some]]] = False
            again[some[~known & ~plan.rejected]] = True
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


def _within(plan: Tuned, names: Mapping[str, Interval]) -> tuple[np.ndarray, np.ndarray]:
    """Return which boxes are inside the ranges of a tuned plan, and which are outside."""
    whole = int(plan.problem.packed)
    inside = (names["packs"].low == whole) & (names["packs"].high == whole)
    outside = (names["packs"].low != whole) & (names["packs"].high != whole)
    inside &= names["isContiguous"].low == 1
    outside |= names["isContiguous"].high == 0
    for name, (low, high) in (("rows", plan.rows), ("cols", plan.cols)):
        inside &= (names[name].low >= low) & (names[name].high <= high)
        outside |= (names[name].high < low) | (names[name].low > high)
    return inside, outside


def _order(request: ExportRequest) -> Iterator[tuple[str, Expression | None]]:
    """Yield the kernels that may be chosen, each with the condition of its rank."""
    if request.best:
        yield from ((rank.file, rank.when) for rank in SOFTMAX_RANKING)
    else:
        yield from ((step, None) for step in request.kernels)


def _ranked(plan: Planned, when: Expression | None, names: Mapping[str, Interval]) -> Planned:
    """Return the plan, accepted only where the condition of its rank holds. `packs` of a rank is
    not the value of that name in a Build table."""
    if when is None or not plan.names:
        return plan
    holds = when.value({**plan.names, **names}, Intervals(len(plan.accepted)))
    return plan._replace(accepted=plan.accepted & holds.true, rejected=plan.rejected | holds.false)


def _add_found(
    found: dict[Specialisation, None], step: str, file: str, dtype: np.dtype, plan: Planned
) -> np.ndarray:
    """Add the specialisations of the boxes that need exactly one. Return for which boxes all are
    found: also those where several macros vary and every combination has been found already."""
    macros = load(step).header.macros
    if not plan.accepted.any():
        return plan.accepted
    bounds = [b for name in macros for b in (plan.names[name].low, plan.names[name].high)]
    mixed = np.zeros(len(plan.accepted), np.uint64)
    for bound in bounds:  # sorting one number per box is much faster than rows
        mixed = (mixed ^ bound.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    _, first, place = np.unique(mixed, return_index=True, return_inverse=True)
    pairs = np.array([bound[first] for bound in bounds]).reshape(len(macros), 2, len(first))
    pairs = np.moveaxis(pairs, 1, 2)
    known = np.zeros(pairs.shape[1], bool)
    taken = np.zeros(pairs.shape[1], bool)
    taken[place[plan.accepted]] = True

    def specialisation(values) -> Specialisation:
        return Specialisation(file, dtype, tuple(zip(macros, map(int, values), strict=True)))

    for number in np.flatnonzero(taken):
        if (pairs[:, number, 0] == pairs[:, number, 1]).all():
            found[specialisation(pairs[:, number, 0])] = None
    for number in np.flatnonzero(taken):
        choices = [range(one, other + 1) for one, other in pairs[:, number].tolist()]
        if math.prod(map(len, choices)) <= MAX_SPECIALISATIONS:
            known[number] = all(
                specialisation(values) in found for values in itertools.product(*choices)
            )
    return plan.accepted & known[place]


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

    size = Interval.of(dtype.itemsize, len(low))
    cols = Interval(first * pack + remainder, last * pack + remainder, remainder, pack)
    names = {
        "rows": Interval(low, high),
        "cols": cols,
        "outer": outer,
        "dim": cols,
        "inner": inner,
        "size": size,
        "row": product(cols, size),
        "sms": Interval.of(gpu.sms, len(low)),
        "l2": Interval.of(gpu.l2, len(low)),
        "capability": Interval.of(gpu.capability, len(low)),
        "maxShared": Interval.of(gpu.max_shared, len(low)),
        "alike": Interval.of(int(start.alike), len(low)),
    }
    for stride, gap in zip(("x_stride", "y_stride"), start.gaps, strict=True):
        names[stride] = Interval(cols.low + gap, cols.high + gap, (remainder + gap) % pack, pack)
    adjacent = start.gaps == (0, 0)
    always, sometimes = adjacent | (high == 1), adjacent | (low == 1)
    whole = ((remainder * dtype.itemsize) % 16 == 0) & start.aligned & start.alike
    names["isContiguous"] = Interval(always.astype(np.int64), sometimes.astype(np.int64))
    always, sometimes = whole & always, whole & sometimes
    names["isAlike"] = names["alike"]
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
