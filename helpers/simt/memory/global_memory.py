"""The GPU's global memory: allocations at virtual addresses, checked and counted on access; and
races in those that a kernel writes to.

Each numpy array of a launch becomes one allocation in the middle of a page of its own of 2^40
addresses, so that a wild address cannot land in a neighbour. Addresses keep the alignment that
CuPy would give them: allocations start at a multiple of 256 bytes, and a view that starts k bytes
into its base array starts k bytes past such a multiple. A matrix whose rows are apart is one
allocation too, in which nobody may touch what is between the rows.

Strong accesses do not race with each other if they have scopes that include the other thread and
access the same bytes ([ptx] "Morally strong operations"). A volatile access is a relaxed one of the
whole system ([ptx] "ld.volatile"). Not seen: a bulk copy that writes with no fence of the proxy
behind ordinary accesses. A store races with an earlier load also where its value is not used.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ..analysis import ANYTHING, ORDINARY, guarded_loads
from ..findings import Reporter, Suspicion
from ..geometry import Batch, Lanes
from ..hardware import ALLOCATION_ALIGN, BULK_ALIGN, SECTOR, WARP
from ..instructions import UNSIGNED, Instruction, PtxKernel, Variable
from .access import Access, Pattern, all_ones, stores_same
from .causality import BLOCK, CLUSTER, GPU, WEAK, Causality
from .races import (
    ATOMIC,
    STRONG,
    STRONG_WRITE,
    THREAD,
    UNFINISHED,
    WEAK_READ,
    WEAK_WRITE,
    Epochs,
    Races,
    verb,
)

KIND = "race on global memory"
STALE = "read-only load of what is written"
PACKED = {"f16x2", "bf16x2"}


class GlobalRaces(Races):
    """Checks the accesses of a launch to global memory."""

    covered = WEAK_READ + STRONG

    def __init__(self, kernel: PtxKernel, suspicion: Suspicion, causality: Causality):
        super().__init__(kernel, suspicion, causality)
        self.guarded = guarded_loads(kernel)
        self.pieces = np.zeros(len(kernel.instructions), np.int8)  # bytes of a strong access
        self.scopes = np.zeros(len(kernel.instructions), np.int8)  # of its accesses
        self.mixed = False  # has seen strong accesses that need not be atomic to one another

    def read(
        self, epochs: Epochs, offsets: np.ndarray, slots: np.ndarray, access: Access
    ) -> np.ndarray:
        self._look_at(epochs, access)
        if access.read_only:
            self._look_for_writes(epochs, epochs.entries(offsets, access.width), slots, access)
        entries = super().read(epochs, offsets, slots, access)
        if access.instruction.number in self.guarded and self.causality.beliefs:
            self._look_for_beliefs(epochs, entries, slots, access)
        return entries

    def write(self, epochs: Epochs, offsets, slots, access: Access, *more, **named):
        self._look_at(epochs, access)
        return super().write(epochs, offsets, slots, access, *more, **named)

    def _look_at(self, epochs: Epochs, access: Access) -> None:
        """From the first strong access on that is not like others, of a narrower scope or of other
        bytes, strong accesses are held against one another. A vector, a packed one too, is an
        access for each element."""
        self.scopes[access.instruction.number] = access.scope
        if access.scope:
            piece = 2 if PACKED & {*access.instruction.modifiers} else access.size
            self.pieces[access.instruction.number] = piece
            self.mixed |= access.scope < GPU or epochs.piece not in (0, piece)
            epochs.piece = piece

    def compares_strong(self, access: Access) -> bool:
        return self.mixed

    # ---- judging ----

    def conflicts(
        self, kind: int, stamps: np.ndarray, slots: np.ndarray, access: Access
    ) -> np.ndarray:
        sites = self.site(stamps)
        racing, scopes = np.ones(len(stamps), bool), self.scopes[sites]
        if access.scope and scopes.any():
            distances = self.causality.distance(stamps & THREAD, self.threads[slots])
            weak = (scopes == WEAK) | (np.minimum(scopes, access.scope) < distances)
            racing &= weak | (self.pieces[sites] != self.pieces[access.instruction.number])
        return racing

    def _look_for_writes(
        self, epochs: Epochs, entries: np.ndarray, slots: np.ndarray, access: Access
    ) -> None:
        """Bytes that the launch has written must not be read by a cache that does not see that, not
        even by who wrote them."""
        for kind in (*WEAK_WRITE, STRONG_WRITE[0]):
            stamps = epochs.stamps[kind]
            written = None if stamps is None else stamps[entries] != 0
            if written is not None and written.any():
                where = np.nonzero(written)
                other = self.instructions[self.site(stamps[entries][where][0])]
                message = (
                    f"the {verb(other)} in line {other.line} has written these bytes of "
                    f"{epochs.name} in this launch, and __ldg, or a pointer to const with "
                    "__restrict__, reads them through a cache that need not see it"
                )
                self.suspicion.doubt(
                    STALE, access.instruction, message, np.unique(slots[where[0]]), other=other
                )
                return

    def _look_for_beliefs(
        self, epochs: Epochs, entries: np.ndarray, slots: np.ndarray, access: Access
    ) -> None:
        """What others have written there must have come, if a flag that these slots have seen was
        set behind it. A word that an atomic has changed and asked is a flag itself: a thread that
        has seen it once sees nothing older ([ptx] "Coherence")."""
        asked = epochs.stamps[ATOMIC]
        for kind in STRONG_WRITE:
            stamps = epochs.stamps[kind]
            if stamps is None or not stamps[entries].any():
                continue
            where = np.nonzero((stamps[entries] != 0) & (asked is None or asked[entries] == 0))
            found, mine = stamps[entries][where], slots[where[0]]
            other = found & THREAD != self.threads[mine]
            found, mine = found[other], mine[other]
            beliefs = self.causality.beliefs
            early = beliefs.ordered(found & THREAD, self.time(found), mine)
            early[early] = ~self.ordered(found[early], mine[early], strong=True)
            if early.any():
                other = self.instructions[self.site(found[early][0])]
                message = (
                    f"this load and the {verb(other)} in line {other.line} access the same bytes "
                    f"of {epochs.name}; a flag that is read before says that they have been "
                    "written, but it needs a fence before it is set and one behind it where it is "
                    "read, __threadfence() where that is another block"
                )
                self.suspicion.doubt(
                    KIND, access.instruction, message, np.unique(mine[early]), other=other
                )
                return

    # ---- saying ----

    def report(
        self,
        epochs: Epochs,
        kind: int,
        stamps: np.ndarray,
        faulty: np.ndarray,
        slots: np.ndarray,
        access: Access,
    ) -> np.ndarray:
        found, mine = stamps[faulty], slots[np.nonzero(faulty)[0]]
        sites = self.site(found)
        for site in np.unique(sites).tolist():
            ours = np.flatnonzero(sites == site)
            first = found[ours[0]]
            self._say(epochs.name, first, np.unique(mine[ours]), access)
        return np.zeros(len(slots), bool)  # each pair of lines is a race of its own

    def _say(self, name: str, stamp: np.int64, slots: np.ndarray, access: Access) -> None:
        thread, time, site = int(stamp & THREAD), int(self.time(stamp)), int(self.site(stamp))
        scope = self.scopes[site]
        other, batch = self.instructions[site], self.reporter.batch
        slot, mine = int(slots[0]), int(self.threads[slots[0]])
        (distance,) = self.causality.distance(np.array([thread]), np.array([mine]))
        block, place = batch.place(thread - self.causality.first)
        what = f"line {other.line}" if other is not access.instruction else "this line"
        message = (
            f"this {verb(access.instruction)} and the {verb(other)} in {what} by thread {place} of "
            f"block {block} access the same bytes of {name}, and nothing orders them: "
        )
        pieces = self.pieces[site], self.pieces[access.instruction.number]
        if scope and access.scope and pieces[0] != pieces[1]:
            cure = (
                f"one is of {pieces[0]} bytes, the other of {pieces[1]}, and only accesses of the "
                "very same bytes are atomic to one another"
            )
        elif scope and access.scope:
            least = "cluster" if distance == CLUSTER else "whole GPU"
            name = "block" if min(scope, access.scope) == BLOCK else "cluster"
            cure = (
                f"an atomic access of {name} scope orders nothing further away; use {least} scope"
            )
        elif scope or access.scope:
            weak = access.instruction if scope else other
            strong, what = "atomic or volatile", "neither"
            if ORDINARY in weak.modifiers:
                strong, what = "atomic", "volatile, which counts as ordinary here"
            cure = (
                f"one is {strong}, the {verb(weak)} in line {weak.line} is {what}; make it "
                f"{strong}, or order it: {self._cure(thread, time, slot, distance)}"
            )
        elif other is access.instruction and time != UNFINISHED:
            cure = "if both threads are to write there, they need an atomic"
        else:
            cure = self._cure(thread, time, slot, distance)
        instruction = access.instruction
        about = KIND, instruction, message + cure, slots
        if instruction.opcode == "ld":  # reported where what it loads is used
            self.suspicion.doubt(*about, other=other)
        else:
            self.reporter.report(*about, other=other)

    def _cure(self, thread: int, time: int, slot: int, distance: int) -> str:
        """What would order an access of a thread before that of a slot."""
        earlier, causality = thread - self.causality.first, self.causality
        if time == UNFINISHED:
            return (
                "the copy goes on until its thread has waited for it (cp.async.wait_group, or the "
                "mbarrier), and others have met it at a barrier after that"
            )
        if distance == BLOCK:
            if earlier // WARP == slot // WARP:
                return "__syncwarp() between them would"
            return "__syncthreads() between them would"
        if distance == CLUSTER:
            return "a barrier of the cluster between them would"
        if earlier >= 0 and causality.last_fence(earlier, GPU) > time:
            return (
                "the first thread has executed __threadfence() since; what it then writes by an "
                "atomic or volatile access the second thread has to read by one, with a "
                "__threadfence() of its own behind it"
            )
        if earlier >= 0 and causality.last_fence(earlier, BLOCK) > time:
            return "the fence that follows the first reaches no other block; __threadfence() does"
        return (
            "blocks are ordered by a barrier of the grid, by the next launch, or by a flag: "
            "__threadfence() and an atomic write after the first, an atomic read of it and "
            "__threadfence() before the second"
        )


# ---- the memory ----------------------------------------------------------------------------------


PAGE_BITS = 40


@dataclass
class Allocation:
    name: str
    start: int  # address of the first byte
    stop: int  # address past the last byte
    page: int  # address of data[0]: the middle of a page, where start is rounded down to
    data: np.ndarray  # bytes, from the page's first
    array: np.ndarray  # the caller's
    rows: tuple[int, int] | None = None  # bytes of one, and to the next, where these are apart
    variable: Variable | None = None  # of the module that it is, not an array
    views: dict[int, np.ndarray] = field(init=False)  # data, by the bytes of an element
    written: bool = False  # by the kernel
    constant: bool = False  # the kernel has promised, by its parameters, to write nothing there
    epochs: Epochs | None = None  # who touched which bytes last, if the kernel may write to some

    def __post_init__(self) -> None:
        self.views = {size: self.data.view(kind) for size, kind in UNSIGNED.items()}

    def leaves_row(self, addresses: np.ndarray | int, width: int) -> np.ndarray | bool:
        """Whether an access that begins in the allocation touches what is between its rows."""
        if self.rows is None:
            return False
        used, apart = self.rows
        return (addresses - self.start) % apart + width > used


class GlobalMemory:
    """Allocations of one launch."""

    def __init__(self, reporter: Reporter, races: GlobalRaces | None = None):
        self.reporter, self.races = reporter, races
        self.allocations: list[Allocation] = []
        self.tainted: np.ndarray | None = None  # threads led astray by a bad load
        self.changes = 0  # counts stores, so that a wait for one can be given up

    def start_batch(self, batch: Batch) -> None:
        self.tainted = None
        self.races.start_batch(batch)

    def allocate(self, array: np.ndarray, name: str) -> int:
        """Map an array that is C-contiguous or a matrix whose rows are, and return the address of
        its first byte."""
        pointer, memory = array.__array_interface__["data"][0], span(array)
        rows = None if array.flags.c_contiguous else (array[:1].nbytes, array.strides[0])
        for known in self.allocations:
            if known.array.__array_interface__["data"][0] == pointer and (
                known.stop - known.start == memory.size and known.rows == rows
            ):
                return known.start
            if np.may_share_memory(known.array, array):
                raise TypeError(
                    f"{name} overlaps {known.name}, which the SIMT machine cannot do: pass one "
                    "array, or copies"
                )
        offset = byte_offset(array)
        page = (2 * len(self.allocations) + 3) << PAGE_BITS - 1
        data = np.zeros(-(-(offset + memory.size) // SECTOR) * SECTOR, np.uint8)
        data[offset : offset + memory.size] = memory
        start, stop = page + offset, page + offset + memory.size
        self.allocations.append(Allocation(name, start, stop, page, data, array, rows))
        return start

    def allocate_variable(self, variable: Variable) -> None:
        """Hold a variable of the module, with its initial bytes: every launch starts afresh."""
        self.allocate(np.zeros(max(1, variable.size), np.uint8), variable.name)
        self.allocations[-1].variable = variable

    def watch_writes(self, names: Collection[str], addresses: Collection[int]) -> None:
        """Look for races in the variables of these names and the arrays at these addresses; in
        everything if `ANYTHING` is among the names."""
        for one in self.allocations:
            named = one.variable is not None and one.variable.name in names
            if ANYTHING in names or named or any(one.start <= a <= one.stop for a in addresses):
                one.epochs = Epochs(one.name, len(one.data), one.page)

    def initialise_variables(self, functions: dict[str, int]) -> None:
        """Fill in initial values; addresses of other variables are known by now, and those of
        `functions`."""
        for allocation in self.allocations:
            for offset, value in allocation.variable.initial if allocation.variable else ():
                if isinstance(value, str):
                    name, _, further = value.partition("+")
                    starts = functions | {a.name: a.start for a in self.allocations}
                    value = (starts[name] + int(further or 0)).to_bytes(8, "little")
                allocation.data[offset : offset + len(value)] = np.frombuffer(value, np.uint8)

    def write_back(self) -> None:
        """Copy what the kernel stored into the caller's arrays."""
        for allocation in self.allocations:
            if allocation.written and not allocation.array.flags.writeable:
                raise ValueError(f"{allocation.name} is read-only, and the kernel wrote to it")
            if allocation.written:
                first, last = allocation.start - allocation.page, allocation.stop - allocation.page
                span(allocation.array)[:] = allocation.data[first:last]

    def load(self, addresses: np.ndarray, access: Access, lanes: Lanes) -> list[np.ndarray]:
        """Return one array of unsigned values per element; all ones where a lane may not read."""
        values = None
        for allocation, chosen in self._parts(addresses, access, lanes, "load"):
            places = addresses if chosen is lanes else chosen.with_stand_ins(addresses)
            offsets = places - allocation.page
            if allocation.epochs is not None and not access.atomic:
                slots = chosen.slots
                self.races.read(allocation.epochs, offsets[slots], slots, access)
            view = allocation.views[access.size]
            index = offsets >> (access.size.bit_length() - 1)
            found = [view[index]]
            found += [view[index + element] for element in range(1, access.elements)]
            if chosen is lanes:
                return found
            values = values or all_ones(len(addresses), access)
            for value, one in zip(values, found, strict=True):
                value[chosen.mask] = one[chosen.mask]
        return values or all_ones(len(addresses), access)

    def store(
        self, addresses: np.ndarray, values: list[np.ndarray], access: Access, lanes: Lanes
    ) -> None:
        """Store one array of unsigned values per element; lanes that may not write are dropped."""
        for allocation, chosen in self._parts(addresses, access, lanes, "store"):
            places, kept = addresses, values
            if chosen is not lanes:
                places = chosen.with_stand_ins(addresses)
                wide = [np.broadcast_to(value, addresses.shape) for value in values]
                kept = [chosen.with_stand_ins(value) for value in wide]
            offsets = places - allocation.page
            self.changes += not access.atomic
            slots = chosen.slots
            self._wrote(allocation, access.instruction, slots)
            view = allocation.views[access.size]
            index = offsets >> (access.size.bit_length() - 1)
            if allocation.epochs is not None and not access.atomic:
                same = functools.partial(stores_same, view, index, kept)
                self.races.write(allocation.epochs, offsets[slots], slots, access, same)
            for element, value in enumerate(kept):
                view[index + element] = value

    def changed(
        self, addresses: np.ndarray, slots: np.ndarray, wrote: np.ndarray, access: Access
    ) -> None:
        """Look for races of an atomic of these slots, each of which found what the one before it
        left; not all of them `wrote`."""
        for page in np.unique(addresses >> PAGE_BITS).tolist():
            allocation = self.allocation_near(page << PAGE_BITS)
            if allocation is None or allocation.epochs is None:
                continue
            chosen = (addresses >= allocation.start) & (addresses < allocation.stop)
            chosen &= addresses % access.size == 0
            offsets = addresses[chosen] - allocation.page
            where = allocation.epochs, offsets, slots[chosen]
            self.races.write(*where, access, wrote=wrote[chosen])

    # ---- checking ----

    def _parts(
        self, addresses: np.ndarray, access: Access, lanes: Lanes, verb: str
    ) -> Iterator[tuple[Allocation, Lanes]]:
        """Count the access; yields each allocation with the lanes that may access it, and reports
        the others."""
        first, pattern = access.placed(addresses)
        if not access.atomic:
            tally = vars(access.tally)
            tally[f"{verb}_requests"] += lanes.warps
            tally[f"{verb}_sectors"] += pattern.sectors_from(first) - lanes.idle_warps
            tally[f"{verb}_bytes"] += lanes.count * access.width
        allocation = self._common_allocation(first, pattern, addresses, access)
        if allocation is not None:
            yield allocation, lanes
            return
        for one, active in self._sort_out(addresses, access, lanes, verb):
            yield one, Lanes(active)

    def _common_allocation(
        self, first: int, pattern: Pattern, addresses: np.ndarray, access: Access
    ) -> Allocation | None:
        """The allocation that holds every lane's access, all aligned; None if there is none."""
        lowest, highest = first + pattern.lowest, first + pattern.highest
        allocation = self.allocation_near(lowest)
        if (
            allocation is None
            or lowest < allocation.start
            or highest + access.width > allocation.stop
            or (first | pattern.low_bits) & (access.width - 1)
        ):
            return None
        if allocation.rows and allocation.leaves_row(addresses, access.width).any():
            return None
        return allocation

    def _sort_out(self, addresses: np.ndarray, access: Access, lanes: Lanes, verb: str):
        """Report the lanes at fault; yield (allocation, lanes that may access it)."""
        misaligned = lanes.mask & (addresses & (access.width - 1) != 0)
        inside, owners = np.zeros(len(addresses), bool), []
        for allocation in self.allocations:
            holds = (addresses >= allocation.start) & (addresses <= allocation.stop - access.width)
            holds &= ~np.asarray(allocation.leaves_row(addresses, access.width))
            owners.append((allocation, holds & lanes.mask & ~misaligned))
            inside |= holds
        outside = lanes.mask & ~inside & ~misaligned
        for kind, faulty in (("misaligned", misaligned), ("out-of-bounds", outside)):
            slots = np.flatnonzero(faulty if self.tainted is None else faulty & ~self.tainted)
            if len(slots):
                address = int(addresses[slots[0]])
                message = self._outside(address, access.width)
                if kind == "misaligned":
                    message = access.explain_alignment(self._describe(address))
                self.reporter.report(f"{kind} {verb}", access.instruction, message, slots)
        if access.steers and verb == "load" and (outside | misaligned).any():
            if self.tainted is None:
                self.tainted = np.zeros(len(addresses), bool)
            self.tainted |= outside | misaligned
        return [(allocation, active) for allocation, active in owners if active.any()]

    def _wrote(self, allocation: Allocation, instruction: Instruction, slots: np.ndarray) -> None:
        """These threads store to an allocation."""
        allocation.written = True
        if allocation.constant:
            message = (
                f"{allocation.name} comes in by a pointer to const, so that loads may be served by "
                "a cache that sees no stores, or from before them"
            )
            self.reporter.report("store through a pointer to const", instruction, message, slots)

    def _outside(self, address: int, width: int) -> str:
        return f"{width} bytes not inside any array: {self._describe(address, width)}"

    def allocation_near(self, address: int) -> Allocation | None:
        """The allocation on whose page an address is."""
        page = (address >> PAGE_BITS) - 1
        return self.allocations[page] if 0 <= page < len(self.allocations) else None

    def _describe(self, address: int, width: int = 0) -> str:
        allocation = self.allocation_near(address)
        if allocation is None:
            return f"address {address & (1 << 64) - 1:#x}"
        size = allocation.stop - allocation.start
        if address >= allocation.stop:
            past = address - allocation.stop
            return f"{past} bytes past the end of {allocation.name} ({size} bytes)"
        if address < allocation.start:
            return f"{allocation.start - address} bytes before {allocation.name}"
        if allocation.leaves_row(address, width):
            row, byte = divmod(address - allocation.start, allocation.rows[1])
            return (
                f"byte {byte} of row {row} of {allocation.name}, whose rows have "
                f"{allocation.rows[0]} bytes and start {allocation.rows[1]} bytes apart"
            )
        if address + width > allocation.stop:
            return f"from byte {address - allocation.start} of {allocation.name} ({size} bytes) on"
        place = f"byte {address - allocation.start} of {allocation.name}"
        offset = allocation.start % ALLOCATION_ALIGN
        return f"{place}, which starts {offset} bytes past a multiple of 256" if offset else place

    def read_range(
        self, address: int, size: int, instruction: Instruction, slot: int
    ) -> np.ndarray | None:
        """The bytes from an address on; None, and a finding, if no array holds them all."""
        allocation = self._holder(address, size, "load", instruction, slot)
        if allocation is None:
            return None
        start = address - allocation.page
        if allocation.epochs is not None:
            self.races.read(allocation.epochs, *_pieces(start, size, slot), _bulk(instruction))
        return allocation.data[start : start + size].copy()

    def stored(self, address: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Who of the batch has stored to bytes from an address on, not by a copy, and when."""
        allocation = self.allocation_near(address)
        if allocation is None or allocation.epochs is None:
            return np.zeros((2, 0), np.int64)
        start = address - allocation.page
        return self.races.stored(allocation.epochs, start, size)

    def write_range(
        self, address: int, data: np.ndarray, instruction: Instruction, slot: int
    ) -> None:
        """Store bytes from an address on; dropped, with a finding, if no array holds them all."""
        allocation = self._holder(address, len(data), "store", instruction, slot)
        if allocation is not None:
            start = address - allocation.page
            self._wrote(allocation, instruction, np.array([slot]))
            if allocation.epochs is not None:
                pieces = _pieces(start, len(data), slot)
                self.races.write(allocation.epochs, *pieces, _bulk(instruction))
            allocation.data[start : start + len(data)] = data
            self.changes += 1

    def _holder(self, address: int, size: int, verb: str, instruction: Instruction, slot: int):
        for allocation in self.allocations:
            if allocation.start <= address and address + size <= allocation.stop:
                if not allocation.leaves_row(address, size):
                    return allocation
        about = f"out-of-bounds {verb}", instruction, self._outside(address, size)
        self.reporter.report(*about, np.array([slot]))
        return None


def _pieces(start: int, size: int, slot: int) -> tuple[np.ndarray, np.ndarray]:
    """A bulk copy as accesses of one thread, of as many bytes as it is aligned to: where each
    starts, and the thread."""
    offsets = np.arange(start, start + size, BULK_ALIGN)
    return offsets, np.full(len(offsets), slot)


def _bulk(instruction: Instruction) -> Access:
    return Access(instruction, BULK_ALIGN, 1, asynchronous=True)


def rows_apart(array: np.ndarray) -> bool:
    """Whether an array is a matrix of contiguous rows, each behind the one before."""
    return (
        array.ndim == 2
        and (array.shape[1] == 1 or array.strides[1] == array.itemsize)
        and array.strides[0] >= array[:1].nbytes
    )


def span(array: np.ndarray) -> np.ndarray:
    """The bytes of an array's memory from its first element to its last, as a view; those between
    the rows of a matrix too."""
    if array.flags.c_contiguous:
        return array.reshape(-1).view(np.uint8)
    first = array[:1].reshape(-1).view(np.uint8)
    size = (len(array) - 1) * array.strides[0] + first.size
    return as_strided(first, (size,), (1,), writeable=array.flags.writeable)


def byte_offset(array: np.ndarray) -> int:
    """Bytes (below 256) between the start of an array's base buffer and its first element.

    numpy's buffers start at a multiple of 16, CuPy's at a multiple of 256: what a view adds to
    its base is the same in both, and is what alignment depends on.
    """
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    first = array.__array_interface__["data"][0]
    return (first - base.__array_interface__["data"][0]) % ALLOCATION_ALIGN
