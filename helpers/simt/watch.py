"""What a trace keeps for pictures: the addresses of chosen source lines, and the life of blocks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from .geometry import Batch, Place, Shape, unravel
from .hardware import SECTOR, WARP
from .instructions import Instruction

RECORDS = 100_000  # of either kind; some 60 MB


@dataclass(frozen=True, eq=False)
class WatchedAccess:
    """One access of one warp, or of those of its lanes that reach the same array or block.

    An asynchronous copy is a load of its source and a store to its target, when it begins.
    """

    step: int  # instructions, branches aside, that the warp had executed before
    line: int
    kind: str  # "load", "store" or "atomic"
    memory: str  # "global", "shared", "local", or "remote": shared memory of another block
    block: Place
    warp: int  # of the block
    mask: np.ndarray  # bool, (32,): the lanes
    array: str  # of global memory: its name, "" if there is none
    offsets: np.ndarray  # int64, (32,), bytes: from the array's first, or within the memory; or 0
    width: int  # bytes of each lane
    start: int = 0  # bytes by which the array starts past a multiple of 256
    owner: Place | None = None  # of remote memory: the block
    # What was loaded or stored, as bits: unsigned integers, (32, elements of a lane); of an atomic
    # what was there before. None for copies, and where the kernel throws it away.
    values: np.ndarray | None = None

    @property
    def sectors(self) -> int:
        """How many sectors of 32 bytes the lanes touch."""
        first = self.offsets[self.mask] + self.start
        pieces = first[:, None] + np.arange(0, self.width, min(self.width, SECTOR))
        return len(np.unique(np.r_[pieces.reshape(-1), first + self.width - 1] // SECTOR))


@dataclass(frozen=True, eq=False)
class Event:
    """Something that a warp did: it loaded or stored, met others, or ended.

    `kind` is "load shared" (store, atomic; global, local, generic), "copy" (asynchronous),
    "shuffle", "vote", "match", "reduce", "elect", "warp barrier", "barrier arrive" and "barrier
    leave" (of the block), "cluster arrive", "cluster wait" and "cluster leave", "mbarrier", "end".
    """

    step: int  # instructions, branches aside, that the warp had executed before
    block: Place
    warp: int
    line: int  # 0 for code of another file
    kind: str
    mask: np.ndarray  # bool, (32,): the lanes
    sources: np.ndarray | None = None  # of a shuffle, int64, (32,): the lane that each lane reads
    values: np.ndarray | None = None  # of a shuffle, uint32, (32,): the bits that each lane offers


class Watch:
    """Collects records of the warps of `only_blocks` (all if it is empty), which are linear
    numbers or (x, y, z): accesses by `lines` of `file`, or by all its lines if that is True, and
    events if `follow`.

    Raises `ValueError` for a block outside the grid, and past `RECORDS` records of a kind.
    """

    def __init__(
        self,
        shape: Shape,
        file: str,
        lines: Collection[int] | bool = (),
        follow: bool = False,
        only_blocks: Collection[int | Place] = (),
    ):
        self.file, self.follow, self.every = file, follow, lines is True
        self.lines = frozenset(() if isinstance(lines, bool) else lines)
        self.on = bool(lines) or follow
        self.accesses: list[WatchedAccess] = []
        self.events: list[Event] = []
        self.only = {_place(block, shape) for block in only_blocks}

    def start_batch(self, batch: Batch) -> None:
        if not self.on:
            return
        self.batch = batch
        self.steps = np.zeros(batch.slots // WARP, np.int64)
        places = [batch.place(block * batch.padded)[0] for block in range(batch.count)]
        chosen = [not self.only or place in self.only for place in places]
        self.chosen = np.repeat(chosen, batch.padded // WARP)

    def line_of(self, instruction: Instruction) -> int:
        return instruction.line if instruction.file == self.file else 0

    def watches(self, instruction: Instruction) -> bool:
        line = self.line_of(instruction)
        return line in self.lines or self.every and line > 0

    def event(
        self, kind: str, instruction: Instruction, mask: np.ndarray, *shuffled: np.ndarray
    ) -> None:
        """These threads did something; `shuffled` are a shuffle's source lanes and values."""
        if not self.follow:
            return
        by_warp = mask.reshape(-1, WARP)
        for warp in np.flatnonzero(by_warp.any(axis=1) & self.chosen).tolist():
            place = self.where(warp)
            step, line = int(self.steps[warp]), self.line_of(instruction)
            extra = (one.reshape(-1, WARP)[warp].copy() for one in shuffled)
            event = Event(step, *place, line, kind, by_warp[warp].copy(), *extra)
            self._keep(self.events, event)

    def where(self, warp: int) -> tuple[Place, int]:
        """(block, warp of the block) of a warp of the batch."""
        block, _ = self.batch.place(warp * WARP)
        return block, warp % (self.batch.padded // WARP)

    def access(self, access: WatchedAccess) -> None:
        self._keep(self.accesses, access)

    def _keep(self, records: list, record: WatchedAccess | Event) -> None:
        if len(records) == RECORDS:
            raise ValueError(
                f"more than {RECORDS} records for pictures: take fewer rows or columns, name some "
                "blocks in only_blocks=(0, 1), say, or some lines in watch=(30,)"
            )
        records.append(record)


def _place(block: int | Place, shape: Shape) -> Place:
    place = unravel(block, shape.grid) if isinstance(block, int) else tuple(block)
    if len(place) != 3 or not all(0 <= n < size for n, size in zip(place, shape.grid, strict=True)):
        raise ValueError(f"there is no block {block} in a grid of {shape.grid}")
    return place
