"""Walk through a trace in the order of the run; select an access of it, and compute its cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...simt import Event, Trace, WatchedAccess
from ...simt.geometry import Place, unravel
from ...simt.hardware import BANKS, SECTOR, WARP, WORD
from ...simt.words import counted

PIECE = 2  # bytes of memory that are followed as one


def in_order(trace: Trace) -> Iterator[tuple[Event, list[WatchedAccess]]]:
    """Each event with its accesses; a barrier does not count as a step."""
    accesses: dict[tuple[Place, int, int], list[WatchedAccess]] = defaultdict(list)
    for one in trace.accesses:
        accesses[one.block, one.warp, one.step].append(one)
    for event in trace.events:
        touches = event.kind.partition(" ")[0] in ("load", "store", "atomic", "copy")
        key = event.block, event.warp, event.step
        yield event, accesses.get(key, []) if touches else []


def shared_arrays(trace: Trace) -> set[str]:
    """The arrays in global memory that are written and read: what blocks may talk through."""
    seen = {(one.kind, one.array) for one in trace.accesses if one.memory == "global"}
    loaded, stored = ({array for kind, array in seen if kind == what} for what in ("load", "store"))
    return (loaded & stored) | {array for kind, array in seen if kind == "atomic"}


def pieces_of(access: WatchedAccess) -> Iterator[tuple[int, list[tuple[str, int]]]]:
    """(thread, the pieces of memory that it reaches, of two bytes each)."""
    space = f"global {access.array}" if access.memory == "global" else "shared"
    for lane in np.flatnonzero(access.mask).tolist():
        first = int(access.offsets[lane])
        pieces = range(first // PIECE, (first + max(access.width, PIECE)) // PIECE)
        yield access.warp * WARP + lane, [(space, piece) for piece in pieces]


def check_followed(trace: Trace) -> None:
    """Raise `ValueError` for a trace that follows no block."""
    if not trace.events:
        raise ValueError("the trace follows no block: simulate(..., watch=True) keeps what they do")


def find_block(trace: Trace, block: int) -> Place:
    """(x, y, z) of a block by its number.

    Raises `ValueError` for a trace that follows no block, or not this one."""
    check_followed(trace)
    place = unravel(block, trace.shape.grid)
    if all(event.block != place for event in trace.events):
        raise ValueError(f"the trace does not follow block {block}")
    return place


def in_words(numbers: np.ndarray | list[int]) -> str:
    """Rising numbers as "0, 32, 64, ..." or "0 to 3 and 128 to 131"."""
    starts = np.flatnonzero(np.r_[True, np.diff(numbers) != 1])
    ends = np.r_[starts[1:], len(numbers)] - 1
    runs = [
        str(numbers[a]) if a == b else f"{numbers[a]} to {numbers[b]}"
        for a, b in zip(starts[:3], ends[:3], strict=True)
    ]
    if len(starts) > 3:
        return ", ".join([*runs, "..."])
    return " and ".join([", ".join(runs[:-1]), runs[-1]] if len(runs) > 1 else runs)


Traces = Trace | Mapping[str, Trace]
Line = int | str | Sequence[int | str]
Turn = dict[int, list[int]]  # first bank of a served word -> lanes that receive it


# ---- one access ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """An access in a figure, and its origin."""

    label: str  # "" if it is the only trace
    trace: Trace
    access: WatchedAccess

    @property
    def name(self) -> str:
        return f"{self.label or self.trace.file}, line {self.access.line}"

    @property
    def code(self) -> str:
        return self.trace.own_lines()[self.access.line].strip()

    @property
    def block(self) -> int:
        return block_number(self.trace, self.access.block)

    @property
    def lanes(self) -> int:
        """The number of active lanes."""
        return int(self.access.mask.sum())

    # ---- of global memory ----

    @property
    def sectors(self) -> int:
        return self.access.sectors

    @cached_property
    def used(self) -> int:
        """Bytes requested by lanes, each counted once."""
        first = self.access.offsets[self.access.mask]
        return len(np.unique(first[:, None] + np.arange(self.access.width)))

    @property
    def moved(self) -> int:
        """Bytes of the touched sectors."""
        return self.sectors * SECTOR

    @property
    def wasteful(self) -> bool:
        """Whether fewer sectors could hold the requested bytes."""
        return self.sectors > -(-self.lanes * self.access.width // SECTOR)

    # ---- of shared memory ----

    @property
    def lanes_at_once(self) -> int:
        """Lanes that are served together: 32, or 16 and 8 of them for accesses of 8 and 16 bytes;
        twice as many where pairs of lanes load from one address."""
        words = max(1, self.access.width // WORD)
        pairs, active = self.access.offsets.reshape(-1, 2), self.access.mask.reshape(-1, 2)
        alike = (pairs[:, 0] == pairs[:, 1]) | ~active.all(axis=1)
        return (
            WARP // words * (2 if self.access.kind == "load" and words > 1 and alike.all() else 1)
        )

    @cached_property
    def groups(self) -> list[list[Turn]]:
        """The turns (wavefronts) of each group of lanes that is served together.

        In each, a bank serves one word to all lanes that request it; a lane receives the words of
        several banks together. Groups without an active lane need no wavefront.
        """
        access, groups = self.access, []
        for start in range(0, WARP, self.lanes_at_once):
            turns: list[Turn] = []
            wanted: dict[int, list[int]] = {}  # per bank: its words in the order of the lanes
            group = np.flatnonzero(access.mask[start : start + self.lanes_at_once]) + start
            for lane in group.tolist():
                word = int(access.offsets[lane]) // WORD
                words = wanted.setdefault(word % BANKS, [])
                if word not in words:
                    words.append(word)
                turn = words.index(word)
                if turn == len(turns):
                    turns.append({})
                turns[turn].setdefault(word % BANKS, []).append(lane)
            if turns:
                groups.append(turns)
        return groups

    @property
    def turns(self) -> list[Turn]:
        return [turn for group in self.groups for turn in group]


def block_number(trace: Trace, block: Place) -> int:
    """The linear index of a block."""
    (x, y, z), (wide, high, _) = block, trace.shape.grid
    return x + wide * (y + high * z)


# ---- choosing -----------------------------------------------------------------------------------


def labelled(trace: Traces) -> list[tuple[str, Trace]]:
    """(label, trace) pairs of one trace, whose label is "", or of several."""
    if isinstance(trace, Trace):
        return [("", trace)]
    if not isinstance(trace, Mapping):
        raise TypeError(
            f"not a trace but {type(trace).__name__}: simulate(..., watch=True) gives one"
        )
    if not trace:
        raise ValueError("no trace to draw: {label: trace} is empty")
    for label, one in trace.items():
        if not isinstance(one, Trace):
            raise TypeError(f"{label!r} is no trace but {type(one).__name__}")
    return [*trace.items()]


def chosen(
    trace: Traces, memory: str, line: Line, block: int = 0, nth: int = 0, kind: str | None = None
) -> list[Shown]:
    """The access of each trace to "global" or "shared" memory that `memory.sectors` selects.

    Raises `TypeError` for anything but a trace, and `ValueError` that lists the alternatives.
    """
    traces = labelled(trace)
    lines = [line] * len(traces) if isinstance(line, int | str) else [*line]
    if len(lines) != len(traces):
        raise ValueError(f"{counted(len(lines), 'line')} for {counted(len(traces), 'trace')}")
    return [
        Shown(label, one, _access(one, memory, wanted, block, nth, kind))
        for (label, one), wanted in zip(traces, lines, strict=True)
    ]


def _access(
    trace: Trace, memory: str, line: int | str, block: int, nth: int, kind: str | None
) -> WatchedAccess:
    if not trace.accesses:
        raise ValueError(f"the trace of {trace.file} kept no accesses: simulate(..., watch=True)")
    reached = [one for one in trace.accesses if one.memory == memory]
    number = _line_number(trace, line, sorted({one.line for one in reached}), memory)
    here = [one for one in reached if one.line == number]
    place = f"line {number} of {trace.file}"
    of_block = [one for one in here if block_number(trace, one.block) == block]
    if not of_block:
        there = sorted({block_number(trace, one.block) for one in here})
        some = ", ".join(map(str, there[:4]))
        raise ValueError(f"block {block} does not reach {place}; {len(there)} do: {some}")
    warp = min(one.warp for one in of_block)
    ours = [one for one in of_block if one.warp == warp]
    kinds = [*dict.fromkeys(one.kind for one in ours)]
    kind = kind or kinds[0]
    if kind not in kinds:
        known = " or ".join(map(repr, kinds))
        raise ValueError(f"{place} has no {kind} of {memory} memory: kind is {known}")
    ours = [one for one in ours if one.kind == kind]
    if not -len(ours) <= nth < len(ours):
        raise ValueError(
            f"warp {warp} of block {block} has {counted(len(ours), kind)} in {place}, so nth goes "
            f"from 0 to {len(ours) - 1}"
        )
    return ours[nth]


def _line_number(trace: Trace, line: int | str, there: Sequence[int], memory: str) -> int:
    """The line selected by a number or a piece of text, among those that access this memory."""
    text = trace.own_lines()
    found = [line] * (line in there)
    if isinstance(line, str):
        piece = "".join(line.split())
        holds = {number for number in text if piece and piece in "".join(text[number].split())}
        found = [number for number in there if number in holds]
        found = found or [number for number in there if trace.callers(number) & holds]
    if len(found) == 1:
        return found[0]
    lines = f"of {trace.file} that reach {memory} memory"
    says = f"{line!r} is in none of the lines {lines}; these do:"
    if found:
        says = f"{line!r} is in {len(found)} lines {lines}; give more of its text, or its number:"
    listed = "".join(f"\n{number:5}: {text[number].strip()}" for number in found or there)
    raise ValueError(f"{says}{listed or ' none'}")
