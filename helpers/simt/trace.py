"""What a launch on the machine leaves behind; for pictures also the addresses of chosen source
lines, and the life of blocks.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import numpy as np

from .findings import Findings
from .geometry import Batch, Place, Shape, unravel
from .hardware import NSIGHT_METRICS, OF_PTX, SECTOR, SHARED_METRICS, WARP, Counters, Standing
from .instructions import Instruction
from .places import lines_of, own_file

# ---- what is kept for pictures ------------------------------------------------------------------


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
            self.keep(self.events, event)

    def where(self, warp: int) -> tuple[Place, int]:
        """(block, warp of the block) of a warp of the batch."""
        block, _ = self.batch.place(warp * WARP)
        return block, warp % (self.batch.padded // WARP)

    def keep(self, records: list, record: WatchedAccess | Event) -> None:
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


# ---- the trace ----------------------------------------------------------------------------------


# Of an instruction and of the call that it was inlined at: number of the file, line.
INLINED = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s[^\n]*inlined_at\s+(\d+)\s+(\d+)")
FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')


class Array(NamedTuple):
    """Of an argument, what a picture needs to know."""

    shape: tuple[int, ...]
    dtype: np.dtype
    apart: int = 0  # bytes from one row to the next, where these do not follow each other

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def numbers(self, offsets: np.ndarray) -> np.ndarray:
        """Which elements, counted row by row, stand so many bytes behind the first."""
        if not self.apart:
            return offsets // self.dtype.itemsize
        row, byte = np.divmod(offsets, self.apart)
        return row * self.shape[1] + byte // self.dtype.itemsize


@dataclass(repr=False)
class Trace:
    """What one launch did; printed, it is its report and findings."""

    counters: Counters  # of the whole launch
    lines: dict[tuple[str, int], Counters]  # the same per (file, source line)
    findings: Findings
    ptx: str
    code: str
    shape: Shape  # of the launch: grid, block, cluster
    arrays: dict[str, Array]  # the arguments that are some, by name
    accesses: list[WatchedAccess] = field(default_factory=list)  # of the watched lines, as they ran
    events: list[Event] = field(default_factory=list)  # of the followed blocks, as they ran
    printed: str = ""  # by printf, block after block
    # How many requests more the hardware may make, per (file, source line), of the lines whose
    # loops ptxas may unroll: see analysis.py.
    more: dict[tuple[str, int], int] = field(default_factory=dict)
    # Lines of shared memory that the assembler may predicate: there may be more requests too.
    predicated: frozenset[tuple[str, int]] = frozenset()

    def __repr__(self) -> str:
        printed = ["printed:\n" + self.printed.rstrip("\n")] if self.printed else []
        found = [str(self.findings)] if self.findings else []
        return "\n".join([self.report(), *printed, *found])

    @property
    def file(self) -> str:
        """The name of the kernel's file, or "kernel.cu" for a text without one."""
        return own_file(self.code).rpartition("/")[2]

    def own_lines(self) -> dict[int, str]:
        """The lines of the kernel's own text by number, as findings cite them."""
        return lines_of(self.code)[own_file(self.code)]

    def callers(self, number: int) -> set[int]:
        """The lines of the kernel's own text that a line of an inlined function was called from.

        Which of the two an instruction counts for is up to the compiler: NVRTC 13.5 gives a load
        that returns a struct to the line of the call, 13.0 to the line of the load.
        """
        found, wanted = set(), {str(number)}
        own = {one for one, name in FILE.findall(self.ptx) if name.endswith(self.file)}
        places = set(INLINED.findall(self.ptx))
        inlined = {(line, at) for one, line, there, at in places if {one, there} <= own}
        while wanted := {at for line, at in inlined if line in wanted} - found:
            found |= wanted
        return {int(at) for at in found}

    def own_counters(self) -> dict[int, Counters]:
        """Counters of the lines of the kernel's own text, in order."""
        own = own_file(self.code)
        return {
            number: self.lines[name, number]
            for name, number in sorted(self.lines)
            if name == own and number
        }

    def standing(self) -> dict[str, Standing]:
        """Of each counter that is not 0, how it stands to the hardware's."""
        return {name: self._standing(name) for name, count in vars(self.counters).items() if count}

    def _standing(self, name: str) -> Standing:
        if name in OF_PTX:
            return Standing("of PTX")
        if name.endswith("_bytes"):  # what lanes ask for
            return Standing("exact")
        if name not in NSIGHT_METRICS and name not in SHARED_METRICS:
            return Standing("not compared")
        counted = {place for place, one in self.lines.items() if vars(one)[name]}
        requests = name.endswith("_requests")
        if requests and name in SHARED_METRICS and counted & self.predicated:
            return Standing("at least")
        if more := sum(self.more.get(place, 0) for place in counted):
            return Standing("bounded", more) if requests else Standing("approximate")
        return Standing("exact")

    def _stands(self) -> list[str]:
        """`standing` in sentences, of what the report shows."""
        words = {"exact": [], "bounded": [], "at least": [], "approximate": []}
        for name, one in self.standing().items():
            if one.word in words and not name.endswith("_bytes"):
                more = f" (up to {one.more} more)" if one.word == "bounded" else ""
                words[one.word].append(name.replace("_", " ") + more)
        said = {word.replace("least", "least so many"): names for word, names in words.items()}
        parts = "; ".join(f"{word}: {', '.join(names)}" for word, names in said.items() if names)
        return [f"beside Nsight Compute on an H200, {parts}"] if parts else []

    def report(self) -> str:
        """The source lines that access memory with their counters, and a total.

        Global memory in sectors, shared memory in wavefronts. Lines of a header that the kernel
        includes are left out.
        """
        rows = self._table("sectors", "load", "store")
        if self.counters.shared_load_requests or self.counters.shared_store_requests:
            rows += self._table("wavefronts", "shared_load", "shared_store")
        count = len(self.findings)
        rows[-1] += f"; {count or 'no'} finding{'' if count == 1 else 's'}"
        own = own_file(self.code)
        more = [(line, most) for (file, line), most in sorted(self.more.items()) if file == own]
        if more:
            listed = ", ".join(f"line {line} up to {most}" for line, most in more)
            rows.append(
                "requests more on the hardware, if ptxas unrolls a loop that lanes of a warp leave "
                f"one after another: {listed}"
            )
        rows += self._stands()
        return "\n".join(rows)

    def _table(self, unit: str, load: str, store: str) -> list[str]:
        own, text = own_file(self.code), self.own_lines()
        rows = [f"{'line':>4} {'requests':>9} {unit:>10} {'per request':>11}  source"]
        for (file, number), counters in sorted(self.lines.items(), key=lambda item: item[0][1]):
            counted = vars(counters)
            requests = counted[f"{load}_requests"] + counted[f"{store}_requests"]
            if requests and file == own and number in text:
                pieces = counted[f"{load}_{unit}"] + counted[f"{store}_{unit}"]
                rows.append(
                    f"{number:4} {requests:9} {pieces:10} {pieces / requests:11.2f}  "
                    f"{text[number].strip()}"
                )
        total = vars(self.counters)
        rows.append(
            "; ".join(
                f"{name.replace('_', ' ')}s: {total[f'{name}_requests']} requests, "
                f"{total[f'{name}_{unit}']} {unit}"
                for name in (load, store)
            )
        )
        return rows
