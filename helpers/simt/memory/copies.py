"""Asynchronous copies into shared memory or out of it, and the mbarriers that count their bytes.

A copy into shared memory delivers its data when somebody has waited for it, not before: until
then its bytes belong to the copy, and touching them is a finding. A thread waits for its own
`cp.async` with `cp.async.wait_group`; for bulk copies and `st.async`, whoever tests the mbarrier
that counts their bytes waits. A bulk copy out of shared memory reads at once, but its bytes may
not be written until its group has been waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ..geometry import Batch, Lanes
from ..hardware import WARP
from ..instructions import Instruction
from .access import Access
from .global_memory import GlobalRaces
from .races import THREAD
from .shared import FREE, MBARRIER, WRITTEN, SharedMemory


@dataclass
class Copy:
    """Bytes in flight to shared memory: row k of `data` goes to byte `places[k]` on, for
    thread `slots[k]`."""

    instruction: Instruction
    slots: np.ndarray
    places: np.ndarray
    data: np.ndarray
    groups: np.ndarray | None = None  # of cp.async: number of the thread's group
    began: int = 0  # when, on the clock of shared memory
    reads: tuple[int, ...] = ()  # of global memory, as `GlobalRaces.take` numbers them

    def rows(self, chosen: np.ndarray) -> Copy:
        """Some rows of it."""
        groups = None if self.groups is None else self.groups[chosen]
        slots, places, data = self.slots[chosen], self.places[chosen], self.data[chosen]
        return replace(self, slots=slots, places=places, data=data, groups=groups)


@dataclass
class CopyOut:
    """A bulk copy out of shared memory without a wait so far."""

    slot: int
    group: int  # of the thread's bulk copies
    instruction: Instruction
    place: int  # in the batch's shared memory
    size: int
    read: bool = False  # and given back
    writes: tuple[int, ...] = ()  # to global memory, as `GlobalRaces.take` numbers them


class Copies:
    """All asynchronous copies of a batch that no mbarrier counts."""

    def __init__(self, shared: SharedMemory, outside: GlobalRaces):
        self.shared, self.races, self.order = shared, shared.races, shared.order
        self.outside = outside

    def start_batch(self, batch: Batch) -> None:
        self.copies: list[Copy] = []  # cp.async without a wait so far
        self.outward: list[CopyOut] = []
        # Groups of cp.async and of bulk copies, by thread.
        self.committed, self.bulk_committed = np.zeros((2, batch.slots), np.int64)
        # When a thread last fenced the asynchronous proxy, for shared and for global memory.
        self.fenced, self.fenced_global = np.zeros((2, batch.slots), np.int32)

    def end_batch(self) -> None:
        """Report the bulk copies that a block has not waited for before its end."""
        for one in self.outward:
            if not one.read:
                self.report_unwaited(one.instruction, one.slot)

    def report_unwaited(self, instruction: Instruction, slot: int) -> None:
        self.shared.reporter.report(
            "asynchronous copy not waited for",
            instruction,
            "the block may end, and its shared memory be given away, before the copy is done",
            np.array([slot]),
        )

    def fence(self, mask: np.ndarray, kinds: tuple[str, ...]) -> None:
        """These threads execute fence.proxy.async, of one memory if it names it."""
        self.order.now += 1
        if "global" not in kinds:
            self.fenced[mask] = self.order.now
        if not any(kind.startswith("shared") for kind in kinds):
            self.fenced_global[mask] = self.order.now

    def begin(self, copy: Copy) -> None:
        """The bytes belong to the copy from now on."""
        if not copy.data.size:
            return
        where = copy.places, copy.data.shape[1]
        at = copy.places[:, None] + np.arange(where[1])

        def same(after: bool) -> np.ndarray:
            bytes_ = self.shared.views[1].copy()
            if after:
                bytes_[at] = copy.data
            result = np.zeros(len(self.committed), bool)
            result[copy.slots] = after & (bytes_[at] == copy.data).all(axis=1)
            return result

        self.races.store(copy.places, copy.slots, Access(copy.instruction, where[1], 1), same)
        self.races.own(*where, WRITTEN)
        # What touches them is no race besides.
        self.races.mark(*where, copy.slots, copy.instruction, -1)
        self.shared.overwrite(*where)
        copy.began = self.order.now

    def land(self, copy: Copy, slots: np.ndarray) -> None:
        """The data is there, as if these threads had stored it now."""
        where = copy.places, copy.data.shape[1]
        self.shared.views[1][copy.places[:, None] + np.arange(where[1])] = copy.data
        self.races.own(*where, FREE)
        self.races.mark(*where, slots, copy.instruction, self.order.now)
        self.shared.overwrite(*where)
        self.shared.changes += 1
        self.outside.finish(copy.reads)

    def take(self, chosen: Callable[[Copy], np.ndarray]) -> list[Copy]:
        """Take the rows that are `chosen` out of the cp.async without a wait so far."""
        taken, kept = [], []
        for copy in self.copies:
            done = chosen(copy)
            if done.any():
                taken.append(copy.rows(done))
            if not done.all():
                kept.append(copy.rows(~done))
        self.copies = kept
        return taken

    def wait(self, mask: np.ndarray, newest: np.ndarray) -> None:
        """Deliver the cp.async of these threads, up to and including group `newest` of each."""
        for copy in self.take(lambda one: mask[one.slots] & (one.groups <= newest[one.slots])):
            self.land(copy, copy.slots)

    def wait_bulk(self, mask: np.ndarray, behind: int, written: bool) -> None:
        """Give back what bulk copies of these threads have read, but for the newest groups; with
        `written`, they have written it too."""
        kept = []
        for one in self.outward:
            done = mask[one.slot] and one.group < self.bulk_committed[one.slot] - behind
            if done and not one.read:
                self.races.own(np.array([one.place]), one.size, FREE)
                one.read = True
            if done and written:
                self.outside.finish(one.writes)
            else:
                kept.append(one)
        self.outward = kept


# ---- mbarriers ----------------------------------------------------------------------------------


@dataclass
class MBarrier:
    """The state of one mbarrier; a phase ends when no arrival and no byte is pending."""

    expected: int
    clock: np.ndarray  # per warp of the cluster: what the phases that ended have ordered
    arriving: np.ndarray  # likewise, of the phase that runs
    pending: int = 0
    bytes: int = 0
    phase: int = 0
    coming: list[tuple[int, Copy | None]] = field(default_factory=list)  # bytes not yet counted
    copies: list[Copy] = field(default_factory=list)  # counted by the phase that runs
    done: list[Copy] = field(default_factory=list)  # of phases that ended, not seen by a thread yet
    missing: bool = False  # no mbarrier at all: reported, and then left alone

    def settle(self) -> None:
        """End the phase if nothing is pending."""
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.expected
            self.clock = np.maximum(self.clock, self.arriving)
            self.arriving = np.zeros_like(self.arriving)
            self.done, self.copies = self.done + self.copies, []

    def take(self) -> None:
        """Count the bytes that have come. This is put off until a test would fail without them:
        copies are slow, and a wait that does not wait for them would be right by chance."""
        coming, self.coming = self.coming, []
        for size, copy in coming:
            self.copies += [copy] if copy else []
            self.bytes -= size
            self.settle()


class MBarriers:
    """All mbarriers of a batch."""

    def __init__(self, shared: SharedMemory, copies: Copies):
        self.shared, self.copies = shared, copies
        self.races, self.order = shared.races, shared.order
        self.changes = 0  # counts what may end a wait

    def start_batch(self) -> None:
        self.at: dict[int, MBarrier] = {}  # by the byte in the batch's shared memory
        self.failed = ""  # what the last test that failed was waiting for

    def end_batch(self) -> None:
        """Report the copies that a block has not waited for before its end."""
        for barrier in self.at.values():
            barrier.take()
            for copy in barrier.copies + barrier.done:
                about = copy.places, copy.data.shape[1], copy.instruction, copy.began
                unused = ~self.races.touched(*about)  # a use without a wait has been reported
                for slot in copy.slots[unused]:
                    self.copies.report_unwaited(copy.instruction, int(slot))

    def find(
        self, lanes: Lanes, addresses: np.ndarray, instruction: Instruction
    ) -> Iterator[tuple[MBarrier, np.ndarray]]:
        """Yields each mbarrier with the threads that use it; reports those that are none, once."""
        access = Access(instruction, 8, 1)
        slots, places = self.shared.valid(addresses, access, lanes, "load")
        for place in np.unique(places):
            users = slots[places == place]
            barrier = self.at.get(int(place))
            if barrier is None:
                self.shared.reporter.report(
                    "mbarrier not initialised",
                    instruction,
                    "no thread has executed mbarrier.init there",
                    users,
                )
                none = np.zeros(0, np.int32)
                barrier = self.at[int(place)] = MBarrier(0, none, none, missing=True)
            if barrier.missing:
                continue
            self._check_init(users, int(place), instruction)
            yield barrier, users

    def _check_init(self, users: np.ndarray, place: int, instruction: Instruction) -> None:
        """Report the threads before which mbarrier.init is not ordered; their warps know it from
        now on, so that one report does for all uses."""
        stamp, races, seen = self.races.last_store(place), self.races, self.order.seen
        racing = users[~races.ordered(np.full(len(users), stamp), users)]
        if len(racing):
            races.race(racing, "access", instruction, races.instructions[races.site(stamp)])
            column = self.order.column((stamp & THREAD) - races.causality.first)
            seen[racing // WARP, column] = races.time(stamp) + 1

    def initialise(self, lanes: Lanes, addresses, counts, instruction: Instruction) -> None:
        access = Access(instruction, 8, 1)
        slots, places = self.shared.valid(addresses, access, lanes, "store")
        self.races.store(places, slots, access)
        self.shared.overwrite(places, 8)
        self.races.own(places, 8, MBARRIER)
        for slot, place in zip(slots, places, strict=True):
            count = int(counts[slot])
            clock = np.zeros(self.order.warps, np.int32)
            self.at[int(place)] = MBarrier(count, clock, clock.copy(), count)
        self.changes += 1

    def invalidate(self, barrier: MBarrier) -> None:
        """Its bytes may hold something else."""
        (place,) = (place for place, one in self.at.items() if one is barrier)
        del self.at[place]
        self.races.own(np.array([place]), 8, FREE)

    def arrive(self, barrier: MBarrier, slots: np.ndarray, counts, expected, drop: bool) -> None:
        """Each thread announces `expected` bytes, then arrives `counts` times, in lane order."""
        self.changes += 1
        order = self.order
        order.now += 1
        for slot in slots:
            if barrier.pending <= 0:
                barrier.take()  # all have arrived, so that only bytes can end the phase
            barrier.bytes += int(expected[slot])
            barrier.pending -= int(counts[slot])
            barrier.expected -= int(counts[slot]) if drop else 0
            clock = barrier.arriving
            np.maximum(clock, order.seen[slot // WARP], out=clock)
            clock[order.column(slot)] = order.now
            barrier.settle()

    def complete(self, barrier: MBarrier, size: int, copy: Copy | None = None) -> None:
        """`size` bytes have come; `copy` is what brought them."""
        self.changes += 1
        barrier.coming.append((size, copy))

    def send(self, copy: Copy, lanes: Lanes, addresses: np.ndarray, size: int) -> None:
        """Begin a copy of these lanes; the mbarriers at their addresses count `size` bytes each."""
        self.copies.begin(copy)
        counted = np.zeros(len(copy.slots), bool)
        for barrier, users in self.find(lanes, addresses, copy.instruction):
            ours = np.isin(copy.slots, users)
            self.complete(barrier, len(users) * size, copy.rows(ours))
            counted |= ours
        if not counted.all():
            self.copies.land(copy.rows(~counted), copy.slots[~counted])

    def observe(self, barrier: MBarrier, slots: np.ndarray) -> None:
        """These threads have seen that the last phase is over: what it ordered, is ordered."""
        shared, order, warps = self.shared, self.order, np.unique(slots // WARP)
        for copy in barrier.done:
            self.copies.land(copy, np.repeat(slots[:1], len(copy.slots)))
            shared.received(copy.slots, slots[0] // shared.padded, copy.instruction)
        if barrier.done:
            order.now += 1
            barrier.clock[order.column(slots[0])] = order.now
        barrier.done = []
        order.seen[warps] = np.maximum(order.seen[warps], barrier.clock)
