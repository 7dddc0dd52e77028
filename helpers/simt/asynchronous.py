"""Asynchronous copies (cp.async, cp.async.bulk, st.async) and mbarriers (mbarrier.*)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .context import Context
from .geometry import Lanes, Step
from .hardware import BULK_ALIGN, MAX_CLUSTER, SECTOR, Counters
from .instructions import Address, Instruction, Register, elements, type_size, unknown
from .memory.access import Access
from .memory.copies import Copy, CopyOut, MBarrier
from .memory.shared import READ

BULK = {"shared_cluster", "shared_cta", "global", "mbarrier_complete_tx_bytes", "bulk_group"}
BULK |= {"L2_cache_hint", "multicast_cluster"}


def translate_copy(context: Context, instruction: Instruction) -> Step:
    """The function that executes cp.async: a copy by each thread, or `.bulk` of a whole piece by
    one thread."""
    first, *kinds = instruction.modifiers
    bulk = kinds[:1] == ["bulk"]
    action, *more = kinds[bulk:]
    copies, operands = context.copies, instruction.operands
    if first != "async":
        raise unknown(instruction)
    if action == "commit_group":

        def commit(lanes: Lanes) -> None:
            (copies.bulk_committed if bulk else copies.committed)[lanes.mask] += 1

        return commit
    if action in ("wait_group", "wait_all"):
        behind = operands[0].value if operands else 0
        if bulk:
            return lambda lanes: copies.wait_bulk(lanes.mask, behind, "read" not in more)
        uncommitted = action == "wait_all"
        return lambda lanes: copies.wait(lanes.mask, copies.committed - 1 - behind + uncommitted)
    if not bulk and action == "mbarrier":
        return _arrive_after_copies(context, instruction)
    if not bulk and action in ("ca", "cg"):
        return _copy_elements(context, instruction)
    if bulk and [action, *more] == ["prefetch", "L2", "global"]:
        return lambda lanes: None
    if bulk and {action, *more} <= BULK and action != more[0]:
        return _BulkCopy(context, instruction, action != "global", more[0] != "global")
    raise unknown(instruction)


# ---- by each thread -----------------------------------------------------------------------------


def _copy_elements(context: Context, instruction: Instruction) -> Step:
    """cp.async: 4, 8 or 16 bytes for each thread; what the source lacks is filled with zeros."""
    target, source, size, *rest = instruction.operands
    if "L2_cache_hint" in instruction.modifiers:
        rest = rest[:-1]
    if rest and isinstance(rest[0], Register):
        if context.kernel.registers[rest[0].name] == "pred":
            raise unknown(instruction)
    width = size.value
    read_given = context.wide_reader(rest[0], "u32") if rest else None
    into, out_of = context.shared_reader(target), context.address_reader(source)
    tally, copies = context.tally_of(instruction), context.copies
    access = Access(instruction, width, 1)

    def copy(lanes: Lanes) -> None:
        slots, places = context.shared.valid(into(lanes), access, lanes, "store")
        data = np.zeros((context.slots, width), np.uint8)
        given = np.full(context.slots, width) if read_given is None else read_given()
        addresses = out_of(lanes)
        longer = lanes.mask & (given > width)
        if longer.any():
            message = f"the source size is larger than the {width} bytes of the copy"
            context.report("asynchronous copy of more than its size", instruction, message, longer)
        skewed = lanes.mask & (given > 0) & (addresses % width != 0)
        if skewed.any():
            message = f"a copy of {width} bytes needs a source at a multiple of {width}"
            context.report("misaligned load", instruction, message, skewed)
        given = np.where(skewed, 0, np.minimum(given, width))
        for length in np.unique(given[lanes.mask]):
            chosen = lanes if read_given is None else Lanes(lanes.mask & (given == length))
            if length:
                size = min(4, int(length & -length))
                scratch = Counters()
                part = Access(instruction, size, int(length) // size, scratch)
                part.asynchronous = True
                places_read = chosen.with_stand_ins(addresses)
                words = context.global_memory.load(places_read, part, chosen)
                if context.suspicion.pending:
                    context.suspicion.use_loaded(instruction)
                bytes_ = np.stack(words, axis=1).view(np.uint8).reshape(context.slots, -1)
                data[chosen.mask, :length] = bytes_[chosen.mask]
                tally.copy_requests += scratch.load_requests
                tally.copy_sectors += scratch.load_sectors
                tally.copied_in_bytes += scratch.load_bytes
        groups, reads = copies.committed[slots], copies.outside.take()
        new = Copy(instruction, slots, places, data[slots], groups, reads=reads)
        copies.begin(new)
        copies.copies.append(new)

    return copy


def _arrive_after_copies(context: Context, instruction: Instruction) -> Step:
    """cp.async.mbarrier.arrive: arrives once this thread's copies are done; without .noinc the
    phase also waits for one arrival more, so that the two cancel out."""
    counts = "noinc" in instruction.modifiers
    addresses = context.shared_reader(instruction.operands[0], not instruction.names_shared)
    copies, mbarriers = context.copies, context.mbarriers

    def arrive(lanes: Lanes) -> None:
        for barrier, slots in mbarriers.find(lanes, addresses(lanes), instruction):
            barrier.copies += copies.take(lambda copy, slots=slots: np.isin(copy.slots, slots))
            if counts:
                ones = np.ones(context.slots, np.int64)
                mbarriers.arrive(barrier, slots, ones, 0 * ones, False)

    return arrive


def translate_async_store(context: Context, instruction: Instruction) -> Step:
    """st.async: a store into the shared memory of the cluster that an mbarrier counts."""
    target, values, bar = instruction.operands
    kind = instruction.modifiers[-1]
    parts = elements(values)
    width = type_size(kind) * len(parts)
    readers = [context.reader(part, f"b{8 * type_size(kind)}") for part in parts]
    into, bars = context.shared_reader(target), context.shared_reader(bar)
    access = Access(instruction, width, 1)

    def store(lanes: Lanes) -> None:
        slots, places = context.shared.valid(into(lanes), access, lanes, "store")
        words = [np.broadcast_to(read(), context.slots)[slots] for read in readers]
        data = np.ascontiguousarray(np.stack(words, axis=1)).view(np.uint8)
        context.tally_of(instruction).remote_requests += lanes.warps
        context.mbarriers.send(Copy(instruction, slots, places, data), lanes, bars(lanes), width)

    return store


# ---- of whole pieces ----------------------------------------------------------------------------


class _BulkCopy:
    """cp.async.bulk into shared memory, or out of it, or both: one thread copies a whole piece."""

    def __init__(self, context: Context, instruction: Instruction, inward: bool, outward: bool):
        self.context, self.instruction = context, instruction
        self.inward, self.outward = inward, outward
        target, source, length, *rest = instruction.operands
        self.into = (context.shared_reader if inward else context.address_reader)(target)
        self.out_of = (context.shared_reader if outward else context.address_reader)(source)
        self.sizes = context.wide_reader(length, "u32")
        self.bar = context.shared_reader(rest[0]) if inward else None
        several = "multicast_cluster" in instruction.modifiers
        self.masks = context.wide_reader(rest[1], "u16") if several else None
        self.tally = context.tally_of(instruction)

    def __call__(self, lanes: Lanes) -> None:
        targets, sources, lengths = self.into(lanes), self.out_of(lanes), self.sizes()
        bars = self.bar(lanes) if self.bar else None
        copies, shared, tally = self.context.copies, self.context.shared, self.tally
        tally.copy_requests += lanes.warps
        for slot in lanes.slots.tolist():
            to, start, size = int(targets[slot]), int(sources[slot]), int(lengths[slot])
            data = None
            if (to | start | size) % BULK_ALIGN:
                message = f"addresses and size ({size}) must be multiples of {BULK_ALIGN} bytes"
                self._report("misaligned bulk copy", message, slot)
            elif size:
                fetch = self._fetch_shared if self.outward else self._fetch_global
                data = fetch(slot, start, size)
            reads = copies.outside.take()
            if not size or data is None and not self.inward:
                continue
            if not self.inward:
                tally.copied_out_bytes += size
                tally.copy_sectors += _sectors(to, size)
                self.context.global_memory.write_range(to, data, self.instruction, slot)
                copies.outward[-1].writes = copies.outside.take()
                continue
            ends = [(to, int(bars[slot]))]
            if self.masks is not None:
                mask = int(self.masks()[slot])
                ranks = [rank for rank in range(MAX_CLUSTER) if mask >> rank & 1]
                ends = [[shared.at_rank(one, rank) for one in ends[0]] for rank in ranks]
            for end, bar in ends:
                place, room = self._place(slot, end, size, "store")
                # Without data, or room for it, what fits is filled with ones, and the wait ends.
                kept = np.full(room, 255, np.uint8) if data is None else data[:room]
                slots, count = np.array([slot]), self.context.slots
                new = Copy(self.instruction, slots, np.array([place]), kept[None], reads=reads)
                only = Lanes(np.arange(count) == slot)
                self.context.mbarriers.send(new, only, np.full(count, bar), size)

    def _report(self, kind: str, message: str, slot: int) -> None:
        self.context.reporter.report(kind, self.instruction, message, np.array([slot]))

    def _place(self, slot: int, address: int, size: int, verb: str) -> tuple[int, int]:
        """(byte of the batch's shared memory, bytes that fit there); a finding if not all do."""
        shared, where = self.context.shared, (np.array([slot]), np.array([address]))
        block, near, outside = shared.locate(*where, self.instruction)
        if outside[0] or near[0] < 0 or near[0] + size > shared.declared:
            message = f"{size} bytes at byte {int(near[0])}, but {shared.extent()}"
            self._report(f"out-of-bounds shared {verb}", message, slot)
        room = shared.declared - int(near[0]) if near[0] >= 0 and not outside[0] else 0
        return int(block[0] * shared.stride + near[0]), min(size, max(0, room))

    def _fetch_global(self, slot: int, address: int, size: int) -> np.ndarray | None:
        """The bytes to copy; None if not all are there."""
        memory, fenced = self.context.global_memory, self.context.copies.fenced_global
        self.tally.copied_in_bytes += size
        self.tally.copy_sectors += _sectors(address, size)
        data = memory.read_range(address, size, self.instruction, slot)
        if data is None:
            return None
        writers, times = memory.stored(address, size)
        if (times >= np.maximum(fenced[writers], fenced[slot])).any():
            self._report(
                "global memory not fenced for an asynchronous copy",
                "bytes that a thread has stored in this launch are copied with no "
                "fence.proxy.async between",
                slot,
            )
        return data

    def _fetch_shared(self, slot: int, address: int, size: int) -> np.ndarray | None:
        """As `_fetch_global`."""
        context, copies, shared = self.context, self.context.copies, self.context.shared
        place, room = self._place(slot, address, size, "load")
        if room < size:
            return None
        where = np.array([slot]), np.array([place]), Access(self.instruction, 1, size)
        shared.races.load(where[1], where[0], where[2])
        shared.look_for_undefined(*where)
        context.suspicion.use_loaded(self.instruction)
        writers, times = shared.races.stored(shared.races.epochs, place, size)
        if (times >= np.maximum(copies.fenced[writers], copies.fenced[slot])).any():
            self._report(
                "shared memory not fenced for an asynchronous copy",
                "bytes that a thread stored are copied with no fence.proxy.async between",
                slot,
            )
        if not self.inward:
            shared.races.own(np.array([place]), size, READ)
            group = int(copies.bulk_committed[slot])
            copies.outward.append(CopyOut(slot, group, self.instruction, place, size))
        return shared.views[1][place : place + size].copy()


def _sectors(address: int, size: int) -> int:
    return (address + size - 1) // SECTOR - address // SECTOR + 1


# ---- mbarriers ----------------------------------------------------------------------------------


def translate_mbarrier(context: Context, instruction: Instruction) -> Step:
    """The function that executes mbarrier.init, .inval, .arrive, .test_wait and alike."""
    action, modifiers = instruction.modifiers[0], instruction.modifiers
    operands, mbarriers = list(instruction.operands), context.mbarriers
    if action == "pending_count":
        read, write = context.reader(operands[1], "u64"), context.writer(operands[0], "u32")
        return lambda lanes: write((read() & np.uint64(0xFFFFFFFF)).astype(np.uint32), lanes)
    target = None if isinstance(operands[0], Address) else operands.pop(0)
    addresses = context.shared_reader(operands.pop(0), not instruction.names_shared)
    given = context.wide_reader(operands[0], "u32") if operands else None

    def find(lanes: Lanes) -> Iterator[tuple[MBarrier, np.ndarray]]:
        return mbarriers.find(lanes, addresses(lanes), instruction)

    def change(lanes: Lanes) -> None:
        for barrier, slots in find(lanes):
            if action == "inval":
                mbarriers.invalidate(barrier)
                continue
            total = int(given()[slots].sum())
            mbarriers.changes += 1
            if action == "complete_tx":
                mbarriers.complete(barrier, total)
            else:
                barrier.bytes += total
                barrier.settle()

    def arrive(lanes: Lanes) -> None:
        state = np.zeros(context.slots, np.uint64)
        ones = np.ones(context.slots, np.int64)
        number = ones if given is None else given()
        for barrier, slots in find(lanes):
            state[slots] = barrier.phase << 32 | barrier.pending & 0xFFFFFFFF
            counts, expected = (ones, number) if "expect_tx" in modifiers else (number, 0 * ones)
            mbarriers.arrive(barrier, slots, counts, expected, action == "arrive_drop")
        write(state, lanes)

    if action == "init":
        return lambda lanes: mbarriers.initialise(lanes, addresses(lanes), given(), instruction)
    if action in ("inval", "expect_tx", "complete_tx"):
        return change
    if action in ("arrive", "arrive_drop"):
        write = context.writer(target, "b64")
        return arrive
    if action not in ("test_wait", "try_wait"):
        raise unknown(instruction)
    write, parity = context.writer(target, "pred"), "parity" in modifiers
    awaited = context.wide_reader(operands[0], "u32" if parity else "u64")

    def is_over(barrier: MBarrier, phases: np.ndarray) -> np.ndarray:
        if parity:
            return (barrier.phase & 1) != (phases & 1)
        return barrier.phase > phases >> 32

    def test(lanes: Lanes) -> None:
        done = np.ones(context.slots, bool)  # of what is no mbarrier, so that the thread goes on
        wanted = awaited()
        for barrier, slots in find(lanes):
            over = is_over(barrier, wanted[slots])
            if not over.all():
                barrier.take()
                over |= is_over(barrier, wanted[slots])
            done[slots] = over
            if over.any():
                mbarriers.observe(barrier, slots[over])
            if not over.all():
                mbarriers.failed = (
                    f"the mbarrier still waits for {barrier.pending} arrivals and "
                    f"{barrier.bytes} bytes"
                )
        write(done, lanes)

    return test
