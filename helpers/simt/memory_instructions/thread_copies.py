"""Asynchronous copies by each thread: cp.async, st.async."""

from __future__ import annotations

import numpy as np

from ..context import Context
from ..counters import Counters
from ..instructions import Instruction, Register, elements, unknown
from ..lanes import Lanes, Step
from ..memory.access import Access
from ..memory.copies import Copy, part_of
from ..operands import address_reader, reader, wide_reader
from ..ptx_types import type_size
from .bulk_copies import translate_bulk
from .loads_and_stores import names_shared, shared_reader


def translate_copy(context: Context, instruction: Instruction) -> Step:
    kinds = instruction.modifiers
    if kinds[0] != "async":
        raise unknown(instruction)
    if kinds[1] == "bulk":
        return translate_bulk(context, instruction, kinds[2:])
    if kinds[1] == "mbarrier":
        return _arrive_after_copies(context, instruction)
    copies = context.copies
    if kinds[1] == "commit_group":

        def commit(lanes: Lanes) -> None:
            copies.committed[lanes.mask] += 1

        return commit
    if kinds[1] in ("wait_group", "wait_all"):
        behind = instruction.operands[0].value if instruction.operands else 0
        uncommitted = kinds[1] == "wait_all"

        def wait(lanes: Lanes) -> None:
            newest = copies.committed - 1 - behind
            copies.wait(lanes.mask, newest + 1 if uncommitted else newest)

        return wait
    if kinds[1] not in ("ca", "cg"):
        raise unknown(instruction)
    return _copy_elements(context, instruction)


def _copy_elements(context: Context, instruction: Instruction) -> Step:
    """cp.async: 4, 8 or 16 bytes for each thread; what the source lacks is filled with zeros."""
    target, source, size, *rest = instruction.operands
    if "L2_cache_hint" in instruction.modifiers:
        rest = rest[:-1]
    if rest and isinstance(rest[0], Register):
        if context.kernel.registers[rest[0].name] == "pred":
            raise unknown(instruction)
    width = size.value
    read_given = wide_reader(context, rest[0], "u32") if rest else None
    into, out_of = shared_reader(context, target), address_reader(context, source)
    tally, copies = context.tally_of(instruction), context.copies
    access = Access(instruction, width, 1, Counters())

    def copy(lanes: Lanes) -> None:
        slots, places = context.shared.valid(into(lanes), access, lanes, "store")
        data = np.zeros((context.slots, width), np.uint8)
        given = np.full(context.slots, width) if read_given is None else read_given()
        addresses = out_of(lanes)
        given = _checked_lengths(context, instruction, lanes, given, width, addresses)
        for length in np.unique(given[lanes.mask]):
            chosen = lanes if read_given is None else Lanes(lanes.mask & (given == length))
            if length:
                size = min(4, int(length & -length))
                scratch = Counters()
                part = Access(instruction, size, int(length) // size, scratch)
                part.asynchronous = True
                stand_in = slice(None) if chosen.stand_in is None else chosen.stand_in
                words = context.global_memory.load(addresses[stand_in], part, chosen)
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


def _checked_lengths(
    context: Context,
    instruction: Instruction,
    lanes: Lanes,
    given: np.ndarray,
    width: int,
    addresses: np.ndarray,
) -> np.ndarray:
    """The lengths to read; reports those that are too long, and addresses that do not fit."""
    longer = lanes.mask & (given > width)
    if longer.any():
        message = f"the source size is larger than the {width} bytes of the copy"
        context.report("asynchronous copy of more than its size", instruction, message, longer)
    skewed = lanes.mask & (given > 0) & (addresses % width != 0)
    if skewed.any():
        message = f"a copy of {width} bytes needs a source at a multiple of {width}"
        context.report("misaligned load", instruction, message, skewed)
    return np.where(skewed, 0, np.minimum(given, width))


def _arrive_after_copies(context: Context, instruction: Instruction) -> Step:
    """cp.async.mbarrier.arrive: arrives once this thread's copies are done; without .noinc the
    phase also waits for one arrival more, so that the two cancel out."""
    counts = "noinc" in instruction.modifiers
    addresses = shared_reader(context, instruction.operands[0], not names_shared(instruction))
    copies, mbarriers = context.copies, context.mbarriers

    def arrive(lanes: Lanes) -> None:
        for barrier, slots in mbarriers.find(lanes, addresses(lanes), instruction):
            kept = []
            for copy in copies.copies:
                ours = np.isin(copy.slots, slots)
                if ours.any():
                    barrier.copies.append(part_of(copy, ours))
                if not ours.all():
                    kept.append(part_of(copy, ~ours))
            copies.copies = kept
            if counts:
                ones = np.ones(context.slots, np.int64)
                mbarriers.arrive(barrier, slots, ones, 0 * ones, False)

    return arrive


def translate_store(context: Context, instruction: Instruction) -> Step:
    """st.async: a store into the shared memory of the cluster that an mbarrier counts."""
    target, values, bar = instruction.operands
    kind = instruction.modifiers[-1]
    parts = elements(values)
    width = type_size(kind) * len(parts)
    readers = [reader(context, part, f"b{8 * type_size(kind)}") for part in parts]
    into, bars = shared_reader(context, target), shared_reader(context, bar)
    access = Access(instruction, width, 1, Counters())
    copies, mbarriers = context.copies, context.mbarriers

    def store(lanes: Lanes) -> None:
        slots, places = context.shared.valid(into(lanes), access, lanes, "store")
        words = [np.broadcast_to(read(), context.slots)[slots] for read in readers]
        data = np.ascontiguousarray(np.stack(words, axis=1)).view(np.uint8)
        context.tally_of(instruction).remote_requests += lanes.warps
        new = Copy(instruction, slots, places, data)
        copies.begin(new)
        counted = np.zeros(len(slots), bool)
        for barrier, users in mbarriers.find(lanes, bars(lanes), instruction):
            ours = np.isin(slots, users)
            mbarriers.complete(barrier, len(users) * width, part_of(new, ours))
            counted |= ours
        if not counted.all():
            copies.land(part_of(new, ~counted), slots[~counted])

    return store
