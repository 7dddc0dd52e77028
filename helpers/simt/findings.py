"""Bugs that a run showed, one entry per kind and source line; and undefined values, followed
through registers and memory until one is used.

A compiler loads early and more than it needs, and discards the rest: such a load is not a bug. So a
load of uninitialised memory, or of memory that another thread writes meanwhile, calls `doubt(...)`
and continues. Its undefined bits and where they come from stand beside the register that
it fills; spreading.py passes them on with each instruction. They become a finding, at the line of
the load, where a value is used: stored where others see it, as an address, or to decide a branch.

While no load is in doubt nothing stands beside any register, and instructions run as if this
module were not there; the first doubt calls `begin`, by which the scheduler changes them for those
that pass bits on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .geometry import Batch, Lanes, Place
from .instructions import UNSIGNED, Instruction, PtxKernel, type_size
from .words import often


@dataclass
class Finding:
    """One bug: where it is in the source, who met it first, and how often it happened."""

    kind: str  # "out-of-bounds load", "misaligned store", "hang", ...
    message: str  # one sentence in plain words, about the first occurrence
    file: str
    line: int
    block: Place
    thread: Place
    ptx: str
    count: int = 1  # occurrences, in threads
    used: tuple[str, int] | None = None  # file and line that need what was loaded, if elsewhere

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.line}: {self.kind}, {often(self.count)}: {self.message}{self.use} "
            f"(first in block {self.block}, thread {self.thread})"
        )

    @property
    def use(self) -> str:
        """Where the value is used, as the end of a sentence; nothing if on the finding's line."""
        if self.used is None:
            return ""
        file, line = self.used
        place = f"line {line}" if file == self.file else f"{file}:{line}"
        return f"; the value is used in {place}"


class Findings(list):
    """A list of `Finding`; prints one per line, or says that there is none."""

    def __str__(self) -> str:
        return "\n".join(str(finding) for finding in self) if self else "no findings"


class Reporter:
    """Adds what threads of the batch that runs have done wrong."""

    def __init__(self, findings: Findings):
        self.findings = findings
        self.known: dict[tuple[str, frozenset], Finding] = {}  # by kind and source lines
        self.batch: Batch | None = None

    def start_batch(self, batch: Batch) -> None:
        self.batch = batch

    def report(
        self,
        kind: str,
        instruction: Instruction,
        message: str,
        slots: np.ndarray,
        user: Instruction | None = None,
        other: Instruction | None = None,
    ) -> None:
        """Add a bug of these threads, or count it if that kind is known on that source line
        already: where it takes an `other` instruction too, on that pair of lines. `user` is the
        instruction that needs what this one has loaded."""
        lines = {(one.file, one.line) for one in (instruction, other) if one is not None}
        known = self.known.get((kind, frozenset(lines)))
        if known is not None:
            known.count += len(slots)
            return
        block, thread = self.batch.place(int(slots[0]))
        place = instruction.file, instruction.line
        used = (user.file, user.line) if user is not None else place
        finding = Finding(
            kind,
            message,
            *place,
            block,
            thread,
            instruction.text,
            len(slots),
            used if used != place else None,
        )
        self.known[kind, frozenset(lines)] = finding
        self.findings.append(finding)

    def add_new(self, other: Reporter) -> None:
        """Add what a run with the blocks in reverse order has found and this one has not."""
        for key, finding in other.known.items():
            if key not in self.known:
                finding.message += " (found with the blocks in reverse order)"
                self.known[key] = finding
                self.findings.append(finding)


# ---- undefined values ----------------------------------------------------------------------------


MOST_ORIGINS = 8  # of one value, but for one of each further line


@dataclass(eq=False)
class Doubt:
    """What is wrong with what an instruction gave to some threads when it ran once."""

    kind: str
    instruction: Instruction
    message: str
    stays: bool  # may be stored in shared memory unseen; other doubts count as used there
    other: Instruction | None = None  # the access that it races with
    reported: np.ndarray | None = None  # threads


@dataclass(eq=False)
class UndefinedBits:
    """What is undefined in a register.

    `bits` has a 1 for each undefined bit of each thread, in an unsigned type of the register's
    size, or a bool for a predicate. Each array of `origins` holds, for each thread, the number of a
    doubt and of the thread that had it, as one int64, or -1; a value may have several.
    """

    bits: np.ndarray
    origins: tuple[np.ndarray, ...]

    def only(self, chosen: np.ndarray) -> UndefinedBits:
        """Of these threads alone."""
        bits = np.where(chosen, self.bits, self.bits.dtype.type(0))
        return UndefinedBits(bits, tuple(np.where(chosen, one, -1) for one in self.origins))


# Of a load: threads, a mask of undefined bits for each byte, the origin of each byte.
Pending = tuple[np.ndarray, np.ndarray, np.ndarray]


class Suspicion:
    """The doubts of a batch. Memories call `doubt`; whoever loads calls `loaded` or, if its values
    go where nothing follows them, `use_loaded`."""

    def __init__(self, kernel: PtxKernel, reporter: Reporter):
        self.reporter = reporter
        self.padding = True  # the source may have structs, whose padding is never written
        self.types = list(kernel.registers.values())
        self.begin: Callable[[], None] | None = None
        self.tracking = False
        self.start_batch(0)

    def start_batch(self, slots: int) -> None:
        self.slots = slots
        self.shadows: dict[int, UndefinedBits] = {}  # by the number of the register
        self.doubts: list[Doubt] = []
        self.lines: dict[tuple[str, str, int], int] = {}  # of doubts, numbered
        self.pending: list[Pending] = []
        self.storing: list[UndefinedBits | None] | None = (
            None  # beside the elements that are stored now
        )

    # ---- where doubts begin ----

    def doubt(
        self,
        kind: str,
        instruction: Instruction,
        message: str,
        slots: np.ndarray,
        undefined: np.ndarray | None = None,
        stays: bool = False,
        other: Instruction | None = None,
    ) -> None:
        """What this load gives these threads is not to be relied on: report it where it is used.

        `slots` are numbers of threads, int, and `undefined`, bool of shape (slots, bytes), says
        which bytes of the access are meant; None: all. Call it while the memory is read.
        """
        bits = np.full((len(slots), 1), 255, np.uint8)
        if undefined is not None:
            bits = undefined * np.uint8(255)
        new = self._new(kind, instruction, message, slots, stays, other)
        self.pending.append((slots, bits, new))
        self._track()

    def found(self, slots: np.ndarray, bits: np.ndarray, origins: np.ndarray) -> None:
        """These bytes of memory hold what an earlier load had given."""
        self.pending.append((slots, bits, origins))

    def taint(
        self, kind: str, instruction: Instruction, message: str, number: int, slots: np.ndarray
    ) -> None:
        """What a register holds for these threads is not to be relied on."""
        origins = np.full(self.slots, -1)
        origins[slots] = self._new(kind, instruction, message, slots, True)[:, 0]
        bits = np.zeros(self.slots, self.bits_type(number))
        bits[slots] = ~bits[slots]
        self.merge(number, UndefinedBits(bits, (origins,)))
        self._track()

    def _new(self, kind, instruction, message, slots, stays, other=None) -> np.ndarray:
        self.doubts.append(Doubt(kind, instruction, message, stays, other))
        return ((len(self.doubts) - 1) * self.slots + slots.astype(np.int64))[:, None]

    def _track(self) -> None:
        if not self.tracking:
            self.tracking = True
            self.begin()

    # ---- loads ----

    def loaded(self, targets: list[int | None], size: int, signed: bool = False) -> None:
        """The registers that a load has filled with elements of `size` bytes, whose sign fills what
        is left of a register if they are `signed`; None: an element goes nowhere."""
        for slots, bits, origins in self.pending:
            bits = np.broadcast_to(bits, (len(slots), size * len(targets)))
            origins = np.broadcast_to(origins, bits.shape)
            for place, number in enumerate(targets):
                own = np.s_[:, place * size : (place + 1) * size]
                if number is None or not bits[own].any():
                    continue
                kept = np.zeros(self.slots, UNSIGNED[size])
                kept[slots] = np.ascontiguousarray(bits[own]).view(UNSIGNED[size])[:, 0]
                ids = np.full(self.slots, -1)
                ids[slots] = np.where(bits[own] != 0, origins[own], -1).max(axis=1)
                if signed:
                    kept = kept.view(f"int{8 * size}")
                self.merge(number, UndefinedBits(kept.astype(self.bits_type(number)), (ids,)))
        self.pending.clear()

    def use_loaded(self, instruction: Instruction) -> None:
        """What has been loaded is used."""
        for _, bits, origins in self.pending:
            self.report(np.where(bits != 0, origins, -1), instruction)
        self.pending.clear()

    def lines_of(self, origins: np.ndarray) -> np.ndarray:
        """A number for the kind and the source line of each doubt; of -1: -1."""
        numbers, places = np.unique(origins // self.slots, return_inverse=True)
        doubts = [self.doubts[number] for number in numbers[numbers >= 0].tolist()]
        kinds = [(one.kind, one.instruction.file, one.instruction.line) for one in doubts]
        lines = [self.lines.setdefault(one, len(self.lines)) for one in kinds]
        return np.array([-1] * (len(numbers) - len(lines)) + lines)[places]

    # ---- registers ----

    def bits_type(self, number: int) -> np.dtype:
        kind = self.types[number]
        return np.dtype(bool) if kind == "pred" else UNSIGNED[type_size(kind)]

    def put(self, number: int, shadow: UndefinedBits | None, lanes: Lanes) -> None:
        """Lanes have written a register; None: with bits that are all defined."""
        if not lanes.whole:
            shadow = self.mixed(lanes.mask, shadow, self.shadows.get(number))
        if shadow is not None and shadow.bits.any():
            self.shadows[number] = shadow
        else:
            self.shadows.pop(number, None)

    def mixed(
        self, mask: np.ndarray, new: UndefinedBits | None, old: UndefinedBits | None
    ) -> UndefinedBits | None:
        """The new one of these threads, the old one of all others."""
        parts = [new and new.only(mask), old and old.only(~mask)]
        bits = [part.bits for part in parts if part is not None]
        return joined(self, np.bitwise_or.reduce(bits), parts) if bits else None

    def merge(self, number: int, shadow: UndefinedBits) -> None:
        """Some threads' bits of a register are undefined besides."""
        old = self.shadows.get(number)
        if old is not None:
            shadow = joined(self, old.bits | shadow.bits, [old, shadow])
        self.shadows[number] = shadow

    # ---- uses ----

    def use(self, number: int, mask: np.ndarray, instruction: Instruction) -> None:
        """These threads (bool) rely on what the register holds."""
        if number in self.shadows:
            self.use_shadow(self.shadows[number], mask, instruction)

    def use_shadow(
        self,
        shadow: UndefinedBits,
        mask: np.ndarray,
        instruction: Instruction | None,
        staying: bool = True,
    ) -> None:
        """As `use`. Without `staying`, doubts that may stay in memory are left alone."""
        used = mask & (shadow.bits != 0)
        if used.any():
            for origins in shadow.origins:
                self.report(origins[used], instruction, staying)

    def report(
        self, origins: np.ndarray, instruction: Instruction | None, staying: bool = True
    ) -> None:
        """Each thread's doubt is reported once."""
        origins = np.unique(origins[origins >= 0])
        numbers = origins // self.slots
        for number in np.unique(numbers).tolist():
            doubt = self.doubts[number]
            if doubt.stays and not staying:
                continue
            if doubt.reported is None:
                doubt.reported = np.zeros(self.slots, bool)
            slots = origins[numbers == number] % self.slots
            slots = slots[~doubt.reported[slots]]
            doubt.reported[slots] = True
            if len(slots):
                about = doubt.kind, doubt.instruction, doubt.message, slots
                self.reporter.report(*about, user=instruction, other=doubt.other)


def joined(
    suspicion: Suspicion, bits: np.ndarray, shadows: list[UndefinedBits | None]
) -> UndefinedBits:
    """Bits that come from several shadows, each from where it has any itself. Of more than
    MOST_ORIGINS, those of a source line that is among them are forgotten; doubts that may not stay
    in memory count as used then."""
    parts = [shadow for shadow in shadows if shadow is not None]
    if len(parts) == 1:
        return UndefinedBits(bits, parts[0].origins)
    kept: list[np.ndarray] = []
    for part in parts:
        for one in part.only(part.bits != 0).origins:
            for place, other in enumerate(kept):
                free = (other < 0) | (one == other)
                kept[place], one = np.where(free, one, other), np.where(free, -1, one)
            if len(kept) >= MOST_ORIGINS and (one >= 0).any():
                lines = suspicion.lines_of(one)
                known = np.logical_or.reduce([lines == suspicion.lines_of(o) for o in kept])
                suspicion.report(one[known], None, staying=False)
                one = np.where(known, -1, one)
            if (one >= 0).any():
                kept.append(one)
    return UndefinedBits(bits, tuple(kept))
