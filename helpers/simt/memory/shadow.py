"""A shadow of shared memory that sees races, and reads of what nobody has written.

Lock-step execution hides races: without a barrier the numbers often come out right. So a shadow
remembers, for every few bytes, who wrote and who read them last, and when. Two threads that touch
the same bytes, at least one of them writing and neither ordered before the other, race.

Threads are ordered by barriers, see order.py, and by flags, see causality.py. Strong accesses do
not race with one another, with one exception beyond the letter of the memory model: a volatile load
of what a volatile store computed needs an order, for that is how warps were written when their
lanes went in step.

Bytes that an asynchronous copy writes or reads are its own until a wait: see copies.py.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..analysis import STRONG_LOADS, alike, constant_stores
from ..instructions import Instruction, PtxKernel
from ..ptx_types import DTYPES
from ..suspicion import Suspicion
from .access import Access
from .causality import Causality
from .stamps import THREAD, Stamps, keep_two

# Whose bytes are: nobody's, of an asynchronous copy that writes or reads them, of an mbarrier.
FREE, WRITTEN, READ, MBARRIER = range(4)
RACE = "race on shared memory"
UNWAITED = "asynchronous copy used before its wait"
OWNED = "a copy that nobody has waited for may still be working on these bytes"
OVERWRITTEN = "mbarrier overwritten"
IN_USE = "these bytes hold an mbarrier; mbarrier.inval has to end it before they hold anything else"
# How strong an access is; of a load and a store, one has to be a flag's: a poll, an atomic, a
# constant.
WEAK, VOLATILE, FLAG = 0, 1, 2
MOST_READS = 256  # executions of watched loads that are looked back at


@dataclass(eq=False)
class Read:
    """One execution of a watched load; a row for each thread."""

    instruction: Instruction
    slots: np.ndarray
    places: np.ndarray  # (threads, places)
    time: int
    origins: np.ndarray


class Reads:
    """Reads that a store may race with, kept until it is known whether anybody uses what was read;
    an entry of the shadow is a place.

    A store that touches what another thread has read is no race if that thread throws the value
    away. Most launches have no such store, so the first run only notes which loads are touched so;
    if there are any, a second run watches what these give.
    """

    def __init__(self, suspicion: Suspicion):
        self.suspicion = suspicion

    def start_batch(self) -> None:
        self.reads: deque[Read] = deque(maxlen=MOST_READS)

    def add(
        self, instruction: Instruction, slots: np.ndarray, places: np.ndarray, time: int
    ) -> bool:
        """Threads read places; False if this load is not watched."""
        if instruction.number not in self.suspicion.watched:
            return False
        origins = self.suspicion.watch(instruction, slots)
        self.reads.append(Read(instruction, slots, places, time, origins))
        return True

    def overwritten(
        self,
        slots: np.ndarray,
        places: np.ndarray,
        ordered: Callable[[np.ndarray, int, np.ndarray], np.ndarray],
        report: Callable[[np.ndarray, np.ndarray, Instruction], None],
    ) -> None:
        """Threads store into places. `ordered` says of pairs of a reader, its time and a writer
        whether the read comes first; `report` gets what is in doubt, the origins of reads and their
        writers."""
        if not self.reads:
            return
        order = np.argsort(places.reshape(-1), kind="stable")
        written, writers = places.reshape(-1)[order], np.repeat(slots, places.shape[1])[order]
        for read in self.reads:
            wanted = read.places.reshape(-1)
            first = np.searchsorted(written, wanted)
            counts = np.searchsorted(written, wanted, side="right") - first
            rows = np.repeat(np.arange(len(wanted)), counts)  # each reader with each writer
            within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
            rows, by = rows // read.places.shape[1], writers[first[rows] + within]
            racing = ~ordered(read.slots[rows], read.time, by)
            if racing.any():
                report(read.origins[rows[racing]], by[racing], read.instruction)


class Shadow:
    """One entry for every `grain` bytes of a batch's shared memory."""

    def __init__(self, kernel: PtxKernel, suspicion: Suspicion, causality: Causality):
        self.suspicion, self.reporter, self.causality = suspicion, suspicion.reporter, causality
        self.instructions, self.strengths = kernel.instructions, _strengths(kernel)
        self.alike = alike(kernel)
        self.grain = _smallest_access(kernel)
        self.order = causality.order
        self.watched = Reads(suspicion)

    def start_batch(self, size: int) -> None:
        """Forget everything; `size` bytes are unwritten."""
        entries = size // self.grain
        # Per entry: the last store, and two loads that no barrier has ordered.
        self.stamps, self.written = Stamps(), np.zeros(entries, np.int64)
        self.read = np.zeros((2, entries), np.int64)
        self.read_site = np.zeros(entries, np.int32)  # the instruction of the last load
        # The last weak store before the strong ones that followed it, once there were such.
        self.covered: np.ndarray | None = None
        self.owner = np.zeros(entries, np.int8)
        self.watched.start_batch()

    def entries(self, places: np.ndarray, size: int) -> np.ndarray:
        """A row for each place: the entries of the bytes from there on."""
        return (places // self.grain)[:, None] + np.arange(-(-size // self.grain))

    def _holds(self, earlier: np.ndarray, times: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Whether an access of the threads `earlier` at that time comes before one of `slots`
        now."""
        held = self.order.holds(earlier, times, slots)
        if not self.causality.acquired or held.all():
            return held
        left = np.nonzero(~held)
        asked = [np.broadcast_to(one, held.shape)[left] for one in (earlier, times, slots)]
        asked[0] = asked[0] + self.causality.first
        held[left] = self.causality.ordered(*asked)
        return held

    def _unordered(self, stamps: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Where there was an access that does not come before what these slots do now."""
        return (stamps != 0) & ~self._holds(stamps & THREAD, self.stamps.time(stamps), slots)

    def check_read(self, slots: np.ndarray, entry: np.ndarray, access: Access) -> None:
        instruction = access.instruction
        reader = slots[:, None]
        stamps = self.written[entry]
        unwritten = stamps == 0
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
        racing, sites = self._unordered(stamps, reader), self.stamps.site(stamps)
        if strength := FLAG if access.polls else self.strengths[instruction.number]:
            racing &= strength + self.strengths[sites] <= FLAG
        if racing.any():
            site = self.instructions[sites[racing][0]]
            message = self._racing("load", instruction, site)
            self._doubt(RACE, access, message, slots, racing)
        if access.polls or self.watched.add(instruction, slots, entry, self.order.now):
            return
        stamp = self.stamps.made(instruction.number, self.order.now, reader)
        keep_two(tuple(self.read), entry, stamp, lambda kept: ~self._unordered(kept, reader))
        self.read_site[entry] = instruction.number

    def check_write(
        self,
        slots: np.ndarray,
        entry: np.ndarray,
        access: Access,
        same: Callable[[], np.ndarray] | None = None,
    ) -> None:
        """These slots store to these entries; `same` says which of them store what is there. Stores
        of equal bits by one instruction, or of one constant, do not race: see global_shadow.py."""
        instruction = access.instruction
        writer = slots[:, None]
        before, reads = self.written[entry], self.read[:, entry]
        sites, read_sites = self.stamps.site(before), self.read_site[entry]
        self._check_owner(slots, instruction, self.owner[entry])
        strength = self.strengths[instruction.number]
        after_write = self._unordered(before, writer)
        again = self.alike[sites] == self.alike[instruction.number]
        if strength:
            after_write &= (self.strengths[sites] == WEAK) & ~again
        elif same is not None and after_write.any():
            after_write &= ~again | ~same()[:, None]
        after_read = self._unordered(reads, writer).any(axis=0)
        if strength:
            after_read &= strength + self.strengths[read_sites] <= FLAG
        self._race_after(after_write, sites, slots, "store", instruction)
        if strength:
            after_write |= self._race_after_covered(after_write, slots, entry, access)
        after_read &= ~after_write.any(axis=1)[:, None]  # one race of a thread is enough
        if after_read.any():
            self._race_after_reads(after_read, read_sites, slots, instruction)
        alone = ~after_write.any(axis=1)
        self._race_after_watched(slots[alone], entry[alone], instruction)
        self.written[entry] = self.stamps.made(instruction.number, self.order.now, writer)

    def _race_after_covered(
        self, found: np.ndarray, slots: np.ndarray, entry: np.ndarray, access: Access
    ) -> np.ndarray:
        """Hold strong accesses against the last weak store too, which other strong ones may have
        covered; returns where they race. Entries where a race is `found` are left out."""
        if self.covered is None:
            self.covered = np.zeros_like(self.written)
        latest = self.written[entry]
        plain = self.strengths[self.stamps.site(latest)] == WEAK
        under = self.covered[entry] = np.where(plain, latest, self.covered[entry])
        sites = self.stamps.site(under)
        racing = self._unordered(under, slots[:, None]) & ~found
        racing &= self.alike[sites] != self.alike[access.instruction.number]
        verb = "atomic" if access.atomic else "store"
        self._race_after(racing, sites, slots, verb, access.instruction)
        return racing

    def _race_after_reads(self, racing, sites, slots, instruction: Instruction) -> None:
        """The store races if what was read is used, for which the loads must be watched."""
        asked = np.unique(sites[racing])
        self.suspicion.asked.update({*asked.tolist()} - self.suspicion.watched)
        if self.suspicion.watched:
            self._race_after(racing, sites, slots, "store", instruction)

    def _race_after_watched(self, slots, entry, instruction: Instruction) -> None:
        """The store races with watched loads whose values are used, now or later."""
        race = None

        def report(origins: np.ndarray, writers: np.ndarray, site: Instruction) -> None:
            nonlocal race
            if race is None:
                race = self.suspicion.conditional(
                    RACE, instruction, self._racing("store", instruction, site)
                )
            self.suspicion.if_used(origins, race, writers)

        self.watched.overwritten(slots, entry, self._holds, report)

    def check_order(self, slots: np.ndarray, entry: np.ndarray, instruction: Instruction) -> None:
        """Report the threads before which the last store to these bytes is not ordered."""
        stamps = self.written[entry]
        racing = self._unordered(stamps, slots[:, None])
        self._race_after(racing, self.stamps.site(stamps), slots, "access", instruction)

    def _check_owner(self, slots: np.ndarray, instruction: Instruction, owners: np.ndarray) -> None:
        if not owners.any():
            return
        for kind, message, owned in (
            (UNWAITED, OWNED, (owners == WRITTEN) | (owners == READ)),
            (OVERWRITTEN, IN_USE, owners == MBARRIER),
        ):
            if owned.any():
                self.reporter.report(kind, instruction, message, slots[owned.any(axis=1)])

    def _race_after(self, racing, sites, slots, verb: str, instruction: Instruction) -> None:
        """Report the threads with a racing entry; `sites` is the earlier access of each."""
        if racing.any():
            site = self.instructions[sites[racing][0]]
            self.race(slots[racing.any(axis=1)], verb, instruction, site)

    def race(
        self, slots: np.ndarray, verb: str, instruction: Instruction, site: Instruction
    ) -> None:
        """Report these threads: what `site` did before is not ordered."""
        self.reporter.report(RACE, instruction, self._racing(verb, instruction, site), slots)

    def _racing(self, verb: str, instruction: Instruction, site: Instruction) -> str:
        where = "the same store" if site is instruction else f"line {site.line}"
        message = f"this {verb} touches what another thread accessed at {where}, with no barrier "
        if self.causality.in_shared and self.causality.flags:
            return message + (
                "between, nor a flag that is set behind a __threadfence_block() and has one behind "
                "it where it is seen"
            )
        return message + "between"

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


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def _strengths(kernel: PtxKernel) -> np.ndarray:
    """How strong each instruction's access is; a load that polls is a flag's whatever it says. What
    a volatile store stores is a flag's if it is a constant."""
    result, constants = np.zeros(len(kernel.instructions), np.int8), constant_stores(kernel)
    for one in kernel.instructions:
        modifiers = {*one.modifiers}
        if one.opcode in ("atom", "red"):
            result[one.number] = FLAG
        elif one.opcode in ("ld", "st") and modifiers & {*STRONG_LOADS, "release"}:
            computed = "volatile" in modifiers and one.number not in constants
            result[one.number] = VOLATILE if computed else FLAG
    return result


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
