"""Races in shared memory, and uses of bytes that are an asynchronous copy's or an mbarrier's.

One exception goes beyond the letter of the memory model: a volatile load of what a volatile store
computed needs an order, for that is how warps were written when their lanes went in step.

Bytes that an asynchronous copy writes or reads are its own until a wait: see copies.py.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from ..geometry import Batch
from ..hardware import BULK_ALIGN
from ..instructions import Instruction, PtxKernel
from ..suspicion import Doubt, Suspicion
from .access import Access
from .causality import Causality
from .races import OWNER, STRONG_READ, THREAD, WEAK_READ, WEAK_WRITE, Epochs, Races, Same, verb

# Whose bytes are: nobody's, of an asynchronous copy that writes or reads them, of an mbarrier.
FREE, WRITTEN, READ, MBARRIER = range(4)
RACE = "race on shared memory"
UNWAITED = "asynchronous copy used before its wait"
OWNED = "an operation that no thread has waited for may still be accessing these bytes"
OVERWRITTEN = "mbarrier overwritten"
IN_USE = "these bytes hold an mbarrier; mbarrier.inval has to end it before they hold anything else"
MOST_READS = 256  # executions of watched loads that are looked back at
FLAGS = -(1 << 48)  # where causality.py has the flags of a batch's shared memory


@dataclass(eq=False)
class Read:
    """One execution of a watched load."""

    access: Access
    slots: np.ndarray
    places: np.ndarray
    time: int
    origins: np.ndarray


class SharedRaces(Races):
    """Checks the accesses of a launch to shared memory.

    A store that touches what another thread has read is no race if that thread throws the value
    away. Most launches have no such store, so the first run only notes which loads are touched so;
    if there are any, a second run watches what these give.
    """

    def __init__(self, kernel: PtxKernel, suspicion: Suspicion, causality: Causality):
        super().__init__(kernel, suspicion, causality)
        self.holds_flags = causality.in_shared
        self.volatile = np.array(
            ["volatile" in one.modifiers for one in kernel.instructions], dtype=bool
        )
        self.volatile[[*self.constants]] = False  # a flag

    def start_batch(self, batch: Batch, size: int) -> None:
        """Forget everything: there are `size` other bytes."""
        super().start_batch(batch)
        self.epochs = Epochs("shared memory", size, FLAGS, BULK_ALIGN)
        self.reads: deque[Read] = deque(maxlen=MOST_READS)

    def load(self, places: np.ndarray, slots: np.ndarray, access: Access) -> None:
        """These slots load from these bytes of the batch's."""
        owners = self._owners(places, access.width)
        if owners is not None and (owned := owners == WRITTEN).any():
            self._doubt(UNWAITED, OWNED, access, slots, owned)
        if access.atomic:
            return  # the store that follows at once is held against the others
        self.read(self.epochs, places, slots, access)
        if access.instruction.number in self.suspicion.watched and not access.polls:
            origins = self.suspicion.watch(access.instruction, slots)
            self.reads.append(Read(access, slots, places, self.order.now, origins))

    def store(
        self, places: np.ndarray, slots: np.ndarray, access: Access, same: Same | None = None
    ) -> None:
        """These slots store to these bytes of the batch's."""
        owners = self._owners(places, access.width)
        for kind, message, whose in (
            (UNWAITED, OWNED, (WRITTEN, READ)),
            (OVERWRITTEN, IN_USE, (MBARRIER,)),
        ):
            if owners is not None and (owned := np.isin(owners, whose)).any():
                self.reporter.report(kind, access.instruction, message, slots[_by_slot(owned)])
        entries, left = self.write(self.epochs, places, slots, access, same)
        if self.reads and len(left):
            self._race_after_watched(_table(entries), left, access.instruction)

    def compares_strong(self, access: Access) -> bool:
        return self.volatile[access.instruction.number] and not access.polls

    def keeps(self, access: Access) -> bool:
        return not access.polls and access.instruction.number not in self.suspicion.watched

    # ---- owners ----

    def own(self, places: np.ndarray, width: int, owner: int) -> None:
        """These bytes of the batch's have another owner from now on."""
        entries = self.epochs.entries(places, width)
        self.epochs.of(OWNER)[entries] = owner

    def _owners(self, places: np.ndarray, width: int) -> np.ndarray | None:
        entries, owners = self.epochs.entries(places, width), self.epochs.stamps[OWNER]
        return None if owners is None else owners[entries]

    def mark(
        self, places: np.ndarray, width: int, slots: np.ndarray, instruction: Instruction, time: int
    ) -> None:
        """An asynchronous copy has stored there, as if these slots had at that time."""
        entries = self.epochs.entries(places, width)
        self.epochs.of(*WEAK_WRITE)[entries] = self.made(entries, slots, instruction, time)

    def last_store(self, place: int) -> np.int64:
        """The stamp of the last ordinary store to a byte."""
        return self.epochs.of(*WEAK_WRITE)[place // self.epochs.grain]

    def touched(self, places: np.ndarray, width: int, copy: Instruction, since: int) -> np.ndarray:
        """By place, whether a thread has used its bytes since a copy into them began."""
        entries = self.epochs.entries(places, width)
        found = self.site(self.epochs.of(*WEAK_WRITE)[entries]) != copy.number
        for kind in (*WEAK_READ, *STRONG_READ):
            if self.epochs.stamps[kind] is not None:
                stamps = self.epochs.stamps[kind][entries]
                found |= (stamps != 0) & (self.time(stamps) >= since)
        return _by_slot(found)

    # ---- judging ----

    def ordered(self, stamps: np.ndarray, slots: np.ndarray, strong: bool = False) -> np.ndarray:
        """As for any memory. All these threads are of one cluster, which is quick to judge."""
        earlier = (stamps & THREAD) - self.causality.first
        held = self.order.holds(earlier, self.time(stamps), slots)
        if self.causality.acquired and not held.all():
            held |= super().ordered(stamps, slots)
        return held

    def conflicts(
        self, kind: int, stamps: np.ndarray, slots: np.ndarray, access: Access
    ) -> np.ndarray:
        sites = self.site(stamps)
        if access.scope and kind not in (*WEAK_WRITE, *WEAK_READ):
            reading = kind in STRONG_READ or access.instruction.opcode == "ld"
            return self.volatile[sites] & reading
        return np.ones(len(stamps), bool)

    def report(
        self,
        epochs: Epochs,
        kind: int,
        stamps: np.ndarray,
        faulty: np.ndarray,
        slots: np.ndarray,
        access: Access,
    ) -> np.ndarray:
        """One race of a thread is enough. A store behind loads races if what they gave is used, for
        which they must be watched."""
        sites = self.site(stamps[faulty])
        if kind in (*WEAK_READ, *STRONG_READ):
            self.suspicion.asked.update({*np.unique(sites).tolist()} - self.suspicion.watched)
            if not self.suspicion.watched:
                return np.zeros(len(slots), bool)
        racing, site = _by_slot(faulty), self.instructions[sites[0]]
        if access.instruction.opcode == "ld":
            message = self._racing("load", access.instruction, site)
            self._doubt(RACE, message, access, slots, faulty)
        else:
            self.race(slots[racing], verb(access.instruction), access.instruction, site)
        return racing

    def _race_after_watched(
        self, entries: np.ndarray, slots: np.ndarray, instruction: Instruction
    ) -> None:
        """The store races with watched loads whose values are used, now or later."""
        race, flat = None, entries.reshape(-1)
        order = np.argsort(flat, kind="stable")
        written, writers = flat[order], np.repeat(slots, entries.shape[1])[order]
        for read in self.reads:
            wanted = _table(self.epochs.entries(read.places, read.access.width))
            first = np.searchsorted(written, wanted.reshape(-1))
            counts = np.searchsorted(written, wanted.reshape(-1), side="right") - first
            rows = np.repeat(np.arange(wanted.size), counts)  # each reader with each writer
            within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
            rows, by = rows // wanted.shape[1], writers[first[rows] + within]
            stamps = self.made(rows, read.slots[rows], read.access.instruction, read.time)
            racing = ~self.ordered(stamps, by)
            if racing.any():
                site = read.access.instruction
                message = self._racing("store", instruction, site)
                race = race or Doubt(RACE, instruction, message, False)
                self.suspicion.if_used(read.origins[rows[racing]], race, by[racing])

    # ---- saying ----

    def race(
        self, slots: np.ndarray, what: str, instruction: Instruction, site: Instruction
    ) -> None:
        """Report these threads: what `site` did before is not ordered."""
        self.reporter.report(RACE, instruction, self._racing(what, instruction, site), slots)

    def _racing(self, what: str, instruction: Instruction, site: Instruction) -> str:
        where = f"the same {what}" if site is instruction else f"line {site.line}"
        message = f"this {what} touches what another thread accessed at {where}, "
        if self.causality.in_shared and self.causality.flags:
            return message + (
                "with no barrier in between, nor a flag that is set after a __threadfence_block() "
                "and followed by another after it is read"
            )
        return message + "with no barrier in between"

    def _doubt(
        self, kind: str, message: str, access: Access, slots: np.ndarray, faulty: np.ndarray
    ) -> None:
        """Threads read entries that they may not rely on."""
        chosen = _by_slot(faulty)
        about = kind, access.instruction, message, slots[chosen]
        if access.atomic:
            self.reporter.report(*about)
        else:
            undefined = np.repeat(_table(faulty)[chosen], self.epochs.grain, axis=1)
            self.suspicion.doubt(*about, undefined[:, : access.width])


def _table(of_entries: np.ndarray) -> np.ndarray:
    """With a row for each slot, where there is one entry each too."""
    return of_entries.reshape(len(of_entries), -1)


def _by_slot(of_entries: np.ndarray) -> np.ndarray:
    return _table(of_entries).any(axis=1)
