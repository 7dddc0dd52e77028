"""Which builds of a kernel the shapes that are asked for need: the sets of values of its macros.

A range may hold more shapes than can be planned one by one. So the table of a header is computed
for boxes of shapes at once, as intervals: rows from .. to, columns from .. to of one remainder by
the columns of 16 bytes. A box for which every macro has one value is done; any other is halved.
What comes out is every build that some shape of the range needs, and no other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ..base.gpu import Gpu
from ..catalogue.dispatch import SOFTMAX_RANKING
from ..catalogue.registry import split_trial
from ..catalogue.rules import Formula, Requirement
from ..problem.problem import MAX_BYTES, MAX_INT, Problem
from ..run.bound import Kernel, load
from .asked import Asked, NoSuchExport, Shapes
from .intervals import Interval, Intervals, product

MOST_BUILDS = 64  # of a file: each is compiled, a second or more
MOST_BOXES = 2**20  # of a range, before it is given up
MOST_AXES = 2**14  # pairs of dim and inner, each of which is a box

Macros = tuple[tuple[str, int], ...]


class Build(NamedTuple):
    """A kernel file compiled for a dtype with these macros."""

    file: str
    dtype: np.dtype
    macros: Macros


class Start(NamedTuple):
    """How rows lie and where x and y start."""

    apart: tuple[int, int]  # elements between rows of x, and of y
    aligned: bool
    alike: bool


def builds(asked: Asked) -> list[Build]:
    """Every build that the shapes asked for need, in the order of the kernels.

    Raises `NoSuchExport` for shapes of which no kernel takes one, and for too many builds.
    """
    if not asked.shapes:
        raise NoSuchExport("name the shapes to compile for: 8192x50304 or 1..4096x32000, say")
    found: dict[Build, None] = {}
    for shapes in asked.shapes:
        for dtype in asked.dtypes:
            needed: dict[Build, None] = {}
            for gpu in asked.gpus:
                for start in starts(asked, dtype):
                    needed |= dict.fromkeys(_needed(asked, shapes, dtype, gpu, start))
            if not needed:
                raise NoSuchExport(_why_none(asked, shapes, dtype))
            found |= needed
    if len(found) > MOST_BUILDS:
        raise NoSuchExport(
            f"{', '.join(map(str, asked.shapes))} needs {len(found)} builds, more than "
            f"{MOST_BUILDS} in one file; ask for fewer shapes or dtypes"
        )
    order = [file_of(step) if asked.best else step for step in asked.kernels]
    return sorted(found, key=lambda build: (order.index(build.file), str(build.dtype), build[2]))


def _why_none(asked: Asked, shapes: Shapes, dtype: np.dtype) -> str:
    """Why there is no build at all."""
    kernel, inner = asked.kernels[0], shapes.inner.high if shapes.inner else 1
    rows, cols = shapes.rows.high * inner, shapes.cols.high
    reason = load(kernel).header.why_not(Problem(rows, cols, dtype, inner), asked.gpus[0])
    return f"{kernel} takes no {dtype} matrix of {shapes}: {reason}"


def file_of(step: str) -> str:
    """The kernel whose plan is that of a step of the ranking: LATE = 1 is a plan's own for x and y
    that start differently, so that trial is its file."""
    file, block, changes = split_trial(step)
    return file if not block and changes in ((), (("LATE", 1),)) else step


def starts(asked: Asked, dtype: np.dtype) -> Iterator[Start]:
    """The ways in which rows may lie, one for each that plans tell apart: whether rows follow each
    other, and whether x and y keep their distance to a multiple of 16 bytes."""
    pack = 16 // dtype.itemsize
    gaps = [(0, 0), (pack, pack), (pack + 1, pack)] if asked.strides else [(0, 0)]
    for gap in gaps:
        yield Start(gap, True, True)
        if asked.anywhere:
            yield Start(gap, False, True)
            yield Start(gap, False, False)


# ---- a header's plan of boxes -------------------------------------------------------------------


class Planned(NamedTuple):
    """What a header says of sets of problems."""

    accepted: np.ndarray  # every problem of the set
    rejected: np.ndarray  # every problem of the set
    names: Mapping[str, Interval]


# What holds for every kernel, and keeps the products of headers within 64 bits.
EVERY_KERNEL = tuple(
    Requirement("", Formula(text))
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
    asked: Asked, shapes: Shapes, dtype: np.dtype, gpu: Gpu, start: Start
) -> Iterator[Build]:
    """The builds that some shape of a range needs; of a range, a kernel may refuse some shapes.
    Raises `NoSuchExport` for too many of either."""
    pack = 16 // dtype.itemsize
    todo = _first_boxes(shapes, pack)
    found: dict[Build, None] = {}

    def open_boxes(boxes: np.ndarray) -> np.ndarray:
        """Which boxes have to be halved; the builds of the others are found."""
        names = _names(boxes, dtype, gpu, start)
        left, again = np.ones(len(boxes), bool), np.zeros(len(boxes), bool)
        for step, when in _order(asked):
            some = np.flatnonzero(left & ~again)
            if not len(some):
                break
            part = {name: value[some] for name, value in names.items()}
            plan = _ranked(_plan(load(step), part, dtype, start), when, part)
            file = file_of(step) if asked.best else step
            known = _add_builds(found, step, file, dtype, plan)
            left[some[known]] = False
            again[some[~known & ~plan.rejected]] = True
        return again

    while len(todo):
        todo = todo[open_boxes(todo)]
        first_rows = todo.copy()
        first_rows[:, 1] = first_rows[:, 0]
        todo = _halved(todo, open_boxes(first_rows))
        if len(todo) > MOST_BOXES:
            raise NoSuchExport(
                f"{shapes} are too many shapes to find all their builds; ask for fewer"
            )
        if len(found) > 4 * MOST_BUILDS:
            raise NoSuchExport(
                f"{shapes} needs more than {len(found)} builds, where {MOST_BUILDS} are the most "
                "in one file; ask for fewer shapes"
            )
    yield from found


def _order(asked: Asked) -> Iterator[tuple[str, Formula | None]]:
    """The kernels that may be taken, each with the condition for its place."""
    if asked.best:
        yield from ((rank.file, rank.when) for rank in SOFTMAX_RANKING)
    else:
        yield from ((step, None) for step in asked.kernels)


def _ranked(plan: Planned, when: Formula | None, names: Mapping[str, Interval]) -> Planned:
    """Return the plan, accepted only where the condition of its rank holds. `packs` of a rank is
    not the value of that name in a Build table."""
    if when is None or not plan.names:
        return plan
    holds = when.value({**plan.names, **names}, Intervals(len(plan.accepted)))
    return plan._replace(accepted=plan.accepted & holds.true, rejected=plan.rejected | holds.false)


def _add_builds(
    found: dict[Build, None], step: str, file: str, dtype: np.dtype, plan: Planned
) -> np.ndarray:
    """Add the builds of the boxes that have one; returns for which boxes all builds are found,
    those included of which several macros are open and every combination is there already."""
    macros = load(step).header.macros
    if not plan.accepted.any():
        return plan.accepted
    bounds = [b for name in macros for b in (plan.names[name].low, plan.names[name].high)]
    mixed = np.zeros(len(plan.accepted), np.uint64)
    for bound in bounds:  # one number for a row of them is sorted much faster
        mixed = (mixed ^ bound.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    _, first, place = np.unique(mixed, return_index=True, return_inverse=True)
    pairs = np.array([bound[first] for bound in bounds]).reshape(len(macros), 2, len(first))
    pairs = np.moveaxis(pairs, 1, 2)
    known = np.zeros(pairs.shape[1], bool)
    taken = np.zeros(pairs.shape[1], bool)
    taken[place[plan.accepted]] = True

    def build(values) -> Build:
        return Build(file, dtype, tuple(zip(macros, map(int, values), strict=True)))

    for number in np.flatnonzero(taken):
        if (pairs[:, number, 0] == pairs[:, number, 1]).all():
            found[build(pairs[:, number, 0])] = None
    for number in np.flatnonzero(taken):
        choices = [range(one, other + 1) for one, other in pairs[:, number].tolist()]
        if math.prod(map(len, choices)) <= MOST_BUILDS:
            known[number] = all(build(values) in found for values in itertools.product(*choices))
    return plan.accepted & known[place]


def _first_boxes(shapes: Shapes, pack: int) -> np.ndarray:
    """A box for each remainder that columns leave: rows from, to, sixteens of columns from, to,
    remainder, inner. Of another axis one for each length and inner: hardly two of them have one
    build. Raises `NoSuchExport` for too many of those."""
    rows, cols, boxes = shapes.rows, shapes.cols, []
    if shapes.inner:
        inner = shapes.inner
        count = (cols.high - cols.low + 1) * (inner.high - inner.low + 1)
        if count > MOST_AXES:
            raise NoSuchExport(f"{shapes} are too many lengths of an axis to find all their builds")
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
    """What a header may read, of boxes."""
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
    for stride, gap in zip(("x_stride", "y_stride"), start.apart, strict=True):
        names[stride] = Interval(cols.low + gap, cols.high + gap, (remainder + gap) % pack, pack)
    adjacent = start.apart == (0, 0)
    always, sometimes = adjacent | (high == 1), adjacent | (low == 1)
    whole = ((remainder * dtype.itemsize) % 16 == 0) & start.aligned & start.alike
    names["isContiguous"] = Interval(always.astype(np.int64), sometimes.astype(np.int64))
    always, sometimes = whole & always, whole & sometimes
    names["isAlike"] = names["alike"]
    names["packs"] = Interval(always.astype(np.int64), sometimes.astype(np.int64))
    return names


def _halved(boxes: np.ndarray, by_columns: np.ndarray) -> np.ndarray:
    """Each box as two: halved by its columns where even its first row is open, else by its rows."""
    low, high, first, last, _, _ = boxes.T
    rows = (high > low) & (~by_columns | (last == first))
    lower, upper = boxes.copy(), boxes.copy()
    middle = np.where(rows, (low + high) // 2, (first + last) // 2)
    lower[:, 1] = np.where(rows, middle, high)
    upper[:, 0] = np.where(rows, middle + 1, low)
    lower[:, 3] = np.where(rows, last, middle)
    upper[:, 2] = np.where(rows, first, middle + 1)
    return np.concatenate([lower, upper])
