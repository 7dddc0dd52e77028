"""Asynchronous copies into shared memory or out of it, and the mbarriers that count their bytes.

A copy into shared memory delivers its data when somebody has waited for it, not before: until
then its bytes belong to the copy, and touching them is a finding. A thread waits for its own
`cp.async` with `cp.async.wait_group`; for bulk copies and `st.async`, whoever tests the mbarrier
that counts their bytes waits. A bulk copy out of shared memory reads at once, but its bytes may
not be written until its group has been waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ..geometry import Batch
from ..hardware import WARP
from ..instructions import Instruction
from ..lanes import Lanes
from .access import Access
from .global_shadow import GlobalShadow
from .shadow import FREE, MBARRIER, WRITTEN
from .shared import SharedMemory
from .stamps import THREAD


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
    reads: tuple[int, ...] = ()  # of global memory, as its shadow numbers them

    def rows(self, chosen: np.ndarray) -> Copy:
        """Some rows of it."""
        groups = None if self.groups is None else self.groups[chosen]
        slots, places, data = self.slots[chosen], self.places[chosen], self.data[chosen]
        return replace(self, slots=slots, places=places, data=data, groups=groups)


@dataclass
class CopyOut:
    """A bulk copy out of shared memory that nobody has waited for."""

    slot: int
    group: int  # of the thread's bulk copies
    instruction: Instruction
    entries: np.ndarray | None  # of the shadow; None: they have been read
    writes: tuple[int, ...] = ()  # to global memory, as its shadow numbers them


class Copies:
    """All asynchronous copies of a batch that no mbarrier counts."""

    def __init__(self, shared: SharedMemory, outside: GlobalShadow):
        self.shared, self.shadow, self.outside = shared, shared.shadow, outside

    def start_batch(self, batch: Batch) -> None:
        self.copies: list[Copy] = []  # cp.async that nobody has waited for
        self.outward: list[CopyOut] = []
        # Groups of cp.async and of bulk copies, by thread.
        self.committed, self.bulk_committed = np.zeros((2, batch.slots), np.int64)
        # When a thread last fenced the asynchronous proxy, for shared and for global memory.
        self.fenced, self.fenced_global = np.zeros((2, batch.slots), np.int32)

    def end_batch(self) -> None:
        """Report the bulk copies that a block has not waited for before its end."""
        for one in self.outward:
            if one.entries is not None:
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
        self.shadow.order.now += 1
        if "global" not in kinds:
            self.fenced[mask] = self.shadow.order.now
        if not any(kind.startswith("shared") for kind in kinds):
            self.fenced_global[mask] = self.shadow.order.now

    def begin(self, copy: Copy) -> None:
        """The bytes belong to the copy from now on."""
        if not copy.data.size:
            return
        entries = self.shadow.entries(copy.places, copy.data.shape[1])
        access = Access(copy.instruction, copy.data.shape[1], 1)
        self.shadow.check_write(copy.slots, entries, access)
        self.shadow.owner[entries] = WRITTEN
        # What touches them is no race besides.
        stamps = self.shadow.stamps.made(copy.instruction.number, -1, copy.slots[:, None])
        self.shadow.written[entries] = stamps
        copy.began = self.shadow.order.now
        order = np.argsort(copy.places, kind="stable")
        same = np.diff(copy.places[order]) == 0
        lost = order[:-1][same & (np.diff(copy.data[order], axis=0) != 0).any(axis=1)]
        if len(lost):
            message = "threads copy different values to one place with the same instruction"
            self.shared.reporter.report(
                "race on shared memory", copy.instruction, message, copy.slots[lost]
            )

    def land(self, copy: Copy, slots: np.ndarray) -> None:
        """The data is there, as if these threads had stored it now."""
        shadow, size = self.shadow, copy.data.shape[1]
        self.shared.views[1][copy.places[:, None] + np.arange(size)] = copy.data
        entries = self.shadow.entries(copy.places, size)
        shadow.owner[entries] = FREE
        now, number = shadow.order.now, copy.instruction.number
        shadow.written[entries] = shadow.stamps.made(number, now, slots[:, None])
        self.shared.carried.overwrite(copy.places, size)
        self.shared.changes += 1
        self.outside.finish(copy.reads)

    def wait(self, mask: np.ndarray, newest: np.ndarray) -> None:
        """Deliver the cp.async of these threads, up to and including group `newest` of each."""
        kept = []
        for copy in self.copies:
            done = mask[copy.slots] & (copy.groups <= newest[copy.slots])
            if done.any():
                self.land(copy.rows(done), copy.slots[done])
            if not done.all():
                kept.append(copy.rows(~done))
        self.copies = kept

    def wait_bulk(self, mask: np.ndarray, behind: int, written: bool) -> None:
        """Give back what bulk copies of these threads have read, but for the newest groups; with
        `written`, they have written it too."""
        kept = []
        for one in self.outward:
            done = mask[one.slot] and one.group < self.bulk_committed[one.slot] - behind
            if done and one.entries is not None:
                self.shadow.owner[one.entries], one.entries = FREE, None
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
        self.shadow, self.order = shared.shadow, shared.order
        self.changes = 0  # counts what may end a wait

    def start_batch(self) -> None:
        self.at: dict[int, MBarrier] = {}  # by the byte in the batch's shared memory
        self.failed = ""  # what the last test that failed was waiting for

    def end_batch(self) -> None:
        """Report the copies that a block has not waited for before its end."""
        for barrier in self.at.values():
            barrier.take()
            for copy in barrier.copies + barrier.done:
                unused = ~self._used(copy)  # a use without a wait has been reported
                for slot in copy.slots[unused]:
                    self.copies.report_unwaited(copy.instruction, int(slot))

    def _used(self, copy: Copy) -> np.ndarray:
        """Whether a thread has touched bytes of the copy since it began, for each of its rows."""
        shadow, entries = self.shadow, self.shadow.entries(copy.places, copy.data.shape[1])
        reads = shadow.read[:, entries]
        read = ((reads != 0) & (shadow.stamps.time(reads) >= copy.began)).any(axis=0)
        written = shadow.stamps.site(shadow.written[entries]) != copy.instruction.number
        return (read | written).any(axis=1)

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
        shadow, seen, entry = self.shadow, self.order.seen, place // self.shadow.grain
        first, time = shadow.written[entry] & THREAD, shadow.stamps.time(shadow.written[entry])
        column = self.order.column(first)
        racing = users[(seen[users // WARP, column] <= time) & (users != first)]
        if len(racing):
            shadow.check_order(racing, np.full((len(racing), 1), entry), instruction)
            seen[racing // WARP, column] = time + 1

    def initialise(self, lanes: Lanes, addresses, counts, instruction: Instruction) -> None:
        access = Access(instruction, 8, 1)
        slots, places = self.shared.valid(addresses, access, lanes, "store")
        entries = self.shadow.entries(places, 8)
        self.shadow.check_write(slots, entries, access)
        self.shadow.owner[entries] = MBARRIER
        for slot, place in zip(slots, places, strict=True):
            count = int(counts[slot])
            clock = np.zeros(self.order.warps, np.int32)
            self.at[int(place)] = MBarrier(count, clock, clock.copy(), count)
        self.changes += 1

    def invalidate(self, barrier: MBarrier) -> None:
        """Its bytes may hold something else."""
        (place,) = (place for place, one in self.at.items() if one is barrier)
        del self.at[place]
        self.shadow.owner[self.shadow.entries(np.array([place]), 8)] = FREE

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
