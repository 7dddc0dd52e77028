"""Which builds of a kernel the shapes that are asked for need: the sets of values of its macros.

A range may hold more shapes than can be planned one by one. So the table of a header is computed
for boxes of shapes at once, as intervals: rows from .. to, columns from .. to of one remainder by
the columns of 16 bytes. A box for which every macro has one value is done; any other is halved.
What comes out is every build that some shape of the range needs, and no other.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..bound import Kernel, load
from ..catalogue import RANKING, split_trial
from ..expressions import OPERATORS, Expression
from ..gpu import Gpu
from ..plan import CLUSTERS_SINCE, MAX_BLOCK, MAX_BYTES, MAX_GRID, MAX_INT, Header
from .asked import Asked, Refused, Shapes

MOST_BUILDS = 64  # of a file: each is compiled, a second or more
MOST_BOXES = 2**22  # of a range, before it is given up
SATURATED = 2**61  # what is larger counts as this

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

    Raises `Refused` for shapes of which no kernel takes one, and for too many builds.
    """
    if not asked.shapes:
        raise Refused("name the shapes to compile for: 8192x50304 or 1..4096x32000, say")
    found: dict[Build, None] = {}
    for shapes in asked.shapes:
        for dtype in asked.dtypes:
            needed: dict[Build, None] = {}
            for gpu in asked.gpus:
                for start in starts(asked, dtype):
                    needed |= dict.fromkeys(_needed(asked, shapes, dtype, gpu, start))
            if not needed:
                raise Refused(_why_none(asked, shapes, dtype))
            found |= needed
    if len(found) > MOST_BUILDS:
        raise Refused(
            f"{', '.join(map(str, asked.shapes))} needs {len(found)} builds, more than "
            f"{MOST_BUILDS} in one file; ask for fewer shapes or dtypes"
        )
    order = [file_of(step) if asked.best else step for step in asked.kernels]
    return sorted(found, key=lambda build: (order.index(build.file), str(build.dtype), build[2]))


def _why_none(asked: Asked, shapes: Shapes, dtype: np.dtype) -> str:
    """Why there is no build at all."""
    kernel = asked.kernels[0]
    reason = load(kernel).header.why_not(shapes.rows.high, shapes.cols.high, dtype, asked.gpus[0])
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


# ---- intervals ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """Of each box, the least and the largest value; where `modulus` is not 0, each value leaves
    `remainder` by it."""

    low: np.ndarray
    high: np.ndarray
    remainder: np.ndarray | int = 0
    modulus: int = 0

    @property
    def sure(self) -> np.ndarray:
        """Definitely not 0."""
        return (self.low > 0) | (self.high < 0)

    @property
    def never(self) -> np.ndarray:
        """Definitely 0."""
        return (self.low == 0) & (self.high == 0)

    @property
    def one(self) -> np.ndarray:
        """Whether there is a single value."""
        return self.low == self.high


@dataclass
class Boxes:
    """Shapes, a box each, and what became of them."""

    names: dict[str, Interval]
    refused: np.ndarray  # definitely not taken
    open: np.ndarray  # not yet known

    def value(self, tree: ast.AST, sure: np.ndarray, maybe: np.ndarray) -> Interval:
        """An expression's, where it is surely or maybe evaluated; a division by zero refuses."""
        if isinstance(tree, ast.Constant):
            value = np.full(len(sure), tree.value)
            return Interval(value, value, tree.value, 2**32)
        if isinstance(tree, ast.Name):
            return self.names[tree.id]
        if isinstance(tree, ast.BoolOp):
            return self._logical(tree, sure, maybe)
        if isinstance(tree, ast.Call):
            parts = [self.value(part, sure, maybe) for part in tree.args]
            name = tree.func.id
            if name == "ceil_div":
                return self._ceil_div(*parts, sure, maybe)
            if name == "power_of_two":
                return Interval(_power_of_two(parts[0].low), _power_of_two(parts[0].high))
            function = {"min": np.minimum, "max": np.maximum}[name]
            a, b = parts
            return Interval(function(a.low, b.low), function(a.high, b.high))
        left, right = (
            (tree.left, tree.comparators[0])
            if isinstance(tree, ast.Compare)
            else (
                tree.left,
                tree.right,
            )
        )
        a, b = self.value(left, sure, maybe), self.value(right, sure, maybe)
        if isinstance(tree, ast.Compare):
            return _compared(type(tree.ops[0]), a, b)
        if isinstance(tree.op, ast.Add | ast.Sub):
            return _sum(a, b, OPERATORS[type(tree.op)])
        if isinstance(tree.op, ast.Mult):
            return _product(a, b)
        if isinstance(tree.op, ast.Div):
            return self._quotient(a, b, sure, maybe)
        return self._remainder(a, b, sure, maybe)

    def _logical(self, tree: ast.BoolOp, sure: np.ndarray, maybe: np.ndarray) -> Interval:
        every = isinstance(tree.op, ast.And)
        low = high = np.full(len(sure), int(every))
        for part in tree.values:
            found = self.value(part, sure, maybe)
            truth = np.asarray(found.sure, int), np.asarray(~found.never, int)
            if every:
                low, high = low & truth[0], high & truth[1]
                sure, maybe = sure & (low == 1), maybe & (high == 1)
            else:
                low, high = low | truth[0], high | truth[1]
                sure, maybe = sure & (high == 0), maybe & (low == 0)
        return Interval(low, high)

    def _divisor(self, b: Interval, sure: np.ndarray, maybe: np.ndarray) -> Interval:
        self.refused |= sure & b.never
        self.open |= maybe & (b.low <= 0) & (b.high >= 0) & ~(sure & b.never)
        return Interval(np.maximum(b.low, 1), np.maximum(b.high, 1))

    def _quotient(self, a: Interval, b: Interval, sure, maybe) -> Interval:
        b = self._divisor(b, sure, maybe)
        return Interval(a.low // b.high, a.high // b.low)  # of numbers from 0 up

    def _ceil_div(self, a: Interval, b: Interval, sure, maybe) -> Interval:
        b = self._divisor(b, sure, maybe)
        return Interval(-(-a.low // b.high), -(-a.high // b.low))

    def _remainder(self, a: Interval, b: Interval, sure, maybe) -> Interval:
        b = self._divisor(b, sure, maybe)
        if a.modulus and b.one.all() and not (a.modulus % b.low).any():
            value = np.broadcast_to(a.remainder % b.low, a.low.shape)
            return Interval(value, value)
        quotient = self._quotient(a, b, sure, maybe)
        within = quotient.one & b.one
        low = np.where(within, a.low - quotient.low * b.low, 0)
        high = np.where(within, a.high - quotient.low * b.low, np.minimum(b.high - 1, a.high))
        return Interval(low, high)


def _power_of_two(number: np.ndarray) -> np.ndarray:
    return np.int64(1) << np.ceil(np.log2(np.maximum(number, 1))).astype(np.int64)


def _compared(operator: type, a: Interval, b: Interval) -> Interval:
    if operator in (ast.Gt, ast.GtE):
        a, b, operator = b, a, {ast.Gt: ast.Lt, ast.GtE: ast.LtE}[operator]
    if operator is ast.Lt:
        low, high = a.high < b.low, a.low < b.high
    elif operator is ast.LtE:
        low, high = a.high <= b.low, a.low <= b.high
    else:
        low = a.one & b.one & (a.low == b.low)
        high = (a.low <= b.high) & (b.low <= a.high)
        if operator is ast.NotEq:
            low, high = ~high, ~low
    return Interval(low.astype(np.int64), high.astype(np.int64))


def _sum(a: Interval, b: Interval, operator) -> Interval:
    if operator(1, 1) == 2:
        low, high = a.low + b.low, a.high + b.high
    else:
        low, high = a.low - b.high, a.high - b.low
    modulus = np.gcd(a.modulus, b.modulus) if a.modulus and b.modulus else 0
    remainder = operator(a.remainder, b.remainder) % modulus if modulus else 0
    bounds = np.clip(low, -SATURATED, SATURATED), np.clip(high, -SATURATED, SATURATED)
    return Interval(*bounds, remainder, int(modulus))


def _product(a: Interval, b: Interval) -> Interval:
    corners = [_times(u, v) for u in (a.low, a.high) for v in (b.low, b.high)]
    for one, other in ((a, b), (b, a)):
        if one.modulus and _constant(other):
            factor = int(other.low[0])
            if factor > 0:
                remainder, modulus = one.remainder * factor, one.modulus * factor
                return Interval(np.min(corners, 0), np.max(corners, 0), remainder, modulus)
    return Interval(np.min(corners, 0), np.max(corners, 0))


def _constant(value: Interval) -> bool:
    """Whether it is one number for all boxes."""
    return bool(len(value.low) and value.one.all() and (value.low == value.low[0]).all())


def _times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    large = np.abs(a.astype(float) * b.astype(float)) >= SATURATED
    return np.where(large, SATURATED * np.sign(a) * np.sign(b), a * b)


# ---- a header's plan of boxes -------------------------------------------------------------------


class Planned(NamedTuple):
    taken: np.ndarray  # definitely
    refused: np.ndarray  # definitely
    names: Mapping[str, Interval]


def _plan(
    kernel: Kernel, names: Mapping[str, Interval], dtype: np.dtype, gpu: Gpu, start: Start
) -> Planned:
    """What `Header.why_not` says of boxes, and the values of their Build table."""
    contract, count = kernel.header, len(names["rows"].low)
    nothing = np.zeros(count, bool)
    if not _possible(contract, dtype, gpu, start):
        return Planned(nothing, ~nothing, {})
    boxes = Boxes({**names}, nothing.copy(), nothing.copy())
    whole = ~nothing
    for name, number in contract.numbers.items():
        boxes.names[name] = Interval(np.full(count, number), np.full(count, number))
    apart = names["row"].low * 0
    for stride in ("x_stride", "y_stride"):
        size = np.full(count, dtype.itemsize)
        bytes = _product(_product(names["rows"], names[stride]), Interval(size, size))
        _must(boxes, bytes.high <= MAX_BYTES, bytes.low > MAX_BYTES)
        if not contract.strided:
            apart = apart | (start.apart != (0, 0))
    _must(boxes, (apart == 0) | (names["rows"].high == 1), (apart == 1) & (names["rows"].low > 1))
    fixed = {**contract.fixed}
    if not start.alike and "LATE" in contract.macros:
        fixed["LATE"] = 1
    for entry in contract.build:
        if entry.name in fixed:
            value = np.full(count, fixed[entry.name])
            boxes.names[entry.name] = Interval(value, value)
        else:
            boxes.names[entry.name] = _case(boxes, entry.cases)
        if entry.is_macro:
            value = boxes.names[entry.name]
            _must(
                boxes,
                (value.low >= 0) & (value.high <= MAX_INT),
                (value.high < 0) | (value.low > MAX_INT),
            )
    if gpu.capability < CLUSTERS_SINCE:
        for name, most in (("CLUSTER", 1), ("PROGRAMMATIC", 0)):
            if name in contract.macros:
                value = boxes.names[name]
                _must(boxes, value.high <= most, value.low > most)
    _rule(boxes, contract.rules["Columns"])
    if kernel.block:
        boxes.names["block"] = Interval(np.full(count, kernel.block), np.full(count, kernel.block))
    else:
        boxes.names["block"] = boxes.value(contract.rules["block"].tree, whole, whole)
    if "block condition" in contract.rules:
        _rule(boxes, contract.rules["block condition"])
    limits = {"grid": (1, MAX_GRID), "Shared": (0, gpu.max_shared), "Workspace": (1, SATURATED)}
    found = {"block": (boxes.names["block"], 1, MAX_BLOCK)}
    for rule, (least, most) in limits.items():
        if rule in contract.rules:
            value = boxes.value(contract.rules[rule].tree, whole, whole)
            found[rule] = value, least, most
    for value, least, most in found.values():
        _must(
            boxes,
            (value.low >= least) & (value.high <= most),
            (value.high < least) | (value.low > most),
        )
    refused = boxes.refused
    return Planned(~refused & ~boxes.open, refused, boxes.names)


def _possible(contract: Header, dtype: np.dtype, gpu: Gpu, start: Start) -> bool:
    """Whether the header takes any shape of a dtype on a GPU, with x and y starting so."""
    if dtype not in contract.dtypes or gpu.capability < contract.arch:
        return False
    return start.aligned or contract.align(dtype) <= dtype.itemsize


def _must(boxes: Boxes, holds: np.ndarray, fails: np.ndarray) -> None:
    boxes.refused |= fails & ~boxes.open
    boxes.open |= ~holds & ~fails & ~boxes.refused


def _rule(boxes: Boxes, rule: Expression) -> None:
    whole = np.ones(len(boxes.open), bool)
    value = boxes.value(rule.tree, whole, whole)
    _must(boxes, value.sure, value.never)


def _case(boxes: Boxes, cases) -> Interval:
    """The hull of the cases that may hold."""
    count = len(boxes.open)
    low, high = np.full(count, SATURATED), np.full(count, -SATURATED)
    sure = maybe = np.ones(count, bool)
    for value, when in cases:
        here_sure, here = sure, maybe
        if when is not None:
            holds = boxes.value(when.tree, sure, maybe)
            here_sure, here = sure & holds.sure, maybe & ~holds.never
            sure, maybe = sure & holds.never, maybe & ~holds.sure
        else:
            sure = maybe = np.zeros(count, bool)
        found = boxes.value(value.tree, here_sure, here)
        low = np.where(here, np.minimum(low, found.low), low)
        high = np.where(here, np.maximum(high, found.high), high)
    _must(boxes, ~maybe, sure)  # no case of the table
    low, high = np.where(high < low, 0, low), np.where(high < low, 0, high)
    return Interval(low, high)


# ---- ranges -------------------------------------------------------------------------------------


def _needed(
    asked: Asked, shapes: Shapes, dtype: np.dtype, gpu: Gpu, start: Start
) -> Iterator[Build]:
    """The builds that some shape of a range needs; of a range, a kernel may refuse some shapes.
    Raises `Refused` for too many."""
    pack = 16 // dtype.itemsize
    todo = _first_boxes(shapes, pack)
    found: dict[Build, None] = {}

    def open_boxes(boxes: np.ndarray) -> np.ndarray:
        """Which boxes have to be halved; the builds of the others are found."""
        names = _names(boxes, dtype, gpu, start, pack)
        left, again = np.ones(len(boxes), bool), np.zeros(len(boxes), bool)
        for step, when in _order(asked):
            some = np.flatnonzero(left & ~again)
            if not len(some):
                break
            part = {name: _at(value, some) for name, value in names.items()}
            plan = _ranked(_plan(load(step), part, dtype, gpu, start), when, part)
            file = file_of(step) if asked.best else step
            known = _add_builds(found, step, file, dtype, plan)
            left[some[known]] = False
            again[some[~known & ~plan.refused]] = True
        return again

    while len(todo):
        todo = todo[open_boxes(todo)]
        first_rows = todo.copy()
        first_rows[:, 1] = first_rows[:, 0]
        todo = _halved(todo, open_boxes(first_rows))
        if len(todo) > MOST_BOXES or len(found) > 4 * MOST_BUILDS:
            raise Refused(
                f"{shapes} needs more than {len(found)} builds, where {MOST_BUILDS} are the most "
                "in one file; ask for fewer shapes"
            )
    yield from found


def _order(asked: Asked) -> Iterator[tuple[str, Expression | None]]:
    """The kernels that may be taken, each with the condition for its place."""
    if asked.best:
        yield from ((rank.file, rank.when) for rank in RANKING)
    else:
        yield from ((step, None) for step in asked.kernels)


def _ranked(plan: Planned, when: Expression | None, names: Mapping[str, Interval]) -> Planned:
    """A plan of boxes, taken only where the condition for its place holds."""
    known = {**plan.names, **names}
    if when is None or not when.names <= {*known}:
        return plan
    whole = np.ones(len(plan.taken), bool)
    boxes = Boxes(known, ~whole, ~whole)
    holds = boxes.value(when.tree, whole, whole)
    return Planned(plan.taken & holds.sure, plan.refused | holds.never, plan.names)


def _add_builds(
    found: dict[Build, None], step: str, file: str, dtype: np.dtype, plan: Planned
) -> np.ndarray:
    """Add the builds of the boxes that have one; returns for which boxes all builds are found,
    those included of which several macros are open and every combination is there already."""
    macros = load(step).header.macros
    if not plan.taken.any():
        return plan.taken
    bounds = [b for name in macros for b in (plan.names[name].low, plan.names[name].high)]
    mixed = np.zeros(len(plan.taken), np.uint64)
    for bound in bounds:  # one number for a row of them is sorted much faster
        mixed = (mixed ^ bound.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    _, first, place = np.unique(mixed, return_index=True, return_inverse=True)
    pairs = np.array([bound[first] for bound in bounds]).reshape(len(macros), 2, len(first))
    pairs = np.moveaxis(pairs, 1, 2)
    known = np.zeros(pairs.shape[1], bool)
    taken = np.zeros(pairs.shape[1], bool)
    taken[place[plan.taken]] = True

    def build(values) -> Build:
        return Build(file, dtype, tuple(zip(macros, map(int, values), strict=True)))

    for number in np.flatnonzero(taken):
        if (pairs[:, number, 0] == pairs[:, number, 1]).all():
            found[build(pairs[:, number, 0])] = None
    for number in np.flatnonzero(taken):
        choices = [range(one, other + 1) for one, other in pairs[:, number].tolist()]
        if math.prod(map(len, choices)) <= MOST_BUILDS:
            known[number] = all(build(values) in found for values in itertools.product(*choices))
    return plan.taken & known[place]


def _first_boxes(shapes: Shapes, pack: int) -> np.ndarray:
    """A box for each remainder that columns leave: rows from, to, sixteens of columns from, to,
    remainder."""
    boxes = []
    for remainder in range(pack):
        first = -(-(shapes.cols.low - remainder) // pack)
        last = (shapes.cols.high - remainder) // pack
        if first <= last:
            boxes.append([shapes.rows.low, shapes.rows.high, first, last, remainder])
    return np.array(boxes, np.int64)


def _at(value: Interval, some: np.ndarray) -> Interval:
    remainder = value.remainder
    if isinstance(remainder, np.ndarray):
        remainder = remainder[some]
    return Interval(value.low[some], value.high[some], remainder, value.modulus)


def _names(
    todo: np.ndarray, dtype: np.dtype, gpu: Gpu, start: Start, pack: int
) -> dict[str, Interval]:
    """What a header may read, of boxes."""
    low, high, first, last, remainder = todo.T

    def always(number: int) -> Interval:
        value = np.full(len(low), number)
        return Interval(value, value)

    size = always(dtype.itemsize)
    cols = Interval(first * pack + remainder, last * pack + remainder, remainder, pack)
    names = {
        "rows": Interval(low, high),
        "cols": cols,
        "size": size,
        "row": _product(cols, size),
        "sms": always(gpu.sms),
        "l2": always(gpu.l2),
        "capability": always(gpu.capability),
    }
    for stride, gap in zip(("x_stride", "y_stride"), start.apart, strict=True):
        names[stride] = Interval(cols.low + gap, cols.high + gap, (remainder + gap) % pack, pack)
    follow = start.apart == (0, 0)
    whole = ((remainder * dtype.itemsize) % 16 == 0) & start.aligned & start.alike
    single = Interval(low, high).high == 1
    sure = whole & (follow | single)
    maybe = whole & (follow | (low == 1))
    names["packs"] = Interval(sure.astype(np.int64), maybe.astype(np.int64))
    names["alike"] = always(int(start.alike))
    return names


def _halved(boxes: np.ndarray, by_columns: np.ndarray) -> np.ndarray:
    """Each box as two: halved by its columns where even its first row is open, else by its rows."""
    low, high, first, last, _ = boxes.T
    rows = (high > low) & (~by_columns | (last == first))
    lower, upper = boxes.copy(), boxes.copy()
    middle = np.where(rows, (low + high) // 2, (first + last) // 2)
    lower[:, 1] = np.where(rows, middle, high)
    upper[:, 0] = np.where(rows, middle + 1, low)
    lower[:, 3] = np.where(rows, last, middle)
    upper[:, 2] = np.where(rows, first, middle + 1)
    return np.concatenate([lower, upper])
