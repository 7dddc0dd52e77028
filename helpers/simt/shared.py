"""Shared memory of the blocks of a batch: checked for bounds, unwritten reads and races.

Lock-step execution hides races: without a barrier the numbers often come out right. So a shadow
remembers, for every few bytes, who wrote and who read them last and in which *epoch*. A barrier
of the block ends the block's epoch, `__syncwarp` that of a warp. Two threads that touch the same
bytes in one epoch, at least one of them writing, race.
"""

from __future__ import annotations

import numpy as np

from .findings import Findings
from .memory import UNSIGNED, Access
from .operations import DTYPES
from .parse import Instruction, Kernel

WINDOW = 1 << 32  # generic addresses of shared memory start here, below every global page
WINDOW_BYTES = 1 << 24
BANKS = 32


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
        self.instructions = kernel.instructions
        self.numbers = {id(one): number for number, one in enumerate(kernel.instructions)}
        self.locate_thread = lambda slot: ((0, 0, 0), (0, 0, 0))

    def start_batch(self, blocks: int, padded: int) -> None:
        """Fresh, unwritten shared memory for `blocks` blocks of `padded` slots each."""
        self.padded = padded
        data = np.zeros(blocks * self.stride, np.uint8)
        self.views = {size: data.view(kind) for size, kind in UNSIGNED.items()}
        entries = len(data) // self.grain
        self.block_epoch = np.zeros(blocks, np.int32)
        self.warp_epoch = np.zeros(blocks * padded // 32, np.int32)
        # Per shadow entry: the last writer; the lowest and highest reader of the read epoch.
        self.writer = np.full(entries, -1, np.int32)
        self.write_atomic = np.zeros(entries, bool)
        self.reader_low = np.full(entries, -1, np.int32)
        self.reader_high = np.full(entries, -1, np.int32)
        self.write_epoch = np.zeros((2, entries), np.int32)  # of the block, of the warp
        self.read_epoch = np.zeros((2, entries), np.int32)
        self.write_site = np.zeros(entries, np.int32)  # number of the instruction
        self.read_site = np.zeros(entries, np.int32)

    def end_block_epoch(self, blocks: np.ndarray) -> None:
        self.block_epoch[blocks] += 1

    def end_warp_epoch(self, warps: np.ndarray) -> None:
        self.warp_epoch[warps] += 1

    # ---- access ----

    def load(self, addresses: np.ndarray, access: Access, lanes) -> list[np.ndarray]:
        """Return one array of unsigned values per element; all ones where a lane may not read."""
        ones = UNSIGNED[access.size].type(2 ** (8 * access.size) - 1)
        values = [np.full(len(addresses), ones) for _ in range(access.elements)]
        slots, places = self._valid(addresses, access, lanes, "load")
        if not access.atomic:
            access.tally.shared_load_requests += lanes.warps
            access.tally.shared_load_wavefronts += wavefronts(addresses, access.width, lanes, True)
        if len(slots):
            self._check_read(slots, self._entries(places, access), access)
            index = places // access.size
            for element, value in enumerate(values):
                value[slots] = self.views[access.size][index + element]
        return values

    def store(self, addresses: np.ndarray, values: list[np.ndarray], access: Access, lanes) -> None:
        """Store one array of unsigned values per element; lanes that may not write are dropped."""
        slots, places = self._valid(addresses, access, lanes, "store")
        if not access.atomic:
            access.tally.shared_store_requests += lanes.warps
            access.tally.shared_store_wavefronts += wavefronts(
                addresses, access.width, lanes, False
            )
        if not len(slots):
            return
        self._check_write(slots, self._entries(places, access), access)
        index = places // access.size
        view = self.views[access.size]
        lost = np.zeros(len(slots), bool)
        for element, value in enumerate(values):
            kept = np.broadcast_to(value, addresses.shape)[slots]
            view[index + element] = kept
            lost |= view[index + element] != kept
        if lost.any():  # lanes of one instruction stored different values at one place
            self._race(slots[lost], "store", access.instruction, access.instruction)

    def _valid(self, addresses, access: Access, lanes, verb: str) -> tuple[np.ndarray, np.ndarray]:
        """(slots that may access, their places in the batch's bytes); reports the others."""
        slots = np.flatnonzero(lanes.mask)
        wanted = addresses[slots]
        misaligned = wanted & (access.width - 1) != 0
        outside = (wanted < 0) | (wanted + access.width > self.bytes)
        for kind, faulty, explain in (
            ("misaligned shared", misaligned & ~outside, self._explain_alignment),
            ("out-of-bounds shared", outside, self._explain_bounds),
        ):
            if faulty.any():
                first = int(faulty.argmax())
                block, thread = self.locate_thread(int(slots[first]))
                self.findings.report(
                    f"{kind} {verb}",
                    access.instruction,
                    explain(int(wanted[first]), access),
                    block,
                    thread,
                    int(faulty.sum()),
                )
        good = ~(misaligned | outside)
        slots, wanted = slots[good], wanted[good]
        return slots, slots // self.padded * self.stride + wanted

    def _entries(self, places: np.ndarray, access: Access) -> np.ndarray:
        """A row for each access: the shadow entries of its bytes."""
        steps = np.arange(access.width // self.grain)
        return (places // self.grain)[:, None] + steps

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

    def _check_read(self, slots: np.ndarray, entry: np.ndarray, access: Access) -> None:
        instruction = access.instruction
        reader = slots[:, None]
        blocks, warps = reader // self.padded, reader // 32
        unwritten = self.writer[entry] < 0
        missing = unwritten.any(axis=1)
        if missing.any():
            block, thread = self.locate_thread(int(slots[missing.argmax()]))
            self.findings.report(
                "read of unwritten shared memory",
                instruction,
                "no thread has stored anything there",
                block,
                thread,
                int(missing.sum()),
            )
        if access.atomic:
            return  # the store that follows at once is held against the others
        writers = self.writer[entry]
        racing = self._unordered(writers, writers, self.write_epoch[:, entry], reader) & ~unwritten
        self._race_after(racing, self.write_site, slots, entry, "load", instruction)
        low, high = self.reader_low[entry], self.reader_high[entry]
        fresh = (low < 0) | (self.read_epoch[0, entry] != self.block_epoch[blocks])
        # Readers of our warp before its __syncwarp() are ordered with all that we may race with
        # in the warp, and other warps race with us as much as with them.
        ours = (low // 32 == warps) & (high // 32 == warps)
        fresh |= ours & (self.read_epoch[1, entry] != self.warp_epoch[warps])
        low = np.where(fresh, reader, np.minimum(low, reader))
        high = np.where(fresh, reader, np.maximum(high, reader))
        self.reader_low[entry[::-1]] = low[::-1]  # lanes ascend: the last assignment wins
        self.reader_high[entry] = high
        self.read_epoch[0, entry] = self.block_epoch[blocks]
        self.read_epoch[1, entry] = self.warp_epoch[warps]
        self.read_site[entry] = self.numbers[id(instruction)]

    def _check_write(self, slots: np.ndarray, entry: np.ndarray, access: Access) -> None:
        instruction = access.instruction
        writer = slots[:, None]
        blocks, warps = writer // self.padded, writer // 32
        before = self.writer[entry]
        after_write = (before >= 0) & self._unordered(
            before, before, self.write_epoch[:, entry], writer
        )
        if access.atomic:
            after_write &= ~self.write_atomic[entry]  # atomics take turns among themselves
        low, high = self.reader_low[entry], self.reader_high[entry]
        after_read = (low >= 0) & self._unordered(low, high, self.read_epoch[:, entry], writer)
        self._race_after(after_write, self.write_site, slots, entry, "store", instruction)
        after_read &= ~after_write.any(axis=1)[:, None]  # one race of a thread is enough
        self._race_after(after_read, self.read_site, slots, entry, "store", instruction)
        self.writer[entry] = writer
        self.write_atomic[entry] = access.atomic
        self.write_epoch[0, entry] = self.block_epoch[blocks]
        self.write_epoch[1, entry] = self.warp_epoch[warps]
        self.write_site[entry] = self.numbers[id(instruction)]

    def _race_after(self, racing, sites, slots, entry, verb: str, instruction: Instruction) -> None:
        """Report the threads with a racing entry; `sites` knows the earlier access of each."""
        if racing.any():
            site = self.instructions[sites[entry[racing][0]]]
            self._race(slots[racing.any(axis=1)], verb, instruction, site)

    def _unordered(self, low, high, epochs, slots) -> np.ndarray:
        """Whether one of the earlier threads low..high is another than ours, with no barrier
        between its access and now."""
        others = (low != slots) | (high != slots)
        same_block_epoch = epochs[0] == self.block_epoch[slots // self.padded]
        warps = slots // 32
        one_warp = (low // 32 == warps) & (high // 32 == warps)
        ordered_in_warp = one_warp & (epochs[1] != self.warp_epoch[warps])
        return others & same_block_epoch & ~ordered_in_warp

    def _race(
        self, slots: np.ndarray, verb: str, instruction: Instruction, site: Instruction
    ) -> None:
        block, thread = self.locate_thread(int(slots[0]))
        where = "the same store" if site is instruction else f"line {site.line}"
        self.findings.report(
            "race on shared memory",
            instruction,
            f"this {verb} touches what another thread accessed at {where}, with no barrier between",
            block,
            thread,
            len(slots),
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


def wavefronts(addresses: np.ndarray, width: int, lanes, load: bool) -> int:
    """Wavefronts of one shared-memory request of each active warp, summed.

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
    if (near | ~active).all():
        return int(np.count_nonzero(active))
    far = np.repeat(active & ~near, lanes_at_once)
    group = np.full(len(addresses) // 32, lanes_at_once)
    slow = _wavefronts_of(np.flatnonzero(lanes.mask & far), first, words, group)
    return int(np.count_nonzero(active & near)) + slow


def _wavefronts_of(slots: np.ndarray, first: np.ndarray, words: int, group: np.ndarray) -> int:
    """Wavefronts for some slots, given each slot's first word and each warp's lanes at once."""
    wanted = (first[slots][:, None] + np.arange(words)).reshape(-1)
    # Number the groups apart from warp to warp: no warp has more than 32.
    groups = np.repeat(slots // 32 * 32 + slots % 32 // group[slots // 32], words)
    keys = np.unique(groups * (1 << 32) + wanted)  # a word that several lanes want counts once
    banks, counts = np.unique((keys >> 32) * BANKS + (keys & (BANKS - 1)), return_counts=True)
    starts = np.flatnonzero(np.r_[True, np.diff(banks // BANKS) != 0])
    return int(np.maximum.reduceat(counts, starts).sum())
