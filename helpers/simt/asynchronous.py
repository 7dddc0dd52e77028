"""Asynchronous copies, and the barriers in shared memory (mbarrier) that tell when they are done.

A copy into shared memory delivers its data when somebody has waited for it, not before: until
then its bytes belong to the copy, and touching them is a finding. A thread waits for its own
`cp.async` with `cp.async.wait_group`; for bulk copies and `st.async`, whoever tests the mbarrier
that counts their bytes waits. A bulk copy out of shared memory reads at once, but its bytes may
not be written until its group has been waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from .counters import SECTOR, Counters
from .memory import Access
from .parse import Address, Instruction, Register, UnsupportedPTX, type_size
from .shared import FREE, READ, WINDOW, WRITTEN, SharedMemory
from .translate import (
    Context,
    Lanes,
    Step,
    Translator,
    address_reader,
    reader,
    translate_store,
    writer,
)

BULK_ALIGN = 16  # of both addresses and of the size


def translators() -> dict[str, Translator]:
    """The opcodes of this module, and the functions that translate them."""
    return {"cp": _copy, "mbarrier": _mbarrier, "st": _store, "fence": _fence}


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


class Copies:
    """All asynchronous copies and mbarriers of a batch."""

    def __init__(self, shared: SharedMemory):
        self.shared = shared
        self.changes = 0  # counts what may end a wait
        self.failed = ""  # what the last test that failed was waiting for

    def start_batch(self, slots: int) -> None:
        self.copies: list[Copy] = []  # cp.async that nobody has waited for
        self.committed = np.zeros(slots, np.int64)  # groups of cp.async, by thread
        self.bulk_committed = np.zeros(slots, np.int64)
        self.reading: list[tuple[int, int, np.ndarray, Instruction]] = []  # bulk copies out
        self.fenced = np.zeros(slots, np.int32)  # when a thread last fenced the async proxy
        self.mbarriers: dict[int, MBarrier] = {}  # by the byte in the batch's shared memory
        self.failed = ""

    def end_batch(self) -> None:
        """Report the copies that a block has not waited for before its end."""
        left = [(slot, instruction) for slot, _, _, instruction in self.reading]
        for barrier in self.mbarriers.values():
            barrier.take()
            for copy in barrier.copies + barrier.done:
                unused = ~self._used(copy)  # a use without a wait has been reported
                left += [(int(slot), copy.instruction) for slot in copy.slots[unused]]
        for slot, instruction in left:
            self.shared.report(
                "asynchronous copy not waited for",
                instruction,
                "the block may end, and its shared memory be given away, before the copy is done",
                np.array([slot]),
            )

    def _used(self, copy: Copy) -> np.ndarray:
        """Whether a thread has touched bytes of the copy since it began, for each of its rows."""
        shared, entries = self.shared, self.entries(copy.places, copy.data.shape[1])
        read = shared.readers[:, entries] >= 0
        read = (read & (shared.read_times[:, entries] >= copy.began)).any(axis=0)
        written = shared.write_site[entries] != shared.numbers[id(copy.instruction)]
        return (read | written).any(axis=1)

    # ---- copies into shared memory ----

    def entries(self, places: np.ndarray, size: int) -> np.ndarray:
        """The shadow entries of the bytes from each place on."""
        grain = self.shared.grain
        return (places // grain)[:, None] + np.arange(-(-size // grain))

    def begin(self, copy: Copy) -> None:
        """The bytes belong to the copy from now on."""
        if not copy.data.size:
            return
        entries = self.entries(copy.places, copy.data.shape[1])
        access = Access(copy.instruction, copy.data.shape[1], 1, Counters())
        self.shared.check_write(copy.slots, entries, access)
        self.shared.owner[entries] = WRITTEN
        self.shared.write_time[entries] = -1  # what touches them is no race besides
        copy.began = self.shared.now
        order = np.argsort(copy.places, kind="stable")
        same = np.diff(copy.places[order]) == 0
        lost = order[:-1][same & (np.diff(copy.data[order], axis=0) != 0).any(axis=1)]
        if len(lost):
            message = "threads copy different values to one place with the same instruction"
            self.shared.report("race on shared memory", copy.instruction, message, copy.slots[lost])

    def land(self, copy: Copy, slots: np.ndarray) -> None:
        """The data is there, as if these threads had stored it now."""
        shared, size = self.shared, copy.data.shape[1]
        shared.views[1][copy.places[:, None] + np.arange(size)] = copy.data
        entries = self.entries(copy.places, size)
        shared.owner[entries] = FREE
        shared.writer[entries] = slots[:, None]
        shared.write_atomic[entries] = False
        shared.write_time[entries] = shared.now
        shared.write_site[entries] = shared.numbers[id(copy.instruction)]
        shared.changes += 1

    def wait(self, mask: np.ndarray, newest: np.ndarray) -> None:
        """Deliver the cp.async of these threads, up to and including group `newest` of each."""
        kept = []
        for copy in self.copies:
            done = mask[copy.slots] & (copy.groups <= newest[copy.slots])
            if done.any():
                self.land(_part(copy, done), copy.slots[done])
            if not done.all():
                kept.append(_part(copy, ~done))
        self.copies = kept

    # ---- mbarriers ----

    def find(
        self, lanes: Lanes, addresses: np.ndarray, instruction: Instruction
    ) -> Iterator[tuple[MBarrier, np.ndarray]]:
        """Yields each mbarrier with the threads that use it; reports those that are none, once."""
        access = Access(instruction, 8, 1, Counters())
        slots, places = self.shared.valid(addresses, access, lanes, "load")
        for place in np.unique(places):
            users = slots[places == place]
            barrier = self.mbarriers.get(int(place))
            if barrier is None:
                self.shared.report(
                    "mbarrier not initialised",
                    instruction,
                    "no thread has executed mbarrier.init there",
                    users,
                )
                none = np.zeros(0, np.int32)
                barrier = self.mbarriers[int(place)] = MBarrier(0, none, none, missing=True)
            if barrier.missing:
                continue
            self._check_init(users, int(place), instruction)
            yield barrier, users

    def _check_init(self, users: np.ndarray, place: int, instruction: Instruction) -> None:
        """Report the threads before which mbarrier.init is not ordered; their warps know it from
        now on, so that one report does for all uses."""
        shared, entry = self.shared, place // self.shared.grain
        first, time = shared.writer[entry], shared.write_time[entry]
        column = first // 32 % shared.warps
        racing = users[(shared.seen[users // 32, column] <= time) & (users != first)]
        if len(racing):
            shared.check_order(racing, np.full((len(racing), 1), entry), instruction)
            shared.seen[racing // 32, column] = time + 1

    def initialise(self, lanes: Lanes, addresses, counts, instruction: Instruction) -> None:
        access = Access(instruction, 8, 1, Counters())
        slots, places = self.shared.valid(addresses, access, lanes, "store")
        self.shared.check_write(slots, self.entries(places, 8), access)
        for slot, place in zip(slots, places, strict=True):
            count = int(counts[slot])
            clock = np.zeros(self.shared.warps, np.int32)
            self.mbarriers[int(place)] = MBarrier(count, clock, clock.copy(), count)
        self.changes += 1

    def arrive(self, barrier: MBarrier, slots: np.ndarray, counts, expected, drop: bool) -> None:
        """Each thread announces `expected` bytes, then arrives `counts` times, in lane order."""
        self.changes += 1
        seen = self.shared.seen
        self.shared.now += 1
        for slot in slots:
            if barrier.pending <= 0:
                barrier.take()  # all have arrived, so that only bytes can end the phase
            barrier.bytes += int(expected[slot])
            barrier.pending -= int(counts[slot])
            barrier.expected -= int(counts[slot]) if drop else 0
            clock = barrier.arriving
            np.maximum(clock, seen[slot // 32], out=clock)
            clock[slot // 32 % self.shared.warps] = self.shared.now
            barrier.settle()

    def complete(self, barrier: MBarrier, size: int, copy: Copy | None = None) -> None:
        """`size` bytes have come; `copy` is what brought them."""
        self.changes += 1
        barrier.coming.append((size, copy))

    def observe(self, barrier: MBarrier, slots: np.ndarray) -> None:
        """These threads have seen that the last phase is over: what it ordered, is ordered."""
        shared, warps = self.shared, np.unique(slots // 32)
        for copy in barrier.done:
            self.land(copy, np.repeat(slots[:1], len(copy.slots)))
            shared.received(copy.slots, slots[0] // shared.padded, copy.instruction)
        if barrier.done:
            shared.now += 1
            barrier.clock[slots[0] // 32 % shared.warps] = shared.now
        barrier.done = []
        shared.seen[warps] = np.maximum(shared.seen[warps], barrier.clock)


def _part(copy: Copy, chosen: np.ndarray) -> Copy:
    groups = None if copy.groups is None else copy.groups[chosen]
    rows = copy.slots[chosen], copy.places[chosen], copy.data[chosen]
    return Copy(copy.instruction, *rows, groups, copy.began)


# ---- translation ------------------------------------------------------------------------------


def _shared_reader(context: Context, operand, generic: bool) -> Callable[[Lanes], np.ndarray]:
    read = address_reader(context, operand)
    start = np.int64(WINDOW if generic and isinstance(operand.base, Register) else 0)
    return lambda lanes: read(lanes) - start


def _wide_reader(context: Context, operand, kind: str) -> Callable[[], np.ndarray]:
    """Reads an operand as one int64 per slot."""
    read = reader(context, operand, kind)
    return lambda: np.broadcast_to(read(), context.slots).astype(np.int64)


def _unknown(instruction: Instruction) -> UnsupportedPTX:
    return UnsupportedPTX(f"the SIMT machine does not know {instruction.text!r}")


def _fence(context: Context, instruction: Instruction) -> Step:
    """Other threads see every store at once, so only the asynchronous proxy needs its fence."""
    if not any(kind.startswith("async") for kind in instruction.modifiers):
        return lambda lanes: None

    def fence(lanes: Lanes) -> None:
        context.shared.now += 1
        context.copies.fenced[lanes.mask] = context.shared.now

    return fence


def _copy(context: Context, instruction: Instruction) -> Step:
    kinds = instruction.modifiers
    if kinds[0] != "async":
        raise _unknown(instruction)
    if kinds[1] == "bulk":
        return _bulk(context, instruction, kinds[2:])
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
        raise _unknown(instruction)
    return _copy_elements(context, instruction)


def _copy_elements(context: Context, instruction: Instruction) -> Step:
    """cp.async: 4, 8 or 16 bytes for each thread; what the source lacks is filled with zeros."""
    target, source, size, *rest = instruction.operands
    if "L2_cache_hint" in instruction.modifiers:
        rest = rest[:-1]
    if rest and isinstance(rest[0], Register):
        if context.kernel.registers[rest[0].name] == "pred":
            raise _unknown(instruction)
    width = size.value
    read_given = _wide_reader(context, rest[0], "u32") if rest else None
    into, out_of = _shared_reader(context, target, False), address_reader(context, source)
    tally, copies = context.tally_of(instruction), context.copies
    access = Access(instruction, width, 1, Counters())

    def copy(lanes: Lanes) -> None:
        slots, places = context.shared.valid(into(lanes), access, lanes, "store")
        data = np.zeros((context.slots, width), np.uint8)
        given = np.full(context.slots, width) if read_given is None else read_given()
        addresses = out_of(lanes)
        given = _checked_lengths(context, instruction, lanes, given, width, addresses)
        for length in np.unique(given[lanes.mask]):
            chosen = lanes if read_given is None else Lanes(lanes.mask & (given == length), False)
            if length:
                size = min(4, int(length & -length))
                scratch = Counters()
                part = Access(instruction, size, int(length) // size, scratch)
                stand_in = slice(None) if chosen.stand_in is None else chosen.stand_in
                words = context.memory.load(addresses[stand_in], part, chosen)
                bytes_ = np.stack(words, axis=1).view(np.uint8).reshape(context.slots, -1)
                data[chosen.mask, :length] = bytes_[chosen.mask]
                tally.copy_requests += scratch.load_requests
                tally.copy_sectors += scratch.load_sectors
                tally.copied_in_bytes += scratch.load_bytes
        new = Copy(instruction, slots, places, data[slots], copies.committed[slots])
        copies.begin(new)
        copies.copies.append(new)

    return copy


def _checked_lengths(context, instruction, lanes, given, width: int, addresses) -> np.ndarray:
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
    addresses = _shared_reader(context, instruction.operands[0], not _names_shared(instruction))
    copies = context.copies

    def arrive(lanes: Lanes) -> None:
        for barrier, slots in copies.find(lanes, addresses(lanes), instruction):
            kept = []
            for copy in copies.copies:
                ours = np.isin(copy.slots, slots)
                if ours.any():
                    barrier.copies.append(_part(copy, ours))
                if not ours.all():
                    kept.append(_part(copy, ~ours))
            copies.copies = kept
            if counts:
                ones = np.ones(context.slots, np.int64)
                copies.arrive(barrier, slots, ones, 0 * ones, False)

    return arrive


def _names_shared(instruction: Instruction) -> bool:
    return bool({"shared", "shared_cta", "shared_cluster"} & {*instruction.modifiers})


def _bulk(context: Context, instruction: Instruction, kinds: tuple[str, ...]) -> Step:
    """cp.async.bulk: one thread copies a whole piece."""
    copies, shared = context.copies, context.shared
    if kinds == ("prefetch", "L2", "global"):
        return lambda lanes: None
    if kinds == ("commit_group",):

        def commit(lanes: Lanes) -> None:
            copies.bulk_committed[lanes.mask] += 1

        return commit
    if kinds[0] == "wait_group":
        behind = instruction.operands[0].value

        def wait(lanes: Lanes) -> None:
            kept = []
            for slot, group, entries, site in copies.reading:
                if lanes.mask[slot] and group < copies.bulk_committed[slot] - behind:
                    shared.owner[entries] = FREE
                else:
                    kept.append((slot, group, entries, site))
            copies.reading = kept

        return wait
    known = {"shared_cluster", "shared_cta", "global", "mbarrier_complete_tx_bytes", "bulk_group"}
    known |= {"L2_cache_hint", "multicast_cluster"}
    if not {*kinds} <= known or kinds[0] == kinds[1]:
        raise _unknown(instruction)
    return _bulk_copy(context, instruction, kinds)


def _bulk_copy(context: Context, instruction: Instruction, kinds: tuple[str, ...]) -> Step:
    target, source, length, *rest = instruction.operands
    inward, outward = kinds[0] != "global", kinds[1] != "global"
    into = _shared_reader(context, target, False) if inward else address_reader(context, target)
    out_of = _shared_reader(context, source, False) if outward else address_reader(context, source)
    sizes = _wide_reader(context, length, "u32")
    bar = _shared_reader(context, rest[0], False) if inward else None
    masks = None
    if "multicast_cluster" in kinds:
        masks = _wide_reader(context, rest[1], "u16")
    copies, shared, memory = context.copies, context.shared, context.memory
    tally = context.tally_of(instruction)
    # What a bulk copy wrote, another may read without a fence: both go through the async proxy.
    bulk = np.array([i.opcode == "cp" and "bulk" in i.modifiers for i in shared.instructions])

    def report(kind: str, message: str, slot: int) -> None:
        shared.report(kind, instruction, message, np.array([slot]))

    def place_of(slot: int, address: int, size: int, verb: str) -> tuple[int, int]:
        """(byte of the batch's shared memory, bytes that fit there); a finding if not all do."""
        block, near, outside = shared.locate(np.array([slot]), np.array([address]), instruction)
        if outside[0] or near[0] < 0 or near[0] + size > shared.bytes:
            message = (
                f"{size} bytes at byte {int(near[0])}, but the block has {shared.bytes} bytes of "
                "shared memory"
            )
            report(f"out-of-bounds shared {verb}", message, slot)
        room = shared.bytes - int(near[0]) if near[0] >= 0 and not outside[0] else 0
        return int(block[0] * shared.stride + near[0]), min(size, max(0, room))

    def fetch(slot: int, address: int, size: int) -> np.ndarray | None:
        if not outward:
            tally.copied_in_bytes += size
            tally.copy_sectors += (address + size - 1) // SECTOR - address // SECTOR + 1
            return memory.read_range(address, size, instruction, slot)
        place, room = place_of(slot, address, size, "load")
        if room < size:
            return None
        entries = copies.entries(np.array([place]), size)
        access = Access(instruction, size, 1, Counters())
        shared.check_read(np.array([slot]), entries, access)
        writers = shared.writer[entries]
        fenced = np.maximum(copies.fenced[writers], copies.fenced[slot])
        stale = (writers >= 0) & (shared.write_time[entries] >= fenced)
        if (stale & ~bulk[shared.write_site[entries]]).any():
            report(
                "shared memory not fenced for an asynchronous copy",
                "bytes that a thread stored are copied with no fence.proxy.async between",
                slot,
            )
        if not inward:
            shared.owner[entries] = READ
            group = int(copies.bulk_committed[slot])
            copies.reading.append((slot, group, entries, instruction))
        return shared.views[1][place : place + size].copy()

    def deliver(slot: int, address: int, bar_address: int, size: int, data) -> None:
        """Without data, or room for it, what fits is filled with ones, and the wait ends."""
        place, room = place_of(slot, address, size, "store")
        data = np.full(room, 255, np.uint8) if data is None else data[:room]
        new = Copy(instruction, np.array([slot]), np.array([place]), data[None])
        copies.begin(new)
        only = np.zeros(context.slots, bool)
        only[slot] = True
        where = np.full(context.slots, bar_address)
        barrier = None
        for barrier, _ in copies.find(Lanes(only, False), where, instruction):
            copies.complete(barrier, size, new)
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
            if not size or data is None and not inward:
                continue
            if not inward:
                tally.copied_out_bytes += size
                tally.copy_sectors += (to + size - 1) // SECTOR - to // SECTOR + 1
                memory.write_range(to, data, instruction, slot)
            elif masks is None:
                deliver(slot, to, int(bars[slot]), size, data)
            else:
                for rank in range(16):
                    if masks()[slot] >> rank & 1:
                        deliver(
                            slot,
                            shared.at_rank(to, rank),
                            shared.at_rank(int(bars[slot]), rank),
                            size,
                            data,
                        )

    return copy


def _store(context: Context, instruction: Instruction) -> Step:
    """st.async: a store into the shared memory of the cluster that an mbarrier counts."""
    if "async" not in instruction.modifiers:
        return translate_store(context, instruction)
    target, values, bar = instruction.operands
    kind = instruction.modifiers[-1]
    parts = getattr(values, "elements", (values,))
    width = type_size(kind) * len(parts)
    readers = [reader(context, part, f"b{8 * type_size(kind)}") for part in parts]
    into, bars = _shared_reader(context, target, False), _shared_reader(context, bar, False)
    access, copies = Access(instruction, width, 1, Counters()), context.copies

    def store(lanes: Lanes) -> None:
        slots, places = context.shared.valid(into(lanes), access, lanes, "store")
        words = [np.broadcast_to(read(), context.slots)[slots] for read in readers]
        data = np.ascontiguousarray(np.stack(words, axis=1)).view(np.uint8)
        context.tally_of(instruction).remote_requests += lanes.warps
        new = Copy(instruction, slots, places, data)
        copies.begin(new)
        counted = np.zeros(len(slots), bool)
        for barrier, users in copies.find(lanes, bars(lanes), instruction):
            ours = np.isin(slots, users)
            copies.complete(barrier, len(users) * width, _part(new, ours))
            counted |= ours
        if not counted.all():
            copies.land(_part(new, ~counted), slots[~counted])

    return store


def _mbarrier(context: Context, instruction: Instruction) -> Step:
    action, *kinds = instruction.modifiers
    operands, copies = list(instruction.operands), context.copies
    if action == "pending_count":
        read, write = reader(context, operands[1], "u64"), writer(context, operands[0], "u32")
        return lambda lanes: write((read() & np.uint64(0xFFFFFFFF)).astype(np.uint32), lanes)
    target = None if isinstance(operands[0], Address) else operands.pop(0)
    addresses = _shared_reader(context, operands.pop(0), not _names_shared(instruction))
    given = _wide_reader(context, operands[0], "u32") if operands else None
    if action in ("init", "inval", "expect_tx", "complete_tx"):

        def change(lanes: Lanes) -> None:
            where = addresses(lanes)
            if action == "init":
                copies.initialise(lanes, where, given(), instruction)
                return
            for barrier, slots in copies.find(lanes, where, instruction):
                if action == "inval":
                    copies.mbarriers = {
                        k: b for k, b in copies.mbarriers.items() if b is not barrier
                    }
                    continue
                total = int(given()[slots].sum())
                copies.changes += 1
                if action == "complete_tx":
                    copies.complete(barrier, total)
                else:
                    barrier.bytes += total
                    barrier.settle()

        return change
    if action in ("arrive", "arrive_drop"):
        expects = "expect_tx" in kinds
        write = writer(context, target, "b64")

        def arrive(lanes: Lanes) -> None:
            state = np.zeros(context.slots, np.uint64)
            ones = np.ones(context.slots, np.int64)
            number = ones if given is None else given()
            for barrier, slots in copies.find(lanes, addresses(lanes), instruction):
                state[slots] = barrier.phase << 32 | barrier.pending & 0xFFFFFFFF
                counts, expected = (ones, number) if expects else (number, 0 * ones)
                copies.arrive(barrier, slots, counts, expected, action == "arrive_drop")
            write(state, lanes)

        return arrive
    if action not in ("test_wait", "try_wait"):
        raise _unknown(instruction)
    parity = "parity" in kinds
    expected = _wide_reader(context, operands[0], "u32" if parity else "u64")
    write = writer(context, target, "pred")

    def is_over(barrier: MBarrier, phases: np.ndarray) -> np.ndarray:
        if parity:
            return (barrier.phase & 1) != (phases & 1)
        return barrier.phase > phases >> 32

    def test(lanes: Lanes) -> None:
        done = np.ones(context.slots, bool)  # of what is no mbarrier, so that the thread goes on
        wanted = expected()
        for barrier, slots in copies.find(lanes, addresses(lanes), instruction):
            over = is_over(barrier, wanted[slots])
            if not over.all():
                barrier.take()
                over |= is_over(barrier, wanted[slots])
            done[slots] = over
            if over.any():
                copies.observe(barrier, slots[over])
            if not over.all():
                copies.failed = (
                    f"the mbarrier still waits for {barrier.pending} arrivals and "
                    f"{barrier.bytes} bytes"
                )
        write(done, lanes)

    return test
