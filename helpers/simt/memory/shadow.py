"""A shadow of shared memory that sees races, and reads of what nobody has written.

Lock-step execution hides races: without a barrier the numbers often come out right. So a shadow
remembers, for every few bytes, who wrote and who read them last, and when. Two threads that touch
the same bytes, at least one of them writing and neither ordered before the other, race.

Bytes that an asynchronous copy writes or reads are its own until a wait: see copies.py.
"""

from __future__ import annotations

import numpy as np

from ..hardware import WARP
from ..instructions import Instruction, PtxKernel
from ..ptx_types import DTYPES
from ..suspicion import Suspicion
from .access import Access
from .order import Order
from .reads import Reads

FREE, WRITTEN, READ = 0, 1, 2  # what an asynchronous copy is doing to bytes
RACE = "race on shared memory"
UNWAITED = "asynchronous copy used before its wait"
OWNED = "a copy that nobody has waited for may still be working on these bytes"


class Shadow:
    """One entry for every `grain` bytes of a batch's shared memory. With `flags`, threads poll:
    what they read orders them behind who stored it."""

    def __init__(self, kernel: PtxKernel, suspicion: Suspicion, flags: bool):
        self.suspicion, self.reporter, self.flags = suspicion, suspicion.reporter, flags
        self.instructions = kernel.instructions
        self.grain = _smallest_access(kernel)
        self.order = Order()
        self.watched = Reads(suspicion)

    def start_batch(self, size: int) -> None:
        """Forget everything; `size` bytes are unwritten."""
        entries = size // self.grain
        # Per entry: the last writer, and two readers that no barrier has ordered.
        self.writer = np.full(entries, -1, np.int32)
        self.write_time = np.zeros(entries, np.int32)
        self.write_atomic = np.zeros(entries, bool)
        self.readers = np.full((2, entries), -1, np.int32)
        self.read_times = np.zeros((2, entries), np.int32)
        self.write_site = np.zeros(entries, np.int32)  # number of the instruction
        self.read_site = np.zeros(entries, np.int32)
        self.owner = np.zeros(entries, np.int8)  # FREE, WRITTEN or READ by an asynchronous copy
        self.watched.start_batch()
        self.fenced: dict[int, np.ndarray] = {}  # by thread: what came before its last fence
        self.released: dict[int, np.ndarray] = {}  # by entry: what a flag's store ordered

    def entries(self, places: np.ndarray, size: int) -> np.ndarray:
        """A row for each place: the entries of the bytes from there on."""
        return (places // self.grain)[:, None] + np.arange(-(-size // self.grain))

    def check_read(self, slots: np.ndarray, entry: np.ndarray, access: Access) -> None:
        instruction = access.instruction
        reader = slots[:, None]
        writers = self.writer[entry]
        unwritten = writers < 0
        owned = self.owner[entry] == WRITTEN
        if owned.any():
            self._doubt(UNWAITED, access, OWNED, slots, owned)
        unwritten &= ~owned
        missing = unwritten.any(axis=1)
        if missing.any():
            self._doubt(
                "read of unwritten shared memory",
                access,
                "no thread has stored anything there",
                slots,
                unwritten,
                stays=True,
            )
        if access.atomic:
            return  # the store that follows at once is held against the others
        if access.polls:
            self._acquire(slots, entry)
        racing = (writers >= 0) & ~self.order.holds(writers, self.write_time[entry], reader)
        if access.polls:  # what it waits for is stored by an atomic or a volatile store
            racing &= ~self.write_atomic[entry]
        if racing.any():
            site = self.instructions[self.write_site[entry[racing][0]]]
            message = _racing("load", instruction, site)
            self._doubt(RACE, access, message, slots, racing)
        if access.polls or self.watched.add(instruction, slots, entry, self.order.now):
            return
        before, times = self.readers[:, entry], self.read_times[:, entry]
        fresh = (before < 0) | self.order.holds(before, times, reader)
        # Two readers are kept: those that the new one comes after need not be.
        low = fresh[0] | (reader < before[0]) & ~fresh[1]
        high = fresh[1] | (reader > before[1]) & ~fresh[0]
        # Lanes ascend and the last assignment wins: the lowest reader, and the highest.
        self.readers[0, entry[::-1]] = np.where(low, reader, before[0])[::-1]
        self.read_times[0, entry[::-1]] = np.where(low, self.order.now, times[0])[::-1]
        self.readers[1, entry] = np.where(high, reader, before[1])
        self.read_times[1, entry] = np.where(high, self.order.now, times[1])
        self.read_site[entry] = instruction.number

    def check_write(self, slots: np.ndarray, entry: np.ndarray, access: Access) -> None:
        instruction = access.instruction
        writer = slots[:, None]
        before = self.writer[entry]
        self._check_owner(slots, instruction, self.owner[entry] != FREE)
        flag = self.flags and access.strong
        if flag and access.atomic:
            self._acquire(slots, entry)
        after_write = (before >= 0) & ~self.order.holds(before, self.write_time[entry], writer)
        if flag or access.atomic:
            after_write &= ~self.write_atomic[entry]  # atomics take turns among themselves
        readers = self.readers[:, entry]
        unordered = ~self.order.holds(readers, self.read_times[:, entry], writer)
        after_read = ((readers >= 0) & unordered).any(axis=0)
        self._race_after(after_write, self.write_site, slots, entry, "store", instruction)
        after_read &= ~after_write.any(axis=1)[:, None]  # one race of a thread is enough
        if after_read.any():
            self._race_after_reads(after_read, slots, entry, instruction)
        alone = ~after_write.any(axis=1)
        self._race_after_watched(slots[alone], entry[alone], instruction)
        self.writer[entry] = writer
        self.write_atomic[entry] = flag or access.atomic
        self.write_time[entry] = self.order.now
        self.write_site[entry] = instruction.number
        if flag:
            self._release(slots, entry, access)

    def _race_after_reads(self, racing, slots, entry, instruction: Instruction) -> None:
        """The store races if what was read is used, for which the loads must be watched."""
        sites = self.read_site[entry]
        asked = np.unique(sites[racing])
        self.suspicion.asked.update({*asked.tolist()} - self.suspicion.watched)
        if self.suspicion.watched:
            self._race_after(racing, self.read_site, slots, entry, "store", instruction)

    def _race_after_watched(self, slots, entry, instruction: Instruction) -> None:
        """The store races with watched loads whose values are used, now or later."""
        race = None

        def report(origins: np.ndarray, writers: np.ndarray, site: Instruction) -> None:
            nonlocal race
            if race is None:
                race = self.suspicion.conditional(
                    RACE, instruction, _racing("store", instruction, site)
                )
            self.suspicion.if_used(origins, race, writers)

        self.watched.overwritten(slots, entry, self.order.holds, report)

    def fence(self, mask: np.ndarray) -> None:
        """What these threads did until now may be told by a volatile store."""
        if not self.flags:
            return
        self.order.now += 1
        for slot in np.flatnonzero(mask).tolist():
            clock = self.order.seen[slot // WARP].copy()
            clock[self.order.column(slot)] = self.order.now
            self.fenced[slot] = clock

    def _release(self, slots: np.ndarray, entry: np.ndarray, access: Access) -> None:
        """What these threads did before comes before what reads their store; with a volatile one,
        that does not release, what they did before a fence or before they met others."""
        self.order.now += 1
        for slot, row in zip(slots.tolist(), entry, strict=True):
            clock = self.order.seen[slot // WARP].copy()
            if access.releases or access.atomic:
                clock[self.order.column(slot)] = self.order.now
            elif slot in self.fenced:
                clock = np.maximum(clock, self.fenced[slot])
            for one in row.tolist():
                known = self.released.get(one)
                self.released[one] = clock if known is None else np.maximum(known, clock)

    def _acquire(self, slots: np.ndarray, entry: np.ndarray) -> None:
        for slot, row in zip(slots, entry, strict=True):
            clock = self.released.get(int(row[0]))
            if clock is not None:
                np.maximum(self.order.seen[slot // WARP], clock, out=self.order.seen[slot // WARP])

    def check_order(self, slots: np.ndarray, entry: np.ndarray, instruction: Instruction) -> None:
        """Report the threads before which the last store to these bytes is not ordered."""
        writers = self.writer[entry]
        racing = (writers >= 0) & ~self.order.holds(writers, self.write_time[entry], slots[:, None])
        self._race_after(racing, self.write_site, slots, entry, "access", instruction)

    def _check_owner(self, slots: np.ndarray, instruction: Instruction, owned: np.ndarray) -> None:
        if owned.any():
            self.reporter.report(
                UNWAITED,
                instruction,
                OWNED,
                slots[owned.any(axis=1)],
            )

    def _race_after(self, racing, sites, slots, entry, verb: str, instruction: Instruction) -> None:
        """Report the threads with a racing entry; `sites` knows the earlier access of each."""
        if racing.any():
            site = self.instructions[sites[entry[racing][0]]]
            self.race(slots[racing.any(axis=1)], verb, instruction, site)

    def race(
        self, slots: np.ndarray, verb: str, instruction: Instruction, site: Instruction
    ) -> None:
        """Report these threads: what `site` did before is not ordered."""
        self.reporter.report(RACE, instruction, _racing(verb, instruction, site), slots)

    def _doubt(
        self,
        kind: str,
        access: Access,
        message: str,
        slots: np.ndarray,
        faulty: np.ndarray,
        stays: bool = False,
    ) -> None:
        """Threads read entries that they may not rely on."""
        chosen = faulty.any(axis=1)
        undefined = np.repeat(faulty[chosen], self.grain, axis=1)[:, : access.width]
        about = kind, access.instruction, message, slots[chosen]
        if access.atomic:
            self.reporter.report(*about)
        else:
            self.suspicion.doubt(*about, undefined, stays)


def _racing(verb: str, instruction: Instruction, site: Instruction) -> str:
    where = "the same store" if site is instruction else f"line {site.line}"
    return f"this {verb} touches what another thread accessed at {where}, with no barrier between"


def _smallest_access(kernel: PtxKernel) -> int:
    """Bytes of the smallest element that the kernel loads from or stores to shared memory."""
    sizes = [
        DTYPES[one.modifiers[-1]].itemsize
        for one in kernel.instructions
        if one.opcode in ("ld", "st", "atom", "red")
        and "param" not in one.modifiers
        and one.modifiers[-1] in DTYPES
    ]
    return min([4, *sizes])
