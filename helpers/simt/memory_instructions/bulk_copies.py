"""Asynchronous copies of whole pieces, by one thread each: cp.async.bulk."""

from __future__ import annotations

import numpy as np

from ..context import Context
from ..counters import Counters
from ..hardware import BULK_ALIGN, MAX_CLUSTER, SECTOR
from ..instructions import Instruction, unknown
from ..lanes import Lanes, Step
from ..memory.access import Access
from ..memory.copies import Copy, PendingRead
from ..memory.shadow import READ
from ..operands import address_reader, wide_reader
from .loads_and_stores import shared_reader


def translate_bulk(context: Context, instruction: Instruction, kinds: tuple[str, ...]) -> Step:
    """cp.async.bulk: one thread copies a whole piece."""
    copies = context.copies
    if kinds == ("prefetch", "L2", "global"):
        return lambda lanes: None
    if kinds == ("commit_group",):

        def commit(lanes: Lanes) -> None:
            copies.bulk_committed[lanes.mask] += 1

        return commit
    if kinds[0] == "wait_group":
        behind = instruction.operands[0].value

        def wait(lanes: Lanes) -> None:
            copies.wait_bulk(lanes.mask, behind, "read" not in kinds)

        return wait
    known = {"shared_cluster", "shared_cta", "global", "mbarrier_complete_tx_bytes", "bulk_group"}
    known |= {"L2_cache_hint", "multicast_cluster"}
    if not {*kinds} <= known or kinds[0] == kinds[1]:
        raise unknown(instruction)
    return _bulk_copy(context, instruction, kinds)


def _bulk_copy(context: Context, instruction: Instruction, kinds: tuple[str, ...]) -> Step:
    target, source, length, *rest = instruction.operands
    inward, outward = kinds[0] != "global", kinds[1] != "global"
    into = shared_reader(context, target) if inward else address_reader(context, target)
    out_of = shared_reader(context, source) if outward else address_reader(context, source)
    sizes = wide_reader(context, length, "u32")
    bar = shared_reader(context, rest[0]) if inward else None
    masks = None
    if "multicast_cluster" in kinds:
        masks = wide_reader(context, rest[1], "u16")
    copies, shared, memory = context.copies, context.shared, context.global_memory
    shadow, mbarriers = shared.shadow, context.mbarriers
    tally = context.tally_of(instruction)
    # What a bulk copy wrote, another may read without a fence: both go through the async proxy.
    bulk = np.array(
        [one.opcode == "cp" and "bulk" in one.modifiers for one in context.kernel.instructions]
    )

    def report(kind: str, message: str, slot: int) -> None:
        context.reporter.report(kind, instruction, message, np.array([slot]))

    def place_of(slot: int, address: int, size: int, verb: str) -> tuple[int, int]:
        """(byte of the batch's shared memory, bytes that fit there); a finding if not all do."""
        block, near, outside = shared.locate(np.array([slot]), np.array([address]), instruction)
        if outside[0] or near[0] < 0 or near[0] + size > shared.declared:
            message = f"{size} bytes at byte {int(near[0])}, but {shared.extent()}"
            report(f"out-of-bounds shared {verb}", message, slot)
        room = shared.declared - int(near[0]) if near[0] >= 0 and not outside[0] else 0
        return int(block[0] * shared.stride + near[0]), min(size, max(0, room))

    def fetch(slot: int, address: int, size: int) -> np.ndarray | None:
        if not outward:
            tally.copied_in_bytes += size
            tally.copy_sectors += _sectors(address, size)
            data = memory.read_range(address, size, instruction, slot)
            if data is None:
                return None
            writers, times = memory.stored(address, size)
            fenced = np.maximum(copies.fenced_global[writers], copies.fenced_global[slot])
            if (times >= fenced).any():
                report(
                    "global memory not fenced for an asynchronous copy",
                    "bytes that a thread has stored in this launch are copied with no "
                    "fence.proxy.async between",
                    slot,
                )
            return data
        place, room = place_of(slot, address, size, "load")
        if room < size:
            return None
        entries = shadow.entries(np.array([place]), size)
        access = Access(instruction, size, 1, Counters())
        shadow.check_read(np.array([slot]), entries, access)
        context.suspicion.use_loaded(instruction)
        writers = shadow.writer[entries]
        fenced = np.maximum(copies.fenced[writers], copies.fenced[slot])
        stale = (writers >= 0) & (shadow.write_time[entries] >= fenced)
        if (stale & ~bulk[shadow.write_site[entries]]).any():
            report(
                "shared memory not fenced for an asynchronous copy",
                "bytes that a thread stored are copied with no fence.proxy.async between",
                slot,
            )
        if not inward:
            shadow.owner[entries] = READ
            group = int(copies.bulk_committed[slot])
            copies.reading.append(PendingRead(slot, group, entries, instruction))
        return shared.views[1][place : place + size].copy()

    def deliver(
        slot: int,
        address: int,
        bar_address: int,
        size: int,
        data: np.ndarray | None,
        reads: tuple[int, ...],
    ) -> None:
        """Without data, or room for it, what fits is filled with ones, and the wait ends."""
        place, room = place_of(slot, address, size, "store")
        data = np.full(room, 255, np.uint8) if data is None else data[:room]
        new = Copy(instruction, np.array([slot]), np.array([place]), data[None], reads=reads)
        copies.begin(new)
        only = np.zeros(context.slots, bool)
        only[slot] = True
        where = np.full(context.slots, bar_address)
        barrier = None
        for barrier, _ in mbarriers.find(Lanes(only), where, instruction):
            mbarriers.complete(barrier, size, new)
        if barrier is None:
            copies.land(new, new.slots)

    def copy(lanes: Lanes) -> None:
        targets, sources, lengths = into(lanes), out_of(lanes), sizes()
        bars = bar(lanes) if bar else None
        tally.copy_requests += lanes.warps
        for slot in np.flatnonzero(lanes.mask).tolist():
            to, start, size = int(targets[slot]), int(sources[slot]), int(lengths[slot])
            data = None
            if (to | start | size) % BULK_ALIGN:
                message = f"addresses and size ({size}) must be multiples of {BULK_ALIGN} bytes"
                report("misaligned bulk copy", message, slot)
            elif size:
                data = fetch(slot, start, size)
            reads = copies.outside.take()
            if not size or data is None and not inward:
                continue
            if not inward:
                tally.copied_out_bytes += size
                tally.copy_sectors += _sectors(to, size)
                memory.write_range(to, data, instruction, slot)
                copies.reading[-1].writes = copies.outside.take()
                copies.writing.append(copies.reading[-1])
            elif masks is None:
                deliver(slot, to, int(bars[slot]), size, data, reads)
            else:
                for rank in range(MAX_CLUSTER):
                    if masks()[slot] >> rank & 1:
                        deliver(
                            slot,
                            shared.at_rank(to, rank),
                            shared.at_rank(int(bars[slot]), rank),
                            size,
                            data,
                            reads,
                        )

    return copy


def _sectors(address: int, size: int) -> int:
    return (address + size - 1) // SECTOR - address // SECTOR + 1
