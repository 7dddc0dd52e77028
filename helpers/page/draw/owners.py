"""Which lane, warp or block loads which element of a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...base.arguments import checked
from ...simt import Trace
from ...simt.hardware import WARP
from ...simt.words import counted
from .accesses import block_number, check_followed, in_words
from .style import (
    BLACK,
    BLUE,
    DARK,
    GREEN,
    GREY,
    LIT,
    NAME,
    ORANGE,
    PALE,
    PINK,
    RED,
    SKY,
    YELLOW,
    Box,
    canvas,
    finish,
    ink_on,
    legend,
    rectangle,
    words,
)

COLUMNS, ROWS = 33, 16  # number of drawn cells: a cell has space for a lane number
LEFT, TOP, WIDTH = 66, 54, 606  # pixels: start and maximum width of the matrix
DIGIT = 8.2  # pixels of width
PACK = 16  # bytes: the widest access of a lane, aligned to as many
NO_OWNER = -1
UNITS = ("lane", "warp", "block")
HUES = (SKY, ORANGE, GREEN, PINK, YELLOW, BLUE, RED, GREY)
NARROW = ORANGE  # accesses narrower than others
ALONG = ("row", "column")
BORDER = {"color": BLACK, "linewidth": 1.8, "solid_capstyle": "projecting"}
ARROW = {"arrowstyle": "-|>", "color": BLUE, "linewidth": 2, "shrinkA": 0, "shrinkB": 0}


@dataclass(frozen=True)
class Owners:
    """Per element, as arrays of shape (rows, cols)."""

    block: np.ndarray  # linear index, or NO_OWNER
    thread: np.ndarray  # within its block
    several: np.ndarray  # bool: others load it too
    times: np.ndarray  # number of accesses
    width: np.ndarray  # bytes per access of a lane
    request: np.ndarray  # bool: covered by the request with the lowest address

    def unit(self, by: str) -> np.ndarray:
        """The index of each lane, warp or block in the launch; or NO_OWNER."""
        if by == "block":
            return self.block
        whole = self.block * 1024 + self.thread
        return np.where(self.block < 0, NO_OWNER, whole // WARP if by == "warp" else whole)

    def number(self, by: str) -> np.ndarray:
        """The index of the lane within its warp, or of the warp within its block."""
        return {"lane": self.thread % WARP, "warp": self.thread // WARP, "block": self.block}[by]


@checked
def owners(trace: Trace, by: str = "lane", along: str = "") -> None:
    """Show which lane, warp or block loads each element of x. Elements loaded by several are
    hatched; by lanes, the elements of one request are outlined. Where lanes load in different
    widths, narrow loads have a colour of their own, and ticks mark multiples of 16 bytes. `along`
    adds an arrow: the kernel reduces each "row" or "column".

    The trace is one of `simulate(..., watch=True)`. The last dimension of x is that of the columns;
    if it has three, rows are called lines. For a large matrix the first rows and columns are drawn;
    neighbours with one owner share a cell, unless a lane loads them in different widths.

    Raises `ValueError` for another `by` or `along`, and for a launch without an array x, or with an
    empty one.
    """
    for name, value, known in (("by", by, UNITS), ("along", along or "row", ALONG)):
        if value not in known:
            raise ValueError(f"{name} is {', '.join(map(repr, known))}, not {value!r}")
    found, x = _owners(trace, by), trace.arrays["x"]
    told = [found.unit(by), found.several]
    told += [found.width, found.request] if by == "lane" else []
    tall, wide = (_grain(told, *one) for one in ((0, ROWS), (1, COLUMNS)))

    def drawn(one: np.ndarray) -> np.ndarray:
        return one[::tall, ::wide][:ROWS, :COLUMNS]

    unit, several, *widths = map(drawn, told)
    number, packed = drawn(found.number(by)), drawn(found.width)
    roles = by == "lane" and len(np.unique(found.width[found.width > 0])) > 1
    cut = tall * ROWS < found.block.shape[0], wide * COLUMNS < found.block.shape[1]
    height = 26 if len(unit) <= 8 else 18
    title = f"which {by} loads each element of x"
    bottom = TOP + len(unit) * height
    axes = canvas(bottom + (20 if cut[0] or along == "row" else 6) + 28 * (by == "lane"), title)
    cell = Box(LEFT, TOP, min(WIDTH / unit.shape[1], 2.5 * height), height)
    narrow = roles & (packed < found.width.max())
    _cells(axes, cell, by, [unit, several, *widths[:1]], number, narrow, roles)
    names = "line" if len(x.shape) > 2 else "row"
    _frame(axes, cell, unit.shape, (tall, wide), cut, names)
    if by == "lane":
        _outline(axes, cell, widths[1])
        if roles:
            _ticks(axes, cell, unit.shape, wide, x)
        _arrow(axes, along, cell, unit.shape)
        keys = {"one request": {"edgecolor": BLACK}} if found.request.any() else {}
        if roles:
            keys["narrower than a pack: head and tail"] = {"facecolor": _tint(NARROW)}
            keys[f"tick: multiple of {PACK} bytes"] = {}
        keys |= {f"arrow: reduced along a {along}": {}} if along else {}
        legend(axes, LEFT, axes.get_ylim()[0] - 14, keys)
    finish(axes.figure, title, _sentence(found, by, along, names))


def _owners(trace: Trace, by: str) -> Owners:
    """Collect the loads of x; an owner is a lane, a warp or a block."""
    if "x" not in trace.arrays:
        known = ", ".join(trace.arrays) or "none"
        raise ValueError(f"the launch had no array x; its arrays: {known}")
    check_followed(trace)
    x = trace.arrays["x"]
    if not x.elements:
        raise ValueError("x is empty")
    shape = x.elements // x.shape[-1], x.shape[-1]
    count, size = x.elements, x.dtype.itemsize
    block, thread = np.full(count, NO_OWNER), np.zeros(count, np.int64)
    times, width = np.zeros((2, count), np.int64)
    several, request = np.zeros((2, count), bool)
    ours = [
        one
        for one in trace.accesses
        if (one.memory, one.array, one.kind) == ("global", "x", "load") and one.mask.any()
    ]
    first_request = min(ours, key=lambda one: one.offsets[one.mask].min(), default=None)
    for one in ours:
        per_lane = max(1, one.width // size)
        first = x.numbers(one.offsets[one.mask])
        places = first[:, None] + np.arange(per_lane)
        threads = np.broadcast_to(
            one.warp * WARP + np.flatnonzero(one.mask)[:, None], places.shape
        ).reshape(-1)
        places = places.reshape(-1)
        inside = (places >= 0) & (places < count)
        places, threads = places[inside], threads[inside]
        np.add.at(times, places, 1)
        request[places] |= one is first_request
        number = block_number(trace, one.block)
        free = block[places] == NO_OWNER
        block[places[free]], thread[places[free]] = number, threads[free]
        width[places[free]] = one.width
        others = block[places] != number
        if by != "block":
            unit = WARP if by == "warp" else 1
            others |= thread[places] // unit != threads // unit
        several[places[others]] = True
    flat = block, thread, several, times, width, request
    return Owners(*(one.reshape(shape) for one in flat))


def _grain(told: Sequence[np.ndarray], axis: int, room: int) -> int:
    """The number of rows (axis 0) or columns that share a cell: as many as necessary, if they are
    equal in everything that is drawn."""
    grain, length = 1, told[0].shape[axis]
    while grain * room < length and length % (2 * grain) == 0:
        starts = np.arange(length) // (2 * grain) * (2 * grain)
        if any((one != one.take(starts, axis)).any() for one in told):
            break
        grain *= 2
    return grain


# ---- drawing ------------------------------------------------------------------------------------


def _cells(axes, cell: Box, by: str, told, number, narrow, roles: bool) -> None:
    """Draw a box around neighbours in a row that are equal in what is `told`: the owner, whether it
    has several, and the width."""
    unit, several, *_ = told
    owners = np.unique(number[unit != NO_OWNER]).tolist()
    few = not roles and (by != "lane" or len(owners) <= len(HUES))
    digits = max((len(str(owner)) for owner in owners), default=0)
    for row in range(len(unit)):
        changes = np.any([np.diff(one[row].astype(int)) != 0 for one in told], axis=0)
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), unit.shape[1]]
        for left, right in pairwise(edges):
            x, y = LEFT + left * cell.width, TOP + row * cell.height
            box = Box(x, y, (right - left) * cell.width, cell.height)
            if unit[row, left] == NO_OWNER:
                rectangle(axes, box, "white", PALE, 0.8)
                continue
            owner, shared = int(number[row, left]), bool(several[row, left])
            color = _color(owner, few, bool(narrow[row, left]))
            rectangle(axes, box, color, "white", 1)
            if shared:
                rectangle(axes, box, "none", GREY, hatch="////")
            fits = box.width > digits * DIGIT + 4
            if fits or (owner % 4 == 0 and box.width > len(str(owner)) * DIGIT):
                look = {"color": ink_on(color), "fontweight": "bold" if shared else "normal"}
                words(axes, x + box.width / 2, box.middle, str(owner), ha="center", **look)


def _color(owner: int, few: bool, narrow: bool) -> tuple[float, ...]:
    """A tint of a hue for each of few owners, or of the role of their accesses; otherwise from pale
    to blue. Black is legible on all of them."""
    from matplotlib.colors import to_rgb

    if few or narrow:
        return _tint(HUES[owner % len(HUES)] if few else NARROW)
    share = owner % WARP / (WARP - 1)
    return tuple(a + (b - a) * share for a, b in zip(to_rgb(LIT), to_rgb(SKY), strict=True))


def _tint(hue: str) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return tuple(1 - 0.65 * (1 - part) for part in to_rgb(hue))


def _frame(axes, cell: Box, shape, grain: tuple[int, int], cut, names: str) -> None:
    """Indices of rows and columns, and dots if more follow."""
    rows, cols = shape
    words(axes, 10, TOP - 9, "column", color=DARK)
    words(axes, 10, TOP + cell.height / 2, names, color=DARK)
    every = next(step for step in (1, 2, 4, 8, 16, 32) if step * cell.width > 40)
    for col in range(0, cols, every):
        label = str(col * grain[1])
        words(axes, LEFT + (col + 0.5) * cell.width, TOP - 9, label, color=DARK, ha="center")
    for row in range(rows):
        label = str(row * grain[0])
        words(axes, LEFT - 8, TOP + (row + 0.5) * cell.height, label, color=DARK, ha="right")
    if cut[0]:
        words(axes, LEFT - 8, TOP + rows * cell.height + 10, "⋮", NAME, color=DARK, ha="right")
    if cut[1]:
        words(axes, LEFT + cols * cell.width + 6, TOP + cell.height / 2, "…", NAME, color=DARK)


def _outline(axes, cell: Box, inside: np.ndarray) -> None:
    """Draw the border of the cells that are `inside`."""
    x = LEFT + np.arange(inside.shape[1] + 1) * cell.width
    y = TOP + np.arange(inside.shape[0] + 1) * cell.height
    padded = np.pad(inside, 1)
    for row, col in np.argwhere(padded[:-1, 1:-1] != padded[1:, 1:-1]).tolist():
        axes.plot([x[col], x[col + 1]], [y[row]] * 2, **BORDER)
    for row, col in np.argwhere(padded[1:-1, :-1] != padded[1:-1, 1:]).tolist():
        axes.plot([x[col]] * 2, [y[row], y[row + 1]], **BORDER)


def _ticks(axes, cell: Box, shape, grain: int, x) -> None:
    """Mark the multiples of 16 bytes in each row."""
    size, cols = x.dtype.itemsize, x.shape[-1]
    for row in range(shape[0]):
        for col in range(shape[1] + 1):
            if (row * cols + col * grain) * size % PACK == 0:
                across, down = LEFT + col * cell.width, TOP + (row + 1) * cell.height
                axes.plot([across] * 2, [down - 7, down], color=BLACK, linewidth=1.4)


def _arrow(axes, along: str, cell: Box, shape) -> None:
    """Draw the direction of the reduction, below the cells or to the right of them."""
    right, bottom = LEFT + shape[1] * cell.width, TOP + shape[0] * cell.height
    if along == "row":
        axes.annotate("", (right, bottom + 11), (LEFT, bottom + 11), arrowprops=ARROW)
    if along == "column":
        axes.annotate("", (right + 12, bottom), (right + 12, TOP), arrowprops=ARROW)


# ---- the sentence -------------------------------------------------------------------------------


def _sentence(found: Owners, by: str, along: str, names: str) -> str:
    unit = found.unit(by)
    if (unit == NO_OWNER).all():
        return "No thread loads an element of x."
    row, col = (int(one) for one in np.argwhere(unit != NO_OWNER)[0])
    mine = np.flatnonzero(unit[row] == unit[row, col])
    name = f"{by.capitalize()} {found.number(by)[row, col]}"
    if by == "lane" and (found.thread >= WARP).any():
        name += f" of warp {found.thread[row, col] // WARP}"
    columns = f"column{'s' * (len(mine) > 1)} {in_words(mine)}"
    parts = [f"{name} loads {columns} of {names} {row}"]
    parts.append(f"a {along or 'row'} is loaded by {_owner_of_line(found, along == 'column')}")
    if several := int(found.several.sum()):
        parts.append(f"{several} of {unit.size} elements belong to more than one {by}")
    if missing := int((found.times == 0).sum()):
        are = "elements of x are" if missing > 1 else "element of x is"
        parts.append(f"{missing} {are} loaded by no thread")
    elif found.times.min() == found.times.max() > 1:
        parts.append(f"each element is loaded {found.times.max()} times")
    return "; ".join(parts) + "."


def _owner_of_line(found: Owners, columns: bool) -> str:
    """The owners of a row, or of a column, in words: the largest unit of which it has several."""
    for by, owner in (("block", ""), ("warp", " of one block"), ("lane", " of one warp")):
        unit = found.unit(by).T if columns else found.unit(by)
        counts = {len(np.unique(line[line != NO_OWNER])) for line in unit}
        if max(counts) > 1 or by == "lane":
            return f"{'at most ' * (len(counts) > 1)}{counted(max(counts), by)}{owner}"
