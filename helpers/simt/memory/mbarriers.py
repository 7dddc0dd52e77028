"""The barriers in shared memory (mbarrier) that count arrivals, and the bytes of copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..counters import Counters
from ..hardware import WARP
from ..instructions import Instruction
from ..lanes import Lanes
from .access import Access
from .copies import Copies, Copy
from .shadow import FREE, MBARRIER
from .shared import SharedMemory


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
    done: list[Copy] = field(default_factory=list)  # of phases that ended, seen by nobody yet
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
        read = shadow.readers[:, entries] >= 0
        read = (read & (shadow.read_times[:, entries] >= copy.began)).any(axis=0)
        written = shadow.write_site[entries] != copy.instruction.number
        return (read | written).any(axis=1)

    def find(
        self, lanes: Lanes, addresses: np.ndarray, instruction: Instruction
    ) -> Iterator[tuple[MBarrier, np.ndarray]]:
        """Yields each mbarrier with the threads that use it; reports those that are none, once."""
        access = Access(instruction, 8, 1, Counters())
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
        first, time = shadow.writer[entry], shadow.write_time[entry]
        column = self.order.column(first)
        racing = users[(seen[users // WARP, column] <= time) & (users != first)]
        if len(racing):
            shadow.check_order(racing, np.full((len(racing), 1), entry), instruction)
            seen[racing // WARP, column] = time + 1

    def initialise(self, lanes: Lanes, addresses, counts, instruction: Instruction) -> None:
        access = Access(instruction, 8, 1, Counters())
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
