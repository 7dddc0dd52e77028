"""Shared memory of the blocks of a batch: checked for bounds, unwritten reads and races.

Lock-step execution hides races: without a barrier the numbers often come out right. So a shadow
remembers, for every few bytes, who wrote and who read them last, and when. A clock counts
synchronisations; `seen[w, v]` says up to when the accesses of warp v are ordered before those
that warp w makes now. A barrier, a `__syncwarp` or a wait moves it on. Two threads that touch
the same bytes, at least one of them writing and neither ordered before the other, race.

Bytes that an asynchronous copy writes or reads are its own until a wait: see asynchronous.py.
"""

from __future__ import annotations

from math import prod

import numpy as np

from .findings import Findings
from .memory import UNSIGNED, Access
from .operations import DTYPES
from .parse import Instruction, Kernel

# Addresses within the shared memory of the own block start at 0, those of rank r of the cluster
# at (r + 1) * WINDOW_BYTES. Generic addresses are WINDOW more, below every global page.
WINDOW = 1 << 32
WINDOW_BYTES = 1 << 24
MAX_CLUSTER = 16
BANKS = 32
FREE, WRITTEN, READ = 0, 1, 2  # what an asynchronous copy is doing to bytes


class SharedMemory:
    """Static and dynamic shared memory, one copy for each block of the batch."""

    def __init__(self, kernel: Kernel, dynamic_bytes: int, findings: Findings):
        self.findings = findings
        self.offsets: dict[str, int] = {}
        end = 0
        fixed = [variable for variable in kernel.shared if variable.size]
        for variable in fixed + [v for v in kernel.shared if not v.size]:
            align = max(variable.align, 1 if variable.size else 16)
            self.offsets[variable.name] = end = -(-end // align) * align
            end += variable.size
        self.static_bytes = end
        self.bytes = end + dynamic_bytes
        self.stride = max(32, -(-self.bytes // 32) * 32)  # bytes from block to block
        self.grain = _smallest_access(kernel)  # bytes that one shadow entry stands for
        self.cluster = prod(kernel.cluster)  # blocks that see one another's shared memory
        self.instructions = kernel.instructions
        self.numbers = {id(one): number for number, one in enumerate(kernel.instructions)}
        self.locate_thread = lambda slot: ((0, 0, 0), (0, 0, 0))
        self.flags = False  # threads poll: what they read orders them behind who stored it
        self.changes = 0  # counts stores, so that a wait for one can be given up

    def start_batch(self, blocks: int, padded: int) -> None:
        """Fresh, unwritten shared memory for `blocks` blocks of `padded` slots each."""
        self.padded = padded
        data = np.zeros(blocks * self.stride, np.uint8)
        self.views = {size: data.view(kind) for size, kind in UNSIGNED.items()}
        entries = len(data) // self.grain
        self.now = 1
        self.warps = self.cluster * padded // 32  # of a cluster
        self.seen = np.zeros((blocks * padded // 32, self.warps), np.int32)
        # Per shadow entry: the last writer, and two readers that no barrier has ordered.
        self.writer = np.full(entries, -1, np.int32)
        self.write_time = np.zeros(entries, np.int32)
        self.write_atomic = np.zeros(entries, bool)
        self.readers = np.full((2, entries), -1, np.int32)
        self.read_times = np.zeros((2, entries), np.int32)
        self.write_site = np.zeros(entries, np.int32)  # number of the instruction
        self.read_site = np.zeros(entries, np.int32)
        self.owner = np.zeros(entries, np.int8)  # FREE, WRITTEN or READ by an asynchronous copy
        self.released: dict[int, np.ndarray] = {}  # by shadow entry: what a flag's store ordered
        # Since the last barrier of the cluster: (threads, blocks accessed, instruction).
        self.remote: list[tuple[np.ndarray, np.ndarray, Instruction]] = []

    # ---- order ----

    def order_blocks(
        self, passing: np.ndarray, arrived: dict[int, np.ndarray] | None = None
    ) -> None:
        """The warps of these threads have met at a barrier of their block. `arrived` holds the
        warps that came earlier without waiting, and what each of them had seen then."""
        self.now += 1
        by_block = passing.reshape(-1, 32).any(axis=1).reshape(-1, self.padded // 32)
        blocks = np.flatnonzero(by_block.any(axis=1))
        per_block = self.padded // 32
        for number, seen in (arrived or {}).items():
            rows = number // per_block * per_block + np.flatnonzero(by_block[number // per_block])
            self.seen[rows] = np.maximum(self.seen[rows], seen)
        seen = self.seen.reshape(-1, per_block, self.warps)[blocks]
        taking = by_block[blocks]
        if self.cluster > 1 or not taking.all():  # what one of them knows, all know now
            known = np.where(taking[:, :, None], seen, 0).max(axis=1, keepdims=True)
            seen = np.where(taking[:, :, None], np.maximum(seen, known), seen)
        first = blocks % self.cluster * per_block  # the columns of the block's own warps
        columns = np.arange(self.warps) - first[:, None]
        own = (columns >= 0) & (columns < per_block)
        own &= np.take_along_axis(taking, np.clip(columns, 0, per_block - 1), axis=1)
        seen[taking[:, :, None] & own[:, None, :]] = self.now
        self.seen.reshape(-1, per_block, self.warps)[blocks] = seen

    def order_warps(self, warps: np.ndarray) -> None:
        """The lanes of these warps have met."""
        self.now += 1
        self.seen[warps, warps % self.warps] = self.now

    def learn(self, threads: np.ndarray, known: np.ndarray) -> None:
        """The warps of these threads see what comes before them: `known`, by cluster."""
        warps = np.flatnonzero(threads.reshape(-1, 32).any(axis=1))
        self.seen[warps] = np.maximum(self.seen[warps], known[warps // self.warps])

    def clusters_met(self, passing: np.ndarray) -> None:
        """All blocks of the clusters of these threads had started, and none has ended."""
        blocks = np.unique(np.flatnonzero(passing) // self.padded)
        kept = []
        for slots, targets, instruction in self.remote:
            left = ~np.isin(targets, blocks)  # a block that had ended took no part
            if left.any():
                kept.append((slots[left], targets[left], instruction))
        self.remote = kept

    def received(self, senders: np.ndarray, block: int, instruction: Instruction) -> None:
        """A block has waited for what these threads sent it, so it had not ended before."""
        kept = []
        for slots, targets, sent in self.remote:
            left = (targets != block) | (sent is not instruction) | ~np.isin(slots, senders)
            if left.any():
                kept.append((slots[left], targets[left], sent))
        self.remote = kept

    def end_batch(self) -> None:
        """Report remote accesses to blocks that may have ended before them."""
        for slots, _, instruction in self.remote:
            self.report(
                "shared memory of a block that may have ended",
                instruction,
                "no barrier of the cluster follows this access, so the other block may have ended",
                slots,
            )

    # ---- access ----

    def load(self, addresses: np.ndarray, access: Access, lanes) -> list[np.ndarray]:
        """Return one array of unsigned values per element; all ones where a lane may not read."""
        ones = UNSIGNED[access.size].type(2 ** (8 * access.size) - 1)
        values = [np.full(len(addresses), ones) for _ in range(access.elements)]
        slots, places = self.valid(addresses, access, lanes, "load")
        self._count("load", addresses, access, lanes)
        if len(slots):
            self.check_read(slots, self._entries(places, access), access)
            index = places // access.size
            for element, value in enumerate(values):
                value[slots] = self.views[access.size][index + element]
        return values

    def store(self, addresses: np.ndarray, values: list[np.ndarray], access: Access, lanes) -> None:
        """Store one array of unsigned values per element; lanes that may not write are dropped."""
        slots, places = self.valid(addresses, access, lanes, "store")
        self._count("store", addresses, access, lanes)
        if not len(slots):
            return
        self.check_write(slots, self._entries(places, access), access)
        self.changes += 1
        index = places // access.size
        view = self.views[access.size]
        lost = np.zeros(len(slots), bool)
        for element, value in enumerate(values):
            kept = np.broadcast_to(value, addresses.shape)[slots]
            view[index + element] = kept
            lost |= view[index + element] != kept
        if lost.any():  # lanes of one instruction stored different values at one place
            self._race(slots[lost], "store", access.instruction, access.instruction)

    def _count(self, verb: str, addresses: np.ndarray, access: Access, lanes) -> None:
        if access.atomic:
            return
        if (addresses[lanes.mask] >= WINDOW_BYTES).any():
            access.tally.remote_requests += lanes.warps
            return
        tally = vars(access.tally)
        tally[f"shared_{verb}_requests"] += lanes.warps
        needed, least = wavefronts(addresses, access.width, lanes, verb == "load")
        tally[f"shared_{verb}_wavefronts"] += needed
        tally[f"shared_{verb}_bank_conflicts"] += needed - least

    def valid(self, addresses, access: Access, lanes, verb: str) -> tuple[np.ndarray, np.ndarray]:
        """(slots that may access, their places in the batch's bytes); reports the others."""
        slots = np.flatnonzero(lanes.mask)
        wanted = addresses[slots]
        blocks = slots // self.padded
        outside = np.zeros(len(slots), bool)
        if self.cluster > 1 or (wanted >= WINDOW_BYTES).any():  # a block alone is a cluster of one
            blocks, wanted, outside = self.locate(slots, wanted, access.instruction)
        misaligned = wanted & (access.width - 1) != 0
        outside = outside | (wanted < 0) | (wanted + access.width > self.bytes)
        for kind, faulty, explain in (
            ("misaligned shared", misaligned & ~outside, self._explain_alignment),
            ("out-of-bounds shared", outside, self._explain_bounds),
        ):
            if faulty.any():
                message = explain(int(wanted[faulty.argmax()]), access)
                self.report(f"{kind} {verb}", access.instruction, message, slots[faulty])
        good = ~(misaligned | outside)
        return slots[good], blocks[good] * self.stride + wanted[good]

    def locate(self, slots: np.ndarray, wanted: np.ndarray, instruction: Instruction):
        """(block, address within it, whether there is no such block) of each thread's address."""
        own = slots // self.padded
        blocks, near = self.block_of(slots, wanted)
        outside = blocks // self.cluster != own // self.cluster
        others = (blocks != own) & ~outside
        if others.any():
            self.remote.append((slots[others], blocks[others], instruction))
        return np.where(outside, own, blocks), near, outside

    def block_of(self, slots: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(block of the batch, address within it) that each thread's address means."""
        own = slots // self.padded
        far = wanted >= WINDOW_BYTES
        rank = np.where(far, wanted // WINDOW_BYTES - 1, own % self.cluster)
        return own // self.cluster * self.cluster + rank, np.where(
            far, wanted % WINDOW_BYTES, wanted
        )

    def at_rank(self, address: int, rank: int) -> int:
        """The same byte in the block of another rank."""
        return address % WINDOW_BYTES + (rank + 1) * WINDOW_BYTES

    def _entries(self, places: np.ndarray, access: Access) -> np.ndarray:
        """A row for each access: the shadow entries of its bytes."""
        steps = np.arange(access.width // self.grain)
        return (places // self.grain)[:, None] + steps

    def report(self, kind: str, instruction: Instruction, message: str, slots: np.ndarray) -> None:
        """Add a finding about these threads."""
        block, thread = self.locate_thread(int(slots[0]))
        self.findings.report(kind, instruction, message, block, thread, len(slots))

    def _explain_alignment(self, address: int, access: Access) -> str:
        return (
            f"an access of {access.width} bytes needs an address that is a multiple of "
            f"{access.width}; this one is at byte {address} of the block's shared memory"
        )

    def _explain_bounds(self, address: int, access: Access) -> str:
        dynamic = self.bytes - self.static_bytes
        return (
            f"{access.width} bytes at byte {address}, but the block has {self.bytes} bytes of "
            f"shared memory ({self.static_bytes} static, {dynamic} dynamic)"
        )

    # ---- shadow ----

    def check_read(self, slots: np.ndarray, entry: np.ndarray, access: Access) -> None:
        instruction = access.instruction
        reader = slots[:, None]
        writers = self.writer[entry]
        unwritten = writers < 0
        self._check_owner(slots, entry, instruction, self.owner[entry] == WRITTEN)
        unwritten &= self.owner[entry] != WRITTEN
        missing = unwritten.any(axis=1)
        if missing.any():
            self.report(
                "read of unwritten shared memory",
                instruction,
                "no thread has stored anything there",
                slots[missing],
            )
        if access.atomic:
            return  # the store that follows at once is held against the others
        if access.polls:
            self._acquire(slots, entry)
        racing = (writers >= 0) & ~self._ordered(writers, self.write_time[entry], reader)
        if access.polls:  # what it waits for is stored by an atomic or a volatile store
            racing &= ~self.write_atomic[entry]
        self._race_after(racing, self.write_site, slots, entry, "load", instruction)
        if access.polls:
            return
        before, times = self.readers[:, entry], self.read_times[:, entry]
        fresh = (before < 0) | self._ordered(before, times, reader)
        # Two readers are kept: those that the new one comes after need not be.
        low = fresh[0] | (reader < before[0]) & ~fresh[1]
        high = fresh[1] | (reader > before[1]) & ~fresh[0]
        # Lanes ascend and the last assignment wins: the lowest reader, and the highest.
        self.readers[0, entry[::-1]] = np.where(low, reader, before[0])[::-1]
        self.read_times[0, entry[::-1]] = np.where(low, self.now, times[0])[::-1]
        self.readers[1, entry] = np.where(high, reader, before[1])
        self.read_times[1, entry] = np.where(high, self.now, times[1])
        self.read_site[entry] = self.numbers[id(instruction)]

    def check_write(self, slots: np.ndarray, entry: np.ndarray, access: Access) -> None:
        instruction = access.instruction
        writer = slots[:, None]
        before = self.writer[entry]
        self._check_owner(slots, entry, instruction, self.owner[entry] != FREE)
        flag = self.flags and access.strong
        if flag and access.atomic:
            self._acquire(slots, entry)
        after_write = (before >= 0) & ~self._ordered(before, self.write_time[entry], writer)
        if flag or access.atomic:
            after_write &= ~self.write_atomic[entry]  # atomics take turns among themselves
        readers = self.readers[:, entry]
        unordered = ~self._ordered(readers, self.read_times[:, entry], writer)
        after_read = ((readers >= 0) & unordered).any(axis=0)
        self._race_after(after_write, self.write_site, slots, entry, "store", instruction)
        after_read &= ~after_write.any(axis=1)[:, None]  # one race of a thread is enough
        self._race_after(after_read, self.read_site, slots, entry, "store", instruction)
        self.writer[entry] = writer
        self.write_atomic[entry] = flag or access.atomic
        self.write_time[entry] = self.now
        self.write_site[entry] = self.numbers[id(instruction)]
        if flag:
            self._release(slots, entry)

    def _release(self, slots: np.ndarray, entry: np.ndarray) -> None:
        """What these threads did before comes before what reads their store."""
        self.now += 1
        for slot, row in zip(slots, entry, strict=True):
            clock = self.seen[slot // 32].copy()
            clock[slot // 32 % self.warps] = self.now
            for one in row.tolist():
                known = self.released.get(one)
                self.released[one] = clock if known is None else np.maximum(known, clock)

    def _acquire(self, slots: np.ndarray, entry: np.ndarray) -> None:
        for slot, row in zip(slots, entry, strict=True):
            clock = self.released.get(int(row[0]))
            if clock is not None:
                np.maximum(self.seen[slot // 32], clock, out=self.seen[slot // 32])

    def check_order(self, slots: np.ndarray, entry: np.ndarray, instruction: Instruction) -> None:
        """Report the threads before which the last store to these bytes is not ordered."""
        writers = self.writer[entry]
        racing = (writers >= 0) & ~self._ordered(writers, self.write_time[entry], slots[:, None])
        self._race_after(racing, self.write_site, slots, entry, "access", instruction)

    def _check_owner(self, slots, entry, instruction: Instruction, owned: np.ndarray) -> None:
        if owned.any():
            self.report(
                "asynchronous copy used before its wait",
                instruction,
                "a copy that nobody has waited for may still be working on these bytes",
                slots[owned.any(axis=1)],
            )

    def _race_after(self, racing, sites, slots, entry, verb: str, instruction: Instruction) -> None:
        """Report the threads with a racing entry; `sites` knows the earlier access of each."""
        if racing.any():
            site = self.instructions[sites[entry[racing][0]]]
            self._race(slots[racing.any(axis=1)], verb, instruction, site)

    def _ordered(self, earlier: np.ndarray, times: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Whether an earlier access at that time comes before one of `slots` now."""
        seen = self.seen.reshape(-1)[slots // 32 * self.warps + earlier // 32 % self.warps]
        return (times < seen) | (earlier == slots)

    def _race(
        self, slots: np.ndarray, verb: str, instruction: Instruction, site: Instruction
    ) -> None:
        where = "the same store" if site is instruction else f"line {site.line}"
        self.report(
            "race on shared memory",
            instruction,
            f"this {verb} touches what another thread accessed at {where}, with no barrier between",
            slots,
        )


def _smallest_access(kernel: Kernel) -> int:
    """Bytes of the smallest element that the kernel loads from or stores to shared memory."""
    sizes = [
        DTYPES[one.modifiers[-1]].itemsize
        for one in kernel.instructions
        if one.opcode in ("ld", "st", "atom", "red")
        and "param" not in one.modifiers
        and one.modifiers[-1] in DTYPES
    ]
    return min([4, *sizes])


def wavefronts(addresses: np.ndarray, width: int, lanes, load: bool) -> tuple[int, int]:
    """(wavefronts, what they would be without bank conflicts) of one shared-memory request of
    each active warp, summed.

    A group of lanes (32, or 16 and 8 for accesses of 8 and 16 bytes) needs as many wavefronts as
    the bank that most different words are wanted from; no wavefront for a group without lanes.
    If in a warp lanes 2k and 2k + 1 always load from one address, its groups are twice as large.
    Measured on an H200 with Nsight Compute over 123 patterns; see tests/data.
    """
    words = max(1, width // 4)
    lanes_at_once = 32 // words
    first = addresses >> 2 & (1 << 30) - 1  # even where the address is a wild one
    if load and words > 1:
        pairs, active = addresses.reshape(-1, 16, 2), lanes.mask.reshape(-1, 16, 2)
        alike = ((pairs[:, :, 0] == pairs[:, :, 1]) | ~active.all(axis=2)).all(axis=1)
        if alike.any():
            group = np.where(alike, 2 * lanes_at_once, lanes_at_once)
            return _wavefronts_of(np.flatnonzero(lanes.mask), first, words, group)
    # Within 32 neighbouring words no bank is wanted twice: the usual case, and quick to see.
    by_group = first.reshape(-1, lanes_at_once)
    active = lanes.mask.reshape(-1, lanes_at_once).any(axis=1)
    near = by_group.max(axis=1) - by_group.min(axis=1) + words <= BANKS
    groups = int(np.count_nonzero(active))
    if (near | ~active).all():
        return groups, groups
    far = np.repeat(active & ~near, lanes_at_once)
    group = np.full(len(addresses) // 32, lanes_at_once)
    slow, _ = _wavefronts_of(np.flatnonzero(lanes.mask & far), first, words, group)
    return int(np.count_nonzero(active & near)) + slow, groups


def _wavefronts_of(slots: np.ndarray, first: np.ndarray, words: int, group: np.ndarray):
    """(wavefronts, groups) of some slots, given each slot's first word and each warp's lanes at
    once."""
    wanted = (first[slots][:, None] + np.arange(words)).reshape(-1)
    # Number the groups apart from warp to warp: no warp has more than 32.
    groups = np.repeat(slots // 32 * 32 + slots % 32 // group[slots // 32], words)
    keys = np.unique(groups * (1 << 32) + wanted)  # a word that several lanes want counts once
    banks, counts = np.unique((keys >> 32) * BANKS + (keys & (BANKS - 1)), return_counts=True)
    starts = np.flatnonzero(np.r_[True, np.diff(banks // BANKS) != 0])
    return int(np.maximum.reduceat(counts, starts).sum()), len(starts)
