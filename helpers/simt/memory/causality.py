"""Which accesses of memory come before which: the causality order of the PTX memory model.

Barriers order the threads of a block and of a cluster: see order.py. All others are ordered by what
threads write and read, in global or shared memory ([ptx] "Memory Consistency Model"):

- Release pattern: a releasing write, or a fence followed by a strong write of the same thread.
- Acquire pattern: an acquiring read, or a strong read followed by a fence of the same thread.
- A release synchronizes with an acquire that reads what it wrote, or what a chain of atomics made
  of it ("Observation order"), where fences and accesses have scopes that include the other thread
  ("Morally strong operations").
- Causality is transitive: a release passes on all that its thread knew at the fence.

Beyond the letter of the model, one usual pattern counts as ordered: threads write, each one
executes a fence, all meet at a barrier, and one of them tells other blocks by a strong write. What
a thread wrote before its own fence is then passed on too. The same holds for a fence behind a
barrier that follows somebody else's read; and a volatile read behind such a barrier needs no fence.

Strong accesses do not race with one another, and yet a volatile value may be read too early. That
is seen by `Beliefs`: what would be ordered if every flag had its fences.

What a release passes on is a `Node`; knowledge of it is worked out when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ..geometry import Batch
from ..hardware import WARP
from .access import Access
from .order import Order

# Scopes of strong accesses and of fences, and how far two threads are apart: in one block, in one
# cluster, further. A weak access has no scope. There is one GPU, so that its scope is the system's.
WEAK, BLOCK, CLUSTER, GPU = range(4)
SCOPES = {"cta": BLOCK, "cluster": CLUSTER, "gpu": GPU, "gl": GPU, "sys": GPU}


def scope_of(modifiers: tuple[str, ...], otherwise: int) -> int:
    """The scope that an instruction names."""
    return next((SCOPES[name] for name in modifiers if name in SCOPES), otherwise)


@dataclass
class Known:
    """Up to when the accesses of others are known: of whole warps of the launch, and of threads."""

    warps: np.ndarray
    threads: dict[int, int]
    sorted: tuple[np.ndarray, np.ndarray] | None = None

    def holds(self, threads: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Whether accesses of these threads at these times are among it."""
        result = times < self.warps[threads // WARP]
        if self.threads and not result.all():
            if self.sorted is None:
                names = np.array(sorted(self.threads), np.int64)
                self.sorted = names, np.array([self.threads[int(name)] for name in names])
            names, until = self.sorted
            place = np.minimum(np.searchsorted(names, threads), len(names) - 1)
            result |= (names[place] == threads) & (times < until[place])
        return result


@dataclass(eq=False)
class Node:
    """What somebody released: what `parents` passed on, warps `first` and on until the times of
    `row`, single threads until theirs."""

    parents: tuple[Node, ...] = ()
    first: int = 0
    row: np.ndarray | None = None
    threads: dict[int, int] = field(default_factory=dict)
    known: Known | None = None


@dataclass(eq=False)
class Flag:
    """What can be learned from a word, by how far away from the reader it was released: by
    (scope, number of the block or cluster; 0 for the GPU)."""

    chains: dict[tuple[int, int], Node] = field(default_factory=dict)
    line: object = field(default_factory=object)  # the same where atomics have gone on with it


@dataclass(eq=False)
class Lesson:
    """These threads of a cluster have learned of nodes, at a time: they have acquired them, or one
    of them has observed a flag by a strong read, and no fence of its scope has followed yet."""

    slots: np.ndarray
    time: int
    nodes: tuple[Node, ...]
    latest: int = 0  # what is known ends there, if the time is but the first of several
    flag: Flag | None = None  # the part of it that was observed
    scope: int = 0  # of the read

    @property
    def end(self) -> int:
        """Nothing that came at that time or later is known by it."""
        return self.latest or self.time


class Lessons:
    """Lessons of the threads of one cluster, the latest last; the threads of all stand side by
    side, for there may be hundreds."""

    def __init__(self, entries: Iterable[Lesson] = ()):
        self.entries = list(entries)
        counts = [len(one.slots) for one in self.entries]
        self.slots = np.concatenate([np.zeros(0, np.int64), *(one.slots for one in self.entries)])
        self.times = np.repeat([one.time for one in self.entries], counts).astype(np.int64)
        self.starts = np.cumsum([0, *counts])[:-1]
        self.ends = np.array([one.end for one in self.entries], np.int64)

    def add(self, one: Lesson) -> None:
        self.entries.append(one)
        self.starts = np.append(self.starts, len(self.slots))
        self.slots = np.append(self.slots, one.slots)
        self.times = np.append(self.times, np.full(len(one.slots), one.time))
        self.ends = np.append(self.ends, one.end)

    def any(self, of_slots: np.ndarray) -> np.ndarray:
        """By entry, whether it holds for one of its threads; the last axis is that of `slots`."""
        return np.logical_or.reduceat(of_slots, self.starts, axis=-1)


NOTHING = Lessons()
AT_ONCE = 4096  # slots that are held against all lessons


class Causality:
    """Who knows of whose accesses. Times are those of `order`; threads are numbered through the
    launch, slots through the batch."""

    def __init__(self, order: Order, beliefs: Beliefs | None = None):
        self.order, self.beliefs = order, beliefs
        # By address; blocks of later batches read them too. In shared memory it is below 0.
        self.flags: dict[int, Flag] = {}

    def start_batch(self, batch: Batch) -> None:
        self.padded, self.per_cluster = batch.padded, batch.padded * batch.shape.cluster_blocks
        self.first = batch.first * batch.padded  # thread in slot 0
        self.flags = {address: flag for address, flag in self.flags.items() if address >= 0}
        self.all_warps = batch.shape.blocks * batch.padded // WARP
        # Of each slot, by scope: when it last executed a fence at least so wide; and what its warp
        # had seen then. Made by the first fence.
        self.fenced: np.ndarray | None = None
        self.seen: dict[int, np.ndarray] = {}
        self.acquired: dict[int, Lessons] = {}  # by cluster of the batch
        self.observed: dict[int, Lessons] = {}
        self.published: dict[tuple[int, int], tuple[tuple[int, int], Node]] = {}
        self.latest: dict[bytes, tuple[Node, ...]] = {}  # what these slots acquired last
        if self.beliefs:
            self.beliefs.start_batch(batch)

    # ---- asking ----

    def distance(self, threads: np.ndarray, others: np.ndarray) -> np.ndarray:
        """The scope that two threads have in common, the narrowest."""
        result = np.full(np.broadcast(threads, others).shape, GPU)
        result[threads // self.per_cluster == others // self.per_cluster] = CLUSTER
        result[threads // self.padded == others // self.padded] = BLOCK
        return result

    def ordered(
        self, threads: np.ndarray, times: np.ndarray, slots: np.ndarray, strong: bool = False
    ) -> np.ndarray:
        """Whether accesses of these threads at these times come before what the slots do now.
        A strong access comes behind somebody's strong read without a fence between, if a barrier
        has told it."""
        earlier = threads - self.first
        result = earlier == slots
        near = earlier // self.per_cluster == slots // self.per_cluster
        if near.any():
            result[near] |= self.order.holds(earlier[near], times[near], slots[near])
        if not (self.acquired or strong and self.observed) or result.all():
            return result
        left = np.flatnonzero(~result)
        clusters = slots[left] // self.per_cluster
        for cluster in np.unique(clusters).tolist():
            with_hints = left[clusters == cluster]
            # Threads of an earlier batch had another clock.
            clock = np.where(earlier[with_hints] >= 0, times[with_hints], -1)
            observed = self.observed.get(cluster, NOTHING) if strong else NOTHING
            for lessons, own in ((self._of(cluster), True), (observed, False)):
                for one, seeing in self._seen(lessons, slots[with_hints], clock, own):
                    for node in one.nodes:
                        asking = with_hints[seeing]
                        asking = asking[~result[asking]]
                        if len(asking):
                            known = self.known(node)
                            result[asking] = known.holds(threads[asking], times[asking])
        return result

    def _of(self, cluster: int) -> Lessons:
        """What threads of a cluster have acquired; what all of them know is joined."""
        lessons = self.acquired.get(cluster, NOTHING)
        if len(lessons.entries) < 2:
            return lessons
        warps = slice(cluster * self.order.warps, (cluster + 1) * self.order.warps)
        least = self.order.seen[warps].min(axis=0)
        shared = lessons.any(least[lessons.slots // WARP % self.order.warps] > lessons.times)
        if shared.sum() > 1:
            common = [lessons.entries[number] for number in np.flatnonzero(shared)]
            rest = [lessons.entries[number] for number in np.flatnonzero(~shared)]
            nodes = tuple(dict.fromkeys(node for one in common for node in one.nodes))
            latest = max(one.end for one in common)
            joined = Lesson(common[0].slots, common[0].time, (Node(nodes),), latest)
            lessons = self.acquired[cluster] = Lessons([joined, *rest])
        return lessons

    def _seen(
        self,
        lessons: Lessons,
        slots: np.ndarray,
        after: np.ndarray | None = None,
        own: bool = True,
    ) -> Iterator[tuple[Lesson, np.ndarray]]:
        """Entries with those of the slots, of the same cluster, that know what its threads knew at
        that time; the latest first, which knows most. Its threads are among them if they may be
        their `own` teachers, or have met others since. For each slot those that end `after`."""
        if not lessons.entries:
            return
        for first in range(0, len(slots), AT_ONCE):
            some = slots[first : first + AT_ONCE, None]
            seen = self.order.until(some, lessons.slots) > lessons.times
            sees = lessons.any(seen | (some == lessons.slots) if own else seen)
            if after is not None:
                sees &= lessons.ends > after[first : first + AT_ONCE, None]
            for number in np.flatnonzero(sees.any(axis=0))[::-1].tolist():
                yield lessons.entries[number], first + np.flatnonzero(sees[:, number])

    def known(self, node: Node) -> Known:
        """All that a node passes on, worked out once."""
        if node.known is not None:
            return node.known
        warps = np.zeros(self.all_warps, np.int32)
        threads: dict[int, int] = {}
        waiting, met = [node], {id(node)}
        while waiting:
            one = waiting.pop()
            singles = one.threads
            if one.known is not None:
                np.maximum(warps, one.known.warps, out=warps)
                singles = one.known.threads
            elif one.row is not None:
                there = warps[one.first : one.first + len(one.row)]
                np.maximum(there, one.row, out=there)
            for thread, time in singles.items():
                threads[thread] = max(time, threads.get(thread, 0))
            waiting += [up for up in one.parents if id(up) not in met]
            met.update(map(id, one.parents))
        node.known, node.parents = Known(warps, threads), ()  # they are not asked again
        return node.known

    # ---- fences ----

    def fence(self, mask: np.ndarray, scope: int, releases: bool, acquires: bool) -> None:
        """These threads execute a fence. What it acquires, it also passes on."""
        order = self.order
        slots = np.flatnonzero(mask)
        if acquires and self.observed:
            clusters = slots // self.per_cluster
            for cluster in np.unique(clusters).tolist():
                if cluster in self.observed:
                    self._acquire_observed(cluster, slots[clusters == cluster], scope)
        order.now += 1
        if releases:
            if self.fenced is None:
                self.fenced = np.zeros((GPU + 1, len(mask)), np.int32)
            self.fenced[BLOCK : scope + 1, slots] = order.now
            warps = np.unique(slots // WARP)
            for narrower in range(BLOCK, scope + 1):
                if narrower not in self.seen:
                    self.seen[narrower] = np.zeros_like(order.seen)
                self.seen[narrower][warps] = order.seen[warps]

    def _acquire_observed(self, cluster: int, slots: np.ndarray, scope: int) -> None:
        observed, done = self.observed[cluster], set()
        for one, seeing in self._seen(observed, slots):
            self._acquire(slots[seeing], _within(one.flag.chains, min(scope, one.scope)))
            if one.slots[0] in slots[seeing] and scope >= one.scope:
                done.add(one)
        if done:
            self.observed[cluster] = Lessons(o for o in observed.entries if o not in done)

    def _acquire(self, slots: np.ndarray, nodes: tuple[Node, ...]) -> None:
        if nodes and self.latest.get(slots.tobytes()) != nodes:  # a poll acquires again and again
            self.latest[slots.tobytes()] = nodes
            cluster = int(slots[0]) // self.per_cluster
            lessons = self.acquired.setdefault(cluster, Lessons())
            lessons.add(Lesson(slots, self.order.now, nodes))
            self.order.now += 1

    # ---- strong accesses ----

    def read(self, slots: np.ndarray, addresses: np.ndarray, access: Access) -> None:
        """Strong reads."""
        if self.beliefs and access.polls:
            self.beliefs.read(slots, addresses, access)
        if self.flags:
            for slot, address in zip(slots.tolist(), addresses.tolist(), strict=True):
                if address in self.flags:
                    self._observe(slot, self.flags[address], access.scope, self._acquires(access))

    def _observe(self, slot: int, flag: Flag, scope: int, acquires: bool) -> None:
        thread = slot + self.first
        units = {(BLOCK, thread // self.padded), (CLUSTER, thread // self.per_cluster), (GPU, 0)}
        chains = {unit: node for unit, node in flag.chains.items() if unit in units}
        if not chains:
            return
        if acquires:
            self._acquire(np.array([slot]), _within(chains, scope))
            return
        cluster = slot // self.per_cluster
        mine = self.observed.setdefault(cluster, Lessons())
        for number in np.flatnonzero(mine.slots == slot).tolist():
            known = mine.entries[number]
            if known.flag.chains == chains:
                return
            # Who polls what many change needs but the last of it.
            same = known.flag.line is flag.line and known.scope == scope
            if same and not self._told(slot, known.time):
                known.flag, known.latest = Flag(chains, flag.line), self.order.now
                known.nodes = _within(chains, scope)
                mine.ends[number] = self.order.now
                self.order.now += 1
                return
        seen = Flag(chains, flag.line)
        nodes, now = _within(chains, scope), self.order.now
        mine.add(Lesson(np.array([slot]), now, nodes, flag=seen, scope=scope))
        self.order.now += 1

    def _told(self, slot: int, time: int) -> bool:
        """Whether somebody knows what a thread knew at that time."""
        order, warp = self.order, slot // WARP
        warps = slice(warp // order.warps * order.warps, (warp // order.warps + 1) * order.warps)
        told = (order.seen[warps, order.column(slot)] > time).any()
        lanes = order.lanes
        return bool(told or lanes is not None and (lanes[warp, :, slot % WARP] > time).any())

    def write(self, slots: np.ndarray, addresses: np.ndarray, access: Access) -> None:
        """Strong writes, which end what could be learned there."""
        if self.beliefs:
            self.beliefs.write(slots, addresses, access)
        if not self.flags and self.fenced is None and not self._releases(access):
            return
        for slot, address in zip(slots.tolist(), addresses.tolist(), strict=True):
            released = self._release(slot, access)
            if released:
                self.flags[address] = Flag(released)
            else:
                self.flags.pop(address, None)

    def change(
        self,
        slots: np.ndarray,
        addresses: np.ndarray,
        wrote: np.ndarray,
        access: Access,
    ) -> None:
        """Atomics, in this order: each reads what the one before it wrote, and passes it on."""
        if self.beliefs:
            self.beliefs.change(slots, addresses, wrote, access)
        if not self.flags and self.fenced is None and not self._releases(access):
            return
        acquires = self._acquires(access)
        for slot, address, changes in zip(
            slots.tolist(), addresses.tolist(), wrote.tolist(), strict=True
        ):
            flag = self.flags.get(address)
            if flag is not None:
                self._observe(slot, flag, access.scope, acquires)
            released = self._release(slot, access) if changes else {}
            if released:
                chains = dict(flag.chains) if flag else {}
                for unit, node in released.items():
                    chains[unit] = Node((chains[unit], node)) if unit in chains else node
                self.flags[address] = Flag(chains, flag.line if flag else object())

    def weak_write(self, addresses: np.ndarray) -> None:
        """Nothing can be learned from what an ordinary store writes."""
        if self.beliefs:
            self.beliefs.weak_write(addresses)
        for address in self.flags.keys() & set(addresses.tolist()):
            del self.flags[address]

    def _acquires(self, access: Access) -> bool:
        return access.acquires

    def _releases(self, access: Access) -> bool:
        return access.releases

    def _release(self, slot: int, access: Access) -> dict[tuple[int, int], Node]:
        """What a strong write of this thread passes on: all until now if it releases, else what
        came before fences."""
        if access.releases:
            self.order.now += 1
            return self._all_until(slot, self.order.now, access.scope)
        result = {}
        for level in range(BLOCK, access.scope + 1):
            if self.fenced is not None and (node := self._fenced_node(slot, level)):
                result[self._units(slot, level)[-1]] = node
        return result

    def _all_until(self, slot: int, time: int, scope: int) -> dict[tuple[int, int], Node]:
        node = self._publish(slot, time, self.order.seen[slot // WARP])
        return {unit: node for unit in self._units(slot, scope)}

    def _units(self, slot: int, scope: int) -> list[tuple[int, int]]:
        thread = slot + self.first
        return [
            (BLOCK, thread // self.padded),
            (CLUSTER, thread // self.per_cluster),
            (GPU, 0),
        ][:scope]

    def _fenced_node(self, slot: int, level: int) -> Node | None:
        """What came before the last fence of this thread; and what others of its cluster did
        before their own, where a barrier has told this thread since."""
        order, stamp = self.order, (int(self.fenced[level, slot]), self.order.now)
        known = self.published.get((slot, level))
        if known and known[0] == stamp:
            return known[1]
        row = self.seen[level][slot // WARP] if stamp[0] else np.zeros(order.warps, np.int32)
        start = slot // self.per_cluster * self.per_cluster
        others = start + np.flatnonzero(self.fenced[level, start : start + self.per_cluster])
        until = self.fenced[level, others]
        columns = others // WARP % order.warps
        told = (order.until(slot, others) > until) & (row[columns] <= until)
        told &= others != slot
        singles = dict(zip((others[told] + self.first).tolist(), until[told].tolist(), strict=True))
        node = None
        if stamp[0] or singles:
            node = self._publish(slot, stamp[0], row, singles)
        self.published[slot, level] = stamp, node
        return node

    def _publish(self, slot: int, time: int, row: np.ndarray, singles: dict | None = None) -> Node:
        first = slot // self.per_cluster * self.order.warps + self.first // WARP
        parents: list[Node] = []
        lessons = self._of(slot // self.per_cluster)
        if lessons.entries:
            own = (lessons.slots == slot) & (lessons.times < time)
            told = row[lessons.slots // WARP % self.order.warps] > lessons.times
            if self.order.lanes is not None:  # lanes of its warp may have told it alone
                near = lessons.slots // WARP == slot // WARP
                told |= near & (self.order.until(slot, lessons.slots) > lessons.times)
            for number in np.flatnonzero(lessons.any(own | told)).tolist():
                parents += lessons.entries[number].nodes
        threads = dict(singles or {})
        if time:
            if self.order.lanes is not None:
                known = np.minimum(self.order.lanes[slot // WARP, slot % WARP], time)
                others = slot // WARP * WARP + self.first
                for lane in np.flatnonzero(known).tolist():
                    threads[others + lane] = max(int(known[lane]), threads.get(others + lane, 0))
            threads[slot + self.first] = time
        return Node(tuple(parents), first, row.copy(), threads)

    def before_fences(self, warps: np.ndarray, scope: int) -> np.ndarray:
        """What each of these warps had seen, and done itself, before its last fence at least so
        wide; that it has started, time 1, if there was none."""
        rows, last = np.zeros((len(warps), self.order.warps), np.int32), 1
        if scope in self.seen:
            rows[:] = self.seen[scope][warps]
            last = np.maximum(self.fenced[scope].reshape(-1, WARP)[warps].max(axis=1), 1)
        rows[np.arange(len(warps)), warps % self.order.warps] = last
        return rows

    # ---- for what is said of a race ----

    def last_fence(self, slot: int, scope: int) -> int:
        """When a thread last executed a fence at least so wide; 0 for never."""
        return 0 if self.fenced is None else int(self.fenced[scope, slot])


def _within(chains: dict[tuple[int, int], Node], scope: int) -> tuple[Node, ...]:
    """What a read of that scope learns of."""
    return tuple(node for (level, _), node in chains.items() if level <= scope)


class Beliefs(Causality):
    """What a kernel seems to rely on: that whoever sees a flag sees all that came before it. What
    is read from an atomic or in a loop that waits is a flag; every strong write may be one."""

    def write(self, slots: np.ndarray, addresses: np.ndarray, access: Access) -> None:
        self.now = self.order.now
        super().write(slots, addresses, access)
        self.order.now += 1  # of two strong writes of a thread, the second tells of the first

    def change(
        self, slots: np.ndarray, addresses: np.ndarray, wrote: np.ndarray, access: Access
    ) -> None:
        self.now = self.order.now  # what each of these threads reads moves the clock on
        super().change(slots, addresses, wrote, access)
        self.order.now += 1

    def _observe(self, slot: int, flag: Flag, scope: int, acquires: bool) -> None:
        if acquires:
            super()._observe(slot, flag, GPU, True)

    def _acquires(self, access: Access) -> bool:
        return access.instruction.opcode != "red"

    def _releases(self, access: Access) -> bool:
        return True

    def _release(self, slot: int, access: Access) -> dict[tuple[int, int], Node]:
        return self._all_until(slot, self.now, GPU)  # of the flag itself it tells nothing
