"""The reduction of a block as it ran: which thread took which thread's value, level by level.

A trace does not contain what a thread computes, but which values it loads from shared memory and
takes by shuffles, and between which barriers. Values of other blocks are those of `life.messages`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from ...base.arguments import checked
from ...simt import Event, Trace, WatchedAccess
from ...simt.hardware import WARP, WORD
from ...simt.words import counted
from .accesses import find_block, in_order, pieces_of
from .style import (
    BLACK,
    BLUE,
    DARK,
    GREEN,
    GREY,
    LIT,
    PAGE,
    PALE,
    Box,
    canvas,
    finish,
    ink,
    rounded,
    words,
)

LEFT, RIGHT, TOP = 100, 552, 62  # pixels: of the columns
LETTER = 7.8  # pixels of width
MEETINGS = {"barrier leave": "barrier", "cluster leave": "cluster barrier"}
LABELS = {"shuffle": "shuffle", "shared": "shared memory"}
COLORS = {"shuffle": GREEN, "shared": BLUE}


@dataclass
class Level:
    """A level: threads take values of others concurrently."""

    kind: str  # "shuffle" or "shared"
    edges: frozenset[tuple[int, int]]  # (giving thread, taking thread)
    lines: set[int]  # source lines
    own: set[int] = field(default_factory=set)  # threads that load their own value
    times: int = 1  # number of consecutive repetitions
    offers: dict[int, np.ndarray] = field(default_factory=dict)  # thread -> bits
    to_all: bool = False  # the result is distributed to threads that lack it

    @property
    def targets(self) -> set[int]:
        return {target for _, target in self.edges}

    @property
    def keep(self) -> set[int]:
        """The threads that continue with their own value, in a register or loaded."""
        return self.own if self.kind != "shuffle" and self.own else self.targets


@dataclass
class Reduction:
    """The levels of a block, and its barriers by kind, in order; row r of the picture follows the
    r-th level."""

    parts: list[Level | str]
    values: dict[tuple[int, int], list[str]]  # (row, thread) -> value, if known
    threads: int

    @property
    def levels(self) -> list[Level]:
        return [part for part in self.parts if isinstance(part, Level)]


@checked
def reduction(trace: Trace, block: int = 0) -> None:
    """Show how the threads of a block merge their values: a column is a thread, a line leads from
    the thread that had a value to the thread that took it, through shared memory or by a shuffle,
    and barriers are lines across. Values that threads stored or offered are printed where there is
    space.

    The trace is one of `simulate(..., watch=True)`, `block` a number. Repetitions are drawn once.

    Raises `ValueError` for a block that the trace does not follow.
    """
    _draw(follow(trace, block), f"block {block}")


# ---- reading the trace --------------------------------------------------------------------------


@dataclass
class _Phase:
    """The activity of a warp between two barriers."""

    levels: list[Level] = field(default_factory=list)
    # For each store: number of earlier levels, thread, address, bits.
    stores: list[tuple[int, int, int, np.ndarray]] = field(default_factory=list)
    fresh: bool = False  # the next load belongs to another level


def follow(trace: Trace, block: int) -> Reduction:
    """Collect the levels of a block. Raises what `reduction` raises."""
    place = find_block(trace, block)
    writers: dict[tuple[str, int], set[int]] = {}  # piece of shared memory -> threads
    phases: dict[tuple[int, int], _Phase] = defaultdict(_Phase)  # by (number, warp)
    current: dict[int, int] = defaultdict(int)
    meetings: list[str] = []
    opening = False
    for event, accesses in in_order(trace):
        if event.block != place:
            continue
        if event.kind in MEETINGS:
            if not opening:
                meetings.append(MEETINGS[event.kind])
            current[event.warp] = len(meetings)
        opening = event.kind in MEETINGS
        phase = phases[current[event.warp], event.warp]
        if event.kind == "shuffle":
            _shuffle(phase, event)
        elif event.kind == "warp barrier":
            phase.fresh = True
        for one in accesses:
            if one.memory == "shared":
                _touch(phase, one, writers)
    return _in_rows(phases, meetings, trace.shape.threads)


def _shuffle(phase: _Phase, event: Event) -> None:
    first, lanes = event.warp * WARP, np.flatnonzero(event.mask).tolist()
    edges = {(first + int(event.sources[n]), first + n) for n in lanes if event.sources[n] != n}
    if edges:
        offers = {first + n: event.values[n : n + 1] for n in lanes}
        phase.levels.append(Level("shuffle", frozenset(edges), {event.line}, offers=offers))


def _touch(phase: _Phase, access: WatchedAccess, writers: dict[tuple[str, int], set[int]]) -> None:
    """Record the writer of a piece of memory, or the threads whose values a load takes."""
    edges, own = set(), set()
    for thread, pieces in pieces_of(access):
        if access.kind == "store":
            writers |= {piece: {thread} for piece in pieces}
            if access.values is not None and access.values.itemsize >= WORD:
                bits = access.values[thread % WARP].view(np.uint32)
                phase.stores.append((len(phase.levels), thread, pieces[0][1], bits))
        elif access.kind == "atomic":
            writers |= {piece: writers.get(piece, set()) | {thread} for piece in pieces}
        else:
            found = set().union(*(writers.get(piece, ()) for piece in pieces))
            edges |= {(writer, thread) for writer in found - {thread}}
            own |= found & {thread}
    phase.fresh |= access.kind == "store"
    if not edges and not own:
        return
    if not phase.levels or phase.levels[-1].kind != "shared" or phase.fresh:
        phase.levels.append(Level("shared", frozenset(), set()))
    last, phase.fresh = phase.levels[-1], False
    if edges and not last.edges:
        last.lines.clear()  # prefer the lines that take values from others
    if edges or not last.edges:
        last.lines.add(access.line)
    last.edges, last.own = last.edges | edges, last.own | own


def _folded(levels: list[Level]) -> tuple[list[Level], list[int]]:
    """(the levels with repetitions merged, position of each original level)."""
    kept: list[Level] = []
    where: list[int] = []
    keys = [(level.kind, level.edges, level.own) for level in levels]
    start = 0
    while start < len(levels):
        best = 1, 1  # number of levels, number of repetitions
        for length in range(1, (len(levels) - start) // 2 + 1):
            times = 1
            while (
                keys[start + times * length : start + (times + 1) * length]
                == keys[start : start + length]
            ):
                times += 1
            if times > 1 and times * length > best[0] * best[1]:
                best = length, times
        length, times = best
        for number, level in enumerate(levels[start : start + length]):
            same = levels[start + number : start + times * length : length]
            lines = set().union(*(one.lines for one in same))
            kept.append(Level(level.kind, level.edges, lines, level.own, times, level.offers))
        where += [len(kept) - length + number % length for number in range(length * times)]
        start += length * times
    return kept, where


def _in_rows(phases: dict[tuple[int, int], _Phase], meetings: list[str], threads: int) -> Reduction:
    """Merge the levels of the warps, phase by phase, and find the values."""
    parts: list[Level | str] = []
    held: dict[tuple[int, int], dict[int, np.ndarray]] = defaultdict(dict)
    last: dict[int, int] = defaultdict(int)  # the row in which a thread last took a value
    row = 0
    for number in range(len(meetings) + 1):
        ours = [phase for (which, _), phase in phases.items() if which == number]
        folded = [_folded(phase.levels) for phase in ours]
        depth = max((len(kept) for kept, _ in folded), default=0)
        for level in range(-1, depth):  # -1: before the first
            here = [kept[level] for kept, _ in folded if 0 <= level < len(kept)]
            joined = _joined(here, last) if here else None
            if joined and (joined.edges or level + 1 < depth):
                parts.append(joined)
                for thread, bits in joined.offers.items():
                    held[row, thread].setdefault(-1, bits)
                row += 1
                last |= dict.fromkeys(joined.targets | joined.keep, row)
            for phase, (_, where) in zip(ours, folded, strict=True):
                places = [-1, *where]
                for before, thread, word, bits in phase.stores:
                    if places[min(before, len(where))] == level:
                        held[last[thread], thread][word] = bits
        if number < len(meetings) and (parts or held):
            parts.append(meetings[number])
    return Reduction(parts, _written(held), threads)


def _joined(levels: list[Level], last: dict[int, int]) -> Level:
    """The same level of several warps as one."""
    kinds = [level.kind for level in levels]
    edges = frozenset().union(*(level.edges for level in levels))
    lines, own = (
        set().union(*sets) for sets in zip(*((x.lines, x.own) for x in levels), strict=True)
    )
    offers: dict[int, np.ndarray] = {}
    for level in levels:
        offers |= level.offers
    to_all = all(_gives_away(level, last) for level in levels)
    kind = max(kinds, key=kinds.count)
    return Level(kind, edges, lines, own, max(level.times for level in levels), offers, to_all)


def _gives_away(level: Level, last: dict[int, int]) -> bool:
    """Whether one thread distributes its merged value to others that lack it."""
    sources = {source for source, _ in level.edges}
    if len(sources) != 1:
        return False
    (source,) = sources
    latest = max(last[target] for target in level.targets)
    return last[source] > latest or last[source] == latest > 0 and len(level.targets) > 1


def _written(held: dict[tuple[int, int], dict[int, np.ndarray]]) -> dict[tuple, list[str]]:
    """Bits as numbers: floats, or integers if a float would be implausible."""
    kept = {
        key: np.concatenate(
            [bits for where, bits in sorted(some.items()) if where >= 0 or len(some) == 1]
        )
        for key, some in held.items()
    }
    raw = np.concatenate([*kept.values(), np.zeros(0, np.uint32)])
    integers = raw.any() and bool((raw < 1 << 23).all())

    def text(bits: np.uint32) -> str:
        if integers:
            return str(bits.view(np.int32))
        value = float(bits.view(np.float32))
        large = abs(value) >= 1e4
        return f"{value:.0e}" if large else f"{value:.{2 if abs(value) < 10 else 1}f}"

    return {key: [text(one) for one in some] for key, some in kept.items()}


# ---- drawing ------------------------------------------------------------------------------------


def _draw(found: Reduction, block: str) -> None:
    title = f"how {block} merges its values"
    pitch = (RIGHT - LEFT) / found.threads
    widest = max((len(text) for some in found.values.values() for text in some), default=0)
    values = found.values if widest * LETTER < pitch - 4 else {}
    tall = 15 * min(2, max(map(len, values.values()), default=0)) + 4 if values else 0
    step = tall + 34 if values else min(44, max(24, 300 // max(1, len(found.levels))))
    rows, lines = [TOP + tall / 2], []  # pixels from above
    y = rows[0] + tall / 2
    for part in found.parts:
        if isinstance(part, str):
            y += 12
            lines.append((y, part))
        else:
            y += step + 4 * (bool(lines) and lines[-1][0] == y)
            rows.append(y - tall / 2)
    axes = canvas(y + 16 + 30 * (not found.levels), title)

    def at(thread: int) -> float:
        return LEFT + (thread + 0.5) * pitch

    if values:
        offers = any(level.offers for level in found.levels)  # shuffles only
        note = "in a box: what the thread has stored" + ", or offers to others" * offers
        words(axes, PAGE - 10, 18, note, color=DARK, ha="right")
    _columns(axes, found.threads, at, rows[-1])
    for y, meeting in lines:
        axes.plot([LEFT - 6, RIGHT + 6], [y, y], color=BLACK, linewidth=1.3, zorder=3)
        words(axes, RIGHT + 14, y, meeting)
    dots = _lines(axes, found.levels, at, rows, pitch)
    if not found.levels:
        words(axes, LEFT, rows[0] + 28, "no value goes from one thread to another", color=DARK)
    _nodes(axes, dots, values, at, rows)
    _labels(axes, found.levels, rows, [y for y, _ in lines])
    finish(axes.figure, title, _sentence(found, block))


def _columns(axes, threads: int, at, bottom: float) -> None:
    """The thread indices at the top, and thin lines between warps."""
    words(axes, 10, TOP - 20, "thread", color=DARK)
    room = at(1) - at(0)
    wide = 12 + LETTER * len(str(threads - 1))
    every = next((n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if n * room > wide), 512)
    for thread in range(0, threads, every):
        words(axes, at(thread), TOP - 20, str(thread), color=DARK, ha="center")
    for thread in range(WARP, threads, WARP):
        x = (at(thread) + at(thread - 1)) / 2
        axes.plot([x, x], [TOP - 6, bottom + 4], color=PALE, linewidth=0.8, zorder=1)


def _lines(axes, levels: list[Level], at, rows: list[float], pitch: float) -> set[tuple[int, int]]:
    """Draw the transfers of values; returns the (row, thread) that hold one."""
    from matplotlib.collections import LineCollection

    last: dict[int, int] = defaultdict(int)
    dots: set[tuple[int, int]] = set()
    thick = 1.6 if pitch > 20 else 0.9 if pitch > 5 else 0.4
    for row, level in enumerate(levels, 1):
        last |= dict.fromkeys(level.offers, row - 1)
        dots |= {(row - 1, thread) for thread in level.offers}
        dots |= {(last[source], source) for source, _ in level.edges}
        dots |= {(last[thread], thread) for thread in level.keep}
        style = {"colors": COLORS[level.kind], "linewidths": thick, "zorder": 2}
        if level.to_all:
            style |= {"colors": GREY, "linestyles": (0, (2, 2)), "linewidths": min(thick, 1.2)}
        taken = [[(at(a), rows[last[a]]), (at(b), rows[row])] for a, b in sorted(level.edges)]
        kept = [[(at(b), rows[last[b]]), (at(b), rows[row])] for b in sorted(level.keep)]
        axes.add_collection(LineCollection(taken, **style))
        if not level.to_all:
            axes.add_collection(LineCollection(kept, **style, alpha=0.35))
        arrived = level.targets | (set() if level.to_all else level.keep)
        last |= dict.fromkeys(arrived, row)
        dots |= {(row, thread) for thread in arrived}
    return dots


def _labels(axes, levels: list[Level], rows: list[float], barriers: list[float]) -> None:
    """The kind of levels at their right, and their source lines at their left; once for equal
    levels without a barrier between them."""
    entries = []
    for row, level in enumerate(levels, 1):
        top = max([rows[row - 1], *(y for y in barriers if y < rows[row])])
        right = "to all" if level.to_all else LABELS[level.kind]
        if level.times > 1:
            right += f" × {level.times}"
        numbers = sorted(level.lines - {0})
        more = f", {numbers[1]}" if len(numbers) == 2 else " ..." if len(numbers) > 2 else ""
        left = f"line {numbers[0]}{more}" if numbers else ""
        color = DARK if level.to_all else COLORS[level.kind]
        key = right, left, color, sum(y < rows[row] for y in barriers)
        entries.append((key, top, rows[row]))
    for (right, left, color, _), same in groupby(entries, key=lambda entry: entry[0]):
        spans = [span for _, *span in same]
        top, bottom = spans[0][0], spans[-1][1]
        y = (top + bottom) / 2
        words(axes, RIGHT + 14, y, right, color=ink(color))
        words(axes, 10, y, left, color=DARK)
        if len(spans) > 1:
            xs = [RIGHT + 5, RIGHT + 8, RIGHT + 8, RIGHT + 5]
            axes.plot(xs, [top + 3, top + 3, bottom, bottom], color=color, linewidth=1)


def _nodes(axes, dots: Iterable[tuple[int, int]], values: dict, at, rows) -> None:
    """The values of threads: a box with a value, or a dot."""
    pitch = at(1) - at(0)
    empty = sorted(dot for dot in dots if dot not in values)
    size = min(5.5, max(1.2, 0.35 * pitch))
    style = {"color": BLUE, "linestyle": "", "markeredgewidth": 0, "zorder": 4}
    xs, ys = [at(thread) for _, thread in empty], [rows[row] for row, _ in empty]
    axes.plot(xs, ys, marker="o", markersize=size, **style)
    for (row, thread), texts in values.items():
        shown = texts[:2]
        wide = max(map(len, shown)) * LETTER + 8
        high = 15 * len(shown) + 4
        box = Box(at(thread) - wide / 2, rows[row] - high / 2, wide, high)
        rounded(axes, box, radius=3, edgecolor=BLUE, facecolor=LIT, linewidth=1, zorder=4)
        for place, text in enumerate(shown):
            y = rows[row] + (place - (len(shown) - 1) / 2) * 14.5
            words(axes, at(thread), y, text, ha="center", zorder=5)


# ---- the sentence -------------------------------------------------------------------------------


def _sentence(found: Reduction, block: str) -> str:
    levels = [level for level in found.levels if level.edges and not level.to_all]
    barriers = sum(isinstance(part, str) for part in found.parts)
    if not levels:
        return f"In {block} no thread takes the value of another thread of the block."
    taken = ", ".join(
        f"{len(level.edges)}{f' ({level.times} times)' * (level.times > 1)}" for level in levels
    )
    to_all = any(level.to_all for level in found.levels)
    last = "; then all threads read the result" if to_all else ""
    return (
        f"{counted(len(levels), 'level')} and {barriers} barrier{'s' * (barriers != 1)}; values "
        f"taken from other threads, level by level: {taken}{last}."
    )
