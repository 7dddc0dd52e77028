"""Asynchronous copies on their way into shared memory, or out of it.

A copy into shared memory delivers its data when somebody has waited for it, not before: until
then its bytes belong to the copy, and touching them is a finding. A thread waits for its own
`cp.async` with `cp.async.wait_group`; for bulk copies and `st.async`, whoever tests the mbarrier
that counts their bytes waits. A bulk copy out of shared memory reads at once, but its bytes may
not be written until its group has been waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..counters import Counters
from ..geometry import Batch
from ..instructions import Instruction
from .access import Access
from .global_shadow import GlobalShadow
from .shadow import FREE, WRITTEN
from .shared import SharedMemory


@dataclass
class Copy:
    """Bytes on their way into shared memory: row k of `data` goes to byte `places[k]` on, for
    thread `slots[k]`."""

    instruction: Instruction
    slots: np.ndarray
    places: np.ndarray
    data: np.ndarray
    groups: np.ndarray | None = None  # of cp.async: number of the thread's group
    began: int = 0  # when, on the clock of shared memory
    reads: tuple[int, ...] = ()  # of global memory, as its shadow numbers them


@dataclass
class PendingRead:
    """A bulk copy out of shared memory that nobody has waited for."""

    slot: int
    group: int  # of the thread's bulk copies
    entries: np.ndarray  # of the shadow
    instruction: Instruction
    writes: tuple[int, ...] = ()  # to global memory, as its shadow numbers them


class Copies:
    """All asynchronous copies of a batch that no mbarrier counts."""

    def __init__(self, shared: SharedMemory, outside: GlobalShadow):
        self.shared, self.shadow, self.outside = shared, shared.shadow, outside

    def start_batch(self, batch: Batch) -> None:
        self.copies: list[Copy] = []  # cp.async that nobody has waited for
        self.committed = np.zeros(batch.slots, np.int64)  # groups of cp.async, by thread
        self.bulk_committed = np.zeros(batch.slots, np.int64)
        self.reading: list[PendingRead] = []
        self.writing: list[PendingRead] = []  # those whose bytes may not have come to global memory
        # When a thread last fenced the asynchronous proxy, for shared and for global memory.
        self.fenced, self.fenced_global = np.zeros((2, batch.slots), np.int32)

    def end_batch(self) -> None:
        """Report the bulk copies that a block has not waited for before its end."""
        for one in self.reading:
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
        access = Access(copy.instruction, copy.data.shape[1], 1, Counters())
        self.shadow.check_write(copy.slots, entries, access)
        self.shadow.owner[entries] = WRITTEN
        self.shadow.write_time[entries] = -1  # what touches them is no race besides
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
        shadow.writer[entries] = slots[:, None]
        shadow.write_strength[entries] = 0
        shadow.write_time[entries] = shadow.order.now
        shadow.write_site[entries] = copy.instruction.number
        self.shared.carried.overwrite(copy.places, size)
        self.shared.changes += 1
        self.outside.finish(copy.reads)

    def wait(self, mask: np.ndarray, newest: np.ndarray) -> None:
        """Deliver the cp.async of these threads, up to and including group `newest` of each."""
        kept = []
        for copy in self.copies:
            done = mask[copy.slots] & (copy.groups <= newest[copy.slots])
            if done.any():
                self.land(part_of(copy, done), copy.slots[done])
            if not done.all():
                kept.append(part_of(copy, ~done))
        self.copies = kept

    def wait_bulk(self, mask: np.ndarray, behind: int, written: bool) -> None:
        """Give back what bulk copies of these threads have read, but for the newest groups; with
        `written`, they have written it too."""

        def done(one: PendingRead) -> bool:
            return mask[one.slot] and one.group < self.bulk_committed[one.slot] - behind

        for one in self.reading:
            if done(one):
                self.shadow.owner[one.entries] = FREE
        self.reading = [one for one in self.reading if not done(one)]
        if written:
            for one in self.writing:
                if done(one):
                    self.outside.finish(one.writes)
            self.writing = [one for one in self.writing if not done(one)]


def part_of(copy: Copy, chosen: np.ndarray) -> Copy:
    """Some rows of a copy."""
    groups = None if copy.groups is None else copy.groups[chosen]
    rows = copy.slots[chosen], copy.places[chosen], copy.data[chosen]
    return Copy(copy.instruction, *rows, groups, copy.began, copy.reads)
