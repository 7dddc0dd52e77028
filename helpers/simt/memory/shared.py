"""Shared memory of the blocks of a batch: bounds, values, banks, who reaches whose; races in it,
and uses of bytes that are an asynchronous copy's or an mbarrier's.

One exception goes beyond the letter of the memory model: a volatile load of what a volatile store
computed needs an order, for that is how warps were written when their lanes went in step.

Bytes that an asynchronous copy writes or reads are its own until a wait: see copies.py.
"""

from __future__ import annotations

import re

import numpy as np

from ..findings import Suspicion
from ..geometry import Batch, Lanes
from ..hardware import BANKS, BULK_ALIGN, SECTOR, WARP, WORD
from ..instructions import Instruction, PtxKernel
from .access import SHARED_STEP, Access
from .causality import Causality
from .own import OwnMemory
from .races import OWNER, STRONG_READ, THREAD, WEAK_READ, WEAK_WRITE, Epochs, Races, Same, verb

# The owner of bytes: none, an asynchronous copy that writes or reads them, or an mbarrier.
FREE, WRITTEN, READ, MBARRIER = range(4)
RACE = "race on shared memory"
UNWAITED = "asynchronous result used without a wait"
OWNED = "an operation that no thread has waited for may still be accessing these bytes"
OVERWRITTEN = "mbarrier overwritten"
IN_USE = "these bytes hold an mbarrier; mbarrier.inval has to end it before they hold anything else"
FLAGS = -(1 << 48)  # where causality.py has the flags of a batch's shared memory


class SharedRaces(Races):
    """Checks the accesses of a launch to shared memory."""

    def __init__(self, kernel: PtxKernel, suspicion: Suspicion, causality: Causality):
        super().__init__(kernel, suspicion, causality)
        self.volatile = np.array(
            ["volatile" in one.modifiers for one in kernel.instructions], dtype=bool
        )
        self.volatile[[*self.constants]] = False  # a flag

    def start_batch(self, batch: Batch, size: int) -> None:
        """Forget everything: there are `size` other bytes."""
        super().start_batch(batch)
        self.epochs = Epochs("shared memory", size, FLAGS, BULK_ALIGN)

    def load(self, places: np.ndarray, slots: np.ndarray, access: Access) -> None:
        """These slots load from these bytes of the batch's."""
        owners = self._owners(places, access.width)
        if owners is not None and (owned := owners == WRITTEN).any():
            self._doubt(UNWAITED, OWNED, access, slots, owned)
        if not access.atomic:  # else the store that follows at once is held against the others
            self.read(self.epochs, places, slots, access)

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
        self.write(self.epochs, places, slots, access, same)

    def compares_strong(self, access: Access) -> bool:
        return self.volatile[access.instruction.number] and not access.polls

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
        """One race of a thread is enough."""
        racing, site = _by_slot(faulty), self.instructions[self.site(stamps[faulty])[0]]
        if access.instruction.opcode == "ld":
            message = self._racing("load", access.instruction, site)
            self._doubt(RACE, message, access, slots, faulty)
        else:
            self.race(slots[racing], verb(access.instruction), access.instruction, site)
        return racing

    # ---- saying ----

    def race(
        self, slots: np.ndarray, what: str, instruction: Instruction, site: Instruction
    ) -> None:
        """Report these threads: what `site` did before is not ordered."""
        self.reporter.report(RACE, instruction, self._racing(what, instruction, site), slots)

    def _racing(self, what: str, instruction: Instruction, site: Instruction) -> str:
        where = f"the same {what}" if site is instruction else f"line {site.line}"
        message = f"this {what} touches what another thread accessed at {where}, "
        if any(address < 0 for address in self.causality.flags):
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


# ---- the memory ----------------------------------------------------------------------------------


class SharedMemory(OwnMemory):
    """Static and dynamic shared memory, one copy for each block of the batch."""

    name = "shared"

    def __init__(
        self,
        kernel: PtxKernel,
        dynamic_bytes: int,
        suspicion: Suspicion,
        causality: Causality,
    ):
        kind, message = "read of unwritten shared memory", "no thread has stored anything there"
        variables = sorted(kernel.shared, key=lambda one: not one.size)
        super().__init__(variables, suspicion, kind, message)
        self.bytes += dynamic_bytes
        sizes = {variable.name: variable.size for variable in kernel.shared}
        # A kernel that declares no extern array has no business in dynamic shared memory.
        fixed = sizes and all(sizes.values())
        self.declared = self.static_bytes if fixed else self.bytes
        self.rooms = {  # from where to where each variable is
            name: (start, start + sizes[name] if sizes[name] else self.bytes)
            for name, start in self.offsets.items()
        }
        self.causality, self.races = causality, SharedRaces(kernel, suspicion, causality)
        self.order = causality.order

    def start_batch(self, batch: Batch) -> None:
        """Fresh, unwritten shared memory for the blocks of a batch."""
        self.padded = batch.padded
        self.cluster = batch.shape.cluster_blocks  # blocks that see one another's shared memory
        self.fill(batch.count, SECTOR)
        self.order.start_batch(batch)
        self.causality.start_batch(batch)
        self.races.start_batch(batch, len(self.views[1]))
        # Since the last barrier of the cluster: (threads, blocks accessed, whether a thread had
        # arrived at that barrier before, instruction).
        self.remote: list[tuple[np.ndarray, np.ndarray, np.ndarray, Instruction]] = []
        self.early: list[tuple[np.ndarray, Instruction]] = []  # accesses of a block at its start
        self.announced = np.zeros(batch.slots, bool)  # has arrived at the cluster's barrier

    def clusters_met(self, passing: np.ndarray) -> None:
        """All blocks of the clusters of these threads had started, and none has ended."""
        blocks = np.unique(np.flatnonzero(passing) // self.padded)
        kept = []
        for slots, targets, late, instruction in self.remote:
            met = np.isin(targets, blocks)  # a block that had ended took no part
            left = late | ~met
            if left.any():
                kept.append((slots[left], targets[left], (late & ~met)[left], instruction))
        self.remote = kept

    def received(self, senders: np.ndarray, block: int, instruction: Instruction) -> None:
        """A block has waited for what these threads sent it, so it had not ended before."""
        kept = []
        for slots, targets, late, sent in self.remote:
            left = (targets != block) | (sent is not instruction) | ~np.isin(slots, senders)
            if left.any():
                kept.append((slots[left], targets[left], late[left], sent))
        self.remote = kept

    def end_batch(self) -> None:
        """Report remote accesses to blocks that may have ended before them, or started later, where
        that is no race besides."""
        found = {(one.file, one.line) for one in self.reporter.findings}
        for slots, instruction in self.early:
            if (instruction.file, instruction.line) not in found:
                self.reporter.report(
                    "shared memory of a block that may not have started",
                    instruction,
                    "no barrier of the cluster comes before this access, so the other block may "
                    "not have started",
                    slots,
                )
        for slots, *_, instruction in self.remote:
            self.reporter.report(
                "shared memory of a block that may have ended",
                instruction,
                "no barrier of the cluster follows this access, so the other block may have ended",
                slots,
            )

    # ---- access ----

    def count(self, verb: str, addresses: np.ndarray, access: Access, lanes: Lanes) -> None:
        if access.atomic:
            return
        if (addresses[lanes.mask] >= SHARED_STEP).any():
            access.tally.remote_requests += lanes.warps
            return
        tally = vars(access.tally)
        tally[f"shared_{verb}_requests"] += lanes.warps
        needed, least = wavefronts(addresses, access.width, lanes, verb == "load")
        tally[f"shared_{verb}_wavefronts"] += needed
        tally[f"shared_{verb}_bank_conflicts"] += needed - least

    def where(self, slots: np.ndarray, wanted: np.ndarray, access: Access):
        blocks, outside = slots // self.padded, np.zeros(len(slots), bool)
        if self.cluster > 1 or (wanted >= SHARED_STEP).any():  # a block alone is a cluster of one
            blocks, wanted, outside = self.locate(slots, wanted, access.instruction)
        low, high = self.rooms.get(access.variable, (0, self.declared))
        return blocks, wanted, outside | (wanted < low) | (wanted + access.width > high)

    def locate(self, slots: np.ndarray, wanted: np.ndarray, instruction: Instruction):
        """(block, address within it, whether there is no such block) of each thread's address."""
        own = slots // self.padded
        blocks, near = self.block_of(slots, wanted)
        outside = blocks // self.cluster != own // self.cluster
        others = (blocks != own) & ~outside
        if others.any():
            threads, targets = slots[others], blocks[others]
            self._check_start(threads, targets, instruction)
            self.remote.append((threads, targets, self.announced[threads], instruction))
        return np.where(outside, own, blocks), near, outside

    def _check_start(self, slots: np.ndarray, blocks: np.ndarray, instruction: Instruction) -> None:
        """Note the threads that have heard nothing of the blocks that they access."""
        if self.causality.acquired:  # by a flag, say
            return
        count = self.padded // WARP
        seen = self.order.seen[slots // WARP].reshape(len(slots), -1, count)
        early = ~seen[np.arange(len(slots)), blocks % self.cluster].any(axis=1)
        if early.any():
            self.early.append((slots[early], instruction))

    def block_of(self, slots: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(block of the batch, address within it) that each thread's address means."""
        own = slots // self.padded
        far = wanted >= SHARED_STEP
        rank = np.where(far, wanted // SHARED_STEP - 1, own % self.cluster)
        return own // self.cluster * self.cluster + rank, np.where(
            far, wanted % SHARED_STEP, wanted
        )

    def at_rank(self, address: int, rank: int) -> int:
        """The same byte in the block of another rank."""
        return address % SHARED_STEP + (rank + 1) * SHARED_STEP

    def explain(self, kind: str, address: int, access: Access) -> str:
        if kind == "misaligned":
            place = f"this one is at byte {address} of the block's shared memory"
            return access.explain_alignment(place)
        if access.variable and 0 <= address <= self.bytes - access.width:
            low, high = self.rooms[access.variable]
            others = {short(name): room for name, room in self.rooms.items()}
            there = [name for name, (start, end) in others.items() if start <= address < end]
            return (
                f"{access.width} bytes at byte {address - low} of {short(access.variable)}, which "
                f"has {high - low} bytes" + "".join(f"; {name} lies there" for name in there[:1])
            )
        return f"{access.width} bytes at byte {address}, but {self.extent()}"

    def extent(self) -> str:
        """How much shared memory the kernel may use, as the end of a sentence."""
        dynamic = self.bytes - self.static_bytes
        if self.declared < self.bytes:
            return (
                f"the kernel declares {self.declared} bytes of shared memory; to use the {dynamic} "
                "dynamic bytes of the launch, it must declare an extern __shared__ array"
            )
        return (
            f"the block has {self.bytes} bytes of shared memory ({self.static_bytes} static, "
            f"{dynamic} dynamic)"
        )


def short(name: str) -> str:
    """The name of a variable in the source, from that in the PTX: s of _ZZ1kE1s."""
    local = re.fullmatch(r"_ZZ.*E(\d+)(\D\w*)", name)
    return local[2][: int(local[1])] if local else name


# ---- banks --------------------------------------------------------------------------------------


def wavefronts(addresses: np.ndarray, width: int, lanes: Lanes, load: bool) -> tuple[int, int]:
    """(wavefronts, what they would be without bank conflicts) of one shared-memory request of
    each active warp, summed.

    A group of lanes (32, or 16 and 8 for accesses of 8 and 16 bytes) needs as many wavefronts as
    the bank that most different words are wanted from; no wavefront for a group without lanes.
    If in a warp lanes 2k and 2k + 1 always load from one address, its groups are twice as large.
    Measured on an H200 with Nsight Compute over 123 patterns; see tests/data.
    """
    words = max(1, width // WORD)
    lanes_at_once = WARP // words
    first = addresses >> 2 & (1 << 30) - 1  # even where the address is a wild one
    if load and words > 1:
        pairs, active = addresses.reshape(-1, 16, 2), lanes.mask.reshape(-1, 16, 2)
        alike = ((pairs[:, :, 0] == pairs[:, :, 1]) | ~active.all(axis=2)).all(axis=1)
        if alike.any():
            group = np.where(alike, 2 * lanes_at_once, lanes_at_once)
            return _wavefronts_of(lanes.slots, first, words, group)
    # Within 32 neighbouring words no bank is wanted twice: the usual case, and quick to see.
    by_group = first.reshape(-1, lanes_at_once)
    active = lanes.mask.reshape(-1, lanes_at_once).any(axis=1)
    near = by_group.max(axis=1) - by_group.min(axis=1) + words <= BANKS
    groups = int(np.count_nonzero(active))
    if (near | ~active).all():
        return groups, groups
    far = np.repeat(active & ~near, lanes_at_once)
    group = np.full(len(addresses) // WARP, lanes_at_once)
    slow, _ = _wavefronts_of(np.flatnonzero(lanes.mask & far), first, words, group)
    return int(np.count_nonzero(active & near)) + slow, groups


def _wavefronts_of(slots: np.ndarray, first: np.ndarray, words: int, group: np.ndarray):
    """(wavefronts, groups) of some slots, given each slot's first word and each warp's lanes at
    once."""
    wanted = (first[slots][:, None] + np.arange(words)).reshape(-1)
    # Number the groups apart from warp to warp: no warp has more than 32.
    groups = np.repeat(slots // WARP * WARP + slots % WARP // group[slots // WARP], words)
    # A word that several lanes want counts once. With counts np.unique sorts; hashing is slower.
    keys, _ = np.unique(groups * (1 << 32) + wanted, return_counts=True)
    banks, counts = np.unique((keys >> 32) * BANKS + (keys & (BANKS - 1)), return_counts=True)
    starts = np.flatnonzero(np.r_[True, np.diff(banks // BANKS) != 0])
    return int(np.maximum.reduceat(counts, starts).sum()), len(starts)
