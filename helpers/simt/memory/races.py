"""Who touched which bytes last, as epochs: what accesses of shared and of global memory are held
against, to see races.

Two accesses of the same bytes by different threads, at least one of them a write, race unless they
are ordered, or are both strong ([ptx] "Memory Consistency Model"). That is judged by the
happens-before relation, not by values, so that a race is found also where the order of this run
happens to be right.

An epoch is a thread and a time (Flanagan and Freund, FastTrack, PLDI 2009). For every few bytes the
last weak write is kept, and of weak reads, strong reads and strong writes two: those of the lowest
and of the highest thread that nothing has ordered before a later one. Of many readers of the same
bytes those between are not seen.

Stores of equal bits by one instruction do not race with each other, nor do those of one constant
by several, whether the threads are of one block or not: a result that each thread knows is often
stored by all, and so are flags. A read of what they store is held against the last of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..analysis import alike, constant_stores, used_atomics
from ..findings import Suspicion
from ..geometry import Batch
from ..instructions import Instruction, PtxKernel
from .access import Access
from .causality import Causality

EVENT_BITS = 32  # of a stamp: the number of the event, above the thread
THREAD = (1 << EVENT_BITS) - 1
UNFINISHED = 2**31 - 1  # the time of an asynchronous access without a wait so far
EMPTY = np.zeros(0, np.int64)
# What is kept of each piece of memory. Of reads and strong writes the lowest and highest thread.
WEAK_WRITE, WEAK_READ, STRONG_WRITE, STRONG_READ = (0,), (1, 2), (3, 4), (5, 6)
STRONG = STRONG_WRITE + STRONG_READ
ATOMIC = 7  # the last access, where it is an atomic whose result is used
OWNER = 8  # not a stamp: what an asynchronous copy or an mbarrier makes of shared memory
Same = Callable[[bool], np.ndarray]


class Epochs:
    """The epochs of an array, or of the shared memory of a batch, as stamps: one int64 for a thread
    and an event, an instruction that was executed at a time; 0 where there is none. There is one
    for every `grain` bytes, the smallest piece until now: accesses are aligned, so that none is in
    part of one."""

    def __init__(self, name: str, size: int, first: int, grain: int = 0):
        self.name, self.size, self.grain = name, size, grain
        self.first = first  # address of the first byte, as causality.py knows flags
        self.piece = 0  # bytes of the strong accesses until now
        self.stamps: list[np.ndarray | None] = [None] * 9

    def entries(self, offsets: np.ndarray, width: int) -> np.ndarray:
        """The entries of the bytes from each offset on; a row for each offset if there are many."""
        piece = width & -width or self.grain  # what is copied may have any width, 0 too
        if self.grain > piece:
            times = self.grain // piece
            self.stamps = [None if one is None else one.repeat(times) for one in self.stamps]
            self.grain = piece
        self.grain = self.grain or piece
        first = offsets >> (self.grain.bit_length() - 1)
        if width == self.grain:
            return first
        return first[:, None] + np.arange(-(-width // self.grain))

    def of(self, kind: int) -> np.ndarray:
        """The stamps of a kind, made when they are needed."""
        if self.stamps[kind] is None:
            self.stamps[kind] = np.zeros(-(-self.size // self.grain), np.int64)
        return self.stamps[kind]


class Races:
    """Checks the accesses of a launch to one kind of memory. Of each kind there is

    compares_strong(access)  whether this strong access may race with other strong ones
    conflicts(kind, stamps, slots, access)  which of these pairs race if nothing orders them
    report(epochs, kind, stamps, faulty, slots, access)  reports races with the `faulty` of the
        entries, a row for each slot; returns the slots, as bools, that are done with
    """

    covered: tuple[int, ...] = STRONG_WRITE  # what a weak write is held against in their place

    def __init__(self, kernel: PtxKernel, suspicion: Suspicion, causality: Causality):
        self.instructions, self.causality = kernel.instructions, causality
        self.suspicion, self.reporter = suspicion, suspicion.reporter
        self.order = causality.order
        self.constants, self.alike = constant_stores(kernel), alike(kernel)
        self.tickets = used_atomics(kernel)
        opcodes = [one.opcode for one in kernel.instructions]
        self.atomics = np.isin(opcodes, ("atom", "red"))
        # What a bulk copy wrote, another may read without a fence: both go through one proxy.
        bulk = ["bulk" in one.modifiers for one in kernel.instructions]
        self.bulk = np.isin(opcodes, "cp") & bulk
        self.events: dict[tuple[int, int], int] = {}  # by (number of the instruction, time)
        self.last = 0  # event
        self.sites, self.times = np.zeros((2, 64), np.int32)  # of the events
        self.begun: list[int] = []  # asynchronous accesses not noted by any thread
        self.unfinished = 0  # of them and others, how many are not waited for

    def start_batch(self, batch: Batch) -> None:
        self.threads = np.arange(batch.slots, dtype=np.int64) + batch.first * batch.padded

    # ---- accesses ----

    def read(
        self, epochs: Epochs, offsets: np.ndarray, slots: np.ndarray, access: Access
    ) -> np.ndarray:
        """These slots load from bytes of an array; returns the entries."""
        entries = epochs.entries(offsets, access.width)
        if access.scope:
            self.causality.read(slots, offsets + epochs.first, access)
        left = self._against(epochs, WEAK_WRITE, entries, slots, access)
        if not access.scope or self.compares_strong(access):
            self._against(epochs, STRONG_WRITE, *left, access)
        self._note(epochs, STRONG_READ if access.scope else WEAK_READ, entries, slots, access)
        return entries

    def write(
        self,
        epochs: Epochs,
        offsets: np.ndarray,
        slots: np.ndarray,
        access: Access,
        same: Same | None = None,
        wrote: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """These slots store to bytes of an array; atomics change them, where they `wrote`.
        `same(False)` says of every slot of the batch whether what it stores is there already,
        `same(True)` whether it is there after the store. Returns the entries and slots of those
        that may still be held against more."""
        entries = epochs.entries(offsets, access.width)
        before = same and (lambda: same(False))
        left = self._against(epochs, WEAK_WRITE, entries, slots, access, before)
        left = self._against(epochs, WEAK_READ, *left, access)
        if access.scope:
            self._note(epochs, STRONG_WRITE, entries, slots, access)
            if self.compares_strong(access):
                left = self._against(epochs, STRONG, *left, access)
            if access.instruction.number in self.tickets:
                epochs.of(ATOMIC)[entries] = self.stamp(entries, slots, access)
            elif epochs.stamps[ATOMIC] is not None:
                epochs.stamps[ATOMIC][entries] = 0
            self._tell(epochs, offsets, slots, access, wrote)
            return left
        left = self._against(epochs, STRONG, *left, access)
        epochs.of(*WEAK_WRITE)[entries] = self.stamp(entries, slots, access)
        flat = entries.reshape(-1)
        apart = bool((flat[1:] > flat[:-1]).all())  # as they mostly are; else lanes may race
        if not access.asynchronous and not apart:
            after = same and (lambda: same(True))
            self._against(epochs, WEAK_WRITE, entries, slots, access, after)
        for kind in (ATOMIC, *self.covered):
            # Who comes after this write comes after them too, or races with this write.
            if epochs.stamps[kind] is not None:
                epochs.stamps[kind][entries] = 0
        self._tell(epochs, offsets, slots, access, wrote)
        return left

    def _tell(self, epochs: Epochs, offsets, slots, access: Access, wrote) -> None:
        """What others may learn from this store. That of atomics of shared memory is told when all
        lanes have had their turn."""
        if access.atomic and wrote is None:
            return
        addresses = offsets + epochs.first
        if not access.scope:
            if self.causality.flags:
                self.causality.weak_write(addresses)
        elif wrote is None:
            self.causality.write(slots, addresses, access)
        else:
            self.causality.change(slots, addresses, wrote, access)

    # ---- stamps ----

    def site(self, stamps: np.ndarray) -> np.ndarray:
        """The numbers of the instructions."""
        return self.sites[stamps >> EVENT_BITS]

    def time(self, stamps: np.ndarray) -> np.ndarray:
        return self.times[stamps >> EVENT_BITS]

    def _new_event(self, site: int, time: int) -> int:
        self.last += 1
        if self.last == len(self.sites):
            self.sites, self.times = (
                np.concatenate([one, np.zeros_like(one)]) for one in (self.sites, self.times)
            )
        self.sites[self.last], self.times[self.last] = site, time
        return self.last

    def made(
        self, entries: np.ndarray, slots: np.ndarray, instruction: Instruction, time: int
    ) -> np.ndarray:
        """Stamps of these slots for an instruction that they execute at that time."""
        key = instruction.number, time
        if key not in self.events:
            self.events[key] = self._new_event(*key)
        return self._threads(entries, slots) + (self.events[key] << EVENT_BITS)

    def stamp(self, entries: np.ndarray, slots: np.ndarray, access: Access) -> np.ndarray:
        if not access.asynchronous:
            return self.made(entries, slots, access.instruction, self.order.now)
        event = self._new_event(access.instruction.number, UNFINISHED)
        self.begun.append(event)
        self.unfinished += 1
        return self._threads(entries, slots) + (event << EVENT_BITS)

    def _threads(self, entries: np.ndarray, slots: np.ndarray) -> np.ndarray:
        threads = self.threads[slots]
        return threads if entries.ndim == 1 else threads[:, None]

    def _note(
        self, epochs: Epochs, kinds: tuple, entries: np.ndarray, slots: np.ndarray, access: Access
    ) -> None:
        """Remember an access of which two are kept: those of the lowest and of the highest thread
        but for those that a later access comes after."""
        stamp = self.stamp(entries, slots, access)
        low, high = (epochs.of(kind) for kind in kinds)
        lows = low[entries]
        if not lows.any():
            # Lanes ascend and the last assignment wins: the lowest of them, and the highest.
            low[entries[::-1]] = np.broadcast_to(stamp, entries.shape)[::-1]
            if (low[entries] != stamp).any():
                high[entries] = stamp
            return
        highs, thread = high[entries], stamp & THREAD
        mine = slots if entries.ndim == 1 else slots[:, None]
        free_low, free_high = self._gone(lows, mine), self._gone(highs, mine)
        take_low = free_low | (thread < (lows & THREAD)) & ~free_high
        take_high = free_high | (thread > (highs & THREAD)) & ~free_low
        low[entries[::-1]] = np.where(take_low, stamp, lows)[::-1]
        high[entries] = np.where(take_high, stamp, highs)

    def _gone(self, stamps: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Whether a stamp need not be kept: there is none, or it comes before what the slots do."""
        result = stamps == 0
        left = np.nonzero(~result)
        if len(left[0]):
            slots = np.broadcast_to(slots, stamps.shape)[left]
            result[left] = self.ordered(stamps[left], slots)
        return result

    def ordered(self, stamps: np.ndarray, slots: np.ndarray, strong: bool = False) -> np.ndarray:
        """Whether these accesses come before what the slots do now."""
        return self.causality.ordered(stamps & THREAD, self.time(stamps), slots, strong)

    # ---- asynchronous accesses ----

    def stored(self, epochs: Epochs, start: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Threads of the batch, as slots, that have stored to bytes of an array last, and when;
        bulk copies are left out."""
        slots, times = [EMPTY], [EMPTY]
        for kind in (*WEAK_WRITE, *STRONG_WRITE):
            if epochs.stamps[kind] is not None:
                first, last = start // epochs.grain, -(-(start + size) // epochs.grain)
                stamps = epochs.stamps[kind][first:last]
                slot = (stamps & THREAD) - self.causality.first
                mine = (stamps != 0) & (slot >= 0) & (slot < len(self.threads))
                mine &= ~self.bulk[self.site(stamps)]
                slots.append(slot[mine])
                times.append(self.time(stamps[mine]))
        return np.concatenate(slots), np.concatenate(times)

    def take(self) -> tuple[int, ...]:
        """The asynchronous accesses that have begun since this was last asked, for `finish`."""
        begun, self.begun = tuple(self.begun), []
        return begun

    def finish(self, events: tuple[int, ...]) -> None:
        """Somebody has waited for these accesses: they are as if they were made now."""
        for event in events:
            if self.times[event] == UNFINISHED:
                self.times[event] = self.order.now
                self.unfinished -= 1

    # ---- judging ----

    def _against(
        self,
        epochs: Epochs,
        kinds: tuple,
        entries: np.ndarray,
        slots: np.ndarray,
        access: Access,
        same: Callable[[], np.ndarray] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Hold these accesses against what is remembered; returns the entries and slots to go on
        with. `same` says of every slot of the batch whether it stores what is there."""
        for kind in kinds:
            if epochs.stamps[kind] is None:
                continue
            stamps = epochs.stamps[kind][entries]
            if not stamps.any():
                continue
            other = (stamps & THREAD) != self._threads(entries, slots)
            if self.unfinished:  # not even its own thread comes after it
                other |= self.time(stamps) == UNFINISHED
            other &= stamps != 0
            if not other.any():
                continue
            where = np.nonzero(other)
            found, mine = stamps[where], slots[where[0]]
            racing = self.conflicts(kind, found, mine, access)
            if kind in STRONG_WRITE and epochs.stamps[ATOMIC] is not None and racing.any():
                racing &= ~self._taken_turns(found, mine, epochs.stamps[ATOMIC][entries][where])
            again = self.alike[self.site(found)] == self.alike[access.instruction.number]
            if access.instruction.number in self.constants:
                racing &= ~again
            left = np.flatnonzero(racing)
            if len(left):
                ordered = self.ordered(found[left], mine[left], bool(access.scope))
                left = left[~ordered | (self.time(found[left]) == UNFINISHED)]
            if same is not None and not access.scope and again[left].any():
                left = left[~(again[left] & same()[mine[left]])]
            if len(left):
                faulty = np.zeros(entries.shape, bool)
                faulty[tuple(one[left] for one in where)] = True
                done = self.report(epochs, kind, stamps, faulty, slots, access)
                entries, slots = entries[~done], slots[~done]
        return entries, slots

    def _taken_turns(self, stamps: np.ndarray, slots: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Whether these are atomics, and the slots come behind the last atomic at the same place,
        whose result is used and says what all before it made: whoever draws the last ticket may
        reset it."""
        result = self.atomics[self.site(stamps)] & (last != 0)
        if result.any():
            result[result] = self.ordered(last[result], slots[result])
        return result


def verb(instruction: Instruction) -> str:
    """What an instruction does, in a word."""
    return {"ld": "load", "ldu": "load", "st": "store", "cp": "copy"}.get(
        instruction.opcode, "atomic"
    )
